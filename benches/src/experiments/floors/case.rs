//! One mechanism beside its floor, at one kind of work.

use std::fmt;

use super::CONNECTIONS;
use crate::command::{What, Workload};
use crate::failure::Failure;
use crate::measure::{Sample, Site, Subject, UnderLoad};
use crate::statistics;

/// Requests before the other side has its turn. The speed of a virtual machine changes by a quarter
/// within tenths of a second; with slices of a few milliseconds a program compared with itself
/// differs by 2 % in a round, with one slice of 20,000 requests by 7 %.
const SLICE: u64 = 1_000;

/// What was measured of one side, a value for each round.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) samples: Vec<Sample>,
    pub(super) system_calls: Vec<f64>,
    pub(super) instructions: Vec<f64>,
}

impl Measured {
    pub(super) fn of(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }
}

/// One mechanism beside its floor, at one kind of work.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) mechanism: &'static str,
    floor: &'static str,
    pub(super) work: Workload,
    pub(super) floor_side: Measured,
    pub(super) app_side: Measured,
    /// Why it was given up.
    pub(super) failed: Option<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.mechanism, self.work.name())
    }
}

impl Case {
    pub(super) fn new(mechanism: &'static str, floor: &'static str, work: Workload) -> Self {
        let (floor_side, app_side) = (Measured::default(), Measured::default());
        Case { mechanism, floor, work, floor_side, app_side, failed: None }
    }

    pub(super) fn subject(&self, what: What) -> Subject {
        let mechanism = if what == What::Floor { self.floor } else { self.mechanism };
        Subject { what, mechanism: mechanism.to_owned(), work: self.work }
    }

    pub(super) fn side(&mut self, what: What) -> &mut Measured {
        if what == What::Floor { &mut self.floor_side } else { &mut self.app_side }
    }

    /// Processor time of the application over that of the floor, for each round.
    pub(super) fn ratios(&self) -> Vec<f64> {
        let cpu = |side: &Measured| side.of(Sample::cpu_ns);
        statistics::ratios(&cpu(&self.app_side), &cpu(&self.floor_side))
    }

    /// One round: both sides as new processes, since where a process happens to lie in memory
    /// makes a difference of its own, and loaded in turns, a slice at a time.
    pub(super) fn round(
        &mut self,
        site: &Site,
        round: usize,
        slices: usize,
        warm_up: u64,
    ) -> Result<(), Failure> {
        let start = |what| UnderLoad::start(&self.subject(what), site, CONNECTIONS, warm_up);
        let (mut floor, mut app) = (start(What::Floor)?, start(What::App)?);
        let (mut of_floor, mut of_app) = (Sample::default(), Sample::default());
        for slice in 0..slices {
            // Floor, app, app, floor, and so on: a steady drift cancels.
            if (round + slice).is_multiple_of(2) {
                of_floor += floor.measure(SLICE)?;
                of_app += app.measure(SLICE)?;
            } else {
                of_app += app.measure(SLICE)?;
                of_floor += floor.measure(SLICE)?;
            }
        }
        // Nothing is kept of a round that did not come to its end.
        let (floor_calls, app_calls) = (floor.stop()?, app.stop()?);
        self.floor_side.samples.push(of_floor);
        self.floor_side.system_calls.push(floor_calls);
        self.app_side.samples.push(of_app);
        self.app_side.system_calls.push(app_calls);
        Ok(())
    }
}
