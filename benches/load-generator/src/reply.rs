//! Where a reply ends.

use httparse::Status;

/// A reply that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Length of the body.
    pub(crate) bytes: u64,
    /// Whether another may follow on this connection.
    pub(crate) keep_alive: bool,
}

/// What was received is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The most bytes of a head, and of a line between pieces of a body.
const LONGEST_HEAD: usize = 64 * 1024;
/// The most fields of a head.
const FIELDS: usize = 64;

/// Follows replies through a stream, wherever it is cut.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// What follows in the stream.
    due: Due,
    /// The part of a head, or of a line, that has arrived.
    held: Vec<u8>,
    reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Head,
    /// So many bytes of the body.
    Body(u64),
    /// Everything until the end of the stream.
    Rest,
    /// The line with the size of the next chunk.
    Size,
    /// So many bytes of a chunk, and its line end.
    Chunk(u64),
    /// The lines behind the last chunk.
    Trailer,
}

impl Reader {
    /// Forgets what belonged to the last connection.
    pub(crate) fn begin(&mut self) {
        self.due = Due::Head;
        self.held.clear();
        self.reply = None;
    }

    /// Whether a reply has arrived in part.
    pub(crate) fn is_within(&self) -> bool {
        self.due != Due::Head || !self.held.is_empty()
    }

    /// Uses bytes of the stream; returns how many, and the reply that they complete, if any.
    /// `bodiless` says that the request allows no body (`HEAD`).
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        bodiless: bool,
    ) -> Result<(usize, Option<Reply>), Malformed> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            used += match self.due {
                Due::Head => self.head(rest, bodiless)?,
                Due::Body(left) => {
                    let n = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.due = Due::Body(left - n as u64);
                    n
                }
                Due::Rest => {
                    self.count(rest.len() as u64);
                    rest.len()
                }
                Due::Size => self.size(rest)?,
                Due::Chunk(left) => {
                    let n = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.due = match left - n as u64 {
                        0 => Due::Size,
                        left => Due::Chunk(left),
                    };
                    n
                }
                Due::Trailer => {
                    let (n, line) = self.line(rest)?;
                    if line.is_some_and(|length| length == 0) {
                        self.due = Due::Body(0);
                    }
                    n
                }
            };
            if self.due == Due::Body(0) {
                self.due = Due::Head;
                return Ok((used, self.reply.take()));
            }
        }
        Ok((used, None))
    }

    /// The stream has ended; returns the reply that this completes, if any.
    pub(crate) fn end(&mut self) -> Option<Reply> {
        (self.due == Due::Rest).then(|| self.reply.take()).flatten()
    }

    fn count(&mut self, bytes: u64) {
        if let Some(reply) = &mut self.reply {
            reply.bytes = reply.bytes.saturating_add(bytes);
        }
    }

    /// Looks for a head at the front; returns how many bytes of `rest` were used.
    fn head(&mut self, rest: &[u8], bodiless: bool) -> Result<usize, Malformed> {
        let before = self.held.len();
        if before > 0 {
            self.held.extend_from_slice(rest);
        }
        let whole = if before > 0 { &self.held } else { rest };
        let Some((length, reply, due)) = head(whole, bodiless)? else {
            if whole.len() > LONGEST_HEAD {
                return Err(Malformed);
            }
            if before == 0 {
                self.held.extend_from_slice(rest);
            }
            return Ok(rest.len());
        };
        self.held.clear();
        // A head that announces another one, such as `100 Continue`.
        if reply.status >= 200 {
            self.due = due;
            self.reply = Some(reply);
        }
        Ok(length - before)
    }

    fn size(&mut self, rest: &[u8]) -> Result<usize, Malformed> {
        let before = self.held.len();
        self.held.extend_from_slice(rest);
        match httparse::parse_chunk_size(&self.held) {
            Ok(Status::Complete((length, size))) => {
                self.held.clear();
                self.count(size);
                self.due = if size == 0 {
                    Due::Trailer
                } else {
                    Due::Chunk(size.checked_add(2).ok_or(Malformed)?)
                };
                Ok(length - before)
            }
            Ok(Status::Partial) if self.held.len() < LONGEST_HEAD => Ok(rest.len()),
            _ => Err(Malformed),
        }
    }

    /// Uses up to one line; returns its length without the line end when it is whole.
    fn line(&mut self, rest: &[u8]) -> Result<(usize, Option<usize>), Malformed> {
        let n = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |at| at + 1);
        self.held.extend_from_slice(&rest[..n]);
        if self.held.len() > LONGEST_HEAD {
            return Err(Malformed);
        }
        if self.held.last() != Some(&b'\n') {
            return Ok((n, None));
        }
        let length = self.held.trim_ascii_end().len();
        self.held.clear();
        Ok((n, Some(length)))
    }
}

/// Parses a head; returns its length and what it says of the body. Nothing if there is more to come.
fn head(bytes: &[u8], bodiless: bool) -> Result<Option<(usize, Reply, Due)>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
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
    let empty = bodiless || matches!(status, 204 | 304);
    let (bytes, due) = match (empty, chunked, content) {
        (true, ..) => (0, Due::Body(0)),
        (_, true, _) => (0, Due::Size),
        (_, _, Some(length)) => (length, Due::Body(length)),
        (_, _, None) => (0, Due::Rest),
    };
    let keep_alive = keep_alive && due != Due::Rest;
    Ok(Some((length, Reply { status, bytes, keep_alive }, due)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Replies in one stream, and what is to be found of them.
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

    fn read(pieces: &[&[u8]]) -> Result<Vec<Reply>, Malformed> {
        let (mut reader, mut found) = (Reader::default(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (used, reply) = reader.take(rest, false)?;
                found.extend(reply);
                rest = &rest[used..];
            }
        }
        found.extend(reader.end());
        Ok(found)
    }

    #[test]
    fn replies_are_found_in_one_piece() {
        assert_eq!(read(&[STREAM]), Ok(replies()));
    }

    proptest! {
        #[test]
        fn replies_are_found_wherever_the_stream_is_cut(
            mut cuts in prop::collection::vec(0..STREAM.len(), 0..20)
        ) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &STREAM[w[0]..w[1]]).collect();
            prop_assert_eq!(read(&pieces), Ok(replies()));
        }

        #[test]
        fn nonsense_is_refused_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&[&bytes]);
        }
    }

    #[test]
    fn a_reply_to_head_has_no_body() {
        let mut reader = Reader::default();
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let reply = Reply { status: 200, bytes: 0, keep_alive: true };
        assert_eq!(reader.take(bytes, true), Ok((bytes.len(), Some(reply))));
    }

    #[test]
    fn what_has_begun_is_known() {
        let mut reader = Reader::default();
        assert!(!reader.is_within());
        reader.take(b"HTTP/1.1 2", false).unwrap();
        assert!(reader.is_within() && reader.end().is_none());
        reader.begin();
        assert!(!reader.is_within());
    }

    #[test]
    fn nonsense_is_malformed() {
        assert_eq!(read(&[b"SSH-2.0-server\r\n\r\n"]), Err(Malformed));
        assert_eq!(read(&[b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]), Err(Malformed));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(read(&[chunked, b"z\r\n"]), Err(Malformed));
        let long = [b'a'; LONGEST_HEAD];
        assert_eq!(read(&[b"HTTP/1.1 200 OK\r\na: ", &long, b"b"]), Err(Malformed));
    }
}
