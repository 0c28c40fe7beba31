//! A mechanism and its floor under one workload.

use std::fmt;

use super::CONNECTIONS;
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{Sample, Site, Subject, UnderLoad};
use crate::statistics;

/// Requests in a slice, after which the other program runs. The speed of a virtual machine varies
/// by 25 % within tenths of a second. With slices of a few milliseconds, a program compared with
/// itself differs by 2 % in a round; with one slice of 20,000 requests, by 7 %.
const SLICE: u64 = 1_000;

/// Measurements of one program, one value per round.
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

/// A mechanism and its floor under one workload.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) mechanism: &'static str,
    floor: &'static str,
    pub(super) work: Workload,
    pub(super) floor_runs: Measured,
    pub(super) app_runs: Measured,
    /// The error that ended the measurement.
    pub(super) failed: Option<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.mechanism, self.work.name())
    }
}

impl Case {
    pub(super) fn new(mechanism: &'static str, floor: &'static str, work: Workload) -> Self {
        let (floor_runs, app_runs) = (Measured::default(), Measured::default());
        Case { mechanism, floor, work, floor_runs, app_runs, failed: None }
    }

    pub(super) fn subject(&self, what: ServerKind) -> Subject {
        let mechanism = if what == ServerKind::Floor { self.floor } else { self.mechanism };
        Subject { what, mechanism: mechanism.to_owned(), work: self.work }
    }

    pub(super) fn measured(&mut self, what: ServerKind) -> &mut Measured {
        if what == ServerKind::Floor { &mut self.floor_runs } else { &mut self.app_runs }
    }

    /// Returns the CPU time of the application over that of the floor, per round.
    pub(super) fn ratios(&self) -> Vec<f64> {
        let cpu = |runs: &Measured| runs.of(Sample::cpu_ns);
        statistics::ratios(&cpu(&self.app_runs), &cpu(&self.floor_runs))
    }

    /// Runs one round: starts both programs and loads them alternately, one slice at a time. New
    /// processes average out the effect of memory layout.
    pub(super) fn round(
        &mut self,
        site: &Site,
        round: usize,
        slices: usize,
        warm_up: u64,
    ) -> Result<(), Failure> {
        let start = |what| UnderLoad::start(&self.subject(what), site, CONNECTIONS, warm_up);
        let (mut floor, mut app) = (start(ServerKind::Floor)?, start(ServerKind::App)?);
        let (mut of_floor, mut of_app) = (Sample::default(), Sample::default());
        for slice in 0..slices {
            // The order floor, app, app, floor cancels a steady drift.
            if (round + slice).is_multiple_of(2) {
                of_floor += floor.measure(SLICE)?;
                of_app += app.measure(SLICE)?;
            } else {
                of_app += app.measure(SLICE)?;
                of_floor += floor.measure(SLICE)?;
            }
        }
        // An incomplete round is discarded.
        let (floor_calls, app_calls) = (floor.stop()?, app.stop()?);
        self.floor_runs.samples.push(of_floor);
        self.floor_runs.system_calls.push(floor_calls);
        self.app_runs.samples.push(of_app);
        self.app_runs.system_calls.push(app_calls);
        Ok(())
    }
}
