//! A peer that stops or retires the server while clients are connected.

use std::net::SocketAddr;
use std::time::Duration;

use evring::RemoteHandle;
use evring_sim::{Net, Next, Peer, PeerConn};

use super::choices::{Choices, End};
use super::talker::Shared;

/// May end the server, and may wake it from time to time until then. If it does not, a turn that the server forgets to
/// take is missed: its clients wait forever.
pub(super) struct Stopper {
    remote: RemoteHandle,
    server: SocketAddr,
    shared: Shared,
    end: End,
    wakes: bool,
    /// It acts before the planned steps are over.
    is_timed: bool,
    /// A connection opened at the moment of the stop.
    conn: Option<PeerConn>,
}

impl Stopper {
    pub(super) fn new(
        remote: RemoteHandle,
        server: SocketAddr,
        shared: &Shared,
        choices: &Choices,
    ) -> Self {
        let Choices { end, wakes, .. } = *choices;
        let is_timed = wakes || end != End::None;
        Stopper { remote, server, shared: shared.clone(), end, wakes, is_timed, conn: None }
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
        if self.wakes {
            let tag = net.below(9) as u64;
            if self.remote.wake(tag) {
                self.shared.tags.borrow_mut().push_back((tag, net.now()));
            }
        }
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
        match self.is_timed {
            true => Next::After(Duration::from_micros(1 + net.below(50_000) as u64)),
            // Until the planned steps are over.
            false => Next::Wait,
        }
    }

    fn waits_for(&self) -> String {
        "the time to wake or end the server".to_owned()
    }
}
