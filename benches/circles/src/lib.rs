//! Circles between the files of a crate.
//!
//! A file uses another one if its code names an item that the other one defines, by an import or by a path. A
//! name is followed through re-exports to its definition. A file that only declares or re-exports its modules
//! does not use them. Code for tests is left out, and so are calls of methods, whose file only the compiler knows.

mod crate_source;
mod graph;
mod module;

pub use crate_source::CrateSource;
pub use graph::{Uses, circles};
