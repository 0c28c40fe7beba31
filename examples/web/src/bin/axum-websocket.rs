//! A router of axum with a WebSocket: a chat with oneself, whose lines come back in capitals. The framing is that of
//! tungstenite.

use std::io::Write;

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use async_tungstenite::tungstenite::{Error as WebSocketError, Message};
use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::header::{ALLOW, CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evring_httpd::handlers::{Upgraded, upgrade};
use evring_httpd::{Error, Server};
use futures_lite::StreamExt;

/// Maximum bytes of a message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The version of the protocol.
const VERSION: &str = "13";

/// An extractor of requests for a WebSocket (RFC 6455, section 4.2.1).
#[derive(Debug)]
struct WebSocketRequest {
    accept: HeaderValue,
}

/// Returns whether a key is one: 16 bytes in base64 (RFC 6455, section 4.2.1).
fn is_key(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    key.strip_suffix(b"==").is_some_and(|digits| digits.len() == 22 && digits.iter().all(is_digit))
}

/// Returns whether a field has an option, such as `Connection: keep-alive, Upgrade`.
fn has(fields: &HeaderMap, name: &HeaderName, option: &str) -> bool {
    let values = fields.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|text| text.trim().eq_ignore_ascii_case(option))
}

impl<S: Sync> FromRequestParts<S> for WebSocketRequest {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        if parts.method != Method::GET {
            return Err((StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET")]).into_response());
        }
        let fields = &parts.headers;
        if !has(fields, &CONNECTION, "upgrade") || !has(fields, &UPGRADE, "websocket") {
            return Err(upgrade_required("this is a WebSocket\n"));
        }
        if fields.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
            return Err(upgrade_required("expected version 13 of WebSocket\n"));
        }
        let invalid = || (StatusCode::BAD_REQUEST, "expected a valid key\n").into_response();
        let key = fields.get(SEC_WEBSOCKET_KEY).filter(|key| is_key(key.as_bytes()));
        let key = key.ok_or_else(invalid)?;
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
        Ok(WebSocketRequest { accept: accept.map_err(|_| invalid())? })
    }
}

/// Tells a client what to switch to (RFC 9110, section 15.5.22), and by which version (RFC 6455, section 4.4).
fn upgrade_required(text: &'static str) -> Response {
    let fields = [(UPGRADE, "websocket"), (SEC_WEBSOCKET_VERSION, VERSION)];
    (StatusCode::UPGRADE_REQUIRED, fields, text).into_response()
}

impl WebSocketRequest {
    /// Switches the connection, and calls `run` with its messages.
    fn accept<T>(
        self,
        run: impl FnOnce(WebSocketStream<Upgraded>) -> T + Send + 'static,
    ) -> Response
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let mut response: Response = upgrade("websocket", move |connection| async move {
            let mut config = WebSocketConfig::default();
            config.max_message_size = Some(MAX_MESSAGE_BYTES);
            config.max_frame_size = Some(MAX_MESSAGE_BYTES);
            let socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(config));
            run(socket.await).await;
        });
        let name = HeaderName::from_static("sec-websocket-accept");
        response.headers_mut().insert(name, self.accept);
        response
    }
}

/// Sends each text back in capitals until the client closes.
async fn chat(mut socket: WebSocketStream<Upgraded>) -> Result<(), WebSocketError> {
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => socket.send(text.to_uppercase().into()).await?,
            message @ Message::Binary(_) => socket.send(message).await?,
            // The library answers them; the stream ends behind a closing message.
            _ => {}
        }
    }
    Ok(())
}

fn router() -> Router {
    let socket = async |request: WebSocketRequest| {
        request.accept(|socket| async move {
            if let Err(error) = chat(socket).await {
                let _ = writeln!(std::io::stderr(), "a WebSocket ended: {error}");
            }
        })
    };
    Router::new().route("/", get("connect to /chat with a WebSocket\n")).route("/chat", get(socket))
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let backend = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let server =
        Server::builder().listen(address).backend(&backend).route("/", router()).start()?;
    println!("listening on http://{}", server.addresses()[0]);
    server.wait_until_signal()
}
