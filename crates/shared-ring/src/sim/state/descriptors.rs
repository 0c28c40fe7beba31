//! What the program has open.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::SimState;
use crate::sim::fault::Fault;
use crate::sim::stream::End;
use crate::{Fd, Waker};

/// Descriptors count from here, so that none is one of this process's.
const FIRST: u32 = 1024;

/// What a descriptor stands for.
#[derive(Debug)]
pub(in crate::sim) enum DescriptorKind {
    Listener(u32),
    /// A socket that is not connected.
    Fresh,
    /// A socket that will be connected or not; which attempt it is.
    Connecting(u64, SocketAddr),
    /// A connect has failed, and nobody was told yet.
    Refused(Errno),
    Connected(End),
    /// A file or a directory.
    File(u32),
    Event(Arc<AtomicU64>),
}

#[derive(Debug, Default)]
pub(super) struct Descriptor {
    pub(super) what: Option<DescriptorKind>,
    /// It stands among those of which something has changed.
    pub(super) changed_fds: bool,
    pub(super) resets: bool,
}

impl SimState {
    pub(in crate::sim) fn open(&mut self, what: DescriptorKind) -> Result<Fd, Errno> {
        let free = self.descriptors.iter().position(|d| d.what.is_none());
        let at = free.unwrap_or(self.descriptors.len());
        if at >= self.most_descriptors {
            self.rng.count(Fault::TableFull);
            return Err(Errno::MFILE);
        }
        if free.is_none() {
            self.descriptors.push(Descriptor::default());
        }
        let changed_fds = self.descriptors[at].changed_fds;
        self.descriptors[at] = Descriptor { what: Some(what), changed_fds, resets: false };
        Ok(Fd::from_raw((FIRST + at as u32) as i32))
    }

    pub(super) fn at(&mut self, fd: Fd) -> Option<&mut Descriptor> {
        let at = (fd.raw() as u32).checked_sub(FIRST)?;
        self.descriptors.get_mut(at as usize).filter(|d| d.what.is_some())
    }

    /// What a descriptor stands for. That it is open is a rule.
    pub(in crate::sim) fn what(
        &mut self,
        fd: Fd,
        doing: &str,
    ) -> Result<&mut DescriptorKind, Errno> {
        if self.at(fd).is_none() {
            self.fail(format!("{doing}: {fd:?} is not open"));
            return Err(Errno::BADF);
        }
        Ok(self.at(fd).and_then(|d| d.what.as_mut()).expect("it was just seen to be open"))
    }

    /// The connection that a descriptor stands for.
    pub(in crate::sim) fn connected(&mut self, fd: Fd, doing: &str) -> Result<End, Errno> {
        match self.what(fd, doing)? {
            DescriptorKind::Connected(end) => Ok(*end),
            DescriptorKind::Refused(_) | DescriptorKind::Fresh | DescriptorKind::Connecting(..) => {
                Err(Errno::NOTCONN)
            }
            other => {
                let other = format!("{doing}: {fd:?} is {other:?}");
                self.fail(other);
                Err(Errno::NOTSOCK)
            }
        }
    }

    pub(in crate::sim) fn file(&mut self, fd: Fd, doing: &str) -> Result<u32, Errno> {
        match self.what(fd, doing)? {
            DescriptorKind::File(node) => Ok(*node),
            other => {
                let other = format!("{doing}: {fd:?} is {other:?}");
                self.fail(other);
                Err(Errno::BADF)
            }
        }
    }

    pub(in crate::sim) fn close(&mut self, fd: Fd) {
        let Some(descriptor) = self.at(fd) else {
            return self.fail(format!("{fd:?} is closed, but it is not open"));
        };
        let resets = descriptor.resets;
        let what = descriptor.what.take();
        if self.is_used_by_stuck(fd) {
            self.fail(format!("{fd:?} is closed while file work that hangs uses it"));
        }
        self.note(|| format!("close {fd:?}"));
        self.usage.told(fd);
        match what {
            Some(DescriptorKind::Connected(end)) => {
                self.usage.last_closed = Some(self.of(end).address[usize::from(end.other().side)]);
                self.close_end(end, resets);
            }
            Some(DescriptorKind::Listener(listener)) => self.close_listener(listener),
            Some(DescriptorKind::Event(_)) => {
                self.wakers.retain(|(at, _)| *at != fd.raw() as u32);
            }
            _ => {}
        }
    }

    /// Takes back a descriptor that nobody was told of.
    pub(super) fn forget(&mut self, fd: Fd) {
        self.at(fd).expect("it was just opened").what = None;
    }

    pub(in crate::sim) fn reset_on_close(&mut self, fd: Fd) {
        if self.what(fd, "setsockopt").is_ok() {
            self.at(fd).expect("it was just seen to be open").resets = true;
        }
    }

    /// What is open.
    pub(in crate::sim) fn all_open(&self) -> impl Iterator<Item = &DescriptorKind> {
        self.descriptors.iter().filter_map(|descriptor| descriptor.what.as_ref())
    }

    /// Connections that came to the program, and their descriptors.
    pub(in crate::sim) fn accepted(&self) -> impl Iterator<Item = (Fd, End)> {
        let open = self.descriptors.iter().enumerate();
        open.filter_map(|(at, descriptor)| match descriptor.what {
            Some(DescriptorKind::Connected(end)) if end.side == 1 => {
                Some((Fd::from_raw((FIRST + at as u32) as i32), end))
            }
            _ => None,
        })
    }

    /// Descriptors that are open, in words; without the files of what hung work has kept from ending.
    pub(in crate::sim) fn open_descriptors(&self) -> Vec<String> {
        let open = self.descriptors.iter().enumerate();
        open.filter_map(|(at, d)| Some((at, d.what.as_ref()?)))
            .filter(|(at, what)| match what {
                DescriptorKind::Event(_) => false,
                DescriptorKind::File(_) => {
                    !self.left.contains(&Fd::from_raw((FIRST + *at as u32) as i32))
                }
                _ => true,
            })
            .map(|(at, what)| format!("fd {} ({what:?})", FIRST + at as u32))
            .collect()
    }

    /// Something has changed about a descriptor.
    pub(in crate::sim) fn mark_changed(&mut self, fd: u32) {
        let descriptor = &mut self.descriptors[(fd - FIRST) as usize];
        if !descriptor.changed_fds {
            descriptor.changed_fds = true;
            self.changed_fds.push(fd);
        }
    }

    /// Takes one of the descriptors of which something has changed.
    pub(in crate::sim) fn take_changed(&mut self) -> Option<Fd> {
        if self.changed_fds.is_empty() {
            return None;
        }
        let at = self.rng.below(self.changed_fds.len());
        let fd = self.changed_fds.swap_remove(at);
        self.descriptors[(fd - FIRST) as usize].changed_fds = false;
        Some(Fd::from_raw(fd as i32))
    }

    pub(in crate::sim) fn add_waker(&mut self, fd: Fd, counter: Arc<AtomicU64>) {
        self.wakers.push((fd.raw() as u32, counter));
    }

    pub(in crate::sim) fn set_worker(&mut self, worker: Waker) {
        self.worker = Some(worker);
    }

    /// Stirs the wakers that were rung.
    pub(in crate::sim) fn check_wakers(&mut self) {
        for at in 0..self.wakers.len() {
            if self.wakers[at].1.load(Ordering::Acquire) > 0 {
                self.mark_changed(self.wakers[at].0);
            }
        }
    }
}
