//! Metrics of a server.

#[cfg(all(feature = "metrics", feature = "tls"))]
use std::collections::BTreeMap;
use std::fmt::Write;
#[cfg(all(feature = "metrics", feature = "tls"))]
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
#[cfg(all(feature = "metrics", feature = "tls"))]
use std::time::SystemTime;
use std::time::{Duration, Instant};

use evring::{RemoteHandle, Stats};
#[cfg(all(feature = "metrics", feature = "tls"))]
use evring_tls::Certificates;
use tracing::warn;

use crate::message::status::Status;

/// A counter with one writing thread and many readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread calls it, so it needs no locked instruction.
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
    (
        counters { $(#[doc = $help:literal] $name:ident,)* }
        gauges { $(#[doc = $gauge_help:literal] $gauge:ident,)* }
    ) => {
        #[derive(Debug, Default)]
        pub(crate) struct WorkerMetrics {
            $(#[doc = $help] pub(crate) $name: Counter,)*
            $(#[doc = $gauge_help] pub(crate) $gauge: Counter,)*
            pub(crate) times: Times,
            /// The mechanism of a worker that runs.
            remote: Mutex<Option<RemoteHandle>>,
            /// A scrape has woken the worker, which has not copied its statistics yet.
            is_woken: AtomicBool,
            /// How often a scrape has made the worker copy its statistics.
            copies: Counter,
        }

        impl WorkerMetrics {
            /// Returns the sums over threads that have ended and others.
            fn sums(
                ended: &WorkerMetrics,
                threads: &[Arc<WorkerMetrics>],
            ) -> impl Iterator<Item = Sum> + use<> {
                let sum = |value: fn(&WorkerMetrics) -> u64| {
                    value(ended) + threads.iter().map(|thread| value(thread)).sum::<u64>()
                };
                [$(Sum {
                    name: stringify!($name),
                    help: $help.trim_ascii(),
                    value: sum(|counts| counts.$name.get()),
                    is_gauge: false,
                },)* $(Sum {
                    name: stringify!($gauge),
                    help: $gauge_help.trim_ascii(),
                    value: sum(|counts| counts.$gauge.get()),
                    is_gauge: true,
                },)*].into_iter()
            }

            /// Adds the counters of a thread that has ended.
            fn absorb(&self, ended: &WorkerMetrics) {
                $(self.$name.add(ended.$name.get());)*
                self.times.absorb(&ended.times);
            }
        }
    };
}

/// A metric, summed over all threads.
pub(crate) struct Sum {
    pub(crate) name: &'static str,
    /// The text of its line `# HELP`.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "only /metrics has it"))]
    pub(crate) help: &'static str,
    pub(crate) value: u64,
    /// The value goes up and down.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "only /metrics has it"))]
    pub(crate) is_gauge: bool,
}

counts! {
    counters {
        /// Responses with a status below 300.
        responses_2xx,
        /// Responses with a status from 300 to 399.
        responses_3xx,
        /// Responses with a status from 400 to 499.
        responses_4xx,
        /// Responses with a status from 500.
        responses_5xx,
        /// Bytes of response bodies.
        body_bytes,
        /// Connections accepted.
        connections_accepted,
        /// Connections closed.
        connections_closed,
        /// Requests answered with 408, as their client sent them too slowly.
        rejected_slow,
        /// Requests answered with 413, as their body is too long.
        rejected_body,
        /// Requests answered with 414, as their request line is too long.
        rejected_line,
        /// Requests answered with 431, as their head is too long.
        rejected_head,
        /// Connections reset as their client took its response too slowly, or had vanished.
        reset_slow,
        /// Requests answered with 503, as the memory for bodies was at its limit.
        rejected_bodies,
        /// Requests answered with 503, as the number of open files was at its limit.
        rejected_files,
        /// Requests refused with 401.
        refused_logins,
        /// Requests answered with 503, as too many passwords were being verified.
        rejected_logins,
        /// Files that were compressed.
        compressed_files,
        /// Files sent plain, as the threads or the memory for compressed files were busy.
        uncompressed_files,
        /// Expensive requests answered with 503, as they had queued too long.
        rejected_late,
        /// Connections reset with an expensive request, as their client had given up.
        reset_late,
        /// Connections reset before they were served, as they had queued too long.
        connections_lost,
        /// Connections reset as their address was at its limit.
        rejected_addresses,
        /// Connections reset as their network was at its limit.
        rejected_networks,
        /// Connections in the listen queue reset at shutdown, as there was no room.
        reset_at_stop,
        /// Pauses of accepting for lack of room or descriptors.
        accept_pauses,
        /// Connections closed because they queued too much.
        overruns,
        /// Iterations of the event loops.
        turns,
        /// CPU time of the threads in microseconds.
        cpu_us,
        /// System calls of the event loops.
        system_calls,
        /// Events and completions from the kernel.
        completions,
        /// Completions for connections that had closed.
        stale_completions,
        /// Overflows of the completion queues.
        completion_overflows,
        /// Operations cancelled.
        cancels,
        /// Operations that were submitted again, as the kernel had ended them.
        operations_rearmed,
        /// Receives without a free buffer.
        buffer_shortages,
        /// Sends of which the kernel took only a part.
        short_sends,
        /// Connections that ended before they were accepted.
        accepts_aborted,
        /// Operations that failed at the limit of descriptors.
        descriptor_shortages,
        /// File operations executed by other threads.
        offloaded_file_operations,
        /// System calls executed by other threads.
        offloaded_calls,
        /// Signals that notified the program of events, of the mechanism `send`.
        interruptions,
        /// Reads of files that were not in the page cache.
        cold_file_reads,
        /// Pieces of files that were read ahead.
        files_read_ahead,
        /// Pieces of files sent from the page cache.
        file_sends,
        /// Pauses of sends to clients that receive steadily, which make it possible to send to many together.
        send_pauses,
        /// Reads of files held back until their socket had room.
        deferred_reads,
        /// Idle connections closed to make room for others.
        idle_closed,
        /// Lines of the access log that were lost, as the file or the buffer was full.
        log_lines_lost,
        /// Requests whose handlers did not answer in time.
        handlers_timed_out,
        /// Handlers, streams and upgraded connections that were cancelled, as the client left or the server stopped.
        handlers_cancelled,
        /// Connections that ended as client and server could not agree on TLS, or by invalid records.
        tls_errors,
        /// Connections closed as their TLS handshake did not end in time.
        handshakes_timed_out,
        /// Connections closed as no request arrived in time after they were accepted.
        silent_timed_out,
        /// Connections closed as no further request arrived in time, which is no error.
        idle_timed_out,
        /// Connections reset as an operation on a file did not end in time.
        files_timed_out,
        /// Connections reset as a password was not verified in time.
        logins_timed_out,
        /// Requests that handlers in a sandbox have answered.
        sandbox_handled,
        /// Requests that handlers in a sandbox got where the kernel had received them, without a copy.
        sandbox_landed,
        /// Requests that handlers in a sandbox have discarded.
        sandbox_discarded,
        /// Requests that handlers in a sandbox have passed on to the site.
        sandbox_passed,
        /// Involuntary aborts of handlers in a sandbox.
        sandbox_aborts,
        /// Requests passed on without a handler in a sandbox, under overload.
        sandbox_overloaded,
    }
    gauges {
        /// Total length of the workers' listen queues.
        backlog,
        /// Connections that the workers can serve per second, as far as measured.
        service_rate,
        /// Operations that the rings hold, including those that wait for their sockets.
        operations_in_flight,
        /// Operations that wait for room in the submission queues, of the mechanisms with io_uring.
        operations_unsubmitted,
        /// Receive buffers that hold no received bytes.
        receive_buffers_free,
        /// SEND: events delivered that the program has not taken.
        events_pending,
        /// SEND: events that wait for delivery.
        events_queued,
        /// SEND: workers that events cannot interrupt now; always all for PS1 and PS2.
        workers_masked,
    }
}

/// Upper bounds of the times of responses, in microseconds.
const TIME_BOUNDS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_500_000, 10_000_000];

/// The times of responses, by their bounds; the last count is of those above all.
#[derive(Debug, Default)]
pub(crate) struct Times {
    counts: [Counter; TIME_BOUNDS.len() + 1],
    sum_us: Counter,
}

impl Times {
    fn absorb(&self, ended: &Times) {
        for (sum, count) in self.counts.iter().zip(&ended.counts) {
            sum.add(count.get());
        }
        self.sum_us.add(ended.sum_us.get());
    }
}

impl Registry {
    /// Returns the metrics of the threads that run, after those of the others were added to the sums.
    fn living(&self) -> MutexGuard<'_, Vec<Arc<WorkerMetrics>>> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // `get_mut` sees all that a thread counted before it dropped its reference.
        threads.retain_mut(|thread| match Arc::get_mut(thread) {
            Some(ended) => {
                self.ended.absorb(ended);
                false
            }
            None => true,
        });
        threads
    }
}

impl WorkerMetrics {
    /// Counts the time of a response.
    pub(crate) fn count_time(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let at = TIME_BOUNDS.partition_point(|bound| *bound < us);
        self.times.counts[at].add(1);
        self.times.sum_us.add(us);
    }

    #[inline]
    pub(crate) fn count_response(&self, status: u16, body: u64) {
        let class = match status {
            ..300 => &self.responses_2xx,
            300..400 => &self.responses_3xx,
            400..500 => &self.responses_4xx,
            500.. => &self.responses_5xx,
        };
        class.add(1);
        self.body_bytes.add(body);
        if status >= 400 {
            self.count_limit(status);
        }
    }

    #[cold]
    fn count_limit(&self, status: u16) {
        let counter = match status {
            _ if status == Status::TIMEOUT.0 => &self.rejected_slow,
            _ if status == Status::BODY.0 => &self.rejected_body,
            _ if status == Status::LINE.0 => &self.rejected_line,
            _ if status == Status::HEAD.0 => &self.rejected_head,
            _ => return,
        };
        counter.add(1);
    }

    /// Copies the statistics of the mechanism.
    pub(crate) fn copy_stats(&self, stats: &Stats) {
        let Stats { accepted, closed, accept_pauses, overruns, cpu_time, kernel, .. } = *stats;
        self.connections_accepted.set(accepted);
        self.connections_closed.set(closed);
        if accept_pauses > self.accept_pauses.get() {
            warn!(
                "accepting paused: the maximum number of connections or descriptors is reached; \
                 raise `max_connections` (--max-connections) or the descriptor limit"
            );
        }
        self.accept_pauses.set(accept_pauses);
        self.connections_lost.set(stats.abandoned);
        self.rejected_addresses.set(stats.rejected_addresses);
        self.rejected_networks.set(stats.rejected_networks);
        self.reset_at_stop.set(stats.reset_at_stop);
        self.backlog.set(stats.backlog.into());
        self.service_rate.set(stats.service_rate.into());
        self.overruns.set(overruns);
        self.cpu_us.set(cpu_time.as_micros() as u64);
        self.turns.set(kernel.turns);
        self.system_calls.set(kernel.system_calls);
        self.completions.set(kernel.completions);
        self.stale_completions.set(stats.stale_completions);
        self.completion_overflows.set(kernel.overflows);
        self.cancels.set(kernel.cancels);
        self.operations_rearmed.set(kernel.rearmed);
        self.buffer_shortages.set(kernel.buffer_shortages);
        self.short_sends.set(kernel.short_sends);
        self.accepts_aborted.set(kernel.accepts_aborted);
        self.descriptor_shortages.set(kernel.fd_limit_hits);
        self.offloaded_file_operations.set(kernel.offloaded_file_ops);
        self.offloaded_calls.set(kernel.offloaded_calls);
        self.interruptions.set(kernel.interruptions);
        let held = stats.occupancy;
        self.operations_in_flight.set(held.in_flight.into());
        self.operations_unsubmitted.set(held.unsubmitted.into());
        self.receive_buffers_free.set(held.free_buffers.into());
        self.events_pending.set(held.delivered.into());
        self.events_queued.set(held.queued.into());
        self.workers_masked.set(held.is_masked.into());
        self.cold_file_reads.set(kernel.cold_file_reads);
        self.files_read_ahead.set(stats.read_ahead);
        self.file_sends.set(stats.file_sends);
        self.send_pauses.set(stats.send_pauses);
        self.deferred_reads.set(stats.deferred_reads);
        self.idle_closed.set(stats.idle_closed);
    }
}

/// The metrics of a thread, and those of all threads of its server.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    all: Arc<Registry>,
    /// Those of this thread.
    own: Arc<WorkerMetrics>,
}

/// The metrics of the threads of a server: its workers, and those that write its log.
#[derive(Debug, Default)]
struct Registry {
    threads: Mutex<Vec<Arc<WorkerMetrics>>>,
    /// The sums of the threads that have ended.
    ended: WorkerMetrics,
    /// Lines of the program's log that were lost.
    messages_lost: AtomicU64,
    workers: AtomicUsize,
    started: OnceLock<Instant>,
    #[cfg(all(feature = "metrics", feature = "tls"))]
    certificates: Mutex<Option<Arc<Certificates>>>,
    /// A worker has copied its statistics for a scrape.
    copied: Condvar,
}

/// Tag of the wake-up after which a worker copies its statistics.
pub(crate) const COPY_TAG: u64 = u64::from_be_bytes(*b"counters");

/// Maximum time that a scrape waits for workers, which may be busy in handlers.
const COPY_TIMEOUT: Duration = Duration::from_millis(100);

impl Default for Metrics {
    fn default() -> Self {
        let all = Registry { workers: AtomicUsize::new(1), ..Registry::default() };
        Metrics { all: all.into(), own: Arc::default() }.another()
    }
}

impl Metrics {
    /// Returns metrics for another thread of the server.
    pub(crate) fn another(&self) -> Self {
        let own = Arc::default();
        self.all.living().push(Arc::clone(&own));
        Metrics { all: Arc::clone(&self.all), own }
    }

    /// Sets the number of workers.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.all.workers.store(workers, Ordering::Relaxed);
    }

    /// Sets the certificates of the server.
    #[cfg(all(feature = "metrics", feature = "tls"))]
    pub(crate) fn set_certificates(&self, certificates: Option<Arc<Certificates>>) {
        *self.all.certificates.lock().unwrap_or_else(PoisonError::into_inner) = certificates;
    }

    /// Returns when the certificates of the server expire, by their files.
    #[cfg(all(feature = "metrics", feature = "tls"))]
    pub(crate) fn expiries(&self) -> BTreeMap<PathBuf, SystemTime> {
        let certificates = self.all.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        certificates.as_ref().map_or_else(BTreeMap::new, |all| all.expiries())
    }

    /// Records when the server started; the first call counts.
    pub(crate) fn set_started(&self, now: Instant) {
        self.all.started.get_or_init(|| now);
    }

    #[inline]
    pub(crate) fn own(&self) -> &WorkerMetrics {
        &self.own
    }

    /// Sets the mechanism of this worker while it runs, so that a scrape can wake it.
    pub(crate) fn set_remote(&self, remote: Option<RemoteHandle>) {
        *self.own.remote.lock().unwrap_or_else(PoisonError::into_inner) = remote;
    }

    /// Copies the statistics of the mechanism for a scrape that waits for them.
    #[cold]
    pub(crate) fn copy_for_scrape(&self, stats: &Stats) {
        self.own.is_woken.store(false, Ordering::Relaxed);
        self.own.copy_stats(stats);
        // With the lock: else the copy could fall between the check of the scrape and its wait.
        let _threads = self.all.living();
        self.own.copies.add(1);
        self.all.copied.notify_all();
    }

    /// Makes the workers copy their statistics, which an idle one has not done since its last event. The last copy of a
    /// worker that has not answered an earlier scrape is used at once.
    pub(crate) fn refresh(&self) {
        let threads = self.all.living();
        let wake = |thread: &Arc<WorkerMetrics>| {
            let remote = thread.remote.lock().unwrap_or_else(PoisonError::into_inner);
            let remote = remote.as_ref()?;
            if thread.is_woken.swap(true, Ordering::Relaxed) {
                return None;
            }
            // Before the wake-up, whose copy counts.
            let copies = thread.copies.get();
            if remote.wake(COPY_TAG) {
                return Some((Arc::clone(thread), copies));
            }
            thread.is_woken.store(false, Ordering::Relaxed);
            None
        };
        let woken: Vec<_> = threads.iter().filter_map(wake).collect();
        let is_missing =
            |(thread, before): &(Arc<WorkerMetrics>, u64)| thread.copies.get() == *before;
        let wait = self
            .all
            .copied
            .wait_timeout_while(threads, COPY_TIMEOUT, |_| woken.iter().any(is_missing));
        drop(wait);
    }

    /// Returns the sums over all threads.
    pub(crate) fn sums(&self) -> impl Iterator<Item = Sum> {
        let messages_lost = Sum {
            name: "messages_lost",
            help: "Lines of the program's own log that were lost, as nobody read it or it failed.",
            value: self.all.messages_lost.load(Ordering::Relaxed),
            is_gauge: false,
        };
        WorkerMetrics::sums(&self.all.ended, &self.all.living()).chain([messages_lost])
    }

    /// Counts lines of the program's log that were lost, on any thread.
    pub(crate) fn count_lost_messages(&self, lines: u64) {
        self.all.messages_lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the numbers of responses by time, as pairs of a bound in seconds and the number up to it and above
    /// the one before, and the sum of the times in seconds.
    #[cfg(feature = "metrics")]
    pub(crate) fn times(&self) -> (Vec<(f64, u64)>, f64) {
        let (threads, ended) = (self.all.living(), &self.all.ended);
        let sum = |counter: fn(&Times, usize) -> u64, at| {
            let of_threads: u64 = threads.iter().map(|thread| counter(&thread.times, at)).sum();
            of_threads + counter(&ended.times, at)
        };
        let bounds = TIME_BOUNDS.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let counts = |at| sum(|times, at| times.counts[at].get(), at);
        let pairs = bounds.enumerate().map(|(at, bound)| (bound, counts(at))).collect();
        (pairs, sum(|times, _| times.sum_us.get(), 0) as f64 / 1e6)
    }

    /// Returns the sums over all threads as JSON, with the backend, version and uptime.
    pub(crate) fn json(&self, backend: &str, now: Instant) -> String {
        let started = self.all.started.get().copied().unwrap_or(now);
        let uptime_ms = now.saturating_duration_since(started).as_millis();
        let workers = self.all.workers.load(Ordering::Relaxed);
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!(
            "{{\"backend\":\"{backend}\",\"version\":\"{version}\",\"workers\":{workers},\
             \"uptime_ms\":{uptime_ms}"
        );
        for Sum { name, value, .. } in self.sums() {
            let _ = write!(text, ",\"{name}\":{value}");
        }
        text.push('}');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_included_workers_that_had_ended() {
        let metrics = Metrics::default();
        let (ended, living) = (metrics.another(), metrics.another());
        for worker in [&ended, &living] {
            let mut stats = Stats::default();
            (stats.service_rate, stats.backlog, stats.accepted) = (5, 7, 9);
            worker.own().copy_stats(&stats);
        }
        drop(ended);
        let value = |name| metrics.sums().find(|sum| sum.name == name).unwrap().value;
        assert_eq!(["service_rate", "backlog", "connections_accepted"].map(value), [5, 7, 18]);
    }

    #[test]
    fn scrapes_filled_the_queue_of_a_busy_worker() {
        use std::io::{Read, Write};
        use std::net::TcpStream;
        use std::sync::mpsc::channel;

        use crate::{Request, Server};

        let (entered, has_entered) = channel();
        let (unblock, blocked) = channel::<()>();
        let blocked = Mutex::new(blocked);
        let block = move |_: Request| {
            entered.send(()).unwrap();
            blocked.lock().unwrap().recv().unwrap();
            "unblocked"
        };
        let server = Server::builder().listen("127.0.0.1:0").route("/block", block);
        let server = server.start().unwrap();
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"GET /block HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        has_entered.recv().unwrap();
        let handle = server.handle();
        let metrics = &handle.0.metrics;
        let is_worker = |one: &&Arc<WorkerMetrics>| one.remote.lock().unwrap().is_some();
        let worker = metrics.all.living().iter().find(is_worker).cloned().expect("it runs");
        for _ in 0..3 {
            metrics.refresh();
        }
        unblock.send(()).unwrap();
        client.read_exact(&mut [0]).unwrap();
        drop(client);
        // The wake-ups come before the end.
        server.handle().stop();
        server.wait().unwrap();
        // Another copy is made at the end.
        assert_eq!(worker.copies.get(), 1 + 1);
    }
}
