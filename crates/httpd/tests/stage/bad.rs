//! Requests that are rejected, with their status.

/// A request and the status of its only response, after which the connection closes.
pub(crate) struct Bad(pub(crate) Vec<u8>, pub(crate) u16);

/// Returns all kinds of requests that are rejected and close the connection.
pub(crate) fn bad() -> Vec<Bad> {
    let mut all: Vec<Bad> = FIXED
        .iter()
        .map(|(text, status)| Bad(text.replace("|", "\r\n").into_bytes(), *status))
        .collect();
    let long = |n: usize| "a".repeat(n);
    all.push(Bad(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", long(9000)).into(), 414));
    all.push(Bad(format!("GET /{}", long(9000)).into(), 414));
    all.push(Bad(format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", long(9000)).into(), 501));
    all.push(Bad(format!("\r\n\r\nGET /{}", long(9000)).into(), 414));
    // A limit and an error: the first one counts.
    all.push(Bad(format!("GET /\0{} HTTP/1.1\r\n\r\n", long(9000)).into(), 400));
    all.push(Bad(format!("GET /{}\0 HTTP/1.1\r\n\r\n", long(9000)).into(), 414));
    all.push(Bad(format!("GET / HTTP/1.1\r\nX: {}\0\r\n\r\n", long(17_000)).into(), 431));
    let value = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", long(17_000));
    all.push(Bad(value.into(), 431));
    all.push(Bad(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", long(17_000)).into(), 431));
    let many = "X: y\r\n".repeat(65);
    all.push(Bad(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").into(), 431));
    all.push(Bad(b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"GET / HTTP/1.1\nHost: a\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"GET / HTTP/1.1\r\nHost: a\r\n\n".to_vec(), 400));
    all.push(Bad(b"GET / HTTP/1.1\r\nHost: a\r\rX: b\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 400));
    all.push(Bad(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n".to_vec(), 400));
    all
}

/// A bar represents a line end.
const FIXED: &[(&str, u16)] = &[
    // request lines
    ("GET /|Host: a||", 400),
    ("GET|Host: a||", 400),
    (" GET / HTTP/1.1|Host: a||", 400),
    ("GET  / HTTP/1.1|Host: a||", 400),
    ("GET /  HTTP/1.1|Host: a||", 400),
    ("GET /a b HTTP/1.1|Host: a||", 400),
    ("GET / HTTP/1.1 |Host: a||", 400),
    ("GET / http/1.1|Host: a||", 400),
    ("GET / HTTP/1,1|Host: a||", 400),
    ("GET / HTTP/11|Host: a||", 400),
    ("GET / HTTP/1.10|Host: a||", 400),
    ("GET / HTTP/0.9|Host: a||", 505),
    ("GET / HTTP/2.0|Host: a||", 505),
    ("GET / HTTP/2.1|Host: a||", 505),
    ("GET / HTTP/3.0|Host: a||", 505),
    ("GET / HTTP/3|Host: a||", 400),
    ("GET / HTTP/1.|Host: a||", 400),
    ("GET / HTTP/1.x|Host: a||", 400),
    ("GET / HTTP/1.2 |Host: a||", 400),
    ("GET / HTTP/1.2||", 400),
    ("PRI * HTTP/2.0||SM||", 505),
    ("G@T / HTTP/1.1|Host: a||", 400),
    ("G(T / HTTP/1.1|Host: a||", 400),
    // targets
    ("GET a HTTP/1.1|Host: a||", 400),
    ("GET * HTTP/1.1|Host: a||", 400),
    ("GET ftp://a/ HTTP/1.1|Host: a||", 400),
    ("GET http:/// HTTP/1.1|Host: a||", 400),
    ("CONNECT / HTTP/1.1|Host: a||", 400),
    ("CONNECT /a:443 HTTP/1.1|Host: a||", 400),
    ("CONNECT http://a:443/ HTTP/1.1|Host: a||", 400),
    ("CONNECT * HTTP/1.1|Host: a||", 400),
    ("CONNECT a HTTP/1.1|Host: a||", 400),
    ("CONNECT a: HTTP/1.1|Host: a||", 400),
    ("GET /# HTTP/1.1|Host: a||", 400),
    ("GET /?# HTTP/1.1|Host: a||", 400),
    ("GET /\\ HTTP/1.1|Host: a||", 400),
    ("GET /\\?a HTTP/1.1|Host: a||", 400),
    ("GET http://a\\?b HTTP/1.1|Host: a||", 400),
    ("GET /% HTTP/1.1|Host: a||", 400),
    ("GET /%00 HTTP/1.1|Host: a||", 400),
    ("GET /%2f HTTP/1.1|Host: a||", 400),
    ("GET /.. HTTP/1.1|Host: a||", 400),
    ("GET /../a HTTP/1.1|Host: a||", 400),
    ("GET /%2e%2e/a HTTP/1.1|Host: a||", 400),
    // hosts
    ("GET / HTTP/1.1||", 400),
    ("GET / HTTP/1.1|Host: a|Host: a||", 400),
    ("GET / HTTP/1.0|Host: a|Host: a||", 400),
    ("GET / HTTP/1.1|Host: a|hOST: b||", 400),
    ("GET / HTTP/1.1|Host: a b||", 400),
    ("GET / HTTP/1.1|Host: a, b||", 400),
    ("GET / HTTP/1.1|Host: a/b||", 400),
    ("GET / HTTP/1.1|Host: u@a||", 400),
    ("GET / HTTP/1.1|Host: a:80x||", 400),
    ("GET / HTTP/1.1|Host: a:b:c||", 400),
    ("GET / HTTP/1.1|Host: [::1||", 400),
    ("GET / HTTP/1.1|Host: a]||", 400),
    ("GET / HTTP/1.1|Host: a%zz||", 400),
    ("GET / HTTP/1.1|Host: [::1]x||", 400),
    ("GET / HTTP/1.1|Host: :80||", 400),
    ("GET / HTTP/1.0|Host: a:80x||", 400),
    ("GET http://a:80x/ HTTP/1.1|Host: a||", 400),
    ("GET http://a:b:c/ HTTP/1.1|Host: a||", 400),
    ("GET http://[::1/ HTTP/1.1|Host: a||", 400),
    ("GET http://a] HTTP/1.1|Host: a||", 400),
    ("GET http://a%zz?q HTTP/1.1|Host: a||", 400),
    ("GET http://[::1]x/ HTTP/1.1|Host: a||", 400),
    ("GET http://:80/ HTTP/1.1|Host: a||", 400),
    ("POST http://a:80x/ HTTP/1.1|Host: a|Content-Length: 1||", 400),
    ("OPTIONS http://a:80x/ HTTP/1.1|Host: a||", 400),
    // fields
    ("GET / HTTP/1.1|Host : a||", 400),
    ("GET / HTTP/1.1|Host: a|X||", 400),
    ("GET / HTTP/1.1|Host: a|: x||", 400),
    ("GET / HTTP/1.1|Host: a|X Y: z||", 400),
    ("GET / HTTP/1.1|Host: a| X: y||", 400),
    ("GET / HTTP/1.1|Host: a|X: y| folded||", 400),
    ("GET / HTTP/1.1| Host: a||", 400),
    // lengths
    ("GET / HTTP/1.1|Host: a|Content-Length:||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: -1||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: +1||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 0x1||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 1 1||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 1, 1||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 1|Content-Length: 1||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 18446744073709551616||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 18446744073709551615||", 413),
    ("GET / HTTP/1.1|Host: a|Content-Length: 1048577||", 413),
    ("GET / HTTP/1.1|Host: a|Expect: tea|Content-Length: 1||", 417),
    ("GET / HTTP/1.1|Host: a|Expect: tea||", 417),
    // codings
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Content-Length: 5||0||", 400),
    ("GET / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: chunked||0||", 400),
    ("GET / HTTP/1.0|Transfer-Encoding: chunked||0||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked||", 501),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: gzip||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: gzip|Transfer-Encoding: chunked||", 501),
    ("GET http://user@a/ HTTP/1.1|Host: a||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: xchunked||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked, gzip||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked, chunked||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: chunked||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding:||", 400),
    // chunks
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||x|", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||1|ab|0||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0x1|a|0||", 400),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||100001|", 413),
    ("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|A b||", 400),
    ("OPTIONS * HTTP/1.1|Host: a|Transfer-Encoding: chunked||-1|", 400),
    // methods
    ("POST / HTTP/1.1|Host: a|Content-Length: 3||abc", 405),
    ("PUT /a HTTP/1.1|Host: a|Connection: close||", 405),
    ("DELETE /a HTTP/1.1|Host: a|Connection: close||", 405),
    ("POST * HTTP/1.1|Host: a||", 400),
    ("CONNECT a:443 HTTP/1.1|Host: a||", 405),
    ("TRACE / HTTP/1.1|Host: a|Connection: close||", 405),
    ("PATCH / HTTP/1.1|Host: a|Connection: close||", 405),
    ("get / HTTP/1.1|Host: a|Connection: close||", 501),
    ("GETS / HTTP/1.1|Host: a|Connection: close||", 501),
    ("BREW /pot HTTP/1.1|Host: a|Connection: close||", 501),
];
