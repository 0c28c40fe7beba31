//! Floors: baseline programs without parsing, which give a lower bound of a server's cost.
//!
//! Each file is an expert's minimal loop for one interface: it receives and sends. One read is one
//! request. A peer that never reads blocks the readiness floors, which are baselines, not servers.
//! A floor ends when its listener is shut down, so it needs no further descriptor to watch.

mod epoll;
mod green;
mod null;
mod os_threads;
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

/// The reply of a floor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// The received bytes.
    Echo,
    /// A constant.
    Reply(&'static [u8]),
}

impl Task {
    fn reply(self, received: &[u8]) -> &[u8] {
        match self {
            Task::Echo => received,
            Task::Reply(bytes) => bytes,
        }
    }
}

/// A floor: serves until the listener is shut down. Returns its number of system calls.
pub(crate) type Serve = fn(TcpListener, Task) -> io::Result<u64>;

/// Every floor, by the name of its interface.
pub(crate) const ALL: [(&str, Serve); 7] = [
    ("epoll", epoll::serve),
    ("poll", poll::serve),
    ("select", select::serve),
    ("uring", uring::serve),
    ("tokio", tokio::serve),
    ("green", green::serve),
    ("os-threads", os_threads::serve),
];

/// Returns the floor `name`, or the server `null`, against which load generators are measured.
pub(crate) fn named(name: &str) -> Option<Serve> {
    if name == "null" {
        return Some(null::serve);
    }
    ALL.iter().find(|(n, _)| *n == name).map(|(_, serve)| *serve)
}

/// Returns the name of the floor on the same interface as a mechanism.
pub(crate) fn for_mechanism(mechanism: &str) -> Option<&'static str> {
    let interface = match mechanism {
        // The paper's baseline, too, is the same server on epoll (FlexSC, section 6).
        "epoll-edge" | "flexsc" => "epoll",
        "send" | "send-ps1" | "send-ps2" => "uring",
        other => other,
    };
    ALL.iter().map(|(name, _)| *name).find(|name| *name == interface)
}

/// The size of a receive buffer.
const BUFFER: usize = 4096;

/// The result of an attempt to accept.
enum Accepted {
    Connection(OwnedFd),
    Nothing,
    Stopped,
}

fn accept(listener: &TcpListener) -> io::Result<Accepted> {
    match net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(connection) => Ok(Accepted::Connection(connection)),
        // accept(2) returns EINVAL once the listener is shut down.
        Err(Errno::INVAL) => Ok(Accepted::Stopped),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(Accepted::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Replies on one readable connection. Returns `false` if the connection has ended.
#[inline]
fn reply(socket: &OwnedFd, buffer: &mut [u8], task: Task, calls: &mut u64) -> bool {
    *calls += 1;
    // recv(2) and send(2) lower the total cost by 2 to 4 %, compared with read(2) and write(2).
    match net::recv(socket, &mut *buffer, RecvFlags::empty()) {
        Ok((0, _)) => false,
        Ok((n, _)) => send_all(socket, task.reply(&buffer[..n]), calls),
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
