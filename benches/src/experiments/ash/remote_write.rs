//! Remote write (ASH, section 6.2), by a handler in the sandbox, by unsafe handlers, and by a function.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use ash_sandbox::sandbox::{Handler, Outcome as Handled, Policy, Sandboxer};

use super::{flush, handle_landed, handler, ns_each};
use crate::command::{Invoke, RemoteWrite};
use crate::failure::Failure;

/// The place in the memory that messages write to.
const PLACE: u32 = 8192;
/// The size of an unsafe handler's own memory: that of the module.
const MEMORY: usize = 2 << 16;
/// The segment of generic messages, which begins at 0.
const SEGMENT: u32 = 3;

/// Trusts the sender, as the application-specific remote write of the thesis: the message has a place, and
/// the data are copied there by the trusted copy of table 5-1.
const SANDBOXED: &str = "(drop (call $copy (i32.load (local.get $offset))
    (i32.add (local.get $offset) (i32.const 4))
    (i32.sub (local.get $length) (i32.const 4))))";

/// The contestant's handler, or function, with a message.
pub(super) struct Writer {
    code: Code,
    place: Range<usize>,
    now: Instant,
}

enum Code {
    Handler(Box<Handler>, Range<usize>),
    Function { write: fn(&[u8], &mut [u8]), message: Vec<u8>, memory: Vec<u8> },
}

impl Writer {
    pub(super) fn new(what: RemoteWrite, bytes: usize) -> Result<Self, Failure> {
        let message = message(what, bytes);
        let now = Instant::now();
        let place = PLACE as usize..PLACE as usize + bytes;
        let mut handler = match what {
            RemoteWrite::Sandboxed => handler(SANDBOXED)?,
            RemoteWrite::Unsafe => trust(unsafe_handler)?,
            RemoteWrite::Generic => {
                let segments = (0..16).map(|number| (number * 1024, 65_536 - number * 1024));
                let mut segments: Vec<(u32, u32)> = segments.collect();
                segments[SEGMENT as usize].0 = 0;
                trust(move |memory, message| generic(&segments, memory, message))?
            }
            RemoteWrite::Nothing => trust(|_, _| true)?,
            RemoteWrite::Function => {
                let memory = vec![0; 2 * PLACE as usize];
                let code = Code::Function { write: function, message, memory };
                return Ok(Writer { code, place, now });
            }
        };
        if handler.handle_copy(&message, 7, now) != Handled::Handled {
            return Err(Failure::Run("a handler of remote writes does not work".to_owned()));
        }
        let start = handler.memory().message_area().start;
        Ok(Writer {
            code: Code::Handler(Box::new(handler), start..start + message.len()),
            place,
            now,
        })
    }

    /// Has a message written.
    pub(super) fn write(&mut self) {
        match &mut self.code {
            Code::Handler(handler, message) => {
                black_box(handle_landed(handler, black_box(message.len()), self.now));
            }
            Code::Function { write, message, memory } => {
                black_box(*write)(black_box(message), memory);
                black_box(memory);
            }
        }
    }

    /// Has a message written that has left the caches, as has its place. Returns the time in ns.
    pub(super) fn write_flushed(&mut self) -> f64 {
        flush(self.message());
        flush(self.place());
        ns_each(1, || self.write())
    }

    fn message(&self) -> &[u8] {
        match &self.code {
            Code::Handler(handler, message) => bytes(handler, message),
            Code::Function { message, .. } => message,
        }
    }

    fn place(&self) -> &[u8] {
        match &self.code {
            Code::Handler(handler, _) => bytes(handler, &self.place),
            Code::Function { memory, .. } => &memory[self.place.clone()],
        }
    }
}

fn bytes<'a>(handler: &'a Handler, range: &Range<usize>) -> &'a [u8] {
    let start = handler.memory().host_pointer(range.start);
    assert!(range.end <= handler.memory().len());
    // SAFETY: the range is in the memory, and no handler runs.
    unsafe { std::slice::from_raw_parts(start, range.len()) }
}

/// Returns an unsafe handler, in the place of a module.
fn trust(
    mut write: impl FnMut(&mut [u8], &[u8]) -> bool + Send + 'static,
) -> Result<Handler, Failure> {
    let sandboxer = Sandboxer::new(Policy::default().with(|p| p.operations_per_second = PLENTY));
    let trusted = sandboxer.and_then(|sandboxer| {
        sandboxer.trust(1, MEMORY, move |calls| {
            let (message, memory) = calls.memory();
            i32::from(write(memory, message))
        })
    });
    trusted.map_err(|e| Failure::new("cannot create an unsafe handler", e))
}

/// More operations than a handler uses in a second.
pub(super) const PLENTY: u64 = u64::MAX / 4;

fn message(what: RemoteWrite, bytes: usize) -> Vec<u8> {
    let header: &[u32] = match what {
        RemoteWrite::Generic => &[SEGMENT, PLACE, bytes as u32],
        _ => &[PLACE],
    };
    let header = header.iter().flat_map(|word| word.to_le_bytes());
    header.chain((0..bytes).map(|byte| byte as u8)).collect()
}

/// The application-specific remote write of the thesis, unsafe: nothing is checked.
fn unsafe_handler(memory: &mut [u8], message: &[u8]) -> bool {
    // SAFETY: the sender is trusted: it is this program, and its place and data are in the memory.
    unsafe {
        let place = message.as_ptr().cast::<u32>().read_unaligned() as usize;
        let data = message.as_ptr().add(size_of::<u32>());
        let to = memory.as_mut_ptr().add(place);
        data.copy_to_nonoverlapping(to, message.len() - size_of::<u32>());
    }
    true
}

/// The generic remote write of the thesis, as a kernel would have it: segment, offset and size come with the
/// message and are checked; a table has the place of the segment.
fn generic(segments: &[(u32, u32)], memory: &mut [u8], message: &[u8]) -> bool {
    let Some((header, data)) = message.split_at_checked(12) else { return false };
    let word = |n: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[4 * n + byte]));
    let (segment, offset, size) = (word(0), word(1), word(2));
    let Some((base, len)) = segments.get(segment as usize) else { return false };
    let fits = offset.checked_add(size).is_some_and(|end| end <= *len);
    if !fits || size as usize != data.len() {
        return false;
    }
    let start = (base + offset) as usize;
    let Some(to) = memory.get_mut(start..start + data.len()) else { return false };
    to.copy_from_slice(data);
    true
}

/// The same as the unsafe handler, called as a function.
fn function(message: &[u8], memory: &mut [u8]) {
    unsafe_handler(memory, message);
}

/// Invokes a handler a number of times, for valgrind.
pub(crate) fn invoke(options: &Invoke) -> Result<(), Failure> {
    let mut writer = Writer::new(options.what, options.bytes)?;
    for _ in 0..options.count {
        writer.write();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_write_the_data_to_their_place() {
        for what in [
            RemoteWrite::Sandboxed,
            RemoteWrite::Unsafe,
            RemoteWrite::Generic,
            RemoteWrite::Function,
        ] {
            for bytes in [0, 40, 4096] {
                let mut writer = Writer::new(what, bytes).unwrap();
                assert!(writer.write_flushed() > 0.0);
                let data: Vec<_> = (0..bytes).map(|byte| byte as u8).collect();
                assert_eq!(writer.place(), data, "{what:?}");
            }
        }
    }

    #[test]
    fn generic_writes_are_checked() {
        let message = |segment: u32, offset: u32, size: u32| {
            let header = [segment, offset, size].map(u32::to_le_bytes);
            [header.as_flattened(), &[1; 8]].concat()
        };
        let mut memory = [0; 64];
        let mut is_done = |message: &[u8]| generic(&[(0, 32)], &mut memory, message);
        assert!(is_done(&message(0, 24, 8)));
        for bad in [message(1, 0, 8), message(0, 25, 8), message(0, u32::MAX, 8), message(0, 0, 7)]
        {
            assert!(!is_done(&bad));
        }
        assert!(!is_done(&[0; 11]));
    }
}
