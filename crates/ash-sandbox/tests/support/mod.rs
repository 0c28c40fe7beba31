//! The common code of the tests: memory between guard pages, lists of the pipes that ship, and the
//! comparison of all executions with the interpreter.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::ptr;

use ash_sandbox::ilp::{
    CompileError, Execution, Gauge, Ilp, Mode, Pipe, PipeId, PipeList, Prefer, Register, State,
    byte_swap, chacha20, checksum, copy, count, crc32c, search, xor,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

pub const KEY: [u8; 32] = *b"0123456789abcdef0123456789ABCDEF";
pub const NONCE: [u8; 12] = *b"a new nonce!";
pub const MAX_MESSAGE: usize = 4096;
const PAGE: usize = 4096;
const PAGES: usize = 2;
const CANARY: u8 = 0xa5;

/// Two pages between two that can be neither read nor written.
pub struct Guarded(*mut u8);

/// Where a message lies in its pages.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// So many bytes behind the guard page before it.
    FromStart(usize),
    /// So many bytes before the guard page behind it.
    FromEnd(usize),
}

impl Guarded {
    pub fn new() -> Guarded {
        let flags = MapFlags::PRIVATE;
        // SAFETY: fresh pages, of which the inner ones are then opened.
        unsafe {
            let pages = (PAGES + 2) * PAGE;
            let all = mmap_anonymous(ptr::null_mut(), pages, ProtFlags::empty(), flags).unwrap();
            let inner = all.cast::<u8>().add(PAGE);
            let open = MprotectFlags::READ | MprotectFlags::WRITE;
            mprotect(inner.cast(), PAGES * PAGE, open).unwrap();
            Guarded(inner)
        }
    }

    fn all(&mut self) -> &mut [u8] {
        // SAFETY: the inner pages are there until the end, and borrowed once.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGES * PAGE) }
    }

    fn first(place: Place, len: usize) -> usize {
        match place {
            Place::FromStart(bytes) => bytes,
            Place::FromEnd(bytes) => PAGES * PAGE - len - bytes,
        }
    }

    /// Room for a message, with canaries around it.
    pub fn room(&mut self, place: Place, len: usize) -> &mut [u8] {
        let first = Guarded::first(place, len);
        let all = self.all();
        all[first.saturating_sub(64)..(first + len + 64).min(PAGES * PAGE)].fill(CANARY);
        &mut all[first..first + len]
    }

    /// Whether nobody wrote around the room.
    pub fn is_intact_around(&mut self, place: Place, len: usize) -> bool {
        let first = Guarded::first(place, len);
        let all = self.all();
        let (before, rest) = all.split_at(first);
        before[first.saturating_sub(64)..]
            .iter()
            .chain(rest[len..].iter().take(64))
            .all(|byte| *byte == CANARY)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: what was mapped, and is not borrowed.
        unsafe { munmap(self.0.sub(PAGE).cast(), (PAGES + 2) * PAGE).unwrap() };
    }
}

/// The pipes that ship.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Checksum,
    Crc32c,
    Swap16,
    Swap32,
    Swap64,
    Xor,
    ChaCha20,
    Copy,
    Count,
    Search,
}

impl Which {
    pub const ALL: [Which; 10] = [
        Which::Checksum,
        Which::Crc32c,
        Which::Swap16,
        Which::Swap32,
        Which::Swap64,
        Which::Xor,
        Which::ChaCha20,
        Which::Copy,
        Which::Count,
        Which::Search,
    ];

    pub fn pipe(self) -> Pipe {
        match self {
            Which::Checksum => checksum::pipe(),
            Which::Crc32c => crc32c::pipe(),
            Which::Swap16 => byte_swap::pipe(Gauge::Bits16),
            Which::Swap32 => byte_swap::pipe(Gauge::Bits32),
            Which::Swap64 => byte_swap::pipe(Gauge::Bits64),
            Which::Xor => xor::pipe(*b"\x81xor\x7f\xff\x003"),
            Which::ChaCha20 => chacha20::pipe(),
            Which::Copy => copy::pipe(),
            Which::Count => count::pipe(),
            Which::Search => search::pipe(0x5a),
        }
    }

    /// The registers that may be exported.
    pub fn registers(self) -> &'static [Register] {
        match self {
            Which::Checksum => &[checksum::SUM],
            Which::Crc32c => &[crc32c::CRC],
            Which::Xor => &[xor::STREAM],
            Which::Count => &[count::BYTES],
            Which::Search => &[search::FOUND, search::SEARCHED, search::BYTE],
            _ => &[],
        }
    }

    /// Returns the result of the pipe, the same for every execution.
    fn result(self, id: PipeId, state: &State) -> Vec<u64> {
        let import = |register: Register| state.import(id, register).unwrap();
        match self {
            Which::Checksum => vec![checksum::fold(import(checksum::SUM)).into()],
            Which::Crc32c => vec![import(crc32c::CRC)],
            Which::Xor => vec![import(xor::STREAM)],
            Which::Count => vec![import(count::BYTES)],
            Which::Search => vec![import(search::FOUND), import(search::SEARCHED)],
            _ => Vec::new(),
        }
    }
}

/// A list of pipes that ship.
pub struct Composed {
    pub which: Vec<Which>,
    pub list: PipeList,
    pub ids: Vec<PipeId>,
    /// Registers of pipes, by their places in the list, that have these values before each message.
    pub exports: Vec<(usize, Register, u64)>,
}

impl Composed {
    pub fn new(which: &[Which]) -> Composed {
        let mut list = PipeList::new();
        let ids = which.iter().map(|which| list.add(which.pipe()).unwrap()).collect();
        Composed { which: which.to_vec(), list, ids, exports: Vec::new() }
    }

    pub fn prepare(&self, state: &mut State) {
        state.reset();
        for (place, register, value) in &self.exports {
            state.export(self.ids[*place], *register, *value).unwrap();
        }
        for (which, id) in self.which.iter().zip(&self.ids) {
            if *which == Which::ChaCha20 {
                state.export_key(*id, &KEY, &NONCE, 1).unwrap();
            }
        }
    }

    pub fn results(&self, state: &State) -> Vec<Vec<u64>> {
        self.which.iter().zip(&self.ids).map(|(which, id)| which.result(*id, state)).collect()
    }
}

/// A list compiled for every execution that it has.
pub struct Subject {
    pub composed: Composed,
    oracle: [(Ilp, State); 2],
    executions: Vec<(Ilp, State)>,
}

/// Memory for comparisons.
pub struct Memory {
    source: Guarded,
    destination: Guarded,
    message: Vec<u8>,
}

impl Memory {
    pub fn new() -> Memory {
        // Bytes of all values; a multiplicative generator is random enough.
        let mut random: u64 = 0x2545_f491_4f6c_dd1d;
        let mut next = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 56) as u8
        };
        let message = (0..MAX_MESSAGE).map(|_| next()).collect();
        Memory { source: Guarded::new(), destination: Guarded::new(), message }
    }

    /// A byte of the message.
    pub fn byte(&self, place: usize) -> u8 {
        self.message[place]
    }
}

impl Subject {
    pub fn new(which: &[Which]) -> Subject {
        let composed = Composed::new(which);
        let compile = |mode, prefer| {
            let ilp = composed.list.compile_with(mode, prefer)?;
            let state = ilp.state();
            Ok::<_, CompileError>((ilp, state))
        };
        let oracle =
            [Mode::Read, Mode::Write].map(|mode| compile(mode, Prefer::Interpreted).unwrap());
        let mut executions = Vec::new();
        for mode in [Mode::Read, Mode::Write] {
            executions.push(compile(mode, Prefer::Generated).unwrap());
            for prefer in [Prefer::Kernel, Prefer::Avx2Kernel, Prefer::PortableKernel] {
                match compile(mode, prefer) {
                    Ok(execution) => executions.push(execution),
                    Err(error) => assert_eq!(error, CompileError::NoKernel),
                }
            }
        }
        Subject { composed, oracle, executions }
    }

    /// Whether ready-made kernels take part in both modes.
    pub fn has_kernels(&self) -> bool {
        let portable = |(ilp, _): &&(Ilp, State)| ilp.execution() == Execution::PortableKernel;
        self.executions.iter().filter(portable).count() >= 2
    }

    /// Compares all executions with the interpreter on a message of this length: what they write, to
    /// another place and in place, what their registers have, and that nothing else is written.
    pub fn compare(&mut self, memory: &mut Memory, len: usize, from: Place, to: Place) {
        let message = &memory.message[..len];
        let composed = &self.composed;
        let mut expected = vec![0; len];
        let mut found = Vec::new();
        for (ilp, state) in &mut self.oracle {
            composed.prepare(state);
            match ilp.mode() {
                Mode::Read => ilp.read(state, message).unwrap(),
                Mode::Write => ilp.write(state, message, &mut expected).unwrap(),
            }
            found = composed.results(state);
        }
        for (ilp, state) in &mut self.executions {
            let says = || format!("{ilp:?}, {len} bytes, {from:?} to {to:?}");
            composed.prepare(state);
            memory.source.room(from, len).copy_from_slice(message);
            let source = memory.source.room_as_is(from, len);
            match ilp.mode() {
                Mode::Read => ilp.read(state, source).unwrap(),
                Mode::Write => {
                    let destination = memory.destination.room(to, len);
                    ilp.write(state, source, destination).unwrap();
                    assert!(destination == expected, "wrote something else: {}", says());
                    assert!(memory.destination.is_intact_around(to, len), "around: {}", says());
                    assert_eq!(composed.results(state), found, "{}", says());
                    composed.prepare(state);
                    ilp.write_in_place(state, source).unwrap();
                    assert!(source == expected, "in place: {}", says());
                }
            }
            if ilp.mode() == Mode::Read {
                assert!(source == message, "the message was changed: {}", says());
            }
            assert_eq!(composed.results(state), found, "{}", says());
            assert!(memory.source.is_intact_around(from, len), "around the source: {}", says());
        }
    }
}

impl Guarded {
    /// The same room, with what is in it.
    fn room_as_is(&mut self, place: Place, len: usize) -> &mut [u8] {
        let first = Guarded::first(place, len);
        &mut self.all()[first..first + len]
    }
}
