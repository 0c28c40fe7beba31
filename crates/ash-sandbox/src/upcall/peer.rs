//! The side of the process that answers upcalls.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::shared::Shared;

/// A process that answers upcalls of a server.
#[derive(Debug)]
pub struct Peer {
    pub(super) shared: Shared,
    pub(super) stream: UnixStream,
}

/// The error of a [`Peer`].
#[derive(Debug)]
#[non_exhaustive]
pub enum PeerError {
    /// The server has closed the stream before it sent its memory, or sent something else.
    NoMemory,
    /// The operating system has rejected an operation, or the memory is not that of a server.
    System(io::Error),
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::NoMemory => f.write_str(
                "no server has sent its memory for upcalls; start this program by one, with a stream as its \
                 standard input",
            ),
            PeerError::System(error) => write!(f, "cannot answer upcalls: {error}"),
        }
    }
}

impl std::error::Error for PeerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PeerError::System(error) => Some(error),
            PeerError::NoMemory => None,
        }
    }
}

impl From<Errno> for PeerError {
    fn from(error: Errno) -> Self {
        PeerError::System(error.into())
    }
}

/// An upcall: a message, and what the handler does with it.
#[derive(Debug)]
pub struct Upcall<'a> {
    shared: &'a Shared,
    place: usize,
    reply_len: usize,
}

impl Peer {
    /// Receives the memory of a server, by a stream that the server has the other end of.
    ///
    /// # Errors
    /// If the server sends none, or it cannot be mapped.
    pub fn connect(stream: UnixStream) -> Result<Self, PeerError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = loop {
            match recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        if message.bytes == 0 || message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(PeerError::NoMemory);
        }
        let mut descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let Some(memory) = descriptors.next().and_then(|mut memory| memory.next()) else {
            return Err(PeerError::NoMemory);
        };
        let shared = Shared::open(memory).map_err(PeerError::System)?;
        Ok(Peer { shared, stream })
    }

    /// Receives the memory of the server that has started this process, with a stream as its standard input.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn from_stdin() -> Result<Self, PeerError> {
        let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(PeerError::System)?;
        Peer::connect(UnixStream::from(stdin))
    }

    /// Answers upcalls until the server ends. `handle` returns what `ash_handle` returns: 1 if it has handled
    /// the message, 2 to discard it, 0 to pass it to the application; anything else is an abort.
    ///
    /// # Errors
    /// If waiting fails.
    pub fn serve(&self, mut handle: impl FnMut(&mut Upcall<'_>) -> i32) -> Result<(), PeerError> {
        let header = self.shared.header();
        let places = u64::MAX >> (64 - self.shared.places());
        loop {
            // The whole batch, as one switch of processes has brought it.
            let mut batch = header.submitted.swap(0, SeqCst) & places;
            if batch == 0 {
                header.peer_sleeps.store(1, SeqCst);
                batch = header.submitted.swap(0, SeqCst) & places;
                if batch == 0 {
                    if !self.wait()? {
                        return Ok(());
                    }
                    continue;
                }
                header.peer_sleeps.store(0, SeqCst);
            }
            while batch != 0 {
                let place = batch.trailing_zeros() as usize;
                batch &= batch - 1;
                self.answer(place, &mut handle);
                // A server that looks meanwhile has this answer in time, however long the next one takes.
                header.done.fetch_or(1 << place, SeqCst);
            }
            super::wake(&self.stream, &header.server_sleeps);
        }
    }

    fn answer(&self, place: usize, handle: &mut impl FnMut(&mut Upcall<'_>) -> i32) {
        let entry = self.shared.place(place);
        entry.has_event.store(0, Relaxed);
        let mut upcall = Upcall { shared: &self.shared, place, reply_len: 0 };
        let result = handle(&mut upcall);
        entry.reply_len.store(upcall.reply_len as u32, Relaxed);
        entry.result.store(result.cast_unsigned(), Release);
    }

    /// Waits until the server wakes it. Returns whether it still runs.
    fn wait(&self) -> Result<bool, PeerError> {
        match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], None) {
            Ok(_) => Ok(super::take_wake_ups(&self.stream)),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl Upcall<'_> {
    /// Returns the message.
    pub fn message(&self) -> &[u8] {
        let len = self.shared.place(self.place).message_len.load(Relaxed) as usize;
        let len = len.min(self.shared.message_bytes());
        // SAFETY: the bytes are in the place. The server writes to it before it submits the message and again
        // when it has taken the answer, and this process has it meanwhile.
        unsafe { std::slice::from_raw_parts(self.shared.message(self.place), len) }
    }

    /// Returns the connection.
    pub fn connection(&self) -> u64 {
        self.shared.place(self.place).connection.load(Relaxed)
    }

    /// Returns the slot of the shared ring that the message occupies.
    pub fn slot(&self) -> u32 {
        self.place as u32
    }

    /// Appends to the reply, which is sent if the message is handled. Returns whether there was room.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.shared.reply_bytes() - self.reply_len {
            return false;
        }
        // SAFETY: the bytes fit into the place, which the server does not read before the answer.
        unsafe {
            let to = self.shared.reply(self.place).add(self.reply_len);
            bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len());
        }
        self.reply_len += bytes.len();
        true
    }

    /// Posts an event to the application, if the message is handled: the last one of this upcall.
    pub fn post(&mut self, kind: u64, value: u64) {
        let place = self.shared.place(self.place);
        place.kind.store(kind, Relaxed);
        place.value.store(value, Relaxed);
        place.has_event.store(1, Relaxed);
    }
}
