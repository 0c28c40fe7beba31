//! The approved list of host calls (table 5-1), with their types and costs.

/// Name of the module from which handlers import.
pub(crate) const MODULE: &str = "ash";

/// Name of the entry (section 5.4.1): offset and length of the message, connection, and slot.
pub(crate) const ENTRY: &str = "ash_handle";

/// Name of the memory.
pub(crate) const MEMORY: &str = "memory";

/// A type of parameters or results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    I32,
    I64,
}

/// A host call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) parameters: &'static [Type],
    pub(crate) result: Option<Type>,
    /// Operations for the call itself.
    pub(crate) cost: u64,
    /// It is charged for the bytes that it touches, too.
    pub(crate) is_by_bytes: bool,
}

use Type::{I32, I64};

macro_rules! calls {
    ($($(#[$doc:meta])* $constant:ident = $name:literal ($($parameter:ident),*) $(-> $result:ident)?, $cost:literal $(+ $bytes:ident)?;)*) => {
        $($(#[$doc])* pub(crate) const $constant: Call = Call {
            name: $name, parameters: &[$($parameter),*], result: calls!(@$($result)?), cost: $cost,
            is_by_bytes: calls!(?$($bytes)?),
        };)*
        /// All approved calls.
        pub(crate) const CALLS: &[Call] = &[$($constant),*];
    };
    (@) => { None };
    (@$result:ident) => { Some($result) };
    (?) => { false };
    (?bytes) => { true };
}

calls! {
    /// `ae_gettick`: nanoseconds of a clock that never goes back.
    CLOCK = "clock" () -> I64, 50;
    /// `ae_otto_send`: sends bytes of the memory to the peer of the connection.
    SEND = "send" (I32, I32) -> I32, 200 + bytes;
    /// `ae_pid`: the tenant's number.
    ID = "id" () -> I64, 10;
    /// `ae_trusted_memcpy`: copies with one check of each range.
    COPY = "copy" (I32, I32, I32) -> I32, 30 + bytes;
    /// `ae_rapply`: applies a read-only pipe list.
    READ_APPLY = "read_apply" (I32, I32, I32) -> I32, 50 + bytes;
    /// `ae_wapply`: applies a pipe list that writes to another place.
    WRITE_APPLY = "write_apply" (I32, I32, I32, I32) -> I32, 50 + bytes;
    /// Reads a persistent register of a pipe list.
    IMPORT = "import" (I32, I32) -> I64, 20;
    /// Writes a persistent register of a pipe list.
    EXPORT = "export" (I32, I32, I64) -> I32, 20;
    /// Gives a keystream of a pipe list a key, and a nonce behind it.
    KEY = "key" (I32, I32, I32, I32) -> I32, 100;
    /// An addition to the table: posts an event to the application.
    POST = "post" (I64, I64) -> I32, 50;
    /// An addition to the table: starts an upcall with the message, if it is passed on.
    UPCALL = "upcall" () -> I32, 10;
    /// An addition to the table: adds to a counter.
    COUNT = "count" (I32, I64) -> I32, 10;
    /// An addition to the table: returns the offset of a free reply slot, from which a reply leaves without a
    /// copy.
    REPLY = "reply" (I32) -> I32, 20;
    /// An addition to the table: keeps the buffer of the message, if it is handled.
    KEEP = "keep" () -> I32, 20;
    /// `ae_otto_bump_n_free`: gives the buffer of a kept message back, if the message in hand is handled.
    GIVE_BACK = "give_back" (I32) -> I32, 100;
    /// An addition to the table: returns the offset of the table that the application shares.
    TABLE = "table" () -> I32, 10;
    /// An addition to the table: takes the lock of a section of that table, until the handler has returned (5.4.1).
    LOCK = "lock" (I32) -> I32, 30;
    /// An addition to the table: writes bytes to a section whose lock the handler has, if the message is handled.
    STORE = "store" (I32, I32, I32) -> I32, 30 + bytes;
    /// The sandboxer puts it in the place of the instruction `memory.copy`.
    COPY_MEMORY = "memory.copy" (I32, I32, I32), 30 + bytes;
    /// The sandboxer puts it in the place of the instruction `memory.fill`.
    FILL_MEMORY = "memory.fill" (I32, I32, I32), 30 + bytes;
    /// The `aborts` of section 5.5: ends the handler from any depth of calls.
    ABORT = "abort" (), 10;
}

/// Operations for touching bytes in a host call, such as copying them.
pub(crate) fn cost_of_bytes(bytes: u32) -> u64 {
    u64::from(bytes) / 16
}
