//! Measuring a server from outside: processes, load, and what they cost.

mod callgrind;
mod load;
mod processor;
mod sample;
mod server;
mod site;
mod wrk;

pub(crate) use callgrind::Callgrind;
pub(crate) use load::{Load, Window};
pub(crate) use processor::{CLIENT_CORE, CpuTime, Others, SERVER_CORE, pin};
pub(crate) use sample::{Sample, UnderLoad};
pub(crate) use server::{Server, Subject};
pub(crate) use site::{HELLO, Site};
pub(crate) use wrk::{Requests, Wrk};
