//! What a list of pipes is compiled for.

/// What an integrated loop does with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It leaves the data as they are (`ae_rapply` of table 5-1). What the last pipe gives is dropped.
    Read,
    /// It writes what the last pipe gives, to a destination or in place (`ae_wapply`).
    Write,
}
