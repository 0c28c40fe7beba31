//! epoll over eventfds, one for each event.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;

use super::method::Method;

/// An epoll instance and its descriptors.
struct Watched {
    queue: OwnedFd,
    sources: Vec<OwnedFd>,
    events: Vec<Event>,
    handled: AtomicU64,
}

impl Watched {
    fn new(max_events: u32, trigger: EventFlags) -> io::Result<Self> {
        let queue = epoll::create(CreateFlags::CLOEXEC)?;
        let mut sources = Vec::new();
        for i in 0..max_events {
            let source = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            epoll::add(&queue, &source, EventData::new_u64(i.into()), EventFlags::IN | trigger)?;
            sources.push(source);
        }
        let events = Vec::with_capacity(max_events as usize);
        Ok(Watched { queue, sources, events, handled: AtomicU64::new(0) })
    }

    fn queue(&self, events: u32) -> io::Result<()> {
        for source in &self.sources[..events as usize] {
            rustix::io::write(source, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        self.events.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.queue, room, Some(&now))?;
        Ok(())
    }

    fn count(&self) {
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }
}

/// Edge-triggered notification.
pub(super) struct EdgeTriggered(Watched);

impl EdgeTriggered {
    pub(super) fn new(max_events: u32) -> io::Result<Self> {
        Watched::new(max_events, EventFlags::ET).map(EdgeTriggered)
    }
}

impl Method for EdgeTriggered {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn queue(&mut self, events: u32) -> io::Result<()> {
        self.0.queue(events)
    }

    fn handle(&mut self, events: u32) -> io::Result<()> {
        if events > 0 {
            self.0.wait()?;
            self.0.events.iter().for_each(|_| self.0.count());
        }
        Ok(())
    }

    fn handled(&self) -> u64 {
        self.0.handled()
    }
}

/// Level-triggered notification; a read consumes the event.
pub(super) struct LevelTriggered(Watched);

impl LevelTriggered {
    pub(super) fn new(max_events: u32) -> io::Result<Self> {
        Watched::new(max_events, EventFlags::empty()).map(LevelTriggered)
    }
}

impl Method for LevelTriggered {
    fn name(&self) -> &'static str {
        "epoll, read"
    }

    fn queue(&mut self, events: u32) -> io::Result<()> {
        self.0.queue(events)
    }

    fn handle(&mut self, events: u32) -> io::Result<()> {
        if events > 0 {
            self.0.wait()?;
            for event in &self.0.events {
                let source = &self.0.sources[{ event.data }.u64() as usize];
                rustix::io::read(source, &mut [0; 8])?;
                self.0.count();
            }
        }
        Ok(())
    }

    fn handled(&self) -> u64 {
        self.0.handled()
    }
}
