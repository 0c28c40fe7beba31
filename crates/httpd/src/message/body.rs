//! Decoding of request bodies.

use evring::Rx;

use crate::limits::Limits;
use crate::message::request::{Framing, ends_in_crlf_only};
use crate::message::status::Status;

/// Decoder state of a request body.
#[derive(Debug, Default)]
pub(crate) struct BodyDecoder {
    state: BodyState,
    /// Bytes of content that may still arrive.
    room: u64,
    /// Bytes of chunk framing that may still arrive. Bounds clients that send much framing and
    /// little content.
    framing: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum BodyState {
    /// No body, or all of it was read.
    #[default]
    None,
    /// Remaining bytes of a body with a Content-Length.
    Length(u64),
    /// At the line with a chunk's size.
    Size,
    /// Remaining bytes of a chunk.
    Chunk(u64),
    /// At the CRLF after a chunk.
    ChunkEnd,
    /// At the trailer fields and the empty line after them.
    Trailers,
    /// Bytes of another protocol, up to the end of the stream.
    Unframed,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyPiece {
    /// Length of the content at the front; the caller consumes it.
    Content(usize),
    /// Length of the trailer section at the front; the caller consumes it. The body is complete.
    End(usize),
    Partial,
}

impl BodyDecoder {
    /// Bytes of framing allowed initially, and in addition per byte of content. A one-byte chunk
    /// needs five.
    const FRAMING: u64 = 16 * 1024;
    const FRAMING_PER_BYTE: u64 = 8;

    /// Maximum length of a chunk-size line, extensions included.
    const MAX_SIZE_LINE: usize = 256;

    /// Starts decoding a request body.
    ///
    /// # Errors
    /// 413 if the Content-Length exceeds the limit.
    pub(crate) fn new(framing: Framing, limits: &Limits) -> Result<Self, Status> {
        let state = match framing {
            Framing::Length(0) => BodyState::None,
            Framing::Length(len) if len > limits.max_body_bytes => return Err(Status::BODY),
            Framing::Length(len) => BodyState::Length(len),
            Framing::Chunked => BodyState::Size,
        };
        Ok(BodyDecoder { state, room: limits.max_body_bytes, framing: Self::FRAMING })
    }

    /// Returns the decoder of bytes without framing, whose length is not limited.
    pub(crate) fn unframed() -> Self {
        BodyDecoder { state: BodyState::Unframed, room: 0, framing: 0 }
    }

    /// Returns whether the body is incomplete.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state != BodyState::None
    }

    /// Returns the next piece, and consumes the framing before it.
    ///
    /// # Errors
    /// 400 for malformed chunks (RFC 9112, section 7.1), 413 if content or framing exceeds its limit.
    pub(crate) fn next(&mut self, rx: &mut Rx<'_>, limits: &Limits) -> Result<BodyPiece, Status> {
        loop {
            let bytes = rx.bytes();
            match &mut self.state {
                BodyState::None => return Ok(BodyPiece::End(0)),
                BodyState::Unframed => {
                    return Ok(match bytes.len() {
                        0 => BodyPiece::Partial,
                        len => BodyPiece::Content(len),
                    });
                }
                BodyState::Length(remaining) | BodyState::Chunk(remaining) if *remaining > 0 => {
                    let len = (bytes.len() as u64).min(*remaining);
                    *remaining -= len;
                    return Ok(if len == 0 {
                        BodyPiece::Partial
                    } else {
                        BodyPiece::Content(len as usize)
                    });
                }
                BodyState::Length(_) => self.state = BodyState::None,
                BodyState::Chunk(_) => self.state = BodyState::ChunkEnd,
                BodyState::ChunkEnd => match bytes {
                    [b'\r', b'\n', ..] => {
                        rx.consume(2);
                        self.state = BodyState::Size;
                    }
                    [] | [b'\r'] => return Ok(BodyPiece::Partial),
                    _ => return Err(Status::BAD_REQUEST),
                },
                BodyState::Size => {
                    let start = &bytes[..bytes.len().min(Self::MAX_SIZE_LINE)];
                    let Some(end) = memchr::memchr(b'\n', start) else {
                        let malformed = start.len() == Self::MAX_SIZE_LINE || !may_be_size(start);
                        return if malformed {
                            Err(Status::BAD_REQUEST)
                        } else {
                            Ok(BodyPiece::Partial)
                        };
                    };
                    let size = size(&start[..end]).ok_or(Status::BAD_REQUEST)?;
                    self.room = self.room.checked_sub(size).ok_or(Status::BODY)?;
                    let framing = end as u64 + b"\n\r\n".len() as u64;
                    self.framing = self.framing.checked_sub(framing).ok_or(Status::BODY)?;
                    let more = size.saturating_mul(Self::FRAMING_PER_BYTE);
                    self.framing = self.framing.saturating_add(more);
                    rx.consume(end + 1);
                    self.state =
                        if size == 0 { BodyState::Trailers } else { BodyState::Chunk(size) };
                }
                BodyState::Trailers => {
                    let Some(len) = trailers(bytes, limits)? else { return Ok(BodyPiece::Partial) };
                    self.state = BodyState::None;
                    return Ok(BodyPiece::End(len));
                }
            }
        }
    }
}

/// Returns whether `start` can be the beginning of a chunk-size line.
fn may_be_size(start: &[u8]) -> bool {
    start.first().is_none_or(u8::is_ascii_hexdigit)
}

/// Parses a chunk-size line without its LF, such as `1f;name=value\r`.
fn size(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r")?;
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (digits, extensions) = line.split_at(digits);
    // Sixteen digits fill a u64; more are rejected, even leading zeros.
    if !are_extensions(extensions) || !(1..=16).contains(&digits.len()) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns whether `input` is a list of chunk extensions: `;name`, `;name=token` or
/// `;name="text"` (RFC 9112, section 7.1.1).
fn are_extensions(mut input: &[u8]) -> bool {
    while !input.is_empty() {
        let Some(extension) = trim(input).strip_prefix(b";") else { return false };
        let (name, after) = token(trim(extension));
        input = after;
        if let Some(value) = trim(after).strip_prefix(b"=") {
            let value = trim(value);
            let (text, after) = if value.starts_with(b"\"") { quoted(value) } else { token(value) };
            if text.is_empty() {
                return false;
            }
            input = after;
        }
        if name.is_empty() {
            return false;
        }
    }
    true
}

/// Removes leading spaces and tabs.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', tail @ ..] = bytes {
        bytes = tail;
    }
    bytes
}

/// Splits off a token, which may be empty.
fn token(bytes: &[u8]) -> (&[u8], &[u8]) {
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    bytes.split_at(bytes.iter().take_while(|b| is_token(b)).count())
}

/// Returns whether a byte is allowed in a quoted string (RFC 9110, section 5.6.4).
fn is_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// Splits off a quoted string with its quotes; it is empty if malformed.
fn quoted(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return bytes.split_at(at + 1),
            b'\\' if bytes.get(at + 1).is_some_and(|b| is_text(*b)) => at += 2,
            b'\\' => break,
            byte if is_text(byte) => at += 1,
            _ => break,
        }
    }
    (b"", bytes)
}

/// Returns the length of the trailer section, or `None` if it is incomplete.
fn trailers(bytes: &[u8], limits: &Limits) -> Result<Option<usize>, Status> {
    let mut fields = [httparse::EMPTY_HEADER; Limits::MAX_HEADERS];
    let fields = &mut fields[..limits.max_headers.min(Limits::MAX_HEADERS)];
    match httparse::parse_headers(&bytes[..bytes.len().min(limits.max_head_bytes)], fields) {
        Ok(httparse::Status::Complete((len, _))) if ends_in_crlf_only(&bytes[..len]) => {
            Ok(Some(len))
        }
        Ok(httparse::Status::Complete(_)) => Err(Status::BAD_REQUEST),
        Ok(httparse::Status::Partial) if bytes.len() >= limits.max_head_bytes => Err(Status::HEAD),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(Status::HEAD),
        Err(_) => Err(Status::BAD_REQUEST),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzzing::{Decoded, decode};

    fn chunked(input: &str) -> Decoded {
        let input = input.replace('|', "\r\n");
        decode(Framing::Chunked, input.as_bytes(), [].into_iter(), &Limits::default())
    }

    #[test]
    fn valid_chunks_are_accepted() {
        for (input, content) in [
            ("0||", ""),
            ("3|abc|0||", "abc"),
            ("3|abc|00A|0123456789|0||", "abc0123456789"),
            ("1;a=b|x|0;c||", "x"),
            ("1 ;a=\"b\"|x|0||", "x"),
            ("1 ; a = \"b;\\\"c\" ;d\t; e=f|x|0||", "x"),
            ("1|x|0|A: b|C: d||", "x"),
        ] {
            let whole = (b"next".to_vec(), content.as_bytes().to_vec());
            assert_eq!(chunked(&format!("{input}next")), Ok(Some(whole)), "{input}");
        }
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        for input in [
            "|",
            "x|",
            "-1|",
            "+1|",
            "0x1|",
            " 1|",
            "1 |x",
            "3|abcd|",
            "3|abc\n",
            "1\nx|",
            "1\r\r\n",
            "1;\n",
            "g",
            "\r\n",
            "1;a\u{1}|",
            "1;a=\"\\\r\"|",
            "10000000000000000|",
            "00000000000000001|",
            "0|A b||",
            "0| a: b||",
            "0|a: b\n|",
            "0|\n",
            "0|a : b||",
        ] {
            assert_eq!(chunked(input), Err(400), "{input:?}");
        }
        for extension in
            [";", ";=", ";a=", "; ;a", ";a b", ";a=\"", ";a=\"b", ";a=\"b\"c", "g;b", ";a=b=c"]
        {
            assert_eq!(chunked(&format!("1{extension}|x|0||")), Err(400), "{extension}");
        }
        assert_eq!(chunked(&format!("1;{}", "a".repeat(300))), Err(400));
        assert_eq!(chunked(&format!("0|A: {}", "a".repeat(20_000))), Err(431));
        assert_eq!(chunked("ffffffffffffffff|"), Err(413));
    }

    #[test]
    fn body_limit_counts_content_bytes() {
        let limits = Limits { max_body_bytes: 5, ..Limits::default() };
        let read =
            |framing, input: &[u8]| decode(framing, input, [].into_iter(), &limits).map(|_| ());
        assert_eq!(read(Framing::Length(5), b"12345"), Ok(()));
        assert_eq!(read(Framing::Length(6), b""), Err(413));
        assert_eq!(read(Framing::Chunked, b"2\r\n12\r\n3\r\n345\r\n0\r\n\r\n"), Ok(()));
        assert_eq!(read(Framing::Chunked, b"2\r\n12\r\n4\r\n"), Err(413));
    }

    #[test]
    fn chunk_framing_is_bounded() {
        let small = "1|x|".repeat(100_000) + "0||";
        assert!(chunked(&small).is_ok_and(|whole| whole.is_some()));
        let extended = format!("1;{}|x|", "a".repeat(200)).repeat(1000);
        assert_eq!(chunked(&extended), Err(413));
    }

    proptest! {
        #[test]
        fn chunks_decode_the_same_for_any_segmentation(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..6),
            cuts in prop::collection::vec(0..200usize, 0..20),
        ) {
            let mut input = Vec::new();
            for chunk in &chunks {
                input.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                input.extend_from_slice(chunk);
                input.extend_from_slice(b"\r\n");
            }
            input.extend_from_slice(b"0\r\nA: b\r\n\r\nGET");
            let mut cuts = cuts;
            cuts.sort_unstable();
            let cuts = cuts.into_iter();
            let outcome = decode(Framing::Chunked, &input, cuts, &Limits::default());
            prop_assert_eq!(outcome, Ok(Some((b"GET".to_vec(), chunks.concat()))));
        }
    }
}
