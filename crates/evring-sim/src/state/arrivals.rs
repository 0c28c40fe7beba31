//! The datagrams of a socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// The datagrams of a socket.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// Those that have arrived, with their sources.
    pub(crate) arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Those that the program has sent, with their destinations.
    pub(crate) sent: Vec<(SocketAddr, Vec<u8>)>,
}

impl Datagrams {
    /// Returns whether there is a datagram to receive.
    pub(crate) fn is_readable(&self) -> bool {
        !self.arrived.is_empty()
    }
}
