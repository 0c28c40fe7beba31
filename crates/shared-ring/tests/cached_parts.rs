//! Sends of files that are in the page cache only in part.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::fs::{Advice, fadvise};
use shared_ring::nonblocking::{self, Blocking, SendFileError};
use shared_ring::{Fd, Linux};

const LEN: usize = 256 * 1024;
const CACHED: usize = 64 * 1024;

#[test]
fn send_waited_for_bytes_behind_those_that_are_cached() {
    // A directory in memory keeps its files cached.
    let path = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = path.path().join("file");
    let contents: Vec<u8> = (0..LEN).map(|i| (i / 7) as u8).collect();
    File::create(&path).unwrap().write_all(&contents).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    // The kernel reads no more than it is asked for.
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let shared = shared_ring::File::from(OwnedFd::from(file.try_clone().unwrap()));

    let (sender, mut receiver) = UnixStream::pair().unwrap();
    sender.set_nonblocking(true).unwrap();
    receiver.set_nonblocking(true).unwrap();
    // SAFETY: the socket is open during the sends.
    let to = unsafe { Fd::lent(sender.as_fd()) };
    let send = |len: usize| {
        let part = (&shared, 0, len as u32);
        nonblocking::send_file(&mut Linux::default(), to, part, Blocking::NoBlock)
    };
    let evicted = send(LEN);
    let can_evict = evicted == Err(SendFileError::Cold);
    println!("the file system evicts: {can_evict}");
    file.read_exact_at(&mut vec![0; CACHED], 0).unwrap();
    let sent = send(LEN).unwrap() as usize;
    assert!(sent > 0 && (!can_evict || sent <= CACHED), "{sent} bytes");
    let before = evicted.map_or(0, |n| n as usize);
    let mut received = Vec::new();
    let error = receiver.read_to_end(&mut received).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(received == [&contents[..before], &contents[..sent]].concat());
}
