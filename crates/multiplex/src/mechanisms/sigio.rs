//! A listener's signal over a cooperative ring: the application is interrupted when a connection
//! arrives, and the loop turns to it between two callbacks.
//!
//! The handler only records. The signal is a kernel entry, at which the ring accepts; so when the
//! callback that was interrupted returns, the connection can be taken without a system call.

use std::net::SocketAddr;

use shared_ring::{ListenerSignal, Mode, UringKernel};

use crate::{Application, Config, Family, Fault, Interrupts, Loop, Multiplexer, Remote, StartError, Stats, Unavailable};

/// io_uring whose listeners send a signal.
pub struct Sigio {
    ring: Loop<UringKernel>,
    signal: ListenerSignal,
}

impl Multiplexer for Sigio {
    const NAME: &'static str = "sigio";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "io_uring, new connections first, told by a signal";

    fn available() -> Result<(), Unavailable> {
        UringKernel::probe(Mode::Cooperative).map_err(|missing| Unavailable(missing.to_string()))
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let ring = Loop::ringing(Mode::Cooperative, config)?;
        let signal = ListenerSignal::new().map_err(|error| Unavailable(error.to_string()))?;
        for listener in ring.listeners() {
            signal.watch(listener).map_err(|error| Unavailable(error.to_string()))?;
        }
        Ok(Sigio { ring, signal })
    }

    fn addresses(&self) -> &[SocketAddr] {
        self.ring.addresses()
    }

    fn remote(&self) -> Remote {
        self.ring.remote()
    }

    fn run<A: Application + 'static>(mut self, app: A) -> Result<Stats, Fault> {
        self.ring.run_interrupted(app, &mut self.signal)
    }
}

impl Interrupts for ListenerSignal {
    fn wanted(&mut self) -> bool {
        self.take()
    }
}
