//! Handlers that are services of tower.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::iter;
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::{Method, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use thread_local::ThreadLocal;
use tower_service::Service;
use tracing::error;

use crate::message::conversion::is_framing;
use crate::message::status::Status;
use crate::response::head::put_field;
use crate::site::any_response::Response;
use crate::site::handler::{Handler, Request};
use crate::site::into_handler::{IntoHandler, WaitingHandler};
use crate::site::request_body::{BodyError, RequestBody};
use crate::site::response_body::{Body, Kind, Piece, Pieces};
use crate::site::responses::declared_length;

/// The kind of a [`tower_service::Service`], for [`IntoHandler`].
#[allow(missing_debug_implementations, reason = "it has no values")]
pub enum ServiceKind {}

/// Each request gets a clone of the service, which is called when it is ready. An error of the service gives 500, and is
/// logged. A service need not be `Sync`: each worker thread has a clone.
///
/// Trailer fields are sent if the request has `TE: trailers` and the response is chunked. It is chunked if neither its
/// body has an exact length nor it has a `Content-Length` field, or it has a `Trailer` field. A body whose length is not
/// the one of that field resets the connection.
impl<S, B> IntoHandler<(ServiceKind, B)> for S
where
    S: Service<Request<RequestBody>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: 'static,
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_handler(self) -> impl Handler {
        let services = PerThread::new(self);
        WaitingHandler(move |head: Parts, body| {
            let mut service = services.get();
            async move {
                let (is_head, accepts_trailers) =
                    (head.method == Method::HEAD, accepts_trailers(&head));
                let answer = async {
                    poll_fn(|context| service.poll_ready(context)).await?;
                    service.call(Request::from_parts(head, body)).await
                };
                match answer.await {
                    Ok(response) => Ok(convert(response, is_head, accepts_trailers).await.into()),
                    Err(reason) => {
                        error!("a service failed: {}", reason.into());
                        Err(Status::INTERNAL)
                    }
                }
            }
        })
    }
}

/// A service that threads may not share: each thread clones its own, and locks only for that.
struct PerThread<S: Send> {
    first: Mutex<S>,
    clones: ThreadLocal<S>,
}

impl<S: Clone + Send> PerThread<S> {
    fn new(service: S) -> Self {
        PerThread { first: Mutex::new(service), clones: ThreadLocal::new() }
    }

    /// Returns a clone of the thread's service.
    fn get(&self) -> S {
        let first = || self.first.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.clones.get_or(first).clone()
    }
}

/// Returns whether a request's response may have trailer fields (RFC 9110, section 6.5.1).
fn accepts_trailers(head: &Parts) -> bool {
    let is_trailers = |coding: &[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"trailers");
    let mut fields = head.headers.get_all(header::TE).iter();
    let accepts = fields.any(|value| value.as_bytes().split(|b| *b == b',').any(is_trailers));
    accepts && head.version == Version::HTTP_11
}

/// Converts a response. A body that is complete at once is sent with its head. A body with a Trailer field is sent in
/// chunks if its trailer fields may be sent.
async fn convert<B>(response: http::Response<B>, is_head: bool, accepts_trailers: bool) -> Response
where
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (head, body) = response.into_parts();
    let mut body = Box::pin(body);
    let len = body.size_hint().exact().or_else(|| declared_length(&head.headers));
    if body.is_end_stream() {
        // A router removes the body for HEAD, whose length is not known then, unless a field has it (RFC 9110, section 8.6).
        let is_unknown = is_head && declared_length(&head.headers).is_none();
        let body = if is_unknown { Body::pieces(iter::empty()) } else { Body::default() };
        return Response::from_parts(head, body);
    }
    let announces_trailers = accepts_trailers && head.headers.contains_key(header::TRAILER);
    let len = if announces_trailers { None } else { len };
    let mut next = move |context: &mut Context<'_>| loop {
        return match ready!(body.as_mut().poll_frame(context)) {
            None => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(io::Error::other(error)))),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    let bytes = data.copy_to_bytes(data.remaining());
                    Poll::Ready(Some(Ok(Piece::Bytes(bytes))))
                }
                Err(frame) => match frame.into_trailers() {
                    Ok(fields) if accepts_trailers => {
                        Poll::Ready(Some(Ok(Piece::Trailers(lines(&fields)))))
                    }
                    _ => continue,
                },
            },
        };
    };
    let mut first = poll_fn(|context| Poll::Ready(next(context))).await;
    let body = match first {
        Poll::Ready(Some(Ok(Piece::Bytes(bytes)))) if len == Some(bytes.len() as u64) => {
            bytes.into()
        }
        _ => {
            let pieces =
                move |context: &mut Context<'_>| match mem::replace(&mut first, Poll::Pending) {
                    Poll::Ready(piece) => Poll::Ready(piece),
                    Poll::Pending => next(context),
                };
            Body(Kind::Pieces(len, Pieces::polled(pieces)))
        }
    };
    Response::from_parts(head, body)
}

/// Beside those of [`is_framing`], the fields of a response that a trailer section must not have: they route it,
/// serve authentication, control caches or clients, or tell the format of the content (RFC 9110, section 6.5.1).
const NOT_TRAILERS: [HeaderName; 17] = [
    header::AGE,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::EXPIRES,
    header::HOST,
    header::LOCATION,
    header::PROXY_AUTHENTICATE,
    header::RETRY_AFTER,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::VARY,
    header::WARNING,
    header::WWW_AUTHENTICATE,
];

/// Writes the lines of a trailer section, without the fields that are not permitted there.
fn lines(fields: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in fields {
        if !is_framing(name) && !NOT_TRAILERS.contains(name) {
            put_field(&mut lines, name.as_str(), value.as_bytes());
        }
    }
    lines
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(piece)) => Poll::Ready(Some(piece.map(Frame::data))),
            Poll::Ready(None) => Poll::Ready(self.trailers().map(Frame::trailers).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.known_len() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.known_len().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
