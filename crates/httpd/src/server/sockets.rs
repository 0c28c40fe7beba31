//! The listening sockets of workers: those that were given, and new ones.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use evring::{ListenOptions, ListeningSocket, StartError};
use rustix::net::sockopt;

use crate::server::builder::Builder;
use crate::server::error::Error;

impl Builder {
    /// Returns the sockets of a worker for each address: those that were given, or a new one. If there are more
    /// than workers, a worker has several.
    pub(super) fn listening_sockets(
        &self,
        given: &[Vec<ListeningSocket>],
        worker: usize,
    ) -> Result<Vec<Vec<ListeningSocket>>, Error> {
        let mut options = ListenOptions::new(self.config.backlog);
        options.reuse_port = self.config.reuse_port;
        options.buffers = self.config.socket_buffers;
        let sockets = |(at, given): (&SocketAddr, &Vec<ListeningSocket>)| {
            if !given.is_empty() {
                let first = worker % given.len();
                return Ok(given
                    .iter()
                    .skip(first)
                    .step_by(self.workers.into())
                    .cloned()
                    .collect());
            }
            let bind = || {
                ListeningSocket::bind(*at, &options).map_err(|error| StartError::Listen(*at, error))
            };
            retry_while_in_use(bind).map(|socket| vec![socket]).map_err(Error::Start)
        };
        self.config.listen.iter().zip(given).map(sockets).collect()
    }
}

/// Replaces the addresses that a given socket of IPv6 stands for, as it accepts connections of IPv4, too: service
/// managers make such sockets (bindv6only in sysctl(8)).
pub(super) fn merge_families(addresses: &mut Vec<SocketAddr>, given: &[ListeningSocket]) {
    let accepts_both = |socket: &&ListeningSocket| {
        socket.address().ip() == Ipv6Addr::UNSPECIFIED
            && sockopt::ipv6_v6only(socket).is_ok_and(|only_ipv6| !only_ipv6)
    };
    for socket in given.iter().filter(accepts_both) {
        let (ipv4, both) =
            ((Ipv4Addr::UNSPECIFIED, socket.address().port()).into(), socket.address());
        let replaced = addresses.iter_mut().filter(|at| **at == ipv4);
        replaced.for_each(|at| *at = both);
        let mut is_first = true;
        addresses.retain(|at| *at != both || std::mem::take(&mut is_first));
    }
}

/// Returns the given sockets for each address, each once. Port 0 is any port for which there are sockets.
pub(super) fn sockets_for(
    listen: &[SocketAddr],
    given: &[ListeningSocket],
) -> Vec<Vec<ListeningSocket>> {
    let mut groups: Vec<(SocketAddr, Vec<ListeningSocket>)> = Vec::new();
    for socket in given {
        let at = socket.address();
        let same = match groups.iter_mut().find(|group| group.0 == at) {
            Some((_, same)) => same,
            None => {
                groups.push((at, vec![socket.clone()]));
                continue;
            }
        };
        if !same.iter().any(|other| other.as_fd().as_raw_fd() == socket.as_fd().as_raw_fd()) {
            same.push(socket.clone());
        }
    }
    let mut take = |at: &SocketAddr| {
        let found = groups.iter().position(|(other, _)| {
            other == at || at.port() == 0 && other.ip() == at.ip() && !listen.contains(other)
        });
        found.map_or(Vec::new(), |n| groups.remove(n).1)
    };
    listen.iter().map(&mut take).collect()
}

/// Checks that no other process listens on an address. With SO_REUSEPORT, workers would share it
/// with that process.
pub(super) fn is_free(at: &SocketAddr) -> Result<(), StartError> {
    TcpListener::bind(at).map(drop).map_err(|error| StartError::Listen(*at, error))
}

/// Retries for 400 ms: after a server is killed, its address stays in use until the kernel has
/// destroyed its ring.
pub(super) fn retry_while_in_use<T>(
    start: impl Fn() -> Result<T, StartError>,
) -> Result<T, StartError> {
    const TRIES: u32 = 40;
    for _ in 1..TRIES {
        match start() {
            Err(StartError::Listen(_, error)) if error.kind() == io::ErrorKind::AddrInUse => {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
    start()
}
