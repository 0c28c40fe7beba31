//! The server to load, and the check that load on it is permitted.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};

use http::Uri;

use crate::failure::Failure;

/// The server and path to request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// Value of the `Host` header.
    pub(super) host: String,
    /// Path and query.
    pub(super) path: String,
}

impl Target {
    /// Parses a URL such as `http://127.0.0.1:8080/index.html`.
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let invalid = |message: &str| Failure::Request(format!("{url}: {message}"));
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| invalid("invalid URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid("only http:// is supported"));
        }
        let host = uri.authority().ok_or_else(|| invalid("the URL has no host"))?;
        let name = host.host();
        if host.as_str().contains('@') {
            let message = "user and password are not supported; use -H 'Authorization: ...'";
            return Err(invalid(message));
        }
        let port = match host.as_str().strip_prefix(name) {
            Some("") => 80,
            _ => host.port_u16().filter(|p| *p > 0).ok_or_else(|| invalid("invalid port"))?,
        };
        let host_name = name.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = (host_name, port)
            .to_socket_addrs()
            .map_err(|e| Failure::Run(format!("cannot resolve {name}: {e}")))?;
        let address = addresses.next().ok_or_else(|| invalid("the host has no address"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Target { address, host: host.as_str().to_owned(), path })
    }

    /// Permits loopback addresses, and all within an isolated network namespace, or --anywhere.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.address.ip().to_canonical().is_loopback() || is_isolated_namespace() {
            return Ok(());
        }
        Err(Failure::Request(format!(
            "{} is not a loopback address (127.0.0.0/8, ::1); load on a server of others is an \
             attack. If this server is your own, use --anywhere",
            self.address
        )))
    }
}

/// Returns whether this network namespace is not the initial one and has no default route.
fn is_isolated_namespace() -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    // If the initial namespace cannot be read, this may be it.
    let initial = namespace("1");
    initial.is_some() && initial != namespace("self") && !has_default_route()
}

/// Returns whether this network namespace has a default route.
fn has_default_route() -> bool {
    // If a file cannot be read, assume a default route.
    let has_default = |file: &str, is_default: fn(&str) -> bool| {
        fs::read_to_string(file).map_or(true, |routes| routes.lines().any(is_default))
    };
    has_default("/proc/net/route", is_default_v4)
        || has_default("/proc/net/ipv6_route", is_default_v6)
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`, in hexadecimal digits.
fn is_default_v4(route: &str) -> bool {
    let fields: Vec<_> = route.split_whitespace().collect();
    fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000")
}

/// `destination length ... device`; the default route on `lo` is an unreachable route.
fn is_default_v6(route: &str) -> bool {
    let fields: Vec<_> = route.split_whitespace().collect();
    let is_zero = fields.first().is_some_and(|word| word.bytes().all(|b| b == b'0'));
    is_zero && fields.get(1) == Some(&"00") && fields.last() != Some(&"lo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_parsed_into_address_host_and_path() {
        let target = Target::parse("http://127.0.0.1:8080/a?b=1").unwrap();
        assert_eq!(target.address, SocketAddr::from(([127, 0, 0, 1], 8080)));
        assert_eq!((target.host.as_str(), target.path.as_str()), ("127.0.0.1:8080", "/a?b=1"));
        let target = Target::parse("[::1]").unwrap();
        assert_eq!((target.address.port(), target.path.as_str()), (80, "/"));
    }

    #[test]
    fn invalid_and_non_http_urls_are_rejected() {
        let error = |url: &str| Target::parse(url).unwrap_err().to_string();
        assert!(error("https://127.0.0.1/").contains("only http://"));
        assert!(error("http://").contains("invalid URL"));
        assert!(error("http://127.0.0.1:80 80/").contains("invalid URL"));
        for port in ["99999", "0", "abc", ""] {
            assert!(error(&format!("http://127.0.0.1:{port}/")).contains("invalid port"), "{port}");
        }
        assert!(error("http://user:word@127.0.0.1/").contains("Authorization"));
    }

    #[test]
    fn only_loopback_is_permitted_without_anywhere() {
        assert!(Target::parse("http://127.9.9.9/").unwrap().check().is_ok());
        assert!(Target::parse("http://[::1]/").unwrap().check().is_ok());
        if !is_isolated_namespace() {
            let error = Target::parse("http://192.0.2.1/").unwrap().check().unwrap_err();
            assert!(error.to_string().contains("--anywhere"));
        }
    }

    #[test]
    fn default_routes_are_detected() {
        assert!(is_default_v4("eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0"));
        assert!(!is_default_v4("eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"));
        let zero = "0".repeat(32);
        let v6 = |device| format!("{zero} 00 {zero} 00 {zero} 00000400 1 0 00000003 {device}");
        assert!(is_default_v6(&v6("eth0")) && !is_default_v6(&v6("lo")));
    }
}
