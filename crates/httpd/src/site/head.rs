//! The head of a request, as handlers see it.

use http::request::Parts;

use crate::message::path;
use crate::message::request::RequestHead;
use crate::site::params::PathParams;

/// The head of a request, which is not converted to the types of `http`.
///
/// ```
/// use evring_httpd::http::StatusCode;
/// use evring_httpd::{Head, Server};
///
/// let greet = |head: &Head<'_>| match head.query() {
///     Some(name) => Ok(format!("Hello, {name}!\n")),
///     None => Err(StatusCode::BAD_REQUEST),
/// };
/// let server = Server::builder().route("/greet", greet);
/// ```
#[derive(Debug)]
pub struct Head<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    Parsed(&'a RequestHead<'a>),
    Parts(&'a Parts),
}

impl<'a> Head<'a> {
    pub(crate) fn parsed(request: &'a RequestHead<'a>) -> Self {
        Head(Source::Parsed(request))
    }

    pub(crate) fn of(parts: &'a Parts) -> Self {
        Head(Source::Parts(parts))
    }

    /// Returns the method's name.
    pub fn method(&self) -> &'a str {
        match self.0 {
            Source::Parsed(request) => text(request.name),
            Source::Parts(parts) => parts.method.as_str(),
        }
    }

    /// Returns the path as it arrived. For a route that ends in a slash, a path that could be taken for one outside is in
    /// canonical form.
    pub fn path(&self) -> &'a str {
        match self.0 {
            Source::Parsed(request) => text(split(request).0),
            Source::Parts(parts) => parts.uri.path(),
        }
    }

    /// Returns the text after the question mark, as it arrived.
    pub fn query(&self) -> Option<&'a str> {
        match self.0 {
            Source::Parsed(request) => split(request).1.map(text),
            Source::Parts(parts) => parts.uri.query(),
        }
    }

    /// Returns the value of the first field with this name.
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        match self.0 {
            Source::Parsed(request) => {
                let mut fields = request.fields();
                let found = fields.find(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
                found.map(|(_, value)| value)
            }
            Source::Parts(parts) => parts.headers.get(name).map(|value| value.as_bytes()),
        }
    }

    /// Returns the decoded segment of the path for which the route has `{name}`.
    pub fn param(&self, name: &str) -> Option<&'a str> {
        match self.0 {
            // A request of such a route is converted.
            Source::Parsed(_) => None,
            Source::Parts(parts) => parts.extensions.get::<PathParams>()?.get(name),
        }
    }
}

/// Returns the path and the query of a request that has a route.
fn split<'a>(request: &RequestHead<'a>) -> (&'a [u8], Option<&'a [u8]>) {
    path::split(request.target).unwrap_or((request.target, None))
}

/// Returns bytes as text; method and target of a request are ASCII.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
