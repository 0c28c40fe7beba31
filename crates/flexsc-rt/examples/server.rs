//! The network server of figure 4, in its structure: each completed call posts the next.
//!
//! It answers each connection with the file that its first line names, and closes it.

use std::ffi::CString;
use std::net::TcpListener;

use flexsc_rt::operations::{accept, close, open, receive, sendfile};
use flexsc_rt::{Config, Descriptor, Error, EventLoop};
use rustix::fs::{Mode, OFlags};

/// Most bytes of a file that are sent.
const MAX_BYTES: usize = 1 << 30;

fn main() -> Result<(), Error> {
    let mut events = EventLoop::new(&Config::default())?;

    // Not performance critical, so done synchronously.
    let listener = TcpListener::bind("127.0.0.1:8081").expect("port 8081 is free");
    let master = Descriptor::new(listener);

    // Several accepts may be outstanding.
    for _ in 0..4 {
        post_accept(&mut events, &master);
    }
    events.run()
}

fn post_accept(events: &mut EventLoop, master: &Descriptor) {
    let again = master.clone();
    let _ = events.post_or_delay(accept(master), |events, connection| {
        conn_accepted(events, connection, again);
    });
}

/// Called when accept() returns.
fn conn_accepted(
    events: &mut EventLoop,
    connection: std::io::Result<Descriptor>,
    master: Descriptor,
) {
    post_accept(events, &master);
    let Ok(connection) = connection else { return };
    let read = receive(&connection, Vec::with_capacity(4096));
    let _ = events.post_or_delay(read, |events, (result, buffer)| {
        data_read(events, connection, result.is_ok_and(|len| len > 0), &buffer);
    });
}

fn data_read(events: &mut EventLoop, connection: Descriptor, any: bool, request: &[u8]) {
    let Some(reply_file) = any.then(|| parse_request(request)).flatten() else {
        // No callback is necessary to handle close.
        let _ = events.post_silently(close(connection));
        return;
    };
    let open = open(reply_file, OFlags::RDONLY, Mode::empty());
    let _ = events.post_or_delay(open, |events, file| file_opened(events, connection, file));
}

fn file_opened(events: &mut EventLoop, connection: Descriptor, file: std::io::Result<Descriptor>) {
    let Ok(file) = file else { return };
    let send = sendfile(&connection, &file, 0, MAX_BYTES);
    let _ = events.post_or_delay(send, |events, _sent| {
        let _ = events.post_silently(close(file));
        let _ = events.post_silently(close(connection));
    });
}

fn parse_request(request: &[u8]) -> Option<CString> {
    let line = request.split(|byte| byte.is_ascii_whitespace()).next()?;
    CString::new(line).ok()
}
