//! A handler that keeps a cache of pages (ASH, section 6.4.3): it looks up the path of a request, and answers from its
//! memory. The server answers what is not in the cache. The pages are those of the build; to change one, build and reload.
//! A client that has a page asks with its tag, and gets 304.

#![no_std]

use ash_guest::{CallError, Message, Verdict, handler};

handler!(answer);

struct Page {
    path: &'static str,
    /// The head of the response between the status and the tag.
    head: &'static str,
    /// A strong entity tag, a hash of the body.
    tag: [u8; 10],
    body: &'static str,
}

/// Makes a page of a path, a type and a file, whose length is checked.
macro_rules! page {
    ($path:literal, $type:literal, $file:literal, $len:literal) => {{
        const BODY: &str = include_str!($file);
        const _: () = assert!(BODY.len() == $len, "the length of the file");
        Page {
            path: $path,
            head: concat!("Content-Type: ", $type, "\r\nContent-Length: ", $len, "\r\nETag: "),
            tag: tag(BODY.as_bytes()),
            body: BODY,
        }
    }};
}

static PAGES: [Page; 2] = [
    page!("/cached/", "text/html", "pages/index.html", 139),
    page!("/cached/style.css", "text/css", "pages/style.css", 31),
];

/// Returns the FNV-1a hash of a body between quotes.
const fn tag(body: &[u8]) -> [u8; 10] {
    let (mut hash, mut tag, mut n) = (0x811c_9dc5u32, [b'"'; 10], 0);
    while n < body.len() {
        hash = (hash ^ body[n] as u32).wrapping_mul(0x0100_0193);
        n += 1;
    }
    n = 0;
    while n < 8 {
        tag[n + 1] = b"0123456789abcdef"[(hash >> (28 - 4 * n)) as usize & 15];
        n += 1;
    }
    tag
}

fn answer(request: &Message<'_>) -> Verdict {
    let path =
        request.bytes().strip_prefix(b"GET ").and_then(|rest| rest.split(|b| *b == b' ').next());
    let Some(page) = PAGES.iter().find(|page| Some(page.path.as_bytes()) == path) else {
        return Verdict::Pass;
    };
    match send(page, request) {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::Abort,
    }
}

fn send(page: &'static Page, request: &Message<'_>) -> Result<(), CallError> {
    let is_same = request.bytes().split(|b| *b == b'\n').any(|line| {
        let (name, value) = line.split_at(line.len().min(14));
        name.eq_ignore_ascii_case(b"if-none-match:") && value.windows(10).any(|tag| tag == page.tag)
    });
    if is_same {
        request.send(b"HTTP/1.1 304 Not Modified\r\nETag: ")?;
        request.send(&page.tag)?;
        return request.send(b"\r\n\r\n");
    }
    request.send(b"HTTP/1.1 200 OK\r\n")?;
    request.send(page.head.as_bytes())?;
    request.send(&page.tag)?;
    request.send(b"\r\n\r\n")?;
    request.send(page.body.as_bytes())
}
