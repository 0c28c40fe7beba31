use super::*;

fn read(head: &str) -> Parsed<'_> {
    parse(head.as_bytes(), &Limits::default())
}

#[test]
fn a_plain_request() {
    let head = "GET /a?b HTTP/1.1\r\nHost: example.org:80\r\n\r\n";
    let expected = Request {
        method: Method::Get,
        target: b"/a?b",
        persist: Persist::Implied,
        body: 0,
        expects: false,
        len: head.len(),
    };
    let more = format!("{head}GET /");
    assert_eq!(read(&more), Parsed::Request(expected));
}

#[test]
fn what_browsers_send_is_accepted() {
    const FIELDS: [&str; 12] = [
        "Host: a",
        "host: [::1]:8080",
        "HOST:a",
        "Host:\t a \t",
        "Host:",
        "Host: xn--nxasmq6b.example",
        "Host: 127.0.0.1\r\nCookie: a=\"b\"; c={d}",
        "Host: a\r\nX:",
        "Host: a\r\nX: \u{e4}",
        "Host: a\r\nContent-Length: 0",
        "Host: a\r\nContent-Length: 00",
        "Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
    ];
    for fields in FIELDS {
        let head = format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n");
        assert!(matches!(read(&head), Parsed::Request(r) if r.body == 0), "{head}");
    }
}

#[test]
fn lengths_are_read_to_the_last_number() {
    let most = format!("GET / HTTP/1.0\r\nContent-Length: {}\r\n\r\n", u64::MAX);
    assert!(matches!(read(&most), Parsed::Request(r) if r.body == u64::MAX));
    let more = format!("GET / HTTP/1.0\r\nContent-Length: {}\r\n\r\n", u128::from(u64::MAX) + 1);
    assert_eq!(read(&more), Parsed::Refused(Status::BAD_REQUEST));
}

#[test]
fn every_beginning_of_a_request_is_partial() {
    let head = "HEAD /a HTTP/1.0\r\nHost: b\r\nX: y\r\n\r\n";
    for end in 0..head.len() {
        assert_eq!(read(&head[..end]), Parsed::Partial, "{:?}", &head[..end]);
    }
}

#[test]
fn bounds_are_exact() {
    let limits = Limits { line: 20, head: 40, ..Limits::default() };
    let read = |head: &str| match parse(head.as_bytes(), &limits) {
        Parsed::Request(_) => 200,
        Parsed::Refused(status) => status.0,
        Parsed::Partial => 0,
    };
    let line = |n: usize| format!("GET /{} HTTP/1.1\r\n", "a".repeat(n));
    assert_eq!(line(4).len(), 20);
    assert_eq!(read(&line(4)), 0);
    assert_eq!(read(&line(5)), 414);
    assert_eq!(read(&line(5)[..19]), 0);
    assert_eq!(read(&line(5)[..20]), 414);
    assert_eq!(read(&(line(4) + "Host: a\r\n\r\n")), 200);
    assert_eq!(read(&(line(5) + "Host: a\r\n\r\n")), 414);
    let whole = |n: usize| format!("{}Host: {}\r\n\r\n", line(4), "a".repeat(n));
    assert_eq!(whole(10).len(), 40);
    assert_eq!(read(&whole(10)), 200);
    assert_eq!(read(&whole(11)), 431);
    assert_eq!(read(&whole(11)[..39]), 0);
    assert_eq!(read(&whole(11)[..40]), 431);
}

#[test]
fn as_many_fields_as_allowed() {
    let head = |n| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(n));
    assert!(matches!(read(&head(Limits::FIELDS - 1)), Parsed::Request(_)));
    assert_eq!(read(&head(Limits::FIELDS)), Parsed::Refused(Status::HEAD));
}
