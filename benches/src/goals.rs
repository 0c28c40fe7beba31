//! The goals of the experiments.

use crate::outcome::Outcome;
use crate::ratio::Goal::{self, AtLeast, AtMost, Within};

/// Every goal: the experiment, the name of the ratio, and its limit. A `*` stands for a mechanism;
/// the first entry that fits a ratio applies.
const ALL: &[(&str, &str, Goal)] = &[
    ("floors", "echo_*_vs_floor_cpu", AtMost(1.05)),
    ("floors", "*_vs_floor_cpu", AtMost(1.10)),
    ("floors", "syscalls_per_request_uring", AtMost(0.10)),
    ("floors", "allocations_per_request", AtMost(0.0)),
    ("floors", "idle_connection_bytes", AtMost(512.0)),
    ("floors", "handler_instructions", AtMost(2_800.0)),
    ("peers", "uring_vs_floor_cpu", AtMost(1.15)),
    ("peers", "epoll_vs_floor_cpu", AtMost(1.15)),
    ("peers", "send_vs_uring_cpu", AtMost(1.10)),
    ("peers", "file1k_vs_nginx_cpu", AtMost(0.75)),
    ("peers", "file1k_vs_nginx_shipped_cpu", AtMost(0.55)),
    ("peers", "pipelined_vs_nginx_cpu", AtMost(0.15)),
    ("peers", "pipelined_vs_nginx_rps", AtLeast(4.0)),
    ("peers", "pipelined_vs_hyper_cpu", AtMost(0.75)),
    ("peers", "pipelined_vs_may_minihttp_cpu", AtMost(1.1)),
    ("peers", "conn_vs_nginx_cpu", AtMost(0.95)),
    ("peers", "file64k_vs_nginx_cpu", AtMost(0.95)),
    ("peers", "file1m_vs_nginx_cpu", AtMost(0.95)),
    ("peers", "file64k_vs_nginx_rps", AtLeast(1.0)),
    ("peers", "file1m_vs_nginx_rps", AtLeast(1.0)),
    ("load-check", "rate_vs_h2load", Within(0.95, 1.05)),
    ("load-check", "latency_p50_vs_wrk", Within(0.95, 1.05)),
    ("load-check", "conn_rate_over_h2load", AtLeast(1.5)),
    ("overload", "send_r2", AtLeast(0.97)),
    ("overload", "send_r3", AtLeast(0.93)),
    ("overload", "send_spin_r2", AtLeast(0.97)),
    ("overload", "send_spin_r3", AtLeast(0.95)),
    ("overload", "recovery_s", AtMost(1.0)),
    ("overload", "served_p99_over_09c", AtMost(10.0)),
    ("cold", "epoll_18000_over_0", AtLeast(0.98)),
    ("cold", "uring_18000_over_0", AtLeast(0.98)),
    ("cold", "interest_18000_over_0", AtLeast(0.98)),
    ("cold", "send_18000_over_0", AtLeast(0.98)),
    ("cold", "interest_over_select_2000", AtLeast(1.28)),
    ("banga-cost", "interest_cold_10000_over_0", AtMost(1.05)),
    ("send-dequeue", "handler_signals_over_send", AtLeast(10.0)),
    ("send-dequeue", "sigtimedwait_over_send", AtLeast(4.0)),
    ("preempt", "wait_mode_over_send", AtLeast(10.0)),
    ("preempt", "kernel_entries_per_event_loaded", AtMost(0.05)),
    ("flexsc-syscalls", "null_direct_over_posted", AtLeast(1.25)),
    ("flexsc-syscalls", "adaptive_over_best_worst", AtMost(1.15)),
    ("flexsc-syscalls", "adaptive_over_direct_worst", AtMost(1.25)),
    ("flexsc-syscalls", "completion_instructions_10000_over_100", AtMost(1.02)),
    ("flexsc-syscalls", "completion_10000_over_100", AtMost(1.3)),
    ("flexsc-kv", "kv_over_memcached", AtLeast(1.0)),
    ("flexsc-kv", "kv_over_memcached_16", AtLeast(1.5)),
    ("flexsc-web", "flexsc_over_nginx_uncached", AtLeast(1.4)),
    ("flexsc-web", "flexsc_over_uring", AtLeast(0.95)),
    ("flexsc-files", "stat_over_tokio_fs", AtLeast(4.0)),
    ("flexsc-files", "stat_over_std", AtLeast(1.2)),
    ("flexsc-threads", "green_over_os", AtLeast(1.5)),
    ("ecem-ded", "context_switches_over_plain", AtMost(0.8)),
    ("ecem-ded", "rate_over_plain", AtLeast(1.05)),
    ("ecem-dns", "context_switches_over_plain", AtMost(0.3)),
    ("ecem-dns", "context_switches_over_epoll", AtMost(0.9)),
    ("ecem-dns", "cpu_per_mb_over_nginx", AtMost(0.90)),
    ("ecem-dns", "cold_rate_over_nginx_sendfile", AtLeast(1.5)),
    ("ecem-dns", "cold_rate_over_nginx_aio", AtLeast(1.0)),
    ("ecem-dns", "cached_p99_over_alone", AtMost(1.5)),
    ("ecem-dns", "memory_per_download_kb", AtMost(64.0)),
    ("tls", "handshakes_vs_nginx", AtLeast(1.0)),
    ("tls", "file1k_tls_vs_nginx_cpu", AtMost(0.80)),
    ("compress", "gzip_vs_nginx_cpu", AtMost(1.0)),
    ("observed", "observed_vs_plain_cpu", AtMost(1.08)),
    ("axum", "router_on_uring_vs_hyper_cpu", AtMost(1.05)),
    ("slow-clients", "probe_p99_ms_worst", AtMost(100.0)),
    ("slow-clients", "attackers_left", AtMost(0.0)),
    ("reload", "failed_requests_epoll", AtMost(0.0)),
    ("reload", "failed_requests", AtMost(0.0)),
    ("simulate", "completions_per_min_millions", AtLeast(20.0)),
    ("ash-rtt", "dispatch_ns", AtMost(60.0)),
    ("ash-rtt", "suspended_user_over_ash", AtLeast(1.8)),
    ("ash-dilp", "fused_over_separate", AtLeast(2.0)),
    ("ash-dilp", "fused_over_hand_256", AtLeast(0.95)),
    ("ash-dilp", "fused_over_hand_1500", AtLeast(0.95)),
    ("ash-dilp", "fused_over_hand_4096", AtLeast(0.95)),
    ("ash-dilp", "fused_over_hand_65536", AtLeast(0.95)),
    ("ash-sandbox", "factor_40", AtMost(1.25)),
    ("ash-sandbox", "factor_4096", AtMost(1.02)),
    ("ash-procs", "rtt_10_over_1_realtime", AtMost(1.2)),
    ("ash-procs", "rtt_10_over_1_slice", AtMost(1.5)),
    ("ash-procs", "runaway_stopped_ms", AtMost(1.0)),
    ("ash-procs", "runaway_p99_over_none", AtMost(1.2)),
    ("ash-web", "handler_over_file", AtLeast(0.9)),
];

/// Returns the goal of a ratio, if it has one.
pub(crate) fn of(experiment: &str, ratio: &str) -> Option<Goal> {
    let found = ALL.iter().find(|(id, name, _)| *id == experiment && fits(name, ratio));
    found.map(|(_, _, goal)| *goal)
}

/// Returns the goals of an experiment whose ratios were not measured in the run, if there was one.
pub(crate) fn unmeasured(
    experiment: &str,
    run: Option<&Outcome>,
) -> impl Iterator<Item = (&'static str, Goal)> {
    let is_measured =
        move |name: &str| run.is_some_and(|run| run.ratios.keys().any(|ratio| fits(name, ratio)));
    let of_this = ALL.iter().filter(move |(id, name, _)| *id == experiment && !is_measured(name));
    of_this.map(|(_, name, goal)| (*name, *goal))
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            name.len() > start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;

    #[test]
    fn first_goal_that_fits_applies() {
        assert_eq!(of("floors", "echo_send_ps1_vs_floor_cpu"), Some(AtMost(1.05)));
        assert_eq!(of("floors", "send_ps1_vs_floor_cpu"), Some(AtMost(1.10)));
        assert_eq!(of("floors", "_vs_floor_cpu"), None);
        assert_eq!(of("peers", "tokio_vs_floor_cpu"), None);
    }

    #[test]
    fn every_goal_belongs_to_an_experiment() {
        assert!(ALL.iter().all(|(id, ..)| experiments::named(id).is_ok()));
    }

    #[test]
    fn goals_without_a_ratio_are_unmeasured() {
        let mut outcome = Outcome::new("preempt");
        outcome.ratio("wait_mode_over_send", "send", vec![12.0; 5]);
        let unmeasured: Vec<_> = unmeasured("preempt", Some(&outcome)).collect();
        assert_eq!(unmeasured, [("kernel_entries_per_event_loaded", AtMost(0.05))]);
        assert_eq!(super::unmeasured("preempt", None).count(), 2);
    }
}
