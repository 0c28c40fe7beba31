//! Parameters in paths.

use std::sync::Arc;

/// The segments of a path for which a route has names such as `{id}`, in the extensions of the request.
/// [`param`] returns one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathParams(pub(crate) Vec<(Arc<str>, String)>);

impl PathParams {
    /// Returns the decoded segment with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| **other == *name).map(|(_, value)| &**value)
    }
}

/// Returns the decoded segment of a request's path for which the route has `{name}`.
///
/// ```
/// use evring_httpd::handlers::param;
/// use evring_httpd::{Request, Server};
///
/// let greet = |request: Request| format!("Hello, {}!\n", param(&request, "name").unwrap_or_default());
/// let server = Server::builder().route("/hello/{name}", greet);
/// ```
pub fn param<'r, B>(request: &'r http::Request<B>, name: &str) -> Option<&'r str> {
    request.extensions().get::<PathParams>()?.get(name)
}
