//! System calls on streams and files.

use std::io::IoSlice;

use rustix::io::Errno;
use shared_ring::Fd;
use shared_ring::author::{FileJob, System};
use shared_ring::files::{Access, FileOp, FileOutcome, Metadata, PathAt, WriteAt};
use shared_ring::nonblocking::FileRange;

use crate::fault::Fault;
use crate::machine::Machine;
use crate::number;
use crate::state::DescriptorKind;

impl Machine {
    /// Returns `n`, or less if the fault happens.
    pub(crate) fn shorten(&self, n: usize, fault: Fault) -> usize {
        let mut state = self.state();
        if n > 1 && state.rng.fault(fault) { 1 + state.rng.below(n) } else { n }
    }

    pub(super) fn interrupted(&self) -> Result<(), Errno> {
        if self.state().rng.fault(Fault::Interrupted) { Err(Errno::INTR) } else { Ok(()) }
    }

    /// Receives as recv(2) does: a short receive means that no more bytes have arrived, which
    /// edge-triggered callers rely on (epoll(7)).
    pub(crate) fn receive(&self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.state();
        let end = state.connected(fd, "receive")?;
        let mut at = 0;
        let received = state.receive(end, into.len(), |piece| {
            into[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        });
        state.note(|| format!("receive {fd:?}: {received:?}"));
        received
    }

    /// Sends from several buffers, as much as there is room for.
    pub(crate) fn send_all(&self, fd: Fd, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        let max = self.shorten(whole, Fault::ShortSend);
        let mut state = self.state();
        let end = state.connected(fd, "send")?;
        let mut sent = 0;
        for piece in pieces {
            let piece = &piece[..piece.len().min(max - sent)];
            match state.send(end, piece) {
                Ok(n) if n < piece.len() => {
                    sent += n;
                    break;
                }
                Ok(n) => sent += n,
                Err(errno) if sent == 0 => {
                    state.note(|| format!("send {fd:?}: {errno:?}"));
                    return Err(errno);
                }
                Err(_) => break,
            }
            if sent == max {
                break;
            }
        }
        if sent < whole {
            state.connection_of(end).arm_writable(end.side);
        }
        state.note(|| format!("send {fd:?}: {sent} of {whole} bytes"));
        Ok(sent)
    }

    pub(super) fn metadata(&self, fd: Fd) -> Result<Metadata, Errno> {
        let mut state = self.state();
        let node = state.file(fd, "fstat")?;
        Ok(state.disk.meta(node))
    }

    pub(crate) fn is_cold_now(&self, part: Option<FileRange>) -> bool {
        let mut state = self.state();
        let known = part.and_then(|part| {
            let node = state.file(part.file, "look").ok()?;
            state.page_cache.is_cold(node, part)
        });
        known.unwrap_or_else(|| state.rng.fault(Fault::Cold))
    }

    pub(crate) fn open(&self, root: Fd, path: &[u8], access: Access) -> Result<Fd, Errno> {
        let mut state = self.state();
        let root = state.file(root, "open")?;
        let found = state.disk.find(root, path).ok();
        let node = match state.file_fault(Fault::DiskError, found) {
            true => Err(Errno::IO),
            false => state.disk.open(root, path, access),
        };
        state.note(|| format!("open {}: {node:?}", path.escape_ascii()));
        state.open(DescriptorKind::File(node?, access != Access::Read))
    }

    pub(crate) fn read(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let len = self.load(part, true)?;
        let len = self.shorten(len, Fault::ShortRead);
        self.copy(part, len)
    }

    /// Reads all bytes that the file has of a part.
    pub(crate) fn read_part(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let len = self.load(part, true)?;
        self.copy(part, len)
    }

    /// Sends a piece of a file that fits into a pipe.
    pub(super) fn send_piece(
        &self,
        fd: Fd,
        piece: FileRange,
        may_change: bool,
    ) -> Result<usize, Errno> {
        let mut state = self.state();
        let node = state.file(piece.file, "sendfile")?;
        let end = state.connected(fd, "sendfile")?;
        let is_cold = state.page_cache.is_cold(node, piece) == Some(true);
        state.page_cache.blocking_sends += u64::from(is_cold);
        drop(state);
        let len = self.load(piece, may_change)?;
        if len == 0 {
            return Ok(0);
        }
        let len = self.shorten(len, Fault::ShortRead);
        let room = self.state().connection_of(end).room(end.side);
        // One more shows that the socket is full.
        let bytes = self.copy(piece, len.min(room + 1))?;
        self.send_all(fd, &[IoSlice::new(&bytes)])
    }

    /// Copies up to `len` bytes of a part from memory.
    fn copy(&self, part: FileRange, len: usize) -> Result<Vec<u8>, Errno> {
        let mut state = self.state();
        let node = state.file(part.file, "read")?;
        Ok(state.disk.read(node, part.offset, len as u32)?.to_vec())
    }

    /// Reads a part of a file into memory. Returns how many bytes the file has of it, which may change then.
    fn load(&self, part: FileRange, may_change: bool) -> Result<usize, Errno> {
        let mut state = self.state();
        let node = state.file(part.file, "read")?;
        if !state.page_cache.read(node, part) || state.file_fault(Fault::DiskError, Some(node)) {
            return Err(Errno::IO);
        }
        state.page_cache.read_ahead(node, part);
        if may_change && state.file_fault(Fault::FileChanges, Some(node)) {
            state.change(node);
        }
        Ok(state.disk.read(node, part.offset, part.len)?.len())
    }

    /// Writes bytes to a file, or only the first ones if a fault happens. Returns their number.
    pub(crate) fn write(&self, file: Fd, at: WriteAt, bytes: &[u8]) -> Result<usize, Errno> {
        let n = self.shorten(bytes.len(), Fault::ShortWrite);
        let mut state = self.state();
        let node = state.writable_file(file)?;
        if state.file_fault(Fault::DiskError, Some(node)) {
            return Err(Errno::IO);
        }
        let wall = state.wall();
        state.disk.write(node, at, &bytes[..n], wall).map(|()| n)
    }

    /// Reads a part of a file, less only at its end.
    pub(super) fn read_all(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        while bytes.len() < part.len as usize {
            let offset = part.offset + bytes.len() as u64;
            let more =
                self.read(FileRange { offset, len: part.len - bytes.len() as u32, ..part })?;
            if more.is_empty() {
                break;
            }
            bytes.extend_from_slice(&more);
        }
        Ok(bytes)
    }

    /// Performs file work at once.
    pub(crate) fn do_work(&self, work: &FileJob) -> Result<FileOutcome, Errno> {
        let open = |at: &PathAt<Fd>, access| {
            let fd = self.open(at.root, at.path.to_bytes(), access)?;
            Ok(self.file(number::socket(fd)))
        };
        match work {
            FileOp::Open(at, access) => {
                let file = open(at, *access)?;
                let meta = self.meta(number::of(&file))?;
                Ok(FileOutcome::Opened(Box::new((file, meta))))
            }
            FileOp::Stat(at) => {
                self.meta(number::of(&open(at, Access::Read)?)).map(FileOutcome::Stat)
            }
            FileOp::List(at) => {
                let file = open(at, Access::Read)?;
                let mut state = self.state();
                let node = state.file(number::of(&file), "list")?;
                let listing = state.disk.list(node);
                drop(state);
                listing.map(FileOutcome::Listed)
            }
            FileOp::Read(file, range) => {
                let len = (range.end - range.start).min(u32::MAX.into()) as u32;
                let bytes = self.read_all(FileRange { file: *file, offset: range.start, len })?;
                Ok(FileOutcome::Read(bytes.into()))
            }
            FileOp::Write(write) => {
                let mut written = 0;
                while written < write.bytes.len() {
                    let at = match write.at {
                        WriteAt::End => WriteAt::End,
                        WriteAt::Offset(start) => WriteAt::Offset(start + written as u64),
                    };
                    written += self.write(write.file, at, &write.bytes[written..])?;
                }
                Ok(FileOutcome::Written)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use shared_ring::Host;
    use shared_ring::sockets::ListenOptions;

    use super::*;
    use crate::{Faults, Plan};

    #[test]
    fn sendfile_copied_a_whole_part_for_a_socket_with_little_room() {
        const PIPE: u64 = 64 * 1024;
        let plan = Plan { faults: Faults::NONE, room: Some(10), ..Plan::default() };
        let mut machine = Machine::new(&plan);
        machine.add_file("file", vec![7; 5 * PIPE as usize]);
        machine.evict("file", false);
        machine.read_nothing_ahead();
        let (listener, at) =
            machine.listen(([127, 0, 0, 1], 0).into(), &ListenOptions::new(4)).unwrap();
        let peer = machine.manual_peer();
        peer.with(|net| net.connect(at)).expect("the listener has room");
        let socket = machine.accept(&listener).unwrap();
        let root = machine.open_directory("/".as_ref()).unwrap();
        let file = machine.open(number::of(&root), b"file", Access::Read).unwrap();
        let mut send = |offset| {
            let part = FileRange { file, offset, len: 5 * PIPE as u32 };
            let sent = machine.sendfile(number::of(&socket), part);
            (sent, machine.disk_bytes(), machine.blocking_sends())
        };
        assert_eq!(send(0), (Ok(10), PIPE, 1));
        while send(0).0.is_ok() {}
        // The kernel waits for the disk although the socket is full.
        assert_eq!(send(2 * PIPE), (Err(Errno::AGAIN), 2 * PIPE, 2));
        assert_eq!(send(0), (Err(Errno::AGAIN), 2 * PIPE, 2));
    }
}
