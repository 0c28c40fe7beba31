//! A list of pipes as it is compiled.

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
