//! Sets of bytes.

/// Returns whether each byte is a letter, a digit, or one of `marks`, for a table that is made at compile time.
pub(crate) const fn alphanumeric_and(marks: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = (i as u8).is_ascii_alphanumeric();
        i += 1;
    }
    let mut i = 0;
    while i < marks.len() {
        table[marks[i] as usize] = true;
        i += 1;
    }
    table
}
