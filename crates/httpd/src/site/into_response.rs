//! Values that handlers return as responses.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::site::any_response::{AnyResponse, Response};

/// A value that a closure can return as its response.
///
/// ```
/// use evring_httpd::http::{HeaderMap, HeaderValue, StatusCode, header};
/// use evring_httpd::{IntoResponse, Request, Server};
///
/// let moved = |_: Request| {
///     let mut fields = HeaderMap::new();
///     fields.insert(header::LOCATION, HeaderValue::from_static("/new"));
///     (StatusCode::PERMANENT_REDIRECT, fields, "It is at /new.\n")
/// };
/// let response = moved(Request::default()).into_response();
/// assert_eq!(response.status(), 308);
/// assert_eq!(response.headers()["location"], "/new");
/// let server = Server::builder().route("/old", moved);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    note = "responses are text, bytes, `Response`, `StatusCode`, a pair of `StatusCode` and a response, \
            the same with a `HeaderMap` between them, and results of two responses"
)]
pub trait IntoResponse {
    /// Converts the value into a response.
    fn into_response(self) -> Response;

    /// Converts the value into a response that is cheaper to send, if there is one.
    fn into_any(self) -> AnyResponse
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

impl IntoResponse for AnyResponse {
    fn into_response(self) -> Response {
        self.into()
    }

    fn into_any(self) -> AnyResponse {
        self
    }
}

/// Implements the trait for types that implement `into_any`.
macro_rules! into_response {
    ([$($parameter:ident),*] $type:ty: $value:pat => $response:expr) => {
        impl<$($parameter: IntoResponse),*> IntoResponse for $type {
            fn into_response(self) -> Response {
                self.into_any().into()
            }

            fn into_any(self) -> AnyResponse {
                let $value = self;
                $response
            }
        }
    };
}

const TEXT: Option<&str> = Some("text/plain; charset=utf-8");
const BYTES: Option<&str> = Some("application/octet-stream");

into_response!([] &'static str: text => AnyResponse::plain(TEXT, text.into()));
into_response!([] String: text => AnyResponse::plain(TEXT, text.into()));
into_response!([] &'static [u8]: bytes => AnyResponse::plain(BYTES, bytes.into()));
into_response!([] Vec<u8>: bytes => AnyResponse::plain(BYTES, bytes.into()));
into_response!([] Bytes: bytes => AnyResponse::plain(BYTES, bytes));
into_response!([] StatusCode: status => AnyResponse::plain(None, Bytes::new()).with_status(status));
into_response!([] Cow<'static, str>: text => match text {
    Cow::Borrowed(text) => text.into_any(),
    Cow::Owned(text) => text.into_any(),
});
into_response!([R] (StatusCode, R): (status, response) => response.into_any().with_status(status));
// The fields replace those of the response that have the same name.
into_response!([R] (StatusCode, HeaderMap, R): (status, fields, response) => {
    let mut response = response.into_response();
    *response.status_mut() = status;
    response.headers_mut().extend(fields);
    response.into()
});
into_response!([R, E] Result<R, E>: result => match result {
    Ok(response) => response.into_any(),
    Err(response) => response.into_any(),
});
