//! Connections and what travels on them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;

use super::descriptors::Descriptor;
use super::{DescriptorKind, Event, SimState};
use crate::Fd;
use crate::sim::fault::Fault;
use crate::sim::stream::{Connection, End, Owner};

impl SimState {
    pub(in crate::sim) fn connection(&mut self, at: u32) -> &mut Connection {
        self.connections[at as usize].as_mut().expect("an end has an owner")
    }

    pub(in crate::sim) fn of(&mut self, end: End) -> &mut Connection {
        self.connection(end.connection)
    }

    pub(in crate::sim) fn own(&mut self, end: End, owner: Owner) {
        self.of(end).owners[usize::from(end.side)] = owner;
    }

    /// Something went wrong on purpose that may end a connection early.
    pub(in crate::sim) fn mark_disrupted(&mut self, connection: u32) {
        self.connection(connection).is_disrupted = true;
    }

    /// The address that a peer's next connection comes from: one of a few clients', each of which has one
    /// IPv4 address, also in its IPv6 form, and a network of IPv6 addresses.
    pub(in crate::sim) fn source(&mut self) -> IpAddr {
        let client = self.rng.below(self.clients) as u8;
        let v4 = Ipv4Addr::new(10, 0, 1, client);
        match self.rng.below(4) {
            0 => v4.to_ipv6_mapped().into(),
            1 => {
                let host = self.rng.number() as u16;
                Ipv6Addr::new(0x2001, 0xdb8, 0, client.into(), 0, 0, 0, host).into()
            }
            _ => v4.into(),
        }
    }

    /// Opens a connection to a listener; its other end waits in the queue.
    pub(in crate::sim) fn connect(
        &mut self,
        from: IpAddr,
        to: SocketAddr,
        owner: Owner,
    ) -> Result<End, Errno> {
        let listener = self.listener(to).ok_or(Errno::CONNREFUSED)?;
        if self.listeners[listener].queue.len() > self.listeners[listener].max {
            return Err(Errno::TIMEDOUT);
        }
        let from = self.new_address(SocketAddr::new(from, 0));
        let mut size = || match self.room {
            Some(room) => room,
            None => [64, 700, 5_000, 70_000][self.rng.below(4)],
        };
        let now = self.now;
        let connection = Connection::new([from, to], [size(), size()], [size(), size()], now);
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
    pub(in crate::sim) fn start_connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        self.serial += 1;
        let serial = self.serial;
        match self.what(fd, "connect")? {
            what @ DescriptorKind::Fresh => *what = DescriptorKind::Connecting(serial, to),
            _ => {
                self.fail(format!("connect: {fd:?} is connected already"));
                return Err(Errno::ISCONN);
            }
        }
        let delay = self.rng.below(300) as u64;
        self.after(Duration::from_micros(delay), Event::Connect(fd.raw() as u32, serial));
        Ok(())
    }

    pub(super) fn end_connect(&mut self, fd: u32, serial: u64) {
        let descriptor = Fd::from_raw(fd as i32);
        let Some(Descriptor { what: Some(DescriptorKind::Connecting(at, to)), .. }) =
            self.at(descriptor)
        else {
            return;
        };
        if *at != serial {
            return;
        }
        let to = *to;
        let outcome = if self.rng.fault(Fault::Unreachable) {
            Err(Errno::TIMEDOUT)
        } else {
            self.connect(to.ip(), to, Owner::Descriptor(fd))
        };
        self.note(|| format!("connect {descriptor:?} to {to}: {outcome:?}"));
        if let Some(descriptor) = self.at(descriptor) {
            descriptor.what = Some(match outcome {
                Ok(end) => DescriptorKind::Connected(end),
                Err(errno) => DescriptorKind::Refused(errno),
            });
        }
        self.mark_changed(fd);
    }

    /// Tells an owner that something has changed.
    pub(super) fn tell(&mut self, owner: Owner) {
        match owner {
            Owner::Descriptor(fd) => self.mark_changed(fd),
            Owner::Peer(peer) => self.schedule_peer(peer),
            Owner::Queue | Owner::Closed => {}
        }
    }

    pub(super) fn tell_end(&mut self, end: End) {
        let owner = self.of(end).owners[usize::from(end.side)];
        self.tell(owner);
    }

    /// Sends for an end.
    pub(in crate::sim) fn send(&mut self, end: End, bytes: &[u8]) -> Result<usize, Errno> {
        let sent = self.of(end).send(end.side, bytes);
        if sent.is_ok() {
            self.ship(end);
        }
        sent
    }

    /// Receives for an end.
    pub(in crate::sim) fn receive(
        &mut self,
        end: End,
        max: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<usize, Errno> {
        let received = self.of(end).receive(end.side, max, take);
        if matches!(received, Ok(1..)) {
            // There is room for what was held back.
            self.ship(end.other());
        }
        received
    }

    /// Has what an end has sent arrive, or be on its way for a while.
    pub(super) fn ship(&mut self, end: End) {
        let n = self.of(end).under_way(end.side);
        if n == 0 {
            return;
        }
        if self.rng.fault(Fault::SlowWire) {
            if !self.wires.contains(&end) {
                self.wires.push(end);
            }
        } else {
            self.deliver(end, n);
        }
    }

    pub(super) fn deliver(&mut self, end: End, n: usize) {
        let other = end.other();
        if self.of(end).owners[usize::from(other.side)] == Owner::Closed {
            // As the other end is gone, the answer is a reset.
            return self.reset(end, [true, true]);
        }
        let now = self.now;
        self.of(end).last_activity[usize::from(other.side)] = now;
        let told = self.of(end).deliver(end.side, n);
        self.tell_end(other);
        if told {
            self.tell_end(end);
        }
        if self.rng.fault(Fault::Reset) {
            self.note(|| format!("the network resets {end:?}"));
            self.mark_disrupted(end.connection);
            self.reset(end, [true, true]);
        }
    }

    pub(super) fn reset(&mut self, end: End, told: [bool; 2]) {
        self.of(end).reset(told);
        self.tell_end(end);
        self.tell_end(end.other());
    }

    /// An end will send no more.
    pub(in crate::sim) fn finish(&mut self, end: End) {
        self.of(end).finish(end.side);
        self.tell_end(end.other());
    }

    /// Lets go of an end; with a reset if that is wanted, or if bytes were not received.
    pub(in crate::sim) fn close_end(&mut self, end: End, resets: bool) {
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
}
