//! The simulated machine, and its interface for tests. The modules below have the system calls of the program.

mod by_number;
mod host;
mod operations;
mod system;

use std::cell::{RefCell, RefMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::disk::ROOT;
use crate::fault::Fault;
use crate::manual_peer::{Idle, ManualPeer};
use crate::memory::MemoryHold;
use crate::peer::Peer;
use crate::plan::{Plan, Unsupported};
use crate::state::{MachineUsage, SimState, client, network};
use crate::stream::Owner;

/// A simulated machine; clones share it.
///
/// Its descriptors are valid only for itself and its clones. They are not descriptors of this
/// process, where the same numbers may name other files.
#[derive(Clone)]
pub struct Machine(Rc<RefCell<SimState>>, Option<Unsupported>);

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The first rule that was broken, if any.
    pub failure: Option<String>,
    /// Number of steps taken.
    pub steps: u64,
    /// Number of times that each fault happened, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::COUNT],
    /// The events of the run, one line each, if [`Plan::trace_steps`] is set.
    pub trace: Vec<String>,
}

impl Machine {
    /// Creates a machine without files or peers.
    ///
    /// # Panics
    /// If the plan is invalid: no room, no steps, or no descriptors.
    pub fn new(plan: &Plan) -> Self {
        assert!(plan.room != Some(0), "room must be at least 1");
        assert!(plan.steps > 0 && plan.descriptors > 0, "steps and descriptors must be at least 1");
        Machine(Rc::new(RefCell::new(SimState::new(plan))), plan.unsupported)
    }

    pub(super) fn state(&self) -> RefMut<'_, SimState> {
        self.0.borrow_mut()
    }

    pub(super) fn unsupported(&self, feature: Unsupported) -> bool {
        self.1 == Some(feature)
    }

    /// Adds a file and its parent directories.
    pub fn add_file(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state().disk.add(path, bytes.into());
    }

    /// Removes a file from the page cache. From then on reads and hints decide which of its pages are there. If the file
    /// `is_damaged`, reads from the disk fail.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn evict(&self, path: &str, is_damaged: bool) {
        let mut state = self.state();
        let node = state.disk.find(ROOT, path.as_bytes()).expect("the file exists");
        let len = state.disk.meta(node).len;
        state.page_cache.evict(node, len, is_damaged);
    }

    /// Makes the machine read nothing ahead in files that were evicted.
    pub fn read_nothing_ahead(&self) {
        self.state().page_cache.reads_nothing_ahead = true;
    }

    /// Sets the time of each read of an evicted part, and of other file operations that do not complete at once. Without, a
    /// ring reads evicted parts at once, and other times are random.
    pub fn set_disk_time(&self, time: Duration) {
        self.state().disk_time = Some(time);
    }

    /// Returns the number of bytes that were read from the disk, of files that were evicted.
    pub fn disk_bytes(&self) -> u64 {
        self.state().page_cache.disk_bytes
    }

    /// Returns the number of sends that waited for the disk.
    pub fn blocking_sends(&self) -> u64 {
        self.state().page_cache.blocking_sends
    }

    /// Adds a peer.
    pub fn add_peer(&self, peer: impl Peer + 'static) {
        let _ = self.state().add_peer(Box::new(peer), false);
    }

    /// Adds a peer that serves at an address. The run does not wait for it at the end.
    ///
    /// # Panics
    /// If the address is in use.
    pub fn add_server(&self, at: SocketAddr, peer: impl Peer + 'static) {
        let mut state = self.state();
        let peer = state.add_peer(Box::new(peer), true);
        state.listen(at, 64, Owner::Peer(peer)).expect("the address is free");
    }

    /// Adds a scripted peer.
    pub fn manual_peer(&self) -> ManualPeer {
        let peer = self.state().add_peer(Box::new(Idle), true);
        ManualPeer { machine: self.clone(), peer }
    }

    /// Sets the function to call when all peers except servers are [done](super::Next::Done),
    /// usually to stop the program. It is called in the middle of a step, so it must not use the
    /// machine. Without peers it is never called.
    pub fn on_end(&self, on_end: impl FnOnce() + 'static) {
        self.state().set_on_end(Box::new(on_end));
    }

    /// Fails the run: the program has broken a rule.
    pub fn fail(&self, message: impl Into<String>) {
        self.state().fail(message);
    }

    /// Returns the first rule that was broken, if any.
    pub fn failure(&self) -> Option<String> {
        let mut state = self.state();
        state.check_freed();
        state.failure().map(str::to_owned)
    }

    /// Ends a run. It fails if the program has left descriptors open, receive buffers in use or operations in
    /// flight, except file operations that hang, those queued behind them, and their files.
    pub fn verdict(&self) -> RunReport {
        let mut state = self.state();
        state.check_freed();
        if state.failure().is_none() && !state.abandoned_memory.iter().all(MemoryHold::is_untouched)
        {
            state.fail("the program has written to the memory of an abandoned operation");
        }
        let open = state.open_descriptors();
        if !open.is_empty() {
            state.fail(format!("descriptors were left open: {}", open.join(", ")));
        }
        let lent = state.in_use().lent;
        if lent > 0 && state.abandoned_files.is_empty() {
            state.fail(format!("{lent} receive buffers of a group were leaked"));
        }
        if !state.unfinished.is_empty() {
            let unfinished = state.unfinished.join(", ");
            state.fail(format!("operations have not completed: {unfinished}"));
        }
        let verdict = RunReport {
            failure: state.failure().map(str::to_owned),
            steps: state.steps(),
            faults: state.rng.counts(),
            trace: state.trace.take(),
        };
        if !state.abandoned_files.is_empty() {
            state.clear();
        }
        verdict
    }

    /// Returns the time since the start of the run.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// Returns the number of connections that the program has accepted so far.
    pub fn accepted(&self) -> u64 {
        self.state().usage.accepted
    }

    /// Returns the number of open connections of the client with most of them, and of the client
    /// whose connection was closed last. Completions have reported these connections.
    pub fn connections_of_clients(&self) -> [usize; 2] {
        self.state().connections_of(client)
    }

    /// Returns the same for networks: the /24 of an IPv4 address, and the /64 of an IPv6 address.
    pub fn connections_of_networks(&self) -> [usize; 2] {
        self.state().connections_of(network)
    }

    /// Returns the number of submissions that are queued in rings.
    pub fn queued_submissions(&self) -> usize {
        self.state().usage.queued
    }

    /// Returns the program's current use.
    pub fn in_use(&self) -> MachineUsage {
        self.state().in_use()
    }
}
