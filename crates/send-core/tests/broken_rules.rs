//! A handler that violates a rule aborts the process with a message. Each case runs in its own
//! process: this program with the case as an argument.

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::sync::Mutex;
use std::{panic, thread};

use send_core::control_block::{ControlBlock, Events, Group, Groups, Handler, Trigger};
use send_core::{EventType, Poster};

struct Panics;

// SAFETY: not safe; this is the violation under test.
unsafe impl Handler for Panics {
    fn handle(&mut self, _: &mut Events<'_>) {
        panic!("a bug");
    }
}

/// Panics at the second event, which the code that reopens the gate delivers in the signal handler.
struct PanicsLater(Poster);

// SAFETY: not safe; this is the violation under test.
unsafe impl Handler for PanicsLater {
    fn handle(&mut self, events: &mut Events<'_>) {
        while let Some(event) = events.next() {
            assert_eq!(event.value, 1, "a bug");
            self.0.post(2).unwrap();
            events.set_notify(Groups::ALL);
        }
    }
}

struct TakesNothing;

// SAFETY: it does nothing.
unsafe impl Handler for TakesNothing {
    fn handle(&mut self, _: &mut Events<'_>) {}
}

struct Recurses;

fn recurse(n: u64) -> u64 {
    if n == u64::MAX { 0 } else { black_box(recurse(black_box(n + 1))) + n }
}

// SAFETY: not safe; this is the violation under test.
unsafe impl Handler for Recurses {
    fn handle(&mut self, _: &mut Events<'_>) {
        black_box(recurse(0));
    }
}

/// Interrupts this thread, which has this handler.
fn interrupt<H: Handler>(handler: impl FnOnce(Poster) -> H) {
    let mut send = ControlBlock::define(4).unwrap();
    let poster = send.poster();
    send.set_handler(handler(poster.clone()), Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    thread::spawn(move || poster.post(1)).join().unwrap().unwrap();
}

/// A lock that a panic hook takes while it writes, such as that of standard error.
static OUTPUT: Mutex<()> = Mutex::new(());

/// Interrupts a thread that holds a lock which the panic hook takes. If the hook ran, the handler
/// would deadlock; the alarm, which arrives at the first thread, then ends this program.
fn interrupt_with_a_lock<H: Handler>(handler: fn(Poster) -> H) {
    panic::set_hook(Box::new(|_| drop(OUTPUT.lock())));
    // SAFETY: passes a number.
    unsafe { libc::alarm(10) };
    let interrupted = thread::spawn(move || {
        let _held = OUTPUT.lock();
        interrupt(handler);
    });
    interrupted.join().unwrap();
}

/// Calls this handler without an interruption.
fn poll(handler: impl Handler) {
    let mut send = ControlBlock::define(4).unwrap();
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    send.set_deliver(Groups::ALL);
    send.poster().post(1).unwrap();
    send.handle_events();
}

type Rule = (&'static str, fn(), &'static str);

const RULES: [Rule; 6] = [
    ("panics", || interrupt(|_| Panics), "a handler must not panic"),
    ("panics-with-a-lock", || interrupt_with_a_lock(|_| Panics), "a handler must not panic"),
    ("panics-later", || interrupt_with_a_lock(PanicsLater), "a handler must not panic"),
    ("panics-when-polled", || poll(Panics), "a handler must not panic"),
    (
        "idles",
        || interrupt(|_| TakesNothing),
        "a level-triggered handler must take at least one event",
    ),
    ("recurses", || interrupt(|_| Recurses), "a handler must not use more than its stack"),
];

fn main() {
    // Ignores the arguments that cargo passes to its own tests.
    let selected = env::args().nth(1);
    if let Some((_, case, _)) = RULES.iter().find(|(name, ..)| selected.as_deref() == Some(name)) {
        return case();
    }
    for (name, _, rule) in RULES {
        let output = Command::new(env::current_exe().unwrap()).arg(name).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{name} did not abort: {stderr}");
        let expected = format!("send-core: rule violated: {rule}\n");
        assert!(stderr.contains(&expected), "{name}: {stderr}");
        println!("{name}: aborts with the rule");
    }
}
