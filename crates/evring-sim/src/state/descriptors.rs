//! The program's descriptors.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use shared_ring::{Fd, Waker};

use super::descriptor::Descriptor;
use super::{DescriptorKind, SimState};
use crate::fault::Fault;
use crate::number;
use crate::stream::End;

/// First descriptor number; too high to be one of this process.
const FIRST: u32 = 1024;

/// Returns the descriptor of a place in the table.
fn fd_at(at: usize) -> Fd {
    number::fd((FIRST + at as u32) as i32)
}

impl SimState {
    pub(crate) fn open(&mut self, kind: DescriptorKind) -> Result<Fd, Errno> {
        let free = self.descriptors.iter().position(|d| d.kind.is_none());
        let at = free.unwrap_or(self.descriptors.len());
        if at >= self.max_descriptors {
            self.rng.count(Fault::TableFull);
            return Err(Errno::MFILE);
        }
        if free.is_none() {
            self.descriptors.push(Descriptor::default());
        }
        let Descriptor { is_changed, openings, .. } = self.descriptors[at];
        let openings = openings + 1;
        self.descriptors[at] = Descriptor { kind: Some(kind), is_changed, resets: false, openings };
        Ok(fd_at(at))
    }

    pub(super) fn at(&mut self, fd: Fd) -> Option<&mut Descriptor> {
        let at = (fd.raw() as u32).checked_sub(FIRST)?;
        self.descriptors.get_mut(at as usize).filter(|d| d.kind.is_some())
    }

    /// Returns a number that distinguishes an open descriptor from others with its number.
    pub(crate) fn opening(&self, fd: RawFd) -> Option<u32> {
        let at = (fd as u32).checked_sub(FIRST)?;
        let descriptor = self.descriptors.get(at as usize)?;
        descriptor.kind.as_ref().map(|_| descriptor.openings)
    }

    /// Returns the object behind a descriptor. The run fails if the descriptor is not open.
    pub(crate) fn kind(&mut self, fd: Fd, call: &str) -> Result<&mut DescriptorKind, Errno> {
        if self.at(fd).is_none() {
            self.fail(format!("{call}: {fd:?} is not open"));
            return Err(Errno::BADF);
        }
        Ok(self.at(fd).and_then(|d| d.kind.as_mut()).expect("the descriptor is open"))
    }

    /// Returns the connection of a descriptor.
    pub(crate) fn connected(&mut self, fd: Fd, call: &str) -> Result<End, Errno> {
        match self.kind(fd, call)? {
            DescriptorKind::Connected(end) => Ok(*end),
            DescriptorKind::Refused(_) | DescriptorKind::Fresh | DescriptorKind::Connecting(..) => {
                Err(Errno::NOTCONN)
            }
            other => {
                let message = format!("{call}: {fd:?} is {other:?}");
                self.fail(message);
                Err(Errno::NOTSOCK)
            }
        }
    }

    pub(crate) fn file(&mut self, fd: Fd, call: &str) -> Result<u32, Errno> {
        match self.kind(fd, call)? {
            DescriptorKind::File(node, _) => Ok(*node),
            other => {
                let message = format!("{call}: {fd:?} is {other:?}");
                self.fail(message);
                Err(Errno::BADF)
            }
        }
    }

    /// Returns the file of a descriptor that was opened for writing.
    pub(crate) fn writable_file(&mut self, fd: Fd) -> Result<u32, Errno> {
        match self.kind(fd, "write")? {
            DescriptorKind::File(node, true) => Ok(*node),
            _ => Err(Errno::BADF),
        }
    }

    pub(crate) fn close(&mut self, fd: Fd) {
        let Some(descriptor) = self.at(fd) else {
            return self.fail(format!("{fd:?} is closed but not open"));
        };
        let resets = descriptor.resets;
        let kind = descriptor.kind.take();
        if self.is_used_by_blocked(fd) {
            self.fail(format!("{fd:?} is closed while a file operation that hangs uses it"));
        }
        self.note(|| format!("close {fd:?}"));
        self.usage.reported(fd);
        self.page_cache.closed(fd);
        match kind {
            Some(DescriptorKind::Connected(end)) => {
                let peer = self.connection_of(end).address[usize::from(end.other().side)];
                self.usage.last_closed = Some(peer);
                self.close_end(end, resets);
            }
            Some(DescriptorKind::Listener(listener)) => self.close_listener(listener),
            Some(DescriptorKind::Event(_)) => {
                self.wakers.retain(|(at, _)| *at != fd.raw() as u32);
            }
            _ => {}
        }
    }

    /// Frees a descriptor that was not returned to the program.
    pub(super) fn discard(&mut self, fd: Fd) {
        self.at(fd).expect("the descriptor is open").kind = None;
    }

    pub(crate) fn reset_on_close(&mut self, fd: Fd) {
        if self.kind(fd, "setsockopt").is_ok() {
            self.at(fd).expect("the descriptor is open").resets = true;
        }
    }

    pub(crate) fn all_open(&self) -> impl Iterator<Item = &DescriptorKind> {
        self.descriptors.iter().filter_map(|descriptor| descriptor.kind.as_ref())
    }

    /// Returns the accepted connections and their descriptors.
    pub(crate) fn accepted(&self) -> impl Iterator<Item = (Fd, End)> {
        let open = self.descriptors.iter().enumerate();
        open.filter_map(|(at, descriptor)| match descriptor.kind {
            Some(DescriptorKind::Connected(end)) if end.side == 1 => Some((fd_at(at), end)),
            _ => None,
        })
    }

    /// Describes the open descriptors, except wakers and the files of abandoned operations.
    pub(crate) fn open_descriptors(&self) -> Vec<String> {
        let open = self.descriptors.iter().enumerate();
        open.filter_map(|(at, d)| Some((at, d.kind.as_ref()?)))
            .filter(|(at, kind)| match kind {
                DescriptorKind::Event(_) => false,
                DescriptorKind::File(..) => !self.abandoned_files.contains(&fd_at(*at)),
                _ => true,
            })
            .map(|(at, kind)| format!("fd {} ({kind:?})", FIRST + at as u32))
            .collect()
    }

    /// Notes that a descriptor has changed.
    pub(crate) fn mark_changed(&mut self, fd: u32) {
        let descriptor = &mut self.descriptors[(fd - FIRST) as usize];
        if !descriptor.is_changed {
            descriptor.is_changed = true;
            self.changed_fds.push(fd);
        }
    }

    /// Takes a random changed descriptor.
    pub(crate) fn take_changed(&mut self) -> Option<Fd> {
        if self.changed_fds.is_empty() {
            return None;
        }
        let at = self.rng.below(self.changed_fds.len());
        let fd = self.changed_fds.swap_remove(at);
        self.descriptors[(fd - FIRST) as usize].is_changed = false;
        Some(number::fd(fd as i32))
    }

    pub(crate) fn add_waker(&mut self, fd: Fd, counter: Arc<AtomicU64>) {
        self.wakers.push((fd.raw() as u32, counter));
    }

    pub(crate) fn set_worker(&mut self, worker: Waker) {
        self.worker = Some(worker);
    }

    /// Marks the wakers that were woken as changed.
    pub(crate) fn check_wakers(&mut self) {
        for at in 0..self.wakers.len() {
            if self.wakers[at].1.load(Ordering::Acquire) > 0 {
                self.mark_changed(self.wakers[at].0);
            }
        }
    }
}
