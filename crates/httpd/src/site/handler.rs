//! Request handlers.

use std::fmt;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Method};

use crate::message::status::Status;
use crate::site::any_response::{AnyResponse, Response};
use crate::site::head::Head;
use crate::site::into_response::IntoResponse;
use crate::site::request_body::RequestBody;

/// A request with its complete body.
pub type Request<T = Bytes> = http::Request<T>;

/// Answers requests.
///
/// Every closure from a complete [`Request`] to a type that implements [`IntoResponse`] is a handler.
/// All workers share one handler and call it concurrently. A call runs on the worker's thread, so it
/// must not block, for example on a database or a lock: it would delay the worker's other connections.
/// [`IntoHandler`](crate::handlers::IntoHandler) lists the handlers that may wait: asynchronous ones, and those that
/// answer later through a [`Responder`](crate::handlers::Responder). [`Pool`](crate::handlers::Pool) has threads for calls that
/// block.
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
/// use evring_httpd::body::BodySink;
/// use evring_httpd::handlers::{Answer, Handler};
/// use evring_httpd::{IntoResponse, Response, Server};
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
    fn handle_without_body(&self, head: Parts) -> ControlFlow<AnyResponse, Parts> {
        ControlFlow::Continue(head)
    }

    /// Answers a request without a body by its head alone, before the head is converted. The default returns
    /// `None`, and the server calls the other methods. Not called for a route with parameters.
    fn handle_head(&self, head: &Head<'_>) -> Option<AnyResponse> {
        let _ = head;
        None
    }

    /// Returns the Content-Type and the bytes of a handler that gives the same response to every request
    /// without a body. The server then makes the response once, and calls nothing.
    fn constant(&self) -> Option<(&'static str, Bytes)> {
        None
    }

    /// As [`Handler::constant`], for the requests with this method.
    fn constant_for(&self, method: &Method) -> Option<(&'static str, Bytes)> {
        let _ = method;
        self.constant()
    }

    /// Returns whether a call costs far more than a connection does. See [`shed_if_late`](crate::handlers::shed_if_late).
    fn sheds_if_late(&self) -> bool {
        false
    }

    /// Returns whether the handler needs to know its client: a [`ClientAddr`](crate::handlers::ClientAddr) in the extensions
    /// of the request and, with TLS, a `TlsInfo`. It costs a system call for each connection, and
    /// allocations for each request.
    fn wants_client_info(&self) -> bool {
        false
    }
}

/// The result of [`Handler::handle`].
pub enum Answer {
    /// A response. If a body is still arriving, it is discarded and the connection is closed.
    Respond(Response),
    /// The sink for the body, which may be empty.
    Receive(Box<dyn BodySink>),
    /// A future that receives the body and returns the response; [`Answer::wait`] creates it.
    Wait(Wait),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Respond(response) => f.debug_tuple("Respond").field(response).finish(),
            Answer::Receive(_) => f.write_str("Receive(..)"),
            Answer::Wait(wait) => wait.fmt(f),
        }
    }
}

/// The future of a handler that waits.
pub struct Wait(Box<dyn FnOnce(RequestBody) -> ResponseFuture>);

/// The response of a handler that waits, or the status that the server answers with.
pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = Result<AnyResponse, Status>>>>;

impl Answer {
    /// Waits for a response: `start` gets the body and returns a future. The worker polls the future on its
    /// own thread, and drops it when the client has gone or after
    /// [`Limits::handler_timeout`](crate::options::Limits::handler_timeout).
    pub fn wait<R: IntoResponse, F: Future<Output = R> + 'static>(
        start: impl FnOnce(RequestBody) -> F + 'static,
    ) -> Self {
        Answer::of(|body| {
            let future = start(body);
            async { Ok(future.await.into_any()) }
        })
    }

    pub(crate) fn of<F: Future<Output = Result<AnyResponse, Status>> + 'static>(
        start: impl FnOnce(RequestBody) -> F + 'static,
    ) -> Self {
        Answer::Wait(Wait::new(start))
    }
}

impl Wait {
    pub(crate) fn new<F: Future<Output = Result<AnyResponse, Status>> + 'static>(
        start: impl FnOnce(RequestBody) -> F + 'static,
    ) -> Self {
        Wait(Box::new(|body| Box::pin(start(body))))
    }

    pub(crate) fn start(self, body: RequestBody) -> ResponseFuture {
        (self.0)(body)
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wait")
    }
}

/// Receives a request's body.
pub trait BodySink {
    /// Takes the next bytes. Returning a response ends the upload early and closes the connection.
    fn data(&mut self, bytes: &[u8]) -> Option<Response>;

    /// Returns the bytes of memory held for the body. The sum over all requests of a worker is
    /// bounded by [`Limits::max_body_memory`](crate::options::Limits::max_body_memory). The default, 0, suits a
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

    fn handle_without_body(&self, head: Parts) -> ControlFlow<AnyResponse, Parts> {
        ControlFlow::Break(self(Request::from_parts(head, Bytes::new())).into_any())
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
