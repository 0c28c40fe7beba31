//! Addresses to listen on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;

/// The socket addresses that a text such as `localhost:8080` names; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<SocketAddr>);

impl Addresses {
    /// Returns the socket addresses.
    pub fn as_slice(&self) -> &[SocketAddr] {
        &self.0
    }
}

impl From<SocketAddr> for Addresses {
    fn from(address: SocketAddr) -> Self {
        Addresses(vec![address])
    }
}

impl FromStr for Addresses {
    type Err = String;

    /// Parses an address or host name with a port; `:PORT` and `*:PORT` are those of all interfaces.
    fn from_str(text: &str) -> Result<Self, String> {
        let port = text.strip_prefix('*').unwrap_or(text).strip_prefix(':');
        if let Some(Ok(port)) = port.map(str::parse) {
            let all = all_interfaces().map(|address| SocketAddr::new(address, port));
            return Ok(Addresses(all.collect()));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(format!(
                "a URL is no address: leave out {scheme}://, as in 127.0.0.1:8080"
            ));
        }
        let resolved = text.to_socket_addrs().map(|addresses| Addresses(distinct(addresses)));
        resolved.map_err(|error| match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                format!("the host {host} was not found: {error}")
            }
            _ => format!(
                "expected ADDR:PORT, such as 0.0.0.0:8080, localhost:8080 or :8080 for all interfaces: {error}"
            ),
        })
    }
}

/// Returns the addresses of a name, each once: hosts(5) may have one on several lines.
pub(super) fn distinct(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut distinct = Vec::new();
    for at in addresses {
        if !distinct.contains(&at) {
            distinct.push(at);
        }
    }
    distinct
}

/// Returns the addresses of all interfaces, of IPv4 and, if this machine has it, of IPv6.
fn all_interfaces() -> impl Iterator<Item = IpAddr> {
    let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
    let ipv6 = has_ipv6.then_some(IpAddr::from(Ipv6Addr::UNSPECIFIED));
    [IpAddr::from(Ipv4Addr::UNSPECIFIED)].into_iter().chain(ipv6)
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.0.iter().map(SocketAddr::to_string).collect();
        f.write_str(&addresses.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asterisk_was_looked_up_as_a_host() {
        let parse = |text: &str| text.parse::<Addresses>();
        assert_eq!(parse("*:80").unwrap(), parse(":80").unwrap());
        assert!(parse("*80").is_err() && parse("*").is_err());
    }

    #[test]
    fn name_with_an_address_twice_was_two_listeners() {
        let [a, b] = ["127.0.0.1:80", "[::1]:80"].map(|at| at.parse().unwrap());
        assert_eq!(distinct([a, b, a, b].into_iter()), [a, b]);
        assert_eq!(distinct([b, b, a].into_iter()), [b, a]);
    }
}
