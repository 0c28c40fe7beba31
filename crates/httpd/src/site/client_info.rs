//! The client of a request, for its handler.

use std::net::SocketAddr;

use evring::{Commands, Cx};
#[cfg(feature = "tls")]
use evring_tls::{ServerSession, TlsInfo};
use http::Extensions;

use crate::site::context::Context;
use crate::site::handler::Handler;
use crate::site::into_handler::IntoHandler;
use crate::site::marked::Marked;
use crate::site::state::State;

/// The address of a client, in the extensions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub SocketAddr);

/// Wraps a handler that needs to know its client: its requests have a [`ClientAddr`] in their extensions and, with
/// TLS, a `TlsInfo`. Handlers that wait have both without this.
///
/// ```
/// use evring_httpd::handlers::{ClientAddr, with_client_info};
/// use evring_httpd::{Request, Server};
///
/// let address = with_client_info(|request: Request| {
///     request.extensions().get::<ClientAddr>().map_or(String::new(), |client| client.0.to_string())
/// });
/// let server = Server::builder().route("/address", address);
/// ```
pub fn with_client_info<K>(handler: impl IntoHandler<K>) -> impl Handler {
    Marked { wants_client_info: true, ..Marked::new(handler.into_handler()) }
}

/// Adds what is known about a connection's client to the extensions of its request.
pub(crate) fn add(
    context: &Context,
    x: &mut Cx<'_, impl Commands, State>,
    extensions: &mut Extensions,
) {
    if let Some(address) = context.client_addr(x) {
        extensions.insert(ClientAddr(address));
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = tls_info(x) {
        extensions.insert(tls);
    }
}

/// Returns whether a connection's TLS handshake has not ended.
#[cfg(feature = "tls")]
pub(crate) fn is_handshaking(x: &Cx<'_, impl Commands, State>) -> bool {
    let session = x.io.session(x.id).and_then(|session| session.downcast_ref::<ServerSession>());
    session.is_some_and(|session| session.connection().is_handshaking())
}

/// Returns the details of a connection's TLS, which are collected once.
#[cfg(feature = "tls")]
fn tls_info(x: &mut Cx<'_, impl Commands, State>) -> Option<TlsInfo> {
    let session = x.io.session(x.id)?.downcast_ref::<ServerSession>()?;
    let known = &mut x.state.observed.get_or_insert_default().tls;
    if known.is_none() {
        *known = session.info();
    }
    known.clone()
}
