//! Handlers that move to the application, and back.
#![cfg(feature = "sandbox")]

use crate::sandbox::{handler, handler_with, module, run};

use ash_sandbox::model::{Governor, Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::{Outcome, Pass, Policy};

#[test]
fn handler_that_aborts_too_often_moves_to_the_application_and_back() {
    // Aborts unless the message is empty, in each of the ways in which a message goes to the application.
    for abort in ["(i32.const 0)", "(i32.const -1)", "(call $abort) (unreachable)"] {
        let body =
            format!("(if (result i32) (local.get $length) (then {abort}) (else (i32.const 1)))");
        let mut handler = handler(&body);
        let workload = Workload { handler_us: 200.0, ..Workload::default() };
        handler.set_governor(Some(Governor::new(Machine::ULTRIX, workload).with_window(4)));
        let governed = Outcome::Passed(Pass::Governed(Strategy::Interrupt));
        for _ in 0..4 {
            assert_ne!(run(&mut handler, b"message"), governed);
        }
        for _ in 0..4 * Governor::FIRST_TRIAL {
            assert_eq!(run(&mut handler, b""), governed);
        }
        assert_eq!(handler.counters().skipped, 64);
        for _ in 0..20 {
            assert_eq!(run(&mut handler, b""), Outcome::Handled);
        }
        // A process that does not wait for messages handles them late: one success of eight is worth the
        // aborts. For one that waits, it is not.
        let governor = handler.governor_mut().unwrap().clone().with_window(8);
        handler.set_governor(Some(governor));
        handler.governor_mut().unwrap().set_state(ProcessState::BusySuspended);
        for message in 0..80 {
            let message: &[u8] = if message % 8 == 0 { b"" } else { b"message" };
            assert_ne!(run(&mut handler, message), governed);
        }
        handler.governor_mut().unwrap().set_state(ProcessState::Blocked);
        assert_eq!(run(&mut handler, b""), governed);
        handler.set_governor(None);
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
    }
}

#[test]
fn governor_took_rejected_replies_for_successes() {
    let policy = Policy::default().with(|p| p.max_aborts = u32::MAX);
    let mut handler = handler_with(policy, &module("(i32.const 1)"));
    let workload = Workload { handler_us: 200.0, ..Workload::default() };
    handler.set_governor(Some(Governor::new(Machine::ULTRIX, workload).with_window(4)));
    for _ in 0..4 {
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        handler.reject();
    }
    let governed = Outcome::Passed(Pass::Governed(Strategy::Interrupt));
    assert_eq!(run(&mut handler, b""), governed);
}

#[test]
fn governor_took_upcalls_that_a_handler_starts_for_aborts() {
    let mut handler = handler("(drop (call $upcall)) (i32.const 0)");
    let workload = Workload { handler_us: 200.0, ..Workload::default() };
    let governor = Governor::new(Machine::ULTRIX, workload).with_upcalls().with_window(4);
    handler.set_governor(Some(governor));
    for _ in 0..20 {
        assert_eq!(run(&mut handler, b""), Outcome::Passed(Pass::Upcall));
    }
    assert_eq!(handler.governor_mut().unwrap().workload().ash_abort_probability, 0.0);
}

#[test]
fn handler_ran_though_its_governor_preferred_upcalls() {
    let mut handler = handler("(i32.const 1)");
    // A sandbox so slow that two switches of processes take less time.
    let workload = Workload { handler_us: 2000.0, sandboxing_factor: 3.0, ..Workload::default() };
    let governor = Governor::new(Machine::ULTRIX, workload).with_upcalls().with_window(4);
    handler.set_governor(Some(governor));
    let governed = Outcome::Passed(Pass::Governed(Strategy::Upcall));
    for interval in [1, 2] {
        for _ in 0..4 * Governor::FIRST_TRIAL * interval {
            assert_eq!(run(&mut handler, b""), governed);
        }
        // A trial: the workload may have changed.
        for _ in 0..4 {
            assert_eq!(run(&mut handler, b""), Outcome::Handled);
        }
    }
}
