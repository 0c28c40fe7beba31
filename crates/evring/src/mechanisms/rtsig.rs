//! Real-time signals: the kernel queues one for each thing that happens, and they are taken one at a time,
//! and all at once while others are being served. When the queue overflows, poll tells how things stand
//! (SEND 2.4.2, after phhttpd).

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// Real-time signals, by sigtimedwait(2). They stay blocked in the thread as long as this lives.
pub struct Rtsig(EventLoop<Engine<poller::RtSig>>);

impl Multiplexer for Rtsig {
    const NAME: &'static str = "rtsig";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "real-time signals, taken one at a time while idle";

    fn available() -> Result<(), Unavailable> {
        poller::RtSig::probe()
            .map_err(|error| Unavailable(format!("descriptors can't signal here: {error}")))
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let poller = poller::RtSig::new()
            .map_err(|error| StartError::System("signals can't be used", error))?;
        EventLoop::over_poller(poller, config).map(Rtsig)
    }

    fn addresses(&self) -> &[SocketAddr] {
        self.0.addresses()
    }

    fn remote(&self) -> RemoteHandle {
        self.0.remote()
    }

    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
        self.0.run(app)
    }
}
