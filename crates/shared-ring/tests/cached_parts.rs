//! Sends of files that are in the page cache, or only in part.

mod page_cache;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use page_cache::PAGE;
use rustix::fs::{Advice, fadvise};
use shared_ring::nonblocking::{self, Blocking, SendFileError};
use shared_ring::{Errno, Fd, Host, Linux};

/// Length of a block, which a file remembers.
const LEN: usize = shared_ring::files::File::BLOCK_BYTES as usize;

/// Returns a directory on a disk: one in memory would keep its files cached.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Creates a file that is not cached, and opens it for reading. The kernel reads no more of it than is requested. Returns
/// `None` if the file system does not tell what is cached, or keeps it.
fn evicted(path: &Path, len: usize) -> Option<File> {
    File::create(path).unwrap().write_all(&vec![b'x'; len]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    if !page_cache::tells(&file) || !page_cache::evict(&file) {
        return None;
    }
    fadvise(&file, 0, None, Advice::Random).unwrap();
    Some(file)
}

/// Sends all of a file if that does not wait for the disk, as if nothing were known of it.
fn send(file: &File) -> Result<u32, SendFileError> {
    send_part(file, 0, LEN)
}

/// Sends a part of a file if that does not wait for the disk, as if nothing were known of it.
fn send_part(file: &File, offset: usize, len: usize) -> Result<u32, SendFileError> {
    let (sender, _receiver) = UnixStream::pair().unwrap();
    sender.set_nonblocking(true).unwrap();
    let file = shared_ring::files::File::from(OwnedFd::from(file.try_clone().unwrap()));
    // SAFETY: the socket is open during the send.
    let to = unsafe { Fd::lent(sender.as_fd()) };
    let part = (&file, offset as u64, &mut (len as u32));
    nonblocking::send_file(&mut Linux::default(), to, part, false)
}

/// Takes the permission for cachestat(2) from this thread, unless the file is that of its user. Returns whether that
/// was permitted.
fn become_another_user() -> bool {
    const NOBODY: libc::uid_t = 65_534;
    // SAFETY: the system call, unlike the function of libc, changes this thread only, and accesses no memory.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) };
    result == 0
}

#[test]
fn missing_middle_was_overlooked_without_permission_for_cachestat() {
    let directory = directory();
    let Some(file) = evicted(&directory.path().join("file"), LEN) else { return };
    for at in [0, LEN - PAGE] {
        file.read_exact_at(&mut [0; PAGE], at as u64).unwrap();
    }
    let has_gap = page_cache::cached_pages(&file).contains(&false);
    println!("the file system has left out the middle: {has_gap}");
    // Its owner has the permission.
    assert_eq!(send(&file) == Err(SendFileError::Cold), has_gap);
    thread::scope(|scope| {
        scope.spawn(|| {
            if !become_another_user() {
                println!("not tested: this user may not become another one (setresuid(2))");
                return;
            }
            assert_eq!(send(&file) == Err(SendFileError::Cold), has_gap);
            file.read_exact_at(&mut [0; LEN], 0).unwrap();
            assert!(send(&file).unwrap() > 0);
        });
    });
}

#[test]
fn all_of_a_long_part_was_looked_for_before_its_first_block_was_sent() {
    let directory = directory();
    let Some(file) = evicted(&directory.path().join("file"), 2 * LEN) else { return };
    file.read_exact_at(&mut [0; LEN], 0).unwrap();
    let is_cached = page_cache::cached_pages(&file)[LEN / PAGE];
    println!("the file system has read the second block, too: {is_cached}");
    assert_eq!(send_part(&file, LEN, LEN) == Err(SendFileError::Cold), !is_cached);
    let sent = send_part(&file, 0, 2 * LEN).unwrap() as usize;
    assert!((1..=LEN).contains(&sent), "{sent}");
    // Not less than the block that is cached.
    let file = shared_ring::files::File::from(OwnedFd::from(file));
    let mut len = 2 * LEN as u32;
    assert!(!nonblocking::must_read(&mut Linux::default(), &file, 0, &mut len));
    assert_eq!(len as usize, if is_cached { 2 * LEN } else { LEN });
}

#[test]
fn cached_beginning_of_a_part_waited_for_its_end() {
    let directory = directory();
    let Some(file) = evicted(&directory.path().join("file"), LEN) else { return };
    let cached = nonblocking::MAX_READ_BYTES as usize;
    file.read_exact_at(&mut vec![0; cached], 0).unwrap();
    let sent = send(&file).unwrap() as usize;
    assert!((1..=cached).contains(&sent), "{sent}");
}

/// Returns whether the kernel has cachestat(2).
fn has_cachestat() -> bool {
    const SYS_CACHESTAT: libc::c_long = 451;
    // SAFETY: the call accesses no memory, as there is no such descriptor.
    unsafe { libc::syscall(SYS_CACHESTAT, -1, 0, 0, 0) };
    let has_call = std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF);
    if !has_call {
        println!("not tested: the kernel has no cachestat(2)");
    }
    has_call
}

#[test]
fn look_at_bytes_that_are_not_cached_began_to_read_them() {
    let directory = directory();
    let Some(file) = evicted(&directory.path().join("file"), LEN) else { return };
    if !has_cachestat() {
        return;
    }
    let looked_at = shared_ring::files::File::from(OwnedFd::from(file.try_clone().unwrap()));
    let at = LEN as u64 - 64;
    let read = Linux::default().read_file(&looked_at, at, &mut [0; 64], Blocking::NoBlock);
    assert_eq!(read, Err(Errno::AGAIN));
    assert!(!page_cache::cached_pages(&file).contains(&true));
}
