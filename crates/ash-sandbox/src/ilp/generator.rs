//! Generates code for a list of pipes, by Cranelift: one loop that loads a part of the message, has it pass through
//! all pipes in registers, and stores it. A part is a block of vectors where all pipes can take several words at once, else a
//! unit, and at last what is left of one.
//!
//! The pages of the code can be written or executed, never both: `cranelift-jit` fills them and then
//! makes them executable.

mod lanes;
mod lower;
mod tail;
mod vectors;
mod words;

use std::fmt;
use std::mem;
use std::sync::Arc;

use cranelift_codegen::Context;
use cranelift_codegen::ir::{AbiParam, Signature, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module, ModuleError, default_libcall_names};

use super::error::GeneratorError;
use super::instruction::{Instruction, Table};
use super::program::Program;
use lanes::Lanes;
use vectors::VECTOR_BYTES;

/// Registers, source, destination, bytes, keystreams.
type Entry = unsafe extern "C" fn(*mut u64, *const u8, *mut u8, usize, *const u8);

/// The code of a list.
pub(crate) struct Generated {
    /// Where the code is; `None` only while it is freed.
    module: Option<Box<JITModule>>,
    entry: Entry,
    code_bytes: usize,
    vector_bytes: Option<usize>,
    /// The code has the addresses of these tables in it.
    _tables: Vec<Arc<Table>>,
}

// SAFETY: the module is touched by `new` and `drop` only. What the threads share is code and tables,
// which do not change.
unsafe impl Sync for Generated {}

impl Generated {
    /// Generates the code for a list.
    pub(crate) fn new(program: &Program) -> Result<Generated, GeneratorError> {
        let isa = processor()?;
        let mut module = JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()));
        let lanes = lanes::of_program(program);
        match define(&mut module, program, lanes.as_deref()) {
            Ok((address, code_bytes)) => {
                // SAFETY: this is the address of a function of that signature.
                let entry = unsafe { mem::transmute::<*const u8, Entry>(address) };
                let _tables = tables(program);
                let vector_bytes = lanes.map(|_| VECTOR_BYTES);
                Ok(Generated {
                    module: Some(Box::new(module)),
                    entry,
                    code_bytes,
                    vector_bytes,
                    _tables,
                })
            }
            Err(error) => {
                // SAFETY: nobody has an address of it.
                unsafe { module.free_memory() };
                Err(error)
            }
        }
    }

    pub(crate) fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    pub(crate) fn vector_bytes(&self) -> Option<usize> {
        self.vector_bytes
    }

    /// Runs the loop over `len` bytes.
    ///
    /// # Safety
    ///
    /// As for the interpreter's `run`; there are as many registers as the program has, and whole units of each keystream.
    #[inline]
    pub(crate) unsafe fn run(
        &self,
        registers: &mut [u64],
        source: *const u8,
        destination: *mut u8,
        len: usize,
        keystream: &[u8],
    ) {
        let (registers, keystream) = (registers.as_mut_ptr(), keystream.as_ptr());
        // SAFETY: the code touches `len` bytes at source and destination, as many whole units of each keystream, and the
        // program's registers, all of which the caller vouches for; the module is still there.
        unsafe { (self.entry)(registers, source, destination, len, keystream) };
    }
}

impl Drop for Generated {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: the entry is called through `&self` only, and that is over.
            unsafe { module.free_memory() };
        }
    }
}

impl fmt::Debug for Generated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generated").field("code_bytes", &self.code_bytes).finish_non_exhaustive()
    }
}

/// Returns the target for which Cranelift generates code: this processor.
fn processor() -> Result<OwnedTargetIsa, GeneratorError> {
    let unknown = |why: String| GeneratorError::Processor(why);
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("is_pic", "false"),
        ("use_colocated_libcalls", "false"),
        // Pipes are at most some ten thousand instructions, so checking them costs little.
        ("enable_verifier", "true"),
    ] {
        flags.set(name, value).map_err(|error| unknown(error.to_string()))?;
    }
    let builder = cranelift_native::builder().map_err(|why| unknown(why.to_owned()))?;
    let isa = builder.finish(settings::Flags::new(flags));
    let isa = isa.map_err(|error| unknown(error.to_string()))?;
    if isa.pointer_bits() != 64 {
        return Err(unknown(format!("{} bits", isa.pointer_bits())));
    }
    Ok(isa)
}

/// Compiles the loop into the module. Returns its address and size.
fn define(
    module: &mut JITModule,
    program: &Program,
    lanes: Option<&[Lanes]>,
) -> Result<(*const u8, usize), GeneratorError> {
    let mut context = Context::new();
    context.func.signature = signature(module);
    let target = module.target_config();
    let mut functions = FunctionBuilderContext::new();
    lower::build(&mut context.func, &mut functions, target, program, lanes);
    let function = module
        .declare_function("ilp", Linkage::Export, &context.func.signature)
        .map_err(rejected)?;
    module.define_function(function, &mut context).map_err(rejected)?;
    let code_bytes = context.compiled_code().map_or(0, |code| code.code_buffer().len());
    module.finalize_definitions().map_err(|error| GeneratorError::Memory(error.to_string()))?;
    Ok((module.get_finalized_function(function), code_bytes))
}

fn rejected(error: ModuleError) -> GeneratorError {
    match error {
        ModuleError::Allocation { err, .. } => GeneratorError::Memory(err.to_string()),
        error => GeneratorError::Rejected(error.to_string()),
    }
}

fn signature(module: &JITModule) -> Signature {
    let mut signature = module.make_signature();
    signature.params = vec![AbiParam::new(types::I64); 5];
    signature
}

/// The tables that a list looks up in.
fn tables(program: &Program) -> Vec<Arc<Table>> {
    let pipes = program.pipes.iter().map(|placed| &placed.pipe);
    pipes
        .flat_map(|pipe| pipe.body.iter().chain(&pipe.tail_body))
        .filter_map(|instruction| match instruction {
            Instruction::Lookup { table, .. } => Some(table.clone()),
            _ => None,
        })
        .collect()
}
