//! The server's side of upcalls.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shared_ring::author::Process;

use super::shared::Shared;
use super::{MAX_PLACES, Policy};

/// Upcalls to one process, for the server. It belongs to one thread at a time, and to the process that has created it. A child of
/// fork(2) shares its memory and its stream, so the child's copy submits nothing and has no answers.
pub struct Channel {
    policy: Policy,
    shared: Shared,
    answer_event: AnswerEvent,
    /// The messages in the places.
    in_flight: [Option<InFlight>; MAX_PLACES],
    /// The places that no message is in, nor one that the process may still work on.
    free: u64,
    /// The answers that were taken and not returned yet.
    taken: u64,
    /// The bytes that the process sent in the last answer.
    reply: Vec<u8>,
    aborts: u32,
    /// Upcalls with deadlines up to this one count as one abort with the last that has lasted too long: the process had
    /// them when it was late.
    counted_until: Option<Instant>,
    is_gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    deadline: Instant,
    /// The message went to the application meanwhile.
    is_over: bool,
}

/// Notifies a thread of the server that the process has answers or has ended. In a child of fork(2) it does nothing.
#[derive(Clone, Debug)]
pub struct AnswerEvent(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    /// Each side sends a byte to wake the other one. The process has the other end, so nothing that it does to its descriptor
    /// changes the flags of this one.
    stream: UnixStream,
    /// The process has closed its end.
    has_ended: AtomicBool,
    /// Notifies without the process, which does not have it.
    own: OwnedFd,
    /// The server; a child of fork(2) has copies of the descriptors.
    server: Process,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The place of the message, as [`Channel::submit`] returned it.
    pub place: usize,
    /// The value that the handler returned, with the meaning of the results of `ash_handle`.
    pub result: i32,
    /// The event that it posted: kind and value.
    pub event: Option<(u64, u64)>,
}

/// The reason why a process gets no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageRejection {
    /// All places are taken.
    Full,
    /// The message is longer than a place.
    TooLong,
    /// The process has not answered, or impossibly, too often.
    Disabled,
    /// The process has ended, or the caller is a child of the one that has created the channel.
    Gone,
}

/// The error that prevents upcalls to a process.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelError {
    /// The number of places is 0 or above [`MAX_PLACES`], or places are larger than 1 MiB.
    Policy(Policy),
    /// The operating system has rejected memory or a descriptor, or the process does not take them.
    System(io::Error),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::Policy(policy) => write!(
                f,
                "{} places for messages of {} and replies of {} bytes; use 1 to {MAX_PLACES} places of up to \
                 1 MiB",
                policy.places, policy.max_message_bytes, policy.max_reply_bytes
            ),
            ChannelError::System(error) => {
                write!(f, "cannot share memory with the process for upcalls: {error}")
            }
        }
    }
}

impl std::error::Error for ChannelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ChannelError::System(error) => Some(error),
            ChannelError::Policy(_) => None,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("free", &self.free.count_ones())
            .field("aborts", &self.aborts)
            .field("is_gone", &self.is_gone)
            .finish_non_exhaustive()
    }
}

/// Looks for answers after which a process that only invents them has to wait.
const MAX_LOOKS: usize = 8;
/// Maximum time to answer.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum size of the bytes of a message, or of a reply.
const MAX_PLACE_BYTES: usize = 1 << 20;

impl Channel {
    /// Creates the shared memory, and sends it to the process at the other end of a stream.
    ///
    /// # Errors
    /// If the policy is impossible, or the operating system cannot provide memory or descriptors.
    pub fn new(stream: UnixStream, policy: Policy) -> Result<Self, ChannelError> {
        let is_possible = (1..=MAX_PLACES).contains(&policy.places)
            && policy.max_message_bytes.max(policy.max_reply_bytes) <= MAX_PLACE_BYTES;
        if !is_possible {
            return Err(ChannelError::Policy(policy));
        }
        // Within what an `Instant` holds.
        let policy = Policy { timeout: policy.timeout.min(MAX_TIMEOUT), ..policy };
        let open = || -> io::Result<_> {
            let (shared, memory) = Shared::create(&policy)?;
            let descriptors = [memory.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            sendmsg(&stream, &[IoSlice::new(b"a")], &mut control, flags)?;
            Ok((shared, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        };
        let (shared, own) = open().map_err(ChannelError::System)?;
        let reply = Vec::with_capacity(shared.reply_bytes());
        Ok(Channel {
            policy,
            shared,
            answer_event: AnswerEvent(Arc::new(Ends {
                stream,
                has_ended: false.into(),
                own,
                server: Process::current(),
            })),
            in_flight: [None; MAX_PLACES],
            free: u64::MAX >> (MAX_PLACES - policy.places),
            taken: 0,
            reply,
            aborts: 0,
            counted_until: None,
            is_gone: false,
        })
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the event of new answers.
    pub fn answer_event(&self) -> AnswerEvent {
        self.answer_event.clone()
    }

    /// Returns whether this process has created the channel.
    fn is_ours(&self) -> bool {
        self.answer_event.0.server.is_current()
    }

    /// Returns why the process would not get a message.
    pub fn rejection(&self, len: usize) -> Option<MessageRejection> {
        if self.is_gone || !self.is_ours() {
            Some(MessageRejection::Gone)
        } else if self.aborts >= self.policy.max_aborts {
            Some(MessageRejection::Disabled)
        } else if len > self.policy.max_message_bytes {
            Some(MessageRejection::TooLong)
        } else {
            (self.free == 0).then_some(MessageRejection::Full)
        }
    }

    /// Submits a message, which is copied. Returns its place, or `None` if the process does not get it:
    /// [`rejection`](Self::rejection) says why. Makes a system call only if the process sleeps.
    pub fn submit(&mut self, message: &[u8], connection: u64, now: Instant) -> Option<usize> {
        if self.rejection(message.len()).is_some() {
            return None;
        }
        let number = self.free.trailing_zeros() as usize;
        self.free &= self.free - 1;
        let place = self.shared.place(number);
        place.connection.store(connection, Relaxed);
        place.message_len.store(message.len() as u32, Relaxed);
        // SAFETY: the message fits into the place, which the process does not use until it is submitted.
        unsafe {
            message.as_ptr().copy_to_nonoverlapping(self.shared.message(number), message.len());
        }
        let deadline = now + self.policy.timeout;
        self.in_flight[number] = Some(InFlight { deadline, is_over: false });
        let header = self.shared.header();
        header.submitted.fetch_or(1 << number, SeqCst);
        super::wake(&self.answer_event.0.stream, &header.peer_sleeps);
        Some(number)
    }

    /// Returns the next answer. Its reply is in [`reply`](Self::reply). After `None` the event notifies of the next
    /// one. Answers that nobody waits for, or that are impossible, are dropped. If the event has notified of the end of the
    /// process, [`next_expired`](Self::next_expired) then ends all upcalls.
    pub fn next_done(&mut self) -> Option<Done> {
        if !self.is_ours() {
            return None;
        }
        // Before the look, which finds what the process has answered until its end.
        self.is_gone |= self.answer_event.0.has_ended.load(Acquire);
        for _ in 0..MAX_LOOKS {
            while self.taken != 0 {
                let number = self.taken.trailing_zeros() as usize;
                self.taken &= self.taken - 1;
                if let Some(done) = self.finish(number) {
                    return Some(done);
                }
            }
            if !self.take_done() {
                return None;
            }
        }
        // The process invents answers faster than they are dropped. Others that may be among them are found later.
        if self.aborts < self.policy.max_aborts {
            self.answer_event.notify();
        }
        None
    }

    /// Takes the bits of the answers. Without any, arms the event and checks again.
    fn take_done(&mut self) -> bool {
        let header = self.shared.header();
        self.taken = header.done.swap(0, SeqCst);
        if self.taken == 0 {
            header.server_sleeps.store(1, SeqCst);
            self.taken = header.done.swap(0, SeqCst);
        }
        self.taken != 0
    }

    /// Ends the upcall in a place that the process says is done.
    fn finish(&mut self, number: usize) -> Option<Done> {
        let Some(InFlight { is_over, .. }) = self.in_flight[number].take() else {
            // The process has invented it.
            self.aborts = self.aborts.saturating_add(1);
            return None;
        };
        self.free |= 1 << number;
        if is_over {
            return None;
        }
        let place = self.shared.place(number);
        let result = place.result.load(Acquire) as i32;
        let event = (place.has_event.load(Relaxed) != 0)
            .then(|| (place.kind.load(Relaxed), place.value.load(Relaxed)));
        let len = place.reply_len.load(Relaxed) as usize;
        self.reply.clear();
        if len > self.shared.reply_bytes() {
            // As a handler in the sandbox that traps: the message goes to the application.
            self.aborts = self.aborts.saturating_add(1);
            return Some(Done { place: number, result: -1, event: None });
        }
        self.aborts = 0;
        // SAFETY: the bytes are in the place, and there is room for them. The process may write to them at the
        // same time, which makes them any bytes.
        unsafe {
            let from = self.shared.reply(number).cast_const();
            from.copy_to_nonoverlapping(self.reply.as_mut_ptr(), len);
            self.reply.set_len(len);
        }
        Some(Done { place: number, result, event })
    }

    /// Returns what the process sent in the last answer.
    pub fn reply(&self) -> &[u8] {
        &self.reply
    }

    /// Returns the next upcall that has lasted too long, or whose process has ended, and ends it. Its place
    /// stays taken until the process answers or ends. Call it until it returns `None`, after
    /// [`next_done`](Self::next_done) has: an answer that has arrived is not late.
    pub fn next_expired(&mut self, now: Instant) -> Option<usize> {
        if !self.is_ours() {
            return None;
        }
        let is_gone = self.is_gone;
        let expired = |upcall: &Option<InFlight>| {
            upcall.is_some_and(|upcall| !upcall.is_over && (is_gone || upcall.deadline <= now))
        };
        let number = self.in_flight.iter().position(expired)?;
        let upcall = self.in_flight[number].as_mut()?;
        upcall.is_over = true;
        if self.counted_until.is_none_or(|until| upcall.deadline > until) {
            self.aborts = self.aborts.saturating_add(1);
            self.counted_until = Some(now + self.policy.timeout);
        }
        // A look for each upcall that failed, so that the others do not wait for theirs.
        self.is_gone = self.is_gone || self.answer_event.0.has_ended();
        Some(number)
    }

    /// Returns when the next upcall has lasted too long.
    pub fn deadline(&self) -> Option<Instant> {
        let waiting = self.in_flight.iter().flatten().filter(|upcall| !upcall.is_over);
        let waiting = waiting.filter(|_| self.is_ours());
        waiting.map(|upcall| upcall.deadline).min()
    }

    /// Ends the upcall in a place for which nobody waits any more.
    pub fn abandon(&mut self, place: usize) {
        if let Some(upcall) = &mut self.in_flight[place] {
            upcall.is_over = true;
        }
    }

    /// Enables upcalls again, after aborts have disabled them.
    pub fn enable(&mut self) {
        self.aborts = 0;
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_ours() {
            // The process ends, though an event or a child of fork has the stream.
            let _ = self.answer_event.0.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Ends {
    /// Returns whether the process has closed its end of the stream.
    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        self.has_ended.load(Relaxed)
            || poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl AnswerEvent {
    /// Waits for a notification, or for a time. Returns whether one came. The end of the process causes one.
    ///
    /// # Errors
    /// If waiting fails, or in a child of the process that has created the channel.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let Ends { stream, has_ended, own, server } = &*self.0;
        if !server.is_current() {
            // It would take the notification from its parent.
            return Err(io::Error::other("the channel for upcalls belongs to another process"));
        }
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(own, PollFlags::IN),
            PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP),
        ];
        let watched = if has_ended.load(Relaxed) { 1 } else { 2 };
        match poll(&mut fds[..watched], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            let _ = rustix::io::read(own, &mut [0; 8]);
        }
        if !fds[1].revents().is_empty() && !super::take_wake_ups(stream) {
            has_ended.store(true, Release);
        }
        Ok(true)
    }

    /// Notifies a thread that waits, or the next one.
    pub fn notify(&self) {
        if !self.0.server.is_current() {
            return;
        }
        // Fails only at the maximum of the counter.
        let _ = rustix::io::write(&self.0.own, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
#[path = "../../tests/child/mod.rs"]
mod child;

#[cfg(test)]
mod tests {
    use super::child::in_child;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::thread;

    use super::super::Peer;
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn policy() -> Policy {
        Policy { places: 4, max_message_bytes: 100, max_reply_bytes: 100, ..Policy::default() }
    }

    fn pair() -> (Channel, Peer) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(ours, policy()).unwrap(), Peer::connect(theirs).unwrap())
    }

    /// Waits for the next answer.
    fn done(channel: &mut Channel) -> Done {
        let event = channel.answer_event();
        loop {
            match channel.next_done() {
                Some(done) => return done,
                None => assert!(event.wait(LONG).unwrap(), "no answer"),
            }
        }
    }

    #[test]
    fn batch_is_answered_with_replies_and_events() {
        let (mut channel, peer) = pair();
        let now = Instant::now();
        let messages = [&b"one"[..], b"two", b"three", b"four"];
        for (n, message) in messages.iter().enumerate() {
            assert_eq!(channel.submit(message, n as u64, now), Some(n));
        }
        assert_eq!(channel.rejection(1), Some(MessageRejection::Full));
        let process = thread::spawn(move || {
            peer.serve(|upcall| {
                let reply = upcall.message().to_ascii_uppercase();
                assert!(upcall.send(&reply) && upcall.send(b"!"));
                assert!(!upcall.send(&[0; 128]), "no room");
                upcall.post(upcall.connection(), u64::from(upcall.slot()));
                1
            })
        });
        for (n, message) in messages.iter().enumerate() {
            let event = Some((n as u64, n as u64));
            assert_eq!(done(&mut channel), Done { place: n, result: 1, event });
            assert_eq!(channel.reply(), [&message.to_ascii_uppercase()[..], b"!"].concat());
        }
        assert_eq!(channel.rejection(101), Some(MessageRejection::TooLong));
        assert_eq!(channel.submit(&[0; 101], 0, now), None);
        drop(channel);
        process.join().unwrap().unwrap();
    }

    #[test]
    fn late_answer_is_dropped_and_frees_its_place() {
        let (mut channel, peer) = pair();
        let (go, wait) = mpsc::channel::<()>();
        let process = thread::spawn(move || {
            peer.serve(|_| {
                let _ = wait.recv();
                1
            })
        });
        let now = Instant::now();
        let place = channel.submit(b"slow", 1, now).unwrap();
        assert_eq!(channel.deadline(), Some(now + policy().timeout));
        assert_eq!(channel.next_expired(now), None);
        let late = now + policy().timeout;
        assert_eq!(channel.next_expired(late), Some(place));
        assert_eq!((channel.next_expired(late), channel.deadline()), (None, None));
        // The process may still work on it.
        assert_ne!(channel.submit(b"next", 2, late), Some(place));
        drop(go);
        assert_ne!(done(&mut channel).place, place, "nobody waits for the late answer");
        assert_eq!(channel.free.count_ones(), 4);
        drop(channel);
        process.join().unwrap().unwrap();
    }

    #[test]
    fn answers_waited_for_the_slow_one_of_their_batch() {
        let (mut channel, peer) = pair();
        let now = Instant::now();
        let places = [&b"quick"[..], b"quick", b"slow"].map(|m| channel.submit(m, 1, now).unwrap());
        let (begin, begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let process = thread::spawn(move || {
            peer.serve(|upcall| {
                if upcall.message() == b"slow" {
                    begin.send(()).unwrap();
                    let _ = wait.recv();
                }
                1
            })
        });
        begun.recv_timeout(LONG).unwrap();
        for place in &places[..2] {
            assert_eq!(channel.next_done().map(|done| done.place), Some(*place));
        }
        assert_eq!(channel.next_done(), None);
        let late = now + policy().timeout;
        assert_eq!(channel.next_expired(late), Some(places[2]));
        assert_eq!((channel.next_expired(late), channel.rejection(1)), (None, None));
        drop(go);
        drop(channel);
        process.join().unwrap().unwrap();
    }

    #[test]
    fn slow_upcall_disabled_the_process_with_those_that_waited_for_it() {
        let (mut channel, peer) = pair();
        let start = Instant::now();
        let after = |quarters: u32| start + policy().timeout / 4 * quarters;
        let answer = |place: usize| peer.shared.header().done.fetch_or(1 << place, SeqCst);
        // The process is busy with the first one.
        let places = [0, 1, 2, 3].map(|n| channel.submit(b"m", 1, after(n)).unwrap());
        for (n, place) in (4..).zip(places) {
            assert_eq!(channel.next_expired(after(n)), Some(place));
            assert_eq!(channel.next_expired(after(n)), None);
            answer(place);
            assert_eq!((channel.next_done(), channel.rejection(1)), (None, None));
        }
        // It is late again and again.
        for n in [8, 13] {
            let place = channel.submit(b"m", 1, after(n)).unwrap();
            assert_eq!(channel.next_expired(after(n + 4)), Some(place));
        }
        assert_eq!(channel.rejection(1), Some(MessageRejection::Disabled));
    }

    #[test]
    fn process_that_ends_is_noticed_when_its_message_expires() {
        let (mut channel, peer) = pair();
        let now = Instant::now();
        let two = [channel.submit(b"one", 1, now), channel.submit(b"two", 2, now + LONG)];
        drop(peer);
        let late = now + policy().timeout;
        // The second one does not wait for its own deadline.
        assert_eq!([channel.next_expired(late), channel.next_expired(late)], two);
        assert_eq!(channel.next_expired(late), None);
        assert_eq!(channel.rejection(1), Some(MessageRejection::Gone));
    }

    #[test]
    fn end_of_the_process_was_noticed_only_when_a_message_expired() {
        let (mut channel, peer) = pair();
        let now = Instant::now();
        let places = [b"one", b"two"].map(|m| channel.submit(m, 1, now).unwrap());
        peer.shared.place(places[0]).result.store(1, Relaxed);
        peer.shared.header().done.store(1 << places[0], SeqCst);
        drop(peer);
        assert!(channel.answer_event().wait(LONG).unwrap());
        // It has answered one before.
        assert_eq!(channel.next_done().map(|done| done.place), Some(places[0]));
        assert_eq!(channel.next_done(), None);
        assert_eq!(channel.next_expired(now), Some(places[1]));
        assert_eq!(channel.next_expired(now), None);
        assert_eq!(channel.rejection(1), Some(MessageRejection::Gone));
    }

    #[test]
    fn impossible_answers_disable_the_process_and_access_nothing_else() {
        let (mut channel, peer) = pair();
        let now = Instant::now();
        let header = peer.shared.header();
        for _ in 0..2 {
            let place = channel.submit(b"m", 1, now).unwrap();
            let entry = peer.shared.place(place);
            entry.result.store(1, Relaxed);
            entry.reply_len.store(u32::MAX, Relaxed);
            header.submitted.store(0, SeqCst);
            header.done.store(1 << place, SeqCst);
            assert_eq!(channel.next_done(), Some(Done { place, result: -1, event: None }));
            assert_eq!(channel.reply(), b"");
        }
        assert_eq!(channel.rejection(1), None);
        // Places without a message, and some that do not exist.
        header.done.store(u64::MAX, SeqCst);
        assert_eq!(channel.next_done(), None);
        assert_eq!(channel.rejection(1), Some(MessageRejection::Disabled));
        assert_eq!(channel.submit(b"m", 1, now), None);
        channel.enable();
        assert!(channel.submit(b"m", 1, now).is_some());
        assert_eq!(channel.free.count_ones(), 3);
    }

    #[test]
    fn process_that_floods_costs_bounded_work() {
        let (mut channel, peer) = pair();
        let (stop, stopped) = mpsc::channel::<()>();
        let flood = thread::spawn(move || {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                peer.shared.header().done.store(u64::MAX, SeqCst);
                super::super::wake(&peer.stream, &AtomicU32::new(1));
            }
        });
        while channel.rejection(1) != Some(MessageRejection::Disabled) {
            channel.submit(b"m", 1, Instant::now());
            // It returns, however fast the process invents answers.
            channel.next_done();
        }
        drop(stop);
        flood.join().unwrap();
    }

    #[test]
    fn process_that_takes_no_wake_ups_blocked_the_server() {
        let (mut channel, peer) = pair();
        rustix::fs::fcntl_setfl(&peer.stream, rustix::fs::OFlags::empty()).unwrap();
        let header = peer.shared.header();
        // More wake-ups than the stream has room for.
        for _ in 0..10_000 {
            header.peer_sleeps.store(1, SeqCst);
            let place = channel.submit(b"m", 1, Instant::now()).unwrap();
            header.submitted.store(0, SeqCst);
            header.done.store(1 << place, SeqCst);
            channel.answer_event().notify();
            assert!(channel.next_done().is_some());
        }
        assert!(channel.answer_event().wait(LONG).unwrap());
        assert!(!channel.answer_event().wait(Duration::ZERO).unwrap());
    }

    #[test]
    fn end_of_the_process_notifies_once() {
        let (channel, peer) = pair();
        let event = channel.answer_event();
        drop(peer);
        assert!(event.wait(LONG).unwrap());
        assert!(!event.wait(Duration::ZERO).unwrap());
        event.notify();
        assert!(event.wait(LONG).unwrap());
    }

    #[test]
    fn child_of_fork_does_not_end_the_process() {
        let (channel, peer) = pair();
        let event = channel.answer_event();
        let mut channel = Some(channel);
        assert!(in_child(|| {
            drop(channel.take());
            true
        }));
        assert!(!event.wait(Duration::ZERO).unwrap());
        drop((channel, peer));
    }

    #[test]
    fn child_of_fork_submitted_messages_and_took_answers() {
        let (mut channel, peer) = pair();
        let (header, now) = (peer.shared.header(), Instant::now());
        let places = [b"one", b"two"].map(|m| channel.submit(m, 1, now).unwrap());
        let submitted = header.submitted.load(SeqCst);
        header.done.store(1 << places[0], SeqCst);
        let event = channel.answer_event();
        event.notify();
        let late = now + policy().timeout;
        assert!(in_child(|| {
            channel.rejection(1) == Some(MessageRejection::Gone)
                && channel.submit(b"child", 1, now).is_none()
                && channel.next_done().is_none()
                && channel.next_expired(late).is_none()
                && channel.deadline().is_none()
                && event.wait(Duration::ZERO).is_err()
        }));
        assert_eq!(header.submitted.load(SeqCst), submitted);
        assert!(event.wait(Duration::ZERO).unwrap());
        assert_eq!(channel.next_done().map(|done| done.place), Some(places[0]));
        assert_eq!(channel.next_expired(late), Some(places[1]));
    }

    #[test]
    fn longest_timeout_overflowed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let policy = Policy { timeout: Duration::MAX, ..policy() };
        let mut channel = Channel::new(ours, policy).unwrap();
        assert!(channel.submit(b"m", 1, Instant::now()).is_some());
        drop(theirs);
    }

    #[test]
    fn impossible_policies_are_rejected() {
        for bad in [
            Policy { places: 0, ..policy() },
            Policy { places: 65, ..policy() },
            Policy { max_reply_bytes: (1 << 20) + 1, ..policy() },
        ] {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let error = Channel::new(ours, bad).unwrap_err();
            assert!(error.to_string().contains("1 to 64 places"), "{error}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let error = Channel::new(ours, policy()).unwrap_err();
        assert!(matches!(error, ChannelError::System(_)), "{error}");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(matches!(Peer::connect(theirs), Err(super::super::PeerError::NoMemory)));
    }
}
