//! CRC32C of bytes and words, by the processor's instruction where there is one.

/// The polynomial, its bits in reverse order as CRCs of this kind have them.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// For each of eight bytes, what it adds to the CRC of the word in which it stands.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = times_x(crc);
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut place = 1;
    while place < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[place - 1][byte];
            tables[place][byte] = crc >> 8 ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        place += 1;
    }
    tables
}

/// Multiplies a polynomial by x, modulo the CRC's.
const fn times_x(polynomial: u32) -> u32 {
    polynomial >> 1 ^ if polynomial & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// x to a power, modulo the CRC's polynomial, its bits in reverse order.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn power_of_x(power: u32) -> u32 {
    let mut polynomial = 1 << 31;
    let mut done = 0;
    while done < power {
        polynomial = times_x(polynomial);
        done += 1;
    }
    polynomial
}

/// Adds the bytes of a word, the lowest first, by tables.
#[inline]
pub(crate) fn update_word_by_tables(crc: u32, word: u64) -> u32 {
    let bytes = (word ^ u64::from(crc)).to_le_bytes();
    let mut crc = 0;
    for (place, byte) in bytes.into_iter().enumerate() {
        crc ^= TABLES[7 - place][usize::from(byte)];
    }
    crc
}

/// Adds one byte, by a table.
#[inline]
pub(crate) fn update_byte(crc: u32, byte: u8) -> u32 {
    crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)]
}

/// Adds bytes, one after the other.
pub(crate) fn update(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| update_byte(crc, *byte))
}

/// Adds a word, for generated code: by the instruction.
///
/// # Safety
///
/// The processor has SSE 4.2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
pub(crate) unsafe extern "C" fn update_word_by_instruction(crc: u64, word: u64) -> u64 {
    std::arch::x86_64::_mm_crc32_u64(crc & 0xffff_ffff, word)
}

/// Adds a word, for generated code: by tables.
pub(crate) extern "C" fn update_word(crc: u64, word: u64) -> u64 {
    update_word_by_tables(crc as u32, word).into()
}

/// Adds the lowest four bytes of a word, for generated code.
pub(crate) extern "C" fn update_4_bytes(crc: u64, word: u64) -> u64 {
    update(crc as u32, &word.to_le_bytes()[..4]).into()
}

/// Adds the lowest two bytes of a word, for generated code.
pub(crate) extern "C" fn update_2_bytes(crc: u64, word: u64) -> u64 {
    update(crc as u32, &word.to_le_bytes()[..2]).into()
}

/// Adds the lowest byte of a word, for generated code.
pub(crate) extern "C" fn update_1_byte(crc: u64, word: u64) -> u64 {
    update_byte(crc as u32, word as u8).into()
}

/// The address of the function that adds a word in generated code: the fastest here.
pub(crate) fn word_update_address() -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        return update_word_by_instruction as *const () as usize;
    }
    update_word as *const () as usize
}
