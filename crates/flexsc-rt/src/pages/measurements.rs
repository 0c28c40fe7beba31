//! The times of measured batches. A measurement ends when all of its calls have ended; the owner may post further
//! batches before.

use super::super::clock::Instant;
use crate::call::Executor;
use crate::choice::{Depth, Row};

/// Measurements at a time. A further one replaces the oldest.
const MAX_MEASUREMENTS: usize = 64;

/// Identifies a measurement. It is not reused before 2^32 further ones.
pub(super) type MeasurementId = u32;

/// The calls of one row in a batch, which have the same executor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    pub(super) id: MeasurementId,
    pub(super) row: Row,
    pub(super) depth: Depth,
    pub(super) executor: Executor,
    pub(super) since: Instant,
    /// The calls that share the time.
    pub(super) calls: u32,
    /// Those that have not ended; of a shared batch, all that the owner makes count as one.
    pub(super) open: u32,
}

/// The measurements that have not ended.
#[derive(Debug)]
pub(super) struct Measurements {
    places: Box<[Option<Measurement>]>,
    next: MeasurementId,
    /// How many of them are of the present batch, and when its first one began.
    in_batch: u32,
    since: Option<Instant>,
}

impl Measurements {
    pub(super) fn new() -> Self {
        let places = vec![None; MAX_MEASUREMENTS].into_boxed_slice();
        Measurements { places, next: 0, in_batch: 0, since: None }
    }

    #[inline]
    pub(super) fn begin_batch(&mut self) {
        (self.in_batch, self.since) = (0, None);
    }

    /// Counts a call of the present batch. Returns the measurement of its row.
    pub(super) fn count(&mut self, row: Row, depth: Depth, executor: Executor) -> &mut Measurement {
        let mut of_batch = self.of_batch();
        let known = of_batch.find(|id| self.get(*id).is_some_and(|own| own.row == row));
        let id = known.unwrap_or(self.next);
        let place = &mut self.places[id as usize % MAX_MEASUREMENTS];
        if known.is_none() {
            self.next = id.wrapping_add(1);
            self.in_batch += 1;
            *place = None;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let open = u32::from(executor == Executor::Shared);
        let new = Measurement { id, row, depth, executor, since, calls: 0, open };
        let measurement = place.get_or_insert(new);
        measurement.calls += 1;
        measurement
    }

    /// Returns the measurements of the present batch.
    pub(super) fn of_batch(&self) -> impl Iterator<Item = MeasurementId> + use<> {
        let next = self.next;
        (1..=self.in_batch).map(move |before| next.wrapping_sub(before))
    }

    pub(super) fn get(&mut self, id: MeasurementId) -> Option<&mut Measurement> {
        let place = self.places[id as usize % MAX_MEASUREMENTS].as_mut();
        place.filter(|measurement| measurement.id == id)
    }

    /// Counts a call out. Returns the measurement if it was the last one.
    pub(super) fn end(&mut self, id: MeasurementId) -> Option<Measurement> {
        let measurement = self.get(id)?;
        measurement.open -= 1;
        if measurement.open > 0 {
            return None;
        }
        self.places[id as usize % MAX_MEASUREMENTS].take()
    }

    /// Ends a measurement without a result.
    pub(super) fn abandon(&mut self, id: MeasurementId) {
        self.places[id as usize % MAX_MEASUREMENTS].take_if(|measurement| measurement.id == id);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::choice::Choices;
    use crate::object::Kind;

    /// Returns the row of another kind of call for each number.
    fn row(number: u32) -> Row {
        let mut choices = Choices::new(2);
        (0..=number).map(|number| choices.row(number, Kind::Disk.into())).last().unwrap()
    }

    /// Counts calls of the present batch that the owner does not make.
    fn count(of: &mut Measurements, row: Row, executor: Executor, calls: u32) -> MeasurementId {
        let mut id = None;
        for _ in 0..calls {
            let measurement = of.count(row, Depth::of(4), executor);
            measurement.open += 1;
            assert_eq!(*id.get_or_insert(measurement.id), measurement.id);
        }
        id.unwrap()
    }

    #[test]
    fn batch_that_had_not_ended_was_divided_by_the_calls_that_had() {
        let mut measurements = Measurements::new();
        measurements.begin_batch();
        let first = count(&mut measurements, row(0), Executor::Threads, 4);
        assert!(measurements.end(first).is_none());
        // The owner posts the second batch before the first one has ended.
        measurements.begin_batch();
        let second = count(&mut measurements, row(0), Executor::Threads, 4);
        assert!([first, second, first, second].iter().all(|id| measurements.end(*id).is_none()));
        assert_eq!(measurements.end(first).unwrap().calls, 4);
        assert!(measurements.end(second).is_none());
        assert_eq!(measurements.end(second).unwrap().calls, 4);
        assert!(measurements.places.iter().all(Option::is_none));
    }

    #[test]
    fn rows_of_a_batch_are_measured_apart() {
        let mut measurements = Measurements::new();
        measurements.begin_batch();
        let first = count(&mut measurements, row(0), Executor::Threads, 1);
        let second = count(&mut measurements, row(1), Executor::Threads, 2);
        assert_eq!(count(&mut measurements, row(0), Executor::Threads, 1), first);
        assert!(measurements.end(first).is_none() && measurements.end(second).is_none());
        let [first, second] = [first, second].map(|id| measurements.end(id).unwrap());
        assert_eq!(([first.row, second.row], first.calls), ([row(0), row(1)], 2));
        assert_eq!(first.since, second.since);
    }

    #[test]
    fn shared_batch_ends_after_the_part_of_the_owner() {
        let mut measurements = Measurements::new();
        measurements.begin_batch();
        let id = count(&mut measurements, row(0), Executor::Shared, 2);
        // The owner makes one.
        measurements.count(row(0), Depth::of(4), Executor::Shared);
        assert!(measurements.end(id).is_none() && measurements.end(id).is_none());
        assert_eq!(measurements.end(id).unwrap().calls, 3);
    }

    #[test]
    fn measurement_that_was_abandoned_or_replaced_has_no_result() {
        let mut measurements = Measurements::new();
        let mut one = || {
            measurements.begin_batch();
            count(&mut measurements, row(0), Executor::Ring, 1)
        };
        let ids: Vec<_> = (0..=MAX_MEASUREMENTS).map(|_| one()).collect();
        let [replaced, abandoned, other] = [ids[0], ids[1], ids[2]];
        measurements.abandon(replaced);
        measurements.abandon(abandoned);
        assert!(measurements.end(replaced).is_none() && measurements.end(abandoned).is_none());
        assert!(measurements.end(other).is_some());
        assert!(measurements.end(ids[MAX_MEASUREMENTS]).is_some());
    }
}
