//! The listening sockets of workers: those that were given, and new ones.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use evring::StartError;
use evring::sockets::{ListenOptions, ListeningSocket};
use rustix::net::sockopt;
use tracing::warn;

use crate::server::builder::{Builder, NamedAddresses};
use crate::server::error::Error;
use crate::server::options::Options;
use crate::server::socket_list::add;

/// The sockets of a worker, by address.
pub(super) type WorkerSockets = Vec<Vec<ListeningSocket>>;

impl Builder {
    /// Returns the sockets of a worker for each address: those that were given, or a new one. If there are more
    /// than workers, a worker has several.
    pub(super) fn listening_sockets(
        &self,
        given: &[Vec<ListeningSocket>],
        worker: usize,
    ) -> Result<WorkerSockets, Error> {
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

/// Returns whether a socket on one address keeps others from listening on another one, as they are the same or one
/// includes the other (`EADDRINUSE` in ip(7)).
fn overlaps(a: &SocketAddr, b: &SocketAddr) -> bool {
    let scope = |at: &SocketAddr| match at {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(at) => at.scope_id(),
    };
    let is_same = |a: &SocketAddr, b: &SocketAddr| a.ip() == b.ip() && scope(a) == scope(b);
    let includes = |a: &SocketAddr, b: &SocketAddr| a.ip().is_unspecified() || is_same(a, b);
    let is_same_port = a.port() == b.port() && a.port() > 0;
    is_same_port && a.is_ipv4() == b.is_ipv4() && (includes(a, b) || includes(b, a))
}

/// Checks that no socket of the server overlaps an address for which it has none: it stays open while the server runs.
pub(super) fn check_not_held(
    listen: &[SocketAddr],
    given: &[Vec<ListeningSocket>],
    inherited: &[ListeningSocket],
) -> Result<(), Error> {
    for (at, _) in listen.iter().zip(given).filter(|(_, given)| given.is_empty()) {
        let mut held = inherited.iter().map(ListeningSocket::address);
        if let Some(other) = held.find(|other| overlaps(at, other)) {
            return Err(Error::Held(*at, other));
        }
    }
    Ok(())
}

/// The addresses of a server.
pub(super) struct Listeners {
    pub(super) listen: Vec<SocketAddr>,
    /// Those that redirect to https.
    pub(super) redirecting: Vec<SocketAddr>,
    pub(super) metrics: Vec<SocketAddr>,
}

impl Listeners {
    /// Checks that no address is the same as another one or includes it: the listeners of one address would divide its
    /// connections.
    pub(super) fn check_distinct(&self) -> Result<(), Error> {
        let all: Vec<_> =
            [&self.listen, &self.redirecting, &self.metrics].into_iter().flatten().collect();
        let mut known = all.iter().enumerate();
        match known.find(|(n, at)| all[..*n].iter().any(|before| overlaps(before, at))) {
            Some((_, twice)) => Err(Error::Duplicate(**twice)),
            None => Ok(()),
        }
    }
}

impl Builder {
    /// Returns the addresses to listen on, of which `inherited` sockets have some. Without addresses in the settings,
    /// they are those of the sockets that a service manager has `given`, as far as they are for nothing else. If there are
    /// none, the server keeps the `current` ones, or has the default.
    ///
    /// # Errors
    /// An address is unknown.
    pub(super) fn listeners(
        &self,
        inherited: &[ListeningSocket],
        given: &[SocketAddr],
        current: &[SocketAddr],
    ) -> Result<Listeners, Error> {
        let mut listen = self.config.listen.clone();
        for addresses in &self.listen {
            listen.extend(resolved(addresses)?);
        }
        #[cfg(feature = "tls")]
        let mut redirecting: Vec<_> = self.tls.redirecting_addresses().collect();
        #[cfg(not(feature = "tls"))]
        let mut redirecting = Vec::new();
        #[cfg(feature = "metrics")]
        let mut metrics = match &self.metrics_listen {
            Some(addresses) => resolved(addresses)?.clone(),
            None => Vec::new(),
        };
        #[cfg(not(feature = "metrics"))]
        let mut metrics = Vec::new();
        for addresses in [&mut listen, &mut redirecting, &mut metrics] {
            merge_families(addresses, inherited);
        }
        if listen.is_empty() {
            let is_other = |at| redirecting.contains(at) || metrics.contains(at);
            listen.extend(given.iter().filter(|at| !is_other(at)));
            listen.sort();
            listen.dedup();
        }
        if listen.is_empty() && !self.returns_to_default {
            listen.extend(current);
        }
        if listen.is_empty() {
            listen.push(Options::DEFAULT_LISTEN);
        }
        Ok(Listeners { listen, redirecting, metrics })
    }
}

fn resolved(addresses: &NamedAddresses) -> Result<&Vec<SocketAddr>, Error> {
    addresses.as_ref().map_err(|(at, error)| {
        Error::Address(at.clone(), io::Error::new(error.kind(), error.to_string()))
    })
}

/// Replaces the addresses of IPv4 for which an inherited socket of IPv6 accepts connections, too, unless there is a socket
/// for them. Service managers make such sockets (bindv6only in sysctl(8)).
pub(super) fn merge_families(addresses: &mut Vec<SocketAddr>, inherited: &[ListeningSocket]) {
    let accepts_both = |socket: &&ListeningSocket| {
        socket.address().ip() == Ipv6Addr::UNSPECIFIED
            && sockopt::ipv6_v6only(socket).is_ok_and(|only_ipv6| !only_ipv6)
    };
    for both in inherited.iter().filter(accepts_both).map(ListeningSocket::address) {
        let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, both.port()));
        if inherited.iter().any(|socket| socket.address() == ipv4) {
            continue;
        }
        let had_both = addresses.contains(&both);
        addresses.retain(|at| *at != ipv4 || !had_both);
        addresses.iter_mut().filter(|at| **at == ipv4).for_each(|at| *at = both);
    }
}

/// Warns of sockets that were given to the server, but are for none of its addresses: a service manager may keep
/// them open.
pub(super) fn warn_of_unused(
    inherited: &[ListeningSocket],
    used: &[Vec<ListeningSocket>],
    metrics: &[SocketAddr],
) {
    let is_used = |at: &SocketAddr| {
        metrics.contains(at) || used.iter().flatten().any(|socket| socket.address() == *at)
    };
    for at in inherited.iter().map(ListeningSocket::address).filter(|at| !is_used(at)) {
        warn!(
            "the socket on {at} was given to the server, but no setting names its address: clients there get no answer"
        );
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
        add(same, socket.clone());
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
/// with that process. As theirs, the socket for this is of one family, beside which the other one may be in use.
pub(super) fn is_free(at: &SocketAddr) -> Result<(), StartError> {
    let probe = ListeningSocket::bind(*at, &ListenOptions::new(1));
    probe.map(drop).map_err(|error| StartError::Listen(*at, error))
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn explicit_address_that_is_the_default_gave_way_to_sockets_of_a_service_manager() {
        let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080));
        let mut options = Options::default();
        for (listen, expected) in
            [(None, all), (Some(Options::DEFAULT_LISTEN), Options::DEFAULT_LISTEN)]
        {
            options.listen = listen.into_iter().map(Into::into).collect();
            let listeners = Builder::from(options.clone()).listeners(&[], &[all], &[all]).unwrap();
            assert_eq!(listeners.listen, [expected]);
        }
    }

    #[test]
    fn start_is_tried_again_only_while_the_address_is_in_use() {
        let at = Options::DEFAULT_LISTEN;
        let tries = Cell::new(0);
        let start = |kind: io::ErrorKind| {
            tries.set(tries.get() + 1);
            if tries.get() < 4 { Err(StartError::Listen(at, kind.into())) } else { Ok(()) }
        };
        retry_while_in_use(|| start(io::ErrorKind::AddrInUse)).unwrap();
        assert_eq!(tries.take(), 4);
        retry_while_in_use(|| start(io::ErrorKind::PermissionDenied)).unwrap_err();
        assert_eq!(tries.get(), 1);
    }
}
