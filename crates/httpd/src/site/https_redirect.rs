//! Redirects of requests without TLS.

use std::ops::Range;

use crate::message::path;
use crate::message::request::RequestHead;

/// The port of https.
pub(crate) const HTTPS: u16 = 443;

/// The port of http.
const HTTP: u16 = 80;

/// Redirects the requests at some listeners to https.
#[derive(Clone, Debug)]
pub(crate) struct HttpsRedirect {
    /// The numbers of the listeners.
    pub(crate) listeners: Range<u16>,
    /// Their ports.
    pub(crate) ports: Vec<u16>,
    /// The port of the listener with TLS.
    pub(crate) tls_port: u16,
    /// The port for clients that came by a mapping of ports.
    pub(crate) mapped_port: u16,
}

impl HttpsRedirect {
    /// Writes the Location of the target with https. Returns `None` if the request names no host.
    pub(crate) fn location(&self, request: &RequestHead<'_>) -> Option<Vec<u8>> {
        path::split(request.target).ok()?;
        let (authority, path) = match request.target {
            [b'/', ..] => (request.one("host")?, request.target),
            absolute => path::split_authority(absolute).ok()?,
        };
        let (host, port) = split_port(authority);
        if host.is_empty() {
            return None;
        }
        // A client that names another port came by a mapping of ports, and those of the server may not be reachable.
        let is_mapped = port.is_none_or(|port| !self.ports.contains(&port));
        let tls_port = if is_mapped { self.mapped_port } else { self.tls_port };
        let mut location = b"Location: https://".to_vec();
        location.extend_from_slice(host);
        if tls_port != HTTPS {
            location.push(b':');
            location.extend_from_slice(itoa::Buffer::new().format(tls_port).as_bytes());
        }
        location.extend_from_slice(path);
        location.extend_from_slice(b"\r\n");
        Some(location)
    }
}

/// Returns the host and the port of an authority that is valid; `None` for a number that is no port.
fn split_port(authority: &[u8]) -> (&[u8], Option<u16>) {
    let colon = authority.iter().rposition(|b| matches!(b, b':' | b']'));
    let (host, port) = match colon {
        Some(at) if authority[at] == b':' => (&authority[..at], &authority[at + 1..]),
        _ => (authority, &b""[..]),
    };
    if port.is_empty() {
        return (host, Some(HTTP));
    }
    (host, str::from_utf8(port).ok().and_then(|digits| digits.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::message::request::{HeadMemory, parse};

    fn location((port, tls_port): (u16, u16), head: &str) -> Option<String> {
        let head = format!("{head}\r\n\r\n");
        let mut memory = HeadMemory::new();
        let request = parse(head.as_bytes(), &mut memory, &Limits::default()).unwrap();
        let redirect =
            HttpsRedirect { listeners: 0..1, ports: vec![port], tls_port, mapped_port: HTTPS };
        Some(String::from_utf8(redirect.location(&request)?).unwrap())
    }

    #[test]
    fn redirects_had_other_rules_for_absolute_targets_than_the_site() {
        let location =
            |target| location((80, 443), &format!("GET {target} HTTP/1.1\r\nHost: a.org"));
        assert_eq!(location("HTTP://b.org/x").unwrap(), "Location: https://b.org/x\r\n");
        // Userinfo serves to deceive users (RFC 9110, section 4.2.4).
        for target in ["http://a.org@b.org/", "http:///x", "http://b.org:x/", "ftp://b.org/"] {
            assert_eq!(location(target), None, "{target}");
        }
    }

    #[test]
    fn location_has_the_host_the_port_of_tls_and_the_target() {
        let cases = [
            ((80, 443), "GET /a?b=c HTTP/1.1\r\nHost: example.org", "https://example.org/a?b=c"),
            ((80, 443), "GET / HTTP/1.1\r\nHost: example.org:80", "https://example.org/"),
            ((80, 8443), "GET / HTTP/1.1\r\nHost: example.org", "https://example.org:8443/"),
            ((80, 8443), "GET / HTTP/1.1\r\nHost: example.org:", "https://example.org:8443/"),
            ((8080, 8443), "GET / HTTP/1.1\r\nHost: a.org:8080", "https://a.org:8443/"),
            ((8080, 8443), "GET / HTTP/1.1\r\nHost: [::1]:8080", "https://[::1]:8443/"),
            ((80, 443), "GET / HTTP/1.1\r\nHost: [::1]", "https://[::1]/"),
            ((1, 443), "GET http://b.org:1/x HTTP/1.1\r\nHost: a.org", "https://b.org/x"),
            ((80, 443), "GET http://b.org HTTP/1.1\r\nHost: a.org", "https://b.org"),
        ];
        for (ports, head, expected) in cases {
            assert_eq!(location(ports, head), Some(format!("Location: {expected}\r\n")), "{head}");
        }
        for head in [
            "GET / HTTP/1.0",
            "GET / HTTP/1.1\r\nHost:",
            "OPTIONS * HTTP/1.1\r\nHost: a",
            "CONNECT a:1 HTTP/1.1\r\nHost: a",
        ] {
            assert_eq!(location((80, 443), head), None, "{head}");
        }
    }

    #[test]
    fn clients_behind_a_mapping_of_ports_were_sent_to_the_port_of_the_server() {
        for authority in ["example.org", "example.org:80", "example.org:9000", "example.org:99999"]
        {
            let head = format!("GET /a HTTP/1.1\r\nHost: {authority}");
            let expected = "Location: https://example.org/a\r\n";
            assert_eq!(location((8080, 8443), &head).unwrap(), expected, "{authority}");
        }
    }
}
