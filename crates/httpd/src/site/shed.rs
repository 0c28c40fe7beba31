//! Handlers that are called only for clients that still wait.

use crate::site::handler::Handler;
use crate::site::into_handler::IntoHandler;
use crate::site::marked::Marked;

/// Wraps a handler, so that under overload it is called only for clients that still wait.
///
/// Late requests get 503 with Retry-After; if the client has given up, its connection is reset.
/// Do not wrap fast handlers: a 503 costs almost as much as a short response.
/// [`Config::admission`](evring::Config::admission) defines the maximum delay; the mechanism `tokio` has none. In a route
/// with several methods, what holds for one handler holds for all.
///
/// ```
/// use evring_httpd::handlers::shed_if_late;
/// use evring_httpd::{Request, Server};
///
/// let report = |_: Request| (0..10_000_000u64).sum::<u64>().to_string();
/// let server = Server::builder().route("/report", shed_if_late(report));
/// ```
pub fn shed_if_late<K>(handler: impl IntoHandler<K>) -> impl Handler {
    Marked { sheds_if_late: true, ..Marked::new(handler.into_handler()) }
}
