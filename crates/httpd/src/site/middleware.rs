//! Functions around handlers.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;

use crate::message::status::Status;
use crate::site::any_response::{AnyResponse, Response};
use crate::site::handler::{Answer, Handler, Request, ResponseFuture};
use crate::site::into_handler::IntoHandler;
use crate::site::into_response::IntoResponse;
use crate::site::request_body::RequestBody;

/// The handler inside a function that [`wrap`] puts around it.
#[derive(Clone)]
#[must_use]
pub struct Next(Arc<dyn Handler>);

impl Next {
    /// Calls the handler. A dropped responder, and a body that does not arrive, give a response, too.
    pub async fn run(self, request: Request<RequestBody>) -> Response {
        let response = call(self.0, request).await;
        response.map(Response::from).unwrap_or_else(|Status(code, _)| {
            StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response()
        })
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// Puts a function around a handler. It may change the request and the response, or answer itself.
///
/// ```
/// use std::time::Instant;
///
/// use evring_httpd::body::RequestBody;
/// use evring_httpd::handlers::{Next, wrap};
/// use evring_httpd::{Request, Server};
///
/// let logged = wrap(|_: Request| "Hello, World!\n", |request: Request<RequestBody>, next: Next| async {
///     let (start, line) = (Instant::now(), format!("{} {}", request.method(), request.uri()));
///     let response = next.run(request).await;
///     println!("{line} {} in {:?}", response.status(), start.elapsed());
///     response
/// });
/// let server = Server::builder().route("/", logged);
/// ```
pub fn wrap<K, R: IntoResponse, T: Future<Output = R> + 'static>(
    handler: impl IntoHandler<K>,
    function: impl Fn(Request<RequestBody>, Next) -> T + Send + Sync + 'static,
) -> impl Handler {
    Around::new(function).wrap(Arc::new(handler.into_handler()))
}

/// A function around handlers.
#[derive(Clone)]
pub(crate) struct Around(Arc<dyn Fn(Request<RequestBody>, Next) -> ResponseFuture + Send + Sync>);

impl Around {
    pub(crate) fn new<R: IntoResponse, T: Future<Output = R> + 'static>(
        function: impl Fn(Request<RequestBody>, Next) -> T + Send + Sync + 'static,
    ) -> Self {
        Around(Arc::new(move |request, next| {
            let response = function(request, next);
            Box::pin(async { Ok(response.await.into_any()) })
        }))
    }

    pub(crate) fn wrap(&self, inner: Arc<dyn Handler>) -> Wrapped {
        Wrapped { function: self.clone(), inner }
    }
}

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Around")
    }
}

/// A handler with a function around it.
pub(crate) struct Wrapped {
    function: Around,
    inner: Arc<dyn Handler>,
}

impl Handler for Wrapped {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Answer::of(move |body| {
            (self.function.0)(Request::from_parts(head, body), Next(Arc::clone(&self.inner)))
        })
    }

    fn sheds_if_late(&self) -> bool {
        self.inner.sheds_if_late()
    }

    fn wants_client_info(&self) -> bool {
        true
    }
}

/// Calls a handler of any kind with a request whose body may still arrive.
async fn call(
    handler: Arc<dyn Handler>,
    request: Request<RequestBody>,
) -> Result<AnyResponse, Status> {
    let (head, mut body) = request.into_parts();
    match handler.handle(head) {
        Answer::Respond(response) => Ok(response.into()),
        Answer::Wait(wait) => wait.start(body).await,
        Answer::Receive(mut sink) => {
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(|_| Status::BAD_REQUEST)?;
                if let Some(response) = sink.data(&piece) {
                    return Ok(response.into());
                }
                body.hold(sink.held_bytes());
            }
            Ok(sink.end(body.trailers().unwrap_or_default()).into())
        }
    }
}
