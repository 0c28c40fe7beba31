//! The event control block (SEND 3.2): state shared by the application and the delivering side.
//!
//! Each field is written by one side only. The delivering side writes `head`, `num_queued` and the
//! buffer. It keeps its own copies, so that a corrupted block cannot mislead it. The application
//! writes the other fields. Every field is one word, so that no reader sees a partial write.

use shared_ring::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};

use crate::{Event, EventType, Group, Groups};

/// The event control block, `struct event_control` (figure 3.1).
///
/// | offset | field | written by | meaning |
/// |---|---|---|---|
/// | 0 | `notify` | the application | groups whose events interrupt it |
/// | 4 | `deliver` | the application | groups whose events may be put into the buffer |
/// | 8 | `head` | the delivering side | slot of the next event to be put |
/// | 12 | `tail` | the application | slot of the oldest event not taken |
/// | 16 | `num_queued` | the delivering side | number of undelivered events |
/// | 24 | `handler` | the application | the handler; null disables preemption |
/// | 32 | `stack` | the application | top of the handler's stack; null for the current one |
/// | 40 | `regs` | the delivering side | the interrupted registers, while a handler runs |
/// | 48 | `eventbuf` | the delivering side | the ring buffer (in the thesis it follows the block) |
#[derive(Debug)]
#[repr(C)]
pub struct EventControl {
    notify: AtomicU32,
    deliver: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    num_queued: AtomicU32,
    handler: AtomicPtr<()>,
    stack: AtomicPtr<()>,
    regs: AtomicPtr<()>,
    eventbuf: Box<[UnsafeCell<Event>]>,
}

impl EventControl {
    /// Creates a block for `events` events, with both masks and the handler unset. One slot stays
    /// free to distinguish a full buffer from an empty one.
    pub(crate) fn new(events: u32) -> Self {
        let slot = || UnsafeCell::new(Event::new(EventType::OVERFLOW));
        EventControl {
            notify: AtomicU32::new(0),
            deliver: AtomicU32::new(0),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            num_queued: AtomicU32::new(0),
            handler: AtomicPtr::new(std::ptr::null_mut()),
            stack: AtomicPtr::new(std::ptr::null_mut()),
            regs: AtomicPtr::new(std::ptr::null_mut()),
            eventbuf: (0..=events).map(|_| slot()).collect(),
        }
    }

    fn slots(&self) -> u32 {
        self.eventbuf.len() as u32
    }

    /// Returns the groups whose events interrupt the application. They override `deliver`.
    pub fn notify(&self) -> Groups {
        Groups::from_bits(self.notify.load(Ordering::Relaxed))
    }

    pub(crate) fn set_notify(&self, groups: Groups) {
        self.notify.store(groups.bits(), Ordering::Relaxed);
    }

    /// Returns the groups whose events may be delivered.
    pub fn deliver(&self) -> Groups {
        Groups::from_bits(self.deliver.load(Ordering::Relaxed))
    }

    pub(crate) fn set_deliver(&self, groups: Groups) {
        self.deliver.store(groups.bits(), Ordering::Relaxed);
    }

    /// Returns whether the buffer holds an event: `head != tail`.
    pub fn has_events(&self) -> bool {
        self.head.load(Ordering::Acquire) != self.tail.load(Ordering::Relaxed)
    }

    /// Returns the number of events in the buffer.
    pub(crate) fn held(&self) -> u32 {
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        if head >= tail { head - tail } else { head + self.slots() - tail }
    }

    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Returns the number of undelivered events at the last poll, without later posts.
    pub fn num_queued(&self) -> u32 {
        self.num_queued.load(Ordering::Relaxed)
    }

    pub(crate) fn set_queued(&self, events: u32) {
        self.num_queued.store(events, Ordering::Relaxed);
    }

    pub(crate) fn set_handler(&self, handler: *mut ()) {
        self.handler.store(handler, Ordering::Relaxed);
    }

    pub(crate) fn has_handler(&self) -> bool {
        !self.handler.load(Ordering::Relaxed).is_null()
    }

    pub(crate) fn set_stack(&self, top: *mut ()) {
        self.stack.store(top, Ordering::Relaxed);
    }

    pub(crate) fn set_regs(&self, regs: *mut ()) {
        self.regs.store(regs, Ordering::Relaxed);
    }

    pub(crate) fn regs(&self) -> *mut () {
        self.regs.load(Ordering::Relaxed)
    }

    /// Takes the oldest event from the buffer, as the application's side of the ring.
    ///
    /// # Safety
    /// One caller at a time: the application while it cannot be interrupted, or the handler.
    pub(crate) unsafe fn take(&self) -> Option<Event> {
        let tail = self.tail.load(Ordering::Relaxed);
        if self.head.load(Ordering::Acquire) == tail {
            return None;
        }
        // SAFETY: the delivering side wrote this slot before it moved `head` past it, and does not
        // write to it again until `tail` has moved.
        let event = self.eventbuf[tail as usize].with(|slot| unsafe { *slot });
        self.tail.store(after(tail, self.slots()), Ordering::Release);
        Some(event)
    }
}

/// Returns the slot after `at`.
fn after(at: u32, slots: u32) -> u32 {
    if at + 1 == slots { 0 } else { at + 1 }
}

/// The delivering side of a block, with its own copy of `head`.
#[derive(Debug, Default)]
pub(crate) struct Deliverer {
    head: u32,
}

impl Deliverer {
    /// Returns whether the buffer is full.
    pub(crate) fn is_full(&self, block: &EventControl) -> bool {
        // An invalid tail never equals `head`, and harms only its owner.
        after(self.head, block.slots()) == block.tail.load(Ordering::Acquire)
    }

    /// Puts an event into the buffer. Returns false if it is full.
    ///
    /// # Safety
    /// A block has one deliverer, and one caller at a time.
    pub(crate) unsafe fn put(&mut self, block: &EventControl, event: Event, group: Group) -> bool {
        if self.is_full(block) {
            return false;
        }
        let next = after(self.head, block.slots());
        let event = Event { group: group.number(), ..event };
        // SAFETY: the slot is outside `tail..head`, so it is not read, and there is no other
        // writer.
        block.eventbuf[self.head as usize].with_mut(|slot| unsafe { *slot = event });
        self.head = next;
        block.head.store(next, Ordering::Release);
        true
    }
}

// SAFETY: only the slots are not `Sync`; `take` and `put` document which code may access them when.
unsafe impl Sync for EventControl {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::mem::offset_of;

    #[test]
    fn layout_matches_the_documentation() {
        assert_eq!(offset_of!(EventControl, notify), 0);
        assert_eq!(offset_of!(EventControl, deliver), 4);
        assert_eq!(offset_of!(EventControl, head), 8);
        assert_eq!(offset_of!(EventControl, tail), 12);
        assert_eq!(offset_of!(EventControl, num_queued), 16);
        assert_eq!(offset_of!(EventControl, handler), 24);
        assert_eq!(offset_of!(EventControl, stack), 32);
        assert_eq!(offset_of!(EventControl, regs), 40);
        assert_eq!(offset_of!(EventControl, eventbuf), 48);
        assert_eq!(size_of::<EventControl>(), 64);
    }

    #[test]
    fn new_block_delivers_and_notifies_nothing() {
        let block = EventControl::new(1);
        assert!(block.notify().is_empty() && block.deliver().is_empty());
        assert!(!block.has_handler() && !block.has_events());
    }

    #[test]
    fn what_the_application_sets_stands_in_the_block() {
        let block = EventControl::new(1);
        let (mut code, mut top) = (0, 0);
        block.set_handler((&raw mut code).cast());
        block.set_stack((&raw mut top).cast());
        assert_eq!(block.handler.load(Ordering::Relaxed), (&raw mut code).cast());
        assert_eq!(block.stack.load(Ordering::Relaxed), (&raw mut top).cast());
    }

    proptest! {
        #[test]
        fn behaves_like_a_bounded_queue(events in 1..9u32, steps in prop::collection::vec(any::<bool>(), 0..200)) {
            let (block, mut deliverer) = (EventControl::new(events), Deliverer::default());
            let mut model = VecDeque::new();
            for (step, put) in steps.into_iter().enumerate() {
                if put {
                    let event = Event { value: step as u64, ..Event::new(EventType::USER) };
                    // SAFETY: one deliverer, one thread.
                    let taken = unsafe { deliverer.put(&block, event, Group::FIRST) };
                    prop_assert_eq!(taken, model.len() < events as usize);
                    if taken {
                        model.push_back(step as u64);
                    }
                } else {
                    // SAFETY: one thread.
                    prop_assert_eq!(unsafe { block.take() }.map(|event| event.value), model.pop_front());
                }
                prop_assert_eq!(block.has_events(), !model.is_empty());
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// The delivering side puts more events than there is room for while the application takes
    /// them. Those taken are those put, in order and complete.
    #[test]
    fn concurrent_put_and_take_transfer_complete_events() {
        loom::model(|| {
            let block = Arc::new(EventControl::new(2));
            let delivering = {
                let block = block.clone();
                thread::spawn(move || {
                    let mut deliverer = Deliverer::default();
                    let mut put = 0;
                    for value in 1..=3 {
                        let event =
                            Event { value, state: value as u32, ..Event::new(EventType::USER) };
                        // SAFETY: one deliverer.
                        if !unsafe { deliverer.put(&block, event, Group::FIRST) } {
                            break;
                        }
                        put = value;
                    }
                    put
                })
            };
            let mut taken = 0;
            for _ in 0..2 {
                // SAFETY: one application.
                if let Some(event) = unsafe { block.take() } {
                    taken += 1;
                    assert_eq!((event.value, u64::from(event.state)), (taken, taken));
                }
            }
            let put = delivering.join().unwrap();
            // SAFETY: one application.
            while let Some(event) = unsafe { block.take() } {
                taken += 1;
                assert_eq!(event.value, taken);
            }
            assert_eq!(put, taken);
        });
    }
}
