//! The network server of figure 4, stage by stage: `main`, `conn_accepted`, `data_read`,
//! `file_opened`, `file_sent`. Each completed call posts the next.
//!
//! The first line of a connection names a file below a directory; the server sends it and closes the
//! connection. A call that finds no entry is delayed; so while all entries are busy, connections wait
//! to be accepted. The read of a client that names no file in time is cancelled (section 4.2). As in the figure, nothing
//! limits the time in which a client takes the file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use flexsc_rt::operations::{PathAt, accept, close, open, receive, sendfile, sleep};
use flexsc_rt::{CallId, Config, Descriptor, Error, EventLoop};
use rustix::fs::{Mode, OFlags};

/// Accepts that are outstanding.
const ACCEPTS: usize = 4;
/// The time after an accept that has failed, as there is no free descriptor.
const PAUSE: Duration = Duration::from_millis(100);
/// The time in which a client has to name a file.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);
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
    let server = Server::new(Descriptor::new(master), Descriptor::new(root), READ_TIMEOUT);
    serve(&server, &Config::default())?;
    Ok(())
}

pub(crate) fn serve(server: &Server, config: &Config) -> Result<(), Error> {
    // Initializes the library and registers with the executors.
    let mut events = EventLoop::new(config)?;
    for _ in 0..ACCEPTS {
        accept_next(&mut events, server.clone());
    }
    // The event loop. A timer that is a call would wait for an entry behind the reads that it has to cancel.
    loop {
        let pause = cancel_late_reads(&mut events, server);
        events.turn(pause)?;
    }
}

#[derive(Clone)]
pub(crate) struct Server {
    master: Descriptor,
    root: Descriptor,
    read_timeout: Duration,
    /// The reads that have not ended, by the time at which they are cancelled, and their connection.
    reads: Rc<RefCell<BTreeMap<(Instant, RawFd), CallId>>>,
}

impl Server {
    pub(crate) fn new(master: Descriptor, root: Descriptor, read_timeout: Duration) -> Self {
        Server { master, root, read_timeout, reads: Rc::default() }
    }
}

/// Cancels the reads whose time is over. Returns the time that the next one has.
fn cancel_late_reads(events: &mut EventLoop, server: &Server) -> Option<Duration> {
    let now = Instant::now();
    let mut reads = server.reads.borrow_mut();
    loop {
        let next = reads.first_entry()?;
        let (deadline, _) = *next.key();
        if deadline > now {
            return Some(deadline - now);
        }
        events.cancel(next.remove());
    }
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
    let reads = Rc::clone(&server.reads);
    let key = (Instant::now() + server.read_timeout, conn.as_fd().as_raw_fd());
    let read = receive(&conn, Vec::with_capacity(4096));
    let posted = events.post_or_delay(read, move |events, (ret, buf)| {
        server.reads.borrow_mut().remove(&key);
        data_read(events, &server.root, conn, ret, &buf);
    });
    if let Ok(read) = posted {
        reads.borrow_mut().insert(key, read);
    }
}

fn data_read(
    events: &mut EventLoop,
    root: &Descriptor,
    conn: Descriptor,
    ret: io::Result<usize>,
    buf: &[u8],
) {
    // A read of 0 means that the connection is closed. One that was cancelled has the error EINTR.
    let reply_file = if matches!(ret, Ok(0) | Err(_)) { None } else { parse_request(buf) };
    let Some(reply_file) = reply_file else {
        let _ = events.post_silently(close(conn));
        return;
    };
    let call = open(PathAt::new(root, reply_file), OFlags::RDONLY, Mode::empty());
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
