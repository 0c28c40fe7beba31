//! The instances of the loop, which each tier compiles for its own instructions.

use super::vector::{Function, Stage, Vector};

/// A tier's own instances of the loop.
pub(crate) trait Instances: Vector {
    fn instance<A: Stage<Self>, M: Stage<Self>, B: Stage<Self>, const WRITE: bool>() -> Function;
}
