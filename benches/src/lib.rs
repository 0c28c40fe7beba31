//! Servers under simulation: what the lab's experiment `simulate` runs, and the tests beside it.

pub mod simulate;
