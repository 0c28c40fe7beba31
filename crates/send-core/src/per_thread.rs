//! What a signal handler may know of the thread that it runs in.
//!
//! It may run in any thread, also in one that has never called this crate. Where the crate is in a library
//! that was loaded by dlopen(3), the first use of a thread's local storage takes memory from the allocator,
//! which a handler must not do, and so the handler uses none: pthread_getspecific(3) is safe in signal handlers
//! in glibc and musl.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// A pointer of each thread, null unless it was set there.
#[derive(Debug)]
pub(crate) struct PerThread {
    /// One more than the key; 0 before there is one.
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

    /// The calling thread's. It may be called in a signal handler.
    pub(crate) fn get<T>(&self) -> *const T {
        let Some(key) = self.key() else { return ptr::null() };
        // SAFETY: there is such a key, for good.
        unsafe { libc::pthread_getspecific(key) }.cast_const().cast()
    }

    /// Sets the calling thread's.
    pub(crate) fn set<T>(&self, to: *const T) -> Result<(), Error> {
        let key = self.key().map_or_else(|| self.make(), Ok)?;
        // SAFETY: as above.
        check(unsafe { libc::pthread_setspecific(key, to.cast()) })
    }

    #[cold]
    fn make(&self) -> Result<libc::pthread_key_t, Error> {
        let mut key = 0;
        // SAFETY: writes the key.
        check(unsafe { libc::pthread_key_create(&mut key, None) })?;
        let made = u64::from(key) + 1;
        match self.key.compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(key),
            Err(another_threads) => {
                // SAFETY: it was just made, and nobody else knows of it.
                unsafe { libc::pthread_key_delete(key) };
                Ok((another_threads - 1) as libc::pthread_key_t)
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
    fn each_thread_has_its_own() {
        static MINE: PerThread = PerThread::new();
        assert!(MINE.get::<u32>().is_null());
        let value = 7;
        MINE.set(&value).unwrap();
        std::thread::spawn(|| {
            assert!(MINE.get::<u32>().is_null());
            MINE.set(&8).unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(MINE.get(), &raw const value);
        MINE.set(ptr::null::<u32>()).unwrap();
        assert!(MINE.get::<u32>().is_null());
    }
}
