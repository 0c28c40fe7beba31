//! Responses as handlers make them: many have only a status, a type and bytes.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::site::response_body::Body;

/// A response.
pub type Response<T = Body> = http::Response<T>;

/// A response that has not been converted to the types of `http`, unless it needs them.
#[derive(Debug)]
pub struct Reply(pub(crate) ReplyKind);

#[derive(Debug)]
pub(crate) enum ReplyKind {
    Plain(PlainReply),
    Full(Response),
}

/// A response without further fields.
#[derive(Debug)]
pub(crate) struct PlainReply {
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn plain(content_type: Option<&'static str>, body: Bytes) -> Self {
        Reply(ReplyKind::Plain(PlainReply { status: StatusCode::OK, content_type, body }))
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        match &mut self.0 {
            ReplyKind::Plain(reply) => reply.status = status,
            ReplyKind::Full(response) => *response.status_mut() = status,
        }
        self
    }
}

impl From<Response> for Reply {
    fn from(response: Response) -> Self {
        Reply(ReplyKind::Full(response))
    }
}

impl From<Reply> for Response {
    fn from(reply: Reply) -> Response {
        match reply.0 {
            ReplyKind::Full(response) => response,
            ReplyKind::Plain(PlainReply { status, content_type, body }) => {
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
