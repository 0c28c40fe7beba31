//! Redirects of requests without TLS.

use std::ops::Range;

use crate::message::path;
use crate::message::request::RequestHead;

/// Redirects the requests at some listeners to https.
#[derive(Clone, Debug)]
pub(crate) struct HttpsRedirect {
    /// The numbers of the listeners.
    pub(crate) listeners: Range<u16>,
    /// The port of the listener with TLS.
    pub(crate) port: u16,
}

impl HttpsRedirect {
    /// Writes the Location of the target with https. Returns `None` if the request names no host.
    pub(crate) fn location(&self, request: &RequestHead<'_>) -> Option<Vec<u8>> {
        path::split(request.target).ok()?;
        let (authority, path) = match request.target {
            [b'/', ..] => (request.one("host")?, request.target),
            absolute => path::split_authority(absolute).ok()?,
        };
        let host = without_port(authority);
        if host.is_empty() {
            return None;
        }
        let mut location = b"Location: https://".to_vec();
        location.extend_from_slice(host);
        if self.port != 443 {
            location.push(b':');
            location.extend_from_slice(itoa::Buffer::new().format(self.port).as_bytes());
        }
        location.extend_from_slice(path);
        location.extend_from_slice(b"\r\n");
        Some(location)
    }
}

/// Returns the host of an authority that is valid.
fn without_port(authority: &[u8]) -> &[u8] {
    let colon = authority.iter().rposition(|b| matches!(b, b':' | b']'));
    match colon {
        Some(at) if authority[at] == b':' => &authority[..at],
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::message::request::{HeadMemory, parse};

    fn location(port: u16, head: &str) -> Option<String> {
        let head = format!("{head}\r\n\r\n");
        let mut memory = HeadMemory::new();
        let request = parse(head.as_bytes(), &mut memory, &Limits::default()).unwrap();
        let location = HttpsRedirect { listeners: 0..1, port }.location(&request)?;
        Some(String::from_utf8(location).unwrap())
    }

    #[test]
    fn redirects_had_other_rules_for_absolute_targets_than_the_site() {
        let location = |target| location(443, &format!("GET {target} HTTP/1.1\r\nHost: a.org"));
        assert_eq!(location("HTTP://b.org/x").unwrap(), "Location: https://b.org/x\r\n");
        // Userinfo serves to deceive users (RFC 9110, section 4.2.4).
        for target in ["http://a.org@b.org/", "http:///x", "http://b.org:x/", "ftp://b.org/"] {
            assert_eq!(location(target), None, "{target}");
        }
    }

    #[test]
    fn location_has_the_host_the_port_of_tls_and_the_target() {
        let cases = [
            (443, "GET /a?b=c HTTP/1.1\r\nHost: example.org", "https://example.org/a?b=c"),
            (443, "GET / HTTP/1.1\r\nHost: example.org:80", "https://example.org/"),
            (8443, "GET / HTTP/1.1\r\nHost: example.org:8080", "https://example.org:8443/"),
            (8443, "GET / HTTP/1.1\r\nHost: [::1]:8080", "https://[::1]:8443/"),
            (443, "GET / HTTP/1.1\r\nHost: [::1]", "https://[::1]/"),
            (443, "GET http://b.org:1/x HTTP/1.1\r\nHost: a.org", "https://b.org/x"),
            (443, "GET http://b.org HTTP/1.1\r\nHost: a.org", "https://b.org"),
        ];
        for (port, head, expected) in cases {
            assert_eq!(location(port, head), Some(format!("Location: {expected}\r\n")), "{head}");
        }
        for head in [
            "GET / HTTP/1.0",
            "GET / HTTP/1.1\r\nHost:",
            "OPTIONS * HTTP/1.1\r\nHost: a",
            "CONNECT a:1 HTTP/1.1\r\nHost: a",
        ] {
            assert_eq!(location(443, head), None, "{head}");
        }
    }
}
