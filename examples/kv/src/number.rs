//! Number parsing like memcached, which uses the `strtol` family of C.

/// Parses a 64-bit number. White space and a sign may precede it; white space and anything after it may
/// follow.
///
/// A minus wraps around, as in C; if the result exceeds `i64::MAX`, parsing fails.
pub(crate) fn parse_u64(bytes: impl IntoIterator<Item = u8>) -> Option<u64> {
    let (magnitude, is_negative) = scan(bytes.into_iter())?;
    let value = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    (!is_negative || value <= i64::MAX as u64).then_some(value)
}

/// Parses a 64-bit number and keeps the lower half, as memcached does with flags.
pub(crate) fn parse_u32(word: &[u8]) -> Option<u32> {
    parse_u64(word.iter().copied()).map(|value| value as u32)
}

/// Parses a signed 64-bit number and keeps the lower half, as memcached does with expiry times and lengths.
pub(crate) fn parse_i32(word: &[u8]) -> Option<i32> {
    let (magnitude, is_negative) = scan(word.iter().copied())?;
    let max = i64::MAX as u64 + u64::from(is_negative);
    let value = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    (magnitude <= max).then_some(value as i32)
}

/// Parses sign and digits. Returns `None` for no digits, too many, or a suffix other than white space.
fn scan(bytes: impl Iterator<Item = u8>) -> Option<(u64, bool)> {
    let mut bytes = bytes.skip_while(|byte| is_space(*byte)).peekable();
    let is_negative = bytes.peek() == Some(&b'-');
    bytes.next_if(|byte| matches!(byte, b'-' | b'+'));
    let mut magnitude = None;
    for byte in bytes {
        match byte {
            b'0'..=b'9' => {
                let value = magnitude.unwrap_or(0u64).checked_mul(10)?;
                magnitude = Some(value.checked_add(u64::from(byte - b'0'))?);
            }
            0 => break,
            _ if is_space(byte) => break,
            _ => return None,
        }
    }
    Some((magnitude?, is_negative))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsigned(text: &str) -> Option<u64> {
        parse_u64(text.bytes())
    }

    #[test]
    fn numbers_are_parsed_like_in_c() {
        assert_eq!(unsigned("18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned("18446744073709551616"), None);
        assert_eq!(unsigned("99999999999999999999999"), None);
        assert_eq!(unsigned(" \t\r\n\x0b\x0c+5 apples"), Some(5));
        assert_eq!(unsigned("0005\0x"), Some(5));
        for text in ["", "-", "+", " ", "x", "5x", "0x10", "- 5", "+-5", "5-"] {
            assert_eq!(unsigned(text), None, "{text:?}");
        }
    }

    #[test]
    fn minus_wraps_around() {
        assert_eq!(unsigned("-18446744073709551615"), Some(1));
        assert_eq!(unsigned("-9223372036854775809"), Some(i64::MAX as u64));
        assert_eq!(unsigned("-9223372036854775808"), None);
        assert_eq!((unsigned("-1"), unsigned("-0")), (None, Some(0)));
    }

    #[test]
    fn short_numbers_are_the_lower_half_of_long_ones() {
        assert_eq!(parse_u32(b"4294967297"), Some(1));
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_i32(b"4294967297"), Some(1));
        assert_eq!(parse_i32(b"-1"), Some(-1));
        assert_eq!(parse_i32(b"9223372036854775807"), Some(-1));
        assert_eq!(parse_i32(b"-9223372036854775808"), Some(0));
        assert_eq!(parse_i32(b"9223372036854775808"), None);
        assert_eq!(parse_i32(b"-9223372036854775809"), None);
    }
}
