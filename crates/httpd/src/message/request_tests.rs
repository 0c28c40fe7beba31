use super::*;

/// Returns the status of a rejected head, 0 for a partial one, else the result of `inspect`.
fn read_with<T>(
    head: &str,
    limits: &Limits,
    inspect: impl FnOnce(&RequestHead<'_>) -> T,
) -> Result<T, u16> {
    match parse(head.as_bytes(), &mut HeadMemory::new(), limits) {
        Ok(request) => Ok(inspect(&request)),
        Err(NoRequest::Rejected(status)) => Err(status.0),
        Err(NoRequest::Partial) => Err(0),
    }
}

fn read<T>(head: &str, inspect: impl FnOnce(&RequestHead<'_>) -> T) -> Result<T, u16> {
    read_with(head, &Limits::default(), inspect)
}

#[test]
fn a_plain_request() {
    let head = "GET /a?b HTTP/1.1\r\nHost: example.org:80\r\n\r\n";
    let more = format!("{head}GET /");
    let inspect = |request: &RequestHead<'_>| {
        assert_eq!((request.method, request.name), (Method::Get, &b"GET"[..]));
        assert_eq!((request.target, request.head), (&b"/a?b"[..], head.as_bytes()));
        assert!(request.fields().eq([(&b"Host"[..], &b"example.org:80"[..])]));
        assert_eq!(
            (request.persistence, request.framing),
            (Persistence::Implicit, Framing::Length(0))
        );
        assert_eq!(request.expects, Expects::Nothing);
        assert!(!request.is_http10 && !request.conditional && !request.has_accept_encoding);
    };
    assert_eq!(read(&more, inspect), Ok(()));
}

#[test]
fn conditional_and_accept_encoding_fields_set_flags() {
    let flags = |field: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        read(&head, |request| (request.conditional, request.has_accept_encoding)).unwrap()
    };
    for name in [
        "Range",
        "If-Range",
        "if-match",
        "IF-NONE-MATCH",
        "If-Modified-Since",
        "If-Unmodified-Since",
    ] {
        assert_eq!(flags(&format!("{name}: x")), (true, false), "{name}");
    }
    assert_eq!(flags("accept-Encoding: br"), (false, true));
    for name in ["Accept", "If-Matc", "Ranges", "Referer", "X-Forwarded-For"] {
        assert_eq!(flags(&format!("{name}: x")), (false, false), "{name}");
    }
}

#[test]
fn bodies_and_expectations() {
    let found = |version: &str, field: &str| {
        let head = format!("POST / HTTP/{version}\r\nHost: a\r\n{field}\r\n\r\n");
        read(&head, |request| (request.framing, request.expects))
    };
    use Expects::{Continue, Nothing, Unknown};
    assert_eq!(found("1.1", "Content-Length: 12"), Ok((Framing::Length(12), Nothing)));
    assert_eq!(found("1.1", "Transfer-Encoding: Chunked"), Ok((Framing::Chunked, Nothing)));
    assert_eq!(found("1.0", "Transfer-Encoding: chunked"), Err(400));
    assert_eq!(found("1.1", "Expect: 100-Continue"), Ok((Framing::Length(0), Continue)));
    assert_eq!(found("1.0", "Expect: 100-continue"), Ok((Framing::Length(0), Nothing)));
    assert_eq!(found("1.1", "Expect: tea"), Ok((Framing::Length(0), Unknown)));
    // Repeated fields form one list, which may have empty members (RFC 9110, section 5.6.1).
    for expect in [
        "Expect: tea, 100-continue",
        "Expect: 100-continue,tea",
        "Expect: tea\r\nExpect: 100-continue",
        "Expect: 100-continue\r\nExpect: tea",
    ] {
        assert_eq!(found("1.1", expect), Ok((Framing::Length(0), Unknown)), "{expect}");
    }
    for expect in [
        "Expect: 100-continue, 100-CONTINUE",
        "Expect: 100-continue\r\nExpect:",
        "Expect: , 100-continue,",
    ] {
        assert_eq!(found("1.1", expect), Ok((Framing::Length(0), Continue)), "{expect}");
    }
    assert_eq!(found("1.1", "Expect: "), Ok((Framing::Length(0), Nothing)));
}

#[test]
fn empty_members_of_transfer_encoding_were_codings() {
    let found = |version: &str, fields: &str| {
        let head = format!("POST / HTTP/{version}\r\nHost: a\r\n{fields}\r\n\r\n");
        read(&head, |request| request.framing)
    };
    let with = |values: &[&str]| {
        let fields: Vec<_> = values.iter().map(|v| format!("Transfer-Encoding: {v}")).collect();
        found("1.1", &fields.join("\r\n"))
    };
    // Repeated fields form one list, which may have empty members (RFC 9110, section 5.6.1).
    let one: [&[&str]; 7] = [
        &[",chunked"],
        &["chunked,"],
        &[" , \t,Chunked ,, "],
        &["", "chunked"],
        &["chunked", ""],
        &[",", "chunked", ", ,"],
        &["", ",chunked", ""],
    ];
    for values in one {
        assert_eq!(with(values), Ok(Framing::Chunked), "{values:?}");
    }
    for values in [&["gzip,,chunked,"][..], &["gzip,", "", ",chunked"], &["gzip, br", "chunked"]] {
        assert_eq!(with(values), Err(501), "{values:?}");
    }
    let undefined: [&[&str]; 11] = [
        &[""],
        &[","],
        &["", ", ,"],
        &["gzip,"],
        &["chunked,,gzip"],
        &["chunked", ",", "gzip"],
        &["chunked,,chunked"],
        &["chunked,", ",chunked"],
        &["chunked, gzip", "chunked"],
        &["gzip, chunked", "chunked"],
        &["gzip", "chunked", "gzip"],
    ];
    for values in undefined {
        assert_eq!(with(values), Err(400), "{values:?}");
    }
    for value in [",chunked", "chunked,", ",", ""] {
        let field = format!("Transfer-Encoding: {value}");
        assert_eq!(found("1.0", &field), Err(400), "{value}");
        for fields in
            [format!("Content-Length: 5\r\n{field}"), format!("{field}\r\nContent-Length: 5")]
        {
            assert_eq!(found("1.1", &fields), Err(400), "{fields}");
        }
    }
}

#[test]
fn usual_header_fields_are_accepted() {
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
        assert_eq!(read(&head, |r| r.framing), Ok(Framing::Length(0)), "{head}");
    }
}

#[test]
fn content_length_is_read_up_to_u64_max() {
    let max = format!("GET / HTTP/1.0\r\nContent-Length: {}\r\n\r\n", u64::MAX);
    assert_eq!(read(&max, |r| r.framing), Ok(Framing::Length(u64::MAX)));
    let more = format!("GET / HTTP/1.0\r\nContent-Length: {}\r\n\r\n", u128::from(u64::MAX) + 1);
    assert_eq!(read(&more, |_| ()), Err(400));
}

#[test]
fn every_prefix_of_a_request_is_partial() {
    let head = "HEAD /a HTTP/1.0\r\nHost: b\r\nX: y\r\n\r\n";
    for end in 0..head.len() {
        assert_eq!(read(&head[..end], |_| ()), Err(0), "{:?}", &head[..end]);
    }
}

#[test]
fn size_limits_are_exact() {
    let limits = Limits { max_request_line_bytes: 20, max_head_bytes: 40, ..Limits::default() };
    let read = |head: &str| match read_with(head, &limits, |_| ()) {
        Ok(()) => 200,
        Err(status) => status,
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
fn too_long_method_is_not_implemented() {
    let limits = Limits { max_request_line_bytes: 20, ..Limits::default() };
    let read = |head: &str| read_with(head, &limits, |_| ());
    assert_eq!(read(&"A".repeat(19)), Err(0));
    assert_eq!(read(&"A".repeat(20)), Err(501));
    assert_eq!(read(&format!("{} /", "A".repeat(20))), Err(501));
    assert_eq!(read(&format!("{} / HTTP/1.1\r\n", "A".repeat(19))), Err(414));
    assert_eq!(read(&format!("\r\n\r\n{}", "A".repeat(19))), Err(0));
    assert_eq!(read(&format!("\r\n\r\n{}", "A".repeat(20))), Err(501));
}

#[test]
fn errors_before_a_limit_take_precedence() {
    let limits = Limits {
        max_request_line_bytes: 20,
        max_head_bytes: 40,
        max_headers: 2,
        ..Limits::default()
    };
    let read = |head: &str| read_with(head, &limits, |_| ());
    assert_eq!(read(&format!("GET \0{}", "a".repeat(30))), Err(400));
    assert_eq!(read(&format!("GET /{}\0", "a".repeat(15))), Err(414));
    assert_eq!(read(&format!("GET / HTTP/1.1\r\nX: {}\0", "a".repeat(20))), Err(400));
    assert_eq!(read(&format!("GET / HTTP/1.1\r\nX: {}\0", "a".repeat(21))), Err(431));
    assert_eq!(read("GET / HTTP/1.1\r\nA:1\r\nB:2\r\n\0:3\r\n"), Err(400));
    assert_eq!(read("GET / HTTP/1.1\r\nA:1\r\nB:2\r\nC:3\r\n\0"), Err(431));
}

#[test]
fn number_of_fields_is_limited() {
    let head = |n| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(n));
    assert_eq!(read(&head(Limits::MAX_HEADERS - 1), |r| r.num_fields()), Ok(Limits::MAX_HEADERS));
    assert_eq!(read(&head(Limits::MAX_HEADERS), |_| ()), Err(431));
    let few = Limits { max_headers: 2, ..Limits::default() };
    assert_eq!(read_with(&head(1), &few, |r| r.num_fields()), Ok(2));
    assert_eq!(read_with(&head(2), &few, |_| ()), Err(431));
}

#[test]
fn names_of_fields_match_in_any_case() {
    const NAME: &[u8; 13] = b"if-none-match";
    for at in 0..NAME.len() {
        for byte in
            (0..=u8::MAX).filter(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
        {
            let mut name = *NAME;
            name[at] = byte;
            assert_eq!(
                is_name(&name, NAME),
                name.eq_ignore_ascii_case(NAME),
                "{}",
                name.escape_ascii()
            );
        }
    }
    assert!(!is_name(b"if-none-matc", NAME) && !is_name(b"if-none-match-", NAME));
}
