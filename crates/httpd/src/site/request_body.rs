//! The body of a request, for handlers that wait.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

use crate::site::any_response::Response;
use crate::site::into_response::IntoResponse;
use crate::site::pipe::Reader;

/// The body of a request, received while the handler takes it.
///
/// At most 64 KiB wait for the handler; then the server stops receiving. If the body is malformed, too
/// long or too slow, or the client goes, the server drops the handler's future.
///
/// ```
/// use evring_httpd::http::Request;
/// use evring_httpd::body::{BodyError, RequestBody};
/// use evring_httpd::Server;
///
/// async fn count(request: Request<RequestBody>) -> Result<String, BodyError> {
///     let (mut body, mut len) = (request.into_body(), 0);
///     while let Some(piece) = body.next().await {
///         len += piece?.len();
///     }
///     Ok(format!("{len} bytes\n"))
/// }
///
/// let server = Server::builder().route("/count", count);
/// ```
#[derive(Debug)]
pub struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    Bytes(Bytes),
    /// With the bytes that the reader has still to return, if the request gives its length.
    Pipe(Reader, Option<u64>),
}

impl RequestBody {
    pub(crate) fn new(reader: Reader, len: Option<u64>) -> Self {
        RequestBody(Source::Pipe(reader, len))
    }

    /// Returns the next piece, or `None` after the last one and after an error.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns the next piece if it has arrived.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.0 {
            Source::Bytes(bytes) => {
                let bytes = mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes)))
            }
            Source::Pipe(reader, remaining) => {
                let piece = ready!(reader.poll_piece(context));
                if let (Some(Ok(piece)), Some(remaining)) = (&piece, remaining) {
                    *remaining -= piece.len() as u64;
                }
                Poll::Ready(piece.map(|piece| piece.map_err(|_| BodyError)))
            }
        }
    }

    /// Returns the whole body. It counts in [`Limits::max_body_memory`](crate::options::Limits::max_body_memory)
    /// until the handler has answered.
    ///
    /// # Errors
    /// The body did not arrive completely.
    pub async fn bytes(mut self) -> Result<Bytes, BodyError> {
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if first.is_empty() && all.is_empty() {
                first = piece;
            } else {
                all.extend_from_slice(&mem::take(&mut first));
                all.extend_from_slice(&piece);
            }
            self.hold(first.len() + all.capacity());
        }
        Ok(if all.is_empty() { first } else { all.freeze() })
    }

    /// Returns the trailer fields that came after the last piece.
    pub fn trailers(&self) -> Option<HeaderMap> {
        match &self.0 {
            Source::Bytes(_) => None,
            Source::Pipe(reader, _) => reader.trailers(),
        }
    }

    /// Returns the length of what follows, if the body has arrived or the request gives it.
    #[cfg(feature = "tower")]
    pub(crate) fn known_len(&self) -> Option<u64> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes.len() as u64),
            Source::Pipe(_, remaining) => *remaining,
        }
    }

    /// Sets how many bytes a handler keeps of the body.
    pub(crate) fn hold(&self, bytes: usize) {
        if let Source::Pipe(reader, _) = &self.0 {
            reader.hold(bytes);
        }
    }
}

impl Default for RequestBody {
    fn default() -> Self {
        Bytes::new().into()
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        RequestBody(Source::Bytes(bytes))
    }
}

/// A request's body did not arrive completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BodyError;

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body did not arrive completely")
    }
}

impl std::error::Error for BodyError {}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        StatusCode::BAD_REQUEST.into_response()
    }
}
