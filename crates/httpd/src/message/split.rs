//! Splitting of a head into its parts: of a request, or of a handler's response.
//!
//! A line ends in CRLF. Lines are not folded, and there is no space before a colon (RFC 9112, sections 2.2, 5.1 and
//! 5.2).

use crate::limits::Limits;
use crate::message::byte_set::alphanumeric_and;

/// The position of a part of a head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    start: u16,
    len: u16,
}

const _: () = assert!(Limits::MAX_HEAD_BYTES <= u16::MAX as usize);
const _: () = assert!(size_of::<FieldSpan>() == Limits::FIELD_BYTES);

impl Span {
    #[inline]
    fn new(start: usize, end: usize) -> Self {
        Span { start: start as u16, len: (end - start) as u16 }
    }

    /// Returns the position of `part` in `head`, of which it is a slice.
    pub(crate) fn of_part(head: &[u8], part: &[u8]) -> Self {
        let start = part.as_ptr().addr() - head.as_ptr().addr();
        Span::new(start, start + part.len())
    }

    #[inline]
    pub(crate) fn of(self, head: &[u8]) -> &[u8] {
        &head[usize::from(self.start)..][..usize::from(self.len)]
    }
}

/// The positions of a field's name and value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FieldSpan {
    pub(crate) name: Span,
    pub(crate) value: Span,
}

/// A field line.
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Their positions in the head.
    pub(crate) span: FieldSpan,
    /// Where the line ends in the head.
    pub(crate) end: usize,
}

/// The first line of a request.
pub(crate) struct RequestLine<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) target: &'a [u8],
    pub(crate) is_http10: bool,
    /// Where it ends in the head.
    pub(crate) end: usize,
}

/// Splits the request line at `start`. Returns `None` if it is malformed, incomplete or of another version.
#[inline(always)]
pub(crate) fn request_line(head: &[u8], start: usize) -> Option<RequestLine<'_>> {
    let line = head.get(start..)?;
    let name_len = if line.starts_with(b"GET ") { b"GET".len() } else { token_len(line) };
    let (name, after_name) = line.split_at_checked(name_len)?;
    let after_name = after_name.strip_prefix(b" ")?;
    let mut target_len = visible_len::<b'!'>(after_name);
    if *after_name.get(target_len)? >= 0x80 {
        target_len = text_len(after_name)?;
    }
    let (target, after_target) = after_name.split_at_checked(target_len)?;
    let (version, line_end) = after_target.split_first_chunk()?;
    if version != b" HTTP/1." {
        return None;
    }
    let is_http10 = match line_end.first_chunk()? {
        b"1\r\n" => false,
        b"0\r\n" => true,
        _ => return None,
    };
    if name.is_empty() || target.is_empty() {
        return None;
    }
    let end = start + name_len + target_len + b"  HTTP/1.1\r\n".len();
    Some(RequestLine { name, target, is_http10, end })
}

/// Returns the length of a target that is not ASCII; `None` if it is not UTF-8.
#[cold]
fn text_len(target: &[u8]) -> Option<usize> {
    let len = target.iter().position(|byte| matches!(byte, 0..=b' ' | 0x7f))?;
    std::str::from_utf8(&target[..len]).ok().map(str::len)
}

/// Splits the field line at `start`. Returns `None` if it is malformed or incomplete.
#[inline(always)]
pub(crate) fn next_field(head: &[u8], start: usize) -> Option<Field<'_>> {
    let name_end = start + token_len(&head[start..]);
    if name_end == start || *head.get(name_end)? != b':' {
        return None;
    }
    let mut value_start = name_end + 1;
    while is_blank(*head.get(value_start)?) {
        value_start += 1;
    }
    let line_end = text_end(head, value_start)?;
    let mut value_end = line_end;
    while value_end > value_start && is_blank(head[value_end - 1]) {
        value_end -= 1;
    }
    let span =
        FieldSpan { name: Span::new(start, name_end), value: Span::new(value_start, value_end) };
    let (name, value) = (&head[start..name_end], &head[value_start..value_end]);
    Some(Field { name, value, span, end: line_end + b"\r\n".len() })
}

/// Splits the status line at the start of a response. Returns the status, and where the line ends; `None` if it is
/// malformed, incomplete or of another version.
#[cfg(feature = "sandbox")]
pub(crate) fn status_line(head: &[u8]) -> Option<(u16, usize)> {
    let (version, after) = head.split_first_chunk::<9>()?;
    let (digits, after) = after.split_first_chunk::<3>()?;
    if version != b"HTTP/1.1 " || !digits.iter().all(u8::is_ascii_digit) || after.first()? != &b' '
    {
        return None;
    }
    let status = digits.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
    Some((status, text_end(head, version.len() + digits.len())? + b"\r\n".len()))
}

/// Returns where text that begins at `start` ends, with CRLF behind it. `None` if anything else ends it.
#[inline(always)]
fn text_end(head: &[u8], start: usize) -> Option<usize> {
    let mut end = start + visible_len::<b' '>(&head[start..]);
    while matches!(*head.get(end)?, b'\t' | 0x80..) {
        end += 1;
        end += visible_len::<b' '>(&head[end..]);
    }
    head[end..].starts_with(b"\r\n").then_some(end)
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The highest bit of each byte.
const HIGHEST: u64 = each(0x80);

/// Returns the number of leading bytes of a token (RFC 9110, section 5.6.2).
#[inline]
fn token_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !TOKEN[usize::from(*byte)]).unwrap_or(bytes.len())
}

/// The bytes of a token.
static TOKEN: [bool; 256] = alphanumeric_and(b"!#$%&'*+-.^_`|~");

/// Returns the number of leading bytes of ASCII that are `FIRST` or above, except DEL.
#[inline]
fn visible_len<const FIRST: u8>(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((eight, after)) = rest.split_first_chunk() {
        // The highest bit of a byte that is below `FIRST`, DEL or above. The lowest one found is right: a borrow or a
        // carry comes from a lower one that is found, too.
        let eight = u64::from_le_bytes(*eight);
        let other = eight.wrapping_sub(each(FIRST)) | eight.wrapping_add(each(1)) | eight;
        let other = other & HIGHEST;
        if other != 0 {
            return bytes.len() - rest.len() + other.trailing_zeros() as usize / 8;
        }
        rest = after;
    }
    let len = rest.iter().position(|byte| !(FIRST..0x7f).contains(byte));
    len.map_or(bytes.len(), |len| bytes.len() - rest.len() + len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::head_errors::start_of_line;

    /// Method, target, whether it is HTTP/1.0, fields and length of a head.
    type Parts = (Vec<u8>, Vec<u8>, bool, Vec<(Vec<u8>, Vec<u8>)>, usize);

    fn split(head: &[u8]) -> Option<Parts> {
        let line = request_line(head, start_of_line(head))?;
        let (mut at, mut fields) = (line.end, Vec::new());
        while !head[at..].starts_with(b"\r\n") {
            let field = next_field(head, at)?;
            let FieldSpan { name, value } = field.span;
            assert_eq!((name.of(head), value.of(head)), (field.name, field.value));
            fields.push((field.name.to_vec(), field.value.to_vec()));
            at = field.end;
        }
        let (name, target) = (line.name.to_vec(), line.target.to_vec());
        Some((name, target, line.is_http10, fields, at + 2))
    }

    /// Splits a head by `httparse`, which accepts lines that end in a bare LF, too.
    fn split_by_httparse(head: &[u8]) -> Option<Parts> {
        let mut memory = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut memory);
        let Ok(httparse::Status::Complete(len)) = parsed.parse(head) else { return None };
        let ends = memchr::memchr_iter(b'\n', &head[..len]);
        if ends.into_iter().any(|at| at == 0 || head[at - 1] != b'\r') {
            return None;
        }
        let field = |field: &httparse::Header<'_>| (field.name.into(), field.value.into());
        let fields = parsed.headers.iter().map(field).collect();
        let (name, target) = (parsed.method?.into(), parsed.path?.into());
        Some((name, target, parsed.version == Some(0), fields, len))
    }

    proptest! {
        #[test]
        fn splits_as_httparse_does(
            head in "(\r\n){0,2}(GET|POST|g!T1) (/|\\*|[!-~]{0,20}|/[a-zé%]{0,9}) HTTP/1\\.[01]\r\n(([A-Za-z]{0,3}[!-9_-]{0,9}|Host):[ \t]{0,2}[ -~\tä]{0,20}[ \t]{0,2}\r\n){0,4}\r\n[a-z]{0,3}",
            change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let mut head = head.into_bytes();
            if let Some((at, byte)) = change {
                let at = at.index(head.len());
                head[at] = byte;
            }
            if let Some(at) = cut {
                head.truncate(at.index(head.len()));
            }
            prop_assert_eq!(split(&head), split_by_httparse(&head));
        }
    }

    #[test]
    fn each_byte_is_found_at_each_place() {
        for byte in 0..=255 {
            for place in 0..20 {
                let line = |part: &str, end: &str| {
                    let mut head = part.as_bytes().to_vec();
                    head.extend([b'a'; 20]);
                    head[part.len() + place] = byte;
                    head.extend_from_slice(end.as_bytes());
                    head
                };
                for head in [
                    line("", " / HTTP/1.1\r\n\r\n"),
                    line("GET /", " HTTP/1.1\r\n\r\n"),
                    line("GET / HTTP/1.1\r\n", ": b\r\n\r\n"),
                    line("GET / HTTP/1.1\r\nA:", "\r\n\r\n"),
                ] {
                    assert_eq!(split(&head), split_by_httparse(&head), "{head:?}");
                }
            }
        }
    }
}
