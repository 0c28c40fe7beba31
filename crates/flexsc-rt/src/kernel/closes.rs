//! Files that nothing uses any more are closed by posted calls without a callback (section 4).

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, FromRawFd};
use std::rc::Rc;

use shared_ring::Socket;
use shared_ring::files::File;

use super::super::raw::OwnedFile;

/// Files that wait to be closed, or are being closed, at most; others are closed where they are dropped.
pub(super) const CLOSES: u16 = 256;

/// The files to close.
pub(super) struct Closes(Rc<CloseQueue>);

struct CloseQueue {
    waiting: RefCell<Vec<OwnedFile>>,
    /// Places that are free.
    free: Cell<u16>,
}

/// Owns the descriptor of a file. Dropped with its last clone.
struct FileOwner {
    fd: Option<OwnedFile>,
    queue: Rc<CloseQueue>,
}

impl Closes {
    pub(super) fn new() -> Self {
        let waiting = RefCell::new(Vec::with_capacity(CLOSES.into()));
        Closes(Rc::new(CloseQueue { waiting, free: Cell::new(CLOSES) }))
    }

    /// Returns an open file that is closed by a posted call.
    pub(super) fn file(&self, fd: OwnedFile) -> File {
        // SAFETY: the alias only names the descriptor; the owner closes it.
        let opened = unsafe { Socket::from_raw_fd(fd.as_raw_fd()) };
        File::of(opened, FileOwner { fd: Some(fd), queue: Rc::clone(&self.0) })
    }

    /// Closes a file that nothing uses, without an allocation.
    pub(super) fn close(&self, fd: OwnedFile) {
        self.0.close(fd);
    }

    /// Returns a file to close. [`Closes::closed`] has to follow.
    pub(super) fn next(&self) -> Option<OwnedFile> {
        self.0.waiting.borrow_mut().pop()
    }

    /// Notes that a file is closed.
    pub(super) fn closed(&self) {
        self.0.free.set(self.0.free.get() + 1);
    }

    /// Closes the files that wait. From now on, files are closed where they are dropped.
    pub(super) fn finish(&self) {
        self.0.free.set(0);
        self.0.waiting.borrow_mut().clear();
    }
}

impl CloseQueue {
    /// Lets a file wait to be closed; without a place, closes it.
    fn close(&self, fd: OwnedFile) {
        if let Some(free) = self.free.get().checked_sub(1) {
            self.free.set(free);
            self.waiting.borrow_mut().push(fd);
        }
    }
}

impl Drop for FileOwner {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.queue.close(fd);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Returns a file and the peer that sees it close.
    fn open() -> (OwnedFile, UnixStream) {
        let (file, peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        // SAFETY: the stream has given it up.
        (unsafe { OwnedFile::from_raw_fd(file.into_raw_fd()) }, peer)
    }

    fn is_open(mut peer: &UnixStream) -> bool {
        !matches!(peer.read(&mut [0]), Ok(0))
    }

    #[test]
    fn dropped_files_wait_to_be_closed_up_to_a_bound() {
        let closes = Closes::new();
        let (files, peers): (Vec<_>, Vec<_>) = (0..=CLOSES).map(|_| open()).unzip();
        let files: Vec<_> = files.into_iter().map(|fd| closes.file(fd)).collect();
        let clones = files.clone();
        drop(files);
        assert!(closes.next().is_none(), "a clone remains");
        drop(clones);
        let (last, others) = peers.split_last().unwrap();
        assert!(!is_open(last), "there was no place for it");
        assert!(others.iter().all(is_open));
        let waiting: Vec<_> = std::iter::from_fn(|| closes.next()).collect();
        assert_eq!(waiting.len(), usize::from(CLOSES));
        drop(waiting);
        closes.closed();
        drop((closes.file(open().0), closes.file(open().0)));
        assert!(closes.next().is_some() && closes.next().is_none());
    }

    #[test]
    fn files_are_closed_after_the_end() {
        let closes = Closes::new();
        let ((waiting, waiting_peer), (later, later_peer)) = (open(), open());
        let (waiting, later) = (closes.file(waiting), closes.file(later));
        drop(waiting);
        assert!(is_open(&waiting_peer));
        closes.finish();
        assert!(!is_open(&waiting_peer));
        drop(later);
        assert!(!is_open(&later_peer));
    }
}
