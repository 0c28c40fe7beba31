//! This project's servers on a simulated machine, and clients that know what to expect of them.

mod case;
mod echo;
mod http;
mod kv;
mod origin;
mod pattern;
mod replies;
mod run;
mod shrink;
mod stop;
mod talker;
mod wild;

pub use case::{Case, Mechanism, Program};
pub use run::{Report, run};
pub use shrink::shrink;
