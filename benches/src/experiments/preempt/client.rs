//! The client: an open loop of connections, on the other core.

use std::collections::VecDeque;
use std::hint;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, pin};

/// Maximum number of open connections; the oldest is closed first.
const MAX_OPEN: usize = 64;
/// Timeout of a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A load of connections at random times (Poisson).
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) rate: f64,
    pub(super) seconds: f64,
    /// Seconds before the measurement, part of `seconds`.
    pub(super) warm_up: f64,
    pub(super) seed: u64,
}

/// The total while the client is still running.
pub(super) const RUNNING: usize = usize::MAX;

/// Makes the load, then stores the number of connections in `total`. Returns the start of each.
pub(super) fn run(
    to: SocketAddr,
    load: Load,
    total: &AtomicUsize,
) -> Result<Vec<Instant>, Failure> {
    let started = pin(&[CLIENT_CORE]).and_then(|()| connections(to, load));
    // Stored also after an error, as the server waits for it.
    total.store(started.as_ref().map_or(0, Vec::len), Ordering::Release);
    started.map_err(|e| Failure::new(format_args!("cannot connect to {to}"), e))
}

fn connections(to: SocketAddr, load: Load) -> io::Result<Vec<Instant>> {
    let due_times = due_times(load);
    let mut started = Vec::with_capacity(due_times.len());
    let mut open = VecDeque::with_capacity(MAX_OPEN);
    let start = Instant::now();
    for due in due_times {
        let socket = socket()?;
        let due = start + due;
        while Instant::now() < due {
            hint::spin_loop();
        }
        started.push(Instant::now());
        connect(&socket, &to)?;
        if open.len() == MAX_OPEN {
            open.pop_front();
        }
        open.push_back(socket);
    }
    Ok(started)
}

fn socket() -> io::Result<OwnedFd> {
    let stream = SocketType::STREAM;
    let socket = socket_with(AddressFamily::INET, stream, SocketFlags::CLOEXEC, None)?;
    // A reset leaves no TIME_WAIT, which would exhaust the ports.
    set_socket_linger(&socket, Some(Duration::ZERO))?;
    // SO_SNDTIMEO also bounds a connect: socket(7).
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))?;
    Ok(socket)
}

/// Returns the times at which connections are due, from the start, as a Poisson process.
fn due_times(load: Load) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(load.seed);
    let mut at = 0.0;
    let mut all = Vec::with_capacity((load.rate * load.seconds * 1.2) as usize);
    loop {
        // From (0, 1], as 0 has no logarithm.
        at -= (1.0 - random.f64()).ln() / load.rate;
        if at >= load.seconds {
            return all;
        }
        all.push(Duration::from_secs_f64(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_match_the_rate() {
        let all = due_times(Load { rate: 2_000.0, warm_up: 0.0, seconds: 10.0, seed: 5 });
        assert!((19_000..21_000).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted() && all[all.len() - 1] < Duration::from_secs(10));
    }
}
