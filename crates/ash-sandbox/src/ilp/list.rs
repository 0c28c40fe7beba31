use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::code::{Code, Prefer};
use super::program::{PipeId, Placed, Program};
use super::{CompileError, Ilp, MAX_PIPES, Mode, Pipe};

/// Pipes that are to be composed, in the order in which the data pass through them (figure 3-2).
///
/// A clone has the same pipes with the same names. Those that are added later to the list or to its clone have names of
/// their own.
#[derive(Clone, Debug, Default)]
pub struct PipeList {
    pipes: Vec<Placed>,
    initial: Vec<u64>,
    keystreams: usize,
}

impl PipeList {
    /// An empty list.
    pub fn new() -> PipeList {
        PipeList::default()
    }

    /// Adds a pipe at the end, and returns the name by which its registers are reached.
    ///
    /// # Errors
    ///
    /// [`CompileError::TooManyPipes`] beyond [`MAX_PIPES`].
    pub fn add(&mut self, pipe: Pipe) -> Result<PipeId, CompileError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let index = self.pipes.len();
        if index == MAX_PIPES {
            return Err(CompileError::TooManyPipes);
        }
        let first_register = self.initial.len();
        self.initial.extend(&pipe.initial);
        let keystream = pipe.keystream.then_some(self.keystreams);
        self.keystreams += usize::from(pipe.keystream);
        let id = PipeId { unique: NEXT.fetch_add(1, Ordering::Relaxed), index };
        self.pipes.push(Placed { id, pipe, first_register, keystream });
        Ok(id)
    }

    /// Compiles the list to one loop, by the fastest execution that there is: a ready-made kernel if
    /// one does what the list does, else generated code, else the interpreter.
    ///
    /// # Errors
    ///
    /// [`CompileError::NoPipes`] for an empty list.
    pub fn compile(&self, mode: Mode) -> Result<Ilp, CompileError> {
        self.compile_with(mode, Prefer::Fastest)
    }

    /// Compiles the list to one loop of a certain execution, to compare them.
    ///
    /// # Errors
    ///
    /// That execution cannot be had, or the list is empty.
    pub fn compile_with(&self, mode: Mode, prefer: Prefer) -> Result<Ilp, CompileError> {
        if self.pipes.is_empty() {
            return Err(CompileError::NoPipes);
        }
        let program = Arc::new(Program {
            mode,
            pipes: self.pipes.clone(),
            initial: self.initial.clone().into(),
            keystreams: self.keystreams,
        });
        let code = Code::compile(&program, prefer)?;
        Ok(Ilp::new(program, code))
    }
}
