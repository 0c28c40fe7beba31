//! Measurement of servers from outside: processes, load and costs.

mod callgrind;
mod cpu;
mod descendants;
mod h2load;
mod load;
mod namespace;
mod network;
mod peer;
mod perf;
mod quota;
mod sample;
mod server;
mod site;
mod trial;
mod wait;
mod wrk;

pub(crate) use callgrind::{Callgrind, PeerRequests};
pub(crate) use cpu::{
    CLIENT_CORE, CpuTime, OtherPrograms, SERVER_CORE, Switches, online_cores, pin,
    raise_descriptors,
};
pub(crate) use descendants::{adopt_orphans, kill_descendants};
pub(crate) use h2load::{H2load, H2loadObservation};
pub(crate) use load::{ClientWork, Load, Window};
pub(crate) use namespace::enter_own_network;
pub(crate) use network::TcpCounts;
pub(crate) use peer::Peer;
pub(crate) use perf::{Perf, Recording, Share};
pub(crate) use quota::{Quota, join, remove_all};
pub(crate) use sample::{Sample, UnderLoad};
pub(crate) use server::{Conditions, Server, Subject, program};
pub(crate) use site::{CERTIFICATE, HELLO, KEY, Site, fetch};
pub(crate) use trial::{SOURCES, Trial, Trials, busy_option, load};
pub(crate) use wait::line_within;
pub(crate) use wrk::{Requests, Wrk, WrkObservation};
