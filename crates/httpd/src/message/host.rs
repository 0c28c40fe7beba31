//! Validation of the host and port in a Host field or an absolute-form target.

use std::net::Ipv6Addr;

use crate::message::byte_set::alphanumeric_and;

/// Returns whether `field` is `uri-host [":" port]` (RFC 9112, section 3.2) or empty. A client
/// sends an empty Host field if its target has no authority. An empty host before a port is
/// rejected, as no `http` URI has one (RFC 9110, section 4.2.1).
#[inline]
pub(crate) fn is_host(field: &[u8]) -> bool {
    let name = field.iter().take_while(|b| is_name_byte(**b)).count();
    match &field[name..] {
        [] => true,
        [b':', port @ ..] => name > 0 && is_port(port),
        _ => is_unusual_host(field),
    }
}

/// Returns whether a target is `uri-host ":" port`, as that of CONNECT has to be (RFC 9112, section 3.2.3).
pub(crate) fn is_authority_form(target: &[u8]) -> bool {
    let digits = target.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    digits > 0 && target[..target.len() - digits].ends_with(b":") && is_host(target)
}

/// Like [`is_host`], for percent-encoded names and IP literals (RFC 3986, section 3.2.2).
#[cold]
fn is_unusual_host(field: &[u8]) -> bool {
    if let Some(literal) = field.strip_prefix(b"[") {
        let Some(end) = memchr::memchr(b']', literal) else { return false };
        let (address, port) = (&literal[..end], &literal[end + 1..]);
        return is_address(address) && port.split_first().is_none_or(is_colon_and_port);
    }
    let mut remaining = field;
    loop {
        remaining = match remaining {
            [] => return true,
            [b':', port @ ..] => return is_port(port),
            [b'%', high, low, tail @ ..] if are_hex(&[*high, *low]) => tail,
            [byte, tail @ ..] if is_name_byte(*byte) => tail,
            _ => return false,
        }
    }
}

fn is_colon_and_port((colon, port): (&u8, &[u8])) -> bool {
    *colon == b':' && is_port(port)
}

fn is_port(port: &[u8]) -> bool {
    port.iter().all(u8::is_ascii_digit)
}

fn are_hex(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_hexdigit)
}

/// Returns whether the bytes between brackets are an IPv6 address or an IPvFuture.
fn is_address(bytes: &[u8]) -> bool {
    if let [b'v' | b'V', later @ ..] = bytes {
        let mut parts = later.splitn(2, |b| *b == b'.');
        let (version, address) = (parts.next().unwrap_or_default(), parts.next());
        let is_byte = |b: &u8| is_name_byte(*b) || *b == b':';
        return are_hex(version) && address.is_some_and(|a| !a.is_empty() && a.iter().all(is_byte));
    }
    std::str::from_utf8(bytes).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Returns whether a byte is unreserved or a sub-delimiter, as in a registered name. IPv4
/// addresses consist of such bytes, too.
#[inline]
fn is_name_byte(b: u8) -> bool {
    const TABLE: [bool; 256] = alphanumeric_and(b"-._~!$&'()*+,;=");
    TABLE[usize::from(b)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_has_a_host_and_a_port() {
        for target in ["a:443", "1.2.3.4:1", "[::1]:443", "%41:1"] {
            assert!(is_authority_form(target.as_bytes()), "{target}");
        }
        for target in
            ["", "a", "a:", ":443", "443", "[::1]", "[::1:443", "/a:443", "http://a:443", "*"]
        {
            assert!(!is_authority_form(target.as_bytes()), "{target}");
        }
    }

    #[test]
    fn hosts_follow_the_grammar() {
        for host in [
            "",
            "a",
            "a:",
            "a:80",
            "127.0.0.1",
            "1.2.3:4",
            "[::1]",
            "[::1]:",
            "[::1]:80",
            "[::ffff:1.2.3.4]",
            "[1:2:3:4:5:6:7:8]",
            "[v1.a:b]",
            "[VF.!]:1",
            "a%41b",
            "%c3%A4:1",
            "xn--nxasmq6b.example",
            "a_b",
            "~!$&'()*+;=",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            ":",
            ":80",
            "a:80x",
            "a:b:c",
            "a::80",
            "a:-1",
            "[::1",
            "a]",
            "a%zz",
            "a%4",
            "a%",
            "%41:x",
            "[::1]x",
            "[::1]80",
            "[::1]:x",
            "[]",
            "[",
            "]",
            "[a]",
            "[1.2.3.4]",
            "[::1%1]",
            "[::1]]",
            "[[::1]]",
            "a[::1]",
            "[v.a]",
            "[v1.]",
            "[v1]",
            "[vg.a]",
            "[v1.a/]",
            "::1",
            "u@a",
            "a/b",
            "a b",
            "a?b",
            "a#b",
            "a\\b",
            "\u{e4}",
            "a\"",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
