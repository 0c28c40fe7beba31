//! Small applications that demonstrate and test the runtime.
//!
//! They do no I/O: callbacks receive events and issue commands, so they run unchanged on every mechanism of
//! `evring`. A larger example has its own package: `kv`, a memcached server.
//!
//! | application | what it exercises |
//! |---|---|
//! | [`Echo`] | replies from the receive buffer; back-pressure |
//! | [`Chat`] | the states of other connections, timers, values from other workers |
//! | [`Proxy`] | two dependent connections; half-close |
//! | [`Throttle`] | files that pass through the process; reads that wait for the client |
//! | [`OwnPoll`] | not an application: a mechanism over a kernel of one's own |
//! | [`Xor`] | an application around an application: a transform of [`evring_tls::Layer`] |

mod chat;
mod echo;
mod poll_kernel;
mod proxy;
#[cfg(feature = "programs")]
mod serve;
mod throttle;
mod xor;

pub use chat::{Chat, Joined};
pub use echo::Echo;
pub use poll_kernel::{OwnPoll, PollKernel};
pub use proxy::{Proxy, ProxyHalf, ProxyState, Timeouts};
#[cfg(feature = "programs")]
pub use serve::Listen;
pub use throttle::{Stream, Throttle};
pub use xor::Xor;

/// The code of the project's page.
#[cfg(all(doctest, feature = "programs"))]
#[doc = include_str!("../../README.md")]
struct Readme;
