/// A pipe's gauge: how many bits it takes, or gives, at a time (3.2.2).
///
/// Words are little-endian on every machine: the first byte of the message is the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gauge {
    /// One byte.
    Bits8,
    /// Two bytes.
    Bits16,
    /// Four bytes.
    Bits32,
    /// Eight bytes.
    Bits64,
}

impl Gauge {
    /// All gauges, the narrowest first.
    pub const ALL: [Gauge; 4] = [Gauge::Bits8, Gauge::Bits16, Gauge::Bits32, Gauge::Bits64];

    /// The number of bytes in a word: 1, 2, 4 or 8.
    pub const fn bytes(self) -> usize {
        match self {
            Gauge::Bits8 => 1,
            Gauge::Bits16 => 2,
            Gauge::Bits32 => 4,
            Gauge::Bits64 => 8,
        }
    }

    /// The number of bits in a word: 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// A mask of the bits of a word.
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}
