//! The host and port of a Host field or of a target in absolute form.

use std::net::Ipv6Addr;

/// Whether bytes are `uri-host [":" port]` (RFC 9112, section 3.2), or nothing: a client whose
/// target has no authority sends an empty Host field. An empty host before a port is rejected, as
/// no `http` URI has one (RFC 9110, section 4.2.1).
#[inline]
pub(crate) fn is_host(field: &[u8]) -> bool {
    let name = field.iter().take_while(|b| is_name_byte(**b)).count();
    match &field[name..] {
        [] => true,
        [b':', port @ ..] => name > 0 && is_port(port),
        _ => is_unusual_host(field),
    }
}

/// The same for a host with a percent-encoding, and for an IP literal (RFC 3986, section 3.2.2).
#[cold]
fn is_unusual_host(field: &[u8]) -> bool {
    if let Some(literal) = field.strip_prefix(b"[") {
        let Some(end) = memchr::memchr(b']', literal) else { return false };
        let (address, port) = (&literal[..end], &literal[end + 1..]);
        return is_address(address) && port.split_first().is_none_or(is_colon_and_port);
    }
    let mut rest = field;
    loop {
        rest = match rest {
            [] => return true,
            [b':', port @ ..] => return is_port(port),
            [b'%', high, low, rest @ ..] if are_hex(&[*high, *low]) => rest,
            [byte, rest @ ..] if is_name_byte(*byte) => rest,
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

/// Whether bytes between brackets are an IPv6 address or one of a later version.
fn is_address(bytes: &[u8]) -> bool {
    if let [b'v' | b'V', later @ ..] = bytes {
        let mut parts = later.splitn(2, |b| *b == b'.');
        let (version, address) = (parts.next().unwrap_or_default(), parts.next());
        let is_byte = |b: &u8| is_name_byte(*b) || *b == b':';
        return are_hex(version) && address.is_some_and(|a| !a.is_empty() && a.iter().all(is_byte));
    }
    std::str::from_utf8(bytes).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Whether a byte stands for itself in a registered name: unreserved or a sub-delimiter. Every
/// IPv4 address is such a name, too.
#[inline]
fn is_name_byte(b: u8) -> bool {
    const TABLE: [bool; 256] = {
        let marks = b"-._~!$&'()*+,;=";
        let mut table = [false; 256];
        let mut i = 0;
        while i < 256 {
            table[i] = (i as u8).is_ascii_alphanumeric();
            i += 1;
        }
        let mut i = 0;
        while i < marks.len() {
            table[marks[i] as usize] = true;
            i += 1;
        }
        table
    };
    TABLE[usize::from(b)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_as_the_grammar_has_them() {
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
