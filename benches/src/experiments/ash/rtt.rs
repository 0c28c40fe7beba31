//! Round trips of a remote increment, by the place that answers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::super::{Context, DEFAULT, Experiment};
use super::client;
use super::datagrams::{DatagramPlacement, DatagramServer};
use super::request::Request;
use super::scheduling::{Busy, Policy, owner_policy};
use super::server::{Placement, Server, Setup};
use super::{Contestant, bars, handle_landed, handler, ns_each, ratio, run_rounds};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-rtt",
    title: "round trips of a remote increment: handlers, upcalls, and the application",
    source: "ASH, section 6.3.2, table 6-6",
    own_network: false,
    run,
};

const DISPATCH: &str = "Dispatch of a handler";

/// Busy threads on the server's core.
const BUSY: usize = 4;
/// The time for which the share of the busy processes is measured.
const SHARE_FOR: Duration = Duration::from_millis(200);
/// The time of a busy poll.
const BUSY_POLL: Duration = Duration::from_micros(100);
/// Invocations in a round, for the dispatch.
const INVOCATIONS: usize = 20_000;
/// Rounds, and round trips in each.
const QUICK: (usize, usize) = (7, 100);
const FULL: (usize, usize) = (31, 1_000);
/// Round trips of a new server that are not counted.
const WARM_UP: usize = 20;

/// The columns of table 6-6, with both kinds of upcalls.
const PLACEMENTS: [(&str, Placement); 5] = [
    ("unsafe", Placement::Unsafe),
    ("sandboxed", Placement::Ash),
    ("upcall in process", Placement::Upcall),
    ("upcall", Placement::UpcallProcess),
    ("user level", Placement::User),
];

/// The state of the application, as in the rows of table 6-6.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It polls, and is the only program on its core.
    Polling,
    /// It sleeps, and other programs have the core.
    Suspended,
    /// It sleeps, and the core is idle.
    Idle,
}

const STATES: [(&str, State); 3] =
    [("polling", State::Polling), ("suspended", State::Suspended), ("idle", State::Idle)];

const NOTES: [&str; 9] = [
    "Server on core 0, client on core 1, one message of 8 bytes at a time over loopback TCP; the client polls its \
     socket, so that the wake-up of its core, the same for all, is not in the times. `user level`: the \
     server hands the message to a thread of the application on the same core, and sends its reply. \
     `upcall`: another process, through a shared ring (5.6). `unsafe`: a native handler of the same dispatch as \
     the sandboxed one. The server's thread has what an `OwnerThread` has: the policy, the handlers in front of the \
     application, and a mailbox for its replies. The application gets its messages by a channel of the experiment's own.",
    "Policies, fixed in advance: in the thesis, handlers and upcalls run in the interrupt and so before all \
     processes, and the application is a process. So the thread of the ring, which has the handlers, is \
     real-time (SCHED_FIFO, priority 1), as is the process for upcalls; the application's thread is normal. \
     `same_policy_user_over_ash` has both threads normal.",
    "`polling`: the application looks for messages all the time, and the thread of the ring preempts it. \
     `suspended`: it sleeps, and four busy processes share the core. `idle`: it sleeps, and so does the core, \
     whose wake-up hides most of the difference.",
    "What all placements have in common limits the ratios: the interrupt that the client's core sends to the server's, \
     and TCP on both sides. A handler adds little to that, and the application two switches and a wake-up.",
    "`busy poll`: for 100 us after each message that the handler has handled, the thread of the ring looks for the next \
     one instead of sleeping, so that no interrupt is sent for it. The client sends at once, so the thread never \
     sleeps, and the busy processes get nothing but what `Share of the core for the busy processes` says. That is why it \
     is not the default, and why `suspended_user_over_ash` is without it.",
    "UDP: `sandboxed` is a `DatagramThread`, with the policy of the thread of the ring; `user level` is a normal thread \
     that sleeps in recvfrom(2) and replies by sendto(2), without a ring and without another thread. It needs fewer steps \
     than the handler, whose replies go through the ring: `udp_*_user_over_ash` below 1 means that the handler is the slower \
     one. What the handler gains is an application that need not wait in recvfrom.",
    "A round's value is the median of its round trips, with a new server.",
    "Dispatch: a handler that does nothing is called and returns, with the accounting of its budget; the \
     message lies in its memory.",
    "Table 6-1, the round trip of a raw message by an application in the kernel and by a user of it, is not reproduced, \
     for TCP or for UDP: this kernel runs no handler of a program but BPF. Without that half, the user's raw messages would have \
     nothing to be compared with; the user level over UDP is the nearest to them.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[CLIENT_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let extent = if cx.quick { QUICK } else { FULL };
    let mut handler = handler("")?;
    let mut dispatch = [Contestant::new("sandboxed", move || {
        let now = Instant::now();
        Ok(ns_each(INVOCATIONS, || {
            black_box(handle_landed(&mut handler, black_box(8), now));
        }))
    })];
    run_rounds(cx, extent.0, &mut dispatch)?;
    bars(&mut outcome, DISPATCH, "ns", "measured", &dispatch);
    outcome.ratio("dispatch_ns", "ash", dispatch[0].values.clone());
    let owner = owner_policy(&mut outcome);
    table(cx, extent, owner, &mut outcome)?;
    same_policy(cx, extent, &mut outcome)?;
    busy_poll(cx, extent, owner, &mut outcome)?;
    datagrams(cx, extent, owner, &mut outcome)?;
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Returns a contestant that starts a server in each round.
fn contestant(name: String, setup: Setup, busy: usize, round_trips: usize) -> Contestant<'static> {
    Contestant::new(name, move || {
        let mut server = Server::with(setup)?;
        let _busy = Busy::start(busy)?;
        server.round_trips(WARM_UP, Duration::ZERO)?;
        Ok(median(&server.round_trips(round_trips, Duration::ZERO)?))
    })
}

/// Measures table 6-6.
fn table(
    cx: &Context,
    (rounds, count): (usize, usize),
    owner: Policy,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    for (name, state) in STATES {
        let mut all = Vec::new();
        for (placement_name, placement) in PLACEMENTS {
            let polls = state == State::Polling;
            let setup = Setup::new(placement, owner, polls);
            let busy = if state == State::Suspended { BUSY } else { 0 };
            all.push(contestant(placement_name.to_owned(), setup, busy, count));
        }
        run_rounds(cx, rounds, &mut all)?;
        let figure = format!("Round trip of a remote increment, {name}");
        bars(outcome, &figure, "us", "measured", &all);
        for (ratio_name, above, below) in [
            ("user_over_ash", "user level", "sandboxed"),
            ("upcall_over_ash", "upcall", "sandboxed"),
            ("user_over_upcall", "user level", "upcall"),
            ("sandboxed_over_unsafe", "sandboxed", "unsafe"),
        ] {
            // The goals have these two names.
            let full = match (ratio_name, state) {
                ("upcall_over_ash", State::Suspended) => "upcall_over_ash".to_owned(),
                _ => format!("{name}_{ratio_name}"),
            };
            ratio(outcome, &full, DEFAULT, &all, (above, below));
        }
        let paper = match state {
            State::Polling => "147 unsafe, 152 sandboxed, 191 upcall, 182 user level",
            _ => "147 unsafe, 151 sandboxed, 193 upcall, 247 user level (1.63 times)",
        };
        if state != State::Idle {
            let text = format!("ASH, table 6-6, two DECstations on AN2, in us: {paper}.");
            outcome.paper(&figure, &text);
        }
    }
    Ok(())
}

/// Measures the application and the handler with one policy for all threads.
fn same_policy(
    cx: &Context,
    (rounds, count): (usize, usize),
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut all = Vec::new();
    for (name, placement) in [("sandboxed", Placement::Ash), ("user level", Placement::User)] {
        let setup = Setup::new(placement, Policy::Normal, false);
        all.push(contestant(name.to_owned(), setup, BUSY, count));
    }
    run_rounds(cx, rounds, &mut all)?;
    let figure = "Round trip of a remote increment, suspended, all threads normal";
    bars(outcome, figure, "us", "measured", &all);
    ratio(outcome, "same_policy_user_over_ash", DEFAULT, &all, ("user level", "sandboxed"));
    Ok(())
}

/// Measures a server that looks for more messages after one that its handler has handled, and what it leaves to the busy
/// processes.
fn busy_poll(
    cx: &Context,
    (rounds, count): (usize, usize),
    owner: Policy,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let setups = [
        ("sandboxed", Setup::new(Placement::Ash, owner, false)),
        (
            "sandboxed, busy poll",
            Setup { busy_poll: BUSY_POLL, ..Setup::new(Placement::Ash, owner, false) },
        ),
        ("user level", Setup::new(Placement::User, owner, false)),
    ];
    let mut times = setups.map(|(name, setup)| contestant(name.to_owned(), setup, BUSY, count));
    run_rounds(cx, rounds, &mut times)?;
    bars(
        outcome,
        "Round trip of a remote increment, suspended, with a busy poll",
        "us",
        "measured",
        &times,
    );
    let both = ("user level", "sandboxed, busy poll");
    ratio(outcome, "suspended_user_over_ash_busy_poll", DEFAULT, &times, both);
    let mut shares = setups.map(|(name, setup)| {
        Contestant::new(name, move || {
            let mut server = Server::with(setup)?;
            let busy = Busy::start(BUSY)?;
            server.round_trips(WARM_UP, Duration::ZERO)?;
            let (begin, before) = (Instant::now(), busy.cpu()?);
            while begin.elapsed() < SHARE_FOR {
                server.round_trips(count, Duration::ZERO)?;
            }
            let cpu = busy.cpu()?.saturating_sub(before);
            Ok(100.0 * cpu.as_secs_f64() / begin.elapsed().as_secs_f64())
        })
    });
    run_rounds(cx, rounds, &mut shares)?;
    bars(outcome, "Share of the core for the busy processes", "%", "measured", &shares);
    Ok(())
}

/// Measures the handler and the application over UDP, with the policies of table 6-6.
fn datagrams(
    cx: &Context,
    (rounds, count): (usize, usize),
    owner: Policy,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let placements = [
        ("sandboxed", DatagramPlacement::Ash, owner),
        ("user level", DatagramPlacement::User, Policy::Normal),
    ];
    for (name, busy) in [("suspended", BUSY), ("idle", 0)] {
        let mut all = placements.map(|(placement_name, placement, policy)| {
            Contestant::new(placement_name, move || {
                let server = DatagramServer::start(placement, policy)?;
                let _busy = Busy::start(busy)?;
                let increment = Request::default();
                client::round_trips(server.socket(), increment, WARM_UP, Duration::ZERO)?;
                let times = client::round_trips(server.socket(), increment, count, Duration::ZERO)?;
                Ok(median(&times))
            })
        });
        run_rounds(cx, rounds, &mut all)?;
        let figure = format!("Round trip of a remote increment over UDP, {name}");
        bars(outcome, &figure, "us", "measured", &all);
        let ratio_name = format!("udp_{name}_user_over_ash");
        ratio(outcome, &ratio_name, DEFAULT, &all, ("user level", "sandboxed"));
    }
    Ok(())
}

/// Returns the median of sorted values.
pub(super) fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
