//! The times of one work at one batch depth, and what the figures of this experiment share.

/// The first works.
pub(super) const NULL: usize = 0;
pub(super) const GETPPID: usize = 1;

pub(super) const DIRECT: usize = 0;

/// The depth of the goal for a null call.
pub(super) const NULL_DEPTH: usize = 64;
/// Measurements of each maker in a round, of which the least counts.
pub(super) const REPEATS: usize = 3;

/// The times of a work at a depth: of each maker that makes it, one value per round. A round in which the
/// ring could not make a call is `UNMEASURED`.
pub(super) struct Cell {
    pub(super) work: usize,
    pub(super) depth: usize,
    pub(super) times: Vec<Vec<f64>>,
}

/// Returns the name of the figure of a call.
pub(super) fn figure(call: &str) -> String {
    format!("Time of a call against batch depth: {call}")
}
