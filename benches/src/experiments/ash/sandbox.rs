//! The cost of the sandbox: remote write in the sandbox, and the same natively.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use ash_sandbox::sandbox::{Handler, Outcome as Handled};

use super::super::{Context, Experiment};
use super::{Contestant, bars, flush, handler, ns_each, ratio, run_rounds};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-sandbox",
    title: "the sandboxing factor: remote write in the sandbox and natively",
    source: "ASH, section 6.2, table 6-3",
    own_network: false,
    run,
};

/// Bytes that a message writes.
const SIZES: [usize; 2] = [40, 4096];
/// Messages in a round, and rounds.
const MESSAGES: usize = 1_000;
const UNCACHED: usize = 64;
const QUICK: usize = 15;
const FULL: usize = 201;

/// The header of a message: the place where its data are to be written, as 32 bits.
const HEADER: usize = 4;

/// Trusts the sender, as the application-specific remote write of the thesis.
const REMOTE_WRITE: &str = "(drop (call $copy (i32.load (local.get $offset))
    (i32.add (local.get $offset) (i32.const 4))
    (i32.sub (local.get $length) (i32.const 4))))";

const NOTES: [&str; 3] = [
    "The handler reads the place from the message and copies the data there, by the trusted copy of table \
     5-1. `native` does the same as a function pointer would be called in the kernel, with no check of \
     the range and no accounting; so the factor has the whole cost of being called in a sandbox: entry, \
     host call, budget.",
    "`uncached`: the message and its place are flushed from the caches before each message, as in section \
     6.3; the flushes are not in the times.",
    "Instructions (table 6-3: 68 generic, 38 sandboxed, 10 native) are not counted: valgrind does not \
     attribute code that is generated at run time.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[SERVER_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    for bytes in SIZES {
        let mut sandboxed = Sandboxed::new(bytes)?;
        let mut sandboxed_uncached = Sandboxed::new(bytes)?;
        let mut native = Native::new(bytes);
        let mut native_uncached = Native::new(bytes);
        let mut all = [
            Contestant::new("sandboxed", move || Ok(ns_each(MESSAGES, || sandboxed.write()))),
            Contestant::new("native", move || Ok(ns_each(MESSAGES, || native.write()))),
            Contestant::new("sandboxed, uncached", move || {
                Ok((0..UNCACHED).map(|_| sandboxed_uncached.write_flushed()).sum::<f64>()
                    / UNCACHED as f64)
            }),
            Contestant::new("native, uncached", move || {
                Ok((0..UNCACHED).map(|_| native_uncached.write_flushed()).sum::<f64>()
                    / UNCACHED as f64)
            }),
        ];
        run_rounds(cx, if cx.quick { QUICK } else { FULL }, &mut all)?;
        let figure = format!("Time of a remote write of {bytes} bytes");
        bars(&mut outcome, &figure, "ns", "measured", &all);
        let name = format!("factor_{bytes}");
        ratio(&mut outcome, &name, "ash", &all, ("sandboxed", "native"));
        let uncached = ("sandboxed, uncached", "native, uncached");
        ratio(&mut outcome, &format!("{name}_uncached"), "ash", &all, uncached);
        let factor = if bytes == 40 { "1.3 to 1.4" } else { "1.01 to 1.02" };
        outcome.paper(&figure, &format!("ASH, section 6.2: a sandboxing factor of {factor}."));
    }
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// The place in the handler's memory, and in the native one, that messages write to.
const PLACE: u32 = 8192;

fn message(bytes: usize) -> Vec<u8> {
    let mut message = PLACE.to_le_bytes().to_vec();
    message.extend((0..bytes).map(|byte| byte as u8));
    message
}

struct Sandboxed {
    handler: Handler,
    message: Range<usize>,
    now: Instant,
}

impl Sandboxed {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let mut handler = handler(REMOTE_WRITE)?;
        let now = Instant::now();
        let message = message(bytes);
        if handler.handle_copy(&message, 7, now) != Handled::Handled {
            return Err(Failure::Run("the handler of remote writes does not work".to_owned()));
        }
        let start = handler.memory().message_area().start;
        Ok(Sandboxed { handler, message: start..start + message.len(), now })
    }

    fn write(&mut self) {
        black_box(self.handler.handle(black_box(self.message.clone()), 7, 0, self.now));
    }

    fn write_flushed(&mut self) -> f64 {
        let place = PLACE as usize..PLACE as usize + self.message.len() - HEADER;
        flush(self.bytes(self.message.clone()));
        flush(self.bytes(place));
        ns_each(1, || self.write())
    }

    fn bytes(&self, range: Range<usize>) -> &[u8] {
        let start = self.handler.memory().host_pointer(range.start);
        assert!(range.end <= self.handler.memory().len());
        // SAFETY: the range is in the memory, and no handler runs.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }
}

struct Native {
    message: Vec<u8>,
    memory: Vec<u8>,
    write: fn(&[u8], &mut [u8]),
}

impl Native {
    fn new(bytes: usize) -> Self {
        let write = |message: &[u8], memory: &mut [u8]| {
            let (place, data) = message.split_at(HEADER);
            let place = u32::from_le_bytes(place.try_into().expect("four bytes")) as usize;
            memory[place..place + data.len()].copy_from_slice(data);
        };
        Native { message: message(bytes), memory: vec![0; 2 * PLACE as usize], write }
    }

    fn write(&mut self) {
        black_box(self.write)(black_box(&self.message), &mut self.memory);
        black_box(&mut self.memory);
    }

    fn write_flushed(&mut self) -> f64 {
        flush(&self.message);
        flush(&self.memory[PLACE as usize..][..self.message.len() - HEADER]);
        ns_each(1, || self.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_write_the_data_to_their_place() {
        for bytes in SIZES {
            let mut sandboxed = Sandboxed::new(bytes).unwrap();
            let mut native = Native::new(bytes);
            assert!(sandboxed.write_flushed() > 0.0 && native.write_flushed() > 0.0);
            let place = PLACE as usize..PLACE as usize + bytes;
            let data = &message(bytes)[HEADER..];
            assert_eq!(sandboxed.bytes(place.clone()), data);
            assert_eq!(&native.memory[place], data);
        }
    }
}
