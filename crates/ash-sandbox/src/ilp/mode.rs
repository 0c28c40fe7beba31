//! The mode for which a list of pipes is compiled.

/// The output of an integrated loop: none, or that of its last pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It leaves the data as they are, and drops the output of the last pipe (`ae_rapply` of table 5-1).
    Read,
    /// It writes the output of the last pipe, to a destination or in place (`ae_wapply`).
    Write,
}
