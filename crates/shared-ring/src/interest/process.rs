//! What all threads of a process are interested in (section 9).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
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
    registered: OwnedFd,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// By descriptor, in poll(2)'s format; 0 for no interest.
    interested: Table<i16>,
    threads: Vec<Thread>,
    /// Threads that have joined.
    joined: u64,
}

/// A thread that has joined.
struct Thread {
    /// Its name here.
    name: u64,
    /// What it waits on.
    epoll: Weak<OwnedFd>,
    /// By descriptor, whether it stands for another file than when this thread last asked.
    reused: Table<bool>,
}

impl ProcessWide {
    /// Makes an empty set without threads.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> Result<Self, Error> {
        let registered = epoll::create(CreateFlags::CLOEXEC).map_err(Error::of("epoll_create1"))?;
        Ok(ProcessWide { registered, shared: Mutex::default() })
    }

    /// Makes the interests of one more thread, with a queue of at most `hints`.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn join(self: &Arc<Self>, hints: usize) -> Result<Interests, Error> {
        let mut interests = Interests::with_hints(hints)?;
        let mut shared = self.shared();
        let epoll = interests.sets.source().epoll();
        for number in 0..shared.interested.len() {
            let fd = Fd::from_raw(number as i32);
            let wanted = shared.interested[number];
            if wanted == 0 {
                continue;
            }
            // Others may close it meanwhile, and its number become that of another file: so what was added
            // is looked at after it was added.
            let added = edges::watch(epoll, borrow(&fd), wanted, true);
            self.check_in(&mut shared, fd);
            match added {
                _ if shared.interested[number] == 0 => edges::forget(epoll, borrow(&fd)),
                Ok(_) => {}
                Err(error) => return Err(Error::in_call("epoll_ctl")(error)),
            }
        }
        shared.joined += 1;
        let name = shared.joined;
        shared.threads.push(Thread {
            name,
            epoll: Arc::downgrade(epoll),
            reused: Table::default(),
        });
        drop(shared);
        interests.sets.join(Arc::clone(self), name);
        Ok(interests)
    }

    /// Declares an interest for all threads; see [`declare_interest`](super::declare_interest).
    ///
    /// # Errors
    /// [`Error::ExceptWithWakeOne`] for exceptions, those of poll(2) and of epoll_ctl(2).
    pub fn declare_interest(
        &self,
        fd: impl AsFd,
        mask: Mask,
        state: Option<&mut Mask>,
    ) -> Result<(), Error> {
        let fd = fd.as_fd();
        if mask.contains(Mask::EXCEPT) {
            return Err(Error::ExceptWithWakeOne);
        }
        if let Some(state) = state {
            *state = state_of(fd, mask)?;
        }
        let mut shared = self.shared();
        if mask.to_poll() != 0 {
            self.watch(&mut shared, fd, mask.to_poll())?;
        }
        *shared.interested.at(Fd::from_raw(fd.as_raw_fd()).index()) = mask.to_poll();
        Ok(())
    }

    fn watch(&self, shared: &mut Shared, fd: BorrowedFd<'_>, wanted: i16) -> Result<(), Error> {
        match epoll::add(&self.registered, fd, EventData::new_u64(0), EventFlags::ET) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::of("epoll_ctl")(error)),
        }
        shared.threads.retain(|thread| thread.epoll.strong_count() > 0);
        for thread in &mut shared.threads {
            let Some(epoll) = thread.epoll.upgrade() else { continue };
            let is_new =
                edges::watch(&epoll, fd, wanted, true).map_err(Error::in_call("epoll_ctl"))?;
            if is_new {
                *thread.reused.at(Fd::from_raw(fd.as_raw_fd()).index()) = true;
            }
        }
        Ok(())
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted of a descriptor, in poll(2)'s format; and whether its number stands for another file
    /// than when the thread of this name last asked.
    pub(super) fn interest(&self, fd: Fd, name: u64) -> (i16, bool) {
        self.shared().interest(fd, name)
    }

    /// Has the thread of this name `watch` a descriptor, and whatever all want of it. Nobody declares
    /// anything for all meanwhile.
    pub(super) fn declare_own(
        &self,
        fd: Fd,
        name: u64,
        watch: impl FnOnce(i16) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut shared = self.shared();
        let (by_all, _) = shared.interest(fd, name);
        let is_new = watch(by_all)?;
        if is_new {
            // Whatever the number stood for before was closed.
            self.check_in(&mut shared, fd);
        }
        Ok(())
    }

    /// Does something while nobody declares anything for all.
    pub(super) fn while_locked<R>(&self, f: impl FnOnce() -> R) -> R {
        let _shared = self.shared();
        f()
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
            let same = edges::is_watched(&self.registered, borrow(&fd));
            if !matches!(same, Ok(true)) {
                *interest = 0;
            }
        }
    }
}

impl Shared {
    fn interest(&mut self, fd: Fd, name: u64) -> (i16, bool) {
        let interest = self.interested.get(fd.index()).copied().unwrap_or_default();
        let thread = self.threads.iter_mut().find(|thread| thread.name == name);
        let is_reused =
            thread.and_then(|thread| thread.reused.get_mut(fd.index())).is_some_and(std::mem::take);
        (interest, is_reused)
    }
}
