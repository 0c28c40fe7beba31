//! A web server that runs on every event mechanism of Linux.
//!
//! [`Site`] serves a directory, and requests that [handlers](Handler) answer. It is an
//! [`Application`](multiplex::Application) of [`multiplex`], which is re-exported whole, so whoever
//! adds this crate has every mechanism:
//!
//! ```no_run
//! use httpd::multiplex::{Any, Config, Root};
//! use httpd::{Request, Site};
//!
//! let config = Config {
//!     listen: vec!["127.0.0.1:8080".parse()?],
//!     roots: vec!["public".into()],
//!     ..Config::default()
//! };
//! let site = Site::new(Some(Root(0))).route("/hello", |_: Request| "Hello, World!\n");
//! Any::new("auto", &config)?.run(site)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
mod files;
mod handler;
mod limits;
mod path;
mod range;
mod refusal;
mod reply;
mod request;
mod respond;
mod routes;
mod site;
mod state;
mod status;
mod work;

pub use handler::{Answer, Body, Handler, Reply, Request, Response, Upload};
pub use http;
pub use limits::Limits;
pub use multiplex;
pub use multiplex::{Any, Config, Root};
pub use site::Site;
pub use state::State;
