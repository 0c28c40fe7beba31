//! The simulated machine from within: descriptors, connections, peers, time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::dice::Dice;
use super::disk::Disk;
use super::fault::Fault;
use super::memory;
use super::peer::{Net, Next, Peer};
use super::plan::Plan;
use super::stream::{Connection, End, Owner};
use super::trace::Trace;
use crate::{Fd, Waker};

/// Descriptors count from here, so that none is one of this process's.
const FIRST: u32 = 1024;

/// What a descriptor stands for.
#[derive(Debug)]
pub(super) enum What {
    Listener(u32),
    /// A socket that is not connected.
    Fresh,
    /// A socket that will be connected or not; which attempt it is.
    Connecting(u64, SocketAddr),
    /// A connect has failed, and nobody was told yet.
    Refused(Errno),
    Connected(End),
    /// A file or a directory.
    File(u32),
    Event(Arc<AtomicU64>),
}

#[derive(Debug, Default)]
struct Descriptor {
    what: Option<What>,
    /// It stands among those of which something has changed.
    stirred: bool,
    resets: bool,
}

/// A listening socket.
#[derive(Debug)]
struct Listener {
    at: SocketAddr,
    /// Connections not accepted yet.
    queue: VecDeque<u32>,
    most: usize,
    owner: Owner,
}

/// A peer and what is to be done about it.
struct Actor {
    /// Away while it acts.
    peer: Option<Box<dyn Peer>>,
    is_runnable: bool,
    is_done: bool,
    serves: bool,
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A peer acts.
    Peer(u32),
    /// An attempt to connect succeeds or fails.
    Connect(u32, u64),
    /// An operation in flight is done.
    Operation(u64),
    /// Work on a file is done.
    Work(u64),
}

/// What came of letting time pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// Something has happened.
    Event,
    /// The time is over.
    Over,
    /// Nothing would ever happen.
    Nothing,
}

/// The simulated machine, and the world around it.
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) disk: Disk,
    pub(super) trace: Trace,
    start: Instant,
    pub(super) now: Duration,
    descriptors: Vec<Descriptor>,
    most_descriptors: usize,
    room: Option<usize>,
    connections: Vec<Option<Connection>>,
    listeners: Vec<Listener>,
    actors: Vec<Actor>,
    runnable: Vec<u32>,
    /// Ends whose bytes are on their way.
    wires: Vec<End>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    serial: u64,
    /// Descriptors of which something has changed.
    pub(super) stirred: Vec<u32>,
    /// Operations and file work that are due.
    pub(super) due: Vec<u64>,
    pub(super) due_work: Vec<u64>,
    /// The wakers' counters.
    bells: Vec<(u32, Arc<AtomicU64>)>,
    /// Is woken when file work is done.
    worker: Option<Waker>,
    ports: u16,
    steps: u64,
    most_steps: u64,
    /// System calls since something else has happened.
    calls: u64,
    finale: Option<Box<dyn FnOnce()>>,
    /// Operations that were in flight when their kernel was let go of.
    pub(super) unfinished: Vec<String>,
    failure: Option<String>,
}

impl World {
    /// How many steps a run may take, beyond those it was to take, to come to its end.
    const GRACE: u64 = 1_000_000;
    /// How many system calls a program may make while nothing else happens.
    const PATIENCE: u64 = 100_000;
    /// Until when everything must be over.
    const LONG: Duration = Duration::from_secs(24 * 3600);

    pub(super) fn new(plan: &Plan) -> Self {
        World {
            dice: Dice::new(plan.seed, plan.faults, plan.most_faults),
            disk: Disk::new(),
            trace: Trace::new(plan.traced),
            start: Instant::now(),
            now: Duration::ZERO,
            descriptors: Vec::new(),
            most_descriptors: plan.descriptors,
            room: plan.room,
            connections: Vec::new(),
            listeners: Vec::new(),
            actors: Vec::new(),
            runnable: Vec::new(),
            wires: Vec::new(),
            events: BinaryHeap::new(),
            serial: 0,
            stirred: Vec::new(),
            due: Vec::new(),
            due_work: Vec::new(),
            bells: Vec::new(),
            worker: None,
            ports: 10_000,
            steps: 0,
            most_steps: plan.steps,
            calls: 0,
            finale: None,
            unfinished: Vec::new(),
            failure: None,
        }
    }

    pub(super) fn instant(&self) -> Instant {
        self.start + self.now
    }

    /// Notes that the program has broken a rule. What comes after the first time is of no interest.
    pub(super) fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            let what = what.into();
            self.note(|| format!("FAILURE: {what}"));
            self.failure = Some(what);
        }
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.now, line);
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the peers should come to an end.
    pub(super) fn is_late(&self) -> bool {
        self.steps >= self.most_steps
    }

    pub(super) fn set_finale(&mut self, finale: Box<dyn FnOnce()>) {
        self.finale = Some(finale);
    }

    // Descriptors.

    pub(super) fn open(&mut self, what: What) -> Result<Fd, Errno> {
        let free = self.descriptors.iter().position(|d| d.what.is_none());
        let at = free.unwrap_or(self.descriptors.len());
        if at >= self.most_descriptors {
            self.dice.count(Fault::TableFull);
            return Err(Errno::MFILE);
        }
        if free.is_none() {
            self.descriptors.push(Descriptor::default());
        }
        let stirred = self.descriptors[at].stirred;
        self.descriptors[at] = Descriptor { what: Some(what), stirred, resets: false };
        Ok(Fd::from_raw((FIRST + at as u32) as i32))
    }

    fn at(&mut self, fd: Fd) -> Option<&mut Descriptor> {
        let at = (fd.raw() as u32).checked_sub(FIRST)?;
        self.descriptors.get_mut(at as usize).filter(|d| d.what.is_some())
    }

    /// What a descriptor stands for. That it is open is a rule.
    pub(super) fn what(&mut self, fd: Fd, doing: &str) -> Result<&mut What, Errno> {
        if self.at(fd).is_none() {
            self.fail(format!("{doing}: {fd:?} is not open"));
            return Err(Errno::BADF);
        }
        Ok(self.at(fd).and_then(|d| d.what.as_mut()).expect("it was just seen to be open"))
    }

    /// The connection that a descriptor stands for.
    pub(super) fn connected(&mut self, fd: Fd, doing: &str) -> Result<End, Errno> {
        match self.what(fd, doing)? {
            What::Connected(end) => Ok(*end),
            What::Refused(_) | What::Fresh | What::Connecting(..) => Err(Errno::NOTCONN),
            other => {
                let other = format!("{doing}: {fd:?} is {other:?}");
                self.fail(other);
                Err(Errno::NOTSOCK)
            }
        }
    }

    pub(super) fn file(&mut self, fd: Fd, doing: &str) -> Result<u32, Errno> {
        match self.what(fd, doing)? {
            What::File(node) => Ok(*node),
            other => {
                let other = format!("{doing}: {fd:?} is {other:?}");
                self.fail(other);
                Err(Errno::BADF)
            }
        }
    }

    pub(super) fn close(&mut self, fd: Fd) {
        let Some(descriptor) = self.at(fd) else {
            return self.fail(format!("{fd:?} is closed, but it is not open"));
        };
        let resets = descriptor.resets;
        let what = descriptor.what.take();
        self.note(|| format!("close {fd:?}"));
        match what {
            Some(What::Connected(end)) => self.close_end(end, resets),
            Some(What::Listener(listener)) => self.close_listener(listener),
            Some(What::Event(_)) => {
                self.bells.retain(|(at, _)| *at != fd.raw() as u32);
            }
            _ => {}
        }
    }

    /// Takes back a descriptor that nobody was told of.
    fn forget(&mut self, fd: Fd) {
        self.at(fd).expect("it was just opened").what = None;
    }

    pub(super) fn reset_on_close(&mut self, fd: Fd) {
        if self.what(fd, "setsockopt").is_ok() {
            self.at(fd).expect("it was just seen to be open").resets = true;
        }
    }

    /// Descriptors that are open, in words.
    pub(super) fn open_descriptors(&self) -> Vec<String> {
        let open = self.descriptors.iter().enumerate();
        open.filter_map(|(at, d)| Some((at, d.what.as_ref()?)))
            .filter(|(_, what)| !matches!(what, What::Event(_)))
            .map(|(at, what)| format!("fd {} ({what:?})", FIRST + at as u32))
            .collect()
    }

    /// Something has changed about a descriptor.
    pub(super) fn stir(&mut self, fd: u32) {
        let descriptor = &mut self.descriptors[(fd - FIRST) as usize];
        if !descriptor.stirred {
            descriptor.stirred = true;
            self.stirred.push(fd);
        }
    }

    /// Takes one of the descriptors of which something has changed.
    pub(super) fn take_stirred(&mut self) -> Option<Fd> {
        if self.stirred.is_empty() {
            return None;
        }
        let at = self.dice.below(self.stirred.len());
        let fd = self.stirred.swap_remove(at);
        self.descriptors[(fd - FIRST) as usize].stirred = false;
        Some(Fd::from_raw(fd as i32))
    }

    pub(super) fn add_bell(&mut self, fd: Fd, counter: Arc<AtomicU64>) {
        self.bells.push((fd.raw() as u32, counter));
    }

    pub(super) fn set_worker(&mut self, worker: Waker) {
        self.worker = Some(worker);
    }

    /// Stirs the wakers that were rung.
    pub(super) fn listen_for_bells(&mut self) {
        for at in 0..self.bells.len() {
            if self.bells[at].1.load(Ordering::Acquire) > 0 {
                self.stir(self.bells[at].0);
            }
        }
    }

    // Listeners.

    pub(super) fn listen(
        &mut self,
        at: SocketAddr,
        most: usize,
        owner: Owner,
    ) -> Result<(u32, SocketAddr), Errno> {
        let at = if at.port() == 0 { self.new_address(at) } else { at };
        if self.listener(at).is_some() {
            return Err(Errno::ADDRINUSE);
        }
        self.listeners.push(Listener { at, queue: VecDeque::new(), most, owner });
        Ok((self.listeners.len() as u32 - 1, at))
    }

    pub(super) fn set_listener_owner(&mut self, listener: u32, owner: Owner) {
        self.listeners[listener as usize].owner = owner;
    }

    pub(super) fn set_backlog(&mut self, listener: u32, most: usize) {
        self.listeners[listener as usize].most = most;
    }

    fn new_address(&mut self, like: SocketAddr) -> SocketAddr {
        self.ports += 1;
        SocketAddr::new(like.ip(), self.ports)
    }

    fn listener(&self, at: SocketAddr) -> Option<usize> {
        self.listeners.iter().position(|l| l.at == at && l.owner != Owner::Closed)
    }

    fn close_listener(&mut self, listener: u32) {
        self.listeners[listener as usize].owner = Owner::Closed;
        while let Some(connection) = self.listeners[listener as usize].queue.pop_front() {
            self.hurt(connection);
            self.close_end(End { connection, side: 1 }, true);
        }
    }

    pub(super) fn has_waiting(&self, listener: u32) -> bool {
        !self.listeners[listener as usize].queue.is_empty()
    }

    /// The listener of a peer that serves.
    pub(super) fn listener_of(&self, peer: u32) -> Option<u32> {
        let at = self.listeners.iter().position(|l| l.owner == Owner::Peer(peer));
        at.map(|at| at as u32)
    }

    /// Takes a connection out of a listener's queue.
    pub(super) fn next_waiting(&mut self, listener: u32) -> Option<End> {
        let connection = self.listeners[listener as usize].queue.pop_front()?;
        Some(End { connection, side: 1 })
    }

    /// Accepts for the program. A descriptor is looked for first: when there is none, that is said
    /// even if nobody waits, and whoever waits goes on waiting.
    pub(super) fn accept(&mut self, fd: Fd) -> Result<Fd, Errno> {
        let What::Listener(listener) = *self.what(fd, "accept")? else {
            self.fail(format!("accept: {fd:?} is no listener"));
            return Err(Errno::INVAL);
        };
        let accepted = self.accept_from(listener);
        if accepted != Err(Errno::AGAIN) {
            self.note(|| format!("accept at {fd:?}: {accepted:?}"));
        }
        accepted
    }

    fn accept_from(&mut self, listener: u32) -> Result<Fd, Errno> {
        if self.dice.fault(Fault::TableFull) {
            return Err(Errno::NFILE);
        }
        let new = self.open(What::Fresh)?;
        let Some(end) = self.next_waiting(listener) else {
            self.forget(new);
            return Err(Errno::AGAIN);
        };
        if self.dice.fault(Fault::AcceptAborted) {
            self.forget(new);
            self.hurt(end.connection);
            self.close_end(end, true);
            return Err(Errno::CONNABORTED);
        }
        *self.what(new, "accept")? = What::Connected(end);
        self.own(end, Owner::Descriptor(new.raw() as u32));
        Ok(new)
    }

    // Connections.

    pub(super) fn connection(&mut self, at: u32) -> &mut Connection {
        self.connections[at as usize].as_mut().expect("an end has an owner")
    }

    pub(super) fn of(&mut self, end: End) -> &mut Connection {
        self.connection(end.connection)
    }

    pub(super) fn own(&mut self, end: End, owner: Owner) {
        self.of(end).owners[usize::from(end.side)] = owner;
    }

    /// Something went wrong on purpose that may end a connection early.
    pub(super) fn hurt(&mut self, connection: u32) {
        self.connection(connection).is_hurt = true;
    }

    /// Opens a connection to a listener; its other end waits in the queue.
    pub(super) fn connect(&mut self, to: SocketAddr, owner: Owner) -> Result<End, Errno> {
        let listener = self.listener(to).ok_or(Errno::CONNREFUSED)?;
        if self.listeners[listener].queue.len() > self.listeners[listener].most {
            return Err(Errno::TIMEDOUT);
        }
        let from = self.new_address(to);
        let mut size = || match self.room {
            Some(room) => room,
            None => [64, 700, 5_000, 70_000][self.dice.below(4)],
        };
        let connection = Connection::new([from, to], [size(), size()], [size(), size()]);
        let vacant = self.connections.iter().position(Option::is_none);
        let at = vacant.unwrap_or(self.connections.len());
        if vacant.is_none() {
            self.connections.push(None);
        }
        self.connections[at] = Some(connection);
        let end = End { connection: at as u32, side: 0 };
        self.own(end, owner);
        self.listeners[listener].queue.push_back(end.connection);
        let owner = self.listeners[listener].owner;
        self.tell(owner);
        Ok(end)
    }

    /// Begins an attempt of the program to connect.
    pub(super) fn begin_connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        self.serial += 1;
        let serial = self.serial;
        match self.what(fd, "connect")? {
            what @ What::Fresh => *what = What::Connecting(serial, to),
            _ => {
                self.fail(format!("connect: {fd:?} is connected already"));
                return Err(Errno::ISCONN);
            }
        }
        let delay = self.dice.below(300) as u64;
        self.after(Duration::from_micros(delay), Event::Connect(fd.raw() as u32, serial));
        Ok(())
    }

    fn end_connect(&mut self, fd: u32, serial: u64) {
        let descriptor = Fd::from_raw(fd as i32);
        let Some(Descriptor { what: Some(What::Connecting(at, to)), .. }) = self.at(descriptor)
        else {
            return;
        };
        if *at != serial {
            return;
        }
        let to = *to;
        let outcome = if self.dice.fault(Fault::Unreachable) {
            Err(Errno::TIMEDOUT)
        } else {
            self.connect(to, Owner::Descriptor(fd))
        };
        self.note(|| format!("connect {descriptor:?} to {to}: {outcome:?}"));
        if let Some(descriptor) = self.at(descriptor) {
            descriptor.what = Some(match outcome {
                Ok(end) => What::Connected(end),
                Err(errno) => What::Refused(errno),
            });
        }
        self.stir(fd);
    }

    /// Tells an owner that something has changed.
    fn tell(&mut self, owner: Owner) {
        match owner {
            Owner::Descriptor(fd) => self.stir(fd),
            Owner::Peer(peer) => self.rouse(peer),
            Owner::Queue | Owner::Closed => {}
        }
    }

    fn tell_end(&mut self, end: End) {
        let owner = self.of(end).owners[usize::from(end.side)];
        self.tell(owner);
    }

    /// Sends for an end.
    pub(super) fn send(&mut self, end: End, bytes: &[u8]) -> Result<usize, Errno> {
        let sent = self.of(end).send(end.side, bytes);
        if sent.is_ok() {
            self.ship(end);
        }
        sent
    }

    /// Receives for an end.
    pub(super) fn receive(
        &mut self,
        end: End,
        most: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<usize, Errno> {
        let received = self.of(end).receive(end.side, most, take);
        if matches!(received, Ok(1..)) {
            // There is room for what was held back.
            self.ship(end.other());
        }
        received
    }

    /// Has what an end has sent arrive, or be on its way for a while.
    fn ship(&mut self, end: End) {
        let n = self.of(end).under_way(end.side);
        if n == 0 {
            return;
        }
        if self.dice.fault(Fault::SlowWire) {
            if !self.wires.contains(&end) {
                self.wires.push(end);
            }
        } else {
            self.deliver(end, n);
        }
    }

    fn deliver(&mut self, end: End, n: usize) {
        let other = end.other();
        if self.of(end).owners[usize::from(other.side)] == Owner::Closed {
            // As the other end is gone, the answer is a reset.
            return self.reset(end, [true, true]);
        }
        let told = self.of(end).deliver(end.side, n);
        self.tell_end(other);
        if told {
            self.tell_end(end);
        }
        if self.dice.fault(Fault::Reset) {
            self.note(|| format!("the network resets {end:?}"));
            self.hurt(end.connection);
            self.reset(end, [true, true]);
        }
    }

    fn reset(&mut self, end: End, told: [bool; 2]) {
        self.of(end).reset(told);
        self.tell_end(end);
        self.tell_end(end.other());
    }

    /// An end will send no more.
    pub(super) fn finish(&mut self, end: End) {
        self.of(end).finish(end.side);
        self.tell_end(end.other());
    }

    /// Lets go of an end; with a reset if that is wanted, or if bytes were not received.
    pub(super) fn close_end(&mut self, end: End, resets: bool) {
        self.own(end, Owner::Closed);
        if self.of(end.other()).owners[usize::from(end.other().side)] == Owner::Closed {
            self.connections[end.connection as usize] = None;
            self.wires.retain(|wire| wire.connection != end.connection);
        } else if resets || self.of(end).readable(end.side) > 0 {
            let mut told = [false; 2];
            told[usize::from(end.other().side)] = true;
            self.reset(end, told);
        } else {
            self.finish(end);
        }
    }

    // Peers and time.

    /// Adds a peer; one that only serves is not waited for at the end.
    pub(super) fn add_peer(&mut self, peer: Box<dyn Peer>, serves: bool) -> u32 {
        let at = self.actors.len() as u32;
        self.actors.push(Actor { peer: Some(peer), is_runnable: false, is_done: false, serves });
        self.rouse(at);
        at
    }

    /// Has a peer act.
    pub(super) fn rouse(&mut self, peer: u32) {
        let actor = &mut self.actors[peer as usize];
        if !actor.is_runnable && !actor.is_done {
            actor.is_runnable = true;
            self.runnable.push(peer);
        }
    }

    pub(super) fn after(&mut self, time: Duration, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((self.now + time, self.serial, event)));
    }

    /// Lets one peer or one connection, whichever it may be, go on; false if there is none.
    pub(super) fn tick(&mut self) -> bool {
        let choices = self.runnable.len() + self.wires.len();
        if choices == 0 || self.failure.is_some() {
            return false;
        }
        self.calls = 0;
        self.steps += 1;
        if self.steps == self.most_steps {
            self.dice.calm();
            (0..self.actors.len() as u32).for_each(|peer| self.rouse(peer));
        }
        if self.steps == self.most_steps + Self::GRACE {
            self.fail("the peers never come to an end");
        }
        let at = self.dice.below(choices);
        if at < self.runnable.len() {
            let peer = self.runnable.swap_remove(at);
            self.act(peer);
        } else {
            let end = self.wires.swap_remove(at - self.runnable.len());
            let under_way = self.of(end).under_way(end.side);
            if under_way > 0 {
                let n = 1 + self.dice.below(under_way);
                if n < under_way {
                    self.wires.push(end);
                }
                self.deliver(end, n);
            }
        }
        true
    }

    fn act(&mut self, at: u32) {
        let actor = &mut self.actors[at as usize];
        actor.is_runnable = false;
        if self.dice.fault(Fault::Stall) {
            for connection in self.connections.iter_mut().flatten() {
                connection.has_stalled |= connection.owners.contains(&Owner::Peer(at));
            }
            let time = Duration::from_millis(1 + self.dice.below(4_000) as u64);
            self.note(|| format!("peer {at} does nothing for {time:?}"));
            return self.after(time, Event::Peer(at));
        }
        let Some(mut peer) = self.actors[at as usize].peer.take() else { return };
        let next = peer.step(&mut Net::new(self, at));
        self.actors[at as usize].peer = Some(peer);
        match next {
            Next::Ready => self.rouse(at),
            Next::Wait => {}
            Next::After(time) => self.after(time, Event::Peer(at)),
            Next::Done => {
                self.actors[at as usize].is_done = true;
                if self.actors.iter().all(|actor| actor.is_done || actor.serves)
                    && let Some(finale) = self.finale.take()
                {
                    self.note(|| "all peers are done".to_owned());
                    finale();
                }
            }
        }
    }

    /// What the peers that are not done are about.
    fn waiting_peers(&self) -> String {
        let waiting = self.actors.iter().enumerate().filter(|(_, actor)| !actor.is_done);
        let words: Vec<_> = waiting
            .filter_map(|(at, actor)| {
                Some(format!("peer {at} ({})", actor.peer.as_ref()?.waits_for()))
            })
            .collect();
        if words.is_empty() { "nobody; who stops it?".to_owned() } else { words.join(", ") }
    }

    /// Lets time pass until something happens, at most until `until`.
    pub(super) fn pass(&mut self, until: Option<Duration>) -> Passed {
        let next = self.events.peek().map(|Reverse((at, ..))| *at);
        match (next, until) {
            (Some(at), until) if until.is_none_or(|until| at <= until) => {
                self.now = self.now.max(at);
                self.happen();
                Passed::Event
            }
            (_, Some(until)) => {
                self.now = self.now.max(until);
                if self.now > Self::LONG {
                    let waiting = self.waiting_peers();
                    self.fail(format!("a day has passed, and these still wait: {waiting}"));
                }
                Passed::Over
            }
            _ => Passed::Nothing,
        }
    }

    /// Has everything happen that is due.
    fn happen(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.peek() {
            if *at > self.now {
                return;
            }
            let event = *event;
            self.events.pop();
            match event {
                Event::Peer(peer) => self.rouse(peer),
                Event::Connect(fd, serial) => self.end_connect(fd, serial),
                Event::Operation(id) => self.due.push(id),
                Event::Work(id) => {
                    self.due_work.push(id);
                    if let Some(worker) = &self.worker {
                        worker.wake();
                    }
                }
            }
        }
    }

    /// Begins a system call that lets others go on: a little time passes, a few of them act.
    pub(super) fn enter(&mut self) {
        self.calls += 1;
        if self.calls > Self::PATIENCE {
            let waiting = self.waiting_peers();
            self.fail(format!("the program makes calls to no end; waiting: {waiting}"));
        }
        self.look_for_freed();
        self.now += Duration::from_micros(self.dice.below(20) as u64);
        self.happen();
        for _ in 0..self.dice.below(4) {
            self.tick();
        }
        self.listen_for_bells();
    }

    /// Fails if memory was freed that the kernel holds; then nothing may look at it again.
    pub(super) fn look_for_freed(&mut self) {
        if let Some((start, len)) = memory::freed() {
            self.fail(format!("{len} bytes at {start:#x} were freed while the kernel held them"));
        }
    }

    /// Lets others go on, or time pass, for a program that waits.
    pub(super) fn wait(&mut self, until: Option<Duration>) -> Passed {
        if self.failure.is_some() {
            return Passed::Nothing;
        }
        // What the kernel has put off comes first.
        let busy = !self.stirred.is_empty() || self.tick();
        let passed = if busy { Passed::Event } else { self.pass(until) };
        if passed == Passed::Nothing && self.failure.is_none() {
            let waiting = self.waiting_peers();
            self.fail(format!("the program waits for ever; so do: {waiting}"));
        }
        self.listen_for_bells();
        passed
    }
}
