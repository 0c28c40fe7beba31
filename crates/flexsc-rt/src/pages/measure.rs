//! The calls whose times are measured: which measurement they belong to, and what it reports.

use super::Pages;
use super::measurements::MeasurementId;
use crate::call::Executor;
use crate::page::ENTRIES;

impl Pages {
    /// Counts a call of a measured batch, which has an executor other than in place.
    #[inline(never)]
    pub(super) fn measure(&mut self, index: u32, executor: Executor) {
        let is_owners = executor == Executor::Shared && self.is_owners(index);
        let slot = &mut self.slots[index as usize];
        let measurement = self.measurements.count(slot.row, self.depth, executor);
        if !is_owners {
            measurement.open += 1;
            slot.measured = Some(measurement.id);
        }
    }

    /// Returns whether the owner makes a call of a shared batch.
    #[inline]
    pub(super) fn is_owners(&self, index: u32) -> bool {
        (index as usize / ENTRIES).is_multiple_of(self.lanes)
    }

    /// Notes how many calls the ring makes at once, if this one is measured.
    #[inline]
    pub(super) fn note_ring_batch(&mut self, index: u32, calls: u32) {
        if let Some(id) = self.slots[index as usize].measured
            && let Some(measurement) = self.measurements.get(id)
        {
            measurement.calls = measurement.calls.max(calls);
        }
    }

    /// Notes that a call has ended.
    #[inline]
    pub(super) fn count_out(&mut self, index: u32) {
        if self.slots[index as usize].measured.is_some() {
            self.count_out_measured(index);
        }
    }

    #[inline(never)]
    fn count_out_measured(&mut self, index: u32) {
        if let Some(id) = self.slots[index as usize].measured.take() {
            self.end_one(id);
        }
    }

    /// Notes that the owner has made its part of a shared batch.
    #[inline]
    pub(super) fn end_owners_part(&mut self) {
        for id in self.measurements.of_batch() {
            if self.measurements.get(id).is_some_and(|own| own.executor == Executor::Shared) {
                self.end_one(id);
            }
        }
    }

    /// Notes that a call of a measurement has ended. Reports the time after the last one.
    fn end_one(&mut self, id: MeasurementId) {
        let Some(ended) = self.measurements.end(id) else { return };
        let time_ns = ended.since.elapsed().as_nanos() as u64 / u64::from(ended.calls);
        self.choices.report(ended.row, ended.depth, ended.executor, time_ns);
    }

    /// Ends the measurement of a call that does not end as others do.
    #[inline]
    pub(super) fn abandon_measurement(&mut self, index: u32) {
        if let Some(id) = self.slots[index as usize].measured.take() {
            self.measurements.abandon(id);
        }
    }
}
