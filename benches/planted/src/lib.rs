//! Bugs that simulation has to find, and how they get into a copy of this repository: the code that
//! ships has no trace of them.

mod bugs;
mod copy;

pub use bugs::{BUGS, Bug, Edit};
pub use copy::copy_with_bugs;

/// The variable that says which bug is planted in a process: its place in [`BUGS`].
pub const VARIABLE: &str = "PLANTED";
