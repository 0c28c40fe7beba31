//! Responses as handlers make them: many have only a status, a type and bytes.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::site::response_body::Body;

/// A response.
pub type Response<T = Body> = http::Response<T>;

/// A response that has not been converted to the types of `http`, unless it needs them.
#[derive(Debug)]
pub struct AnyResponse(pub(crate) ResponseKind);

#[derive(Debug)]
pub(crate) enum ResponseKind {
    Plain(PlainResponse),
    Full(Response),
}

/// A response without further fields.
#[derive(Debug)]
pub(crate) struct PlainResponse {
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: Bytes,
}

impl AnyResponse {
    pub(crate) fn plain(content_type: Option<&'static str>, body: Bytes) -> Self {
        AnyResponse(ResponseKind::Plain(PlainResponse {
            status: StatusCode::OK,
            content_type,
            body,
        }))
    }

    /// Returns whether pieces of its body may have to be waited for.
    pub(crate) fn waits(&self) -> bool {
        match &self.0 {
            ResponseKind::Plain(_) => false,
            ResponseKind::Full(response) => response.body().waits(),
        }
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        match &mut self.0 {
            ResponseKind::Plain(response) => response.status = status,
            ResponseKind::Full(response) => *response.status_mut() = status,
        }
        self
    }
}

impl From<Response> for AnyResponse {
    fn from(response: Response) -> Self {
        AnyResponse(ResponseKind::Full(response))
    }
}

impl From<AnyResponse> for Response {
    fn from(response: AnyResponse) -> Response {
        match response.0 {
            ResponseKind::Full(response) => response,
            ResponseKind::Plain(PlainResponse { status, content_type, body }) => {
                let mut response = Response::new(body.into());
                *response.status_mut() = status;
                if let Some(content_type) = content_type {
                    let value = HeaderValue::from_static(content_type);
                    response.headers_mut().insert(CONTENT_TYPE, value);
                }
                response
            }
        }
    }
}
