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

mod pace;

use std::fmt;
use std::str::FromStr;

use shared_ring::files::File;

use crate::{ConnId, SendPolicy, SendResult, SendState, SendStep};

use pace::Paces;

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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::pace::EARLY_READS;
    use super::*;

    const MILLIS: Duration = Duration::from_millis(1);

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
}
