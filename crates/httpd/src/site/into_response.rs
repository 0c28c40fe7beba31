//! Values that handlers return as responses.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;

use crate::site::reply::{Reply, Response};

/// A value that a closure can return as its response.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    note = "responses are text, bytes, `Response`, `StatusCode`, a pair of `StatusCode` and a response, \
            and results of two responses"
)]
pub trait IntoResponse {
    /// Converts the value into a response.
    fn into_response(self) -> Response;

    /// Converts the value into a response that is cheaper to send, if there is one.
    fn into_reply(self) -> Reply
    where
        Self: Sized,
    {
        self.into_response().into()
    }
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        self.into()
    }

    fn into_reply(self) -> Reply {
        self
    }
}

/// Implements the trait for types that implement `into_reply`.
macro_rules! by_reply {
    ([$($parameter:ident),*] $type:ty: $value:pat => $reply:expr) => {
        impl<$($parameter: IntoResponse),*> IntoResponse for $type {
            fn into_response(self) -> Response {
                self.into_reply().into()
            }

            fn into_reply(self) -> Reply {
                let $value = self;
                $reply
            }
        }
    };
}

const TEXT: Option<&str> = Some("text/plain; charset=utf-8");
const BYTES: Option<&str> = Some("application/octet-stream");

by_reply!([] &'static str: text => Reply::plain(TEXT, text.into()));
by_reply!([] String: text => Reply::plain(TEXT, text.into()));
by_reply!([] &'static [u8]: bytes => Reply::plain(BYTES, bytes.into()));
by_reply!([] Vec<u8>: bytes => Reply::plain(BYTES, bytes.into()));
by_reply!([] Bytes: bytes => Reply::plain(BYTES, bytes));
by_reply!([] StatusCode: status => Reply::plain(None, Bytes::new()).with_status(status));
by_reply!([] Cow<'static, str>: text => match text {
    Cow::Borrowed(text) => text.into_reply(),
    Cow::Owned(text) => text.into_reply(),
});
by_reply!([R] (StatusCode, R): (status, reply) => reply.into_reply().with_status(status));
by_reply!([R, E] Result<R, E>: result => match result {
    Ok(reply) => reply.into_reply(),
    Err(reply) => reply.into_reply(),
});
