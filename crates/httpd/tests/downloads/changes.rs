//! Files that change while they are sent.

use super::{LARGE, contents, name};

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The change to a file while it is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    Truncated,
    Appended,
    /// By rename(2).
    Replaced,
    /// In place, with as many bytes.
    Overwritten,
    /// In place, with one byte more.
    OverwrittenLonger,
    /// As cp(1) does, with one byte more.
    Copied,
}

impl Change {
    pub(crate) const ALL: [Change; 6] = [
        Change::Truncated,
        Change::Appended,
        Change::Replaced,
        Change::Overwritten,
        Change::OverwrittenLonger,
        Change::Copied,
    ];

    fn apply(self, path: &Path) {
        let write = |options: &mut OpenOptions, len| {
            options.open(path).unwrap().write_all(&vec![0xff; len]).unwrap();
        };
        match self {
            // Not to another length: the kernel would clear the rest of a page, which sockets may still refer to.
            Change::Truncated => drop(fs::File::create(path).unwrap()),
            Change::Appended => write(OpenOptions::new().append(true), 100_000),
            Change::Replaced => {
                let new = path.with_extension("new");
                fs::write(&new, vec![0xff; LARGE]).unwrap();
                fs::rename(new, path).unwrap();
            }
            Change::Overwritten => write(OpenOptions::new().write(true), LARGE),
            Change::OverwrittenLonger => write(OpenOptions::new().write(true), LARGE + 1),
            Change::Copied => write(OpenOptions::new().write(true).truncate(true), LARGE + 1),
        }
    }

    /// Downloads a large file, which changes after its first byte has arrived. The reply is cut, or whole and without new bytes.
    pub(crate) fn download(self, root: &Path, stream: impl Read + Write, what: &str) {
        let (len, body) = self.receive(root, stream, "");
        assert_eq!(len, LARGE, "{what}");
        match self {
            Change::Appended | Change::Replaced => {
                assert!(body == contents(LARGE), "{self:?}, {what}: {} bytes", body.len());
            }
            _ => assert!(body.len() < LARGE, "{self:?}, {what}: the reply was not cut"),
        }
        if self == Change::Truncated {
            assert!(contents(LARGE).starts_with(&body), "{what}");
        }
    }

    /// Downloads ranges of a large file, which changes after its first byte has arrived. The reply is cut.
    pub(crate) fn download_ranges(
        self,
        root: &Path,
        stream: impl Read + Write,
        ranges: &str,
        what: &str,
    ) {
        let (len, body) = self.receive(root, stream, &format!("Range: bytes={ranges}\r\n"));
        assert!(body.len() < len, "{self:?}, {what}, {ranges}: the reply was not cut");
    }

    /// Requests a large file, which changes after its first byte has arrived. Returns the length of the body and what arrives
    /// of it.
    fn receive(self, root: &Path, mut stream: impl Read + Write, field: &str) -> (usize, Vec<u8>) {
        let name = name(LARGE);
        let request = format!("GET /{name} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let head = String::from_utf8(receive_head(&mut stream)).unwrap();
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let len: usize = len.unwrap_or_else(|| panic!("{head}")).parse().unwrap();
        // In front of several ranges is a head of the first one.
        let is_multipart = head.contains("multipart/byteranges");
        let mut body = if is_multipart { receive_head(&mut stream) } else { Vec::new() };
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        self.apply(&root.join(name));
        body.extend(byte);
        let left = len - body.len();
        match stream.take(left as u64).read_to_end(&mut body) {
            Ok(_) => {}
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof),
                "{error}"
            ),
        }
        (len, body)
    }
}

/// Receives bytes up to an empty line.
fn receive_head(stream: &mut impl Read) -> Vec<u8> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    head
}

/// One range that begins after the first byte, and several, the first of which any socket takes at once.
pub(crate) fn ranges() -> [String; 2] {
    let parts: Vec<_> =
        (1..16).map(|n| format!("{}-{}", n * 60_000, n * 60_000 + 59_999)).collect();
    ["1-".to_owned(), format!("0-9,{}", parts.join(","))]
}

/// Writes the large file again, with an old time of its last change.
pub(crate) fn restore(root: &Path) {
    let path = root.join(name(LARGE));
    fs::write(&path, contents(LARGE)).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
}
