//! Sockets for datagrams.

use std::io::IoSlice;
use std::net::SocketAddr;

use rustix::io::Errno;
use shared_ring::{Fd, Socket};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::number;
use crate::state::{Datagrams, DescriptorKind, SimState};

/// Maximum number of datagrams that wait to be received.
const MAX_ARRIVED: usize = 64;

impl SimState {
    /// Returns the datagrams of a descriptor. The run fails if it has none.
    pub(crate) fn datagrams(&mut self, fd: Fd, call: &str) -> Result<&mut Datagrams, Errno> {
        if !matches!(self.kind(fd, call)?, DescriptorKind::Datagrams(_)) {
            self.fail(format!("{call}: {fd:?} is no socket for datagrams"));
            return Err(Errno::OPNOTSUPP);
        }
        match self.kind(fd, call)? {
            DescriptorKind::Datagrams(datagrams) => Ok(datagrams),
            _ => unreachable!("it was just looked at"),
        }
    }
}

impl Machine {
    /// Creates a socket for datagrams.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub fn datagram_socket(&self) -> Result<Socket, Errno> {
        let fd = self.state().open(DescriptorKind::Datagrams(Datagrams::default()))?;
        Ok(number::socket(fd))
    }

    /// Lets a datagram arrive at a socket. Returns false if it is lost, as too many wait there.
    pub fn deliver_datagram(&self, to: Fd, from: SocketAddr, bytes: &[u8]) -> bool {
        let mut state = self.state();
        let Ok(datagrams) = state.datagrams(to, "delivery") else { return false };
        if datagrams.arrived.len() == MAX_ARRIVED {
            return false;
        }
        datagrams.arrived.push_back((from, bytes.to_vec()));
        state.mark_changed(to.raw() as u32);
        true
    }

    /// Takes the datagrams that the program has sent from a socket, with their destinations.
    pub fn take_sent_datagrams(&self, from: Fd) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut state = self.state();
        state
            .datagrams(from, "look")
            .map(|datagrams| std::mem::take(&mut datagrams.sent))
            .unwrap_or_default()
    }

    /// Receives as recvmsg(2) does, with the header of a kernel's datagrams.
    pub(super) fn receive_datagram(&self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.state();
        let arrived = state.datagrams(fd, "receive")?.arrived.pop_front();
        let (from, bytes) = arrived.ok_or(Errno::AGAIN)?;
        state.note(|| format!("receive {fd:?}: {} bytes from {from}", bytes.len()));
        Ok(shared_ring::__private::write_datagram(from, &bytes, into))
    }

    /// Sends a datagram. The fault of a short send is a socket without room.
    pub(super) fn send_datagram(
        &self,
        fd: Fd,
        slices: &[IoSlice<'_>],
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let mut state = self.state();
        if state.rng.fault(Fault::ShortSend) {
            state.mark_changed(fd.raw() as u32);
            return Err(Errno::AGAIN);
        }
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        state.datagrams(fd, "send")?.sent.push((to, bytes));
        state.note(|| format!("send {fd:?} to {to}"));
        Ok(())
    }
}
