//! JSON in requests and responses.

use std::error::Error;
use std::fmt;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::error;

use crate::site::any_response::Response;
use crate::site::handler::Request;
use crate::site::into_response::IntoResponse;

/// A value as a JSON response. One that cannot be serialized gives 500, and the reason is logged.
///
/// ```
/// use evring_httpd::handlers::{Json, JsonError, from_json};
/// use evring_httpd::{Request, Server, post};
///
/// let sum = |request: Request| -> Result<_, JsonError> {
///     let numbers: Vec<i64> = from_json(&request)?;
///     Ok(Json(numbers.iter().sum::<i64>()))
/// };
/// let server = Server::builder().route("/sum", post(sum));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => {
                let mut response = Response::new(bytes.into());
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
                response
            }
            Err(reason) => {
                error!("cannot serialize a response: {reason}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// Returns the value of a request's JSON body.
///
/// # Errors
/// The Content-Type is not JSON (415), or the body is not a value of this type (400).
pub fn from_json<T: DeserializeOwned>(request: &Request) -> Result<T, JsonError> {
    if !is_json(request.headers()) {
        return Err(JsonError::ContentType);
    }
    serde_json::from_slice(request.body()).map_err(JsonError::Value)
}

/// Returns whether the Content-Type is `application/json`, or a type that ends in `+json`.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    let essence = essence.to_ascii_lowercase();
    essence == b"application/json"
        || essence.starts_with(b"application/") && essence.ends_with(b"+json")
}

/// The reason why a request has no JSON value of the expected type. As a response, it is 415 or 400 with
/// the reason as text.
#[derive(Debug)]
#[non_exhaustive]
pub enum JsonError {
    /// The Content-Type is not JSON.
    ContentType,
    /// The body is not JSON, or its value has another type.
    Value(serde_json::Error),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::ContentType => f.write_str("expected the Content-Type application/json"),
            JsonError::Value(reason) => write!(f, "unexpected JSON: {reason}"),
        }
    }
}

impl Error for JsonError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            JsonError::ContentType => None,
            JsonError::Value(reason) => Some(reason),
        }
    }
}

impl IntoResponse for JsonError {
    fn into_response(self) -> Response {
        let status = match self {
            JsonError::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            JsonError::Value(_) => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}
