//! Synchronisation primitives of the standard library, or of loom when models are checked.

#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicBool, AtomicU16, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicU16, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};
