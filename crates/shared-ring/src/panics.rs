//! Panics of code that belongs to others.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a function. Returns `None` if it panics, and drops the payload of the panic. If that panics too, leaks the
/// payload of the second panic, so that there is no third one.
#[inline]
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(discard).ok()
}

fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::sync::Arc;

    use super::*;

    /// A payload whose drop panics, as that of its own payload does.
    struct Fragile(#[expect(dead_code, reason = "it counts")] Arc<()>, u32);

    impl Drop for Fragile {
        fn drop(&mut self) {
            if let Some(more) = self.1.checked_sub(1) {
                panic_any(Fragile(Arc::default(), more));
            }
        }
    }

    #[test]
    fn payload_of_a_panic_leaked() {
        let count = Arc::new(());
        let counted = Arc::clone(&count);
        assert_eq!(catch_panic(|| panic_any(counted)), None::<()>);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn payloads_whose_drops_panic_do_not_panic_here() {
        for depth in 0..3 {
            let count = Arc::new(());
            let payload = Fragile(Arc::clone(&count), depth);
            assert_eq!(catch_panic(|| panic_any(payload)), None::<()>);
            assert_eq!(Arc::strong_count(&count), 1);
        }
    }
}
