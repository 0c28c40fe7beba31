//! The client: connections in an open loop, from the other core.

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

/// How many connections are open at a time; the oldest has to go.
const OPEN: usize = 64;
/// How long a connect may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many connections per second, at random.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) rate: f64,
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

/// While the client goes on.
pub(super) const ENDLESS: usize = usize::MAX;

/// Makes the load, then says how many connections there were. Returns when each began.
pub(super) fn run(
    to: SocketAddr,
    load: Load,
    total: &AtomicUsize,
) -> Result<Vec<Instant>, Failure> {
    let began = pin(&[CLIENT_CORE]).and_then(|()| connections(to, load));
    // Whoever waits for them must not do so for ever.
    total.store(began.as_ref().map_or(0, Vec::len), Ordering::Release);
    began.map_err(|e| Failure::new(format_args!("connecting to {to}"), e))
}

fn connections(to: SocketAddr, load: Load) -> io::Result<Vec<Instant>> {
    let moments = moments(load);
    let mut began = Vec::with_capacity(moments.len());
    let mut open = VecDeque::with_capacity(OPEN);
    let start = Instant::now();
    for due in moments {
        let socket = socket()?;
        let due = start + due;
        while Instant::now() < due {
            hint::spin_loop();
        }
        began.push(Instant::now());
        connect(&socket, &to)?;
        if open.len() == OPEN {
            open.pop_front();
        }
        open.push_back(socket);
    }
    Ok(began)
}

fn socket() -> io::Result<OwnedFd> {
    let stream = SocketType::STREAM;
    let socket = socket_with(AddressFamily::INET, stream, SocketFlags::CLOEXEC, None)?;
    // Closing by reset leaves no TIME_WAIT behind, which would use up the ports.
    set_socket_linger(&socket, Some(Duration::ZERO))?;
    // It bounds a connect, too: socket(7).
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    Ok(socket)
}

/// When connections are due, counted from the beginning: independent of each other.
fn moments(load: Load) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(load.seed);
    let mut at = 0.0;
    let mut all = Vec::with_capacity((load.rate * load.seconds * 1.2) as usize);
    loop {
        // From (0, 1], as the logarithm of 0 is none.
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
    fn as_many_are_due_as_the_rate_says() {
        let all = moments(Load { rate: 2_000.0, seconds: 10.0, seed: 5 });
        assert!((19_000..21_000).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted() && all[all.len() - 1] < Duration::from_secs(10));
    }
}
