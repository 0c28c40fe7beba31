//! The driver: turns completions into callbacks, and commands into operations.
//!
//! It is the same for every mechanism. Between two callbacks nothing is left half done: what a
//! callback asked for is carried out when it has returned, so no command calls back.

mod gate;
mod io;
mod link;
mod run;

pub(crate) use gate::Gate;
pub(crate) use io::{Io, operations};
pub(crate) use run::{Interrupts, Never, drive, gates, roots};

use std::mem;

use shared_ring::{
    Completion, Errno, Fd, Gather, Host, Kind, Op, Outcome, Posted, RxBuf, Submit, Table, Token,
};

use crate::{Application, Close, Cx, LOW_WATER, Listener, Remote, Rx, Why};
use link::{Flags, Item, Link, Phase};

/// A server: its application, the states of its connections, and everything else.
pub(crate) struct Driver<K: Submit, A: Application> {
    app: A,
    states: Table<A::State>,
    pub(crate) io: Io<K>,
    remote: Remote,
}

/// Calls the application about a connection.
macro_rules! call {
    ($driver:ident, $slot:expr, $callback:ident $(, $argument:expr)*) => {{
        let id = $driver.io.conn($slot);
        let state = $driver.states.at($slot as usize);
        $driver.app.$callback(Cx { io: &mut $driver.io, id, state } $(, $argument)*)
    }};
}

/// The most bytes of a file that one operation sends, so that progress can be seen.
const FILE_PIECE: u64 = 256 * 1024;

/// The most operations that a connection sends by in one turn, if they are done at once.
const SENDS: u32 = 4;

/// Takes the next thing to send from the queue. A file stays there until it is sent.
fn next_send(link: &mut Link, fd: Fd) -> Option<Op> {
    if let Item::File(file, range) = link.queue.front()? {
        let len = (range.end - range.start).min(FILE_PIECE) as u32;
        return Some(Op::SendFile { fd, file: file.clone(), offset: range.start, len });
    }
    match link.queue.pop_front()? {
        Item::Memory(data) => Some(Op::Send { fd, data }),
        Item::File(..) => unreachable!("it was just seen to be none"),
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    pub(crate) fn new(app: A, io: Io<K>, remote: Remote) -> Self {
        Driver { app, states: Table::default(), io, remote }
    }

    /// Uses one completion.
    pub(crate) fn complete(&mut self, completion: Completion) {
        let Completion { token, outcome, last } = completion;
        match token.kind() {
            Kind::Accept => self.accept(token.slot() as usize, outcome, last),
            Kind::File => self.file_done(token, outcome),
            Kind::Wake => self.wake(),
            kind => self.connection(kind, token, outcome, last),
        }
        self.settle();
    }

    /// A completion of an operation on a connection.
    fn connection(&mut self, kind: Kind, token: Token, outcome: Outcome, last: bool) {
        let slot = token.slot();
        let known = self.io.links.get(slot as usize);
        let lives = |link: &Link| {
            link.phase != Phase::Vacant
                && link.generation % Token::GENERATIONS == token.generation()
        };
        if !known.is_some_and(lives) {
            self.io.stats.stale += 1;
            return;
        }
        let link = self.io.link(slot);
        if last {
            link.flags -= match kind {
                Kind::Receive => Flags::RECEIVING | Flags::CANCELLED,
                Kind::Send => Flags::SENDING,
                _ => Flags::CHANGING,
            };
            self.io.touch(slot);
        }
        match outcome {
            Outcome::Received(bytes) => self.received(slot, bytes),
            Outcome::Eof => self.eof(slot),
            Outcome::Sent(list, n) => self.sent(slot, list, n),
            Outcome::SentFile(n) => self.sent_file(slot, n.into()),
            Outcome::Connected => self.connected(slot),
            Outcome::Closed => self.closed(slot),
            Outcome::Failed(errno, list) => self.failed(slot, kind, errno, list),
            _ => self.io.stats.stale += 1,
        }
    }

    fn accept(&mut self, gate: usize, outcome: Outcome, last: bool) {
        let now = self.io.kernel.now();
        if last {
            self.io.gates[gate].ended();
        }
        match outcome {
            Outcome::Accepted(fd) if self.io.stopping => self.io.kernel.host_mut().discard(fd),
            Outcome::Accepted(fd) => {
                let listener = Listener(gate as u16);
                if self.io.open < self.io.config.max_connections {
                    self.admit(listener, fd);
                } else {
                    self.io.surplus.push_back((listener, fd));
                }
            }
            Outcome::Failed(Errno::CANCELED, _) => {}
            Outcome::Closed => self.io.gates[gate].closed(),
            _ => {
                self.io.stats.accept_pauses += 1;
                self.io.gates[gate].rest(now);
            }
        }
    }

    fn admit(&mut self, listener: Listener, fd: Fd) {
        let slot = self.io.occupy(Phase::Open);
        self.io.link(slot).fd = Some(fd);
        self.io.stats.accepted += 1;
        self.io.touch(slot);
        call!(self, slot, accepted, listener);
    }

    fn connected(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.phase != Phase::Connecting {
            return;
        }
        link.phase = Phase::Open;
        let resumed = link.has(Flags::RESUMED);
        if link.is_heard() {
            call!(self, slot, connected, Ok(()));
        }
        if resumed {
            self.io.call_again(slot);
        }
    }

    fn received(&mut self, slot: u32, bytes: RxBuf) {
        let link = self.io.link(slot);
        if !link.is_heard() {
            return;
        }
        if link.has(Flags::PAUSED) {
            link.tail.extend_from_slice(&bytes);
            self.cancel_receive(slot);
        } else if link.tail.is_empty() {
            self.offer_buffer(slot, bytes);
        } else {
            self.offer_with_tail(slot, bytes);
        }
    }

    /// Shows the application a buffer in place, and keeps what it leaves.
    fn offer_buffer(&mut self, slot: u32, bytes: RxBuf) {
        self.io.stats.received += 1;
        let mut rx = Rx::buffer(bytes, false);
        call!(self, slot, received, &mut rx);
        let rest = rx.bytes();
        if !rest.is_empty() && self.io.link(slot).is_heard() {
            let mut tail = self.io.spare_tail();
            tail.extend_from_slice(rest);
            self.keep_tail(slot, tail);
        }
    }

    /// Appends to what was left, as much as fits at a time, and shows that.
    fn offer_with_tail(&mut self, slot: u32, mut bytes: RxBuf) {
        while !bytes.is_empty() && self.io.link(slot).is_heard() {
            let link = self.io.link(slot);
            if link.tail.is_empty() && !link.has(Flags::PAUSED) {
                return self.offer_buffer(slot, bytes);
            }
            let room = match link.has(Flags::PAUSED) {
                true => bytes.len(),
                false => A::MAX_UNCONSUMED.saturating_sub(link.tail.len()).min(bytes.len()),
            };
            link.tail.extend_from_slice(&bytes[..room]);
            bytes.advance(room);
            if !link.has(Flags::PAUSED) {
                self.offer_tail(slot);
            }
        }
    }

    /// Shows the application what it has left before, and with it the end if that has come.
    fn offer_tail(&mut self, slot: u32) {
        self.io.stats.received += 1;
        let link = self.io.link(slot);
        let eof = link.has(Flags::EOF);
        link.flags.set(Flags::TOLD, eof);
        let mut tail = mem::take(&mut link.tail);
        let mut rx = Rx::borrowed(&mut tail, eof);
        call!(self, slot, received, &mut rx);
        let rest = rx.bytes().len();
        tail.drain(..tail.len() - rest);
        self.keep_tail(slot, tail);
        if eof {
            // With the other half closed before, this was the last thing to do.
            self.io.touch(slot);
        }
    }

    /// Keeps what the application has left, if it still wants it and keeps to its bound.
    fn keep_tail(&mut self, slot: u32, tail: Vec<u8>) {
        let link = self.io.link(slot);
        let paused = link.has(Flags::PAUSED);
        let over = link.has(Flags::EOF) && !paused;
        if !link.is_heard() || tail.is_empty() || over {
            self.io.recycle_tail(tail);
        } else if tail.len() >= A::MAX_UNCONSUMED && !paused {
            self.io.stats.overruns += 1;
            self.end(slot, Why::Overrun);
        } else {
            link.tail = tail;
        }
    }

    fn eof(&mut self, slot: u32) {
        let link = self.io.link(slot);
        link.flags |= Flags::EOF;
        match link.phase {
            Phase::Lingering => self.end(slot, Why::Closed),
            Phase::Open if link.is_heard() && !link.has(Flags::PAUSED) => self.offer_tail(slot),
            _ => {}
        }
    }

    fn sent(&mut self, slot: u32, list: Box<Gather>, n: usize) {
        let link = self.io.link(slot);
        link.queued -= n;
        if link.phase == Phase::Ending || list.is_empty() {
            self.io.recycle(list);
        } else {
            link.queue.push_front(Item::Memory(list));
        }
        self.progress(slot);
    }

    fn sent_file(&mut self, slot: u32, n: u64) {
        let link = self.io.link(slot);
        if link.phase == Phase::Ending {
            return;
        }
        if let Some(Item::File(_, range)) = link.queue.front_mut() {
            range.start += n;
            if range.is_empty() {
                link.queue.pop_front();
            } else if n == 0 {
                return self.end(slot, Why::Truncated);
            }
        }
        self.progress(slot);
    }

    /// Something was sent.
    fn progress(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.phase == Phase::Flushing {
            self.io.set_timer(slot, self.io.config.stall);
        } else if link.has(Flags::HIGH) && link.load() <= LOW_WATER {
            self.io.call_again(slot);
        }
    }

    fn failed(&mut self, slot: u32, kind: Kind, errno: Errno, list: Option<Box<Gather>>) {
        if let Some(list) = list {
            self.io.link(slot).queued -= list.len();
            self.io.recycle(list);
        }
        let link = self.io.link(slot);
        match kind {
            _ if link.phase == Phase::Ending => {}
            // A pause that came to nothing or has done its work.
            Kind::Receive if errno == Errno::CANCELED => {}
            Kind::Receive if link.phase == Phase::Lingering => self.end(slot, Why::Closed),
            _ => self.lost(slot, errno),
        }
    }

    /// The connection broke, or never came to be.
    fn lost(&mut self, slot: u32, errno: Errno) {
        if self.io.link(slot).phase == Phase::Connecting {
            self.io.link(slot).why = Some(Why::Failed(errno.into()));
            self.io.call_again(slot);
        } else {
            self.end(slot, Why::Failed(errno.into()));
        }
    }

    /// Tells the application that a connect has failed.
    fn not_connected(&mut self, slot: u32, why: Why) {
        let errno = match &why {
            Why::Failed(error) => error.raw_os_error().unwrap_or(0),
            _ => 0,
        };
        if matches!(self.io.link(slot).close, None | Some(Close::Half)) {
            call!(self, slot, connected, Err(std::io::Error::from_raw_os_error(errno)));
        }
        self.end(slot, why);
    }

    fn closed(&mut self, slot: u32) {
        let why = self.io.link(slot).why.take().unwrap_or(Why::Closed);
        call!(self, slot, closed, why);
        *self.states.at(slot as usize) = A::State::default();
        self.io.vacate(slot);
        self.io.stats.closed += 1;
        for gate in &mut self.io.gates {
            gate.room();
        }
        let room = self.io.open < self.io.config.max_connections;
        if room && let Some((listener, fd)) = self.io.surplus.pop_front() {
            self.admit(listener, fd);
        }
    }

    fn file_done(&mut self, token: Token, outcome: Outcome) {
        if let Some(work) = self.io.end_work(token) {
            let (tag, done) = work.done(outcome);
            call!(self, work.on.slot(), file, tag, done);
        }
    }

    /// Looks after every connection that commands were given for.
    fn settle(&mut self) {
        let mut at = 0;
        while let Some(&slot) = self.io.touched.get(at) {
            at += 1;
            self.io.link(slot).flags -= Flags::TOUCHED;
            self.tend(slot);
        }
        self.io.touched.clear();
    }

    /// Does what a connection is due for.
    fn tend(&mut self, slot: u32) {
        self.begin_close(slot);
        let link = self.io.link(slot);
        if link.has(Flags::OVERRUN) && link.phase != Phase::Ending {
            self.io.stats.overruns += 1;
            return self.end(slot, Why::Overrun);
        }
        match link.phase {
            Phase::Vacant | Phase::Connecting => {}
            Phase::Ending => self.finish(slot),
            Phase::Open | Phase::Flushing | Phase::Lingering => {
                self.send(slot);
                self.receive(slot);
            }
        }
    }

    /// Begins the close that was asked for.
    fn begin_close(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.close.is_none() {
            return;
        }
        match (link.phase, link.close) {
            (
                Phase::Connecting | Phase::Open | Phase::Flushing | Phase::Lingering,
                Some(Close::Reset),
            ) => {
                if let Some(fd) = link.fd {
                    self.io.kernel.host_mut().reset_on_close(fd);
                }
                self.end(slot, Why::Closed);
            }
            (Phase::Connecting, Some(Close::Flush | Close::Linger)) if link.queue.is_empty() => {
                self.end(slot, Why::Closed);
            }
            (Phase::Open, Some(Close::Flush | Close::Linger)) => {
                link.phase = Phase::Flushing;
                let tail = mem::take(&mut link.tail);
                self.io.recycle_tail(tail);
                self.io.set_timer(slot, self.io.config.stall);
            }
            _ => {}
        }
    }

    /// Sends what is queued, as far as it goes at once; the rest when there is room, or in the
    /// next turn.
    fn send(&mut self, slot: u32) {
        for _ in 0..SENDS {
            let token = self.io.token(Kind::Send, slot);
            let link = self.io.link(slot);
            let (false, Some(fd)) = (link.has(Flags::SENDING), link.fd) else { return };
            let Some(op) = next_send(link, fd) else { return self.all_sent(slot, fd) };
            match self.io.kernel.submit(token, op) {
                Ok(Posted::InFlight) => self.io.link(slot).flags |= Flags::SENDING,
                Ok(Posted::Done(Outcome::Sent(list, n))) => self.sent(slot, list, n),
                Ok(Posted::Done(Outcome::SentFile(n))) => self.sent_file(slot, n.into()),
                Ok(Posted::Done(Outcome::Failed(errno, list))) => {
                    return self.failed(slot, Kind::Send, errno, list);
                }
                Ok(Posted::Done(other)) => unreachable!("not the end of a send: {other:?}"),
                Err(_) => return self.end(slot, Why::Failed(Errno::NOBUFS.into())),
            }
        }
        self.io.call_again(slot);
    }

    /// The queue is empty: goes on with a close that waited for that.
    fn all_sent(&mut self, slot: u32, fd: Fd) {
        let link = self.io.link(slot);
        let Some(how) = link.close else { return };
        if how != Close::Flush && !link.has(Flags::SHUT) {
            link.flags |= Flags::SHUT;
            self.io.kernel.host_mut().shutdown(fd);
        }
        let link = self.io.link(slot);
        // Bytes that the application left while paused are still to come again.
        let waits = link.has(Flags::RESUMED) || link.has(Flags::PAUSED) && !link.tail.is_empty();
        let heard_out = link.has(Flags::TOLD) && !waits;
        match how {
            Close::Flush => self.end(slot, Why::Closed),
            Close::Half if heard_out => self.end(slot, Why::Closed),
            Close::Linger if link.has(Flags::EOF) => self.end(slot, Why::Closed),
            Close::Linger if link.phase == Phase::Flushing => {
                link.phase = Phase::Lingering;
                self.io.set_timer(slot, self.io.config.linger);
            }
            _ => {}
        }
    }

    /// Receives, if that is wanted and not being done.
    fn receive(&mut self, slot: u32) {
        let token = self.io.token(Kind::Receive, slot);
        let link = self.io.link(slot);
        let wanted = match link.phase {
            Phase::Open => !link.has(Flags::PAUSED),
            Phase::Lingering => true,
            _ => false,
        };
        let idle = !link.flags.intersects(Flags::RECEIVING | Flags::EOF);
        let (true, true, Some(fd)) = (wanted, idle, link.fd) else { return };
        link.flags |= Flags::RECEIVING;
        if self.io.kernel.submit(token, Op::Receive { fd }).is_err() {
            self.io.link(slot).flags -= Flags::RECEIVING;
            self.end(slot, Why::Failed(Errno::NOBUFS.into()));
        }
    }

    fn cancel_receive(&mut self, slot: u32) {
        let token = self.io.token(Kind::Receive, slot);
        let link = self.io.link(slot);
        if link.has(Flags::RECEIVING) && !link.has(Flags::CANCELLED) {
            link.flags |= Flags::CANCELLED;
            self.io.kernel.cancel(token);
        }
    }

    /// Begins the end of a connection: nothing more is sent, what is in flight is cancelled.
    fn end(&mut self, slot: u32, why: Why) {
        let link = self.io.link(slot);
        if matches!(link.phase, Phase::Ending | Phase::Vacant) {
            return;
        }
        link.phase = Phase::Ending;
        link.why = Some(why);
        let tail = mem::take(&mut link.tail);
        self.io.recycle_tail(tail);
        self.io.drop_queue(slot);
        self.io.wheel.clear(slot);
        self.cancel_receive(slot);
        for (flag, kind) in [(Flags::SENDING, Kind::Send), (Flags::CHANGING, Kind::Connect)] {
            if self.io.link(slot).has(flag) {
                let token = self.io.token(kind, slot);
                self.io.kernel.cancel(token);
            }
        }
        self.io.touch(slot);
    }

    /// Closes the descriptor of an ending connection once nothing is in flight for it.
    fn finish(&mut self, slot: u32) {
        let token = self.io.token(Kind::Close, slot);
        let link = self.io.link(slot);
        if link.is_busy() {
            return;
        }
        let Some(fd) = link.fd.take() else { return self.closed(slot) };
        match self.io.kernel.submit(token, Op::Close { fd }) {
            Ok(Posted::InFlight) => self.io.link(slot).flags |= Flags::CHANGING,
            Ok(Posted::Done(_)) => self.closed(slot),
            Err(_) => {
                self.io.kernel.host_mut().discard(fd);
                self.closed(slot);
            }
        }
    }

    /// Does what is due after a batch of completions: passed deadlines, connections to be called
    /// again, listeners.
    pub(crate) fn end_turn(&mut self) {
        let now = self.io.kernel.now();
        // No more than there can be: a deadline that is set in the past waits for the next turn.
        for _ in 0..self.io.links.len() {
            let Some(slot) = self.io.wheel.expired(now) else { break };
            self.expired(slot);
            self.settle();
        }
        for _ in 0..self.io.ended_works.len() {
            let Some((work, outcome)) = self.io.ended_works.pop_front() else { break };
            if let Some(work) = self.io.told(work) {
                let (tag, done) = work.done(outcome);
                call!(self, work.on.slot(), file, tag, done);
                self.settle();
            }
        }
        for _ in 0..self.io.again.len() {
            let Some(id) = self.io.again.pop_front() else { break };
            if self.io.conn(id.slot()) == id {
                self.again(id.slot());
                self.settle();
            }
        }
        self.tend_gates();
    }

    /// Does for a connection what was put off until the batch was done.
    fn again(&mut self, slot: u32) {
        self.io.touch(slot);
        let link = self.io.link(slot);
        link.flags -= Flags::AGAIN;
        if link.phase == Phase::Connecting {
            match link.why.take() {
                Some(why) => self.not_connected(slot, why),
                // It may still be under way, and this be about something else.
                None if !link.has(Flags::CHANGING) => self.connected(slot),
                None => {}
            }
            return;
        }
        if link.has(Flags::HIGH) && link.load() <= LOW_WATER {
            link.flags -= Flags::HIGH;
            if link.phase == Phase::Open && link.close.is_none() {
                call!(self, slot, drained);
            }
        }
        let link = self.io.link(slot);
        if link.has(Flags::RESUMED) {
            link.flags -= Flags::RESUMED;
            if link.is_heard() && !link.has(Flags::PAUSED) {
                self.offer_tail(slot);
            }
        }
    }

    fn expired(&mut self, slot: u32) {
        match self.io.link(slot).phase {
            Phase::Flushing => self.stalled(slot),
            Phase::Lingering => self.end(slot, Why::Closed),
            Phase::Connecting | Phase::Open => {
                call!(self, slot, expired);
            }
            Phase::Vacant | Phase::Ending => {}
        }
    }

    /// The peer takes nothing of what is left to be sent. A reset tells it that this is not the end.
    fn stalled(&mut self, slot: u32) {
        if let Some(fd) = self.io.link(slot).fd {
            self.io.kernel.host_mut().reset_on_close(fd);
        }
        self.end(slot, Why::Failed(Errno::TIMEDOUT.into()));
    }

    /// Accepts where there is room, and rests where there is none.
    pub(crate) fn tend_gates(&mut self) {
        let now = self.io.kernel.now();
        let full = self.io.open >= self.io.config.max_connections;
        for gate in &mut self.io.gates {
            if self.io.stopping {
                gate.close(&mut self.io.kernel);
            } else if !full {
                gate.resume(&mut self.io.kernel, now);
            } else {
                // The end of a connection is what it waits for now.
                gate.room();
                self.io.stats.accept_pauses += u64::from(gate.pause(&mut self.io.kernel));
            }
        }
    }

    /// Another thread wants something.
    fn wake(&mut self) {
        for _ in 0..Remote::TAGS {
            let Some(tag) = self.remote.next_tag() else { break };
            self.app.woken(&mut self.io, tag);
            self.settle();
        }
        if self.remote.stopped() && !self.io.stopping {
            self.stop();
        }
    }

    /// Closes the listeners and tells every connection.
    fn stop(&mut self) {
        self.io.stopping = true;
        for (_, fd) in self.io.surplus.drain(..) {
            self.io.kernel.host_mut().discard(fd);
        }
        for slot in 0..self.io.links.len() as u32 {
            let link = self.io.link(slot);
            if matches!(link.phase, Phase::Connecting | Phase::Open) && link.close.is_none() {
                call!(self, slot, stopping);
                self.settle();
            }
        }
    }

    /// Resets every connection that is still there.
    pub(crate) fn stop_now(&mut self) {
        for slot in 0..self.io.links.len() as u32 {
            let link = self.io.link(slot);
            if !matches!(link.phase, Phase::Vacant | Phase::Ending) {
                if let Some(fd) = link.fd {
                    self.io.kernel.host_mut().reset_on_close(fd);
                }
                self.end(slot, Why::Stopped);
                self.settle();
            }
        }
    }

    /// Whether a stopping server has nothing left to do.
    pub(crate) fn is_done(&self) -> bool {
        let io = &self.io;
        io.stopping && io.open == 0 && io.files_rest() && io.gates.iter().all(Gate::is_closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        // With a buffer list kept in the queue, an entry in the table of operations, a timer and
        // a small state, an idle connection stays under 512 bytes.
        assert!(mem::size_of::<link::Link>() <= 176, "{}", mem::size_of::<link::Link>());
    }
}
