//! Request handlers.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, StatusCode};

/// A request with its complete body.
pub type Request<T = Bytes> = http::Request<T>;

/// A response.
pub type Response<T = Body> = http::Response<T>;

/// Answers requests.
///
/// Every closure from a complete [`Request`] to a type that implements [`IntoResponse`] is a handler.
/// All workers share one handler and call it concurrently. A call runs on the worker's thread, so it
/// must not block, for example on a database or a lock: it would delay the worker's other connections.
/// A handler cannot answer asynchronously.
///
/// ```
/// use evring_httpd::http::{Method, StatusCode};
/// use evring_httpd::{Request, Server};
///
/// // Returns the request's body in capitals. The body is complete and at most
/// // `Limits::max_body_bytes` long.
/// let shout = |request: Request| match *request.method() {
///     Method::POST => Ok(request.body().to_ascii_uppercase()),
///     _ => Err(StatusCode::METHOD_NOT_ALLOWED),
/// };
/// let server = Server::builder().route("/shout", shout);
/// ```
///
/// A type that implements the trait can answer before the body arrives, or process it in pieces:
///
/// ```
/// use std::sync::Arc;
///
/// use evring_httpd::http::HeaderMap;
/// use evring_httpd::http::request::Parts;
/// use evring_httpd::{Answer, BodySink, Handler, IntoResponse, Response, Server};
///
/// struct Count;
///
/// impl Handler for Count {
///     fn handle(self: Arc<Self>, _: Parts) -> Answer {
///         Answer::Receive(Box::new(Counted(0)))
///     }
/// }
///
/// struct Counted(usize);
///
/// impl BodySink for Counted {
///     fn data(&mut self, bytes: &[u8]) -> Option<Response> {
///         self.0 += bytes.len();
///         None // or a response, which ends the upload
///     }
///
///     fn end(self: Box<Self>, _: HeaderMap) -> Response {
///         format!("{} bytes\n", self.0).into_response()
///     }
/// }
///
/// let server = Server::builder().route("/count", Count);
/// ```
///
/// The server writes the fields that frame a response: Content-Length, Transfer-Encoding, Date and
/// Server. Those of a handler are ignored; a `Connection` field counts only if it has `close`.
pub trait Handler: Send + Sync + 'static {
    /// Takes a request's head. Returns a response, or a sink for the body.
    fn handle(self: Arc<Self>, head: Parts) -> Answer;

    /// Answers a request without a body. The default returns the head to the server, which calls
    /// [`Handler::handle`] and ends the [`BodySink`] at once. Implement it to avoid creating a sink.
    fn handle_without_body(&self, head: Parts) -> ControlFlow<Response, Parts> {
        ControlFlow::Continue(head)
    }

    /// Returns whether a call costs far more than a connection does. See [`shed_if_late`].
    fn sheds_if_late(&self) -> bool {
        false
    }
}

/// Wraps a handler, so that under overload it is called only for clients that still wait.
///
/// Late requests get 503 with Retry-After; if the client has given up, its connection is reset.
/// Do not wrap fast handlers: a 503 costs almost as much as a short response.
/// [`Config::admission`](evring::Config::admission) defines the maximum delay.
///
/// ```
/// use evring_httpd::{Request, Server, shed_if_late};
///
/// let report = |_: Request| (0..10_000_000u64).sum::<u64>().to_string();
/// let server = Server::builder().route("/report", shed_if_late(report));
/// ```
pub fn shed_if_late(handler: impl Handler) -> impl Handler {
    ShedIfLate(Arc::new(handler))
}

struct ShedIfLate<H>(Arc<H>);

impl<H: Handler> Handler for ShedIfLate<H> {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Arc::clone(&self.0).handle(head)
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<Response, Parts> {
        self.0.handle_without_body(head)
    }

    fn sheds_if_late(&self) -> bool {
        true
    }
}

/// The result of [`Handler::handle`].
pub enum Answer {
    /// A response. If a body is still arriving, it is discarded and the connection is closed.
    Respond(Response),
    /// The sink for the body, which may be empty.
    Receive(Box<dyn BodySink>),
}

/// Receives a request's body.
pub trait BodySink {
    /// Takes the next bytes. Returning a response ends the upload early and closes the connection.
    fn data(&mut self, bytes: &[u8]) -> Option<Response>;

    /// Returns the bytes of memory held for the body. The sum over all requests of a worker is
    /// bounded by [`Limits::max_body_memory`](crate::Limits::max_body_memory). The default, 0, suits a
    /// sink that passes the bytes on.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Ends the body. A chunked body may have trailer fields.
    fn end(self: Box<Self>, trailers: HeaderMap) -> Response;
}

impl fmt::Debug for dyn BodySink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodySink")
    }
}

impl<F, R> Handler for F
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Answer::Receive(Box::new(CollectedBody { handler: self, head, body: BytesMut::new() }))
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<Response, Parts> {
        ControlFlow::Break(self(Request::from_parts(head, Bytes::new())).into_response())
    }
}

/// Collects a body for a closure.
struct CollectedBody<F> {
    handler: Arc<F>,
    head: Parts,
    body: BytesMut,
}

impl<F: Fn(Request) -> R, R: IntoResponse> BodySink for CollectedBody<F> {
    fn data(&mut self, bytes: &[u8]) -> Option<Response> {
        self.body.extend_from_slice(bytes);
        None
    }

    fn held_bytes(&self) -> usize {
        self.body.capacity()
    }

    fn end(self: Box<Self>, _: HeaderMap) -> Response {
        let request = Request::from_parts(self.head, self.body.freeze());
        (self.handler)(request).into_response()
    }
}

/// A value that a closure can return as its response.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    note = "responses are text, bytes, `Response`, `StatusCode`, a pair of `StatusCode` and a response, \
            and results of two responses; a handler cannot be async, as it would block its worker"
)]
pub trait IntoResponse {
    /// Converts the value into a response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for Cow<'static, str> {
    fn into_response(self) -> Response {
        match self {
            Cow::Borrowed(text) => text.into_response(),
            Cow::Owned(text) => text.into_response(),
        }
    }
}

impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() = self;
        response
    }
}

impl<R: IntoResponse> IntoResponse for (StatusCode, R) {
    fn into_response(self) -> Response {
        let mut response = self.1.into_response();
        *response.status_mut() = self.0;
        response
    }
}

impl<R: IntoResponse, E: IntoResponse> IntoResponse for Result<R, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(response) => response.into_response(),
            Err(response) => response.into_response(),
        }
    }
}

/// Creates a response with a Content-Type.
fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    response
}

macro_rules! impl_into_response {
    ($content_type:literal: $($type:ty),*) => {$(
        impl IntoResponse for $type {
            fn into_response(self) -> Response {
                typed($content_type, self.into())
            }
        }
    )*};
}

impl_into_response!("text/plain; charset=utf-8": &'static str, String);
impl_into_response!("application/octet-stream": &'static [u8], Vec<u8>, Bytes);

/// The body of a response.
#[derive(Default)]
pub struct Body(pub(crate) Kind);

pub(crate) enum Kind {
    Bytes(Bytes),
    Pieces(Option<u64>, Pieces),
}

/// The pieces of a body. An error resets the connection, so that the client does not take the
/// body for complete.
pub(crate) type Pieces = Box<dyn Iterator<Item = io::Result<Bytes>>>;

impl Default for Kind {
    fn default() -> Self {
        Kind::Bytes(Bytes::new())
    }
}

impl Body {
    /// Returns the bytes, or `None` for a body made in pieces.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Kind::Bytes(bytes) => Some(bytes),
            Kind::Pieces(..) => None,
        }
    }

    /// Creates a body that is produced in pieces as the send queue drains. Pieces are collected
    /// until there is enough to send, so a slow iterator delays the pieces before it.
    ///
    /// An error resets the connection, so that the client does not take the body for complete. So
    /// does an iterator that yields more than 1000 empty pieces in a row.
    ///
    /// ```
    /// use evring_httpd::bytes::Bytes;
    /// use evring_httpd::{Body, Request, Response, Server};
    ///
    /// let numbers = |_: Request| {
    ///     let lines = (1..=1_000_000).map(|n| Ok(Bytes::from(format!("{n}\n"))));
    ///     Response::new(Body::pieces(lines))
    /// };
    /// let server = Server::builder().route("/numbers", numbers);
    /// ```
    pub fn pieces(pieces: impl Iterator<Item = io::Result<Bytes>> + 'static) -> Self {
        Body(Kind::Pieces(None, Box::new(pieces)))
    }

    /// Like [`Body::pieces`], with a known length. Resets the connection if the length differs.
    pub fn sized(len: u64, pieces: impl Iterator<Item = io::Result<Bytes>> + 'static) -> Self {
        Body(Kind::Pieces(Some(len), Box::new(pieces)))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Bytes(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            Kind::Pieces(Some(len), _) => write!(f, "Body({len} bytes in pieces)"),
            Kind::Pieces(None, _) => f.write_str("Body(in pieces)"),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body(Kind::Bytes(bytes))
    }
}

macro_rules! bodies {
    ($($type:ty),*) => {$(
        impl From<$type> for Body {
            fn from(bytes: $type) -> Self {
                Bytes::from(bytes).into()
            }
        }
    )*};
}

bodies!(&'static str, String, &'static [u8], Vec<u8>);
