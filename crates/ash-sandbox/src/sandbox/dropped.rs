//! Instances that were dropped. To unmap a memory takes longer than many messages, and delays the threads of other cores, so
//! the thread that serves messages leaves it to the one that loads the next handler. Instances with a table are freed at once.

use std::mem;
use std::sync::{Mutex, PoisonError};

use super::handler::Instance;

/// Instances that are kept at most.
const MAX: usize = 32;

/// The instances of a sandboxer that were dropped, and not freed. Handlers hold no strong reference to this list, so it ends
/// with the sandboxer and all that it has loaded. It has its room from the start: a drop allocates nothing.
pub(crate) struct Dropped(Mutex<Vec<Instance>>);

impl Default for Dropped {
    fn default() -> Self {
        Dropped(Mutex::new(Vec::with_capacity(MAX)))
    }
}

impl Dropped {
    /// Keeps an instance until [`free`](Self::free). Frees it at once if there are many, or another thread has the list.
    pub(crate) fn keep(&self, instance: Instance) {
        if let Ok(mut kept) = self.0.try_lock()
            && kept.len() < MAX
        {
            kept.push(instance);
        }
    }

    /// Frees all.
    pub(crate) fn free(&self) {
        let empty = Vec::with_capacity(MAX);
        let kept = mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), empty);
        drop(kept);
    }
}
