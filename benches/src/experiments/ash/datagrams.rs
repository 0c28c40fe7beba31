//! A server of remote increments over UDP.

use std::net::UdpSocket;
use std::thread::{self, JoinHandle};

use evring::datagrams::{DatagramConfig, DatagramThread};

use super::client::{BYTES, TIMEOUT};
use super::scheduling::Policy;
use super::{INCREMENT, handler};
use crate::failure::Failure;
use crate::measure::{SERVER_CORE, pin};

/// The place where a server increments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatagramPlacement {
    /// A handler in the sandbox, where the message arrives.
    Ash,
    /// The application, which sleeps in recvfrom(2) and replies by sendto(2).
    User,
}

/// A server on the server core, with one client.
pub(super) struct DatagramServer {
    /// That of the client.
    socket: UdpSocket,
    thread: Thread,
}

/// The thread of a server.
enum Thread {
    Ash(Option<DatagramThread>),
    /// It ends after an empty datagram.
    User(Option<JoinHandle<Result<(), Failure>>>),
}

impl DatagramServer {
    /// Starts a server whose thread has this policy.
    pub(super) fn start(placement: DatagramPlacement, policy: Policy) -> Result<Self, Failure> {
        let ours = UdpSocket::bind(("127.0.0.1", 0))?;
        let socket = UdpSocket::bind(("127.0.0.1", 0))?;
        socket.connect(ours.local_addr()?)?;
        let prepare = move || {
            pin(&[SERVER_CORE])?;
            policy.apply()
        };
        let thread = match placement {
            DatagramPlacement::Ash => {
                let config = DatagramConfig::default();
                let handler = move || prepare().and_then(|()| handler(INCREMENT));
                let started = DatagramThread::start("uring", ours, &config, handler);
                let (thread, _) = started.map_err(|e| Failure::new("datagrams", e))?;
                Thread::Ash(Some(thread))
            }
            DatagramPlacement::User => {
                Thread::User(Some(thread::spawn(move || prepare().and_then(|()| serve(&ours)))))
            }
        };
        Ok(DatagramServer { socket, thread })
    }

    /// Returns the socket of the client.
    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

impl Drop for DatagramServer {
    fn drop(&mut self) {
        match &mut self.thread {
            Thread::Ash(thread) => {
                if let Some(thread) = thread.take() {
                    thread.stop();
                    let _ = thread.join();
                }
            }
            Thread::User(thread) => {
                let _ = self.socket.send(&[]);
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
        }
    }
}

/// Answers each datagram with the number of datagrams, until an empty one.
fn serve(socket: &UdpSocket) -> Result<(), Failure> {
    // If the empty datagram is lost.
    socket.set_read_timeout(Some(TIMEOUT))?;
    let mut count = 0u64;
    let mut message = [0; BYTES];
    loop {
        let (len, source) = socket.recv_from(&mut message)?;
        if len == 0 {
            return Ok(());
        }
        count += 1;
        socket.send_to(&count.to_le_bytes(), source)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_placements_increment() {
        for placement in [DatagramPlacement::Ash, DatagramPlacement::User] {
            let server = DatagramServer::start(placement, Policy::Normal).unwrap();
            server.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            for count in 1..=3u64 {
                server.socket.send(&[1; BYTES]).unwrap();
                let mut reply = [0; BYTES];
                assert_eq!(server.socket.recv(&mut reply).unwrap(), BYTES);
                assert_eq!(u64::from_le_bytes(reply), count, "{placement:?}");
            }
        }
    }
}
