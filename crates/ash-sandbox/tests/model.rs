//! The model of chapter 7 gives the thesis' own results, and the governor applies it.

use ash_sandbox::model::{Governor, Machine, ProcessState, Strategy, Workload};

use ProcessState::{Blocked, Busy, BusySuspended, Spinning};
use Strategy::{Ash, Interrupt, Poll, Upcall};

/// Aegis as the study (7.5) describes it: with the context switch of section 7.3.
const STUDY: Machine = Machine { context_switch_us: 8.0, ..Machine::AEGIS };

fn workload(handler_us: f64, sandboxing_factor: f64, aborts: f64) -> Workload {
    Workload { handler_us, sandboxing_factor, ..Workload::default() }.aborting(aborts)
}

fn time(machine: &Machine, strategy: Strategy, workload: &Workload, state: ProcessState) -> f64 {
    machine.time_us(strategy, workload, state).expect("a combination of the model")
}

fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 0.005, "{value} instead of {expected}");
}

/// The model as section 7.4 changes it: nothing follows a success, and there is no switch back. Table 7-6
/// shows one digit more than table 7-5, and a sum of interrupt and context switch of 45.4.
fn verification() -> Machine {
    Machine {
        ash_success_us: 0.0,
        ash_switch_us: 0.2,
        upcall_setup_us: 26.18,
        upcall_success_us: 0.0,
        upcall_switch_us: 0.2,
        context_switch_us: 45.4 - Machine::AEGIS.interrupt_setup_us,
        poll_setup_us: 20.88,
        ..Machine::AEGIS
    }
}

#[test]
fn predictions_are_those_of_table_7_6() {
    let (machine, workload) = (verification(), workload(20.0, 1.25, 0.0));
    let of = |strategy, state| time(&machine, strategy, &workload, state);
    close(of(Poll, Spinning), 40.88);
    close(of(Ash, Spinning), 30.4);
    close(of(Upcall, Spinning), 46.18);
    close(of(Interrupt, Blocked), 65.4);
    close(of(Ash, Blocked), 30.8);
    close(of(Upcall, Blocked), 46.58);
    close(of(Poll, Spinning) - of(Ash, Spinning), 10.48);
    close(of(Upcall, Spinning) - of(Poll, Spinning), 5.3);
    close(of(Interrupt, Blocked) - of(Ash, Blocked), 34.6);
    close(of(Interrupt, Blocked) - of(Upcall, Blocked), 18.82);
    close(of(Interrupt, Blocked) - of(Poll, Spinning), 24.52);
}

#[test]
fn every_equation_with_aborts() {
    let machine = Machine::ULTRIX;
    let workload = workload(40.0, 1.5, 0.5);
    let of = |strategy, state| time(&machine, strategy, &workload, state);
    // 7.1 to 7.5 by hand: half of the invocations run an eighth of the handler.
    let ash = 5.4 + 60.0 * 0.5625 + 0.5 * 1.7;
    let upcall = 26.0 + 40.0 * 0.5625 + 0.5 * 4.9;
    let wait = 0.5 * (15_625.0 + 75.0);
    close(of(Poll, Spinning), 70.0);
    close(of(Ash, Spinning), ash + 0.5 * (1.7 + 70.0));
    close(of(Upcall, Spinning), upcall + 0.5 * (4.9 + 70.0));
    close(of(Interrupt, Busy), 70.0);
    close(of(Ash, Busy), ash + 0.5 * (1.7 + 70.0));
    close(of(Upcall, Busy), upcall + 0.5 * (4.9 + 70.0));
    close(of(Poll, Blocked), wait + 70.0);
    close(of(Interrupt, Blocked), 145.0);
    close(of(Ash, Blocked), 0.8 + ash + 0.5 * (1.7 + 145.0));
    close(of(Upcall, Blocked), 0.8 + upcall + 0.5 * (4.9 + 145.0));
    close(of(Interrupt, BusySuspended), wait + 70.0);
    close(of(Ash, BusySuspended), 0.8 + ash + 0.5 * (1.7 + wait + 70.0));
    close(of(Upcall, BusySuspended), 0.8 + upcall + 0.5 * (4.9 + wait + 70.0));
}

#[test]
fn thirteen_of_sixteen_combinations_are_in_the_model() {
    let workload = Workload::default();
    let all = ProcessState::ALL.iter().flat_map(|state| Strategy::ALL.map(|s| (s, *state)));
    let missing: Vec<_> =
        all.filter(|(s, state)| Machine::AEGIS.time_us(*s, &workload, *state).is_none()).collect();
    assert_eq!(missing, [(Interrupt, Spinning), (Poll, Busy), (Poll, BusySuspended)]);
}

#[test]
fn handlers_of_table_7_7_get_the_strategies_of_the_study() {
    for machine in [STUDY, Machine::AEGIS, Machine::ULTRIX] {
        // The remote increment is best as an ASH, and never as an upcall (figures 7-4 and 7-5).
        for state in ProcessState::ALL {
            assert_eq!(machine.recommend(&workload(20.0, 1.25, 0.0), state), Ash);
            for step in 0..=10 {
                let (factor, aborts) = (1.0 + f64::from(step) / 10.0, f64::from(step) / 10.0);
                for workload in [workload(20.0, factor, 0.5), workload(20.0, 1.5, aborts)] {
                    assert_ne!(machine.recommend(&workload, state), Upcall);
                }
            }
        }
        // TCP while the application polls; the time is similar while it is blocked (figure 7-6).
        if machine != Machine::ULTRIX {
            assert_eq!(machine.recommend(&workload(50.0, 1.45, 0.0), Spinning), Poll);
        }
    }
    let tcp = workload(50.0, 1.45, 0.0);
    assert!(
        (time(&STUDY, Ash, &tcp, Blocked) - time(&STUDY, Interrupt, &tcp, Blocked)).abs() < 1.0
    );
    // Small pages of the web server, whatever the probability of aborts (figure 7-8).
    for aborts in [0.0, 0.1, 0.5, 1.0] {
        for state in [Spinning, Busy, Blocked] {
            assert_ne!(STUDY.recommend(&workload(125.0, 1.3, aborts), state), Ash);
        }
    }
    // Under Ultrix, ASHs and upcalls are useful for large pages of a process that is not scheduled
    // (figure 7-11).
    let pages = workload(200.0, 1.1, 0.1);
    assert!(
        [Blocked, BusySuspended].map(|s| Machine::ULTRIX.recommend(&pages, s).may_abort())
            == [true; 2]
    );
    assert_eq!(Machine::ULTRIX.recommend(&workload(200.0, 1.1, 1.0), Blocked), Interrupt);
}

#[test]
fn more_aborts_and_longer_handlers_move_the_limits_as_in_the_study() {
    // The sandboxing factor from which upcalls are better than ASHs rises with the aborts.
    let crossover = |aborts| {
        let better = |factor: &f64| {
            let workload = workload(125.0, *factor, aborts);
            let of = |strategy| time(&Machine::ULTRIX, strategy, &workload, Blocked);
            of(Upcall) < of(Ash)
        };
        (100..=300).map(|percent| f64::from(percent) / 100.0).find(better).expect("there is one")
    };
    assert!(crossover(0.0) < crossover(0.3) && crossover(0.3) < crossover(0.6));
    // Longer handlers leave ASHs a smaller range of factors.
    let range = |handler_us| {
        let is_ash = |p: &i32| {
            STUDY.recommend(&workload(handler_us, f64::from(*p) / 100.0, 0.0), Blocked) == Ash
        };
        (100..=300).take_while(is_ash).count()
    };
    assert!(range(20.0) > range(50.0) && range(50.0) > range(125.0) && range(125.0) > range(200.0));
}

/// Sends messages to a handler that aborts as `aborts` says; returns how many it was invoked for.
fn run(governor: &mut Governor, messages: u32, aborts: impl Fn(u32) -> bool) -> u32 {
    let mut invoked = 0;
    for message in 0..messages {
        if governor.next_strategy().may_abort() {
            invoked += 1;
            governor.record(aborts(message));
        }
    }
    invoked
}

fn governor() -> Governor {
    Governor::new(Machine::ULTRIX, workload(200.0, 1.1, 0.0)).with_window(10)
}

#[test]
fn handler_that_always_aborts_moves_to_the_application_after_one_window() {
    let mut governor = governor();
    assert_eq!(governor.next_strategy(), Ash);
    assert_eq!(run(&mut governor, 100, |_| true), 10);
    assert_eq!(governor.next_strategy(), Interrupt);
    assert_eq!(governor.workload().ash_abort_probability, 1.0);
}

#[test]
fn handler_that_seldom_aborts_stays() {
    let mut governor = governor();
    assert_eq!(run(&mut governor, 1000, |message| message % 10 == 0), 1000);
    assert_eq!(governor.workload().ash_abort_probability, 0.1);
}

#[test]
fn trials_of_an_aborting_handler_become_rare_and_a_success_brings_it_back() {
    let mut governor = governor();
    // One window; then one after 160, 320, 640 and 1280 messages of the application.
    assert_eq!(run(&mut governor, 10 + 170 + 330 + 650, |_| true), 40);
    assert_eq!(run(&mut governor, 1280, |_| true), 0);
    assert_eq!(run(&mut governor, 100, |_| false), 100);
    // After a success, the next trial is as early as at first.
    assert_eq!(run(&mut governor, 10 + 170, |_| true), 20);
}

#[test]
fn trials_are_never_further_apart_than_the_maximum() {
    let mut governor = governor();
    run(&mut governor, 100_000, |_| true);
    let max = 10 * (Governor::MAX_TRIAL + 1);
    assert_eq!(run(&mut governor, max, |_| true), 10);
    assert_eq!(run(&mut governor, max, |_| true), 10);
}

#[test]
fn state_and_strategies_of_the_application_decide() {
    let tcp = workload(50.0, 1.9, 0.0);
    let mut governor = Governor::new(STUDY, tcp);
    governor.set_state(Spinning);
    assert_eq!(governor.next_strategy(), Poll);
    governor.set_state(BusySuspended);
    assert_eq!(governor.next_strategy(), Ash);
    let mut governor = Governor::new(Machine::ULTRIX, tcp).with_upcalls();
    assert_eq!(governor.next_strategy(), Upcall);
}

#[test]
fn measured_machine_is_read_from_the_line_that_the_lab_prints() {
    let line = Machine::ULTRIX.to_string();
    assert!(line.starts_with("t_a,i=5.4 t_a,c=0.4 ") && line.ends_with(" t_q=15625"), "{line}");
    assert_eq!(line.parse(), Ok(Machine::ULTRIX));
    let error = |text: &str| text.parse::<Machine>().unwrap_err().to_string();
    assert!(error("t_q=1").contains("t_a,i is missing"), "{}", error("t_q=1"));
    for word in ["t_x=1", "t_q", "t_q=-1", "t_q=inf", "t_q=NaN", "t_q="] {
        let text = format!("{line} {word}");
        assert!(error(&text).starts_with(&format!("`{word}` is no parameter")), "{}", error(&text));
    }
}
