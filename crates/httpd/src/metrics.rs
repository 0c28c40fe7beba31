//! What a server has done, for all to see.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use evring::{Commands, Stats};
use tracing::warn;

use crate::status::Status;

/// A number that one thread counts and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only its own thread does, so this needs no locked instruction.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one worker has done.
        #[derive(Debug, Default)]
        pub(crate) struct WorkerMetrics { $($(#[$doc])* pub(crate) $name: Counter,)* }

        impl WorkerMetrics {
            /// The sums over all workers, each with its name.
            fn sums(all: &[Arc<WorkerMetrics>]) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), all.iter().map(|counts| counts.$name.get()).sum())),*]
                    .into_iter()
            }
        }
    };
}

counts! {
    /// Replies of each class of status.
    replies_2xx,
    replies_3xx,
    replies_4xx,
    replies_5xx,
    /// Bytes of their bodies.
    body_bytes,
    /// Connections that were accepted, and that ended.
    connections_accepted,
    connections_closed,
    /// Replies because a bound was reached: 408, 413, 414, 431, and clients reset for being slow.
    refused_slow,
    refused_body,
    refused_line,
    refused_head,
    reset_slow,
    /// Requests that were answered with 503, as all bodies together needed too much memory, or as too
    /// many files were open.
    refused_bodies,
    refused_files,
    /// Requests for something costly that came too late: answered with 503, and not answered as nobody
    /// waited any more.
    refused_late,
    reset_late,
    /// Connections that were reset before anything was done for them, as they came too late.
    connections_lost,
    /// Connections that were reset as their address had its share.
    refused_addresses,
    /// Connections that waited to be accepted at a stop, and were reset for want of room.
    reset_at_stop,
    /// The length of the listeners' queues of all workers together, and how many connections they can
    /// serve in a second, as far as that is known.
    backlog,
    service_rate,
    /// Times accepting paused for want of room.
    accept_pauses,
    /// Connections that ended as they queued too much.
    overruns,
    /// What the loops did, and the processor time of their threads.
    turns,
    processor_us,
    system_calls,
    buffer_shortages,
    completion_overflows,
    cold_file_reads,
    log_lines_lost,
}

impl WorkerMetrics {
    /// Counts a reply.
    #[inline]
    pub(crate) fn reply(&self, status: u16, body: u64) {
        let class = match status {
            ..300 => &self.replies_2xx,
            300..400 => &self.replies_3xx,
            400..500 => &self.replies_4xx,
            500.. => &self.replies_5xx,
        };
        class.add(1);
        self.body_bytes.add(body);
        if status >= 400 {
            self.refusal(status);
        }
    }

    #[cold]
    fn refusal(&self, status: u16) {
        let bound = match status {
            _ if status == Status::TIMEOUT.0 => &self.refused_slow,
            _ if status == Status::BODY.0 => &self.refused_body,
            _ if status == Status::LINE.0 => &self.refused_line,
            _ if status == Status::HEAD.0 => &self.refused_head,
            _ => return,
        };
        bound.add(1);
    }

    /// Takes over what the mechanism has counted.
    pub(crate) fn take_over(&self, io: &impl Commands) {
        let stats = io.stats();
        let Stats { accepted, closed, accept_pauses, overruns, cpu_time, kernel, .. } = stats;
        self.connections_accepted.set(accepted);
        self.connections_closed.set(closed);
        if accept_pauses > self.accept_pauses.get() {
            warn!("connections wait, as there is no room for more, or no descriptor");
        }
        self.accept_pauses.set(accept_pauses);
        self.connections_lost.set(stats.abandoned);
        self.refused_addresses.set(stats.refused_addresses);
        self.reset_at_stop.set(stats.reset_at_stop);
        self.backlog.set(stats.backlog.into());
        self.service_rate.set(stats.service_rate.into());
        self.overruns.set(overruns);
        self.processor_us.set(cpu_time.as_micros() as u64);
        self.turns.set(kernel.turns);
        self.system_calls.set(kernel.system_calls);
        self.buffer_shortages.set(kernel.buffer_shortages);
        self.completion_overflows.set(kernel.overflows);
        self.cold_file_reads.set(kernel.cold_file_reads);
    }
}

/// The counts of all workers of a server, and of the thread that writes its log.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    all: Arc<[Arc<WorkerMetrics>]>,
    begun: Arc<OnceLock<Instant>>,
    /// Which are this worker's own.
    own: usize,
}

impl Metrics {
    /// A board for so many workers, from the first one's side.
    pub(crate) fn new(workers: usize) -> Self {
        let all = (0..=workers.max(1)).map(|_| Arc::default()).collect();
        Metrics { all, begun: Arc::default(), own: 0 }
    }

    /// Notes when the server began; what was noted first stays.
    pub(crate) fn begin(&self, now: Instant) {
        self.begun.get_or_init(|| now);
    }

    /// The same from the side of the thread that writes the log, which comes last.
    pub(crate) fn of_writer(&self) -> Self {
        self.of(self.all.len() - 1)
    }

    /// The same from another worker's side.
    pub(crate) fn of(&self, worker: usize) -> Self {
        Metrics { own: worker, ..self.clone() }
    }

    /// This worker's counts.
    #[inline]
    pub(crate) fn own(&self) -> &WorkerMetrics {
        &self.all[self.own]
    }

    /// The sums over all workers as JSON, with what else there is to say.
    pub(crate) fn json(&self, backend: &str, now: Instant) -> String {
        let begun = self.begun.get().copied().unwrap_or(now);
        let uptime_ms = now.saturating_duration_since(begun).as_millis();
        let (workers, version) = (self.all.len() - 1, env!("CARGO_PKG_VERSION"));
        let mut text = format!(
            "{{\"backend\":\"{backend}\",\"version\":\"{version}\",\"workers\":{workers},\
             \"uptime_ms\":{uptime_ms}"
        );
        for (name, sum) in WorkerMetrics::sums(&self.all) {
            let _ = write!(text, ",\"{name}\":{sum}");
        }
        text.push('}');
        text
    }
}
