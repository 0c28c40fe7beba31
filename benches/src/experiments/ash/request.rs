//! The requests of clients to a server of remote increments, and the times of a message in the server.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use evring::hooks::ReceiveHook;
use evring::{Commands, ConnId, Listener, Rx};
use rustix::time::{ClockId, clock_gettime};

use super::client::BYTES;

/// A message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// Steps of the computation before the increment; none in the experiments of the increment alone.
    pub(super) steps: u32,
    /// The reply is the time at which the code that increments began, and not the count.
    pub(super) is_timed: bool,
}

impl Request {
    pub(super) fn bytes(self) -> [u8; BYTES] {
        (u64::from(self.steps) | u64::from(self.is_timed) << 32).to_le_bytes()
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        let word = |at| word(at).map_or(0, u32::from_le_bytes);
        Request { steps: word(0), is_timed: word(4) != 0 }
    }

    /// Computes, and returns the reply, with the number of requests until now.
    pub(super) fn answer(self, count: &mut u64) -> u64 {
        let start_ns = if self.is_timed { now_ns() } else { 0 };
        compute(self.steps);
        *count += 1;
        if self.is_timed { start_ns } else { *count }
    }
}

/// Computes for a time that is proportional to `steps`.
pub(super) fn compute(steps: u32) {
    let mut value = u64::from(steps) | 1;
    for _ in 0..steps {
        // Marsaglia's xorshift, of which a compiler does not join two steps.
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

/// Returns the instructions of a handler that computes for the steps of the message, before its others.
pub(super) fn computing(instructions: &str) -> String {
    let shift = |operation, bits| {
        format!(
            "(local.set $value
                (i64.xor (local.get $value) (i64.{operation} (local.get $value) (i64.const {bits}))))"
        )
    };
    let step = [shift("shl", 13), shift("shr_u", 7), shift("shl", 17)].concat();
    format!(
        "(local $steps i32) (local $value i64)
        (local.set $value (i64.or (i64.load32_u (local.get $offset)) (i64.const 1)))
        (local.set $steps (i32.load (local.get $offset)))
        (block $done
            (loop $next
                (br_if $done (i32.eqz (local.get $steps)))
                {step}
                (local.set $steps (i32.sub (local.get $steps) (i32.const 1)))
                (br $next)))
        (i64.store (i32.const 72) (local.get $value))
        {instructions}"
    )
}

/// Returns the time of the clock that all processes share, in ns.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The times of a message in the server, in ns; 0 until then.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// A handler would run now: the point where the model begins (figure 7-1).
    arrived: AtomicU64,
    /// The server has the reply.
    returned: AtomicU64,
}

impl Stamps {
    /// Before the next message.
    pub(super) fn clear(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.returned.store(0, Ordering::Relaxed);
    }

    pub(super) fn arrive(&self) {
        self.arrived.store(now_ns(), Ordering::Relaxed);
    }

    /// Notes the first return of a message that has arrived.
    pub(super) fn note_return(&self) {
        if self.arrived.load(Ordering::Relaxed) != 0 && self.returned.load(Ordering::Relaxed) == 0 {
            self.returned.store(now_ns(), Ordering::Release);
        }
    }

    /// Returns arrival and return, once the server has noted both.
    pub(super) fn get(&self) -> Option<(u64, u64)> {
        let returned = self.returned.load(Ordering::Acquire);
        (returned != 0).then(|| (self.arrived.load(Ordering::Relaxed), returned))
    }
}

/// The times of a message: figure 7-1, in us.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// From its arrival to the code that increments.
    pub(super) in_us: f64,
    /// From there until the server has the reply; with the computation.
    pub(super) out_us: f64,
}

/// A hook that notes when wake-ups for another one have been handled.
pub(super) struct Returning<H, F>(pub(super) H, pub(super) F);

impl<H: ReceiveHook, F: Fn()> ReceiveHook for Returning<H, F> {
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
        self.0.accepted(io, id, at);
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        self.0.received(io, id, rx);
    }

    fn passes_to_next(&self) -> bool {
        self.0.passes_to_next()
    }

    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        self.0.offered(io, id, rx)
    }

    fn holds(&self, id: ConnId) -> bool {
        self.0.holds(id)
    }

    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {
        self.0.drained(io, id);
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) -> bool {
        let is_its = self.0.woken(io, tag);
        if is_its {
            self.1();
        }
        is_its
    }

    fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
        self.0.timer(io, timer)
    }

    fn closed(&mut self, id: ConnId) {
        self.0.closed(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_what_its_bytes_say() {
        let request = Request { steps: 4_000, is_timed: true };
        assert_eq!(Request::of(&request.bytes()), request);
        assert_eq!(Request::of(b"!"), Request::default());
    }
}
