//! The kernels that there are.

use super::Tier;
#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::instances::Instances;
use super::portable;
use super::shape::{Change, Readers};
use super::stages::{Checksum, Crc32c, Keystream, Nothing, Search, Swap, Xor};
use super::vector::{Function, Stage};
use crate::ilp::Mode;

/// The kernel for a shape, if there is one.
pub(crate) fn function(
    tier: Tier,
    mode: Mode,
    before: Readers,
    change: Change,
    after: Readers,
) -> Option<Function> {
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2Vnni => by_change::<avx2::Avx2<avx2::DotSum>>(mode, before, change, after),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => by_change::<avx2::Avx2<avx2::WideSum>>(mode, before, change, after),
        _ => by_change::<portable::Portable>(mode, before, change, after),
    }
}

fn by_change<V: Instances>(
    mode: Mode,
    before: Readers,
    change: Change,
    after: Readers,
) -> Option<Function> {
    match change {
        Change::None => unchanged::<V>(mode, before),
        Change::Swap => by_readers::<V, Swap<V>>(mode, before, after),
        Change::Xor => by_readers::<V, Xor<V>>(mode, before, after),
        Change::Keystream => by_readers::<V, Keystream>(mode, before, after),
        Change::SwapXor => by_readers::<V, (Swap<V>, Xor<V>)>(mode, before, after),
        Change::XorSwap => by_readers::<V, (Xor<V>, Swap<V>)>(mode, before, after),
    }
}

/// Loops that leave the data as they are.
fn unchanged<V: Instances>(mode: Mode, readers: Readers) -> Option<Function> {
    Some(match readers {
        Readers::NONE => by_mode::<V, Nothing>(mode),
        Readers::SUM => by_mode::<V, Checksum<V>>(mode),
        Readers::CRC => by_mode::<V, Crc32c<V>>(mode),
        Readers::SUM_CRC => by_mode::<V, (Checksum<V>, Crc32c<V>)>(mode),
        Readers::SEARCH => by_mode::<V, Search<V>>(mode),
        Readers::SUM_SEARCH => by_mode::<V, (Checksum<V>, Search<V>)>(mode),
        _ => return None,
    })
}

fn by_mode<V: Instances, A: Stage<V>>(mode: Mode) -> Function {
    match mode {
        Mode::Read => V::instance::<A, Nothing, Nothing, false>(),
        Mode::Write => V::instance::<A, Nothing, Nothing, true>(),
    }
}

/// Loops that modify the data, with pipes that read before or behind that.
fn by_readers<V: Instances, M: Stage<V>>(
    mode: Mode,
    before: Readers,
    after: Readers,
) -> Option<Function> {
    use Mode::{Read, Write};
    const NONE: Readers = Readers::NONE;
    Some(match (mode, before, after) {
        (Write, NONE, NONE) => V::instance::<Nothing, M, Nothing, true>(),
        (Write, Readers::SUM, NONE) => V::instance::<Checksum<V>, M, Nothing, true>(),
        (Write, Readers::CRC, NONE) => V::instance::<Crc32c<V>, M, Nothing, true>(),
        (Write, Readers::SUM_CRC, NONE) => {
            V::instance::<(Checksum<V>, Crc32c<V>), M, Nothing, true>()
        }
        (Write, NONE, Readers::SUM) => V::instance::<Nothing, M, Checksum<V>, true>(),
        (Write, NONE, Readers::CRC) => V::instance::<Nothing, M, Crc32c<V>, true>(),
        (Write, NONE, Readers::SUM_CRC) => {
            V::instance::<Nothing, M, (Checksum<V>, Crc32c<V>), true>()
        }
        (Read, NONE, Readers::SUM) => V::instance::<Nothing, M, Checksum<V>, false>(),
        (Read, NONE, Readers::CRC) => V::instance::<Nothing, M, Crc32c<V>, false>(),
        (Read, NONE, Readers::SUM_CRC) => {
            V::instance::<Nothing, M, (Checksum<V>, Crc32c<V>), false>()
        }
        _ => return None,
    })
}
