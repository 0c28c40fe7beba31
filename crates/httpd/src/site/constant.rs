//! Responses that are the same for every request.

use std::sync::Arc;

use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderMap, Version};

use crate::site::any_response::{AnyResponse, Response};
use crate::site::handler::{Answer, BodySink, Handler};
use crate::site::head::Head;

/// Returns a handler that gives the same response to every request. The server makes it once, so it costs no
/// more than a small file.
///
/// ```
/// use evring_httpd::handlers::constant;
/// use evring_httpd::Server;
///
/// let hello = constant("text/plain; charset=utf-8", "Hello, World!\n");
/// let server = Server::builder().route("/hello", hello);
/// ```
pub fn constant(content_type: &'static str, body: impl Into<Bytes>) -> impl Handler {
    Constant { content_type, body: body.into() }
}

struct Constant {
    content_type: &'static str,
    body: Bytes,
}

impl Constant {
    fn response(&self) -> AnyResponse {
        AnyResponse::plain(Some(self.content_type), self.body.clone())
    }
}

impl Handler for Constant {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Unread::answer(&head, self.response().into())
    }

    fn handle_head(&self, _: &Head<'_>) -> Option<AnyResponse> {
        Some(self.response())
    }

    fn constant(&self) -> Option<(&'static str, Bytes)> {
        Some((self.content_type, self.body.clone()))
    }
}

/// The response after a body that is not used.
pub(crate) struct Unread(Response);

impl Unread {
    /// Answers a request whose body is not used: at once if its client asks before it sends the body (RFC 9110,
    /// section 10.1.1).
    pub(crate) fn answer(head: &Parts, response: Response) -> Answer {
        match head.headers.contains_key(EXPECT) && head.version == Version::HTTP_11 {
            true => Answer::Respond(response),
            false => Answer::Receive(Box::new(Unread(response))),
        }
    }
}

impl BodySink for Unread {
    fn data(&mut self, _: &[u8]) -> Option<Response> {
        None
    }

    fn end(self: Box<Self>, _: HeaderMap) -> Response {
        self.0
    }
}
