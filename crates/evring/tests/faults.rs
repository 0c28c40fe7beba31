//! Two parts of a process handle SIGSEGV: the sandbox turns faults of its handlers into traps, and send-core
//! reports an overflow of its signal stack. Each works, whichever was first. Each case runs in its own process,
//! because SIGSEGV's action belongs to the process: this program with the case as an argument.

use std::env;
use std::hint::black_box;
use std::process::{Command, Output};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use ash_sandbox::sandbox::{Abort, Handler, Outcome, Pass, Policy, Sandboxer};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use send_core::EventType;
use send_core::control_block::{self, ControlBlock, Events, Group, Groups, Trigger};

/// Stores behind the memory, to the message, or recurses without end, as the first byte of the message says.
const HOSTILE: &str = r#"(module
    (memory (export "memory") 1 1)
    (func $recurse (param i32) (result i32)
        (i32.add (call $recurse (i32.add (local.get 0) (i32.const 1))) (local.get 0)))
    (func (export "ash_handle") (param $offset i32) (param i32 i64 i32) (result i32)
        (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0))
            (then (i32.store (i32.const 0x7fffff00) (i32.const 1))))
        (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 1))
            (then (i32.store (local.get $offset) (i32.const 1))))
        (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 2))
            (then (drop (call $recurse (i32.const 0)))))
        (i32.const 1)))"#;

fn sandbox() -> Handler {
    let policy = Policy::default().with(|p| {
        // A trap is charged as all of them, so a second has those of many.
        p.max_operations = 1 << 30;
        p.operations_per_second = 1 << 40;
    });
    let wasm = wat::parse_str(HOSTILE).unwrap();
    Sandboxer::new(policy).unwrap().load(&wasm).unwrap().instantiate(1).unwrap()
}

/// Counts its calls, or overflows its stack.
struct OnEvent {
    calls: Arc<AtomicU32>,
    overflows: bool,
}

fn recurse(n: u64) -> u64 {
    if n == u64::MAX { 0 } else { black_box(recurse(black_box(n + 1))) + n }
}

// SAFETY: it changes an atomic number; that it may recurse is the violation under test.
unsafe impl control_block::Handler for OnEvent {
    fn handle(&mut self, events: &mut Events<'_>) {
        while events.next().is_some() {}
        if self.overflows {
            black_box(recurse(0));
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

fn send(overflows: bool) -> (ControlBlock, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let mut send = ControlBlock::define(4).unwrap();
    send.set_handler(OnEvent { calls: Arc::clone(&calls), overflows }, Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    (send, calls)
}

/// Interrupts this thread.
fn interrupt(send: &ControlBlock) {
    let poster = send.poster();
    thread::spawn(move || poster.post(1)).join().unwrap().unwrap();
}

fn traps(handler: &mut Handler) {
    for (case, abort) in [(0, Abort::Memory), (1, Abort::Memory), (2, Abort::Stack)] {
        let outcome = handler.handle_copy(&[case], 1, Instant::now());
        assert_eq!(outcome, Outcome::Passed(Pass::Involuntary(abort)));
        handler.enable();
        assert_eq!(handler.handle_copy(&[9], 1, Instant::now()), Outcome::Handled);
    }
}

fn run(order: &str, case: &str) {
    let overflows = case == "overflow";
    let (mut handler, (send, calls)) = if order == "sandbox-first" {
        let mut handler = sandbox();
        traps(&mut handler);
        (handler, send(overflows))
    } else {
        let send = send(overflows);
        (sandbox(), send)
    };
    traps(&mut handler);
    if case != "overflow" {
        for call in 1..=3 {
            interrupt(&send);
            assert_eq!(calls.load(Ordering::Relaxed), call);
            traps(&mut handler);
        }
        // Handlers of another thread trap, too.
        thread::spawn(|| traps(&mut sandbox())).join().unwrap();
    }
    match case {
        "overflow" => interrupt(&send),
        "fault" => {
            let flags = MapFlags::PRIVATE;
            // SAFETY: a new mapping; reading it causes the intended fault.
            unsafe {
                let page =
                    mmap_anonymous(ptr::null_mut(), 4096, ProtFlags::empty(), flags).unwrap();
                black_box(page.cast::<u8>().read_volatile());
            }
        }
        _ => {}
    }
    println!("{case}: goes on");
}

fn main() {
    // Ignores the arguments that cargo passes to its own tests.
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [order, case] = &arguments[..]
        && order.ends_with("-first")
    {
        return run(order, case);
    }
    for order in ["sandbox-first", "send-first"] {
        let run = |case| -> Output {
            Command::new(env::current_exe().unwrap()).args([order, case]).output().unwrap()
        };
        let works = run("works");
        assert!(works.status.success(), "{order}: {works:?}");
        let overflow = run("overflow");
        let stderr = String::from_utf8_lossy(&overflow.stderr);
        let rule = "send-core: rule violated: a handler must not use more than its stack\n";
        assert!(!overflow.status.success(), "{order}: {overflow:?}");
        // The sandbox uses the stack of send-core, and passes on the faults that are not its own.
        assert!(stderr.contains(rule), "{order}: {overflow:?}");
        let fault = run("fault");
        assert!(!fault.status.success(), "{order}: {fault:?}");
        println!("{order}: traps, overflows and faults go where they belong");
    }
}
