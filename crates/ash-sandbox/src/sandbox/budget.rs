//! The operations that a tenant may use in a second (section 2.4), shared by its handlers on all threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use super::clock;
use super::{Loops, Policy};

const SECOND_NS: u64 = 1_000_000_000;

/// The part of a second whose operations a tenant that was idle may use at once: a burst delays others.
const BURSTS_IN_SECOND: u64 = 10;
/// Invocations for which the operations suffice in any case.
const MIN_INVOCATIONS: u64 = 2;

/// The budget of a tenant. What its handlers use is refilled evenly, up to the operations of a tenth of a second.
///
/// Handlers on several threads that run at the same time may each use what was left when they began.
#[derive(Debug)]
pub(crate) struct Budget {
    per_second: u64,
    /// Operations that are left at most.
    capacity: u64,
    /// Nanoseconds in which so many are refilled.
    refill_ns: u64,
    /// Time of the first message.
    start: OnceLock<Instant>,
    /// Nanoseconds from then until the budget is full again.
    full_at_ns: AtomicU64,
}

/// Returns how many operations of a tenant are left at most: those of a tenth of a second or of two invocations, if these
/// are more, but never more than those of a second.
fn capacity(policy: &Policy) -> u64 {
    let by_clock = match policy.loops {
        Loops::Epoch(tick) => clock::max_ns(tick),
        Loops::Fuel => 0,
    };
    let of_invocation = policy.max_operations.saturating_add(by_clock);
    let burst = policy.operations_per_second / BURSTS_IN_SECOND;
    burst.max(of_invocation.saturating_mul(MIN_INVOCATIONS)).min(policy.operations_per_second)
}

impl Budget {
    /// Creates a budget that is full. Its capacity is that of a second at most.
    fn new(per_second: u64, capacity: u64) -> Self {
        let refill_ns = u128::from(capacity) * u128::from(SECOND_NS);
        let refill_ns = refill_ns.div_ceil(u128::from(per_second.max(1))) as u64;
        let (start, full_at_ns) = (OnceLock::new(), AtomicU64::new(0));
        Budget { per_second, capacity, refill_ns, start, full_at_ns }
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
        let missing_ns = full_at.saturating_sub(self.since_start_ns(now)).min(self.refill_ns);
        // The usual case without a division of 128 bits, as this is done for each message.
        let missing = match missing_ns.checked_mul(self.per_second) {
            Some(product) => product / SECOND_NS,
            None => {
                (u128::from(missing_ns) * u128::from(self.per_second) / u128::from(SECOND_NS))
                    as u64
            }
        };
        self.capacity.saturating_sub(missing)
    }

    /// Takes operations, or all that are left.
    #[inline]
    pub(crate) fn charge(&self, now: Instant, operations: u64) {
        let now = self.since_start_ns(now);
        let used_ns = operations.saturating_mul(SECOND_NS) / self.per_second.max(1);
        let charged = |full_at: u64| {
            let later = full_at.max(now).saturating_add(used_ns);
            Some(later.min(now.saturating_add(self.refill_ns)).max(full_at))
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
    pub(crate) fn of(&self, tenant: u64, policy: &Policy) -> Arc<Budget> {
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = budgets.get(&tenant).and_then(Weak::upgrade) {
            return budget;
        }
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::new(Budget::new(policy.operations_per_second, capacity(policy)));
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
        let (budget, now) = (Budget::new(1_000_000, 1_000_000), Instant::now());
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
    fn capacity_suffices_for_two_invocations_and_is_that_of_a_second_at_most() {
        let capacity = |per_second, loops| {
            capacity(
                &Policy::default()
                    .with(|p| (p.operations_per_second, p.loops) = (per_second, loops)),
            )
        };
        assert_eq!(capacity(200_000_000, Loops::Fuel), 20_000_000);
        assert_eq!(capacity(1_000_000, Loops::Fuel), 200_000);
        assert_eq!(capacity(1_000, Loops::Fuel), 1_000);
        // Two and a half ticks beside the operations.
        let tick = Loops::Epoch(Duration::from_millis(1));
        assert_eq!(capacity(10_000_000, tick), 5_200_000);
        assert_eq!(capacity(u64::MAX, Loops::Epoch(Duration::MAX)), u64::MAX);
        for per_second in [0, 7, u64::MAX] {
            let budget = Budget::new(per_second, capacity(per_second, Loops::Fuel));
            let now = Instant::now();
            assert_eq!(budget.left(now), capacity(per_second, Loops::Fuel));
            budget.charge(now, u64::MAX);
            assert_eq!(
                budget.left(now + Duration::from_secs(1)),
                capacity(per_second, Loops::Fuel)
            );
        }
    }

    #[test]
    fn budget_of_a_tenant_ends_with_its_handlers() {
        let (budgets, policy) = (Budgets::default(), Policy::default());
        let of = |tenant| budgets.of(tenant, &policy);
        let (first, same, other) = (of(1), of(1), of(2));
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        drop((first, same));
        of(3);
        assert_eq!(budgets.0.lock().unwrap().len(), 2);
    }
}
