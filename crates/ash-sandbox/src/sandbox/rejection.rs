//! Why a module is not loaded.

use std::fmt::{self, Write};

/// The reason why the sandboxer rejects a module, with the function in which it was found.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// Name of the function, or its number; none if the reason is not in a function.
    pub function: Option<String>,
    /// The reason.
    pub reason: Reason,
}

/// The defect of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The module is larger than the policy permits: its size and the maximum, in bytes.
    TooLarge(usize, usize),
    /// The file is no binary module of WebAssembly.
    NoModule,
    /// The file seems to be a module in WebAssembly text.
    Text,
    /// The module is no valid WebAssembly, or uses a feature that handlers do not have.
    Invalid(String),
    /// The module defines more functions than the policy permits: their number and the maximum.
    TooManyFunctions(u32, u32),
    /// An import that no handler may have: module and name.
    Import(String, String),
    /// An import of a host call with another type than the call has.
    ImportType(String),
    /// The module does not define and export a memory named `memory`.
    NoMemory,
    /// The memory can grow. Its minimum must be its maximum.
    GrowingMemory,
    /// The memory is larger than the policy permits: its size and the maximum, in bytes.
    MemoryTooLarge(u64, usize),
    /// The table has more elements than the policy permits functions: their number and the maximum.
    TableTooLarge(u64, u32),
    /// A data segment does not lie in the memory, or at no constant offset.
    DataOutsideMemory,
    /// An element segment does not lie in the table, or at no constant offset: the number of the segment, and the elements
    /// that the table has.
    ElementsOutsideTable(u32, u64),
    /// The module has a start function, which would run when it is loaded.
    Start,
    /// The module does not export the entry, or exports it with another type.
    NoEntry,
    /// Each path through the handler is bounded, but the longest has more operations than the policy
    /// permits: its number of operations and the maximum.
    TooLong(u64, u64),
    /// The body of a function is too long, for the compiler or to run between two checks of the bound: its operations, with its
    /// locals, the targets of its branches, and more for loops, conditions and calls, or with eight for a load, and the maximum.
    BodyTooLong(u64, u64),
    /// The module is too long for the compiler: the same of all its functions, with what it has for types, imports, exports
    /// and segments, and the maximum.
    TooMuchCode(u64, u64),
    /// A type has more parameters or results than handlers may have: its number, theirs, and the maximum.
    TypeTooWide(u32, usize, usize),
    /// The module defines more mutable globals than a handler may have: their number and the maximum.
    TooManyGlobals(u32, u32),
    /// The compiler or the loader failed.
    Compiler(String),
    /// The memory of the handler could not be set up.
    Memory(String),
    /// A parent of this process has loaded the module, which is bounded by a clock: the thread that ticks is the parent's.
    OtherProcess,
}

impl Rejection {
    pub(crate) fn new(reason: Reason) -> Self {
        Rejection { function: None, reason }
    }
}

impl From<Reason> for Rejection {
    fn from(reason: Reason) -> Self {
        Rejection::new(reason)
    }
}

/// A name from a module, or a text that may contain one. Modules may be hostile: it is printed without control characters, and
/// without what is beyond this number of characters.
struct Printed<'a>(&'a str, usize);

/// Maximum characters of a name, and of a text of the engine.
const MAX_NAME: usize = 100;
const MAX_TEXT: usize = 300;

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.escape_debug();
        chars.by_ref().take(self.1).try_for_each(|char| f.write_char(char))?;
        if chars.next().is_some() { f.write_str("...") } else { Ok(()) }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.function {
            write!(f, "function {}: ", Printed(function, MAX_NAME))?;
        }
        self.reason.fmt(f)
    }
}

/// Prints the message, so that a `main` that returns the error shows it.
impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::TooLarge(size, max) => {
                write!(f, "the module has {size} bytes; the policy permits {max}")
            }
            Reason::NoModule => f.write_str(
                "it is no WebAssembly module; name the `.wasm` that `cargo build --target wasm32-unknown-unknown` makes",
            ),
            Reason::Text => f.write_str(
                "it is a module in WebAssembly text; name the `.wasm` that `wat2wasm` of wabt makes of it",
            ),
            Reason::Invalid(reason) => {
                let reason = Printed(reason, MAX_TEXT);
                write!(f, "the module is invalid, or uses what handlers do not have: {reason}")
            }
            Reason::TooManyFunctions(count, max) => {
                write!(f, "the module defines {count} functions; the policy permits {max}")
            }
            Reason::Import(module, name) => write!(
                f,
                "the module imports {}.{}; handlers may import the calls of `ash` only",
                Printed(module, MAX_NAME),
                Printed(name, MAX_NAME)
            ),
            Reason::ImportType(name) => {
                let name = Printed(name, MAX_NAME);
                write!(f, "the module imports ash.{name} with a type that the call does not have")
            }
            Reason::NoMemory => {
                f.write_str("the module must define one memory and export it as `memory`")
            }
            Reason::GrowingMemory => f.write_str(
                "the memory can grow; set its maximum to its initial size (wasm-ld --initial-memory=N --max-memory=N)",
            ),
            Reason::MemoryTooLarge(size, max) => {
                write!(f, "the memory has {size} bytes; the policy permits {max}")
            }
            Reason::TableTooLarge(count, max) => write!(
                f,
                "the table has {count} elements; the policy permits {max}, as many as functions"
            ),
            Reason::DataOutsideMemory => {
                f.write_str("a data segment must lie in the memory, at a constant offset")
            }
            Reason::ElementsOutsideTable(segment, elements) => write!(
                f,
                "the element segment {segment} must lie in the table, which has {elements} elements, at a constant offset"
            ),
            Reason::Start => f.write_str("the module has a start function; handlers have none"),
            Reason::NoEntry => f.write_str(
                "the module must export `ash_handle` with parameters (i32, i32, i64, i32) and result i32",
            ),
            Reason::TooLong(operations, max) => write!(
                f,
                "the longest path has {operations} operations; the policy permits {max}"
            ),
            Reason::BodyTooLong(operations, max) => write!(
                f,
                "the function has {operations} operations, with its locals, the targets of its branches, and more for loads, loops, conditions and calls; the policy permits {max} in a function: divide it"
            ),
            Reason::TooMuchCode(operations, max) => write!(
                f,
                "the module has {operations} operations, with more for loops, conditions and calls, and with its types, imports, exports and segments; the policy permits {max}"
            ),
            Reason::TypeTooWide(ty, count, max) => {
                write!(f, "type {ty} has {count} parameters or results; handlers have up to {max}")
            }
            Reason::TooManyGlobals(count, max) => {
                write!(f, "the module defines {count} mutable globals; handlers have up to {max}")
            }
            Reason::Compiler(reason) => {
                write!(f, "the module cannot be compiled: {}", Printed(reason, MAX_TEXT))
            }
            Reason::Memory(reason) => write!(f, "the memory cannot be set up: {reason}"),
            Reason::OtherProcess => f.write_str(
                "the process that has loaded the module has the clock that bounds it; load it after fork(2)",
            ),
        }
    }
}

impl std::error::Error for Rejection {}
