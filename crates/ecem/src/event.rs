//! Events and their pairs (section 3, tables 1 and 2).

/// A kind of event (table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A process requests data from the network.
    NetworkReadRequest,
    /// Data from the network is there for a process.
    NetworkReadResponse,
    /// A process requests that data is sent. Ready while the send buffer has room.
    NetworkWriteRequest,
    /// Data was copied to the send buffer.
    NetworkWriteResponse,
    /// A SYN segment has arrived.
    ArrivalOfSyn,
    /// A data segment has arrived.
    ArrivalOfData,
    /// An ACK segment has arrived, and has freed room in the send buffer.
    ArrivalOfAck,
    /// An RST segment has arrived.
    ArrivalOfRst,
    /// A process requests data from a disk.
    DiskReadRequest,
    /// Data from a disk is there for a process.
    DiskReadResponse,
    /// A process requests that data is written to a disk.
    DiskWriteRequest,
    /// A disk has taken the data.
    DiskWriteResponse,
}

/// An event: its kind, and the object that it belongs to, by default a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event<K = i32> {
    /// The file, socket or pipe.
    pub object: K,
    /// The kind of event that occurs on it.
    pub kind: EventKind,
}

impl<K> Event<K> {
    /// Returns the event of a kind of an object.
    pub const fn new(object: K, kind: EventKind) -> Self {
        Event { object, kind }
    }
}

/// The state of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// It cannot happen without blocking.
    #[default]
    Wait,
    /// Its device or resource is available.
    Ready,
}

/// The state of a pair `pre => post` (table 2): that of the pre-event, then that of the post-event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PairState {
    /// Both are ready: the pair runs without blocking.
    RR,
    /// The pre-event is ready, the post-event waits: the pair would block. It is deferred.
    RW,
    /// The post-event is ready: the pair runs as soon as the pre-event is ready.
    WR,
    /// Both wait.
    #[default]
    WW,
}

impl PairState {
    /// Returns the state of two events.
    pub const fn new(pre: Readiness, post: Readiness) -> Self {
        match (pre, post) {
            (Readiness::Ready, Readiness::Ready) => PairState::RR,
            (Readiness::Ready, Readiness::Wait) => PairState::RW,
            (Readiness::Wait, Readiness::Ready) => PairState::WR,
            (Readiness::Wait, Readiness::Wait) => PairState::WW,
        }
    }

    /// Returns the state of the pre-event.
    pub const fn pre(self) -> Readiness {
        match self {
            PairState::RR | PairState::RW => Readiness::Ready,
            PairState::WR | PairState::WW => Readiness::Wait,
        }
    }

    /// Returns the state of the post-event.
    pub const fn post(self) -> Readiness {
        match self {
            PairState::RR | PairState::WR => Readiness::Ready,
            PairState::RW | PairState::WW => Readiness::Wait,
        }
    }
}
