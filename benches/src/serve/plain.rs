//! The baseline of ECEM: a blocking thread for each connection, which sends files by read and write or by
//! sendfile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Serves the files of a directory until the listener is shut down. A thread that has ended a connection takes another
/// one, so that the costs of all connections can be read from the threads.
pub(super) fn serve(listener: &TcpListener, root: &Path, method: Method) {
    let idle = Arc::new(Mutex::new(Vec::<Sender<TcpStream>>::new()));
    for stream in listener.incoming() {
        let Ok(stream) = stream else { return };
        let thread = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // An idle thread waits, so it has not ended.
        let stream = match thread {
            Some(thread) => match thread.send(stream) {
                Ok(()) => continue,
                Err(SendError(stream)) => stream,
            },
            None => stream,
        };
        let (root, idle) = (root.to_owned(), Arc::clone(&idle));
        thread::spawn(move || {
            let mut next = Some(stream);
            while let Some(stream) = next.take() {
                // An error ends its connection.
                let _ = connection(stream, &root, method);
                let (sender, streams) = channel();
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
                next = streams.recv().ok();
            }
        });
    }
}

/// Answers the requests of a connection.
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
        let head = String::from_utf8_lossy(&request[..end]);
        let path = head.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
        let closes = head.lines().any(|line| line.eq_ignore_ascii_case("connection: close"));
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
        if closes {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn client_that_asked_for_a_close_waited_for_it_in_vain() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "contents").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let path = root.path().to_owned();
        thread::spawn(move || serve(&listener, &path, Method::Sendfile));
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"GET /file HTTP/1.1\r\n\r\n").unwrap();
        client.write_all(b"GET /file HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        assert_eq!(reply.matches("\r\n\r\ncontents").count(), 2, "{reply}");
    }
}
