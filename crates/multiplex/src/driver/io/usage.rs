//! What a server uses, for the simulation to see that it is bounded.

use std::collections::BTreeMap;

use shared_ring::{Gather, Submit};

use super::{Io, SPARE};
use crate::Application;
use crate::driver::Driver;
use crate::driver::link::{Item, Link, Phase};

/// What a server uses between two callbacks: sums, and of some things the most that any connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections, those that are opened or closed included.
    pub connections: usize,
    /// Connections that were accepted and are not let in.
    pub aside: usize,
    /// Sockets that the driver has to close, listeners among them.
    pub sockets: usize,
    /// Of the latter, those that it has asked the kernel to close.
    pub closing: usize,
    /// Listeners.
    pub listeners: usize,
    /// How much an application may leave unconsumed.
    pub max_unconsumed: usize,
    /// Most unconsumed bytes of a connection, and most memory for them.
    pub tail: usize,
    /// See [`tail`](Usage::tail).
    pub tail_memory: usize,
    /// Most bytes queued on a connection, those in the send in flight included.
    pub queued: usize,
    /// Most memory that a queue holds, without the send in flight.
    pub queue_memory: usize,
    /// Bytes by which the memory that is counted for all connections differs from what they hold.
    pub miscounted: usize,
    /// Places taken by all addresses together, the most of one, and those of the connections that there are;
    /// see [`Config::max_per_address`](crate::Config::max_per_address).
    pub shares: usize,
    /// See [`shares`](Usage::shares).
    pub largest_share: usize,
    /// See [`shares`](Usage::shares).
    pub with_share: usize,
    /// Most files that wait to be sent on a connection, and on all together.
    pub queued_files: usize,
    /// See [`queued_files`](Usage::queued_files).
    pub all_queued_files: usize,
    /// Work on files in flight, and waiting; most of both for a connection.
    pub works: usize,
    /// See [`works`](Usage::works).
    pub waiting_works: usize,
    /// See [`works`](Usage::works).
    pub works_each: usize,
    /// Lists of directories that are being made, or that the application has not been given.
    pub lists: usize,
    /// Lists and tails kept for later, and the most memory of one of the latest.
    pub spare: usize,
    /// See [`spare`](Usage::spare).
    pub spare_memory: usize,
}

/// How many of the lists that are kept for later are looked at each time.
const RECENT: usize = 4;

/// Looks at what a server uses.
pub(crate) type Inspector = Option<Box<dyn FnMut(&Usage)>>;

impl<K: Submit, A: Application> Driver<K, A> {
    /// Has what is used looked at.
    pub(crate) fn inspect(&mut self) {
        let Some(mut inspector) = self.io.inspector.take() else { return };
        inspector(&Usage { max_unconsumed: A::MAX_UNCONSUMED, ..self.io.usage() });
        self.io.inspector = Some(inspector);
    }
}

impl<K: Submit> Io<K> {
    fn usage(&self) -> Usage {
        let mut usage = Usage {
            connections: self.open as usize,
            aside: self.aside.len(),
            sockets: self.aside.len(),
            spare: self.spare.len() + self.spare_tails.len(),
            waiting_works: self.waiting_works.len() + self.waiting_lists.len(),
            lists: self.lists(),
            ..Usage::default()
        };
        for gate in self.gates.iter().filter(|gate| !gate.is_closed()) {
            usage.listeners += 1;
            usage.sockets += 1;
            usage.closing += usize::from(gate.socket().is_none());
        }
        self.links.iter().for_each(|link| usage.add(link));
        if let Some(shares) = &self.shares {
            let (all, largest) = shares.in_use();
            (usage.shares, usage.largest_share) = (all as usize, largest as usize);
        }
        let of_links = self.links.iter().map(|link| link.from);
        let sources = of_links.chain(self.aside.iter().map(|(_, _, from)| *from));
        usage.with_share = sources.flatten().count();
        usage.miscounted = self.held.abs_diff(self.links.iter().map(Link::holds).sum());
        // Those that were put there last; the others were looked at before.
        let lists = self.spare.iter().rev().take(RECENT).map(|list| list.held());
        let tails = self.spare_tails.iter().rev().take(RECENT).map(|tail| tail.capacity());
        usage.spare_memory = lists.chain(tails).max().unwrap_or(0);
        if usage.waiting_works > 0 || !self.files_rest() {
            let mut each = BTreeMap::new();
            let works = self.works.iter().flatten();
            usage.works = works.clone().count();
            let waiting = self.waiting_works.iter().chain(&self.waiting_lists);
            for work in works.chain(waiting.map(|(work, _)| work)) {
                *each.entry((work.on.slot(), work.on.generation())).or_insert(0) += 1;
            }
            usage.works_each = each.into_values().max().unwrap_or(0);
        }
        usage
    }
}

impl Usage {
    fn add(&mut self, link: &Link) {
        if link.phase == Phase::Vacant {
            return;
        }
        // A socket without a number here is being closed by the kernel.
        let closing = link.socket.is_none() && link.phase == Phase::Ending && link.is_busy();
        self.closing += usize::from(closing);
        self.sockets += usize::from(closing || link.socket.is_some());
        self.tail = self.tail.max(link.tail.len());
        self.tail_memory = self.tail_memory.max(link.tail.capacity());
        if link.phase == Phase::Ending {
            return;
        }
        self.queued = self.queued.max(link.queued);
        let items = link.queue.iter().map(|item| match item {
            Item::Memory(list) => list.held(),
            Item::File(..) => size_of::<Item>(),
        });
        self.queue_memory = self.queue_memory.max(items.sum());
        self.queued_files = self.queued_files.max(link.queue.files());
        self.all_queued_files += link.queue.files();
    }
}

impl Usage {
    /// The least memory of a list.
    pub const LIST: usize = size_of::<Gather>();
    /// Most lists and tails that are kept for later.
    pub const SPARE: usize = 2 * SPARE;
}
