//! The execution of a simulated ring's operations on its machine.

use std::io::IoSlice;
use std::mem;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use shared_ring::author::System;
use shared_ring::sockets::Datagram;
use shared_ring::{Fd, Token};

use super::SimRing;
use super::task::{RingOp, Task};
use crate::fault::Fault;
use crate::memory::MemoryHold;
use crate::provided::Buffers;
use crate::state::DescriptorKind;
use crate::submission::CQE_BUFFER;

impl SimRing {
    /// Performs as much of an operation as is possible now.
    pub(super) fn advance(&mut self, serial: u64) {
        let Some(at) = self.in_flight.iter().position(|op| op.serial == serial) else { return };
        let fd = self.in_flight[at].fd;
        self.check_descriptor(at);
        match &self.in_flight[at].task {
            Task::Accept { multishot } => self.accept(serial, fd, *multishot),
            Task::Receive { multishot, group } => self.receive(serial, fd, *multishot, *group),
            Task::ReceiveFrom { group } => self.receive_from(serial, fd, *group),
            Task::Send { .. } => self.send(at),
            Task::Connect { .. } => {
                let outcome = self.machine.clone().connected(fd);
                if outcome != Err(Errno::INPROGRESS) {
                    self.end(serial, outcome.map(|()| 0), 0);
                }
            }
            Task::Poll { events, .. } => self.poll(at, *events),
            Task::Counter { .. } => self.read_counter(at),
            Task::Open { .. } | Task::Read { .. } | Task::Write { .. } => {}
        }
    }

    /// Fails the run if the descriptor of an operation was closed.
    fn check_descriptor(&self, at: usize) {
        let RingOp { user_data, fd, opening, .. } = self.in_flight[at];
        let mut state = self.machine.state();
        if state.opening(fd.raw()) != opening {
            let token = Token::from_bits(user_data);
            state.fail(format!("{fd:?} was closed while {token:?} was in flight on it"));
        }
    }

    fn poll(&mut self, at: usize, events: u32) {
        let RingOp { serial, fd, .. } = self.in_flight[at];
        let reads = events & libc::POLLIN as u32 != 0;
        let mut state = self.machine.state();
        let Ok(end) = state.connected(fd, "poll") else { return };
        let connection = state.connection_of(end);
        let ready = if reads {
            connection.is_readable(end.side)
        } else {
            let ready = connection.is_writable(end.side);
            connection.arm_writable(end.side);
            ready
        };
        // Reported to each poll.
        let has_ended = connection.peer_has_ended(end.side) && !reads;
        let events = if ready { events } else { 0 };
        let ended = if has_ended { libc::POLLRDHUP as u32 } else { 0 };
        drop(state);
        let now = events | ended;
        let Task::Poll { reported, .. } = &mut self.in_flight[at].task else { return };
        // A multishot poll reports changes.
        let before = reported.as_mut().map(|reported| mem::replace(reported, now));
        if now & !before.unwrap_or_default() != 0 {
            // Some kernels end a multishot poll so when the completion queue is full.
            if before.is_some() && self.machine.state().rng.fault(Fault::MultishotEnds) {
                return self.end(serial, Err(Errno::CANCELED), 0);
            }
            self.post_result(serial, before.is_some(), now, 0);
        }
    }

    fn accept(&mut self, serial: u64, fd: Fd, multishot: bool) {
        let accepted = self.machine.state().accept(fd);
        match accepted {
            Ok(new) => self.post_result(serial, multishot, new.raw() as u32, 0),
            Err(Errno::AGAIN) => return,
            Err(errno) => self.end(serial, Err(errno), 0),
        }
        // More connections may be queued, for this operation or another.
        self.machine.state().mark_changed(fd.raw() as u32);
    }

    fn receive(&mut self, serial: u64, fd: Fd, multishot: bool, group: u16) {
        let mut state = self.machine.state();
        let Ok(end) = state.connected(fd, "receive") else {
            drop(state);
            return self.end(serial, Err(Errno::NOTCONN), 0);
        };
        let is_readable = state.connection_of(end).is_readable(end.side);
        drop(state);
        let Some((id, mut hold)) = self.select_buffer(serial, group, is_readable) else { return };
        let max = self.machine.shorten(hold.bytes().len(), Fault::ShortReceive);
        let mut bytes = vec![0; max];
        match self.machine.receive(fd, &mut bytes) {
            Ok(n @ 1..) => {
                hold.fill(&bytes[..n]);
                drop(hold);
                self.post_result(serial, multishot, n as u32, CQE_BUFFER | u32::from(id) << 16);
                self.machine.state().mark_changed(fd.raw() as u32);
            }
            Ok(0) => {
                self.put_back(group, id, hold);
                self.end(serial, Ok(0), 0);
            }
            Err(errno) => {
                self.put_back(group, id, hold);
                self.end(serial, Err(errno), 0);
            }
        }
    }

    fn receive_from(&mut self, serial: u64, fd: Fd, group: u16) {
        let datagrams = self.machine.state().datagrams(fd, "receive").map(|all| all.is_readable());
        let is_readable = match datagrams {
            Ok(is_readable) => is_readable,
            Err(errno) => return self.end(serial, Err(errno), 0),
        };
        let Some((id, mut hold)) = self.select_buffer(serial, group, is_readable) else { return };
        let mut bytes = vec![0; hold.bytes().len()];
        let len = self.machine.receive_datagram(fd, &mut bytes).expect("the socket is readable");
        hold.fill(&bytes[..len]);
        drop(hold);
        // As in the kernel, an empty datagram ends the operation.
        let multishot = len > Datagram::HEADER_BYTES;
        self.post_result(serial, multishot, len as u32, CQE_BUFFER | u32::from(id) << 16);
        self.machine.state().mark_changed(fd.raw() as u32);
    }

    /// Selects a buffer for a receive; `None` if the socket has nothing to read, or the receive ends for want of a
    /// buffer. As in the kernel, that comes before the socket is read.
    fn select_buffer(
        &mut self,
        serial: u64,
        group: u16,
        is_readable: bool,
    ) -> Option<(u16, MemoryHold)> {
        let refused = self.machine.state().rng.fault(Fault::NoBuffers);
        let Some((id, hold)) = self.buffers.get_mut(&group).and_then(Buffers::take) else {
            self.end(serial, Err(Errno::NOBUFS), 0);
            return None;
        };
        if refused || !is_readable {
            self.put_back(group, id, hold);
            if refused {
                self.end(serial, Err(Errno::NOBUFS), 0);
            }
            return None;
        }
        if !hold.is_untouched() {
            self.fail(format!("buffer {id} was written to while the kernel held it"));
        }
        Some((id, hold))
    }

    fn put_back(&mut self, group: u16, id: u16, hold: MemoryHold) {
        if let Some(buffers) = self.buffers.get_mut(&group) {
            buffers.put_back(id, hold);
        }
    }

    fn send(&mut self, at: usize) {
        let RingOp { serial, fd, ref task, .. } = self.in_flight[at];
        let Task::Send { pieces, to, waits, .. } = task else { return };
        let slices: Vec<_> = pieces.iter().map(|hold| IoSlice::new(hold.bytes())).collect();
        let sent = match *to {
            Some(to) => {
                let len = slices.iter().map(|slice| slice.len()).sum();
                self.machine.send_datagram(fd, &slices, to).map(|()| len)
            }
            None => self.machine.send_all(fd, &slices),
        };
        match sent {
            Ok(n) => self.end(serial, Ok(n as u32), 0),
            Err(Errno::AGAIN) if *waits => {}
            Err(errno) => self.end(serial, Err(errno), 0),
        }
    }

    fn read_counter(&mut self, at: usize) {
        let RingOp { serial, fd, .. } = self.in_flight[at];
        let count = match self.machine.state().kind(fd, "read") {
            Ok(DescriptorKind::Event(counter)) => counter.swap(0, Ordering::AcqRel),
            _ => 0,
        };
        if count == 0 {
            return;
        }
        if let Task::Counter { into } = &mut self.in_flight[at].task {
            if !into.is_untouched() {
                self.machine.state().fail("the program has written to the memory for a counter");
            }
            into.fill(&count.to_ne_bytes());
        }
        self.end(serial, Ok(8), 0);
    }

    /// Completes an operation whose time has come.
    pub(super) fn complete_due(&mut self, serial: u64) {
        let Some(at) = self.in_flight.iter().position(|op| op.serial == serial) else { return };
        let (fd, user_data) = (self.in_flight[at].fd, self.in_flight[at].user_data);
        self.check_descriptor(at);
        match &mut self.in_flight[at].task {
            Task::Open { path, access } => {
                let path = path.bytes().strip_suffix(b"\0").unwrap_or_default();
                let opened = self.machine.open(fd, path, *access);
                self.end(serial, opened.map(|fd| fd.raw() as u32), 0);
            }
            Task::Read { into, part } => {
                if !into.is_untouched() {
                    let token = Token::from_bits(user_data);
                    let message = format!("{token:?}: the program has written to its memory");
                    return self.machine.state().fail(message);
                }
                let read = self.machine.read(*part);
                if let Ok(bytes) = &read {
                    into.fill(bytes);
                }
                self.end(serial, read.map(|bytes| bytes.len() as u32), 0);
            }
            Task::Write { from, at } => {
                let written = self.machine.write(fd, *at, from.bytes());
                self.end(serial, written.map(|n| n as u32), 0);
            }
            _ => {}
        }
    }
}
