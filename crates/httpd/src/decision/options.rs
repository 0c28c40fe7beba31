//! How a response is sent, and whether its connection stays open.

use evring::Close;

use crate::message::request::{Method, Persistence, RequestHead};

/// How a response is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseOptions {
    /// Whether the body is sent; false for HEAD.
    pub(crate) body: bool,
    /// Whether the connection stays open.
    pub(crate) persistence: Persistence,
    /// How the connection is closed, if it is.
    pub(crate) close: Close,
    /// Whether the request is HTTP/1.0.
    pub(crate) is_http10: bool,
    /// Whether the connection may switch to another protocol.
    pub(crate) may_upgrade: bool,
    /// The host that the request names.
    pub(crate) host: HostIndex,
}

/// The number of a virtual host; 0 is the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HostIndex(pub(crate) u16);

impl HostIndex {
    /// No host, for responses that have no fields and pages of one.
    #[cfg(feature = "tls")]
    pub(crate) const NONE: Self = HostIndex(u16::MAX);
}

impl ResponseOptions {
    /// Returns the options for a response to `request`; `remaining` bytes have arrived after its
    /// head. `is_last` closes the connection.
    #[inline]
    pub(crate) fn new(request: &RequestHead<'_>, remaining: usize, is_last: bool) -> Self {
        let options = ResponseOptions {
            body: request.method != Method::Head,
            persistence: request.persistence,
            close: Close::Flush,
            is_http10: request.is_http10,
            may_upgrade: request.wants_upgrade && !request.has_body(),
            host: HostIndex::default(),
        };
        // A reset caused by further bytes would destroy the last response, so linger.
        let sends_more = remaining > 0 || request.has_body();
        let lingers = request.persistence == Persistence::Close && sends_more;
        options.ending_if(is_last || lingers)
    }

    /// Returns the options for a response to an invalid or late request: the connection closes.
    pub(crate) fn last(body: bool) -> Self {
        ResponseOptions {
            body,
            persistence: Persistence::Close,
            close: Close::Linger,
            is_http10: false,
            may_upgrade: false,
            host: HostIndex::default(),
        }
    }

    /// Returns the options with the connection closing afterwards. Bytes that the client still sends
    /// are discarded first, so that a reset does not destroy the response.
    pub(crate) fn ending(self) -> Self {
        ResponseOptions { persistence: Persistence::Close, close: Close::Linger, ..self }
    }

    /// Returns [`Self::ending`] if `is_last`, else the same options.
    #[inline]
    pub(crate) fn ending_if(self, is_last: bool) -> Self {
        if is_last { self.ending() } else { self }
    }

    /// Returns whether the connection stays open.
    #[inline]
    pub(crate) fn stays_open(self) -> bool {
        self.persistence != Persistence::Close
    }
}
