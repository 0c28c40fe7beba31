//! A web server that runs on every event mechanism of Linux.
//!
//! [`Files`] serves a directory. It is an [`Application`](multiplex::Application) of
//! [`multiplex`], which is re-exported whole, so whoever adds this crate has every mechanism:
//!
//! ```no_run
//! use httpd::multiplex::{Any, Config, Root};
//!
//! let config = Config {
//!     listen: vec!["127.0.0.1:8080".parse()?],
//!     roots: vec!["public".into()],
//!     ..Config::default()
//! };
//! Any::new("auto", &config)?.run(httpd::Files::new(Some(Root(0))))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It speaks HTTP/1.1 and 1.0, GET and HEAD, with keep-alive and pipelining, and refuses the rest
//! strictly. It does not do TLS, ranges, conditional requests or request bodies.

mod broken;
mod cache;
mod clock;
mod files;
mod limits;
mod path;
mod refusal;
mod reply;
mod request;
mod state;
mod status;
mod work;

pub use files::Files;
pub use limits::Limits;
pub use multiplex;
pub use multiplex::{Any, Config, Root};
pub use state::State;
