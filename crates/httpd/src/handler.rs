//! What a program adds to a site: handlers of requests.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, StatusCode};

/// A request with its whole body.
pub type Request<T = Bytes> = http::Request<T>;

/// A reply.
pub type Response<T = Body> = http::Response<T>;

/// Answers requests.
///
/// A closure from a whole [`Request`] to something that is a [`IntoResponse`] is a handler. One handler
/// serves all workers at once. It is called in its worker's thread and must not wait, for a database
/// or a lock, as the other connections of the worker would wait too; nor can it answer later.
///
/// ```
/// use evring_httpd::http::{Method, StatusCode};
/// use evring_httpd::{Request, Server};
///
/// // Whatever is posted comes back in capitals; the body is there, whole, within `Limits::body`.
/// let shout = |request: Request| match *request.method() {
///     Method::POST => Ok(request.body().to_ascii_uppercase()),
///     _ => Err(StatusCode::METHOD_NOT_ALLOWED),
/// };
/// let server = Server::builder().route("/shout", shout);
/// ```
///
/// A type of its own can answer before the body has come, or take it piece by piece:
///
/// ```
/// use std::sync::Arc;
///
/// use evring_httpd::http::HeaderMap;
/// use evring_httpd::http::request::Parts;
/// use evring_httpd::{Answer, Handler, IntoResponse, Response, Server, BodySink};
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
///         None // or a reply, which ends the upload
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
/// The fields that frame a reply are the server's: Content-Length, Transfer-Encoding, Date and Server
/// are not taken from a handler, and of Connection only `close` is.
pub trait Handler: Send + Sync + 'static {
    /// Takes a request's head; the answer is a reply, or what is to receive the body.
    fn handle(self: Arc<Self>, head: Parts) -> Answer;

    /// Answers a request that has no body. By default it gives the head back, for
    /// [`Handler::handle`] to take and an [`BodySink`] to end at once; a handler that answers here
    /// saves making one.
    fn handle_without_body(&self, head: Parts) -> ControlFlow<Response, Parts> {
        ControlFlow::Continue(head)
    }

    /// Whether a call costs far more than a connection does. See [`shed_if_late`].
    fn sheds_if_late(&self) -> bool {
        false
    }
}

/// Has a handler called only for requests whose clients still wait, when there is more to do than can
/// be done. Others are answered with 503 and Retry-After, which is not worth it for a handler that is
/// quick: a connection that is refused costs most of what a short reply does. How late is too late is
/// said by [`Config::admission`](evring::Config::admission).
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

/// A handler that costs much.
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

/// What a [`Handler`] makes of a request's head.
pub enum Answer {
    /// The reply. A body that is still to come is dropped, and the connection with it.
    Respond(Response),
    /// What is to be done with the body, be it empty.
    Receive(Box<dyn BodySink>),
}

/// A request's body on its way in.
pub trait BodySink {
    /// Takes the next bytes; a reply ends the upload early, and the connection with it.
    fn data(&mut self, bytes: &[u8]) -> Option<Response>;

    /// Bytes of memory that it holds for the body now. Together with those of the other requests they
    /// are bounded by [`Limits::max_body_memory`](crate::Limits::max_body_memory). None by default, as for one that
    /// passes the bytes on.
    fn held_bytes(&self) -> usize {
        0
    }

    /// The body was whole; these are the fields behind it, if it came in chunks.
    fn end(self: Box<Self>, trailers: HeaderMap) -> Response;
}

impl fmt::Debug for dyn BodySink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upload")
    }
}

impl<F, R> Handler for F
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Answer::Receive(Box::new(Whole { handler: self, head, body: BytesMut::new() }))
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<Response, Parts> {
        ControlFlow::Break(self(Request::from_parts(head, Bytes::new())).into_response())
    }
}

/// Collects a body for a closure.
struct Whole<F> {
    handler: Arc<F>,
    head: Parts,
    body: BytesMut,
}

impl<F: Fn(Request) -> R, R: IntoResponse> BodySink for Whole<F> {
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

/// What a closure can reply with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no reply",
    note = "replies are texts, bytes, `Response`, `StatusCode`, a pair of `StatusCode` and a reply, \
            and results of two replies; a handler can't be async, as its worker would wait for it"
)]
pub trait IntoResponse {
    /// The reply.
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
            Ok(reply) => reply.into_response(),
            Err(reply) => reply.into_response(),
        }
    }
}

/// A body of that type.
fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    response
}

macro_rules! replies {
    ($content_type:literal: $($type:ty),*) => {$(
        impl IntoResponse for $type {
            fn into_response(self) -> Response {
                typed($content_type, self.into())
            }
        }
    )*};
}

replies!("text/plain; charset=utf-8": &'static str, String);
replies!("application/octet-stream": &'static [u8], Vec<u8>, Bytes);

/// The body of a reply.
#[derive(Default)]
pub struct Body(pub(crate) Kind);

pub(crate) enum Kind {
    Bytes(Bytes),
    Pieces(Option<u64>, Pieces),
}

/// The pieces of a body, one after another. An error ends the connection, so that the client
/// does not take the body for whole.
pub(crate) type Pieces = Box<dyn Iterator<Item = io::Result<Bytes>>>;

impl Default for Kind {
    fn default() -> Self {
        Kind::Bytes(Bytes::new())
    }
}

impl Body {
    /// The bytes, unless it is made piece by piece.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Kind::Bytes(bytes) => Some(bytes),
            Kind::Pieces(..) => None,
        }
    }

    /// A body that is made piece by piece, as the client takes it. Pieces are asked for until there
    /// is enough to send, and leave together; one that takes its time delays those before it. An
    /// iterator that gives nothing but empty pieces is taken for broken.
    ///
    /// An error ends the connection, so that the client does not take the body for whole.
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

    /// The same with a known length. The connection ends with an error if the pieces have another.
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
