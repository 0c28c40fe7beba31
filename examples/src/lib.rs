//! Small applications that show and test the runtime.
//!
//! Each is free of input and output: it is told what happened and answers with commands, so it
//! runs unchanged on every mechanism of `evring`. A larger one has a package of its own: `kv`, a
//! memcached server.
//!
//! | application | what it presses on |
//! |---|---|
//! | [`Echo`] | answers from the buffer in which the bytes arrived; back-pressure |
//! | [`Proxy`] | two connections that depend on each other; half-close |
//! | [`Layer`] | an application around an application: [`Tls`], [`Xor`] |

mod echo;
mod layer;
mod proxy;
#[cfg(feature = "programs")]
mod serve;
#[cfg(feature = "tls")]
mod tls;
mod xor;

pub use echo::Echo;
pub use layer::{Layer, Transform};
pub use proxy::{Proxy, Timeouts};
#[cfg(feature = "programs")]
pub use serve::Listen;
#[cfg(feature = "tls")]
pub use tls::{ServerSession, Tls, server_config};
pub use xor::Xor;
