//! A web server that runs on every event mechanism of Linux.
//!
//! A program of its own:
//!
//! ```no_run
//! use httpd::{Request, Server};
//!
//! fn main() -> Result<(), httpd::Error> {
//!     Server::builder().files("public").route("/hello", |_: Request| "Hello, World!\n").run()
//! }
//! ```
//!
//! Behind it stands [`Site`], an [`Application`](multiplex::Application) of [`multiplex`]. That is
//! re-exported whole, so whoever adds this crate has every mechanism.
//!
//! It speaks HTTP/1.1 and 1.0, with keep-alive, pipelining, chunked bodies, conditional requests,
//! ranges and files that were compressed before, and refuses what is not sound. It does not do TLS.

mod body;
mod broken;
mod cache;
mod call;
mod clock;
mod coding;
mod conditions;
mod counts;
mod edge;
mod files;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod guard;
mod handler;
mod host;
mod lab;
mod limits;
mod listing;
mod log;
mod path;
mod range;
mod refusal;
mod reply;
mod request;
mod respond;
mod routes;
pub mod server;
mod site;
mod state;
mod status;
mod work;

pub use bytes;
pub use handler::{Answer, Body, Handler, Reply, Request, Response, Upload, costly};
pub use http;
pub use limits::Limits;
pub use log::AccessLog;
pub use multiplex;
pub use multiplex::{Any, Config, Root};
pub use server::{Error, Server};
pub use site::Site;
pub use state::State;
