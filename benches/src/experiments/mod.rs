//! The experiments and their list.

mod ash;
mod banga_cost;
mod cold;
mod contestants;
mod cpu_profile;
mod ecem;
mod fairness;
mod flexsc_files;
mod flexsc_interference;
mod flexsc_kv;
mod flexsc_syscalls;
mod flexsc_threads;
mod flexsc_web;
mod floors;
mod http_sessions;
mod load_check;
mod mixed;
mod overload;
mod peers;
mod preempt;
mod rounds;
mod send_dequeue;
mod servers;
mod simulate;
mod sweep;
mod system_call;
mod turns;
mod web;

pub(crate) use ash::remote_write::invoke;
pub(crate) use ash::scheduling::spin;
pub(crate) use ash::server::answer_upcalls;
pub(crate) use flexsc_syscalls::complete;
pub(crate) use servers::{DEFAULT, is_external};
pub(crate) use web::slow_clients::TIMEOUT as SLOW_CLIENT_TIMEOUT;

use std::time::Instant;

use indicatif::ProgressBar;

use crate::command::Simulation;
use crate::failure::Failure;
use crate::outcome::Outcome;

/// An experiment.
pub(crate) struct Experiment {
    /// Identifier on the command line.
    pub(crate) id: &'static str,
    /// The quantity it measures.
    pub(crate) title: &'static str,
    /// The origin of the question: a paper's figure, or a goal of this project.
    pub(crate) source: &'static str,
    /// Whether it runs in its own network namespace.
    pub(crate) own_network: bool,
    /// Runs it.
    pub(crate) run: fn(&Context) -> Result<Outcome, Failure>,
}

/// The parameters of an experiment.
pub(crate) struct Context {
    /// Whether to save time at the cost of precision.
    pub(crate) quick: bool,
    /// Time after which no further round begins.
    pub(crate) deadline: Instant,
    /// Seed of the order of contestants and of the load.
    pub(crate) seed: u64,
    /// The progress bar.
    pub(crate) progress: ProgressBar,
    /// The options of `simulate`.
    pub(crate) simulation: Simulation,
}

impl Context {
    /// Returns whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Every experiment.
pub(crate) const ALL: &[Experiment] = &[
    floors::EXPERIMENT,
    peers::EXPERIMENT,
    load_check::EXPERIMENT,
    overload::EXPERIMENT,
    fairness::EXPERIMENT,
    mixed::EXPERIMENT,
    cold::EXPERIMENT,
    banga_cost::EXPERIMENT,
    cpu_profile::EXPERIMENT,
    http_sessions::EXPERIMENT,
    send_dequeue::EXPERIMENT,
    preempt::EXPERIMENT,
    flexsc_syscalls::EXPERIMENT,
    flexsc_interference::EXPERIMENT,
    flexsc_kv::EXPERIMENT,
    flexsc_web::EXPERIMENT,
    flexsc_files::EXPERIMENT,
    flexsc_threads::EXPERIMENT,
    ecem::ded::EXPERIMENT,
    ecem::dns::EXPERIMENT,
    ecem::policies::EXPERIMENT,
    web::tls::EXPERIMENT,
    web::compress::EXPERIMENT,
    web::observed::EXPERIMENT,
    web::reload::EXPERIMENT,
    web::axum::EXPERIMENT,
    web::slow_clients::EXPERIMENT,
    simulate::EXPERIMENT,
    ash::rtt::EXPERIMENT,
    ash::copies::EXPERIMENT,
    ash::dilp::EXPERIMENT,
    ash::sandbox::EXPERIMENT,
    ash::procs::EXPERIMENT,
    ash::web::EXPERIMENT,
    ash::model::EXPERIMENT,
];

/// Returns the experiment `id`.
pub(crate) fn named(id: &str) -> Result<&'static Experiment, Failure> {
    ALL.iter().find(|e| e.id == id).ok_or_else(|| {
        let all: Vec<_> = ALL.iter().map(|e| e.id).collect();
        let all = all.join(", ");
        Failure::Request(format!("there is no experiment `{id}`; available: {all}"))
    })
}
