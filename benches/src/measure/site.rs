//! The file that is served, and what a reply with it looks like.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Server, Subject};
use crate::command::{What, Work};
use crate::failure::Failure;
use crate::outcome;

const BODY: &[u8; 12] = b"Hello world\n";

/// A directory with one small file, and the file server's reply with it, for the floors.
#[derive(Debug)]
pub(crate) struct Site {
    root: PathBuf,
    reply: PathBuf,
    reply_bytes: usize,
}

impl Site {
    /// Makes the file and asks a real server, on `mechanism`, for a reply.
    pub(crate) fn new(mechanism: &str) -> Result<Self, Failure> {
        let mut site = Site::bare(b"")?;
        let subject =
            Subject { what: What::App, mechanism: mechanism.to_owned(), work: Work::File };
        let reply = fetch(&Server::start(&subject, &site, &[])?)?;
        fs::write(&site.reply, &reply)?;
        site.reply_bytes = reply.len();
        Ok(site)
    }

    /// Makes the file, with a reply that is given.
    pub(crate) fn bare(reply: &[u8]) -> Result<Self, Failure> {
        let root = outcome::directory()?.join("site");
        fs::create_dir_all(&root)?;
        fs::write(root.join("hello.txt"), BODY)?;
        // Beside the root, and one for each process, as tests run at the same time.
        let reply_file = root.with_file_name(format!("reply-{}", std::process::id()));
        fs::write(&reply_file, reply)?;
        Ok(Site { root, reply: reply_file, reply_bytes: reply.len() })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn reply(&self) -> &Path {
        &self.reply
    }

    /// How long the reply is.
    pub(crate) fn reply_bytes(&self, work: Work) -> usize {
        match work {
            Work::Echo => work.request().len(),
            Work::File => self.reply_bytes,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.reply);
    }
}

/// Asks for the file, once.
pub(super) fn fetch(server: &Server) -> Result<Vec<u8>, Failure> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(Work::File.request())?;
    let mut reply = Vec::new();
    while !reply.ends_with(BODY) {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).map_err(|e| Failure::new("no reply with the file", e))? {
            0 => break,
            n => reply.extend_from_slice(&piece[..n]),
        }
    }
    if reply.starts_with(b"HTTP/1.1 200 ") && reply.ends_with(BODY) {
        return Ok(reply);
    }
    let text = String::from_utf8_lossy(&reply);
    let status = text.lines().next().unwrap_or("nothing");
    Err(Failure::Run(format!("asked for the file, the server said: {status}")))
}
