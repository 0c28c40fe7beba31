//! The experiments and their list.

mod ash;
mod banga_cost;
mod cold;
mod contestants;
mod cpu_profile;
mod ecem;
mod experiment;
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
mod request_log;
mod rounds;
mod send_dequeue;
mod servers;
mod simulate;
mod sweep;
mod system_call;
mod turns;
mod web;

pub(crate) use ash::recommend::recommend;
pub(crate) use ash::remote_write::invoke;
pub(crate) use ash::scheduling::spin;
pub(crate) use ash::server::answer_upcalls;
pub(crate) use experiment::{Context, Experiment};
pub(crate) use flexsc_syscalls::complete;
pub(crate) use servers::{DEFAULT, is_external};

use crate::failure::Failure;

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
