//! An HTTP/1.1 server that runs on thirteen event mechanisms of Linux, as a library and a program.
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
//! crate re-exports [`evring`], with the mechanisms whose features are enabled.
//!
//! | module | for |
//! |---|---|
//! | [`handlers`] | functions that answer requests: their parameters, middleware, pools of threads, upgrades |
//! | [`body`] | bodies of requests and responses, whole or in parts |
//! | [`options`] | settings: of the server, its limits, its hosts and their files |
//!
//! It supports HTTP/1.1 and 1.0 with keep-alive, pipelining, chunked bodies, conditional requests,
//! ranges and precompressed files. Malformed requests are rejected.
//!
//! The library logs through `tracing`, so nothing appears without a subscriber; [`Server::backend`] names the mechanism
//! that `auto` has chosen.
//!
//! # Features
//!
//! The default is all that the program needs: `cli` and `mechanisms`. A library does with `default-features = false`
//! and at least one mechanism.
//!
//! | feature | adds |
//! |---|---|
//! | `uring`, `epoll` and so on | the mechanism of this name in [`evring::mechanisms`]; `mechanisms` has all of them |
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

#![cfg_attr(docsrs, feature(doc_cfg))]

// The stage of the tests names the crate as its users do.
#[cfg(all(test, feature = "compression"))]
extern crate self as evring_httpd;

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
mod regular_file;
mod response;
mod server;
mod site;

/// Bodies of requests and responses, whole or in parts.
pub mod body {
    pub use crate::site::handler::BodySink;
    pub use crate::site::request_body::{BodyError, RequestBody};
    pub use crate::site::response_body::{Body, BodySender, Disconnected};
}

/// Functions that answer requests, and what they use: parameters, middleware, pools of threads, upgrades.
///
/// # Recipes
///
/// Handlers share state in an `Arc`. All workers call the same closure, so the state has to be `Sync`:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use evring_httpd::{Request, Server, get};
///
/// let hits = Arc::new(AtomicU64::new(0));
/// let counted = Arc::clone(&hits);
/// let hit = move |_: Request| format!("{}\n", counted.fetch_add(1, Ordering::Relaxed) + 1);
/// let read = move |_: Request| format!("{}\n", hits.load(Ordering::Relaxed));
/// let server = Server::builder().workers(2).route("/hits", get(read).post(hit));
/// ```
///
/// A tuple sets header fields. `Location` with a status of 3xx redirects, see [`IntoResponse`];
/// [`Redirect`](options::Redirect) is a rule without a handler:
///
/// ```
/// use evring_httpd::http::{HeaderMap, HeaderValue, StatusCode, header};
/// use evring_httpd::{Request, Server};
///
/// let now = |_: Request| {
///     let mut fields = HeaderMap::new();
///     fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
///     (StatusCode::OK, fields, format!("{:?}\n", std::time::SystemTime::now()))
/// };
/// let server = Server::builder().route("/now", now);
/// ```
///
/// The query of a request is text, in which values are percent-encoded:
///
/// ```
/// use evring_httpd::{Request, Server};
///
/// fn value<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
///     let mut pairs = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
///     pairs.find(|(other, _)| *other == name).map(|(_, value)| value)
/// }
///
/// let page = |request: Request| match value(&request, "n") {
///     Some(n) => format!("page {n}\n"),
///     None => "the first page\n".to_owned(),
/// };
/// let mut request = Request::default();
/// *request.uri_mut() = "/list?sort=name&n=2".parse()?;
/// assert_eq!(page(request), "page 2\n");
/// let server = Server::builder().route("/list", page);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod handlers {
    pub use crate::site::client_info::{ClientAddr, with_client_info};
    pub use crate::site::constant::constant;
    pub use crate::site::deferred::Responder;
    pub use crate::site::handler::{Answer, Handler, Wait};
    pub use crate::site::into_handler::{IntoHandler, kind};
    #[cfg(feature = "json")]
    pub use crate::site::json::{Json, JsonError, from_json};
    pub use crate::site::middleware::{Next, wrap};
    pub use crate::site::params::{PathParams, param};
    pub use crate::site::pool::{Pool, PoolError};
    #[cfg(feature = "sandbox")]
    pub use crate::site::sandbox::{HandlerSwitch, SandboxedHandler};
    #[cfg(feature = "tower")]
    pub use crate::site::service::ServiceKind;
    pub use crate::site::shed::shed_if_late;
    pub use crate::site::upgrade::{Upgraded, upgrade};
}

/// Settings: of the server, its limits, its hosts and their files.
pub mod options {
    pub use crate::access_log::{AccessLog, LogFormat};
    #[cfg(feature = "basic-auth")]
    pub use crate::basic_auth::BasicAuth;
    #[cfg(feature = "compression")]
    pub use crate::compression::{Compression, CompressionLevels};
    pub use crate::error_page::ErrorPage;
    pub use crate::file_options::FileOptions;
    pub use crate::header_rule::HeaderRule;
    pub use crate::host_options::{HostName, HostOptions};
    pub use crate::limits::Limits;
    pub use crate::mime_type::MimeType;
    pub use crate::page_path::PagePath;
    pub use crate::redirect::Redirect;
    pub use crate::server::addresses::Addresses;
    pub use crate::server::options::{ConnectionLimits, Options};
    #[cfg(feature = "sandbox")]
    pub use crate::server::options::{HandlerModule, HandlerTenant};
    #[cfg(feature = "tls")]
    pub use crate::server::tls::TlsOptions;
    #[cfg(feature = "user")]
    pub use crate::server::user::User;
}

#[cfg(feature = "sandbox")]
pub use ash_sandbox::sandbox;
pub use bytes;
pub use evring;
pub use evring::{Config, Root};
#[cfg(feature = "tls")]
pub use evring_tls::{self, TlsInfo};
pub use http;
pub use server::builder::Builder;
pub use server::error::Error;
pub use server::running::{Handle, Server};
pub use site::Site;
pub use site::any_response::{AnyResponse, Response};
pub use site::handler::Request;
pub use site::head::Head;
pub use site::into_response::IntoResponse;
pub use site::methods::{Methods, delete, get, patch, post, put};
pub use site::state::State;

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
