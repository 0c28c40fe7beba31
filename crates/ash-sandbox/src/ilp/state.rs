use std::fmt;
use std::sync::Arc;

use ::chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use ::chacha20::{ChaCha20, Key, Nonce};

use super::instruction::{Class, Register};
use super::program::{Placed, Program};
use super::{ApplyError, PipeId, RegisterError};

/// How many bytes of each keystream are made at a time.
pub(crate) const KEYSTREAM_BYTES: usize = 1024;

/// The state of an integrated loop between the parts of a message: the persistent registers of its pipes.
///
/// [`Ilp::state`](super::Ilp::state) makes one, which serves one message after another.
pub struct State {
    pub(crate) program: Arc<Program>,
    pub(crate) registers: Box<[u64]>,
    /// A fragment had a part of a unit, the end of the message.
    pub(crate) ended: bool,
    ciphers: Box<[Option<ChaCha20>]>,
    /// [`KEYSTREAM_BYTES`] of each keystream, one behind the other.
    pub(crate) keystream: Box<[u8]>,
}

impl State {
    pub(crate) fn new(program: &Arc<Program>) -> State {
        State {
            program: program.clone(),
            registers: program.initial.clone(),
            ended: false,
            ciphers: (0..program.keystreams).map(|_| None).collect(),
            keystream: vec![0; program.keystreams * KEYSTREAM_BYTES].into(),
        }
    }

    /// Begins another message: registers have their initial values, and no keystream has a key.
    #[inline(always)]
    pub fn reset(&mut self) {
        // A few words, once for each message: too few for a call of memcpy.
        for (register, initial) in self.registers.iter_mut().zip(&self.program.initial) {
            *register = *initial;
        }
        self.ended = false;
        for cipher in &mut self.ciphers {
            *cipher = None;
        }
    }

    /// Puts a value into a pipe's persistent register, as before a message.
    ///
    /// # Errors
    ///
    /// The list has no such pipe, or that pipe has no such persistent register.
    pub fn export(
        &mut self,
        pipe: PipeId,
        register: Register,
        value: u64,
    ) -> Result<(), RegisterError> {
        let slot = self.slot(pipe, register)?;
        self.registers[slot] = value;
        Ok(())
    }

    /// Takes the value of a pipe's persistent register, as behind a message.
    ///
    /// # Errors
    ///
    /// The list has no such pipe, or that pipe has no such persistent register.
    pub fn import(&self, pipe: PipeId, register: Register) -> Result<u64, RegisterError> {
        Ok(self.registers[self.slot(pipe, register)?])
    }

    /// Gives a pipe's keystream a key, a nonce, and the block at which it begins (RFC 8439, 2.4).
    /// Each message needs this once after a reset. The key is wiped from memory at the next reset, or
    /// with the state; bytes of the keystream stay until others take their place.
    ///
    /// # Errors
    ///
    /// The list has no such pipe, or that pipe reads no keystream.
    pub fn export_key(
        &mut self,
        pipe: PipeId,
        key: &[u8; 32],
        nonce: &[u8; 12],
        first_block: u32,
    ) -> Result<(), RegisterError> {
        let placed = self.placed(pipe)?;
        let Some(keystream) = placed.keystream else {
            return Err(RegisterError::NoKeystream { pipe: placed.pipe.name });
        };
        self.ciphers[keystream] = Some(cipher(key, nonce, first_block));
        Ok(())
    }

    /// Gives a keystream, by its number among those of the list, a key and a nonce. Returns whether there is such a
    /// keystream.
    #[cfg(feature = "sandbox")]
    pub(crate) fn set_key(
        &mut self,
        keystream: usize,
        (key, nonce): (&[u8; 32], &[u8; 12]),
        first_block: u32,
    ) -> bool {
        let keystream = self.ciphers.get_mut(keystream);
        keystream.map(|keystream| *keystream = Some(cipher(key, nonce, first_block))).is_some()
    }

    /// Checks that all keystreams last for a message.
    pub(crate) fn check_keystreams(&self, bytes: usize) -> Result<(), ApplyError> {
        for Placed { pipe, keystream, .. } in &self.program.pipes {
            let Some(keystream) = *keystream else { continue };
            match &self.ciphers[keystream] {
                None => return Err(ApplyError::NoKey { pipe: pipe.name }),
                Some(cipher) if cipher.check_remaining(bytes).is_err() => {
                    return Err(ApplyError::KeystreamExhausted { pipe: pipe.name });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Makes the next bytes of all keystreams, [`KEYSTREAM_BYTES`] at most.
    pub(crate) fn fill_keystreams(&mut self, bytes: usize) {
        for (cipher, room) in
            self.ciphers.iter_mut().zip(self.keystream.chunks_exact_mut(KEYSTREAM_BYTES))
        {
            if let Some(cipher) = cipher {
                cipher.write_keystream(&mut room[..bytes]);
            }
        }
    }

    fn placed(&self, pipe: PipeId) -> Result<&Placed, RegisterError> {
        // A pipe that was added after this was compiled is not in it.
        let placed = self.program.pipes.get(pipe.index);
        placed.filter(|placed| placed.id == pipe).ok_or(RegisterError::NoSuchPipe)
    }

    fn slot(&self, pipe: PipeId, register: Register) -> Result<usize, RegisterError> {
        let placed = self.placed(pipe)?;
        let index = usize::from(register.index);
        if register.class != Class::Persistent || index >= placed.pipe.initial.len() {
            return Err(RegisterError::NoSuchRegister { pipe: placed.pipe.name });
        }
        Ok(placed.first_register + index)
    }
}

fn cipher(key: &[u8; 32], nonce: &[u8; 12], first_block: u32) -> ChaCha20 {
    let mut cipher = ChaCha20::new(&Key::from(*key), &Nonce::from(*nonce));
    cipher.seek(u64::from(first_block) * 64);
    cipher
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the keystreams: they are secret.
        f.debug_struct("State").field("registers", &self.registers).finish_non_exhaustive()
    }
}
