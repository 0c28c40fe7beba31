//! The functions that are handlers.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::request::Parts;

use crate::message::status::Status;
use crate::site::any_response::AnyResponse;
use crate::site::constant::Unread;
use crate::site::deferred::{Responder, deferred};
use crate::site::handler::{Answer, Handler, Request};
use crate::site::head::Head;
use crate::site::into_response::IntoResponse;
use crate::site::request_body::RequestBody;

/// A [`Handler`], or a function that can be one.
///
/// | function | |
/// |---|---|
/// | `Fn(Request) -> impl IntoResponse` | answers at once |
/// | `async Fn(Request) -> impl IntoResponse` | gets the complete body, and may wait |
/// | `async Fn(http::Request<RequestBody>) -> impl IntoResponse` | receives the body itself |
/// | `Fn(Request, Responder)` | answers later, from any thread |
/// | `Fn() -> impl IntoResponse`, `Fn(&Head<'_>) -> impl IntoResponse` | answers at once, and costs the least: the request is not converted |
///
/// `K` tells these apart; the compiler infers it. A handler that waits runs on its worker's thread, so it must
/// not block. If its client goes, its future is dropped; see [`Limits::half_close`](crate::options::Limits::half_close).
/// The next request of a connection waits for the response. The requests of handlers that wait have a
/// [`ClientAddr`](crate::handlers::ClientAddr) in their extensions and, with TLS, a `TlsInfo`;
/// [`with_client_info`](crate::handlers::with_client_info) adds them for other handlers.
///
/// | a handler that | gives |
/// |---|---|
/// | does not answer within [`Limits::handler_timeout`](crate::options::Limits::handler_timeout) | 503 |
/// | panics | 500 |
/// | drops its [`Responder`] | 500 |
///
/// ```
/// use evring_httpd::handlers::Responder;
/// use evring_httpd::{Request, Server};
///
/// async fn wait(_: Request) -> &'static str {
///     std::future::ready(()).await;
///     "Hello, World!\n"
/// }
///
/// let later = |_: Request, responder: Responder| {
///     std::thread::spawn(|| responder.respond("Hello, World!\n"));
/// };
/// let server = Server::builder().route("/wait", wait).route("/later", later);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not one of the functions that are handlers; the return type must be `IntoResponse`",
    note = "a handler is one of\n\
            - `Fn(Request) -> impl IntoResponse`\n\
            - `async Fn(Request) -> impl IntoResponse`\n\
            - `async Fn(Request<RequestBody>) -> impl IntoResponse`\n\
            - `Fn(Request, Responder)`, which is not `async`: it returns at once, and responds later\n\
            - `Fn(&Head<'_>) -> impl IntoResponse`\n\
            - `Fn() -> impl IntoResponse`\n\
            - a type that implements `Handler`, or, with the feature `tower`, a `Service`",
    note = "the return type must be `IntoResponse`, and the types of a closure's parameters be annotated, as in \
            `|_: Request| \"text\"`"
)]
pub trait IntoHandler<K> {
    /// Returns the handler.
    fn into_handler(self) -> impl Handler;
}

/// The kinds of handlers, which [`IntoHandler`] tells apart.
#[allow(missing_debug_implementations, reason = "they have no values")]
pub mod kind {
    /// A [`Handler`](crate::handlers::Handler).
    pub enum Itself {}
    /// An asynchronous function from a complete request.
    pub enum Async {}
    /// An asynchronous function that receives the body itself.
    pub enum Streaming {}
    /// A function that gets a [`Responder`](crate::handlers::Responder).
    pub enum Deferred {}
    /// A function of a head.
    pub enum OfHead {}
    /// A function without parameters.
    pub enum Unconditional {}
}

impl<H: Handler> IntoHandler<kind::Itself> for H {
    fn into_handler(self) -> impl Handler {
        self
    }
}

impl<F, T> IntoHandler<kind::Async> for F
where
    F: Fn(Request) -> T + Send + Sync + 'static,
    T: Future<Output: IntoResponse> + 'static,
{
    fn into_handler(self) -> impl Handler {
        let handler = Arc::new(self);
        WaitingHandler(move |head, body: RequestBody| {
            let handler = Arc::clone(&handler);
            async move {
                let body = body.bytes().await.map_err(|_| Status::BAD_REQUEST)?;
                Ok(handler(Request::from_parts(head, body)).await.into_any())
            }
        })
    }
}

impl<F, T> IntoHandler<kind::Streaming> for F
where
    F: Fn(Request<RequestBody>) -> T + Send + Sync + 'static,
    T: Future<Output: IntoResponse> + 'static,
{
    fn into_handler(self) -> impl Handler {
        WaitingHandler(move |head, body| {
            let response = self(Request::from_parts(head, body));
            async { Ok(response.await.into_any()) }
        })
    }
}

impl<F: Fn(Request, Responder) + Send + Sync + 'static> IntoHandler<kind::Deferred> for F {
    fn into_handler(self) -> impl Handler {
        let handler = Arc::new(self);
        WaitingHandler(move |head, body: RequestBody| {
            let handler = Arc::clone(&handler);
            async move {
                let body = body.bytes().await.map_err(|_| Status::BAD_REQUEST)?;
                let (responder, response) = deferred();
                handler(Request::from_parts(head, body), responder);
                response.await.map(AnyResponse::from).ok_or(Status::INTERNAL)
            }
        })
    }
}

impl<F, R> IntoHandler<kind::OfHead> for F
where
    F: Fn(&Head<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    fn into_handler(self) -> impl Handler {
        HeadHandler(move |head: &Head<'_>| self(head).into_any())
    }
}

impl<F, R> IntoHandler<kind::Unconditional> for F
where
    F: Fn() -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    fn into_handler(self) -> impl Handler {
        HeadHandler(move |_: &Head<'_>| self().into_any())
    }
}

/// A handler that needs no more than a head. A body is received and not used.
struct HeadHandler<F>(F);

impl<F: Fn(&Head<'_>) -> AnyResponse + Send + Sync + 'static> Handler for HeadHandler<F> {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        let response = (self.0)(&Head::of(&head));
        Unread::answer(&head, response.into())
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<AnyResponse, Parts> {
        ControlFlow::Break((self.0)(&Head::of(&head)))
    }

    fn handle_head(&self, head: &Head<'_>) -> Option<AnyResponse> {
        Some((self.0)(head))
    }
}

/// A handler that waits: a function from a request to the future of its response.
pub(crate) struct WaitingHandler<F>(pub(crate) F);

impl<F, T> Handler for WaitingHandler<F>
where
    F: Fn(Parts, RequestBody) -> T + Send + Sync + 'static,
    T: Future<Output = Result<AnyResponse, Status>> + 'static,
{
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Answer::of(move |body| (self.0)(head, body))
    }

    fn wants_client_info(&self) -> bool {
        true
    }
}
