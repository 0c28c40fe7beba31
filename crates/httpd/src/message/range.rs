//! Range requests (RFC 9110, section 14).

use std::ops::Range;

/// The parts of a file that a Range field requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RangeRequest {
    /// The whole file: the field is invalid or requests too much, and is ignored.
    Whole,
    /// No part is within the file: 416.
    NotSatisfiable,
    One(Range<u64>),
    Several(Vec<Range<u64>>),
}

/// Maximum number of parts; a field with more is ignored.
const MAX_PARTS: usize = 16;

/// Parses a Range field for a file of `len` bytes.
pub(crate) fn parse_range(field: &[u8], len: u64) -> RangeRequest {
    let Some(set) =
        field.split_at_checked(6).filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes="))
    else {
        return RangeRequest::Whole;
    };
    let mut parts = Vec::new();
    let mut count = 0;
    for spec in set.1.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|s| !s.is_empty()) {
        count += 1;
        match part(spec, len) {
            None => return RangeRequest::Whole,
            Some(part) if part.is_empty() => {}
            Some(part) => parts.push(part),
        }
    }
    let sum = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.end - part.start));
    match parts.len() {
        _ if count == 0 || count > MAX_PARTS => RangeRequest::Whole,
        0 => RangeRequest::NotSatisfiable,
        1 => RangeRequest::One(parts.remove(0)),
        // Overlapping parts would multiply the bytes sent.
        _ if sum > len => RangeRequest::Whole,
        _ => RangeRequest::Several(parts),
    }
}

/// Parses one part, such as `0-499`, `500-` or `-500`. It is empty if it is beyond the end of the
/// file. Returns `None` if it is invalid, or the whole of an empty file: a suffix may be longer than the file (RFC 9110,
/// section 14.1.2).
fn part(spec: &[u8], len: u64) -> Option<Range<u64>> {
    let at = memchr::memchr(b'-', spec)?;
    let (first, last) = (spec[..at].trim_ascii_end(), spec[at + 1..].trim_ascii_start());
    match (first, last) {
        (b"", last) => {
            let suffix = number(last)?;
            (len > 0 || suffix == 0).then(|| len.saturating_sub(suffix)..len)
        }
        (first, b"") => Some(number(first)?.min(len)..len),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| first.min(len)..last.saturating_add(1).min(len))
        }
    }
}

/// Parses digits; saturates at `u64::MAX`.
fn number(digits: &[u8]) -> Option<u64> {
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    all.then(|| {
        digits
            .iter()
            .fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn range_fields_are_parsed() {
        use RangeRequest::{NotSatisfiable, One, Several, Whole};
        let cases: Vec<(&str, RangeRequest)> = vec![
            ("bytes=0-499", One(0..500)),
            ("BYTES=0-0", One(0..1)),
            ("bytes=500-", One(500..1000)),
            ("bytes=-500", One(500..1000)),
            ("bytes=-5000", One(0..1000)),
            ("bytes=999-5000", One(999..1000)),
            ("bytes=0-99999999999999999999999", One(0..1000)),
            ("bytes=1000-", NotSatisfiable),
            ("bytes=1000-2000,99999999999999999999999-", NotSatisfiable),
            ("bytes=-0", NotSatisfiable),
            ("bytes=0-0,-1", Several(vec![0..1, 999..1000])),
            ("bytes= 0-0 , 5 - 6,,", Several(vec![0..1, 5..7])),
            ("bytes=0-0,1000-", One(0..1)),
            ("bytes=9-5", Whole),
            ("bytes=0-0,9-5", Whole),
            ("bytes=", Whole),
            ("bytes=,", Whole),
            ("bytes=-", Whole),
            ("bytes=a-", Whole),
            ("bytes=1", Whole),
            ("bytes=--1", Whole),
            ("bytes=1-2-3", Whole),
            ("bytes=+1-2", Whole),
            ("lines=0-1", Whole),
            ("bytes 0-1", Whole),
            ("", Whole),
            ("bytes=0-,0-", Whole),
            ("bytes=0-999,0-0", Whole),
        ];
        for (field, expected) in cases {
            assert_eq!(parse_range(field.as_bytes(), 1000), expected, "{field}");
        }
        let many = |n| format!("bytes={}", "0-0,".repeat(n));
        assert_eq!(parse_range(many(MAX_PARTS).as_bytes(), 1000), Several(vec![0..1; MAX_PARTS]));
        assert_eq!(parse_range(many(MAX_PARTS + 1).as_bytes(), 1000), Whole);
    }

    #[test]
    fn suffix_of_an_empty_file_was_not_satisfiable() {
        for field in ["bytes=0-", "bytes=0-0", "bytes=-0", "bytes=5-9,-0"] {
            assert_eq!(parse_range(field.as_bytes(), 0), RangeRequest::NotSatisfiable, "{field}");
        }
        for field in ["bytes=-1", "bytes=-100", "bytes=0-,-1"] {
            assert_eq!(parse_range(field.as_bytes(), 0), RangeRequest::Whole, "{field}");
        }
    }

    proptest! {
        #[test]
        fn every_part_is_within_the_file(field in "bytes=[0-9, -]{0,40}", len in 0..2000u64) {
            let parts = match parse_range(field.as_bytes(), len) {
                RangeRequest::One(part) => vec![part],
                RangeRequest::Several(parts) => parts,
                RangeRequest::Whole | RangeRequest::NotSatisfiable => vec![],
            };
            for part in &parts {
                prop_assert!(part.start < part.end && part.end <= len);
            }
        }
    }
}
