//! What the mechanisms on io_uring share: the driver over the ring.

use std::net::SocketAddr;

use shared_ring::{Fault, Fd, Mode, Submit, UringConfig, UringKernel};

use crate::driver::{Interrupts, Io, drive, gates, operations, roots};
use crate::{Application, Config, Remote, StartError, Stats, Unavailable};

/// A mechanism on io_uring that is set up.
pub(crate) struct Completion {
    io: Io<UringKernel>,
    addresses: Vec<SocketAddr>,
    remote: Remote,
}

impl Completion {
    pub(crate) fn new(mode: Mode, config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let ring = UringConfig {
            mode,
            operations: operations(config),
            buffers: config.buffers,
            buffer_size: config.buffer_size,
        };
        let mut kernel =
            UringKernel::new(&ring).map_err(|missing| Unavailable(missing.to_string()))?;
        let roots = roots(kernel.host_mut(), config)?;
        let (gates, addresses) = gates(kernel.host_mut(), config)?;
        let remote = Remote::new(kernel.waker());
        Ok(Completion { io: Io::new(kernel, config, roots, gates), addresses, remote })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// The listening sockets.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Fd> {
        self.io.gates.iter().map(|gate| gate.fd)
    }

    pub(crate) fn run<A: Application>(
        self,
        app: A,
        interrupts: &mut impl Interrupts,
    ) -> Result<Stats, Fault> {
        drive(self.io, self.remote, app, interrupts)
    }
}
