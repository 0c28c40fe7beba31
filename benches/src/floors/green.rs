//! The floor for green threads: one for each connection, each call posted (FlexSC-Threads).

use std::io;
use std::net::TcpListener;

use flexsc_rt::Descriptor;
use flexsc_rt::green::{Config, Threads, call, spawn};
use flexsc_rt::operations::{accept, receive, send};

use super::connection::{BUFFER, Task};

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    listener.set_nonblocking(true)?;
    let listener = Descriptor::new(listener);
    let threads = Threads::new(&Config::default()).map_err(io::Error::other)?;
    let acceptor = threads.spawn(move || {
        loop {
            match call(accept(&listener)) {
                Ok(connection) => {
                    // At the maximum number of threads, the connection is closed.
                    let _ = spawn(move || while_open(&connection, task));
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ECONNABORTED) => {}
                    Some(libc::EINVAL) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    });
    threads.run().map_err(io::Error::other)?;
    acceptor.map_err(io::Error::other)?.join().expect("it does not panic")?;
    let counters = threads.counters();
    Ok(counters.in_place + counters.on_threads + counters.on_ring)
}

fn while_open(connection: &Descriptor, task: Task) {
    let mut buffer = Vec::with_capacity(BUFFER);
    loop {
        let received;
        (received, buffer) = call(receive(connection, buffer));
        if matches!(received, Ok(0) | Err(_)) {
            return;
        }
        if let Task::Reply(mut bytes) = task {
            buffer.clear();
            while !bytes.is_empty() {
                let Ok(sent) = call(send(connection, bytes)).0 else { return };
                bytes = &bytes[sent..];
            }
        }
        while !buffer.is_empty() {
            let sent;
            (sent, buffer) = call(send(connection, buffer));
            let Ok(sent) = sent else { return };
            buffer.drain(..sent);
        }
    }
}
