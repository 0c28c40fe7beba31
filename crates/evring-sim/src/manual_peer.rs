//! A peer whose actions a test performs.

use std::net::SocketAddr;

use crate::machine::Machine;
use crate::peer::{Net, Next, Peer};
use crate::stream::Owner;

/// A scripted peer.
#[derive(Clone)]
pub struct ManualPeer {
    pub(crate) machine: Machine,
    pub(crate) peer: u32,
}

impl std::fmt::Debug for ManualPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualPeer").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl ManualPeer {
    /// Performs an action on the network, at once.
    pub fn with<T>(&self, act: impl FnOnce(&mut Net<'_>) -> T) -> T {
        act(&mut Net::new(&mut self.machine.state(), self.peer))
    }

    /// Listens at an address and returns it.
    ///
    /// # Panics
    /// If the address is in use.
    pub fn listen(&self, at: SocketAddr) -> SocketAddr {
        let owner = Owner::Peer(self.peer);
        self.machine.state().listen(at, 64, owner).expect("the address is free").1
    }
}

/// A peer that performs no actions itself.
pub(crate) struct Idle;

impl Peer for Idle {
    fn step(&mut self, _net: &mut Net<'_>) -> Next {
        Next::Wait
    }

    fn waits_for(&self) -> String {
        "a scripted peer".to_owned()
    }
}
