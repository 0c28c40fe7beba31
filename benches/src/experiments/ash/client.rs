//! A client that sends one message at a time, over any socket.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::request::Request;
use crate::failure::Failure;

/// The length of a message and of its reply.
pub(super) const BYTES: usize = 8;
/// Longer than any reply takes.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends a message, and returns the time until the reply, and the reply. The client polls its socket, so that the wake-up
/// of its core, which is the same for all servers, is not in the time.
pub(super) fn exchange(socket: impl AsFd, request: Request) -> Result<(Duration, u64), Failure> {
    let start = Instant::now();
    send(&socket, &request.bytes(), SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    let (mut reply, mut len) = ([0; BYTES], 0);
    while len < BYTES {
        match recv(&socket, &mut reply[len..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Failure::Run("the server has closed".to_owned())),
            Ok((_, received)) => len += received,
            Err(Errno::AGAIN | Errno::INTR) if start.elapsed() < TIMEOUT => {
                std::hint::spin_loop();
            }
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok((start.elapsed(), u64::from_le_bytes(reply)))
}

/// Returns the times of a number of round trips in us, sorted, with gaps between them.
pub(super) fn round_trips(
    socket: impl AsFd,
    request: Request,
    count: usize,
    gap: Duration,
) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        times.push(exchange(&socket, request)?.0.as_nanos() as f64 / 1e3);
        pause(gap);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Keeps the core for a time.
pub(super) fn pause(gap: Duration) {
    let until = Instant::now() + gap;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}
