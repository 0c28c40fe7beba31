//! Ready-made loops for common lists, on vectors. Each is an instance of one generic loop
//! ([`fused`](fused::fused)), which the compiler fuses as it fuses hand-written code.
//!
//! Sums are added in several accumulators, and so out of order, as `commutative` permits. Pipes that
//! do not modify what passes do not see one another, so those beside one another may be in any order.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod fused;
mod instances;
mod portable;
mod select;
mod shape;
mod stages;
mod vector;

use std::fmt;

use super::program::Program;
use shape::Shape;
pub(crate) use vector::VECTOR_BYTES;
use vector::{Function, PIECE_BYTES, Registers, Slots};

/// The processor features that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// AVX2, SSE 4.2, carry-less products and the dot products of AVX-VNNI.
    Avx2Vnni,
    /// AVX2, SSE 4.2 and carry-less products.
    Avx2,
    /// The features that each processor of the target has.
    Portable,
}

impl Tier {
    /// Those that this processor has, the fastest first.
    pub(crate) fn available() -> impl Iterator<Item = Tier> {
        [Tier::Avx2Vnni, Tier::Avx2, Tier::Portable].into_iter().filter(|tier| tier.is_available())
    }

    pub(crate) fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let has_avx2 = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("sse4.2")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        match self {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2Vnni => has_avx2 && std::arch::is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => has_avx2,
            #[cfg(not(target_arch = "x86_64"))]
            Tier::Avx2Vnni | Tier::Avx2 => false,
            Tier::Portable => true,
        }
    }
}

/// A ready-made loop, and where the list has its registers.
pub(crate) struct Kernel {
    function: Function,
    slots: Slots,
    /// The registers that count bytes.
    counts: Box<[usize]>,
    tier: Tier,
}

impl Kernel {
    /// The kernel that does what a list does, if there is one.
    pub(crate) fn select(program: &Program, tier: Tier) -> Option<Kernel> {
        if !tier.is_available() {
            return None;
        }
        let Shape { before, change, after, slots, counts } = Shape::of(program)?;
        let function = select::function(tier, program.mode, before, change, after)?;
        Some(Kernel { function, slots, counts, tier })
    }

    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }

    /// Runs the loop.
    ///
    /// # Safety
    ///
    /// As for the interpreter's `run`, with the program that this was selected for.
    #[inline(always)]
    pub(crate) unsafe fn run(
        &self,
        registers: &mut [u64],
        source: *const u8,
        destination: *mut u8,
        len: usize,
        keystream: &[u8],
    ) {
        // SAFETY: the caller's promise; the tier was detected when the kernel was selected. Longer messages go
        // through the same loop in pieces.
        unsafe {
            let all = Registers(registers.as_mut_ptr());
            if len > PIECE_BYTES {
                self.run_pieces(all, source, destination, len, keystream);
            } else {
                (self.function)(&self.slots, all, source, destination, len, keystream.as_ptr());
            }
        }
        for count in &self.counts {
            registers[*count] = registers[*count].wrapping_add(len as u64);
        }
    }

    /// Runs the loop over one piece after another: the registers have all that one leaves to the next.
    ///
    /// # Safety
    ///
    /// As for [`run`](Kernel::run).
    #[cold]
    unsafe fn run_pieces(
        &self,
        registers: Registers,
        source: *const u8,
        destination: *mut u8,
        len: usize,
        keystream: &[u8],
    ) {
        for at in (0..len).step_by(PIECE_BYTES) {
            let piece = PIECE_BYTES.min(len - at);
            let keystream = keystream.as_ptr().wrapping_add(at);
            // SAFETY: the caller's promise, for each part of the message; there may be no destination and no
            // keystream.
            unsafe {
                let (source, destination) = (source.add(at), destination.wrapping_add(at));
                (self.function)(&self.slots, registers, source, destination, piece, keystream);
            }
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("tier", &self.tier).finish_non_exhaustive()
    }
}
