//! Handlers that are called only for clients that still wait.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::request::Parts;

use crate::site::handler::{Answer, Handler};
use crate::site::head::Head;
use crate::site::into_handler::IntoHandler;
use crate::site::reply::Reply;

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
pub fn shed_if_late<K>(handler: impl IntoHandler<K>) -> impl Handler {
    ShedIfLate(Arc::new(handler.into_handler()))
}

struct ShedIfLate<H>(Arc<H>);

impl<H: Handler> Handler for ShedIfLate<H> {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Arc::clone(&self.0).handle(head)
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<Reply, Parts> {
        self.0.handle_without_body(head)
    }

    fn handle_head(&self, head: &Head<'_>) -> Option<Reply> {
        self.0.handle_head(head)
    }

    fn sheds_if_late(&self) -> bool {
        true
    }

    fn wants_client_info(&self) -> bool {
        self.0.wants_client_info()
    }
}
