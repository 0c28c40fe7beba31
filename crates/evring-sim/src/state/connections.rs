//! Connections and their data in transit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;
use shared_ring::Fd;

use super::descriptor::Descriptor;
use super::{DescriptorKind, Event, SimState};
use crate::fault::Fault;
use crate::number;
use crate::stream::{Connection, End, Owner};

impl SimState {
    pub(crate) fn connection(&mut self, at: u32) -> &mut Connection {
        self.connections[at as usize].as_mut().expect("the connection of an end exists")
    }

    pub(crate) fn connection_of(&mut self, end: End) -> &mut Connection {
        self.connection(end.connection)
    }

    pub(crate) fn set_owner(&mut self, end: End, owner: Owner) {
        self.connection_of(end).owners[usize::from(end.side)] = owner;
    }

    /// Notes that a fault may end a connection early.
    pub(crate) fn mark_disrupted(&mut self, connection: u32) {
        self.connection(connection).is_disrupted = true;
    }

    /// Returns the address of a peer's next connection: one of a few clients, each with an IPv4
    /// address, also in its IPv4-mapped form, and a /64 of IPv6 addresses.
    pub(crate) fn client_address(&mut self) -> IpAddr {
        let client = self.rng.below(self.num_addresses) as u8;
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

    /// Opens a connection to a listener; its other end is queued for accept.
    pub(crate) fn connect(
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
        self.set_owner(end, owner);
        self.listeners[listener].queue.push_back(end.connection);
        let owner = self.listeners[listener].owner;
        self.notify(owner);
        Ok(end)
    }

    pub(crate) fn start_connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        self.serial += 1;
        let serial = self.serial;
        match self.kind(fd, "connect")? {
            kind @ DescriptorKind::Fresh => *kind = DescriptorKind::Connecting(serial, to),
            _ => {
                self.fail(format!("connect: {fd:?} is already connected"));
                return Err(Errno::ISCONN);
            }
        }
        let delay = self.rng.below(300) as u64;
        self.after(Duration::from_micros(delay), Event::Connect(fd.raw() as u32, serial));
        Ok(())
    }

    pub(super) fn end_connect(&mut self, fd: u32, serial: u64) {
        let descriptor = number::fd(fd as i32);
        let Some(Descriptor { kind: Some(DescriptorKind::Connecting(at, to)), .. }) =
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
            descriptor.kind = Some(match outcome {
                Ok(end) => DescriptorKind::Connected(end),
                Err(errno) => DescriptorKind::Refused(errno),
            });
        }
        self.mark_changed(fd);
    }

    pub(super) fn notify(&mut self, owner: Owner) {
        match owner {
            Owner::Descriptor(fd) => self.mark_changed(fd),
            Owner::Peer(peer) => self.schedule_peer(peer),
            Owner::Queue | Owner::Closed => {}
        }
    }

    pub(super) fn notify_end(&mut self, end: End) {
        let owner = self.connection_of(end).owners[usize::from(end.side)];
        self.notify(owner);
    }

    pub(crate) fn send(&mut self, end: End, bytes: &[u8]) -> Result<usize, Errno> {
        let sent = self.connection_of(end).send(end.side, bytes);
        if sent.is_ok() {
            if sent != Ok(0) {
                self.note_progress();
            }
            self.transmit(end);
        }
        sent
    }

    pub(crate) fn receive(
        &mut self,
        end: End,
        max: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<usize, Errno> {
        let received = self.connection_of(end).receive(end.side, max, take);
        if matches!(received, Ok(1..)) {
            self.note_progress();
            // The receive made room for bytes in transit.
            self.transmit(end.other());
        }
        received
    }

    /// Delivers the bytes that an end has sent, or leaves them in transit for a while.
    pub(super) fn transmit(&mut self, end: End) {
        let n = self.connection_of(end).in_transit(end.side);
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
        if self.connection_of(end).owners[usize::from(other.side)] == Owner::Closed {
            // The other end is closed, so the reply is a reset.
            return self.reset(end, [true, true]);
        }
        let now = self.now;
        self.connection_of(end).last_activity[usize::from(other.side)] = now;
        let notified = self.connection_of(end).deliver(end.side, n);
        self.notify_end(other);
        if notified {
            self.notify_end(end);
        }
        if self.rng.fault(Fault::Reset) {
            self.note(|| format!("the network resets {end:?}"));
            self.mark_disrupted(end.connection);
            self.reset(end, [true, true]);
        }
    }

    pub(super) fn reset(&mut self, end: End, notified: [bool; 2]) {
        self.connection_of(end).reset(notified);
        self.notify_end(end);
        self.notify_end(end.other());
    }

    pub(crate) fn finish(&mut self, end: End) {
        self.connection_of(end).finish(end.side);
        self.notify_end(end.other());
    }

    /// Closes an end, with a reset if `resets` is set or bytes were not received.
    pub(crate) fn close_end(&mut self, end: End, resets: bool) {
        self.set_owner(end, Owner::Closed);
        if self.connection_of(end.other()).owners[usize::from(end.other().side)] == Owner::Closed {
            self.connections[end.connection as usize] = None;
            self.wires.retain(|wire| wire.connection != end.connection);
        } else if resets || self.connection_of(end).readable_bytes(end.side) > 0 {
            let mut notified = [false; 2];
            notified[usize::from(end.other().side)] = true;
            self.reset(end, notified);
        } else {
            self.finish(end);
        }
    }
}
