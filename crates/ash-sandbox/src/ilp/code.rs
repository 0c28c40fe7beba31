use super::CompileError;
use super::error::GeneratorError;
use super::generator::Generated;
use super::interpreter;
use super::kernels::{Kernel, Tier, VECTOR_BYTES};
use super::program::Program;

/// Instructions of the processor for one that is interpreted.
#[cfg(feature = "sandbox")]
const INTERPRETED: u64 = 16;
/// As many for one of generated code, where each step has a branch.
#[cfg(feature = "sandbox")]
const WITH_BRANCH: u64 = 2;

/// Which execution to compile for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefer {
    /// The fastest that there is for the list on this machine.
    #[default]
    Fastest,
    /// The fastest ready-made kernel that the processor can run.
    Kernel,
    /// A ready-made kernel that needs AVX2, and not AVX-VNNI.
    Avx2Kernel,
    /// A ready-made kernel that needs no processor feature beyond the target's.
    PortableKernel,
    /// Generated code.
    Generated,
    /// The interpreter.
    Interpreted,
}

/// Which execution was chosen for a list: [`Ilp::execution`](super::Ilp::execution).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Execution {
    /// A ready-made kernel on vectors of AVX2, which adds by the dot products of AVX-VNNI.
    Avx2VnniKernel,
    /// A ready-made kernel on vectors of AVX2.
    Avx2Kernel,
    /// A ready-made kernel that needs no processor feature beyond the target's.
    PortableKernel,
    /// Code generated for this list.
    Generated {
        /// The size of the code.
        code_bytes: usize,
    },
    /// The interpreter.
    Interpreted {
        /// Why no code was generated; `None` if none was asked for.
        reason: Option<GeneratorError>,
    },
}

/// A compiled list, ready to run.
#[derive(Debug)]
pub(crate) enum Code {
    Kernel(Kernel),
    Generated(Generated),
    Interpreted(Option<GeneratorError>),
}

impl Code {
    pub(crate) fn compile(program: &Program, prefer: Prefer) -> Result<Code, CompileError> {
        let kernel = |tier| Kernel::select(program, tier).map(Code::Kernel);
        let fastest = || Tier::available().find_map(kernel);
        match prefer {
            Prefer::Fastest => Ok(fastest().unwrap_or_else(|| {
                Generated::new(program)
                    .map_or_else(|error| Code::Interpreted(Some(error)), Code::Generated)
            })),
            Prefer::Kernel => fastest().ok_or(CompileError::NoKernel),
            Prefer::Avx2Kernel => kernel(Tier::Avx2).ok_or(CompileError::NoKernel),
            Prefer::PortableKernel => kernel(Tier::Portable).ok_or(CompileError::NoKernel),
            Prefer::Generated => {
                Generated::new(program).map(Code::Generated).map_err(CompileError::Generator)
            }
            Prefer::Interpreted => Ok(Code::Interpreted(None)),
        }
    }

    pub(crate) fn execution(&self) -> Execution {
        match self {
            Code::Kernel(kernel) => match kernel.tier() {
                Tier::Avx2Vnni => Execution::Avx2VnniKernel,
                Tier::Avx2 => Execution::Avx2Kernel,
                Tier::Portable => Execution::PortableKernel,
            },
            Code::Generated(generated) => {
                Execution::Generated { code_bytes: generated.code_bytes() }
            }
            Code::Interpreted(reason) => Execution::Interpreted { reason: reason.clone() },
        }
    }

    /// Returns the width of the vectors that it works on.
    pub(crate) fn vector_bytes(&self) -> Option<usize> {
        match self {
            Code::Kernel(kernel) if kernel.tier() == Tier::Portable => None,
            Code::Kernel(_) => Some(VECTOR_BYTES),
            Code::Generated(generated) => generated.vector_bytes(),
            Code::Interpreted(_) => None,
        }
    }

    /// Returns about how many instructions a unit of the message takes, beyond those of a copy. A kernel on vectors of AVX2
    /// takes few.
    #[cfg(feature = "sandbox")]
    pub(crate) fn operations_of_unit(&self, program: &Program) -> u64 {
        match self {
            Code::Kernel(kernel) if kernel.tier() != Tier::Portable => 0,
            Code::Kernel(_) | Code::Generated(_) => program.operations_of_unit(1),
            Code::Interpreted(_) => program.operations_of_unit(INTERPRETED),
        }
    }

    /// Returns about how many instructions a part of a unit at the end takes.
    #[cfg(feature = "sandbox")]
    pub(crate) fn operations_of_tail(&self, program: &Program) -> u64 {
        match self {
            Code::Kernel(kernel) if kernel.tier() != Tier::Portable => 0,
            Code::Kernel(_) => program.operations_of_tail(1),
            Code::Generated(_) => program.operations_of_tail(WITH_BRANCH),
            Code::Interpreted(_) => program.operations_of_tail(INTERPRETED),
        }
    }

    /// Applies the program to `len` bytes.
    ///
    /// # Safety
    ///
    /// As for [`interpreter::run`]; the program is the one that was compiled, and there are as many
    /// registers as it has.
    #[inline(always)]
    pub(crate) unsafe fn run(
        &self,
        program: &Program,
        registers: &mut [u64],
        source: *const u8,
        destination: *mut u8,
        len: usize,
        keystream: &[u8],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Code::Kernel(kernel) => kernel.run(registers, source, destination, len, keystream),
                other => other.run_other(program, registers, source, destination, len, keystream),
            }
        }
    }

    /// As [`run`](Code::run), without a kernel.
    ///
    /// # Safety
    ///
    /// As for [`run`](Code::run).
    #[inline(never)]
    unsafe fn run_other(
        &self,
        program: &Program,
        registers: &mut [u64],
        source: *const u8,
        destination: *mut u8,
        len: usize,
        keystream: &[u8],
    ) {
        // SAFETY: the caller's promise. Of each keystream, `State` has KEYSTREAM_BYTES, which are whole units.
        unsafe {
            match self {
                Code::Generated(generated) => {
                    generated.run(registers, source, destination, len, keystream);
                }
                _ => interpreter::run(program, registers, source, destination, len, keystream),
            }
        }
    }
}
