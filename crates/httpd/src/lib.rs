//! An HTTP/1.1 server that runs on every event mechanism of Linux, as a library and a program.
//!
//! ```no_run
//! use evring_httpd::{Request, Server};
//!
//! fn main() -> Result<(), evring_httpd::Error> {
//!     Server::builder().files("public").route("/hello", |_: Request| "Hello, World!\n").run()
//! }
//! ```
//!
//! [`Server`] runs a [`Site`], which is an [`Application`](evring::Application) of [`evring`]. The
//! crate re-exports [`evring`] with all mechanisms.
//!
//! It supports HTTP/1.1 and 1.0 with keep-alive, pipelining, chunked bodies, conditional requests,
//! ranges and precompressed files. Malformed requests are rejected.
//!
//! # Features
//!
//! The default is all that the program needs: `cli` and `mechanisms`. A library does with `default-features = false`
//! and at least one mechanism.
//!
//! | feature | adds |
//! |---|---|
//! | `uring`, `epoll`, `epoll-edge`, `poll`, `select`, `devpoll`, `rtsig`, `interest`, `flexsc`, `send`, `send-ps1`, `send-ps2`, `tokio` | a mechanism each; `mechanisms` has all of them |
//! | `tokio` | also `Builder::tokio`: handlers that use timers, sockets and tasks of tokio, on any mechanism |
//! | `tower` | handlers that are services of tower, such as a router of axum |
//! | `json` | bodies in JSON: `Json`, `from_json` |
//! | `signals` | `Builder::run_until_signal`, `Server::wait_until_signal` |
//! | `tls` | TLS: `Builder::tls` |
//! | `compression` | compression of files on the fly: `FileOptions::compression` |
//! | `basic-auth` | names and passwords: `Builder::basic_auth` |
//! | `metrics` | metrics for Prometheus: `Builder::metrics_listen` |
//! | `user` | another user than root once the server listens: `Builder::user` |
//! | `sandbox` | handlers in WebAssembly: `Builder::sandbox`; it needs Rust 1.95 |
//! | `futures-io` | `AsyncRead` and `AsyncWrite` of futures-io for `Upgraded` |
//! | `cli` | the program `httpd`, `Options` as flags of clap, and the features `basic-auth`, `compression`, `metrics`, `signals`, `tls` and `user` |

mod access_log;
#[cfg(feature = "basic-auth")]
mod basic_auth;
#[cfg(feature = "compression")]
mod compression;
mod decision;
mod error_page;
mod file_options;
#[cfg(feature = "cli")]
mod flags;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod header_rule;
mod host_options;
mod limits;
mod message;
mod mime_type;
mod page_path;
mod redirect;
mod response;
mod server;
mod site;

pub use access_log::{AccessLog, LogFormat};
#[cfg(feature = "sandbox")]
pub use ash_sandbox::sandbox;
#[cfg(feature = "basic-auth")]
pub use basic_auth::BasicAuth;
pub use bytes;
#[cfg(feature = "compression")]
pub use compression::{Compression, CompressionLevels};
pub use error_page::ErrorPage;
pub use evring;
pub use evring::{Config, Root};
#[cfg(feature = "tls")]
pub use evring_tls::{self, TlsInfo};
pub use file_options::FileOptions;
pub use header_rule::HeaderRule;
pub use host_options::{HostName, HostOptions};
pub use http;
pub use limits::Limits;
pub use mime_type::MimeType;
pub use page_path::PagePath;
pub use redirect::Redirect;
pub use server::addresses::Addresses;
pub use server::builder::Builder;
pub use server::error::Error;
pub use server::options::{ConnectionLimits, Options};
#[cfg(feature = "sandbox")]
pub use server::options::{HandlerModule, HandlerTenant};
pub use server::running::{Handle, Server};
#[cfg(feature = "tls")]
pub use server::tls::TlsOptions;
#[cfg(feature = "user")]
pub use server::user::User;
pub use site::Site;
pub use site::client_info::{ClientAddr, with_client_info};
pub use site::constant::constant;
pub use site::deferred::Responder;
pub use site::handler::{Answer, BodySink, Handler, Request, Wait};
pub use site::head::Head;
pub use site::into_handler::{IntoHandler, kind};
pub use site::into_response::IntoResponse;
#[cfg(feature = "json")]
pub use site::json::{Json, JsonError, from_json};
pub use site::methods::{Methods, delete, get, patch, post, put};
pub use site::middleware::{Next, wrap};
pub use site::params::{PathParams, param};
pub use site::pool::{Pool, PoolError};
pub use site::reply::{Reply, Response};
pub use site::request_body::{BodyError, RequestBody};
pub use site::response_body::{Body, BodySender, Disconnected};
#[cfg(feature = "sandbox")]
pub use site::sandbox::SandboxedHandler;
#[cfg(feature = "tower")]
pub use site::service::ServiceKind;
pub use site::shed::shed_if_late;
pub use site::state::State;
pub use site::upgrade::{Upgraded, upgrade};

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
