//! Responses that any thread gives later.

use crate::site::any_response::Response;
use crate::site::into_response::IntoResponse;
use crate::site::oneshot::{Receiver, Sender, oneshot};

/// Answers a request later, from any thread, once. Dropping it answers with 500.
///
/// ```compile_fail,E0382
/// fn twice(responder: evring_httpd::handlers::Responder) {
///     responder.respond("one");
///     responder.respond("two"); // the first response has consumed the responder
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it answers with 500"]
pub struct Responder(Sender<Response>);

impl Responder {
    /// Answers. Returns false if the response is not sent, as the client has gone or the time of
    /// [`Limits::handler_timeout`](crate::options::Limits::handler_timeout) is over.
    pub fn respond(self, response: impl IntoResponse) -> bool {
        self.0.send(response.into_response()).is_ok()
    }

    /// Returns whether a response would not be sent, so that the work for it can end.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_closed()
    }
}

/// Creates a responder, and the future of its response, which is `None` if the responder is dropped.
pub(crate) fn deferred() -> (Responder, Receiver<Response>) {
    let (sender, response) = oneshot();
    (Responder(sender), response)
}
