//! Values that handlers return as responses.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;

use crate::site::response_body::Body;

/// A response.
pub type Response<T = Body> = http::Response<T>;

/// A value that a closure can return as its response.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    note = "responses are text, bytes, `Response`, `StatusCode`, a pair of `StatusCode` and a response, \
            and results of two responses"
)]
pub trait IntoResponse {
    /// Converts the value into a response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for Cow<'static, str> {
    fn into_response(self) -> Response {
        match self {
            Cow::Borrowed(text) => text.into_response(),
            Cow::Owned(text) => text.into_response(),
        }
    }
}

impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() = self;
        response
    }
}

impl<R: IntoResponse> IntoResponse for (StatusCode, R) {
    fn into_response(self) -> Response {
        let mut response = self.1.into_response();
        *response.status_mut() = self.0;
        response
    }
}

impl<R: IntoResponse, E: IntoResponse> IntoResponse for Result<R, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(response) => response.into_response(),
            Err(response) => response.into_response(),
        }
    }
}

/// Creates a response with a Content-Type.
fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    response
}

macro_rules! impl_into_response {
    ($content_type:literal: $($type:ty),*) => {$(
        impl IntoResponse for $type {
            fn into_response(self) -> Response {
                typed($content_type, self.into())
            }
        }
    )*};
}

impl_into_response!("text/plain; charset=utf-8": &'static str, String);
impl_into_response!("application/octet-stream": &'static [u8], Vec<u8>, Bytes);
