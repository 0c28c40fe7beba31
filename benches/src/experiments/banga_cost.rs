//! The cost of the calls that report events.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use shared_ring::Fd;
use shared_ring::interest::{Event, Interests, Mask};
use shared_ring::poller::{DevPoll, Epoll, Poll, Poller, Readiness, Select};

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin, raise_descriptors};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "banga-cost",
    title: "the cost of an event, by mechanism, with up to 10,000 idle descriptors; of get_next_event \
                against the size of its array; of declare_interest",
    source: "Banga, Mogul and Druschel, section 7.2, figures 6 and 7",
    own_network: false,
    run,
};

/// Numbers of idle descriptors.
const COLD: [usize; 4] = [0, 500, 2_000, 10_000];
const MAX_COLD: usize = 10_000;
/// For figure 6: idle descriptors, and the largest array.
const COLD_OF_ARRAYS: usize = 750;
const LARGEST_ARRAY: usize = 10;
/// Descriptors that become ready before each call.
const HOT: usize = 10;
/// For figure 7: descriptors declared one after the other.
const NEW: usize = 32;
const MECHANISMS: [&str; 5] = ["select", "poll", "devpoll", "epoll", "interest"];
/// Calls in a round, and calls that scan all descriptors.
const CALLS: usize = 200;
const FEW_CALLS: usize = 20;
const ROUNDS: usize = 61;
const QUICK_ROUNDS: usize = 15;

const COLD_FIGURE: &str = "Cost of an event against idle descriptors, 10 at a time";
const ARRAY_FIGURE: &str =
    "Cost of get_next_event against the size of its array, 750 idle descriptors";
const DECLARE_FIGURE: &str = "Cost of declare_interest against idle descriptors";

const NOTES: [&str; 3] = [
    "In one process: before each call one byte is written to each of ten pairs of local sockets, and \
     after the call they are drained. Only the call counts, in CPU time of the thread \
     (clock_gettime(2)), minus the cost of reading the clock. Idle descriptors are UDP sockets without \
     traffic. select, poll, devpoll and epoll are the pollers of the mechanisms of these names.",
    "A round covers all mechanisms and numbers in a shuffled order, and takes the median of several \
     calls; ratios are taken within a round.",
    "An event of declare_interest starts the registration of a descriptor (epoll_ctl(2)). Revoking \
     interest makes no system call; the registration remains until the descriptor is closed.",
];

/// Polls once without blocking. Returns the number of events.
type Wait = Box<dyn FnMut() -> Result<usize, Failure>>;

/// Pairs of sockets that become ready.
struct Hot(Vec<(UnixStream, UnixStream)>);

impl Hot {
    fn new(n: usize) -> Result<Self, Failure> {
        let pair = |_| {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            Ok((ours, theirs))
        };
        (0..n).map(pair).collect::<std::io::Result<_>>().map(Hot).map_err(Failure::from)
    }

    /// Makes every socket of ours readable.
    fn make_ready(&mut self) -> Result<(), Failure> {
        for (_, theirs) in &mut self.0 {
            theirs.write_all(b"x")?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        for (ours, _) in &mut self.0 {
            ours.read_exact(&mut [0])?;
        }
        Ok(())
    }

    fn descriptors(&self) -> impl Iterator<Item = &UnixStream> {
        self.0.iter().map(|(ours, _)| ours)
    }
}

/// One mechanism with a number of idle descriptors.
struct MechanismCost {
    mechanism: &'static str,
    cold: usize,
    /// Dropped before the sockets that it refers to.
    wait: Wait,
    hot: Hot,
    calls: usize,
    /// Nanoseconds per event, one value per round.
    costs: Vec<f64>,
}

impl MechanismCost {
    fn round(&mut self, clock: f64) -> Result<(), Failure> {
        let mut costs = Vec::with_capacity(self.calls);
        for _ in 0..self.calls {
            self.hot.make_ready()?;
            let before = cpu_ns();
            let n = (self.wait)()?;
            let cost = cpu_ns() - before;
            self.hot.drain()?;
            if n != HOT {
                let MechanismCost { mechanism, cold, .. } = self;
                return Err(Failure::Run(format!("{mechanism}, {cold} idle: {n} of {HOT} events")));
            }
            costs.push((cost - clock) / HOT as f64);
        }
        self.costs.extend(spread(&costs).map(|costs| costs.median));
        Ok(())
    }
}

/// Returns the CPU time of this thread.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the cost of reading that clock.
fn clock() -> f64 {
    let between = |_| {
        let before = cpu_ns();
        cpu_ns() - before
    };
    let all: Vec<_> = (0..10_000).map(between).collect();
    spread(&all).map_or(0.0, |all| all.median)
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    raise_descriptors();
    pin(&[SERVER_CORE])?;
    let others = OtherPrograms::watch()?;
    // Busy descriptors get low numbers, so the idle ones determine the length of bit maps.
    let mut hot = Vec::new();
    for mechanism in MECHANISMS {
        for cold in COLD {
            hot.push((mechanism, cold, Hot::new(HOT)?));
        }
    }
    let mut busy = Hot::new(LARGEST_ARRAY)?;
    let idle = idle()?;
    let subjects = hot.into_iter().map(|(mechanism, cold, hot)| {
        let scans = cold > 0 && ["select", "poll"].contains(&mechanism);
        let calls = if scans { FEW_CALLS } else { CALLS };
        let wait = wait(mechanism, &hot, &idle[..cold])?;
        Ok(MechanismCost { mechanism, cold, hot, wait, calls, costs: Vec::new() })
    });
    let mut subjects = subjects.collect::<Result<Vec<_>, Failure>>()?;
    let mut arrays = Arrays::new(&busy, &idle[..COLD_OF_ARRAYS])?;
    let mut declarations = Declarations::new(&idle)?;
    let (clock, rounds) = (clock(), if cx.quick { QUICK_ROUNDS } else { ROUNDS });
    cx.progress.set_length((rounds * subjects.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(subjects.len()) {
            let subject = &mut subjects[i];
            cx.progress.set_message(format!("{}: {} idle", subject.mechanism, subject.cold));
            subject.round(clock)?;
            cx.progress.inc(1);
        }
        arrays.round(&mut busy, clock)?;
        declarations.round(clock)?;
    }
    goals(&subjects, &mut outcome);
    arrays.report(&mut outcome);
    declarations.report(&mut outcome);
    findings(&mut outcome);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn idle() -> Result<Vec<UdpSocket>, Failure> {
    let socket = |_| UdpSocket::bind("127.0.0.1:0");
    (0..MAX_COLD).map(socket).collect::<std::io::Result<_>>().map_err(|error| {
        Failure::new(
            format_args!("cannot open {MAX_COLD} idle descriptors; raise the limit (ulimit -n)"),
            error,
        )
    })
}

/// Returns the wait of a mechanism that watches all the descriptors.
fn wait(mechanism: &str, hot: &Hot, idle: &[UdpSocket]) -> Result<Wait, Failure> {
    match mechanism {
        "select" => polled(Select::default(), hot, idle),
        "poll" => polled(Poll::default(), hot, idle),
        "devpoll" => polled(DevPoll::new()?, hot, idle),
        "epoll" => polled(Epoll::new()?, hot, idle),
        _ => {
            let mut interests = interested(hot.descriptors(), idle)?;
            let mut array = [Event::default(); HOT];
            Ok(Box::new(move || interests.get_next_event(&mut array, NOW).map_err(refused)))
        }
    }
}

const NOW: Option<Duration> = Some(Duration::ZERO);

fn refused(error: shared_ring::interest::Error) -> Failure {
    Failure::Run(error.to_string())
}

fn polled(
    mut poller: impl Poller + 'static,
    hot: &Hot,
    idle: &[UdpSocket],
) -> Result<Wait, Failure> {
    let busy = hot.descriptors().map(|s| s.as_fd());
    for fd in busy.chain(idle.iter().map(|s| s.as_fd())) {
        // SAFETY: the poller belongs to a `MechanismCost`, and is dropped before the sockets.
        poller.set(unsafe { Fd::lent(fd) }, Readiness::READ)?;
    }
    let mut out = Vec::with_capacity(HOT);
    Ok(Box::new(move || {
        out.clear();
        poller.wait(NOW, &mut out)?;
        Ok(black_box(&out).len())
    }))
}

fn interested<'a>(
    hot: impl Iterator<Item = &'a UnixStream>,
    idle: &[UdpSocket],
) -> Result<Interests, Failure> {
    let mut interests = Interests::new().map_err(refused)?;
    for socket in hot {
        interests.declare_interest(socket, Mask::READ, None).map_err(refused)?;
    }
    for socket in idle {
        interests.declare_interest(socket, Mask::READ, None).map_err(refused)?;
    }
    Ok(interests)
}

/// Figure 6: one call for each size of the array, with at least as many events pending.
struct Arrays {
    interests: Interests,
    /// By size, nanoseconds per call, one value per round.
    costs: [Vec<f64>; LARGEST_ARRAY],
}

impl Arrays {
    fn new(busy: &Hot, idle: &[UdpSocket]) -> Result<Self, Failure> {
        let interests = interested(busy.descriptors(), idle)?;
        Ok(Arrays { interests, costs: Default::default() })
    }

    fn round(&mut self, busy: &mut Hot, clock: f64) -> Result<(), Failure> {
        let mut events = [Event::default(); LARGEST_ARRAY];
        for size in 1..=LARGEST_ARRAY {
            let mut costs = Vec::with_capacity(CALLS);
            for _ in 0..CALLS {
                busy.make_ready()?;
                let before = cpu_ns();
                let call = self.interests.get_next_event(&mut events[..size], NOW);
                costs.push(cpu_ns() - before - clock);
                let mut n = call.map_err(refused)?;
                while n < LARGEST_ARRAY {
                    n += self.interests.get_next_event(&mut events, NOW).map_err(refused)?;
                }
                busy.drain()?;
            }
            self.costs[size - 1].extend(spread(&costs).map(|costs| costs.median));
        }
        Ok(())
    }

    fn report(&self, outcome: &mut Outcome) {
        for (at, costs) in self.costs.iter().enumerate() {
            if let Some(y) = spread(costs) {
                outcome.point(ARRAY_FIGURE, "ns", "interest", X::Number((at + 1) as f64), y);
            }
        }
        let [one, .., all] = &self.costs;
        outcome.ratio("array_10_over_1", "interest", ratios(all, one));
    }
}

/// Figure 7: declares and revokes interest in new descriptors while others are declared.
struct Declarations(Vec<(usize, Interests, [Vec<f64>; 2])>);

const DECLARED: [&str; 2] = ["declare", "revoke"];

impl Declarations {
    fn new(idle: &[UdpSocket]) -> Result<Self, Failure> {
        let each = |cold| {
            let interests = interested([].into_iter(), &idle[..cold])?;
            Ok((cold, interests, Default::default()))
        };
        COLD.into_iter().map(each).collect::<Result<_, Failure>>().map(Declarations)
    }

    fn round(&mut self, clock: f64) -> Result<(), Failure> {
        for (_, interests, costs) in &mut self.0 {
            let mut each = [(); 2].map(|()| Vec::with_capacity(FEW_CALLS));
            for _ in 0..FEW_CALLS {
                let new = (0..NEW).map(|_| UdpSocket::bind("127.0.0.1:0"));
                let new = new.collect::<std::io::Result<Vec<_>>>()?;
                for (mask, costs) in [Mask::READ, Mask::empty()].into_iter().zip(&mut each) {
                    let before = cpu_ns();
                    for fd in &new {
                        interests.declare_interest(fd, mask, None).map_err(refused)?;
                    }
                    costs.push((cpu_ns() - before - clock) / NEW as f64);
                }
            }
            for (costs, each) in costs.iter_mut().zip(&each) {
                costs.extend(spread(each).map(|each| each.median));
            }
        }
        Ok(())
    }

    fn report(&self, outcome: &mut Outcome) {
        for (cold, _, costs) in &self.0 {
            for (name, costs) in DECLARED.iter().zip(costs) {
                if let Some(y) = spread(costs) {
                    outcome.point(DECLARE_FIGURE, "ns", name, X::Number(*cold as f64), y);
                }
            }
        }
    }
}

fn goals(subjects: &[MechanismCost], outcome: &mut Outcome) {
    for subject in subjects {
        if let Some(y) = spread(&subject.costs) {
            let x = X::Number(subject.cold as f64);
            outcome.point(COLD_FIGURE, "ns", subject.mechanism, x, y);
        }
    }
    let of = |mechanism: &str, cold| {
        let subject =
            subjects.iter().find(|subject| subject.mechanism == mechanism && subject.cold == cold);
        subject.map_or(&[][..], |subject| &subject.costs)
    };
    for mechanism in MECHANISMS {
        let each = ratios(of(mechanism, MAX_COLD), of(mechanism, 0));
        outcome.ratio(format!("{mechanism}_cold_10000_over_0"), mechanism, each);
    }
    let each = ratios(of("select", 2_000), of("interest", 2_000));
    outcome.ratio("select_over_interest_2000", "interest", each);
}

fn findings(outcome: &mut Outcome) {
    let times = MECHANISMS.iter().filter_map(|mechanism| {
        let ratio = outcome.median(&format!("{mechanism}_cold_10000_over_0"))?;
        Some(format!("{mechanism} {ratio:.2}"))
    });
    let times: Vec<_> = times.collect();
    outcome.shows.push(format!(
        "Cost of an event with 10,000 idle descriptors over the cost without: {}.",
        times.join(", ")
    ));
    outcome.paper(
        COLD_FIGURE,
        "Banga et al., section 7.2: between 0 and 2,000 idle connections the cost of get_next_event() \
         varies by 0.005 % at most. The cost of a call of select() is not given.",
    );
    outcome.paper(
        ARRAY_FIGURE,
        "Banga et al., figure 6 and section 8.2, on a 500 MHz Alpha: 8.4 us for a call that returns \
                 one event, rising linearly up to arrays of 10.",
    );
    outcome.paper(
        DECLARE_FIGURE,
        "Banga et al., figure 7: declaring costs more than revoking; both are nearly constant between 0 \
                 and 2,000 idle connections.",
    );
}
