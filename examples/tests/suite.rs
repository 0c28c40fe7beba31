//! The tests that need no process of their own, in one executable: each file is a module.

mod admission;
mod chat;
mod contract;
mod echo;
mod files;
#[cfg(feature = "programs")]
mod outside_kernel;
mod proxy;
mod simulated;
mod support;
mod throttle;
mod tls;
