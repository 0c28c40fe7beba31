//! This project's servers on a simulated machine, and clients that check every reply.

mod bounds;
mod buffers;
mod case;
mod choices;
mod contract;
mod echo;
mod hold;
mod http;
mod kv;
mod layered;
mod mechanism;
mod origin;
mod pattern;
mod replies;
mod run;
mod script;
mod shrink;
mod stop;
mod talker;
mod wild;

pub use case::{Case, Program};
pub use choices::{Choices, End};
pub use mechanism::Mechanism;
pub use run::{Report, run, run_script};
pub use shrink::shrink;
