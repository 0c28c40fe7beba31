//! The commands: they note what is to be done, and the driver does it after the callback.

#[cfg(feature = "sim")]
pub(crate) mod usage;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use shared_ring::{
    Errno, File, Gather, Host, Kind, Op, Outcome, Posted, Refused, Socket, Submit, Table, Token,
};

use super::gate::Gate;
use super::link::{Flags, Item, Link, Phase};
use super::shares::{Shares, Source};
use crate::admission::Load;
use crate::{
    Admit, Chunk, Close, Commands, Config, Conn, FileDone, FileOp, FilePath, Lateness, Listener,
    Root, Stats, Tail, Wheel, Why,
};

/// Everything of a server but the application and its states.
pub(crate) struct Io<K: Submit> {
    pub(crate) kernel: K,
    pub(crate) config: Config,
    pub(crate) links: Table<Link>,
    vacant: Vec<u32>,
    /// Connections in use.
    pub(crate) open: u32,
    pub(crate) gates: Vec<Gate>,
    pub(crate) wheel: Wheel,
    roots: Vec<File>,
    works: Table<Option<FileWork>>,
    vacant_works: Vec<u32>,
    waiting_works: VecDeque<(FileWork, Op)>,
    /// Lists of directories that wait for others to end.
    waiting_lists: VecDeque<(FileWork, Op)>,
    /// File work that ended as it was begun.
    pub(crate) ended_works: VecDeque<(FileWork, Outcome)>,
    /// Cleared lists to send, to be used again.
    #[expect(
        clippy::vec_box,
        reason = "the boxes change hands with the kernel, which wants them to stay"
    )]
    spare: Vec<Box<Gather>>,
    spare_tails: Vec<Tail>,
    most_spare: usize,
    /// Memory held for all connections together; see [`Config::max_held`].
    held: usize,
    /// Connections that commands were given for.
    pub(crate) touched: Vec<u32>,
    /// Connections to be called again in this turn.
    pub(crate) again: VecDeque<Conn>,
    /// Takes what is written for a connection that is gone.
    scratch: Vec<u8>,
    /// Accepted connections that are not let in yet, oldest first: for want of room, or as newer ones
    /// come before them.
    pub(crate) aside: VecDeque<(Listener, Socket, Option<Source>)>,
    /// How many connections each address has; see [`Config::max_per_address`].
    pub(crate) shares: Option<Shares>,
    pub(crate) load: Load,
    /// When connections are next looked through for idle ones.
    pub(crate) next_search: Instant,
    pub(crate) stopping: bool,
    /// When the time is over that a stop gives to open connections.
    pub(crate) drained: Option<Instant>,
    pub(crate) stats: Stats,
    #[cfg(feature = "sim")]
    pub(crate) inspector: usage::Inspector,
}

impl<K: Submit> Drop for Io<K> {
    /// Closes what is open still: a server that was never run, or that ended by a fault.
    fn drop(&mut self) {
        // What is queued still would reach whatever has the number then.
        self.kernel.finish();
        let links = (0..self.links.len()).filter_map(|slot| self.links[slot].socket.take());
        let gates = self.gates.iter_mut().filter_map(Gate::take);
        let aside = self.aside.drain(..).map(|(_, socket, _)| socket);
        for socket in links.chain(gates).chain(aside) {
            self.kernel.host_mut().discard(socket);
        }
    }
}

/// A time after another; a year, if that is further away than times reach.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + time.min(FAR)
}

/// Work on a file for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileWork {
    pub(crate) on: Conn,
    tag: u32,
    kind: FileKind,
}

#[derive(Clone, Copy, Debug)]
enum FileKind {
    Open,
    Stat,
    List,
    Read,
}

impl FileWork {
    /// What the application is told.
    pub(crate) fn done(self, outcome: Outcome) -> (u32, FileDone) {
        let done = match (self.kind, outcome) {
            (_, Outcome::Opened(opened)) => FileDone::Opened(Ok(*opened)),
            (_, Outcome::Stat(meta)) => FileDone::Stat(Ok(meta)),
            (_, Outcome::Listed(listing)) => FileDone::Listed(Ok(listing)),
            (_, Outcome::Read(bytes)) => FileDone::Read(Ok(bytes)),
            (kind, Outcome::Failed(errno, _)) => kind.failed(errno),
            (kind, _) => kind.failed(Errno::IO),
        };
        (self.tag, done)
    }
}

impl FileKind {
    fn failed(self, errno: Errno) -> FileDone {
        match self {
            FileKind::Open => FileDone::Opened(Err(errno.into())),
            FileKind::Stat => FileDone::Stat(Err(errno.into())),
            FileKind::List => FileDone::Listed(Err(errno.into())),
            FileKind::Read => FileDone::Read(Err(errno.into())),
        }
    }
}

/// Most file work in flight at a time; more waits its turn.
pub(crate) const FILE_WORKS: u32 = 256;

/// Most lists of directories that are made at a time, or that the application has not been given. Each may
/// take [`Listing::MAX_BYTES`](shared_ring::Listing::MAX_BYTES).
pub(crate) const MAX_LISTS: usize = 4;

/// Most file work of one connection, in flight and waiting.
const FILE_WORKS_EACH: u32 = 16;

/// Bytes that a connection may hold also when all together hold too much: enough for a short reply.
pub(crate) const MIN_HELD: usize = 1024;

/// Most lists and tails kept for later use, of as many connections.
const SPARE: usize = 1024;

/// Lists made at the start, and bytes of room in each: enough for the heads of replies to as many
/// connections as are usually answered in one turn.
const READY: usize = 128;
const READY_BYTES: usize = 512;

fn most_spare(config: &Config) -> usize {
    SPARE.min((config.max_connections as usize).max(READY))
}

/// Memory of the lists and tails that are kept for later use, at most.
pub(crate) fn spares(config: &Config) -> usize {
    most_spare(config) * (size_of::<Gather>() + Gather::KEPT + Tail::KEPT)
}

/// How many operations the kernel of such a server has in flight at most.
pub(crate) fn operations(config: &Config) -> u32 {
    config.max_connections.saturating_mul(3).saturating_add(FILE_WORKS + 1024)
}

impl<K: Submit> Io<K> {
    pub(crate) fn new(kernel: K, config: &Config, roots: Vec<File>, gates: Vec<Gate>) -> Self {
        let now = kernel.now();
        Io {
            kernel,
            config: config.clone(),
            links: Table::default(),
            vacant: Vec::new(),
            open: 0,
            gates,
            wheel: Wheel::new(now),
            roots,
            works: Table::default(),
            vacant_works: (0..FILE_WORKS).rev().collect(),
            waiting_works: VecDeque::new(),
            waiting_lists: VecDeque::new(),
            ended_works: VecDeque::new(),
            spare: (0..READY).map(|_| Box::new(Gather::with_room(READY_BYTES))).collect(),
            spare_tails: Vec::with_capacity(READY),
            most_spare: most_spare(config),
            held: 0,
            touched: Vec::with_capacity(READY),
            again: VecDeque::with_capacity(READY),
            scratch: Vec::new(),
            aside: VecDeque::new(),
            shares: config.max_per_address.map(Shares::new),
            load: Load::new(config.admission, K::SCANS),
            next_search: now,
            stopping: false,
            drained: None,
            stats: Stats::default(),
            #[cfg(feature = "sim")]
            inspector: None,
        }
    }

    pub(crate) fn link(&mut self, slot: u32) -> &mut Link {
        &mut self.links[slot as usize]
    }

    /// The link of a connection that is neither gone nor going.
    fn alive(&mut self, id: Conn) -> Option<&mut Link> {
        self.links.get_mut(id.slot() as usize).filter(|link| link.is(id))
    }

    pub(crate) fn conn(&self, slot: u32) -> Conn {
        Conn::new(slot, self.links[slot as usize].generation)
    }

    pub(crate) fn token(&self, kind: Kind, slot: u32) -> Token {
        Token::new(kind, slot, self.links[slot as usize].generation)
    }

    /// Whether another connection may be let in.
    pub(crate) fn has_room(&self) -> bool {
        self.open < self.config.max_connections
    }

    /// Whether another one may be accepted. One more than there is room for: it has an idle one ended.
    pub(crate) fn accepts(&self) -> bool {
        self.open as usize + self.aside.len() <= self.config.max_connections as usize
    }

    /// Takes a place of the address that an accepted connection comes from, where that is bounded; an
    /// error if it has none left. A connection that has broken already takes none.
    pub(crate) fn take_share(&mut self, socket: &Socket) -> Result<Option<Source>, ()> {
        let Some(shares) = &mut self.shares else { return Ok(None) };
        let Some(from) = self.kernel.host().peer(socket).map(Source::of) else { return Ok(None) };
        if shares.take(from) { Ok(Some(from)) } else { Err(()) }
    }

    pub(crate) fn give_back_share(&mut self, from: Option<Source>) {
        if let (Some(shares), Some(from)) = (&mut self.shares, from) {
            shares.give_back(from);
        }
    }

    /// Something is done for the first time for a connection that came in.
    pub(crate) fn serves(&mut self, slot: u32) {
        let link = &mut self.links[slot as usize];
        link.flags -= Flags::UNSERVED;
        let now = self.kernel.now();
        if self.load.served(now)
            && let Some(socket) = &link.socket
            && let Some(time) = self.kernel.host().waited(socket)
        {
            self.load.waited(now, time);
        }
    }

    /// Ends a turn for what is learnt of the load, and does what follows.
    pub(crate) fn judge_load(&mut self) {
        let (now, full) = (self.kernel.now(), !self.has_room());
        let Some(orders) = self.load.end_turn(now, self.aside.len(), full) else { return };
        // Who is stopping has no listeners.
        if self.stopping {
            return;
        }
        let each = orders.waiting.map(|all| (all / self.gates.len().max(1) as u32).max(1));
        for gate in &mut self.gates {
            gate.bound(orders.per_turn, &mut self.kernel);
            gate.fit(each, &mut self.kernel);
        }
    }

    /// Whether no file work is in flight.
    pub(crate) fn files_rest(&self) -> bool {
        self.vacant_works.len() == FILE_WORKS as usize
    }

    /// Takes a slot for a new connection.
    pub(crate) fn occupy(&mut self, phase: Phase) -> u32 {
        let slot = self.vacant.pop().unwrap_or(self.links.len() as u32);
        self.links.at(slot as usize).phase = phase;
        self.open += 1;
        slot
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn vacate(&mut self, slot: u32) {
        let from = self.links[slot as usize].from;
        self.give_back_share(from);
        let link = &mut self.links[slot as usize];
        self.held -= link.held;
        let generation = link.generation.wrapping_add(1);
        let flags = link.flags & Flags::TOUCHED;
        *link = Link { generation, flags, ..Link::default() };
        self.open -= 1;
        self.vacant.push(slot);
    }

    /// Makes the end of a connection a reset.
    pub(crate) fn reset_on_close(&mut self, slot: u32) {
        if let Some(socket) = &self.links[slot as usize].socket {
            self.kernel.host_mut().reset_on_close(socket);
        }
    }

    /// Bounds what the driver itself waits for.
    pub(crate) fn set_timer(&mut self, slot: u32, time: Duration) {
        self.wheel.set(slot, after(self.kernel.now(), time));
    }

    /// Has the driver look after a connection when the callback has returned.
    pub(crate) fn touch(&mut self, slot: u32) {
        self.links[slot as usize].touch(slot, &mut self.touched);
    }

    /// Has a connection looked at again in this turn, after the current batch.
    pub(crate) fn call_again(&mut self, slot: u32) {
        let link = self.link(slot);
        if !link.has(Flags::AGAIN) {
            link.flags |= Flags::AGAIN;
            self.again.push_back(self.conn(slot));
        }
    }

    #[inline]
    pub(crate) fn recycle(&mut self, mut list: Box<Gather>) {
        if self.spare.len() < self.most_spare {
            if !list.is_empty() {
                list.clear();
            }
            self.spare.push(list);
        }
    }

    /// Counts the memory that is held for a connection; whether it has to end, as that has grown beyond what
    /// all may have together. One that holds little never has to: others hold too much.
    #[inline]
    pub(crate) fn account(&mut self, slot: u32) -> bool {
        let link = &mut self.links[slot as usize];
        let (before, now) = (link.held, link.holds());
        link.held = now;
        self.held = self.held - before + now;
        now > before && now > MIN_HELD && self.held > self.config.max_held
    }

    pub(crate) fn spare_tail(&mut self) -> Tail {
        self.spare_tails.pop().unwrap_or_default()
    }

    pub(crate) fn recycle_tail(&mut self, mut tail: Tail) {
        if self.spare_tails.len() < self.most_spare && tail.is_reusable() {
            tail.clear();
            self.spare_tails.push(tail);
        }
    }

    pub(crate) fn drop_queue(&mut self, slot: u32) {
        while let Some(item) = self.link(slot).queue.pop_front() {
            if let Item::Memory(list) = item {
                self.recycle(list);
            }
        }
    }

    /// Begins file work, or lets it wait for its turn.
    fn begin_work(&mut self, work: FileWork, op: Op) {
        let has_room = match work.kind {
            FileKind::List => self.has_room_for_list(),
            _ => self.has_room_for_work(),
        };
        if !has_room {
            return self.let_wait(work, op);
        }
        let Some(at) = self.vacant_works.pop() else {
            return self.let_wait(work, op);
        };
        match self.kernel.submit(Token::new(Kind::File, at, 0), op) {
            Ok(Posted::InFlight) => *self.works.at(at as usize) = Some(work),
            Ok(Posted::Done(outcome)) => {
                self.vacant_works.push(at);
                self.ended_works.push_back((work, outcome));
            }
            Err(Refused { .. }) => {
                self.vacant_works.push(at);
                self.ended_works.push_back((work, Outcome::Failed(Errno::NOBUFS, None)));
            }
        }
    }

    /// Lets file work wait for a place, one for each connection that there may be. The work of
    /// connections that are gone makes room.
    #[cold]
    fn let_wait(&mut self, work: FileWork, op: Op) {
        let most = self.config.max_connections as usize;
        let Io { links, waiting_works, waiting_lists, .. } = self;
        if waiting_works.len() + waiting_lists.len() >= most {
            let alive = |on: Conn| links.get(on.slot() as usize).is_some_and(|link| link.is(on));
            waiting_works.retain(|(work, _)| alive(work.on));
            waiting_lists.retain(|(work, _)| alive(work.on));
        }
        if waiting_works.len() + waiting_lists.len() < most {
            let is_list = matches!(work.kind, FileKind::List);
            if is_list { waiting_lists } else { waiting_works }.push_back((work, op));
        } else {
            self.ended_works.push_back((work, Outcome::Failed(Errno::BUSY, None)));
        }
    }

    /// Ends file work; none when its connection is gone.
    pub(crate) fn end_work(&mut self, token: Token) -> Option<FileWork> {
        let work = self.works.get_mut(token.slot() as usize)?.take()?;
        self.vacant_works.push(token.slot());
        self.told(work)
    }

    /// Whether more file work may be begun: what has ended counts until the application knows of it,
    /// as it may have opened a file.
    fn has_room_for_work(&self) -> bool {
        let in_flight = FILE_WORKS as usize - self.vacant_works.len();
        in_flight + self.ended_works.len() < self.config.file_works.clamp(1, FILE_WORKS) as usize
    }

    /// Whether another list may be made.
    fn has_room_for_list(&self) -> bool {
        self.has_room_for_work() && self.lists() < MAX_LISTS
    }

    /// Lists that are being made, or that the application has not been given.
    fn lists(&self) -> usize {
        let in_flight =
            self.works.iter().flatten().filter(|work| matches!(work.kind, FileKind::List));
        let made =
            self.ended_works.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Listed(_)));
        in_flight.count() + made.count()
    }

    /// Begins file work that waits, as far as there is room. It comes after the application was told
    /// what has ended, so that the next work on a file that is open comes before another is opened.
    pub(crate) fn begin_waiting_works(&mut self) {
        // Lists come first: there are few at a time, so other work is not kept waiting by them.
        while !self.waiting_lists.is_empty() && self.has_room_for_list() {
            let Some((next, op)) = self.waiting_lists.pop_front() else { break };
            self.begin_waiting_work(next, op);
        }
        while self.has_room_for_work() {
            let Some((next, op)) = self.waiting_works.pop_front() else { break };
            self.begin_waiting_work(next, op);
        }
    }

    fn begin_waiting_work(&mut self, work: FileWork, op: Op) {
        if self.alive(work.on).is_some() {
            self.begin_work(work, op);
        }
    }

    /// The work, if its connection still wants to hear of it.
    pub(crate) fn told(&mut self, work: FileWork) -> Option<FileWork> {
        let link = self.alive(work.on)?;
        link.files -= 1;
        (link.is_heard() || link.phase == Phase::Connecting).then_some(work)
    }

    /// Turns a command into an operation.
    fn file_op(&self, op: FileOp) -> Result<(FileKind, Op), (FileKind, Errno)> {
        let links = self.config.links;
        let beneath = |root: Root, path: FilePath| {
            let root = self.roots.get(usize::from(root.0)).ok_or(Errno::NOENT)?;
            Ok((root.clone(), path.as_c().ok_or(Errno::INVAL)?))
        };
        match op {
            FileOp::Open(root, path) => match beneath(root, path) {
                Ok((root, path)) => Ok((FileKind::Open, Op::Open { root, path, links })),
                Err(errno) => Err((FileKind::Open, errno)),
            },
            FileOp::Stat(root, path) => match beneath(root, path) {
                Ok((root, path)) => Ok((FileKind::Stat, Op::Stat { root, path, links })),
                Err(errno) => Err((FileKind::Stat, errno)),
            },
            FileOp::List(root, path) => match beneath(root, path) {
                Ok((root, path)) => Ok((FileKind::List, Op::List { root, path, links })),
                Err(errno) => Err((FileKind::List, errno)),
            },
            FileOp::Read(file, range) => {
                let len = range.end.saturating_sub(range.start).min(FileOp::MOST.into()) as u32;
                Ok((FileKind::Read, Op::Read { file, offset: range.start, len }))
            }
        }
    }
}

impl<K: Submit> Commands for Io<K> {
    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn wall(&self) -> SystemTime {
        self.kernel.host().wall()
    }

    fn random(&mut self) -> u64 {
        self.kernel.host_mut().random()
    }

    fn send(&mut self, to: Conn, chunk: Chunk<'_>) -> usize {
        let Io { links, spare, touched, config, .. } = self;
        let link = links.get_mut(to.slot() as usize).filter(|link| link.is(to));
        let Some(link) = link.filter(|link| link.takes_sends()) else { return 0 };
        let mut n = 0;
        if let Chunk::File(file, range) = chunk {
            if !range.is_empty() {
                link.queue.push_back(Item::File(file, range));
            }
        } else {
            let list = link.queue.list(|| spare.pop().unwrap_or_default());
            let before = list.len();
            match chunk {
                Chunk::Copy(bytes) => list.copy(bytes),
                Chunk::Static(bytes) => list.constant(bytes),
                Chunk::Shared(bytes) => list.shared(bytes),
                Chunk::Received(bytes) => list.received(bytes),
                Chunk::File(..) => {}
            }
            n = list.len() - before;
        }
        link.touch(to.slot(), touched);
        link.note_queued(n, config.max_queued)
    }

    fn reserve(&mut self, to: Conn, n: usize) -> &mut [u8] {
        let Io { links, spare, touched, config, scratch, .. } = self;
        let link = links.get_mut(to.slot() as usize).filter(|link| link.is(to));
        let Some(link) = link.filter(|link| link.takes_sends()) else {
            *scratch = vec![0; n];
            return scratch;
        };
        link.note_queued(n, config.max_queued);
        link.touch(to.slot(), touched);
        link.queue.list(|| spare.pop().unwrap_or_default()).reserve(n)
    }

    fn connect(&mut self, to: SocketAddr) -> Conn {
        let full = self.open >= self.config.max_connections;
        let slot = self.occupy(Phase::Connecting);
        self.stats.connected += 1;
        let opened = if full {
            Err(Errno::NOBUFS.into())
        } else {
            self.kernel.host_mut().socket(to, None, self.config.sockets)
        };
        let submitted = opened.and_then(|socket| {
            let token = self.token(Kind::Connect, slot);
            let link = self.link(slot);
            link.socket = Some(socket);
            let Some(fd) = link.fd() else { unreachable!("it was just put there") };
            let op = Op::Connect { fd, to };
            self.kernel.submit(token, op).map_err(|_| Errno::NOBUFS.into())
        });
        match submitted {
            Ok(Posted::InFlight) => self.link(slot).flags |= Flags::CHANGING,
            Ok(Posted::Done(outcome)) => {
                if let Outcome::Failed(errno, _) = outcome {
                    self.link(slot).why = Some(Why::Failed(errno.into()));
                }
                self.call_again(slot);
            }
            Err(error) => {
                self.link(slot).why = Some(Why::Failed(error));
                self.call_again(slot);
            }
        }
        self.conn(slot)
    }

    fn file(&mut self, on: Conn, tag: u32, op: FileOp) {
        let Some(link) = self.alive(on) else { return };
        let crowded = link.files >= FILE_WORKS_EACH;
        link.files += 1;
        let (kind, errno) = match self.file_op(op) {
            Ok((kind, _)) if crowded => (kind, Errno::BUSY),
            Ok((kind, op)) => return self.begin_work(FileWork { on, tag, kind }, op),
            Err(failed) => failed,
        };
        self.ended_works.push_back((FileWork { on, tag, kind }, Outcome::Failed(errno, None)));
    }

    fn receive(&mut self, id: Conn, on: bool) {
        let stopping = self.stopping;
        let Some(link) = self.alive(id) else { return };
        if on && link.has(Flags::PAUSED) {
            link.flags -= Flags::PAUSED;
            link.flags |= Flags::RESUMED;
            if stopping {
                // It may be idle now, and has not heard of the stop since.
                link.flags |= Flags::QUIESCING;
            }
            self.touch(id.slot());
            self.call_again(id.slot());
        } else if !on {
            link.flags |= Flags::PAUSED;
        }
    }

    fn deadline(&mut self, id: Conn, at: Option<Instant>) {
        let Some(link) = self.alive(id) else { return };
        if link.close.is_some_and(|how| how != Close::Half) {
            return;
        }
        match at {
            Some(at) => self.wheel.set(id.slot(), at),
            None => self.wheel.clear(id.slot()),
        }
    }

    fn close(&mut self, id: Conn, how: Close) {
        let Some(link) = self.alive(id) else { return };
        if link.close.is_none_or(|before| abruptness(how) > abruptness(before)) {
            link.close = Some(how);
            self.touch(id.slot());
        }
    }

    fn unsent(&self, id: Conn) -> u64 {
        let link = self.links.get(id.slot() as usize).filter(|link| link.is(id));
        let Some(link) = link else { return 0 };
        let socket = link.socket.as_ref();
        let sent = socket.map_or(0, |socket| self.kernel.host().unacknowledged(socket));
        sent + link.queued as u64 + link.queue.file_bytes()
    }

    fn peer(&self, id: Conn) -> Option<SocketAddr> {
        let link = self.links.get(id.slot() as usize).filter(|link| link.is(id))?;
        self.kernel.host().peer(link.socket.as_ref()?)
    }

    fn admit(&mut self, at: Listener, how: Admit) {
        if let Some(gate) = self.gates.get_mut(usize::from(at.0)) {
            gate.admit(how, &mut self.kernel);
        }
    }

    fn lateness(&self, id: Conn) -> Lateness {
        let link = self.links.get(id.slot() as usize).filter(|link| link.is(id));
        match link.and_then(|link| link.socket.as_ref()) {
            // Who is still taking a reply can't have waited for the next one.
            Some(socket) if self.load.is_over() && self.unsent(id) == 0 => {
                self.load.lateness(self.kernel.host().waited(socket))
            }
            _ => Lateness::InTime,
        }
    }

    fn stats(&self) -> Stats {
        Stats {
            processor_time: self.kernel.host().processor_time(),
            backlog: self.gates.iter().map(Gate::length).sum(),
            service_rate: self.load.rate(),
            kernel: self.kernel.counters(),
            ..self.stats
        }
    }

    fn stopping(&self) -> bool {
        self.stopping
    }

    fn pending(&self) -> bool {
        self.kernel.landed() > 0
    }
}

fn abruptness(how: Close) -> u8 {
    match how {
        Close::Half => 0,
        Close::Linger => 1,
        Close::Flush => 2,
        Close::Reset => 3,
    }
}
