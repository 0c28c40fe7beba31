//! The interface of section 5.1, on descriptors.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::fs::{FileType, fstat};

use crate::{AddError, Event, EventKind, PairId, PairTable, Readiness};

bitflags::bitflags! {
    /// Event pairs of a disk and a network descriptor. (The paper does not say what its flag means.)
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// Disk read response => network write request: the pair of deferred event delivery.
        const DED = 1;
        /// Arrival of ACK => disk read request: the pair of disk-to-network splicing.
        const DNS = 2;
    }
}

/// The reason why descriptors were not paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The descriptor is not open.
    Closed(RawFd),
    /// The first descriptor is nothing that is read: no regular file, block device, pipe or socket.
    NotAFile(RawFd),
    /// The second descriptor is no socket.
    NotASocket(RawFd),
    /// No flag that names a pair is set.
    NoFlags,
    /// The pair was not added.
    Add(AddError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Closed(fd) => write!(f, "descriptor {fd} is not open"),
            Error::NotAFile(fd) => write!(f, "descriptor {fd} is not a file, pipe or socket"),
            Error::NotASocket(fd) => write!(f, "descriptor {fd} is not a socket"),
            Error::NoFlags => f.write_str("the flags name no pair; set DED, DNS or both"),
            Error::Add(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Add(error) => Some(error),
            _ => None,
        }
    }
}

/// The event correlation table of disk and network descriptors, with the paper's functions.
///
/// In place of the disk there can be another source of bytes, a pipe or a socket, whose reads end as those of a disk.
///
/// The caller removes the pairs of a descriptor before it closes it ([`close`](Correlations::close)).
#[derive(Debug)]
pub struct Correlations {
    table: PairTable<RawFd>,
}

fn ded(disk: RawFd, net: RawFd) -> (Event, Event) {
    (Event::new(disk, EventKind::DiskReadResponse), Event::new(net, EventKind::NetworkWriteRequest))
}

fn dns(disk: RawFd, net: RawFd) -> (Event, Event) {
    (Event::new(net, EventKind::ArrivalOfAck), Event::new(disk, EventKind::DiskReadRequest))
}

impl Correlations {
    /// Creates a table for at most `max` pairs.
    pub fn new(max: usize) -> Self {
        Correlations { table: PairTable::new(max) }
    }

    /// `ecem_add`: adds the pairs that the flags name. If one of them fails, none is added.
    ///
    /// # Errors
    /// If a descriptor is of the wrong type, and those of [`PairTable::add`].
    pub fn add(&mut self, disk: impl AsFd, net: impl AsFd, flags: Flags) -> Result<(), Error> {
        let (disk, net) = (disk.as_fd(), net.as_fd());
        let kind = |fd: std::os::fd::BorrowedFd<'_>| {
            let stat = fstat(fd).map_err(|_| Error::Closed(fd.as_raw_fd()))?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        };
        let reads =
            [FileType::RegularFile, FileType::BlockDevice, FileType::Fifo, FileType::Socket];
        if !reads.contains(&kind(disk)?) {
            return Err(Error::NotAFile(disk.as_raw_fd()));
        }
        if kind(net)? != FileType::Socket {
            return Err(Error::NotASocket(net.as_raw_fd()));
        }
        if !flags.intersects(Flags::all()) {
            return Err(Error::NoFlags);
        }
        let (disk, net) = (disk.as_raw_fd(), net.as_raw_fd());
        let mut added = None;
        for (pre, post) in pairs(disk, net, flags) {
            match self.table.add(pre, post) {
                Ok(id) => added = Some(id),
                Err(error) => {
                    if let Some(id) = added {
                        self.table.remove(id);
                    }
                    return Err(Error::Add(error));
                }
            }
        }
        Ok(())
    }

    /// `ecem_del`: removes the pairs that the flags name. Returns whether there was one.
    pub fn del(&mut self, disk: RawFd, net: RawFd, flags: Flags) -> bool {
        let mut found = false;
        for (pre, post) in pairs(disk, net, flags) {
            if let Some(id) = self.table.find(pre, post) {
                found |= self.table.remove(id).is_some();
            }
        }
        found
    }

    /// Removes all pairs of a descriptor that is about to be closed. Returns how many there were.
    pub fn close(&mut self, fd: RawFd) -> usize {
        std::iter::from_fn(|| self.table.remove_object(fd)).count()
    }

    /// `ecem_retrieve_correlated_disk`: returns the disk descriptor that was paired last with a
    /// network descriptor, by deferred event delivery if there is such a pair.
    pub fn correlated_disk(&self, net: RawFd) -> Option<RawFd> {
        let ded = self.table.pairs_after(net).find_map(|id| self.ded(id));
        let dns = || self.table.pairs_before(net).find_map(|id| self.dns(id));
        ded.or_else(dns).map(|(disk, _)| disk)
    }

    /// `ecem_retrieve_correlated_network`: returns the network descriptors that a disk descriptor is
    /// paired with; a file may be sent to several. One with both pairs comes twice.
    pub fn correlated_networks(&self, disk: RawFd) -> impl Iterator<Item = RawFd> {
        let ded = self.table.pairs_before(disk).filter_map(|id| self.ded(id));
        let dns = self.table.pairs_after(disk).filter_map(|id| self.dns(id));
        ded.chain(dns).map(|(_, net)| net)
    }

    /// Returns the disk and the network descriptor of a pair of deferred event delivery. A socket may be the disk of one
    /// pair and the network of another, so its pairs have to be distinguished by the kind of their events.
    fn ded(&self, id: PairId) -> Option<(RawFd, RawFd)> {
        let (pre, post) = self.table.events(id)?;
        let (disk, net) = (pre.object, post.object);
        ((pre, post) == ded(disk, net)).then_some((disk, net))
    }

    /// Returns the disk and the network descriptor of a pair of disk-to-network splicing.
    fn dns(&self, id: PairId) -> Option<(RawFd, RawFd)> {
        let (pre, post) = self.table.events(id)?;
        let (disk, net) = (post.object, pre.object);
        ((pre, post) == dns(disk, net)).then_some((disk, net))
    }

    /// `ecem_check_if_RW_state`: returns whether the pair of deferred event delivery is in state RW.
    pub fn is_in_rw_state(&self, net: RawFd, disk: RawFd) -> bool {
        let (pre, post) = ded(disk, net);
        self.table.find(pre, post).and_then(|id| self.table.state(id)) == Some(crate::PairState::RW)
    }

    /// Sets the state of an event, such as the disk read response of a file or the network write
    /// request of a socket. Calls `changed` as [`PairTable::set`].
    pub fn set(
        &mut self,
        event: Event,
        to: Readiness,
        changed: impl FnMut(PairId, crate::PairState, crate::PairState),
    ) {
        self.table.set(event, to, changed);
    }

    /// Returns the pairs.
    pub fn table(&self) -> &PairTable<RawFd> {
        &self.table
    }
}

fn pairs(disk: RawFd, net: RawFd, flags: Flags) -> impl Iterator<Item = (Event, Event)> {
    let all = [(Flags::DED, ded(disk, net)), (Flags::DNS, dns(disk, net))];
    all.into_iter().filter(move |(flag, _)| flags.contains(*flag)).map(|(_, pair)| pair)
}
