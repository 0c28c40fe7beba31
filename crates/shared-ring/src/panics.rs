//! Payloads of panics that were caught.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops the payload of a panic that was caught. If that panics too, leaks the payload of the second panic, so that
/// there is no third one.
pub fn discard_panic(payload: Box<dyn Any + Send>) {
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
        discard_panic(catch_unwind(|| panic_any(counted)).unwrap_err());
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn payloads_whose_drops_panic_do_not_panic_here() {
        for depth in 0..3 {
            let count = Arc::new(());
            let payload = Fragile(Arc::clone(&count), depth);
            discard_panic(catch_unwind(AssertUnwindSafe(|| panic_any(payload))).unwrap_err());
            assert_eq!(Arc::strong_count(&count), 1);
        }
    }
}
