//! The baseline of ECEM: a blocking thread for each connection, which sends files by read and write or by
//! sendfile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use rustix::fs::sendfile;

/// Size of the buffer for read and write, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// Maximum length of a request, in bytes.
const MAX_REQUEST_BYTES: usize = 4096;

/// How a thread sends a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    ReadWrite,
    Sendfile,
}

impl Method {
    /// Returns the method of a name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "read-write" => Some(Method::ReadWrite),
            "sendfile" => Some(Method::Sendfile),
            _ => None,
        }
    }
}

/// Serves the files of a directory until the listener is shut down.
pub(super) fn serve(listener: &TcpListener, root: &Path, method: Method) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { return };
        let root = root.to_owned();
        // It ends with its connection.
        thread::spawn(move || connection(stream, &root, method));
    }
}

/// Answers the requests of a connection. An error ends it.
fn connection(mut stream: TcpStream, root: &Path, method: Method) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut request = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            let n = stream.read(&mut buffer[..MAX_REQUEST_BYTES])?;
            if n == 0 || request.len() > MAX_REQUEST_BYTES {
                return Ok(());
            }
            request.extend_from_slice(&buffer[..n]);
        };
        let line = String::from_utf8_lossy(&request[..end]);
        let path = line.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
        request.drain(..end);
        let mut file = File::open(root.join(path))?;
        let mut left = file.metadata()?.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n")?;
        while left > 0 {
            let sent = match method {
                Method::Sendfile => sendfile(&stream, &file, None, left as usize)?,
                Method::ReadWrite => {
                    let n = file.read(&mut buffer)?;
                    stream.write_all(&buffer[..n])?;
                    n
                }
            };
            if sent == 0 {
                return Ok(());
            }
            left -= sent as u64;
        }
    }
}
