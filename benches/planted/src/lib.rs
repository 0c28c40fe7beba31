//! Bugs that simulation must find, and their planting into a copy of this repository. The original
//! sources do not contain them.

mod bugs;
mod copy;

pub use bugs::{BUGS, Bug, Edit};
pub use copy::copy_with_bugs;

/// The environment variable that selects the bug planted in a process, by its index in [`BUGS`].
pub const VARIABLE: &str = "PLANTED";
