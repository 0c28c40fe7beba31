//! Parser of HTTP/1.1 replies.

use httparse::Status;

/// A complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Length of the body in bytes.
    pub(crate) bytes: u64,
    /// The connection stays open for another reply.
    pub(crate) keep_alive: bool,
}

/// The bytes received are not an HTTP reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Maximum length of a head, and of a line between chunks, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Maximum number of header fields.
const MAX_FIELDS: usize = 64;

/// Incremental parser of a stream of replies.
#[derive(Debug, Default)]
pub(crate) struct ReplyParser {
    /// Part of the reply that comes next.
    state: State,
    /// Received part of an incomplete head or line.
    buffered: Vec<u8>,
    reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// Remaining bytes of the body.
    Body(u64),
    /// The body extends to the end of the stream.
    UntilEof,
    /// The line with the size of the next chunk.
    ChunkSize,
    /// Remaining bytes of a chunk, including its line end.
    Chunk(u64),
    /// The lines after the last chunk.
    Trailer,
}

impl ReplyParser {
    /// Resets the parser for a new connection.
    pub(crate) fn reset(&mut self) {
        self.state = State::Head;
        self.buffered.clear();
        self.reply = None;
    }

    /// Returns whether part of a reply has been received.
    pub(crate) fn is_partial(&self) -> bool {
        self.state != State::Head || !self.buffered.is_empty()
    }

    /// Consumes bytes of the stream. Returns their number, and the reply that they complete, if
    /// any. `no_body` is set for replies without a body (`HEAD`).
    pub(crate) fn parse(
        &mut self,
        bytes: &[u8],
        no_body: bool,
    ) -> Result<(usize, Option<Reply>), Malformed> {
        let mut used = 0;
        while used < bytes.len() {
            let remaining = &bytes[used..];
            used += match self.state {
                State::Head => self.head(remaining, no_body)?,
                State::Body(length) => {
                    let n = remaining.len().min(usize::try_from(length).unwrap_or(usize::MAX));
                    self.state = State::Body(length - n as u64);
                    n
                }
                State::UntilEof => {
                    self.add_bytes(remaining.len() as u64);
                    remaining.len()
                }
                State::ChunkSize => self.chunk_size(remaining)?,
                State::Chunk(length) => {
                    let n = remaining.len().min(usize::try_from(length).unwrap_or(usize::MAX));
                    self.state = match length - n as u64 {
                        0 => State::ChunkSize,
                        length => State::Chunk(length),
                    };
                    n
                }
                State::Trailer => {
                    let (n, line) = self.line(remaining)?;
                    if line.is_some_and(|length| length == 0) {
                        self.state = State::Body(0);
                    }
                    n
                }
            };
            if self.state == State::Body(0) {
                self.state = State::Head;
                return Ok((used, self.reply.take()));
            }
        }
        Ok((used, None))
    }

    /// Handles the end of the stream. Returns the reply that it completes, if any.
    pub(crate) fn finish(&mut self) -> Option<Reply> {
        (self.state == State::UntilEof).then(|| self.reply.take()).flatten()
    }

    fn add_bytes(&mut self, bytes: u64) {
        if let Some(reply) = &mut self.reply {
            reply.bytes = reply.bytes.saturating_add(bytes);
        }
    }

    /// Parses the head. Returns the number of bytes of `remaining` consumed.
    fn head(&mut self, remaining: &[u8], no_body: bool) -> Result<usize, Malformed> {
        let before = self.buffered.len();
        if before > 0 {
            self.buffered.extend_from_slice(remaining);
        }
        let head_bytes = if before > 0 { &self.buffered } else { remaining };
        let Some((length, reply, state)) = head(head_bytes, no_body)? else {
            if head_bytes.len() > MAX_HEAD {
                return Err(Malformed);
            }
            if before == 0 {
                self.buffered.extend_from_slice(remaining);
            }
            return Ok(remaining.len());
        };
        self.buffered.clear();
        // Informational replies, such as `100 Continue`, precede the final one.
        if reply.status >= 200 {
            self.state = state;
            self.reply = Some(reply);
        }
        Ok(length - before)
    }

    fn chunk_size(&mut self, remaining: &[u8]) -> Result<usize, Malformed> {
        let before = self.buffered.len();
        self.buffered.extend_from_slice(remaining);
        match httparse::parse_chunk_size(&self.buffered) {
            Ok(Status::Complete((length, size))) => {
                self.buffered.clear();
                self.add_bytes(size);
                self.state = if size == 0 {
                    State::Trailer
                } else {
                    State::Chunk(size.checked_add(2).ok_or(Malformed)?)
                };
                Ok(length - before)
            }
            Ok(Status::Partial) if self.buffered.len() < MAX_HEAD => Ok(remaining.len()),
            _ => Err(Malformed),
        }
    }

    /// Consumes up to the end of a line. Returns the line's length without its end, once complete.
    fn line(&mut self, remaining: &[u8]) -> Result<(usize, Option<usize>), Malformed> {
        let n = remaining.iter().position(|b| *b == b'\n').map_or(remaining.len(), |at| at + 1);
        self.buffered.extend_from_slice(&remaining[..n]);
        if self.buffered.len() > MAX_HEAD {
            return Err(Malformed);
        }
        if self.buffered.last() != Some(&b'\n') {
            return Ok((n, None));
        }
        let length = self.buffered.trim_ascii_end().len();
        self.buffered.clear();
        Ok((n, Some(length)))
    }
}

/// Parses a head. Returns its length, the reply and the next state; `None` if incomplete.
fn head(bytes: &[u8], no_body: bool) -> Result<Option<(usize, Reply, State)>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let length = match head.parse(bytes) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed),
    };
    let status = head.code.ok_or(Malformed)?;
    let mut keep_alive = head.version == Some(1);
    let (mut content, mut chunked) = (None, false);
    for field in head.headers.iter() {
        if field.name.eq_ignore_ascii_case("content-length") {
            let text = str::from_utf8(field.value).map_err(|_| Malformed)?;
            content = Some(text.trim().parse().map_err(|_| Malformed)?);
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = field.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
        } else if field.name.eq_ignore_ascii_case("connection") {
            let mut words = field.value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
            if words.clone().any(|word| word.eq_ignore_ascii_case(b"close")) {
                keep_alive = false;
            } else if words.any(|word| word.eq_ignore_ascii_case(b"keep-alive")) {
                keep_alive = true;
            }
        }
    }
    let empty = no_body || matches!(status, 204 | 304);
    let (bytes, state) = match (empty, chunked, content) {
        (true, ..) => (0, State::Body(0)),
        (_, true, _) => (0, State::ChunkSize),
        (_, _, Some(length)) => (length, State::Body(length)),
        (_, _, None) => (0, State::UntilEof),
    };
    let keep_alive = keep_alive && state != State::UntilEof;
    Ok(Some((length, Reply { status, bytes, keep_alive }, state)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stream of replies; [`replies`] returns the expected results.
    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
        HTTP/1.1 204 No Content\r\n\r\n\
        HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
        5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: yes\r\n\r\n\
        HTTP/1.1 404 Not Found\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n\
        HTTP/1.0 200 OK\r\n\r\neverything until the end";

    fn replies() -> Vec<Reply> {
        [(200, 5, true), (204, 0, true), (200, 6, true), (404, 0, false), (200, 24, false)]
            .map(|(status, bytes, keep_alive)| Reply { status, bytes, keep_alive })
            .into()
    }

    fn read(chunks: &[&[u8]]) -> Result<Vec<Reply>, Malformed> {
        let (mut parser, mut replies_read) = (ReplyParser::default(), Vec::new());
        for chunk in chunks {
            let mut remaining = *chunk;
            while !remaining.is_empty() {
                let (used, reply) = parser.parse(remaining, false)?;
                replies_read.extend(reply);
                remaining = &remaining[used..];
            }
        }
        replies_read.extend(parser.finish());
        Ok(replies_read)
    }

    #[test]
    fn replies_in_one_chunk_are_parsed() {
        assert_eq!(read(&[STREAM]), Ok(replies()));
    }

    proptest! {
        #[test]
        fn replies_are_parsed_for_any_split_of_the_stream(
            mut cuts in prop::collection::vec(0..STREAM.len(), 0..20)
        ) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let chunks: Vec<_> = cuts.windows(2).map(|w| &STREAM[w[0]..w[1]]).collect();
            prop_assert_eq!(read(&chunks), Ok(replies()));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&[&bytes]);
        }
    }

    #[test]
    fn reply_to_head_request_has_no_body() {
        let mut parser = ReplyParser::default();
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let reply = Reply { status: 200, bytes: 0, keep_alive: true };
        assert_eq!(parser.parse(bytes, true), Ok((bytes.len(), Some(reply))));
    }

    #[test]
    fn partial_reply_is_detected() {
        let mut parser = ReplyParser::default();
        assert!(!parser.is_partial());
        parser.parse(b"HTTP/1.1 2", false).unwrap();
        assert!(parser.is_partial() && parser.finish().is_none());
        parser.reset();
        assert!(!parser.is_partial());
    }

    #[test]
    fn invalid_replies_are_malformed() {
        assert_eq!(read(&[b"SSH-2.0-server\r\n\r\n"]), Err(Malformed));
        assert_eq!(read(&[b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]), Err(Malformed));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(read(&[chunked, b"z\r\n"]), Err(Malformed));
        let long = [b'a'; MAX_HEAD];
        assert_eq!(read(&[b"HTTP/1.1 200 OK\r\na: ", &long, b"b"]), Err(Malformed));
    }
}
