//! A handler that breaks a rule ends the process, and names the rule. Each does so in a process of its
//! own: this program again, told by an argument which.

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::sync::Mutex;
use std::{panic, thread};

use send_core::{ControlBlock, EventType, Events, Group, Groups, Handler, Trigger};

struct Panics;

// SAFETY: it is not safe, which is what is tested.
unsafe impl Handler for Panics {
    fn handle(&mut self, _: &mut Events<'_>) {
        panic!("a bug");
    }
}

struct Idles;

// SAFETY: it does nothing.
unsafe impl Handler for Idles {
    fn handle(&mut self, _: &mut Events<'_>) {}
}

struct Recurses;

fn recurse(n: u64) -> u64 {
    if n == u64::MAX { 0 } else { black_box(recurse(black_box(n + 1))) + n }
}

// SAFETY: it is not safe, which is what is tested.
unsafe impl Handler for Recurses {
    fn handle(&mut self, _: &mut Events<'_>) {
        black_box(recurse(0));
    }
}

/// Interrupts this thread, which has such a handler.
fn interrupt(handler: impl Handler) {
    let mut send = ControlBlock::define(4).unwrap();
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    let poster = send.poster();
    thread::spawn(move || poster.post(1)).join().unwrap().unwrap();
}

/// What a panic hook holds while it writes, such as the lock of the standard error output.
static OUTPUT: Mutex<()> = Mutex::new(());

/// Interrupts a thread that has a lock which the panic hook wants. Before it was seen to, the handler waited
/// for ever; so does this program then, until it is ended from outside.
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
    ("idles", "a level-triggered handler has to use up at least one event"),
    ("recurses", "a handler must not use more than its stack"),
];

fn main() {
    // What cargo passes on for its own tests is of no interest.
    let which = env::args().nth(1).filter(|word| RULES.iter().any(|(name, _)| name == word));
    match which.as_deref() {
        Some("panics") => return interrupt(Panics),
        Some("panics-with-a-lock") => return interrupt_with_a_lock(),
        Some("idles") => return interrupt(Idles),
        Some(_) => return interrupt(Recurses),
        None => {}
    }
    for (name, rule) in RULES {
        let output = Command::new(env::current_exe().unwrap()).arg(name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{name} should not go on: {said}");
        let expected = format!("send-core: a rule was broken: {rule}\n");
        assert!(said.contains(&expected), "{name}: {said}");
        println!("{name}: ends the process, and names the rule");
    }
}
