//! The operations that a tenant may use in a second (section 2.4), shared by its handlers on all threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

const SECOND_NS: u64 = 1_000_000_000;

/// The budget of a tenant. What its handlers use is refilled evenly, up to the operations of a second.
///
/// Handlers on several threads that run at the same time may each use what was left when they began.
#[derive(Debug)]
pub(crate) struct Budget {
    per_second: u64,
    /// Time of the first message.
    start: OnceLock<Instant>,
    /// Nanoseconds from then until all operations of a second are left again.
    full_at_ns: AtomicU64,
}

impl Budget {
    fn new(per_second: u64) -> Self {
        Budget { per_second, start: OnceLock::new(), full_at_ns: AtomicU64::new(0) }
    }

    fn since_start_ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(*self.start.get_or_init(|| now)).as_nanos() as u64
    }

    pub(crate) fn per_second(&self) -> u64 {
        self.per_second
    }

    /// Returns the operations that are left.
    #[inline]
    pub(crate) fn left(&self, now: Instant) -> u64 {
        let full_at = self.full_at_ns.load(Ordering::Relaxed);
        let missing_ns = full_at.saturating_sub(self.since_start_ns(now)).min(SECOND_NS);
        // The usual case without a division of 128 bits, as this is done for each message.
        let missing = match missing_ns.checked_mul(self.per_second) {
            Some(product) => product / SECOND_NS,
            None => {
                (u128::from(missing_ns) * u128::from(self.per_second) / u128::from(SECOND_NS))
                    as u64
            }
        };
        self.per_second - missing
    }

    /// Takes operations, or all that are left.
    #[inline]
    pub(crate) fn charge(&self, now: Instant, operations: u64) {
        let now = self.since_start_ns(now);
        let used_ns = operations.saturating_mul(SECOND_NS) / self.per_second.max(1);
        let charged = |full_at: u64| {
            let later = full_at.max(now).saturating_add(used_ns);
            Some(later.min(now.saturating_add(SECOND_NS)).max(full_at))
        };
        #[allow(deprecated, reason = "its new name is not in Rust 1.88")]
        let _ = self.full_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged);
    }
}

/// The budgets of the tenants that have handlers.
#[derive(Debug, Default)]
pub(crate) struct Budgets(Mutex<HashMap<u64, Weak<Budget>>>);

impl Budgets {
    /// Returns the budget that all handlers of a tenant share.
    pub(crate) fn of(&self, tenant: u64, per_second: u64) -> Arc<Budget> {
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = budgets.get(&tenant).and_then(Weak::upgrade) {
            return budget;
        }
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::new(Budget::new(per_second));
        budgets.insert(tenant, Arc::downgrade(&budget));
        budget
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_charge_one_budget() {
        let (budget, now) = (Budget::new(1_000_000), Instant::now());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| budget.charge(now, 100)));
            }
        });
        assert_eq!(budget.left(now), 600_000);
        assert_eq!(budget.left(now + Duration::from_millis(100)), 700_000);
        budget.charge(now, u64::MAX);
        assert_eq!(budget.left(now), 0);
        assert_eq!(budget.left(now + Duration::from_secs(1)), 1_000_000);
    }

    #[test]
    fn budget_of_a_tenant_ends_with_its_handlers() {
        let budgets = Budgets::default();
        let (first, same, other) = (budgets.of(1, 10), budgets.of(1, 10), budgets.of(2, 10));
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        drop((first, same));
        budgets.of(3, 10);
        assert_eq!(budgets.0.lock().unwrap().len(), 2);
    }
}
