//! Sends of files that are in the page cache, or only in part.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use rustix::fs::{Advice, fadvise};
use shared_ring::nonblocking::{self, Blocking, SendFileError};
use shared_ring::{Fd, Linux};

const LEN: usize = 256 * 1024;
const PAGE: usize = 4096;

/// Returns a directory on a disk: one in memory would keep its files cached.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Creates a file that is not cached, and opens it for reading. The kernel reads no more of it than is requested.
fn evicted(path: &Path) -> File {
    File::create(path).unwrap().write_all(&[b'x'; LEN]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    file
}

/// Sends all of a file if that does not wait for the disk, as if nothing were known of it.
fn send(file: &File) -> Result<u32, SendFileError> {
    let (sender, _receiver) = UnixStream::pair().unwrap();
    sender.set_nonblocking(true).unwrap();
    let file = shared_ring::File::from(OwnedFd::from(file.try_clone().unwrap()));
    // SAFETY: the socket is open during the send.
    let to = unsafe { Fd::lent(sender.as_fd()) };
    nonblocking::send_file(&mut Linux::default(), to, (&file, 0, LEN as u32), Blocking::NoBlock)
}

/// Takes the permission for cachestat(2) from this thread, unless the file is that of its user.
fn become_another_user() {
    const NOBODY: libc::uid_t = 65_534;
    // SAFETY: the system call, unlike the function of libc, changes this thread only, and accesses no memory.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) };
    println!("another user: {}", result == 0);
}

#[test]
fn missing_middle_was_overlooked_without_permission_for_cachestat() {
    let directory = directory();
    let file = evicted(&directory.path().join("file"));
    for at in [0, LEN - PAGE] {
        file.read_exact_at(&mut [0; PAGE], at as u64).unwrap();
    }
    // Its owner has the permission.
    let has_gap = send(&file) == Err(SendFileError::Cold);
    println!("the file system has evicted the middle: {has_gap}");
    thread::scope(|scope| {
        scope.spawn(|| {
            become_another_user();
            assert_eq!(send(&file) == Err(SendFileError::Cold), has_gap);
            file.read_exact_at(&mut [0; LEN], 0).unwrap();
            assert!(send(&file).unwrap() > 0);
        });
    });
}
