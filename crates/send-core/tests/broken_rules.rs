//! A handler that violates a rule aborts the process with a message. Each case runs in its own
//! process: this program with the case as an argument.

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::sync::Mutex;
use std::{panic, thread};

use send_core::EventType;
use send_core::control_block::{ControlBlock, Events, Group, Groups, Handler, Trigger};

struct Panics;

// SAFETY: not safe; this is the violation under test.
unsafe impl Handler for Panics {
    fn handle(&mut self, _: &mut Events<'_>) {
        panic!("a bug");
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
fn interrupt(handler: impl Handler) {
    let mut send = ControlBlock::define(4).unwrap();
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    let poster = send.poster();
    thread::spawn(move || poster.post(1)).join().unwrap().unwrap();
}

/// A lock that a panic hook takes while it writes, such as that of standard error.
static OUTPUT: Mutex<()> = Mutex::new(());

/// Interrupts a thread that holds a lock which the panic hook takes. If the hook ran, the handler
/// would deadlock; the alarm then ends this program.
fn interrupt_with_a_lock() {
    panic::set_hook(Box::new(|_| drop(OUTPUT.lock())));
    let _held = OUTPUT.lock();
    // SAFETY: passes a number.
    unsafe { libc::alarm(10) };
    interrupt(Panics);
}

const RULES: [(&str, &str); 4] = [
    ("panics", "a handler must not panic"),
    ("panics-with-a-lock", "a handler must not panic"),
    ("idles", "a level-triggered handler must take at least one event"),
    ("recurses", "a handler must not use more than its stack"),
];

fn main() {
    // Ignores the arguments that cargo passes to its own tests.
    let case = env::args().nth(1).filter(|word| RULES.iter().any(|(name, _)| name == word));
    match case.as_deref() {
        Some("panics") => return interrupt(Panics),
        Some("panics-with-a-lock") => return interrupt_with_a_lock(),
        Some("idles") => return interrupt(TakesNothing),
        Some(_) => return interrupt(Recurses),
        None => {}
    }
    for (name, rule) in RULES {
        let output = Command::new(env::current_exe().unwrap()).arg(name).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{name} did not abort: {stderr}");
        let expected = format!("send-core: rule violated: {rule}\n");
        assert!(stderr.contains(&expected), "{name}: {stderr}");
        println!("{name}: aborts with the rule");
    }
}
