//! A server under load, and the cost of its requests.

use super::{ClientWork, Load, Server, Site, Subject};
use crate::failure::Failure;

/// The cost of a number of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    requests: u64,
    seconds: f64,
    server_ns: u64,
    client_ns: u64,
    allocations: u64,
}

impl Sample {
    /// Makes `count` requests, and returns their cost without allocations. No other request is in
    /// flight.
    pub(crate) fn take(server: &Server, load: &mut Load, count: u64) -> Result<Self, Failure> {
        let cpu = server.cpu()?;
        let window = load.requests(count)?;
        Ok(Sample {
            requests: window.requests,
            seconds: window.seconds,
            server_ns: server.cpu()?.since(&cpu),
            client_ns: window.cpu_ns,
            allocations: 0,
        })
    }

    /// Returns the CPU time of the server per request.
    pub(crate) fn cpu_ns(&self) -> f64 {
        self.server_ns as f64 / self.requests as f64
    }

    /// Returns the requests per second.
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Returns the share of the time in which the server ran; near 1 the server is the limit.
    pub(crate) fn server_busy(&self) -> f64 {
        self.server_ns as f64 / 1e9 / self.seconds
    }

    /// Returns the share of the time in which the client ran.
    pub(crate) fn client_busy(&self) -> f64 {
        self.client_ns as f64 / 1e9 / self.seconds
    }

    /// Returns the allocations of the server per request.
    pub(crate) fn allocations(&self) -> f64 {
        self.allocations as f64 / self.requests as f64
    }
}

impl std::ops::AddAssign for Sample {
    fn add_assign(&mut self, other: Sample) {
        self.requests += other.requests;
        self.seconds += other.seconds;
        self.server_ns += other.server_ns;
        self.client_ns += other.client_ns;
        self.allocations += other.allocations;
    }
}

/// A server and its client.
#[derive(Debug)]
pub(crate) struct UnderLoad {
    // The client is dropped first, so that the server observes the end of its connections.
    load: Load,
    server: Server,
}

impl UnderLoad {
    /// Starts both and makes `warm_up` requests.
    pub(crate) fn start(
        subject: &Subject,
        site: &Site,
        connections: usize,
        warm_up: u64,
    ) -> Result<Self, Failure> {
        let server = Server::start(subject, site)?;
        let reply_bytes = site.reply_bytes(subject.work);
        let work = ClientWork::new(subject.work, connections, reply_bytes);
        let mut load = Load::start(server.address(), &work)?;
        load.requests(warm_up)?;
        Ok(UnderLoad { load, server })
    }

    /// Makes `count` requests, and returns their cost. No other request is in flight.
    pub(crate) fn measure(&mut self, count: u64) -> Result<Sample, Failure> {
        let before = self.server.counts()?.allocations;
        let sample = Sample::take(&self.server, &mut self.load, count)?;
        Ok(Sample { allocations: self.server.counts()?.allocations - before, ..sample })
    }

    /// Stops both. Returns the system calls per request, from the server's start to its end.
    pub(crate) fn stop(self) -> Result<f64, Failure> {
        let requests = self.load.request_count();
        drop(self.load);
        Ok(self.server.stop()?.system_calls as f64 / requests as f64)
    }
}
