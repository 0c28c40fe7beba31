//! Turns whose completions are collected.

use std::collections::VecDeque;
use std::iter;
use std::time::Instant;

use shared_ring::{Completion, Kernel, KernelError};

/// Completions, oldest first.
pub(crate) type Batch = VecDeque<Completion>;

pub(crate) trait TurnInto: Kernel {
    /// Runs a turn and appends all its completions to `out`.
    fn turn_into(&mut self, until: Option<Instant>, out: &mut Batch) -> Result<(), KernelError> {
        self.turn(until)?;
        out.extend(iter::from_fn(|| self.next()));
        Ok(())
    }
}

impl<K: Kernel> TurnInto for K {}
