//! A peer that stops the server while clients are connected.

use std::time::Duration;

use evring::RemoteHandle;
use shared_ring::sim::{Net, Next, Peer};

use super::talker::Shared;

/// Wakes the server from time to time, and may stop it.
pub(super) struct Stopper {
    remote: RemoteHandle,
    shared: Shared,
    /// Stops the server instead of only waking it.
    stops: bool,
}

impl Stopper {
    pub(super) fn new(remote: RemoteHandle, shared: &Shared, stops: bool) -> Self {
        Stopper { remote, shared: shared.clone(), stops }
    }
}

impl Peer for Stopper {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if net.is_late() || self.shared.stopping.get() {
            return Next::Done;
        }
        self.remote.wake(net.below(9) as u64);
        if self.stops && net.once_in(8) {
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
