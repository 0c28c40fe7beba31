//! The network server of figure 4, stage by stage: `main`, `conn_accepted`, `data_read`,
//! `file_opened`, `file_sent`. Each completed call posts the next.
//!
//! The first line of a connection names a file below a directory; the server sends it and closes the
//! connection. A call that finds no entry is delayed; so while all entries are busy, connections wait
//! to be accepted. As in the figure, nothing limits the time of a client (see section 4.2).

use std::ffi::CString;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use flexsc_rt::operations::{PathAt, accept, close, open, receive, sendfile, sleep};
use flexsc_rt::{Config, Descriptor, Error, EventLoop};
use rustix::fs::{Mode, OFlags};

/// Accepts that are outstanding.
const ACCEPTS: usize = 4;
/// The time after an accept that has failed, as there is no free descriptor.
const PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of a file that are sent.
const FILE_LEN: usize = 1 << 30;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    // Not performance critical, so done synchronously.
    let master = TcpListener::bind(&address)?;
    let root = std::fs::File::open(directory)?;
    println!("listening on {}", master.local_addr()?);
    Ok(serve(master, root)?)
}

pub(crate) fn serve(master: TcpListener, root: std::fs::File) -> Result<(), Error> {
    // Initializes the library and registers with the executors.
    let mut events = EventLoop::new(&Config::default())?;
    let server = Server { master: Descriptor::new(master), root: Descriptor::new(root) };
    for _ in 0..ACCEPTS {
        accept_next(&mut events, server.clone());
    }
    // The event loop.
    events.run()
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) master: Descriptor,
    pub(crate) root: Descriptor,
}

pub(crate) fn accept_next(events: &mut EventLoop, server: Server) {
    let call = accept(&server.master);
    let _ = events.post_or_delay(call, |events, ret| conn_accepted(events, server, ret));
}

/// Called when accept() returns. A later call that is refused, as too many are delayed, drops its connection.
fn conn_accepted(events: &mut EventLoop, server: Server, ret: io::Result<Descriptor>) {
    let Ok(conn) = ret else {
        // The next one would fail, too.
        let _ = events.post_or_delay(sleep(PAUSE), |events, _| accept_next(events, server));
        return;
    };
    // Posts another accept on the master socket.
    accept_next(events, server.clone());
    let read = receive(&conn, Vec::with_capacity(4096));
    let _ = events.post_or_delay(read, move |events, (ret, buf)| {
        data_read(events, &server, conn, ret, &buf);
    });
}

fn data_read(
    events: &mut EventLoop,
    server: &Server,
    conn: Descriptor,
    ret: io::Result<usize>,
    buf: &[u8],
) {
    // A read of 0 means that the connection is closed.
    let reply_file = if matches!(ret, Ok(0) | Err(_)) { None } else { parse_request(buf) };
    let Some(reply_file) = reply_file else {
        let _ = events.post_silently(close(conn));
        return;
    };
    let call = open(PathAt::new(&server.root, reply_file), OFlags::RDONLY, Mode::empty());
    let _ = events.post_or_delay(call, |events, ret| file_opened(events, conn, ret));
}

fn file_opened(events: &mut EventLoop, conn: Descriptor, ret: io::Result<Descriptor>) {
    let Ok(file) = ret else {
        let _ = events.post_silently(close(conn));
        return;
    };
    let call = sendfile(&conn, &file, 0, FILE_LEN);
    let _ = events.post_or_delay(call, |events, _sent| file_sent(events, conn, file));
}

fn file_sent(events: &mut EventLoop, conn: Descriptor, file: Descriptor) {
    // No callback is necessary to handle close.
    let _ = events.post_silently(close(file));
    let _ = events.post_silently(close(conn));
}

/// Returns the path of the first line, if it leads down.
fn parse_request(buf: &[u8]) -> Option<CString> {
    let line = buf.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    let leads_down = |part: &[u8]| !part.is_empty() && part != b"..";
    line.split(|byte| *byte == b'/').all(leads_down).then(|| CString::new(line).ok())?
}
