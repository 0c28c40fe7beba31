//! What all threads of a process are interested in (section 9).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::edges;
use super::{Error, Interests, Mask, state_of};
use crate::linux::borrow;
use crate::{Fd, Table};

/// Interests of every thread that has joined, or joins later. An event is for one of them: for the
/// first that waits, and for those that come later if it is true still.
pub struct ProcessWide {
    /// Nobody waits on it; it knows which numbers stand for the files that were declared.
    keeper: OwnedFd,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// By descriptor, in poll(2)'s format; 0 for no interest.
    interested: Table<i16>,
    /// What the threads wait on.
    threads: Vec<Weak<OwnedFd>>,
}

impl ProcessWide {
    /// Makes an empty set without threads.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> Result<Self, Error> {
        let keeper = epoll::create(CreateFlags::CLOEXEC).map_err(Error::of("epoll_create1"))?;
        Ok(ProcessWide { keeper, shared: Mutex::default() })
    }

    /// Makes the interests of one more thread, with a queue of at most `hints`.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn join(self: &Arc<Self>, hints: usize) -> Result<Interests, Error> {
        let mut interests = Interests::with_hints(hints)?;
        let mut shared = self.shared();
        let epoll = interests.sets.hinting().epoll();
        for number in 0..shared.interested.len() {
            let fd = Fd::from_raw(number as i32);
            self.check_in(&mut shared, fd);
            let wanted = shared.interested[number];
            if wanted != 0 {
                edges::watch(epoll, borrow(&fd), wanted, true)
                    .map_err(Error::in_call("epoll_ctl"))?;
            }
        }
        shared.threads.push(Arc::downgrade(epoll));
        drop(shared);
        interests.sets.join(Arc::clone(self));
        Ok(interests)
    }

    /// Declares an interest for all threads; see [`declare_interest`](super::declare_interest).
    ///
    /// # Errors
    /// [`Error::OneAtMost`] for exceptions, those of poll(2) and of epoll_ctl(2).
    pub fn declare_interest(
        &self,
        fd: impl AsFd,
        mask: Mask,
        state: Option<&mut Mask>,
    ) -> Result<(), Error> {
        let fd = fd.as_fd();
        if mask.contains(Mask::EXCEPT) {
            return Err(Error::OneAtMost);
        }
        if let Some(state) = state {
            *state = state_of(fd, mask)?;
        }
        let mut shared = self.shared();
        if mask.to_poll() != 0 {
            self.watch(&mut shared, fd, mask.to_poll())?;
        }
        *shared.interested.at(Fd::lent(fd).index()) = mask.to_poll();
        Ok(())
    }

    fn watch(&self, shared: &mut Shared, fd: BorrowedFd<'_>, wanted: i16) -> Result<(), Error> {
        match epoll::add(&self.keeper, fd, EventData::new_u64(0), EventFlags::ET) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::of("epoll_ctl")(error)),
        }
        shared.threads.retain(|thread| thread.strong_count() > 0);
        for thread in shared.threads.iter().filter_map(Weak::upgrade) {
            edges::watch(&thread, fd, wanted, true).map_err(Error::in_call("epoll_ctl"))?;
        }
        Ok(())
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted of a descriptor, in poll(2)'s format.
    pub(super) fn interest(&self, fd: Fd) -> i16 {
        self.shared().interested.get(fd.index()).copied().unwrap_or_default()
    }

    /// One more than the highest descriptor that was declared.
    pub(super) fn numbers(&self) -> usize {
        self.shared().interested.len()
    }

    /// Drops a descriptor whose number does not stand for the file that was declared.
    pub(super) fn check(&self, fd: Fd) {
        self.check_in(&mut self.shared(), fd);
    }

    fn check_in(&self, shared: &mut Shared, fd: Fd) {
        if let Some(interest) = shared.interested.get_mut(fd.index()).filter(|i| **i != 0) {
            let same = edges::is_watched(&self.keeper, borrow(&fd));
            if !matches!(same, Ok(true)) {
                *interest = 0;
            }
        }
    }
}
