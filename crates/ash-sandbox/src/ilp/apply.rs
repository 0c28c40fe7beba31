use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::code::{Code, Execution};
use super::program::Program;
use super::state::KEYSTREAM_BYTES;
use super::{ApplyError, Mode, State, UNIT_BYTES};

/// Operations for a unit of a keystream.
#[cfg(feature = "sandbox")]
const OPERATIONS_OF_KEYSTREAM: u64 = 16;

/// Pipes compiled to one loop (5.7).
///
/// It is immutable and can be shared by threads; what it keeps of a message is in a [`State`].
pub struct Ilp {
    program: Arc<Program>,
    code: Code,
    // Of the program, so that a message does not look there.
    mode: Mode,
    has_keystreams: bool,
    /// Operations of a unit, and of a part of one.
    #[cfg(feature = "sandbox")]
    costs: (u64, u64),
}

impl Ilp {
    pub(crate) fn new(program: Arc<Program>, code: Code) -> Ilp {
        let (mode, has_keystreams) = (program.mode, program.keystreams != 0);
        #[cfg(feature = "sandbox")]
        let costs = {
            let of_keystreams = program.keystreams as u64 * OPERATIONS_OF_KEYSTREAM;
            (code.operations_of_unit(&program) + of_keystreams, code.operations_of_tail(&program))
        };
        Ilp {
            program,
            code,
            mode,
            has_keystreams,
            #[cfg(feature = "sandbox")]
            costs,
        }
    }

    /// A state for one message, with the registers' initial values.
    pub fn state(&self) -> State {
        State::new(&self.program)
    }

    /// The mode that this was compiled for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Which execution was chosen.
    pub fn execution(&self) -> Execution {
        self.code.execution()
    }

    /// The width of the vectors that the loop works on, in bytes; `None` if it takes one word after another.
    ///
    /// Generated code has vectors on x86-64 with SSE4.2, if each pipe of the list has one gauge, in all its instructions,
    /// shifts by constants, has no CRC, no table and no trailing zeros to count, and ones only of bytes, and if it only reads
    /// a persistent register, or has one instruction with it that adds a word to it:
    /// [`Add`](super::Binary::Add), [`AddEndAroundCarry`](super::Binary::AddEndAroundCarry), [`And`](super::Binary::And),
    /// [`Or`](super::Binary::Or) or [`Xor`](super::Binary::Xor). Products of bytes have none.
    pub fn vector_bytes(&self) -> Option<usize> {
        self.code.vector_bytes()
    }

    /// Returns whether fragments may be applied in any order: all pipes are commutative. One fragment, the end of the message,
    /// may have a part of a unit.
    pub fn is_commutative(&self) -> bool {
        self.program.pipes.iter().all(|placed| placed.pipe.commutative)
    }

    /// Returns about how many operations applying it to so many bytes takes; one is about an instruction.
    #[cfg(feature = "sandbox")]
    pub(crate) fn operations(&self, bytes: u32) -> u64 {
        // As for a copy.
        let all = u64::from(bytes) / 16;
        let units = u64::from(bytes).div_ceil(UNIT_BYTES as u64);
        let (of_unit, of_tail) = self.costs;
        let is_whole = (bytes as usize).is_multiple_of(UNIT_BYTES);
        all + units * of_unit + if is_whole { 0 } else { of_tail }
    }

    /// Reads a message, or a fragment of one, and leaves it as it is (`ae_rapply` of table 5-1).
    ///
    /// # Errors
    ///
    /// The loop writes, the state is another's, the message has ended, or a keystream has no key or
    /// ends. Nothing was read then.
    // The code that runs for each message is inlined into the caller, down to the call of the kernel: one more call
    // costs a tenth of the time of a short message.
    #[inline(always)]
    pub fn read(&self, state: &mut State, message: &[u8]) -> Result<(), ApplyError> {
        self.check(state, Mode::Read, message.len())?;
        // SAFETY: `message` can be read, and this mode does not write.
        unsafe { self.run(state, message.as_ptr(), ptr::null_mut(), message.len()) }
    }

    /// Writes what the last pipe gives for a message, or a fragment of one, to the beginning of
    /// `destination` (`ae_wapply` of table 5-1).
    ///
    /// # Errors
    ///
    /// The loop reads only, the state is another's, the destination is shorter than the message, the
    /// message has ended, or a keystream has no key or ends. Nothing was read or written then.
    #[inline(always)]
    pub fn write(
        &self,
        state: &mut State,
        message: &[u8],
        destination: &mut [u8],
    ) -> Result<(), ApplyError> {
        self.check(state, Mode::Write, message.len())?;
        check_room(message.len(), destination.len())?;
        // SAFETY: `message` can be read, `destination` written, and there is room. A `&mut` does not
        // overlap a `&`.
        unsafe { self.run(state, message.as_ptr(), destination.as_mut_ptr(), message.len()) }
    }

    /// Writes what the last pipe gives for a message, or a fragment of one, in its place.
    ///
    /// # Errors
    ///
    /// As for [`write`](Ilp::write).
    #[inline(always)]
    pub fn write_in_place(&self, state: &mut State, message: &mut [u8]) -> Result<(), ApplyError> {
        self.check(state, Mode::Write, message.len())?;
        let data = message.as_mut_ptr();
        // SAFETY: `message` can be read and written; source and destination are the same.
        unsafe { self.run(state, data, data, message.len()) }
    }

    /// Reads a message that lies in fragments of any lengths.
    ///
    /// # Errors
    ///
    /// As for [`read`](Ilp::read).
    pub fn read_fragments(&self, state: &mut State, message: &[&[u8]]) -> Result<(), ApplyError> {
        self.check(state, Mode::Read, total_bytes(message))?;
        // SAFETY: this mode does not write.
        unsafe { self.run_fragments(state, message, ptr::null_mut()) }
    }

    /// Writes what the last pipe gives for a message that lies in fragments of any lengths, to the
    /// beginning of `destination`.
    ///
    /// # Errors
    ///
    /// As for [`write`](Ilp::write).
    pub fn gather(
        &self,
        state: &mut State,
        message: &[&[u8]],
        destination: &mut [u8],
    ) -> Result<(), ApplyError> {
        let bytes = total_bytes(message);
        self.check(state, Mode::Write, bytes)?;
        check_room(bytes, destination.len())?;
        // SAFETY: there is room for all fragments, and a `&mut` does not overlap a `&`.
        unsafe { self.run_fragments(state, message, destination.as_mut_ptr()) }
    }

    /// Checks that a state is one for so many more bytes.
    #[inline(always)]
    fn check(&self, state: &State, mode: Mode, bytes: usize) -> Result<(), ApplyError> {
        if self.mode == mode && Arc::ptr_eq(&self.program, &state.program) && !state.ended {
            return Ok(());
        }
        self.check_rest(state, mode, bytes)
    }

    /// The same, where the message has ended or the state is not accepted.
    #[cold]
    fn check_rest(&self, state: &State, mode: Mode, bytes: usize) -> Result<(), ApplyError> {
        if self.mode != mode {
            Err(ApplyError::WrongMode { compiled: self.mode })
        } else if !Arc::ptr_eq(&self.program, &state.program) {
            Err(ApplyError::ForeignState)
        } else if self.is_commutative() && bytes.is_multiple_of(UNIT_BYTES) {
            Ok(())
        } else {
            Err(ApplyError::MessageEnded)
        }
    }

    /// Applies the loop to a message or fragment in one piece.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read at `source` and, in mode [`Mode::Write`], written at `destination`,
    /// which is `source` or does not overlap it.
    #[inline(always)]
    unsafe fn run(
        &self,
        state: &mut State,
        source: *const u8,
        destination: *mut u8,
        len: usize,
    ) -> Result<(), ApplyError> {
        if self.has_keystreams {
            // SAFETY: the caller's promise.
            return unsafe { self.run_keyed(state, source, destination, len) };
        }
        state.ended |= !len.is_multiple_of(UNIT_BYTES);
        let registers = &mut state.registers;
        // SAFETY: the caller's promise; the state is this program's.
        unsafe { self.code.run(&self.program, registers, source, destination, len, &[]) };
        Ok(())
    }

    /// As [`run`](Ilp::run), for lists with keystreams, which are made piece by piece.
    ///
    /// # Safety
    ///
    /// As for [`run`](Ilp::run).
    #[inline(never)]
    unsafe fn run_keyed(
        &self,
        state: &mut State,
        source: *const u8,
        destination: *mut u8,
        len: usize,
    ) -> Result<(), ApplyError> {
        state.check_keystreams(len)?;
        state.ended |= !len.is_multiple_of(UNIT_BYTES);
        let mut at = 0;
        while at < len {
            let bytes = KEYSTREAM_BYTES.min(len - at);
            state.fill_keystreams(bytes);
            let State { registers, keystream, .. } = &mut *state;
            // SAFETY: at + bytes <= len, and the caller vouches for those; wrapping_add, as there may
            // be no destination. So many bytes of each keystream have just been made.
            unsafe {
                let destination = destination.wrapping_add(at);
                let source = source.add(at);
                self.code.run(&self.program, registers, source, destination, bytes, keystream);
            }
            at += bytes;
        }
        Ok(())
    }

    /// Applies the loop to fragments; what is left of one fragment, shorter than a unit, goes through
    /// a buffer together with the beginning of the next.
    ///
    /// # Safety
    ///
    /// In mode [`Mode::Write`] as many bytes as all fragments have can be written at `destination`,
    /// which overlaps none of them.
    unsafe fn run_fragments(
        &self,
        state: &mut State,
        message: &[&[u8]],
        destination: *mut u8,
    ) -> Result<(), ApplyError> {
        if self.has_keystreams {
            // So that nothing has been written when it ends.
            state.check_keystreams(total_bytes(message))?;
        }
        let mut destination = destination;
        let mut carried = [0; UNIT_BYTES];
        let mut len = 0;
        for fragment in message {
            let mut fragment = *fragment;
            if len > 0 {
                let taken = fragment.len().min(UNIT_BYTES - len);
                carried[len..len + taken].copy_from_slice(&fragment[..taken]);
                len += taken;
                fragment = &fragment[taken..];
                if len < UNIT_BYTES {
                    continue;
                }
                // SAFETY: of all the fragments' bytes, this unit is the next.
                unsafe { self.run_carried(state, &carried, &mut destination)? };
            }
            let whole = fragment.len() - fragment.len() % UNIT_BYTES;
            // SAFETY: the fragment can be read; of all the fragments' bytes, these are the next.
            unsafe { self.run(state, fragment.as_ptr(), destination, whole)? };
            destination = destination.wrapping_add(whole);
            len = fragment.len() - whole;
            carried[..len].copy_from_slice(&fragment[whole..]);
        }
        // SAFETY: these bytes are the last.
        unsafe { self.run_carried(state, &carried[..len], &mut destination) }
    }

    /// Applies the loop to bytes that were gathered from several fragments.
    ///
    /// # Safety
    ///
    /// In mode [`Mode::Write`] as many bytes can be written at `destination`.
    unsafe fn run_carried(
        &self,
        state: &mut State,
        carried: &[u8],
        destination: &mut *mut u8,
    ) -> Result<(), ApplyError> {
        // SAFETY: `carried` can be read; the caller vouches for the destination.
        unsafe { self.run(state, carried.as_ptr(), *destination, carried.len())? };
        *destination = destination.wrapping_add(carried.len());
        Ok(())
    }
}

#[inline(always)]
fn check_room(message_bytes: usize, destination_bytes: usize) -> Result<(), ApplyError> {
    if destination_bytes < message_bytes {
        return Err(ApplyError::DestinationTooShort { message_bytes, destination_bytes });
    }
    Ok(())
}

fn total_bytes(message: &[&[u8]]) -> usize {
    // Slices may overlap, so their lengths could add up to more than there is memory.
    message.iter().fold(0, |sum: usize, fragment| sum.saturating_add(fragment.len()))
}

impl fmt::Debug for Ilp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pipes = self.program.pipes.iter().map(|placed| placed.pipe.name);
        f.debug_struct("Ilp")
            .field("mode", &self.program.mode)
            .field("pipes", &pipes.collect::<Vec<_>>())
            .field("execution", &self.execution())
            .finish()
    }
}
