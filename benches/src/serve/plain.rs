//! The baseline of ECEM: a blocking process for each connection, which sends files by read and write or by sendfile. All
//! processes are forked before the first connection, and an idle one takes the next.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process;
use std::thread;
use std::time::Duration;

use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal, wait,
};

/// Size of the buffer for read and write, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// Maximum length of a request, in bytes.
const MAX_REQUEST_BYTES: usize = 4096;

/// Time after which a process accepts again when it could not.
const RETRY: Duration = Duration::from_millis(1);

/// How a process sends a file.
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

/// Starts processes that serve the files of a directory until the listener is shut down, one connection at a time each.
///
/// # Errors
/// If a process cannot be started, as with a limit of their number, RLIMIT_NPROC in getrlimit(2).
pub(super) fn start(
    listener: &TcpListener,
    root: &Path,
    method: Method,
    processes: u32,
) -> io::Result<()> {
    let parent = getpid();
    for _ in 0..processes {
        // SAFETY: the server has no other thread yet, so the child's copy of its memory is complete: no lock is held.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => child(parent, listener, root, method),
            _ => {}
        }
    }
    Ok(())
}

/// Waits for the end of all processes.
pub(super) fn wait_for_processes() {
    while let Ok(Some(_)) | Err(Errno::INTR) = wait(WaitOptions::empty()) {}
}

/// Serves as a process, which ends with its parent.
fn child(parent: Pid, listener: &TcpListener, root: &Path, method: Method) -> ! {
    let ends = set_parent_process_death_signal(Some(Signal::KILL));
    if ends.is_ok() && getppid() == Some(parent) {
        serve(|| listener.accept(), root, method);
    }
    process::exit(0)
}

/// Serves one connection after another until the listener is shut down.
fn serve(
    mut accept: impl FnMut() -> io::Result<(TcpStream, SocketAddr)>,
    root: &Path,
    method: Method,
) {
    loop {
        match accept() {
            // An error ends its connection.
            Ok((stream, _)) => drop(connection(stream, root, method)),
            // The listener does not listen any more (accept(2)).
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // The client has gone, or there is no descriptor until another connection is closed.
            Err(_) => thread::sleep(RETRY),
        }
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
    use super::*;

    #[test]
    fn process_ended_when_it_could_not_accept_once() {
        let mut errors = [Errno::CONNABORTED, Errno::MFILE, Errno::INVAL].into_iter();
        serve(|| Err(errors.next().unwrap().into()), Path::new(""), Method::Sendfile);
        assert_eq!(errors.next(), None);
    }

    #[test]
    fn client_that_asked_for_a_close_waited_for_it_in_vain() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "contents").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let path = root.path().to_owned();
        thread::spawn(move || connection(listener.accept().unwrap().0, &path, Method::Sendfile));
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"GET /file HTTP/1.1\r\n\r\n").unwrap();
        client.write_all(b"GET /file HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        assert_eq!(reply.matches("\r\n\r\ncontents").count(), 2, "{reply}");
    }
}
