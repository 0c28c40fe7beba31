//! How files are sent: the policies of ECEM, deferred event delivery and disk-to-network splicing.
//!
//! | concept of ECEM | section | here |
//! |---|---|---|
//! | pair of DED: disk read response => network write request | 3.2 | [`FileDelivery::Ded`] |
//! | state RW is deferred | 3.2 | bytes that were read wait in the send queue, or for the application ([`SendPolicy::defers_reads`]) |
//! | pair of DNS: arrival of ACK => disk read request | 4 | [`FileDelivery::Dns`] |
//! | data is sent in the context that handles the acknowledgement | 4 | the driver sends, in the turn in which the socket has room; the application does not run |
//! | arrival of an ACK | 4 | `POLLOUT`: the peer has acknowledged so much that a third of the send buffer is free |
//! | as many bytes as were acknowledged | 4 | as many as sendfile(2) takes |
//! | the optimum timing | 4 | if a client is steady, `Dns` and `Ded` wait until half of the socket is empty, and send for many connections at once |
//! | not in the page cache: return, try again at the next ACK | 5.2 | the beginning of the part is read asynchronously; the end of the read sends it, so that no ACK is needed; Linux reads ahead of that |
//!
//! Cached parts of files are sent by sendfile(2). Splicing through a pipe took the same or more CPU time per
//! byte for pieces of 4 to 256 KiB, with twice the system calls; reading into memory and sending took 1.2 to 2.2
//! times as much (`docs/file-delivery.md`). So a policy reads into memory only if the bytes have to pass through it. A
//! part that is not cached is read before, and sent from the page cache, too.
//!
//! The policies leave `TCP_NOTSENT_LOWAT` alone ([`Config::max_unsent_bytes`](crate::Config::max_unsent_bytes)).
//! For fast clients, limits of 16 to 128 KiB cost 1.7 to 2 times the CPU time; `docs/file-delivery.md`, in the repository, has
//! the figures.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{fmt, mem};

use shared_ring::files::File;

use crate::{ConnId, SendPolicy, SendResult, SendState, SendStep};

/// A policy for sending files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileDelivery {
    /// [`Dns`](FileDelivery::Dns) for files that are sent as they are,
    /// [`Ded`](FileDelivery::Ded) for those that the application reads and transforms.
    #[default]
    Auto,
    /// Sends as soon as the socket has room. A part that is not cached is read before.
    Plain,
    /// Deferred event delivery: files are read into memory, 64 KiB at a time, once what was read before is sent. If a read had
    /// to wait for the disk, the next ones begin while what was read last is being sent. Parts are
    /// sent when the socket has room, or half of it is empty, as with [`Dns`](FileDelivery::Dns), which also sends what cannot
    /// be read now ([`SendState::can_read`]). The reads of the application are held back until there is room.
    Ded,
    /// Disk-to-network splicing: files are sent from the page cache when the socket has room, or, for a client that
    /// receives at a steady rate, when half of the socket is empty, together with others. A part that is not cached is
    /// read before.
    Dns,
}

impl FileDelivery {
    /// All policies.
    pub const ALL: [FileDelivery; 4] =
        [FileDelivery::Auto, FileDelivery::Plain, FileDelivery::Ded, FileDelivery::Dns];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            FileDelivery::Auto => "auto",
            FileDelivery::Plain => "plain",
            FileDelivery::Ded => "ded",
            FileDelivery::Dns => "dns",
        }
    }

    /// Returns the function that makes the policy, for [`Config::send_policy`](crate::Config::send_policy).
    pub fn send_policy(self) -> Option<fn() -> Box<dyn SendPolicy>> {
        match self {
            FileDelivery::Plain => None,
            FileDelivery::Ded => Some(|| Box::<Ded>::default()),
            FileDelivery::Dns => Some(|| Box::<Dns>::default()),
            FileDelivery::Auto => Some(|| Box::new(Dns { defers_reads: true, ..Dns::default() })),
        }
    }
}

impl fmt::Display for FileDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileDelivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FileDelivery::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("expected auto, plain, ded or dns, not `{text}`"))
    }
}

/// Number of bytes of a piece that is sent from the page cache: all that a connection sends per turn. Pieces of a quarter took
/// 1.09 times the CPU time for a file of 1 MiB.
const PIECE: u32 = File::MAX_PIECE_BYTES as u32;

/// Number of bytes read at a time. A send of half as many took up to 1.4 times the CPU time per byte, as it woke the client
/// twice as often.
const READ: u32 = 64 * 1024;

/// Maximum number of unsent bytes in front of a file, such as the head of a response, with which its first bytes are read.
/// They leave together.
const MAX_FRONT: usize = READ as usize / 4;

/// Number of reads after one that had to wait for the disk, of which each begins while the part before it is being sent. If
/// all of them were cached, the reads of Linux are ahead of the client: it reads up to twice 128 KiB ahead by default.
const EARLY_READS: u8 = 4;

/// Deferred event delivery.
#[derive(Default)]
struct Ded {
    paces: Paces,
}

impl SendPolicy for Ded {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        let pace = self.paces.of(state.id);
        if let Some(left) = state.file_bytes {
            pace.follow(left);
        }
        let is_front = state.file_bytes.is_some();
        // The bytes of a read occupy their buffer until all of them are sent.
        if is_front {
            pace.unsent = 0;
        }
        let follows_front = pace.unsent == 0 && state.queued_bytes <= MAX_FRONT;
        if (is_front || follows_front) && state.can_read() {
            pace.unsent = state.queued_bytes as u64;
            return SendStep::Read { max_bytes: READ };
        }
        if pace.reads_early(state.queued_bytes) && state.can_read() {
            return SendStep::Read { max_bytes: READ };
        }
        pace.pause(state).unwrap_or(SendStep::Send { max_file_bytes: PIECE })
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        let pace = self.paces.of(id);
        match result {
            SendResult::Memory(n) => {
                pace.taken += n as u64;
                pace.unsent = pace.unsent.saturating_sub(n as u64);
            }
            SendResult::File(n) => pace.note_sent(n),
            SendResult::Read { bytes, was_cold } => pace.note_read(bytes, was_cold),
            _ => {}
        }
    }

    fn decides_memory(&self) -> bool {
        true
    }

    fn defers_reads(&self) -> bool {
        true
    }
}

/// Disk-to-network splicing.
#[derive(Default)]
struct Dns {
    paces: Paces,
    defers_reads: bool,
}

impl SendPolicy for Dns {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        const STEP: SendStep = SendStep::Send { max_file_bytes: PIECE };
        let Some(left) = state.file_bytes else { return STEP };
        let pace = self.paces.of(state.id);
        pace.follow(left);
        pace.pause(state).unwrap_or(STEP)
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        if let SendResult::File(n) = result {
            self.paces.of(id).note_sent(n);
        }
    }

    fn decides_memory(&self) -> bool {
        false
    }

    fn defers_reads(&self) -> bool {
        self.defers_reads
    }
}

/// The pace of each connection that sends a file, by its slot.
#[derive(Default)]
struct Paces(Vec<Pace>);

impl Paces {
    fn of(&mut self, id: ConnId) -> &mut Pace {
        let slot = id.slot() as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, Pace::default());
        }
        let pace = &mut self.0[slot];
        if pace.generation != id.generation() {
            *pace = Pace { generation: id.generation(), ..Pace::default() };
        }
        pace
    }
}

/// Minimum and maximum time until a connection sends again. For other times it waits for room: a short pause costs more
/// than it saves.
const PAUSES: RangeInclusive<Duration> = Duration::from_micros(500)..=Duration::from_secs(4);

/// Longest step of a pause.
const STEP: Duration = Duration::from_millis(250);

/// How fast a client takes a file.
///
/// The kernel reports that a socket has room when a third of it is free: often, and for each socket alone. If a client
/// takes bytes at a steady rate, it is known when half of what the socket holds will be gone. A connection pauses until
/// then, and many continue at once.
///
/// A client may become faster in a pause. So a long pause has steps, and ends after a step if half of the socket is empty.
/// At the beginning of each step, the socket holds more than that half. Only a client that has become at least twice as fast
/// empties it before the pause ends. It then waits for the rest of a step, less than 250 ms. It waits once, because the send
/// that fills an empty socket is not followed by a pause. A client that becomes slower or stops does not prolong a pause: at
/// its end the connection sends, and waits for room if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    generation: u32,
    /// Bytes left of the file.
    left: u64,
    /// Unsent bytes of reads and in front of them, at most. 0 if the next bytes of the file are at the front of the queue.
    unsent: u64,
    /// Bytes of the last read.
    last_read: u32,
    /// Number of reads that begin while the part before is being sent.
    early_reads: u8,
    /// When the socket was full last.
    full_at: Option<Instant>,
    /// Bytes that it has taken since.
    taken: u64,
    /// Bytes per second before that; 0 if unknown.
    rate: f64,
    /// The pause that has begun.
    pause: Option<Pause>,
}

/// A pause until half of a socket is empty.
#[derive(Clone, Copy, Debug)]
struct Pause {
    end: Instant,
    /// Half of the bytes that the socket held.
    half: u64,
}

impl Pause {
    /// Returns whether it is over after a step: half of the socket is empty, or no more time is left than that by which the
    /// driver may end a step early.
    fn is_over(&self, now: Instant, held_bytes: impl FnOnce() -> u64) -> bool {
        self.end.saturating_duration_since(now) <= STEP / 4 || held_bytes() <= self.half
    }
}

impl Pace {
    /// Follows the file that is sent, of which `left` bytes are left. If these are more than before, it is another one.
    fn follow(&mut self, left: u64) {
        if left > self.left {
            let Pace { generation, unsent, .. } = *self;
            *self = Pace { generation, unsent, ..Pace::default() };
        }
        self.left = left;
    }

    /// Returns whether the next part is read while the last one is being sent: it may not be cached. As all before the last one
    /// is sent, at most two parts are in memory.
    fn reads_early(&self, queued_bytes: usize) -> bool {
        self.early_reads > 0 && queued_bytes <= self.last_read as usize
    }

    /// Notes that bytes of the file were read.
    fn note_read(&mut self, n: u32, was_cold: bool) {
        self.left = self.left.saturating_sub(n.into());
        self.unsent += u64::from(n);
        self.last_read = n;
        self.early_reads = if was_cold { EARLY_READS } else { self.early_reads.saturating_sub(1) };
    }

    /// Notes that bytes of the file were sent.
    fn note_sent(&mut self, n: u32) {
        self.taken += u64::from(n);
        self.left = self.left.saturating_sub(n.into());
    }

    /// Returns the pause of a connection whose socket is full, or the next step of the one that it is in.
    fn pause(&mut self, state: &SendState<'_>) -> Option<SendStep> {
        let held_bytes = || (state.unacked_bytes)();
        if state.is_full {
            self.pause = self.full(state.now, held_bytes);
        } else if self.pause.is_some_and(|pause| pause.is_over(state.now, held_bytes)) {
            self.pause = None;
        }
        let left = self.pause?.end.saturating_duration_since(state.now);
        Some(SendStep::Pause(left.min(STEP)))
    }

    /// Returns the pause that begins as the socket is full; `None` to wait for room.
    fn full(&mut self, now: Instant, held_bytes: impl FnOnce() -> u64) -> Option<Pause> {
        let Some(full_at) = self.full_at else {
            // The bytes that filled the socket say nothing about the client.
            self.taken = 0;
            self.full_at = Some(now);
            return None;
        };
        let elapsed = now.saturating_duration_since(full_at);
        if elapsed.is_zero() {
            // Another send of this turn, for which the client made room meanwhile.
            return None;
        }
        self.full_at = Some(now);
        let taken = mem::take(&mut self.taken);
        let rate = taken as f64 / elapsed.as_secs_f64();
        let before = mem::replace(&mut self.rate, rate);
        if rate > 2.0 * before || before > 2.0 * rate {
            return None;
        }
        if elapsed > *PAUSES.end() * 3 / 2 {
            // Below, at least 4/3 of what was taken must be held, so that a pause takes at least 2/3 of this time.
            return None;
        }
        let held = held_bytes();
        if held - held / 4 < taken {
            // It was nearly empty, so the client may be faster than that.
            return None;
        }
        let time = Duration::try_from_secs_f64(held as f64 / 2.0 / rate).ok()?;
        PAUSES.contains(&time).then(|| Pause { end: now + time, half: held / 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: Duration = Duration::from_millis(1);

    /// Returns the pauses of a client that takes `taken` bytes each `step`, from a socket of 100,000 bytes.
    fn pauses<const N: usize>(taken: [u64; N], step: Duration) -> [Option<Duration>; N] {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        taken.map(|n| {
            now += step;
            pace.taken = n;
            pace.full(now, || 100_000).map(|pause| pause.end - now)
        })
    }

    #[test]
    fn steady_client_is_left_alone_until_half_of_the_socket_is_empty() {
        let expected = Some(Duration::from_millis(20));
        assert_eq!(
            pauses([9, 25_000, 25_000, 20_000, 25_000], 10 * MILLIS)[..3],
            [None, None, expected]
        );
        assert_eq!(pauses([9, 25_000, 20_000], 10 * MILLIS)[2], Some(25 * MILLIS));
    }

    #[test]
    fn unsteady_client_and_empty_socket_wait_for_room() {
        assert_eq!(
            pauses([9, 20_000, 41_000, 41_000], 10 * MILLIS)[2],
            None,
            "it has become faster"
        );
        assert_eq!(
            pauses([9, 41_000, 20_000, 41_000], 10 * MILLIS)[2],
            None,
            "it has become slower"
        );
        assert_eq!(pauses([9, 76_000, 76_000], 10 * MILLIS)[2], None, "nearly empty");
    }

    #[test]
    fn sends_of_one_turn_count_together() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut full = |at, taken| {
            pace.taken += taken;
            let now = start + at * MILLIS;
            pace.full(now, || 100_000).map(|pause| pause.end - now)
        };
        assert_eq!([full(0, 90_000), full(0, 5_000)], [None, None]);
        assert_eq!([full(10, 20_000), full(10, 5_000)], [None, None]);
        assert_eq!(full(20, 20_000), Some(20 * MILLIS));
    }

    #[test]
    fn slow_clients_of_deferred_sends_were_sent_to_one_at_a_time() {
        let (mut policy, id, start) = (Ded::default(), ConnId::new(0, 0), Instant::now());
        let steps = [0, 10, 20].map(|millis| {
            policy.completed(id, SendResult::Memory(25_000));
            let state = SendState {
                id,
                queued_bytes: READ as usize,
                file_bytes: None,
                can_read: &|| false,
                is_full: true,
                now: start + millis * MILLIS,
                unacked_bytes: &|| 100_000,
            };
            policy.next(&state)
        });
        let sends = |step: &SendStep| matches!(step, SendStep::Send { .. });
        assert!(steps[..2].iter().all(sends));
        assert!(matches!(steps[2], SendStep::Pause(time) if time == 20 * MILLIS));
    }

    fn is_read(bytes: u32) -> SendResult {
        SendResult::Read { bytes, was_cold: false }
    }

    fn is_read_cold(bytes: u32) -> SendResult {
        SendResult::Read { bytes, was_cold: true }
    }

    #[test]
    fn client_waited_for_the_disk_at_each_part_that_is_not_cached() {
        let (mut policy, id) = (Ded::default(), ConnId::new(0, 0));
        let (read_step, send) =
            (SendStep::Read { max_bytes: READ }, SendStep::Send { max_file_bytes: PIECE });
        let part = READ as usize;
        assert_eq!(step_with(&mut policy, 100, 0), read_step);
        policy.completed(id, is_read_cold(READ));
        // The head is sent first.
        assert_eq!(step_with(&mut policy, part + 100, 0), send);
        policy.completed(id, SendResult::Memory(100));
        assert_eq!(step_with(&mut policy, part, 0), read_step);
        policy.completed(id, is_read_cold(READ));
        // Two parts are in memory at most.
        assert_eq!(step_with(&mut policy, 2 * part, 0), send);
        policy.completed(id, SendResult::Memory(part - 1));
        assert_eq!(step_with(&mut policy, part + 1, 0), send);
        policy.completed(id, SendResult::Memory(1));
        for _ in 0..EARLY_READS {
            assert_eq!(step_with(&mut policy, part, 0), read_step);
            policy.completed(id, is_read(READ));
            policy.completed(id, SendResult::Memory(part));
        }
        assert_eq!(step_with(&mut policy, part, 0), send, "the parts are cached");
        policy.completed(id, SendResult::Memory(part));
        assert_eq!(step_with(&mut policy, 0, 0), read_step);
    }

    /// Returns the next step of a connection with so many bytes queued in front of a file that can be read, and behind it.
    fn step_with(policy: &mut Ded, front: usize, behind: usize) -> SendStep {
        policy.next(&SendState {
            id: ConnId::new(0, 0),
            queued_bytes: front + behind,
            file_bytes: (front == 0).then_some(1 << 20),
            can_read: &|| true,
            is_full: false,
            now: Instant::now(),
            unacked_bytes: &|| 0,
        })
    }

    #[test]
    fn first_bytes_of_a_file_are_read_behind_a_head_of_at_most_16_kib() {
        let step_behind = |bytes| step_with(&mut Ded::default(), bytes, 0);
        assert_eq!(step_behind(16 * 1024), SendStep::Read { max_bytes: READ });
        assert_eq!(step_behind(16 * 1024 + 1), SendStep::Send { max_file_bytes: PIECE });
    }

    #[test]
    fn buffer_of_a_read_was_held_while_the_next_one_was_filled() {
        let (mut policy, id) = (Ded::default(), ConnId::new(0, 0));
        let (read, send) =
            (SendStep::Read { max_bytes: READ }, SendStep::Send { max_file_bytes: PIECE });
        // Behind the file, the head of the next response does not count.
        for behind in [0, 100, MAX_FRONT + 1] {
            assert_eq!(step_with(&mut policy, 0, behind), read);
            policy.completed(id, is_read(READ));
            policy.completed(id, SendResult::Memory(READ as usize - 1));
            assert_eq!(step_with(&mut policy, 1, behind), send);
            policy.completed(id, SendResult::Memory(1));
        }
        assert_eq!(step_with(&mut policy, 0, 0), read);
        policy.completed(id, is_read(10));
        policy.completed(id, SendResult::Memory(10));
        // All is sent, so the head of the next response leaves together with its file.
        assert_eq!(step_with(&mut policy, 100, 0), read);
        policy.completed(id, is_read(10));
        policy.completed(id, SendResult::Memory(109));
        assert_eq!(step_with(&mut policy, 1, 0), send);
    }

    #[test]
    fn what_is_read_and_what_is_sent_from_the_file_are_no_longer_left() {
        let (mut policy, id) = (Ded::default(), ConnId::new(0, 0));
        policy.paces.of(id).follow(1_000);
        policy.completed(id, is_read(300));
        policy.completed(id, SendResult::File(200));
        let pace = policy.paces.of(id);
        // Of these, the client has taken only what was sent.
        assert_eq!((pace.left, pace.taken), (500, 200));
        // The same file continues; a longer one is another.
        pace.follow(500);
        assert_eq!(pace.taken, 200);
        pace.follow(501);
        assert_eq!(pace.taken, 0);
    }

    #[test]
    fn pace_of_a_file_was_that_of_the_file_before() {
        let (mut policy, id) = (Dns::default(), ConnId::new(0, 0));
        let unacked_bytes = || 0;
        let next = |policy: &mut Dns, left| {
            let now = Instant::now();
            let state = SendState {
                id,
                queued_bytes: 0,
                file_bytes: Some(left),
                can_read: &|| false,
                is_full: true,
                now,
                unacked_bytes: &unacked_bytes,
            };
            policy.next(&state);
        };
        next(&mut policy, 1_000);
        policy.completed(id, SendResult::File(1_000));
        policy.paces.of(id).rate = 5.0;
        next(&mut policy, 10);
        assert_eq!((policy.paces.of(id).rate, policy.paces.of(id).taken), (0.0, 0));
    }

    #[test]
    fn pauses_are_neither_short_nor_long() {
        assert_eq!(pauses([9, 70_000, 70_000], Duration::from_micros(100))[2], None);
        assert_eq!(pauses([9, 40_000, 40_000], 3_200 * MILLIS)[2], Some(*PAUSES.end()));
        assert_eq!(pauses([9, 0, 0], 250 * MILLIS)[2], None, "nothing was taken");
    }

    #[test]
    fn socket_of_a_client_that_is_too_slow_to_pause_was_queried() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut queries = 0;
        for (millis, expected) in [(0, 0), (6_001, 0), (12_002, 0), (18_002, 1)] {
            pace.taken = 1_000;
            let held = || {
                queries += 1;
                4_000
            };
            assert!(pace.full(start + millis * MILLIS, held).is_none());
            assert_eq!(queries, expected, "after {millis} ms");
        }
    }

    #[test]
    fn slow_client_was_sent_a_few_bytes_at_a_time() {
        // After the longest pause, the socket would have room for less than it has when the kernel reports room.
        assert_eq!(pauses([9, 39_000, 39_000], 3_200 * MILLIS)[2], None);
        assert_eq!(pauses([9, 1, 1], 250 * MILLIS)[2], None);
    }

    /// Returns the steps of a client of `rate` bytes per second, whose socket has held 131,072 bytes. After each step, it holds
    /// `held`.
    fn steps_of_a_pause<const N: usize>(rate: u32, held: [u64; N]) -> Vec<Option<Duration>> {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let ask = |pace: &mut Pace, now, is_full, held| {
            let step = pace.pause(&SendState {
                id: ConnId::new(0, 0),
                queued_bytes: 0,
                file_bytes: Some(1 << 20),
                is_full,
                now,
                can_read: &|| false,
                unacked_bytes: &|| held,
            });
            match step {
                Some(SendStep::Pause(time)) => Some(time),
                _ => None,
            }
        };
        for _ in 0..2 {
            assert_eq!(ask(&mut pace, now, true, 131_072), None);
            pace.note_sent(48_000);
            now += Duration::from_secs(48_000) / rate;
        }
        let mut steps = vec![ask(&mut pace, now, true, 131_072)];
        for held in held {
            // The driver ends a step early, with others.
            now += steps.last().unwrap().expect("another step") * 9 / 10;
            steps.push(ask(&mut pace, now, false, held));
        }
        steps
    }

    /// Returns the steps of a client of 48,000 bytes per second.
    fn steps_of_a_long_pause<const N: usize>(held: [u64; N]) -> Vec<Option<Duration>> {
        steps_of_a_pause(48_000, held)
    }

    #[test]
    fn clients_that_take_more_than_250_ms_for_half_of_their_sockets_never_paused() {
        let steps = steps_of_a_long_pause([120_000, 109_000, 98_000, 88_000, 77_000, 66_000]);
        let total = Duration::from_secs_f64(65_536.0 / 48_000.0);
        let times: Vec<Duration> = steps.iter().flatten().copied().collect();
        assert_eq!((steps.len(), times.len()), (7, 6), "{steps:?}");
        assert!(times[..5].iter().all(|step| *step == STEP) && times[5] < STEP, "{steps:?}");
        let sum: Duration = times.iter().map(|step| *step * 9 / 10).sum();
        assert!(sum >= total - STEP / 4 && sum < total, "{sum:?} of {total:?}");
    }

    #[test]
    fn client_that_becomes_faster_in_a_long_pause_is_sent_to_after_a_step() {
        assert_eq!(steps_of_a_long_pause([0])[1], None);
        assert_eq!(steps_of_a_long_pause([115_000, 65_536])[2], None);
        assert!(steps_of_a_long_pause([115_000, 65_537])[2].is_some());
    }

    #[test]
    fn pause_of_a_client_that_has_stopped_ends() {
        let steps = steps_of_a_long_pause([131_072; 6]);
        assert_eq!(steps[6], None, "{steps:?}");
    }

    #[test]
    fn no_step_is_longer_than_250_ms_and_a_pause_of_at_most_250_ms_is_one_step() {
        // This client takes 65,536 bytes in 247.3 ms, and the next one in 3.3 s.
        let [Some(step), None] = steps_of_a_pause(265_000, [131_072])[..] else {
            panic!("one step")
        };
        assert!(step > 247 * MILLIS && step < 248 * MILLIS, "{step:?}");
        assert_eq!(steps_of_a_pause(20_000, [131_072; 3]), [Some(250 * MILLIS); 4]);
        // The worker was late.
        let now = Instant::now();
        assert!(Pause { end: now, half: 0 }.is_over(now + MILLIS, || 1));
    }
}
