//! The client of the web server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use evring_httpd::body::{Body, BodyError, RequestBody};
use evring_httpd::options::Limits;
use evring_httpd::{Request, Response, Site};
use evring_sim::{Fault, FileVersions, Net, PeerConn};

use super::pattern::{LONG_FILE, PATTERN};
use super::talker::{ProtocolModel, Shared, has_happened_to};

/// The files of the site: name and length. The contents of the largest one are checked between its blocks.
pub(super) const FILES: [(&str, usize); 6] = [
    ("a.txt", 12),
    ("b.html", 3_000),
    ("empty", 0),
    ("dir/index.html", 700),
    ("middle.bin", 20_000),
    ("large.bin", 300_000),
];

/// Maximum number of files that the server keeps open.
pub(super) const MAX_OPEN_FILES: usize = 4;

/// Adds the site's handlers.
pub(super) fn site(site: Site) -> Site {
    let mut limits = Limits::default();
    limits.half_close = true;
    limits.max_open_files = MAX_OPEN_FILES;
    site.limits(limits)
        .route("/hello", |_: Request| "Hello, World!\n")
        .route("/echo", |request: Request| request.into_body())
        .route("/echo-later", async |request: Request| {
            later().await;
            request.into_body()
        })
        .route("/echo-pieces", echo_pieces)
}

/// The paths that return the body of a request.
const ECHOES: [&str; 3] = ["/echo", "/echo-later", "/echo-pieces"];

/// Receives a body in pieces, and returns it in pieces; waits before each.
async fn echo_pieces(request: Request<RequestBody>) -> Result<Response, BodyError> {
    let mut body = request.into_body();
    let mut pieces = VecDeque::new();
    while let Some(piece) = body.next().await {
        pieces.push_back(piece?);
        later().await;
    }
    let len = pieces.iter().map(|piece| piece.len() as u64).sum();
    let mut wait = wait();
    Ok(Response::new(Body::poll_fn(Some(len), move |context| {
        wait(context).map(|()| pieces.pop_front().map(Ok))
    })))
}

/// Returns a function that is pending at every other call, and wakes its task then.
fn wait() -> impl FnMut(&mut Context<'_>) -> Poll<()> {
    let mut is_ready = true;
    move |context| {
        is_ready = !is_ready;
        if is_ready {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Waits for one wake-up.
async fn later() {
    poll_fn(wait()).await;
}

/// An expected reply.
#[derive(Debug)]
struct Expected {
    status: u16,
    body: Vec<u8>,
    /// It has a Content-Length but no body.
    is_head: bool,
    /// The server closes the connection after it.
    is_last: bool,
    /// The file that it depends on.
    file: Option<&'static str>,
    /// If it is a part of a file: the length of the file, and the offset.
    part: Option<(usize, usize)>,
}

impl Expected {
    /// Returns whether this fault has happened to the file that it depends on.
    fn has_happened(&self, net: &Net<'_>, fault: Fault) -> bool {
        self.file.is_some_and(|name| has_happened_to(net, fault, name))
    }

    /// Returns whether a body, or for HEAD its length, is the expected one. `changed` is set if
    /// files have changed; `start` is the offset in the file.
    fn matches(&self, len: usize, body: &[u8], changed: bool, start: usize) -> bool {
        let may_differ = changed && self.part.is_some();
        (may_differ || self.body.len() == len) && self.begins_with(body, changed, start)
    }

    /// Returns whether the expected body begins with these bytes.
    fn begins_with(&self, body: &[u8], changed: bool, start: usize) -> bool {
        let Some((size, _)) = self.part.filter(|_| changed) else {
            return self.body.starts_with(body);
        };
        let (original, mut versions) = (&PATTERN[..size], FileVersions::default());
        (start..).zip(body).all(|(at, byte)| versions.accepts(original, at, *byte))
    }
}

/// A model of the web server.
pub(super) struct HttpModel {
    shared: Shared,
    expected: VecDeque<Expected>,
    ends: bool,
    /// It requests the long file, too.
    requests_long: bool,
}

impl HttpModel {
    pub(super) fn new(shared: &Shared) -> Self {
        HttpModel {
            shared: shared.clone(),
            expected: VecDeque::new(),
            ends: false,
            requests_long: false,
        }
    }

    /// Requests the long file, too, one at a time.
    pub(super) fn requesting_long(self, requests_long: bool) -> Self {
        HttpModel { requests_long, ..self }
    }

    /// Chooses a file: name and length.
    fn file(&self, below: &mut dyn FnMut(usize) -> usize) -> (&'static str, usize) {
        let is_long =
            |expected: &Expected| expected.part.is_some_and(|(len, _)| len == LONG_FILE.1);
        match self.requests_long && !self.expected.iter().any(is_long) && below(6) == 0 {
            true => LONG_FILE,
            false => FILES[below(FILES.len())],
        }
    }

    fn expect(&mut self, status: u16, body: Vec<u8>) -> &mut Expected {
        let expected =
            Expected { status, body, is_head: false, is_last: false, file: None, part: None };
        self.expected.push_back(expected);
        self.expected.back_mut().expect("it was just put there")
    }

    fn get(&mut self, below: &mut dyn FnMut(usize) -> usize, out: &mut Vec<u8>) -> bool {
        let (name, len) = self.file(below);
        let path = name.strip_suffix("index.html").unwrap_or(name);
        let (method, is_head) = if below(5) == 0 { ("HEAD", true) } else { ("GET", false) };
        let (version, is_http_1_0) = if below(12) == 0 { ("1.0", true) } else { ("1.1", false) };
        let close = below(12) == 0;
        out.extend_from_slice(format!("{method} /{path} HTTP/{version}\r\nHost: a\r\n").as_bytes());
        if close {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        let range = below(5) == 0 && len > 100 && !is_head;
        let range_end = if len == LONG_FILE.1 { len / 2 } else { 60 };
        if range {
            out.extend_from_slice(format!("Range: bytes=5-{}\r\n", range_end - 1).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        let body = PATTERN[..len].to_vec();
        let expected = match range {
            true => self.expect(206, body[5..range_end].to_vec()),
            false => self.expect(200, body),
        };
        expected.file = Some(name);
        expected.part = Some((len, if range { 5 } else { 0 }));
        expected.is_head = is_head;
        expected.is_last = is_http_1_0 || close;
        !expected.is_last
    }

    fn post(&mut self, below: &mut dyn FnMut(usize) -> usize, out: &mut Vec<u8>) {
        let len = [0, 3, 900, 5_000][below(4)];
        let body = PATTERN[..len].to_vec();
        let path = ECHOES[below(ECHOES.len())];
        out.extend_from_slice(format!("POST {path} HTTP/1.1\r\nHost: a\r\n").as_bytes());
        if below(2) == 0 {
            out.extend_from_slice(format!("Content-Length: {len}\r\n\r\n").as_bytes());
            out.extend_from_slice(&body);
        } else {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(700) {
                out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
        self.expect(200, body);
    }

    /// Appends a request, chosen by the random numbers of `below`. Returns whether more may follow.
    pub(super) fn request(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        out: &mut Vec<u8>,
    ) -> bool {
        match below(20) {
            0..13 => return self.get(below, out),
            13..16 => self.post(below, out),
            16..18 => {
                out.extend_from_slice(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
                self.expect(200, b"Hello, World!\n".to_vec());
            }
            18 => {
                out.extend_from_slice(b"GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
                self.expect(404, Vec::new()).file = Some("none");
            }
            _ => {
                out.extend_from_slice(b"GET /a.txt HTTP/1.1\r\nBad field\r\n\r\n");
                self.expect(400, Vec::new()).is_last = true;
                return false;
            }
        }
        true
    }
}

impl ProtocolModel for HttpModel {
    fn reset(&mut self) {
        self.expected.clear();
        self.ends = false;
    }

    fn next_request(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        self.request(&mut |n| net.below(n), out)
    }

    fn check_replies(
        &mut self,
        net: &mut Net<'_>,
        conn: &PeerConn,
        bytes: &[u8],
    ) -> Result<usize, String> {
        let mut used = 0;
        while let Some(n) = self.reply(net, conn, &bytes[used..])? {
            used += n;
        }
        Ok(used)
    }

    fn check_cut(&self, net: &Net<'_>, bytes: &[u8]) -> Result<(), String> {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut reply = httparse::Response::new(&mut fields);
        let Ok(httparse::Status::Complete(head)) = reply.parse(bytes) else { return Ok(()) };
        let (status, body) = (reply.code.unwrap_or(0), &bytes[head..]);
        let expected = self.expected.front().filter(|expected| expected.status == status);
        let Some((expected, (_, start))) = expected.and_then(|e| Some((e, e.part?))) else {
            return Ok(());
        };
        let changed = expected.has_happened(net, Fault::FileChanges);
        match expected.begins_with(body, changed, start) {
            true => Ok(()),
            false => Err(format!("a body that ended after {} bytes differs", body.len())),
        }
    }

    fn outstanding(&self) -> Option<String> {
        let first = self.expected.front()?;
        let (status, len) = (first.status, first.body.len());
        Some(format!("{} replies, first {status} with {len} bytes", self.expected.len()))
    }

    fn needs_disk(&self) -> bool {
        self.expected.iter().any(|expected| expected.file.is_some())
    }

    fn has_file_fault(&self, net: &Net<'_>) -> bool {
        let mut faults = [Fault::DiskError, Fault::FileChanges].into_iter();
        faults.any(|fault| self.expected.iter().any(|expected| expected.has_happened(net, fault)))
    }

    fn may_close(&self) -> bool {
        self.ends
    }
}

impl HttpModel {
    /// Checks the next reply once it is complete, and returns its length.
    fn reply(
        &mut self,
        net: &mut Net<'_>,
        conn: &PeerConn,
        bytes: &[u8],
    ) -> Result<Option<usize>, String> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut reply = httparse::Response::new(&mut fields);
        let head = match reply.parse(bytes) {
            Ok(httparse::Status::Complete(n)) => n,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(format!("invalid reply: {error}: {}", bytes.escape_ascii())),
        };
        if self.ends {
            return Err("a reply follows one that ends the connection".to_owned());
        }
        let Some(expected) = self.expected.front() else {
            return Err("a reply without a request".to_owned());
        };
        let status = reply.code.unwrap_or(0);
        let failed = [Fault::TableFull, Fault::SlowDisk, Fault::DiskHangs]
            .iter()
            .any(|f| net.has_happened(*f))
            || expected.has_happened(net, Fault::DiskError)
            // Each request for a large file that has just changed opens it, so that none may be left for others.
            || status == 503 && net.has_happened(Fault::FileChanges);
        let excused = expected.file.is_some() && failed && (500..600).contains(&status);
        let too_slow = status == 408 && net.has_stalled(conn);
        let changed = expected.has_happened(net, Fault::FileChanges);
        // A truncated file may not have that part.
        let cut = changed && expected.status == 206 && matches!(status, 200 | 416);
        if status != expected.status && !excused && !too_slow && !cut {
            return Err(format!("expected status {}, received {status}", expected.status));
        }
        let field = |name: &str| {
            reply.headers.iter().find(|f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
        };
        let len = field("content-length").and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
        let Some(len) = len else { return Err("a reply without Content-Length".to_owned()) };
        let len: usize = len;
        let body = if expected.is_head { 0 } else { len };
        let Some(body) = bytes[head..].get(..body) else { return Ok(None) };
        let start = if status == 206 { expected.part.map_or(0, |(_, start)| start) } else { 0 };
        if matches!(status, 200 | 206) && !expected.matches(len, body, changed, start) {
            return Err(format!(
                "a body of {len} bytes differs from the expected one of {}",
                expected.body.len()
            ));
        }
        let closes = field("connection").is_some_and(|v| v.eq_ignore_ascii_case(b"close"));
        if expected.is_last && !closes && expected.status != 200 {
            return Err(format!("the reply {status} should end the connection"));
        }
        self.ends |= closes || expected.is_last;
        self.expected.pop_front();
        let early = closes && !self.expected.is_empty();
        if early && !(excused || too_slow || self.shared.stopping.get()) {
            return Err(format!("the reply {status} ends the connection too early"));
        }
        Ok(Some(head + body.len()))
    }
}
