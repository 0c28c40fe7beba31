//! A per-thread pointer for signal handlers.
//!
//! A handler may run in any thread, also in one that never called this crate. If the crate is in a
//! library loaded by dlopen(3), a thread's first use of thread-local storage allocates, which a
//! handler must not do. So the handler uses pthread_getspecific(3), which is safe in signal
//! handlers in glibc and musl.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// A pointer for each thread, null until it is set there.
#[derive(Debug)]
pub(crate) struct PerThread {
    /// The key plus 1, or 0 before there is one.
    key: AtomicU64,
}

impl PerThread {
    pub(crate) const fn new() -> Self {
        PerThread { key: AtomicU64::new(0) }
    }

    fn key(&self) -> Option<libc::pthread_key_t> {
        let key = self.key.load(Ordering::Acquire).checked_sub(1)?;
        Some(key as libc::pthread_key_t)
    }

    /// Returns the calling thread's pointer. May be called in a signal handler.
    pub(crate) fn get<T>(&self) -> *const T {
        let Some(key) = self.key() else { return ptr::null() };
        // SAFETY: the key exists and is never deleted.
        unsafe { libc::pthread_getspecific(key) }.cast_const().cast()
    }

    /// Sets the calling thread's pointer.
    pub(crate) fn set<T>(&self, to: *const T) -> Result<(), Error> {
        let key = self.key().map_or_else(|| self.create(), Ok)?;
        // SAFETY: as above.
        check(unsafe { libc::pthread_setspecific(key, to.cast()) })
    }

    #[cold]
    fn create(&self) -> Result<libc::pthread_key_t, Error> {
        let mut key = 0;
        // SAFETY: writes the key.
        check(unsafe { libc::pthread_key_create(&mut key, None) })?;
        let stored = u64::from(key) + 1;
        match self.key.compare_exchange(0, stored, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(key),
            Err(existing) => {
                // SAFETY: it was just created, and no other thread has it.
                unsafe { libc::pthread_key_delete(key) };
                Ok((existing - 1) as libc::pthread_key_t)
            }
        }
    }
}

fn check(errno: libc::c_int) -> Result<(), Error> {
    if errno == 0 {
        return Ok(());
    }
    Err(Error::system("a thread's own pointer")(io::Error::from_raw_os_error(errno)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_pointer() {
        static POINTER: PerThread = PerThread::new();
        assert!(POINTER.get::<u32>().is_null());
        let value = 7;
        POINTER.set(&value).unwrap();
        std::thread::spawn(|| {
            assert!(POINTER.get::<u32>().is_null());
            POINTER.set(&8).unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(POINTER.get(), &raw const value);
        POINTER.set(ptr::null::<u32>()).unwrap();
        assert!(POINTER.get::<u32>().is_null());
    }
}
