//! The served files, and a sample reply.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use super::{Server, Subject};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::outcome;

/// The line that fills the files.
pub(crate) const HELLO: &str = "Hello world\n";

/// The file of the certificate for TLS, and that of its key.
pub(crate) const CERTIFICATE: &str = "cert.pem";
pub(crate) const KEY: &str = "key.pem";

/// Names and lengths of the files.
const FILES: [(&str, usize); 8] = [
    ("hello.txt", HELLO.len()),
    ("1k.txt", 1 << 10),
    ("2k.txt", 2 << 10),
    ("4k.txt", 4 << 10),
    ("6k.txt", 6 << 10),
    ("8k.txt", 8 << 10),
    ("64k.txt", 1 << 16),
    ("1m.txt", 1 << 20),
];

/// A directory of files, and a reply with one of them, for the floors.
#[derive(Debug)]
pub(crate) struct Site {
    root: PathBuf,
    reply: PathBuf,
    reply_bytes: usize,
}

impl Site {
    /// Creates the files, and takes the file server's reply with the shortest one, on `mechanism`.
    pub(crate) fn new(mechanism: &str) -> Result<Self, Failure> {
        let mechanism = mechanism.to_owned();
        let subject = Subject { what: ServerKind::App, mechanism, work: Workload::File };
        Site::asking(&subject, Workload::PATH, 1)
    }

    /// Creates the files, and takes the reply of `subject` to `path`, which floors send `times` times.
    pub(crate) fn asking(subject: &Subject, path: &str, times: usize) -> Result<Self, Failure> {
        let mut site = Site::bare(b"")?;
        let reply = fetch(&Server::start(subject, &site)?, path)?.repeat(times);
        fs::write(&site.reply, &reply)?;
        site.reply_bytes = reply.len();
        Ok(site)
    }

    /// Creates the files, with a given reply.
    pub(crate) fn bare(reply: &[u8]) -> Result<Self, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // One directory per site, as tests run concurrently, and as some servers read all files.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = outcome::directory()?.join(format!("site-{}-{number}", std::process::id()));
        fs::create_dir_all(&root)?;
        let reply_file = root.with_extension("reply");
        let site = Site { root, reply: reply_file, reply_bytes: reply.len() };
        for (name, length) in FILES {
            site.add(name, length)?;
        }
        fs::write(&site.reply, reply)?;
        Ok(site)
    }

    /// Returns the directory of the files.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Creates another file.
    pub(crate) fn add(&self, name: &str, length: usize) -> Result<(), Failure> {
        let lines = HELLO.as_bytes().repeat(length / HELLO.len() + 1);
        Ok(fs::write(self.root.join(name), &lines[..length])?)
    }

    /// Creates a file with these contents.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<(), Failure> {
        Ok(fs::write(self.root.join(name), contents)?)
    }

    /// Creates another file, which is on the disk and can leave the page cache.
    pub(crate) fn add_cold(&self, name: &str, length: usize) -> Result<(), Failure> {
        self.add(name, length)?;
        Ok(fs::File::open(self.root.join(name))?.sync_data()?)
    }

    /// Makes the files that are on the disk leave the page cache.
    pub(crate) fn evict(&self) -> Result<(), Failure> {
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let file = fs::File::open(entry.path())?;
                fadvise(&file, 0, None, Advice::DontNeed).map_err(io::Error::from)?;
            }
        }
        Ok(())
    }

    pub(super) fn reply(&self) -> &Path {
        &self.reply
    }

    /// Returns the length of the reply.
    pub(crate) fn reply_bytes(&self, work: Workload) -> usize {
        match work {
            Workload::Echo => Workload::ECHO.len(),
            Workload::File => self.reply_bytes,
            // The client knows the length of each.
            Workload::Kv | Workload::KvGets | Workload::KvMultiget => 0,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.reply);
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Requests a file. Returns the reply, which must have status 200.
///
/// Our servers give files that were just written a longer entity tag, for one reply only; the reply is one with the
/// later tag.
pub(crate) fn fetch(server: &Server, path: &str) -> Result<Vec<u8>, Failure> {
    let mut reply = fetch_once(server, path)?;
    loop {
        let next = fetch_once(server, path)?;
        let is_settled = field(&reply, "etag") == field(&next, "etag");
        reply = next;
        if is_settled {
            return Ok(reply);
        }
    }
}

fn fetch_once(server: &Server, path: &str) -> Result<Vec<u8>, Failure> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // Sent in one piece, as some servers reply after the first and close.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    while length(&reply).is_none_or(|length| reply.len() < length) {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => reply.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(Failure::new(format!("no reply to a request for {path}"), error));
            }
        }
    }
    if let Some(length) = length(&reply).filter(|n| *n <= reply.len())
        && reply.starts_with(b"HTTP/1.1 200 ")
    {
        // A floor may send more than one reply.
        reply.truncate(length);
        return Ok(reply);
    }
    let text = String::from_utf8_lossy(&reply);
    let status = text.lines().next().unwrap_or("nothing");
    Err(Failure::Run(format!("the reply to {path} is not 200 OK: {status}")))
}

/// Returns the length of a reply, once its head is complete.
fn length(reply: &[u8]) -> Option<usize> {
    let (end, length) = field(reply, "content-length")?;
    Some(end + length.parse::<usize>().ok()?)
}

/// Returns the length of a reply's head, once it is complete, and the value of a field in it.
fn field(reply: &[u8], name: &str) -> Option<(usize, String)> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(end)) = head.parse(reply) else { return None };
    let field = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
    Some((end, String::from_utf8_lossy(field.value).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::length;

    #[test]
    fn reply_length_includes_head_and_body() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n";
        assert_eq!(length(head.as_bytes()), Some(head.len() + 12));
        assert_eq!(length(&head.as_bytes()[..20]), None);
        assert_eq!(length(b"HTTP/1.1 200 OK\r\n\r\n"), None);
    }
}
