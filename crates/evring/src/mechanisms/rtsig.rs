//! Real-time signals: the kernel queues a signal for each event. The mechanism takes one at a time when
//! idle, and all at once while connections are being served. If the queue overflows, it falls back to poll
//! (SEND 2.4.2, after phhttpd).

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// Real-time signals, taken by sigtimedwait(2). They stay blocked in the thread until this is dropped.
pub struct Rtsig(EventLoop<Engine<poller::RtSig>>);

impl Multiplexer for Rtsig {
    const NAME: &'static str = "rtsig";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "real-time signals, taken one at a time while idle";

    fn available() -> Result<(), Unavailable> {
        poller::RtSig::probe()
            .map_err(|error| Unavailable(format!("cannot enable signals for descriptors: {error}")))
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let poller = poller::RtSig::new()
            .map_err(|error| StartError::System("cannot set up real-time signals", error))?;
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
