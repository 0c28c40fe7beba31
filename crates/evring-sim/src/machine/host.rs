//! The system calls of [`Host`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use shared_ring::author::System;
use shared_ring::files::{File, Metadata};
use shared_ring::nonblocking::{Blocking, FileRange};
use shared_ring::sockets::{BufferSizes, ListenOptions};
use shared_ring::{Host, Socket};

use crate::disk::ROOT;
use crate::fault::Fault;
use crate::machine::Machine;
use crate::number;
use crate::state::DescriptorKind;
use crate::stream::Owner;

impl Host for Machine {
    fn listen(
        &mut self,
        at: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<(Socket, SocketAddr)> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let (listener, at) = state.listen(at, options.backlog as usize, Owner::Queue)?;
        let fd = state.open(DescriptorKind::Listener(listener))?;
        state.set_listener_owner(listener, Owner::Descriptor(fd.raw() as u32));
        Ok((number::socket(fd), at))
    }

    fn accept(&mut self, listener: &Socket) -> Result<Socket, Errno> {
        self.may_be_signalled(false);
        self.interrupted()?;
        self.state().accept(number::of(listener)).map(number::socket)
    }

    fn backlog(&mut self, listener: &Socket, length: u32) -> io::Result<()> {
        self.may_be_signalled(false);
        let mut state = self.state();
        if let DescriptorKind::Listener(listener) = *state.kind(number::of(listener), "listen")? {
            state.set_backlog(listener, length as usize);
        }
        Ok(())
    }

    fn backlog_length(&self, listener: &Socket) -> Option<u32> {
        self.may_be_signalled(false);
        let mut state = self.state();
        match *state.kind(number::of(listener), "getsockopt").ok()? {
            DescriptorKind::Listener(listener) => Some(state.backlog(listener) as u32),
            _ => None,
        }
    }

    fn queue_length(&self, listener: &Socket) -> Option<u32> {
        self.may_be_signalled(false);
        let mut state = self.state();
        match *state.kind(number::of(listener), "getsockopt").ok()? {
            DescriptorKind::Listener(listener) => Some(state.queue_length(listener) as u32),
            _ => None,
        }
    }

    fn socket(
        &mut self,
        _peer: SocketAddr,
        _from: Option<IpAddr>,
        _buffers: BufferSizes,
    ) -> io::Result<Socket> {
        self.may_be_signalled(false);
        Ok(number::socket(self.state().open(DescriptorKind::Fresh)?))
    }

    fn shutdown(&mut self, socket: &Socket) {
        self.may_be_signalled(false);
        let mut state = self.state();
        if let Ok(end) = state.connected(number::of(socket), "shutdown") {
            state.note(|| format!("shutdown {socket:?}"));
            state.finish(end);
        }
    }

    fn set_unsent_limit(&mut self, socket: &Socket, bytes: u32) -> io::Result<()> {
        self.may_be_signalled(false);
        let mut state = self.state();
        state.set_unsent_limit(number::of(socket), bytes as usize)?;
        Ok(())
    }

    fn reset_on_close(&mut self, socket: &Socket) {
        self.may_be_signalled(false);
        self.state().reset_on_close(number::of(socket));
    }

    fn close_unused(&mut self, socket: Socket) {
        self.may_be_signalled(false);
        self.state().close(number::of(&socket));
    }

    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let end = state.connected(number::of(socket), "getpeername").ok()?;
        Some(state.connection_of(end).address[usize::from(end.other().side)])
    }

    fn unacked_bytes(&self, socket: &Socket) -> u64 {
        self.may_be_signalled(false);
        let mut state = self.state();
        let Ok(end) = state.connected(number::of(socket), "ioctl") else { return 0 };
        state.connection_of(end).unacked_bytes(end.side) as u64
    }

    fn file_metadata(&self, file: &File) -> Result<Metadata, Errno> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let node = state.file(number::of(file), "fstat")?;
        if state.file_fault(Fault::DiskError, Some(node)) {
            return Err(Errno::IO);
        }
        if state.file_fault(Fault::FileChanges, Some(node)) {
            state.change(node);
        }
        Ok(state.disk.meta(node))
    }

    fn read_file(
        &self,
        file: &File,
        offset: u64,
        into: &mut [u8],
        disk: Blocking,
    ) -> Result<usize, Errno> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let node = state.file(number::of(file), "pread")?;
        let part = FileRange { file: number::of(file), offset, len: into.len() as u32 };
        // Without injected faults: a driver that cannot read these bytes before it sends a first piece does not notice that
        // the file becomes longer meanwhile (docs/file-delivery.md), which clients would count as a failure.
        if disk == Blocking::NoBlock {
            if state.page_cache.is_cold(node, part) == Some(true) {
                return Err(Errno::AGAIN);
            }
        } else if !state.page_cache.read(node, part)
            || state.file_fault(Fault::DiskError, Some(node))
        {
            return Err(Errno::IO);
        }
        if state.file_fault(Fault::FileChanges, Some(node)) {
            state.change(node);
        }
        let bytes = state.disk.read(node, offset, into.len() as u32)?;
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn unread(&self, socket: &Socket) -> u64 {
        self.may_be_signalled(false);
        let mut state = self.state();
        let Ok(end) = state.connected(number::of(socket), "ioctl") else { return 0 };
        state.connection_of(end).readable_bytes(end.side) as u64
    }

    fn idle_time(&self, socket: &Socket) -> Option<Duration> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let (end, now) = (state.connected(number::of(socket), "getsockopt").ok()?, state.now);
        let connection = state.connection_of(end);
        let last_activity = connection.last_activity[usize::from(end.side)];
        (!connection.is_broken()).then(|| now.saturating_sub(last_activity))
    }

    fn open_directory(&mut self, path: &Path) -> io::Result<File> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let node = match path.as_os_str().as_encoded_bytes() {
            b"/" => ROOT,
            path => state.disk.find(ROOT, path.strip_prefix(b"/").unwrap_or(path))?,
        };
        let fd = state.open(DescriptorKind::File(node, false))?;
        drop(state);
        Ok(self.file(number::socket(fd)))
    }

    fn clock(&self) -> Instant {
        self.state().instant()
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.state().wall()
    }

    fn cpu_time(&self) -> Duration {
        self.state().now / 2
    }

    fn random(&mut self) -> u64 {
        self.state().rng.number()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::{Faults, Plan};

    #[test]
    fn accepted_connections_inherit_the_limit_of_their_listener() {
        let plan = Plan { faults: Faults::NONE, ..Plan::default() };
        let mut machine = Machine::new(&plan);
        let at = ([127, 0, 0, 1], 0).into();
        let (listener, at) = machine.listen(at, &ListenOptions::new(4)).unwrap();
        let peer = machine.manual_peer();
        for (limit, sent) in [(3, 3), (0, 10)] {
            machine.set_unsent_limit(&listener, limit).unwrap();
            peer.with(|net| net.connect(at)).expect("the listener has room");
            let socket = machine.accept(&listener).unwrap();
            let pieces = [IoSlice::new(&[0; 10])];
            assert_eq!(machine.send_all(number::of(&socket), &pieces), Ok(sent));
        }
    }
}
