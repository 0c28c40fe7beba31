//! Statistics of a mechanism.

use std::time::Duration;

use shared_ring::{Counters, Occupancy};

/// Statistics of a mechanism since its start.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections opened by the application.
    pub connected: u64,
    /// Connections of both kinds that closed.
    pub closed: u64,
    /// Calls of `received`.
    pub received: u64,
    /// Pauses of accepting, for lack of descriptors or at the maximum number of connections.
    pub accept_pauses: u64,
    /// Connections reset before they were served, as they had waited too long or their peers had closed
    /// ([`Config::admission`](crate::Config::admission)).
    pub abandoned: u64,
    /// Total length of the listen backlogs, which [`Config::admission`](crate::Config::admission) adapts.
    pub backlog: u32,
    /// Connections served per second under the last overload; 0 if there was none.
    pub service_rate: u32,
    /// Connections reset because their address had reached its maximum ([`Config::max_per_address`](crate::Config::max_per_address)).
    pub rejected_addresses: u64,
    /// Connections reset because their network had reached its maximum ([`Config::max_per_network`](crate::Config::max_per_network)).
    pub rejected_networks: u64,
    /// Connections that were reset at the stop before they were admitted.
    pub reset_at_stop: u64,
    /// Connections that were reset at the end of [`Config::drain_timeout`](crate::Config::drain_timeout), as the
    /// application had not closed them, or their peers had not taken all bytes.
    pub cut_at_stop: u64,
    /// Idle connections closed to make room for others.
    pub idle_closed: u64,
    /// Connections that ended with [`CloseReason::Overrun`](crate::CloseReason::Overrun).
    pub overruns: u64,
    /// Reads of the application that were held back ([`SendPolicy::defers_reads`](crate::send_policy::SendPolicy::defers_reads)).
    pub deferred_reads: u64,
    /// Pieces of files that were read into memory to be sent ([`SendStep::Read`](crate::send_policy::SendStep::Read)).
    pub read_ahead: u64,
    /// Pieces of files sent from the page cache.
    pub file_sends: u64,
    /// Pauses for which the policy asked ([`SendStep::Pause`](crate::send_policy::SendStep::Pause)).
    pub send_pauses: u64,
    /// Completions for closed connections.
    pub stale_completions: u64,
    /// CPU time of the mechanism's thread, including the kernel's part.
    pub cpu_time: Duration,
    /// Counters of the kernel.
    pub kernel: Counters,
    /// The resources that the kernel holds at the moment.
    pub occupancy: Occupancy,
}

impl Stats {
    /// Adds those of another mechanism. What is no sum, [`backlog`](Stats::backlog), [`service_rate`](Stats::service_rate)
    /// and [`occupancy`](Stats::occupancy), becomes that of the other.
    pub fn add(&mut self, other: &Self) {
        // Each field is named, so that none is forgotten.
        let Stats {
            accepted,
            connected,
            closed,
            received,
            accept_pauses,
            abandoned,
            backlog,
            service_rate,
            rejected_addresses,
            rejected_networks,
            reset_at_stop,
            cut_at_stop,
            idle_closed,
            overruns,
            deferred_reads,
            read_ahead,
            file_sends,
            send_pauses,
            stale_completions,
            cpu_time,
            kernel,
            occupancy,
        } = other;
        self.accepted += *accepted;
        self.connected += *connected;
        self.closed += *closed;
        self.received += *received;
        self.accept_pauses += *accept_pauses;
        self.abandoned += *abandoned;
        self.rejected_addresses += *rejected_addresses;
        self.rejected_networks += *rejected_networks;
        self.reset_at_stop += *reset_at_stop;
        self.cut_at_stop += *cut_at_stop;
        self.idle_closed += *idle_closed;
        self.overruns += *overruns;
        self.deferred_reads += *deferred_reads;
        self.read_ahead += *read_ahead;
        self.file_sends += *file_sends;
        self.send_pauses += *send_pauses;
        self.stale_completions += *stale_completions;
        self.cpu_time += *cpu_time;
        self.kernel.add(kernel);
        (self.backlog, self.service_rate) = (*backlog, *service_rate);
        self.occupancy = *occupancy;
    }
}
