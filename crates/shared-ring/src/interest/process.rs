//! Interests of all threads of a process (section 9).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::edges;
use super::error::Error;
use super::mask::{Mask, state_of};
use crate::Fd;
use crate::descriptor::borrow;
use crate::table::Table;

/// Interests of every thread that has joined or will join. An event goes to one of them: the first
/// that waits. Threads that wait later receive it if it is still true.
pub struct ProcessWide {
    /// Registers the declared files, to detect reused numbers. No thread waits on it.
    registered: OwnedFd,
    shared: Mutex<Shared>,
}

impl std::fmt::Debug for ProcessWide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessWide").field("registered", &self.registered).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    /// Interest by descriptor, in poll(2)'s format; 0 for none.
    interested: Table<i16>,
    threads: Vec<Thread>,
    /// Number of threads that have joined so far.
    joined: u64,
}

/// A thread that has joined.
struct Thread {
    /// Identifies the thread in this set.
    id: u64,
    /// The epoll instance on which it waits.
    epoll: Weak<OwnedFd>,
    /// By descriptor, whether the number belongs to another file since this thread's last query.
    reused: Table<bool>,
}

impl ProcessWide {
    /// Creates an empty set without threads.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> Result<Self, Error> {
        let registered = epoll::create(CreateFlags::CLOEXEC).map_err(Error::of("epoll_create1"))?;
        Ok(ProcessWide { registered, shared: Mutex::default() })
    }

    /// Adds a thread that waits on this epoll instance. Returns its identifier.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(super) fn add_thread(&self, epoll: &Arc<OwnedFd>) -> Result<u64, Error> {
        let mut shared = self.shared();
        for number in 0..shared.interested.len() {
            let fd = Fd::from_raw(number as i32);
            let wanted = shared.interested[number];
            if wanted == 0 {
                continue;
            }
            // Another thread may close the file meanwhile, and its number may be reused. So check it
            // after adding it.
            let added = edges::watch(epoll, borrow(&fd), wanted, true);
            self.check_in(&mut shared, fd);
            match added {
                _ if shared.interested[number] == 0 => edges::forget(epoll, borrow(&fd)),
                Ok(_) => {}
                Err(error) => return Err(Error::in_call("epoll_ctl")(error)),
            }
        }
        shared.forget_ended();
        shared.joined += 1;
        let id = shared.joined;
        shared.threads.push(Thread { id, epoll: Arc::downgrade(epoll), reused: Table::default() });
        Ok(id)
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
        shared.forget_ended();
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

    /// Returns the interest in a descriptor, in poll(2)'s format, and whether its number belongs to
    /// another file since the last query of thread `id`.
    pub(super) fn interest(&self, fd: Fd, id: u64) -> (i16, bool) {
        self.shared().interest(fd, id)
    }

    /// Lets thread `id` watch a descriptor: calls `watch` with the interest of all threads, while no
    /// other thread can declare one.
    pub(super) fn declare_own(
        &self,
        fd: Fd,
        id: u64,
        watch: impl FnOnce(i16) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut shared = self.shared();
        let (by_all, _) = shared.interest(fd, id);
        let is_new = watch(by_all)?;
        if is_new {
            // The previous file of this number was closed.
            self.check_in(&mut shared, fd);
        }
        Ok(())
    }

    /// Calls `f` while no thread can declare an interest for all.
    pub(super) fn while_locked<R>(&self, f: impl FnOnce() -> R) -> R {
        let _shared = self.shared();
        f()
    }

    /// Returns one more than the highest declared descriptor.
    pub(super) fn numbers(&self) -> usize {
        self.shared().interested.len()
    }

    /// Revokes the interest in a descriptor if its number no longer belongs to the declared file.
    pub(super) fn check(&self, fd: Fd) {
        self.check_in(&mut self.shared(), fd);
    }

    fn check_in(&self, shared: &mut Shared, fd: Fd) {
        if let Some(interest) = shared.interested.get_mut(fd.index()).filter(|i| **i != 0) {
            let is_same = edges::is_watched(&self.registered, borrow(&fd));
            if !matches!(is_same, Ok(true)) {
                *interest = 0;
            }
        }
    }
}

impl Shared {
    /// Removes the threads that have ended.
    fn forget_ended(&mut self) {
        self.threads.retain(|thread| thread.epoll.strong_count() > 0);
    }

    fn interest(&mut self, fd: Fd, id: u64) -> (i16, bool) {
        let interest = self.interested.get(fd.index()).copied().unwrap_or_default();
        let thread = self.threads.iter_mut().find(|thread| thread.id == id);
        let is_reused =
            thread.and_then(|thread| thread.reused.get_mut(fd.index())).is_some_and(std::mem::take);
        (interest, is_reused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_had_ended_were_kept_until_the_next_processwide_declaration() {
        let process = Arc::new(ProcessWide::new().unwrap());
        let lives = process.join(4).unwrap();
        for _ in 0..100 {
            drop(process.join(4).unwrap());
        }
        let threads = process.shared().threads.len();
        assert!(threads <= 2, "{threads}, one of which has ended since the last one joined");
        drop(lives);
        let _last = process.join(4).unwrap();
        assert_eq!(process.shared().threads.len(), 1);
    }
}
