//! The requests in the test suites of llhttp and picohttpparser, and what becomes of them here.
//!
//! Left out are responses, HTTP/2, what tests a parser's interface (pauses, switches for leniency,
//! where it stops for an upgrade), and a request with a bare `|` in its target, which is let through
//! as browsers send it. Requests of HTTP/1.1 that come without Host have one here, as they would all
//! be refused for that; `#` is gone from targets where something else counts; heads that stop
//! at the error are whole, and some requests that stop early come whole as well.

mod stage;

use std::sync::{Arc, Mutex};

use httpd::{Request, Site};
use stage::Stage;

/// A request as the handler gets it, by method, target and body, or the status of its refusal.
type Verdict<S> = Result<(S, S, S), u16>;

/// A name, what the client sends, and what becomes of it; nothing while more has to come.
type Case = (&'static str, &'static [u8], &'static [Verdict<&'static str>]);

/// What becomes of bytes that arrive in pieces of one length.
fn verdicts(bytes: &[u8], piece: usize) -> Vec<Verdict<String>> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let called = Arc::clone(&calls);
    let handler = move |request: Request| {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        let call = (request.method().to_string(), request.uri().to_string(), body);
        called.lock().unwrap().push(call);
        ""
    };
    let mut stage = Stage::with(Site::new(None).route("/", handler), "/nowhere".as_ref());
    for piece in bytes.chunks(piece) {
        stage.feed(piece);
    }
    // What is not whole by now is never answered.
    let sent = stage.io.sent.len();
    stage.end();
    assert_eq!(stage.io.sent.len(), sent);
    let mut calls = std::mem::take(&mut *calls.lock().unwrap()).into_iter();
    let verdict = |reply: &stage::Reply| match reply.status {
        200 => Ok(calls.next().expect("a call for each 200")),
        status => Err(status),
    };
    let verdicts = stage::replies(&stage.io.sent).iter().map(verdict).collect();
    assert_eq!(calls.next(), None);
    verdicts
}

/// Checks a case, with its bytes at once and one by one.
fn check(name: &str, bytes: &[u8], expected: &[Verdict<&str>]) -> Result<(), String> {
    let owned = |(method, target, body): (&str, &str, &str)| {
        (method.to_owned(), target.to_owned(), body.to_owned())
    };
    let expected: Vec<_> = expected.iter().map(|verdict| verdict.map(owned)).collect();
    for piece in [bytes.len(), 1] {
        let found = verdicts(bytes, piece);
        if found != expected {
            return Err(format!("{name}, in pieces of {piece}: {found:?}, not {expected:?}"));
        }
    }
    Ok(())
}

/// Checks all cases of a table.
fn check_all(table: &[Case]) {
    let check = |(name, bytes, expected): &Case| check(name, bytes, expected).err();
    let wrong: Vec<_> = table.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn requests_of_llhttp() {
    check_all(LLHTTP);
}

#[test]
fn requests_of_picohttpparser() {
    check_all(PICO);
}

#[test]
fn chunks_of_picohttpparser() {
    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let check =
        |(name, chunks, expected): &Case| check(name, &[HEAD, chunks].concat(), expected).err();
    let wrong: Vec<_> = PICO_CHUNKS.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[rustfmt::skip]
const LLHTTP: &[Case] = &[
    // connection.md
    ("keep-alive", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("keep-alive, two requests", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\nPUT /url HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", &[Ok(("PUT", "/url", "")), Ok(("PUT", "/url", ""))]),
    ("no keep-alive in 1.0", b"PUT /url HTTP/1.0\r\n\r\nPUT /url HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("no keep-alive in 1.0, chunks behind", b"PUT /url HTTP/1.0\r\nContent-Length: 0\r\n\r\nPUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("empty line between requests", b"POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\n\r\nq=42\r\n\r\nGET / HTTP/1.1", &[Ok(("POST", "/", "q=42"))]),
    ("empty line between whole requests", b"POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: 4\r\n\r\nq=42\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("POST", "/", "q=42")), Ok(("GET", "/", ""))]),
    ("CR for a dash in a value", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: keep\ralive\r\n\r\n", &[Err(400)]),
    ("close", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("close and a tab", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: close\t\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("close, then a request", b"POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\nConnection: close\r\n\r\nq=42\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("POST", "/", "q=42"))]),
    ("close and a tab, then a request", b"POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\nConnection: close\t\r\n\r\nq=42\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("POST", "/", "q=42"))]),
    ("close among others", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: close, token, upgrade, token, keep-alive\r\n\r\nPUT /url HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("folded Connection", b"GET /demo HTTP/1.1\r\nHost: example.com\r\nConnection: Something,\r\n Upgrade, ,Keep-Alive\r\nUpgrade: WebSocket\r\nOrigin: http://example.com\r\n\r\nHot diggity dogg", &[Err(400)]),
    ("keep-alive and upgrade", b"GET /demo HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, upgrade\r\nUpgrade: WebSocket\r\n\r\nHot diggity dogg", &[Ok(("GET", "/demo", ""))]),
    ("folded behind a space", b"GET /demo HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, \r\n upgrade\r\nUpgrade: WebSocket\r\n\r\nHot diggity dogg", &[Err(400)]),
    ("space before a colon", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection : upgrade\r\nContent-Length: 4\r\nUpgrade: ws\r\n\r\nabcdefgh", &[Err(400)]),
    ("upgrade", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: ws\r\n\r\n", &[Ok(("PUT", "/url", ""))]),
    ("upgrade with a body", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nContent-Length: 4\r\nUpgrade: ws\r\n\r\nabcdefgh", &[Ok(("PUT", "/url", "abcd"))]),
    ("upgrade of a GET", b"GET /demo HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nSec-WebSocket-Key2: 12998 5 Y3 1  .P00\r\nSec-WebSocket-Protocol: sample\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key1: 4 @1  46546xW%0l 1 5\r\nOrigin: http://example.com\r\n\r\nHot diggity dogg", &[Ok(("GET", "/demo", ""))]),
    ("upgrade of a POST", b"POST /demo HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: HTTP/2.0\r\nContent-Length: 15\r\n\r\nsweet post bodyHot diggity dogg", &[Ok(("POST", "/demo", "sweet post body"))]),
    // content-length.md
    ("zeros before a length", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\n\r\nabc", &[Ok(("PUT", "/url", "abc"))]),
    ("a field behind the length", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\nOhai: world\r\n\r\nabc", &[Ok(("PUT", "/url", "abc"))]),
    ("huge length", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000000000000\r\n\r\n", &[Err(400)]),
    ("two lengths", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", &[Err(400)]),
    ("length and identity", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: identity\r\n\r\n", &[Err(400)]),
    ("space before the length's colon", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nContent-Length : 4\r\nUpgrade: ws\r\n\r\nabcdefgh", &[Err(400)]),
    ("length in odd case", b"GET /get_funky_content_length_body_hello HTTP/1.0\r\nconTENT-Length: 5\r\n\r\nHELLO", &[Ok(("GET", "/get_funky_content_length_body_hello", "HELLO"))]),
    ("spaces around a length, no body yet", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:  42 \r\n\r\n", &[]),
    ("spaces around a length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:  4 \r\n\r\nabcd", &[Ok(("POST", "/", "abcd"))]),
    ("tabs around a length, no body yet", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\t42\t  \r\n\r\n", &[]),
    ("tabs around a length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\t4\t  \r\n\r\nabcd", &[Ok(("POST", "/", "abcd"))]),
    ("space in a length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4 2\r\n\r\n", &[Err(400)]),
    ("space in a longer length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 13 37\r\n\r\n", &[Err(400)]),
    ("empty length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", &[Err(400)]),
    ("CR for a dash in a name", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent\rLength: 003\r\n\r\nabc", &[Err(400)]),
    ("a request within a body", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 123\r\n\r\nPOST /url HTTP/1.1\r\nHost: a\r\nContent-Length: 456\r\n\r\n", &[]),
    ("CR only before a body", b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\rabc\r\n\r\n", &[Err(400)]),
    // finish.md
    ("a GET, then the end", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("the end before a body", b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", &[]),
    ("the end within a head", b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Leng", &[]),
    // invalid.md
    ("ICE", b"GET /music/sweet/music ICE/1.0\r\nHost: example.com\r\n\r\n", &[Err(400)]),
    ("almost HTTP", b"GET /music/sweet/music IHTTP/1.0\r\nHost: example.com\r\n\r\n", &[Err(400)]),
    ("RTSP", b"PUT /music/sweet/music RTSP/1.0\r\nHost: example.com\r\n\r\n", &[Err(400)]),
    ("a method of RTSP", b"ANNOUNCE /music/sweet/music HTTP/1.0\r\nHost: example.com\r\n\r\n", &[Ok(("ANNOUNCE", "/music/sweet/music", ""))]),
    ("CR between fields", b"GET / HTTP/1.1\r\nHost: a\r\nFoo: 1\rBar: 2\r\n\r\n", &[Err(400)]),
    ("LF between fields", b"POST / HTTP/1.1\r\nHost: localhost:5000\r\nx:x\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", &[Err(400)]),
    ("CR and a letter between heads", b"GET / HTTP/1.1\r\nConnection: close\r\nHost: a\r\n\rZGET /evil: HTTP/1.1\r\nHost: a\r\n\r\n", &[Err(400)]),
    ("CR behind an empty value", b"POST / HTTP/1.1\r\nConnection: Close\r\nHost: localhost:5000\r\nx:\rTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", &[Err(400)]),
    ("LF behind an empty value", b"POST / HTTP/1.1\r\nHost: localhost:5000\r\nx:\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", &[Err(400)]),
    ("at sign in a name", b"GET / HTTP/1.1\r\nHost: a\r\nFo@: Failure\r\n\r\n", &[Err(400)]),
    ("control bytes in a name", b"GET / HTTP/1.1\r\nHost: a\r\nFoo\x01\test: Bar\r\n\r\n", &[Err(400)]),
    ("empty name", b"GET / HTTP/1.1\r\nHost: a\r\n: Bar\r\n\r\n", &[Err(400)]),
    ("unknown method", b"MKCOLA / HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("MKCOLA", "/", ""))]),
    ("folded name", b"GET / HTTP/1.1\r\nHost: a\r\nname\r\n : value\r\n\r\n", &[Err(400)]),
    ("broken Connection", b"GET / HTTP/1.1\r\nHost: www.example.com\r\nConnection\r\x1b5\xd5eep-Alive\r\nAccept-Encoding: gzip\r\n\r\n", &[Err(400)]),
    ("broken name", b"GET / HTTP/1.1\r\nHost: www.example.com\r\nX-Some-Header\r\x1b5\xd5eep-Alive\r\nAccept-Encoding: gzip\r\n\r\n", &[Err(400)]),
    ("LF before a length", b"GET / HTTP/1.1\r\nHost: localhost\r\nDummy: x\nContent-Length: 23\r\n\r\nGET / HTTP/1.1\r\nDummy: GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n", &[Err(400)]),
    ("version 5.6, no more", b"GET / HTTP/5.6", &[]),
    ("version 5.6", b"GET / HTTP/5.6\r\nHost: a\r\n\r\n", &[Err(505)]),
    ("space before the first field", b"GET / HTTP/1.1\r\n Host: foo\r\n\r\n", &[Err(400)]),
    ("LF only", b"POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nTrailer: Baz\r\nFoo: abc\nBar: def\n\n1\nA\n1;abc\nB\n1;def=ghi\nC\n1;jkl=\"mno\"\nD\n0\n\nBaz: ghi\n\n", &[Err(400)]),
    ("the same with CRLF", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: Baz\r\nFoo: abc\r\nBar: def\r\n\r\n1\r\nA\r\n1;abc\r\nB\r\n1;def=ghi\r\nC\r\n1;jkl=\"mno\"\r\nD\r\n0\r\nBaz: ghi\r\n\r\n", &[Ok(("POST", "/", "ABCD"))]),
    ("space before a length", b"POST /hello HTTP/1.1\r\nHost: localhost\r\nFoo: bar\r\n Content-Length: 38\r\n\r\nGET /bye HTTP/1.1\r\nHost: localhost\r\n\r\n", &[Err(400)]),
    // lenient-header-value-relaxed.md, lenient-headers.md
    ("form feed in a value", b"GET /url HTTP/1.1\r\nHost: a\r\nHeader1: hello\x0cworld\r\n\r\n", &[Err(400)]),
    ("space before another first field", b"GET /url HTTP/1.1\r\n Header1: value\r\nHost: a\r\n\r\n", &[Err(400)]),
    ("form feed for a value", b"GET /url HTTP/1.1\r\nHost: a\r\nHeader1: \x0c\r\n\r\n", &[Err(400)]),
    ("form feed in the second request", b"GET /url HTTP/1.1\r\nHost: a\r\nHeader1: Okay\r\n\r\n\r\nGET /url HTTP/1.1\r\nHost: a\r\nHeader1: \x0c\r\n\r\n", &[Ok(("GET", "/url", "")), Err(400)]),
    // method.md
    ("no Host", b"REPORT /test HTTP/1.1\r\n\r\n", &[Err(400)]),
    ("REPORT", b"REPORT /test HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("REPORT", "/test", ""))]),
    ("CONNECT, data behind", b"CONNECT 0-home0.netscape.com:443 HTTP/1.0\r\nUser-agent: Mozilla/1.1N\r\nProxy-authorization: basic aGVsbG86d29ybGQ=\r\n\r\nsome data\r\nand yet even more data", &[Err(405)]),
    ("CONNECT, upper case", b"CONNECT HOME0.NETSCAPE.COM:443 HTTP/1.0\r\nUser-agent: Mozilla/1.1N\r\nProxy-authorization: basic aGVsbG86d29ybGQ=\r\n\r\n", &[Err(405)]),
    ("CONNECT with a body", b"CONNECT foo.bar.com:443 HTTP/1.0\r\nUser-agent: Mozilla/1.1N\r\nProxy-authorization: basic aGVsbG86d29ybGQ=\r\nContent-Length: 10\r\n\r\nblarfcicle\"", &[Err(405)]),
    ("M-SEARCH", b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMAN: \"ssdp:discover\"\r\nST: \"ssdp:all\"\r\n\r\n", &[Err(400)]),
    ("PATCH", b"PATCH /file.txt HTTP/1.1\r\nHost: www.example.com\r\nContent-Type: application/example\r\nIf-Match: \"e0023aa4e\"\r\nContent-Length: 10\r\n\r\ncccccccccc", &[Ok(("PATCH", "/file.txt", "cccccccccc"))]),
    ("PURGE", b"PURGE /file.txt HTTP/1.1\r\nHost: www.example.com\r\n\r\n", &[Ok(("PURGE", "/file.txt", ""))]),
    ("SEARCH", b"SEARCH / HTTP/1.1\r\nHost: www.example.com\r\n\r\n", &[Ok(("SEARCH", "/", ""))]),
    ("LINK", b"LINK /images/my_dog.jpg HTTP/1.1\r\nHost: example.com\r\nLink: <http://example.com/profiles/joe>; rel=\"tag\"\r\nLink: <http://example.com/profiles/sally>; rel=\"tag\"\r\n\r\n", &[Ok(("LINK", "/images/my_dog.jpg", ""))]),
    ("UNLINK", b"UNLINK /images/my_dog.jpg HTTP/1.1\r\nHost: example.com\r\nLink: <http://example.com/profiles/sally>; rel=\"tag\"\r\n\r\n", &[Ok(("UNLINK", "/images/my_dog.jpg", ""))]),
    ("SOURCE", b"SOURCE /music/sweet/music HTTP/1.1\r\nHost: example.com\r\n\r\n", &[Ok(("SOURCE", "/music/sweet/music", ""))]),
    ("SOURCE of ICE", b"SOURCE /music/sweet/music ICE/1.0\r\nHost: example.com\r\n\r\n", &[Err(400)]),
    ("OPTIONS of RTSP", b"OPTIONS /music/sweet/music RTSP/1.0\r\nHost: example.com\r\n\r\n", &[Err(400)]),
    ("ANNOUNCE of RTSP", b"ANNOUNCE /music/sweet/music RTSP/1.0\r\nHost: example.com\r\n\r\n", &[Err(400)]),
    ("PRI of version 1.1", b"PRI * HTTP/1.1\r\nHost: a\r\n\r\nSM\r\n\r\n", &[Err(400)]),
    ("QUERY", b"QUERY /contacts HTTP/1.1\r\nHost: example.org\r\nContent-Type: example/query\r\nAccept: text/csv\r\nContent-Length: 41\r\n\r\nselect surname, givenname, email limit 10", &[Ok(("QUERY", "/contacts", "select surname, givenname, email limit 10"))]),
    // pausing.md
    ("a length of 3", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", &[Ok(("POST", "/", "abc"))]),
    ("a chunk", b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n", &[Ok(("PUT", "/", "0123456789"))]),
    ("a chunk with an extension", b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na;foo=bar\r\n0123456789\r\n0\r\n\r\n", &[Ok(("PUT", "/", "0123456789"))]),
    // pipelining.md
    ("three requests", b"POST /aaa HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nAAA\r\nPUT /bbb HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nBBBB\r\nPATCH /ccc HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nCCCC", &[Ok(("POST", "/aaa", "AAA")), Ok(("PUT", "/bbb", "BBBB"))]),
    ("three whole requests", b"POST /aaa HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nAAAPUT /bbb HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nBBBBPATCH /ccc HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nCCCCC", &[Ok(("POST", "/aaa", "AAA")), Ok(("PUT", "/bbb", "BBBB")), Ok(("PATCH", "/ccc", "CCCCC"))]),
    // sample.md
    ("OPTIONS", b"OPTIONS /url HTTP/1.1\r\nHost: a\r\nHeader1: Value1\r\nHeader2:\t Value2\r\n\r\n", &[Ok(("OPTIONS", "/url", ""))]),
    ("HEAD", b"HEAD /url HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("HEAD", "/url", ""))]),
    ("curl", b"GET /test HTTP/1.1\r\nUser-Agent: curl/7.18.0 (i486-pc-linux-gnu) libcurl/7.18.0 OpenSSL/0.9.8g zlib/1.2.3.3 libidn/1.1\r\nHost: 0.0.0.0=5000\r\nAccept: */*\r\n\r\n", &[Ok(("GET", "/test", ""))]),
    ("Firefox", b"GET /favicon.ico HTTP/1.1\r\nHost: 0.0.0.0=5000\r\nUser-Agent: Mozilla/5.0 (X11; U; Linux i686; en-US; rv:1.9) Gecko/2008061015 Firefox/3.0\r\nAccept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en-us,en;q=0.5\r\nAccept-Encoding: gzip,deflate\r\nAccept-Charset: ISO-8859-1,utf-8;q=0.7,*;q=0.7\r\nKeep-Alive: 300\r\nConnection: keep-alive\r\n\r\n", &[Ok(("GET", "/favicon.ico", ""))]),
    ("no space behind a colon", b"GET /dumbpack HTTP/1.1\r\nHost: a\r\naaaaaaaaaaaaa:++++++++++\r\n\r\n", &[Ok(("GET", "/dumbpack", ""))]),
    ("no fields in 1.1", b"GET /get_no_headers_no_body/world HTTP/1.1\r\n\r\n", &[Err(400)]),
    ("Host only", b"GET /get_no_headers_no_body/world HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("GET", "/get_no_headers_no_body/world", ""))]),
    ("one field more", b"GET /get_one_header_no_body HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", &[Ok(("GET", "/get_one_header_no_body", ""))]),
    ("Apache bench", b"GET /test HTTP/1.0\r\nHost: 0.0.0.0:5000\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n", &[Ok(("GET", "/test", ""))]),
    ("empty line first", b"\r\nGET /test HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("GET", "/test", ""))]),
    ("no version", b"GET /\r\n\r\n", &[Err(400)]),
    ("folded values", b"GET / HTTP/1.1\r\nHost: a\r\nLine1:   abc\r\n\tdef\r\n ghi\r\n\t\tjkl\r\n  mno \r\n\t \tqrs\r\nLine2: \t line2\t\r\nLine3:\r\n line3\r\nLine4: \r\n \r\nConnection:\r\n close\r\n\r\n", &[Err(400)]),
    ("folded values with LF", b"GET / HTTP/1.1\r\nHost: a\r\nLine1:   abc\n\tdef\n ghi\n\t\tjkl\n  mno \n\t \tqrs\nLine2: \t line2\t\nLine3:\n line3\nLine4: \n \nConnection:\n close\n\n", &[Err(400)]),
    ("folded empty value", b"GET / HTTP/1.1\r\nHost: a\r\nLine3:\r\n line3\r\n\r\n", &[Err(400)]),
    ("fold of a space only", b"GET / HTTP/1.1\r\nHost: a\r\nLine4: \r\n \r\n\r\n", &[Err(400)]),
    ("tabs around a value", b"GET / HTTP/1.1\r\nHost: a\r\nLine2: \t line2\t\r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("CR behind the request line", b"GET / HTTP/1.1\rLine: 1\r\n\r\n", &[Err(400)]),
    ("empty line, then a field", b"\r\nGET /url HTTP/1.1\r\nHost: a\r\nHeader1: Value1\r\n\r\n", &[Ok(("GET", "/url", ""))]),
    ("UTF-8 in a value", b"GET / HTTP/1.1\r\nHost: a\r\nTest: D\xc3\xbcsseldorf\r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("0xff in a value", b"OPTIONS /url HTTP/1.1\r\nHost: a\r\nHeader1: Value1\r\nHeader2: \xffValue2\r\n\r\n", &[Ok(("OPTIONS", "/url", ""))]),
    ("folded certificate", b"GET / HTTP/1.1\r\nHost: a\r\nX-SSL-Nonsense:   -----BEGIN CERTIFICATE-----\r\n\tMIIFbTCC\r\n\tRA==\r\n\t-----END CERTIFICATE-----\r\n\r\n", &[Err(400)]),
    // transfer-encoding.md
    ("no chunk yet", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", &[]),
    ("size in lower case", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n", &[Ok(("PUT", "/url", "0123456789"))]),
    ("size in upper case", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", &[Ok(("PUT", "/url", "0123456789"))]),
    ("size of two digits", b"POST /post_chunked_all_your_base HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\nall your base are belong to us\r\n0\r\n\r\n", &[Ok(("POST", "/post_chunked_all_your_base", "all your base are belong to us"))]),
    ("zeros for the last chunk", b"POST /two_chunks_mult_zero_end HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n000\r\n\r\n", &[Ok(("POST", "/two_chunks_mult_zero_end", "hello world"))]),
    ("trailers", b"POST /chunked_w_trailing_headers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\nVary: *\r\nContent-Type: text/plain\r\n\r\n", &[Ok(("POST", "/chunked_w_trailing_headers", "hello world"))]),
    ("extensions", b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;ilovew3;somuchlove=aretheseparametersfor;another=withvalue\r\nhello\r\n6;blahblah;blah\r\n world\r\n0\r\n\r\n", &[Ok(("POST", "/chunked_w_unicorns_after_length", "hello world"))]),
    ("extension without a semicolon", b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: localhost\r\nTransfer-encoding: chunked\r\n\r\n2 erfrferferf\r\naa\r\n0 rrrr\r\n\r\n", &[Err(400)]),
    ("quoted extension", b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;ilovew3=\"I \\\"love\\\"; \\\\extensions\\\\\";somuchlove=\"aretheseparametersfor\";blah;foo=bar\r\nhello\r\n6;blahblah;blah\r\n world\r\n0\r\n\r\n", &[Ok(("POST", "/chunked_w_unicorns_after_length", "hello world"))]),
    ("extension without a name", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-encoding: chunked\r\n\r\n2;\r\naa\r\n0\r\n\r\n", &[Err(400)]),
    ("unbalanced quote", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;ilovew3=\"abc\";somuchlove=\"def; ghi\r\nhello\r\n6;blahblah;blah\r\n world\r\n0\r\n\r\n", &[Err(400)]),
    ("two fields of codings", b"POST / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nWorld\r\n0\r\n\r\n", &[Err(501)]),
    ("user's name in the target", b"GET http://a%12:b!&*$@hypnotoad.org:1234/toto HTTP/1.1\r\nHost: hypnotoad.org:1234\r\n\r\n", &[Err(400)]),
    ("pigeons", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: pigeons\r\n\r\n", &[Err(400)]),
    ("identity and a length, fragment", b"POST /post_identity_body_world?q=search#hey HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nWorld", &[Err(400)]),
    ("identity and a length", b"POST /post_identity_body_world?q=search HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n\r\nWorld", &[Err(400)]),
    ("empty codings and a length", b"POST / HTTP/1.1\r\nHost: foo\r\nContent-Length: 10\r\nTransfer-Encoding:\r\nTransfer-Encoding:\r\nTransfer-Encoding:\r\n\r\n2\r\nAA\r\n0\r\n", &[Err(400)]),
    ("chunked before deflate", b"POST /post_identity_body_world?q=search HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: chunked, deflate\r\n\r\nWorld", &[Err(400)]),
    ("chunked before deflate, two fields", b"POST /post_identity_body_world?q=search HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: deflate\r\n\r\nWorld", &[Err(400)]),
    ("deflate before chunked", b"POST /post_identity_body_world?q=search HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: deflate, chunked\r\n\r\n5\r\nWorld\r\n0\r\n\r\n", &[Err(501)]),
    ("chunkedchunked", b"POST /post_identity_body_world?q=search HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: chunkedchunked\r\n\r\n5\r\nWorld\r\n0\r\n\r\n", &[Err(400)]),
    ("no last chunk", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfoo\r\n\r\n", &[Err(400)]),
    ("LF behind a size", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3 \n  \r\nfoo\r\n\r\n", &[Err(400)]),
    ("folded behind chunked", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n  abc\r\n\r\n5\r\nWorld\r\n0\r\n\r\n", &[Err(400)]),
    ("two CR behind a size", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close \r\nTransfer-Encoding: chunked \r\n\r\n5\r\r;ABCD\r\n34\r\nE\r\n0\r\n\r\nGET / HTTP/1.1 \r\nHost: a\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", &[Err(400)]),
    ("two CR behind another size", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close \r\nTransfer-Encoding: chunked \r\n\r\n6\r\r;ABCD\r\n33\r\nE\r\n0\r\n\r\nGET / HTTP/1.1 \r\nHost: a\r\nContent-Length: 5\r\n0\r\n\r\n", &[Err(400)]),
    ("no line end behind a chunk", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close \r\nTransfer-Encoding: chunked \r\n\r\n5\r\nABCDE0\r\n\r\n", &[Err(400)]),
    ("space behind a size", b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na \r\n0123456789\r\n0\r\n\r\n", &[Err(400)]),
    // uri.md
    ("quotes", b"GET /with_\"lovely\"_quotes?foo=\\\"bar\\\" HTTP/1.1\r\nHost: a\r\n\r\n", &[Err(400)]),
    ("question mark in a query", b"GET /test.cgi?foo=bar?baz HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("GET", "/test.cgi?foo=bar?baz", ""))]),
    ("query behind a host", b"GET http://hypnotoad.org?hail=all HTTP/1.1\r\nHost: hypnotoad.org\r\n\r\n", &[Ok(("GET", "http://hypnotoad.org/?hail=all", ""))]),
    ("query behind a port", b"GET http://hypnotoad.org:1234?hail=all HTTP/1.1\r\nHost: hypnotoad.org:1234\r\n\r\n", &[Ok(("GET", "http://hypnotoad.org:1234/?hail=all", ""))]),
    ("space behind a port", b"GET http://hypnotoad.org:1234 HTTP/1.1\r\nHost: hypnotoad.org:1234\r\n\r\n", &[Ok(("GET", "http://hypnotoad.org:1234/", ""))]),
    ("UTF-8 in a path", b"GET /\xce\xb4\xc2\xb6/\xce\xb4t/pope?q=1 HTTP/1.1\r\nHost: github.com\r\n\r\n", &[Err(400)]),
    ("fragment", b"GET /forums/1/topics/2375?page=1#posts-17408 HTTP/1.1\r\nHost: a\r\n\r\n", &[Err(400)]),
    ("underscore in a host", b"CONNECT home_0.netscape.com:443 HTTP/1.0\r\nUser-agent: Mozilla/1.1N\r\nProxy-authorization: basic aGVsbG86d29ybGQ=\r\n\r\n", &[Err(405)]),
    ("space in a path", b"GET /foo bar/ HTTP/1.1\r\nHost: a\r\n\r\n", &[Err(400)]),
];

#[rustfmt::skip]
const PICO: &[Case] = &[
    ("simple", b"GET / HTTP/1.0\r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("LF missing", b"GET / HTTP/1.0\r\n\r", &[]),
    ("empty value", b"GET /hoge HTTP/1.1\r\nHost: example.com\r\nCookie: \r\n\r\n", &[Ok(("GET", "/hoge", ""))]),
    ("bytes that are no text", b"GET /hoge HTTP/1.1\r\nHost: example.com\r\nUser-Agent: \xe3\x81\xb2\xe3/1.0\r\n\r\n", &[Ok(("GET", "/hoge", ""))]),
    ("folded value", b"GET / HTTP/1.0\r\nfoo: \r\nfoo: b\r\n  \tc\r\n\r\n", &[Err(400)]),
    ("space before a colon", b"GET / HTTP/1.0\r\nfoo : ab\r\n\r\n", &[Err(400)]),
    ("partial 1", b"GET", &[]),
    ("partial 2", b"GET ", &[]),
    ("partial 3", b"GET /", &[]),
    ("partial 4", b"GET / ", &[]),
    ("partial 5", b"GET / H", &[]),
    ("partial 6", b"GET / HTTP/1.", &[]),
    ("partial 7", b"GET / HTTP/1.0", &[]),
    ("partial 8", b"GET / HTTP/1.0\r", &[]),
    ("slow, partial", b"GET /hoge HTTP/1.0\r\n\r", &[]),
    ("slow, whole", b"GET /hoge HTTP/1.0\r\n\r\n", &[Ok(("GET", "/hoge", ""))]),
    ("empty method", b" / HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("empty target", b"GET  HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("empty name", b"GET / HTTP/1.0\r\n:a\r\n\r\n", &[Err(400)]),
    ("space for a name", b"GET / HTTP/1.0\r\n :a\r\n\r\n", &[Err(400)]),
    ("NUL in a method", b"G\0T / HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("tab in a method", b"G\tT / HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("colon in a method", b":GET / HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("DEL in a path", b"GET /\x7fhello HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("NUL in a name", b"GET / HTTP/1.0\r\na\0b: c\r\n\r\n", &[Err(400)]),
    ("NUL in a value", b"GET / HTTP/1.0\r\nab: c\0d\r\n\r\n", &[Err(400)]),
    ("escape in a name", b"GET / HTTP/1.0\r\na\x1bb: c\r\n\r\n", &[Err(400)]),
    ("escape in a value", b"GET / HTTP/1.0\r\nab: c\x1b\r\n\r\n", &[Err(400)]),
    ("slash for a name", b"GET / HTTP/1.0\r\n/: 1\r\n\r\n", &[Err(400)]),
    ("high byte in a path", b"GET /\xa0 HTTP/1.0\r\nh: c\xa2y\r\n\r\n", &[Err(400)]),
    ("high byte in a value", b"GET / HTTP/1.0\r\nh: c\xa2y\r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("bar and tilde for a name", b"GET / HTTP/1.0\r\n|~: 1\r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("brace for a name", b"GET / HTTP/1.0\r\n{: 1\r\n\r\n", &[Err(400)]),
    ("tab behind a value", b"GET / HTTP/1.0\r\nfoo: a \t \r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("many spaces", b"GET   /   HTTP/1.0\r\n\r\n", &[Err(400)]),
    ("two fields", b"GET / HTTP/1.0\r\nHost: example.com\r\nCookie: \r\n\r\n", &[Ok(("GET", "/", ""))]),
    ("two fields, partial", b"GET / HTTP/1.0\r\nHost: example.com\r\nCookie: \r\n\r", &[]),
    ("BEL in a value", b"GET / HTTP/1.0\r\nHost: e\x07fample.com\r\nCookie: \r\n\r\n", &[Err(400)]),
    ("what stands behind chunks", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &[Ok(("POST", "/", "abcde")), Ok(("GET", "/", ""))]),
];

/// Bodies in chunks, without a head.
#[rustfmt::skip]
const PICO_CHUNKS: &[Case] = &[
    ("one, partial", b"b\r\nhello world\r\n0\r\n", &[]),
    ("two, partial", b"6\r\nhello \r\n5\r\nworld\r\n0\r\n", &[]),
    ("extension, partial", b"6;comment=hi\r\nhello \r\n5\r\nworld\r\n0\r\n", &[]),
    ("one", b"b\r\nhello world\r\n0\r\n\r\n", &[Ok(("POST", "/", "hello world"))]),
    ("two", b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", &[Ok(("POST", "/", "hello world"))]),
    ("extension", b"6;comment=hi\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", &[Ok(("POST", "/", "hello world"))]),
    ("spaces around a semicolon", b"6 ; comment\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", &[Ok(("POST", "/", "hello world"))]),
    ("trailers", b"6\r\nhello \r\n5\r\nworld\r\n0\r\na: b\r\nc: d\r\n\r\n", &[Ok(("POST", "/", "hello world"))]),
    ("no digit", b"z\r\nabcdefg", &[Err(400)]),
    ("sixteen digits", b"6\r\nhello \r\nffffffffffffffff\r\nabcdefg", &[Err(413)]),
    ("seventeen digits", b"6\r\nhello \r\nfffffffffffffffff\r\nabcdefg", &[Err(400)]),
    ("letter behind a size", b"1x\r\na\r\n0\r\n", &[Err(400)]),
    ("LF behind the first size", b"6\nhello \r\n5\r\nworld\r\n0\r\n", &[Err(400)]),
    ("LF behind the first chunk", b"6\r\nhello \n5\r\nworld\r\n0\r\n", &[Err(400)]),
    ("LF behind the second chunk", b"6\r\nhello \r\n5\r\nworld\n0\r\n", &[Err(400)]),
    ("LF behind the last size", b"6\r\nhello \r\n5\r\nworld\r\n0\n", &[Err(400)]),
    ("CR and a letter behind a size", b"6\rX\nhello \n5\r\nworld\r\n0\r\n", &[Err(400)]),
    ("LF for the last line", b"b\r\nhello world\r\n0\r\n\n", &[Err(400)]),
    ("LF behind trailers", b"6\r\nhello \r\n5\r\nworld\r\n0\r\na: b\nc: d\n\n", &[Err(400)]),
];
