//! A peer that stops or retires the server while clients are connected.

use std::net::SocketAddr;
use std::time::Duration;

use evring::RemoteHandle;
use evring_sim::{Net, Next, Peer, PeerConn};

use super::talker::Shared;

/// The way in which a server ends before its clients, if it does.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    None,
    Stop,
    Retire,
}

/// Wakes the server from time to time, and may end it.
pub(super) struct Stopper {
    remote: RemoteHandle,
    server: SocketAddr,
    shared: Shared,
    end: End,
    /// A connection opened at the moment of the stop.
    conn: Option<PeerConn>,
}

impl Stopper {
    pub(super) fn new(remote: RemoteHandle, server: SocketAddr, shared: &Shared, end: End) -> Self {
        Stopper { remote, server, shared: shared.clone(), end, conn: None }
    }
}

impl Peer for Stopper {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if net.is_late() || self.shared.stopping.get() {
            if let Some(conn) = self.conn.take() {
                net.close(conn);
            }
            return Next::Done;
        }
        // One that is dropped is a case, too.
        let _ = self.remote.wake(net.below(9) as u64);
        if self.end == End::Retire && net.once_in(8) {
            net.note(|| "retires the server".to_owned());
            self.shared.retiring.set(true);
            self.remote.retire();
            self.end = End::None;
        }
        if self.end == End::Stop && net.once_in(8) {
            if net.once_in(2) {
                self.conn = net.connect(self.server);
            }
            net.note(|| "stops the server".to_owned());
            self.shared.stopping.set(true);
            self.remote.stop();
        }
        Next::After(Duration::from_micros(1 + net.below(50_000) as u64))
    }

    fn waits_for(&self) -> String {
        "the next wake-up of the server".to_owned()
    }
}
