//! A list of pipes as it is compiled.

#[cfg(feature = "sandbox")]
use super::UNIT_BYTES;
use super::{Mode, Pipe};

/// Names a pipe of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeId {
    pub(crate) list: u64,
    pub(crate) index: usize,
}

/// A pipe in its place in a list.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) pipe: Pipe,
    /// Its first persistent register among those of the list.
    pub(crate) first_register: usize,
    /// Its keystream among those of the list.
    pub(crate) keystream: Option<usize>,
}

/// A list of pipes as it is compiled: what executions and states share.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) list: u64,
    pub(crate) mode: Mode,
    pub(crate) pipes: Vec<Placed>,
    pub(crate) initial: Box<[u64]>,
    pub(crate) keystreams: usize,
}

#[cfg(feature = "sandbox")]
impl Program {
    /// Returns the number of instructions that a unit of the message takes.
    pub(crate) fn instructions_of_unit(&self) -> u64 {
        self.pipes.iter().map(|placed| placed.pipe.instructions_of_unit()).sum()
    }

    /// Returns the number of instructions that a part of a unit takes, at most.
    pub(crate) fn instructions_of_tail(&self) -> u64 {
        let of_tail = |pipe: &Pipe| (UNIT_BYTES * pipe.tail_body.len()) as u64;
        let of_pipe = |pipe: &Pipe| pipe.instructions_of_unit().max(of_tail(pipe));
        self.pipes.iter().map(|placed| of_pipe(&placed.pipe)).sum()
    }
}

#[cfg(feature = "sandbox")]
impl Pipe {
    fn instructions_of_unit(&self) -> u64 {
        (UNIT_BYTES / self.step_bytes() * self.body.len()) as u64
    }
}
