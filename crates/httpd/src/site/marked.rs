//! Handlers that get what they do not ask for themselves.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::request::Parts;

use crate::site::any_response::AnyResponse;
use crate::site::handler::{Answer, Handler};
use crate::site::head::Head;

/// A handler with other answers to [`Handler::sheds_if_late`] and [`Handler::wants_client_info`].
pub(crate) struct Marked<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) sheds_if_late: bool,
    pub(crate) wants_client_info: bool,
}

impl<H: Handler> Marked<H> {
    /// Takes the answers of the handler.
    pub(crate) fn new(handler: H) -> Self {
        let sheds_if_late = handler.sheds_if_late();
        let wants_client_info = handler.wants_client_info();
        Marked { handler: Arc::new(handler), sheds_if_late, wants_client_info }
    }
}

impl<H: Handler> Handler for Marked<H> {
    fn handle(self: Arc<Self>, head: Parts) -> Answer {
        Arc::clone(&self.handler).handle(head)
    }

    fn handle_without_body(&self, head: Parts) -> ControlFlow<AnyResponse, Parts> {
        self.handler.handle_without_body(head)
    }

    fn handle_head(&self, head: &Head<'_>) -> Option<AnyResponse> {
        self.handler.handle_head(head)
    }

    fn sheds_if_late(&self) -> bool {
        self.sheds_if_late
    }

    fn wants_client_info(&self) -> bool {
        self.wants_client_info
    }
}
