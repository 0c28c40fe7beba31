//! Addresses to listen on.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The socket addresses that a text such as `localhost:8080` names; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(pub(crate) Vec<SocketAddr>);

impl Addresses {
    /// Returns the socket addresses.
    pub fn as_slice(&self) -> &[SocketAddr] {
        &self.0
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let resolved = text.to_socket_addrs().map(|addresses| Addresses(addresses.collect()));
        resolved.map_err(|error| {
            format!(
                "expected ADDR:PORT, such as 0.0.0.0:8080, [::]:8080 or localhost:8080: {error}"
            )
        })
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.0.iter().map(SocketAddr::to_string).collect();
        f.write_str(&addresses.join(" and "))
    }
}
