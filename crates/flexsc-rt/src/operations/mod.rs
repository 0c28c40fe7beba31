//! The system calls of a server, typed. Each owns its memory while it is in flight, and gives
//! buffers back with its result.
//!
//! Reads and receives fill the unused capacity of a vector. Without any they give `EINVAL` at once, as a result of 0
//! is the end of the stream or file.

mod buffer;
mod files;
mod process;
mod sockets;

use std::io;

pub use buffer::Bytes;
pub use files::*;
pub use process::*;
pub(crate) use sockets::connect_call;
pub use sockets::*;

use crate::call::Call;
use crate::operation::{Operation, Owned};
use crate::pages::Scratch;

/// Any other system call: its memory, how the call is made of it, and what becomes of its result.
///
/// # Safety
/// As for [`Operation`].
pub unsafe fn raw<M: 'static, O: 'static>(
    memory: M,
    prepare: impl FnMut(&mut M, &mut Scratch) -> Call + 'static,
    finish: impl FnOnce(M, io::Result<usize>, &Scratch) -> O + 'static,
) -> impl Operation<Output = O> {
    // SAFETY: the caller vouches for it.
    unsafe { Owned::new(memory, prepare, finish) }
}

/// A call without a result but success.
fn done<M>(_memory: M, result: io::Result<usize>, _: &Scratch) -> io::Result<()> {
    result.map(drop)
}

/// A call that returns a number.
fn number<M>(_memory: M, result: io::Result<usize>, _: &Scratch) -> io::Result<usize> {
    result
}

/// Prepares a call that fills the unused capacity of a buffer, from its address and length. Without any the call is not
/// made, as a receive would take a datagram, and a read could wait: [`filled`] returns the error.
fn fill(buffer: &mut Vec<u8>, call: impl FnOnce(usize, usize) -> Call) -> Call {
    match buffer.spare_capacity_mut() {
        [] => Call::bounded(libc::SYS_getppid, [0; 6]),
        room => call(room.as_mut_ptr() as usize, room.len()),
    }
}

/// The result of [`fill`].
fn filled<M>(
    memory: (M, Vec<u8>),
    result: io::Result<usize>,
    _: &Scratch,
) -> (io::Result<usize>, Vec<u8>) {
    let (_, mut buffer) = memory;
    if buffer.len() == buffer.capacity() && result.is_ok() {
        return (Err(io::Error::from_raw_os_error(libc::EINVAL)), buffer);
    }
    if let Ok(len) = result {
        // SAFETY: the kernel has written so many bytes after the end.
        unsafe { buffer.set_len(buffer.len() + len) };
    }
    (result, buffer)
}
