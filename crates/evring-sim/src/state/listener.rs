//! A listening socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::stream::Owner;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) at: SocketAddr,
    /// Connections not accepted yet.
    pub(super) queue: VecDeque<u32>,
    pub(super) max: usize,
    /// The limit of unsent bytes that its connections get.
    pub(super) unsent_limit: usize,
    pub(super) owner: Owner,
}
