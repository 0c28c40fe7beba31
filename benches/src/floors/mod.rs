//! The least programs: what a server costs that knows its work in advance.
//!
//! Each file is the plain loop that an expert would write for one interface: receive, send, and
//! nothing parsed. One read is one request. A peer that never reads holds up the readiness floors;
//! they are yardsticks, not servers. A floor ends when its listener is shut down, so that it
//! watches nothing that a server would not.

mod epoll;
mod null;
mod poll;
mod select;
#[cfg(test)]
mod tests;
mod tokio;
mod uring;

use std::io;
use std::net::TcpListener;

use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};

/// What a floor sends back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// What it received.
    Echo,
    /// Always these bytes.
    Reply(&'static [u8]),
}

impl Task {
    fn answer(self, received: &[u8]) -> &[u8] {
        match self {
            Task::Echo => received,
            Task::Reply(bytes) => bytes,
        }
    }
}

/// A floor: serves until the listener is shut down and returns how many system calls it made.
pub(crate) type Serve = fn(TcpListener, Task) -> io::Result<u64>;

/// Every floor with the name of its interface.
pub(crate) const ALL: [(&str, Serve); 5] = [
    ("epoll", epoll::serve),
    ("poll", poll::serve),
    ("select", select::serve),
    ("uring", uring::serve),
    ("tokio", tokio::serve),
];

/// The floor called `name`, or the server that load generators are measured against.
pub(crate) fn named(name: &str) -> Option<Serve> {
    if name == "null" {
        return Some(null::serve);
    }
    ALL.iter().find(|(n, _)| *n == name).map(|(_, serve)| *serve)
}

/// The name of the floor that uses the same interface as a mechanism.
pub(crate) fn beneath(mechanism: &str) -> Option<&'static str> {
    let interface = match mechanism {
        "epoll-edge" => "epoll",
        "send" | "send-ps1" | "send-ps2" => "uring",
        other => other,
    };
    ALL.iter().map(|(name, _)| *name).find(|name| *name == interface)
}

/// The size of a receive buffer.
const BUFFER: usize = 4096;

/// What an attempt to accept came to.
enum Accepted {
    Connection(OwnedFd),
    Nothing,
    Stopped,
}

fn accept(listener: &TcpListener) -> io::Result<Accepted> {
    match net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(connection) => Ok(Accepted::Connection(connection)),
        // What accept(2) says once the listener is shut down.
        Err(Errno::INVAL) => Ok(Accepted::Stopped),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(Accepted::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Answers one readable connection; false when it has ended.
#[inline]
fn answer(socket: &OwnedFd, buffer: &mut [u8], task: Task, calls: &mut u64) -> bool {
    *calls += 1;
    // recv(2) and send(2) cost 2 to 4 % less of the whole than read(2) and write(2).
    match net::recv(socket, &mut *buffer, RecvFlags::empty()) {
        Ok((0, _)) => false,
        Ok((n, _)) => send_all(socket, task.answer(&buffer[..n]), calls),
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}

#[inline]
fn send_all(socket: &OwnedFd, mut bytes: &[u8], calls: &mut u64) -> bool {
    loop {
        *calls += 1;
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(n) if n == bytes.len() => return true,
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::AGAIN) => {
                *calls += 1;
                let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
                if rustix::event::poll(&mut fds, None).is_err() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}
