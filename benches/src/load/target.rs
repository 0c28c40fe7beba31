//! Whom the load is for, and whether it may be made.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};

use http::Uri;

use crate::failure::Failure;

/// Whom the load is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// As it stands in the field `Host`.
    pub(super) host: String,
    /// Path and query.
    pub(super) path: String,
}

impl Target {
    /// Reads a URL such as `http://127.0.0.1:8080/index.html`.
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let wrong = |what: &str| Failure::Request(format!("{url}: {what}"));
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| wrong("this is no URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("only http:// is spoken"));
        }
        let host = uri.authority().ok_or_else(|| wrong("there is no host in it"))?;
        let name = host.host();
        if host.as_str().contains('@') {
            let what = "a name and password are not sent; say them by -H 'Authorization: ...'";
            return Err(wrong(what));
        }
        let port = match host.as_str().strip_prefix(name) {
            Some("") => 80,
            _ => {
                host.port_u16().filter(|p| *p > 0).ok_or_else(|| wrong("there is no such port"))?
            }
        };
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let mut found = (bare, port)
            .to_socket_addrs()
            .map_err(|e| Failure::Run(format!("{name} is not known: {e}")))?;
        let address = found.next().ok_or_else(|| wrong("the name has no address"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Target { address, host: host.as_str().to_owned(), path })
    }

    /// Load goes to this machine, or stays within a private network namespace, unless somebody says
    /// that it is meant for others.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.address.ip().to_canonical().is_loopback() || is_private() {
            return Ok(());
        }
        Err(Failure::Request(format!(
            "{} is no loopback address (127.0.0.0/8, ::1); load on other people's servers is an \
             attack. If this one is yours, say --anywhere",
            self.address
        )))
    }
}

/// Whether this network namespace is not that of the system, and no route leads out of it.
fn is_private() -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    // Where that of the system can't be seen, this may be it.
    let system = namespace("1");
    system.is_some() && system != namespace("self") && !leads_out()
}

/// Whether packets leave this network namespace by a default route.
fn leads_out() -> bool {
    // Where these can't be read, it is not known that nothing leads out.
    let has_default = |file: &str, is_default: fn(&str) -> bool| {
        fs::read_to_string(file).map_or(true, |routes| routes.lines().any(is_default))
    };
    has_default("/proc/net/route", is_default_v4)
        || has_default("/proc/net/ipv6_route", is_default_v6)
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`, in hexadecimal digits.
fn is_default_v4(route: &str) -> bool {
    let words: Vec<_> = route.split_whitespace().collect();
    words.get(1) == Some(&"00000000") && words.get(7) == Some(&"00000000")
}

/// `destination length ... device`; on `lo` stands the route that refuses.
fn is_default_v6(route: &str) -> bool {
    let words: Vec<_> = route.split_whitespace().collect();
    let is_zero = words.first().is_some_and(|word| word.bytes().all(|b| b == b'0'));
    is_zero && words.get(1) == Some(&"00") && words.last() != Some(&"lo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_whom_to_ask_for_what() {
        let target = Target::parse("http://127.0.0.1:8080/a?b=1").unwrap();
        assert_eq!(target.address, SocketAddr::from(([127, 0, 0, 1], 8080)));
        assert_eq!((target.host.as_str(), target.path.as_str()), ("127.0.0.1:8080", "/a?b=1"));
        let target = Target::parse("[::1]").unwrap();
        assert_eq!((target.address.port(), target.path.as_str()), (80, "/"));
    }

    #[test]
    fn what_is_no_url_or_no_http_is_refused() {
        let refused = |url: &str| Target::parse(url).unwrap_err().to_string();
        assert!(refused("https://127.0.0.1/").contains("only http://"));
        assert!(refused("http://").contains("this is no URL"));
        assert!(refused("http://127.0.0.1:80 80/").contains("this is no URL"));
        for port in ["99999", "0", "abc", ""] {
            assert!(
                refused(&format!("http://127.0.0.1:{port}/")).contains("no such port"),
                "{port}"
            );
        }
        assert!(refused("http://user:word@127.0.0.1/").contains("Authorization"));
    }

    #[test]
    fn load_stays_here_unless_told_otherwise() {
        assert!(Target::parse("http://127.9.9.9/").unwrap().check().is_ok());
        assert!(Target::parse("http://[::1]/").unwrap().check().is_ok());
        if !is_private() {
            let refused = Target::parse("http://192.0.2.1/").unwrap().check().unwrap_err();
            assert!(refused.to_string().contains("--anywhere"));
        }
    }

    #[test]
    fn routes_that_lead_out_are_known() {
        assert!(is_default_v4("eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0"));
        assert!(!is_default_v4("eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"));
        let zero = "0".repeat(32);
        let v6 = |device| format!("{zero} 00 {zero} 00 {zero} 00000400 1 0 00000003 {device}");
        assert!(is_default_v6(&v6("eth0")) && !is_default_v6(&v6("lo")));
    }
}
