//! Load made on a simulated machine, in its own time: what is counted must be what happened.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use load_generator::{
    Arrivals, Ask, Failed, Generator, Moment, Pace, Plan, Session, Slow, Stopped, Tally,
};
use shared_ring::sim::{
    self, Faults, Machine, Net, Next, Peer, PeerConn, ReceiveResult, SimEngine, SimKernel,
    WatchingAllocator,
};
use shared_ring::{EngineConfig, Kernel, Mode, UringConfig};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<std::alloc::System> = WatchingAllocator(std::alloc::System);

const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 80);

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// It replies with so many bytes.
    Good(usize),
    /// It replies in chunks.
    Chunked,
    /// It says that it is overloaded.
    Overloaded,
    /// It says that there is nothing.
    Missing,
    /// It ends the connection within the body.
    Short,
    /// It ends the connection at once.
    Close,
    /// It says what is no reply.
    Nonsense,
    /// It says nothing.
    Silent,
    /// It says nothing between these two moments, and then replies to all.
    Pauses(Duration, Duration),
    /// It replies to one request, then rests so long.
    Slow(Duration),
    /// It replies three times.
    Chatty,
    /// Any of them.
    Any,
}

struct Server {
    manner: Manner,
    rests_until: Duration,
    lines: Vec<Talk>,
    asked: Rc<Cell<u64>>,
}

struct Talk {
    line: PeerConn,
    heard: Vec<u8>,
    out: Vec<u8>,
    ends: bool,
}

impl Server {
    /// Adds a reply to the request `head`; whether the connection ends behind it.
    fn reply(manner: Manner, net: &mut Net<'_>, head: &str, out: &mut Vec<u8>) -> bool {
        let last = head.contains("Connection: close");
        match manner {
            Manner::Good(n) => {
                out.extend(format!("HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n").bytes());
                out.resize(out.len() + n, b'x');
                last
            }
            Manner::Chunked => {
                out.extend(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
                out.extend(b"0\r\n\r\n");
                last
            }
            Manner::Overloaded => {
                out.extend(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
                last
            }
            Manner::Missing => {
                out.extend(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
                last
            }
            Manner::Chatty => {
                (0..2).fold(last, |_, _| Self::reply(Manner::Good(5), net, head, out))
            }
            Manner::Short => {
                out.extend(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
                true
            }
            Manner::Close => true,
            Manner::Nonsense => {
                out.extend(b"220 mail.example ESMTP\r\n");
                false
            }
            Manner::Silent => false,
            Manner::Pauses(..) | Manner::Slow(_) => Self::reply(Manner::Good(5), net, head, out),
            Manner::Any => {
                let all = [
                    Manner::Good(5),
                    Manner::Good(3_000),
                    Manner::Chunked,
                    Manner::Overloaded,
                    Manner::Missing,
                    Manner::Short,
                    Manner::Close,
                    Manner::Nonsense,
                    Manner::Silent,
                    Manner::Chatty,
                ];
                let n = if net.once_in(4) { net.below(all.len()) } else { net.below(3) };
                Self::reply(all[n], net, head, out)
            }
        }
    }
}

impl Talk {
    /// Goes on; whether anything moved, and whether it is over.
    fn go_on(&mut self, net: &mut Net<'_>, manner: Manner, asked: &Cell<u64>) -> (bool, bool) {
        let mut moved = false;
        if !self.ends {
            match net.receive(&self.line, 10_000, &mut self.heard) {
                ReceiveResult::Bytes(_) => moved = true,
                ReceiveResult::Nothing => {}
                ReceiveResult::End | ReceiveResult::Reset => return (true, true),
            }
            while let Some(end) = self.heard.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8(self.heard.drain(..end + 4).collect()).unwrap();
                asked.set(asked.get() + 1);
                self.ends = Server::reply(manner, net, &head, &mut self.out);
                if self.ends {
                    break;
                }
            }
        }
        let sent = net.send(&self.line, &self.out);
        self.out.drain(..sent);
        let over = self.ends && self.out.is_empty() || net.is_broken(&self.line);
        (moved || sent > 0, over)
    }
}

impl Peer for Server {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if let Manner::Pauses(from, to) = self.manner
            && net.now() >= from
            && net.now() < to
        {
            return Next::After(to - net.now());
        }
        if net.now() < self.rests_until {
            return Next::After(self.rests_until - net.now());
        }
        let mut moved = false;
        while let Some(line) = net.accept() {
            // Newest first.
            self.lines.insert(0, Talk { line, heard: Vec::new(), out: Vec::new(), ends: false });
            moved = true;
        }
        let mut at = 0;
        while at < self.lines.len() {
            let before = self.asked.get();
            let (more, over) = self.lines[at].go_on(net, self.manner, &self.asked);
            moved |= more;
            if over {
                net.close(self.lines.remove(at).line);
            } else {
                at += 1;
            }
            if let Manner::Slow(rest) = self.manner
                && self.asked.get() > before
            {
                self.rests_until = net.now() + rest;
                return Next::After(rest);
            }
        }
        if moved { Next::Ready } else { Next::Wait }
    }

    fn waits_for(&self) -> String {
        format!("a server with {} connections", self.lines.len())
    }
}

/// What came of a run, and how many requests the server saw.
struct Ran {
    tally: Tally,
    asked: u64,
    verdict: sim::RunReport,
}

fn machine(seed: u64, faults: Faults) -> Machine {
    Machine::new(&sim::Plan { seed, faults, steps: 20_000, ..sim::Plan::default() })
}

fn on<K: Kernel>(kernel: K, plan: &Plan) -> Tally {
    let generator = Generator::new(kernel, plan).unwrap();
    let mut slices = 0;
    let mut moments = Vec::new();
    let tally = generator.run(|moment, tally| {
        match moment {
            Moment::Turn => {}
            Moment::Slice => {
                slices += 1;
                assert_eq!(tally.series.len(), slices);
            }
            _ => moments.push(moment),
        }
        true
    });
    let tally = tally.unwrap();
    if tally.stopped.is_none() {
        assert_eq!(moments, [Moment::Counts, Moment::CountsNoMore]);
    }
    tally
}

fn run(seed: u64, faults: Faults, manner: Option<Manner>, plan: &Plan) -> Ran {
    let machine = machine(seed, faults);
    let asked = Rc::new(Cell::new(0));
    if let Some(manner) = manner {
        machine.add_server(
            SERVER,
            Server { manner, rests_until: Duration::ZERO, lines: Vec::new(), asked: asked.clone() },
        );
    }
    let operations = Generator::<SimKernel>::operations(plan);
    let tally = if seed % 3 == 2 {
        let config = EngineConfig { operations, buffers: 16, buffer_size: 512 };
        on(SimEngine::<false>::new(&machine, &config).unwrap(), plan)
    } else {
        let mode = [Mode::Deferred, Mode::Cooperative][seed as usize % 3];
        let config = UringConfig { mode, operations, buffers: 16, buffer_size: 512 };
        on(SimKernel::new(&machine, &config).unwrap(), plan)
    };
    Ran { tally, asked: asked.get(), verdict: machine.verdict() }
}

fn session(requests: usize, rounds: u64) -> Session {
    Session { requests: vec![Ask::new("GET", "/", "h", ""); requests], rounds }
}

fn plan(pace: Pace, session: Session) -> Plan {
    Plan {
        to: SERVER,
        sessions: vec![session],
        pace,
        warm_up: Duration::from_millis(100),
        duration: Duration::from_secs(1),
        interval: Duration::from_millis(100),
        deadline: Duration::from_millis(500),
        max_open: 200,
        keep_log: true,
        ..Plan::default()
    }
}

fn sessions(rate: f64) -> Pace {
    Pace::Sessions { rate, arrivals: Arrivals::Fixed }
}

/// What must hold of every run.
fn check(ran: &Ran, plan: &Plan) {
    let tally = &ran.tally;
    assert_eq!(ran.verdict.failure, None);
    assert_eq!(tally.due, tally.replies + tally.failures.total());
    assert_eq!(tally.response.len(), tally.replies);
    let good = tally.log.iter().filter(|log| log.failed.is_none());
    let sum = |of: fn(&load_generator::Slice) -> u64| tally.series.iter().map(of).sum::<u64>();
    assert_eq!(good.clone().count() as u64, sum(|slice| slice.replies));
    assert_eq!(tally.log.len() as u64, sum(|s| s.replies + s.failures.total()));
    assert!(good.clone().all(|log| log.end <= plan.deadline && log.connect.is_some()));
    assert!(tally.series.iter().all(|slice| slice.open <= plan.max_open));
}

const NONE: Faults = Faults::NONE;

#[test]
fn in_a_closed_loop_every_request_is_answered() {
    for (seed, requests, rounds) in [(0, 1, 1), (1, 1, Session::FOREVER), (2, 3, 5)] {
        for depth in [1, 4] {
            let plan = plan(Pace::Closed { clients: 5 }, session(requests, rounds));
            let plan = Plan { depth, duration: Duration::from_millis(100), ..plan };
            let ran = run(seed, NONE, Some(Manner::Good(700)), &plan);
            check(&ran, &plan);
            let tally = &ran.tally;
            assert!(tally.replies > 50 && tally.failures.total() == 0, "{:?}", tally.failures);
            assert_eq!(tally.body_bytes, 700 * tally.replies);
            // At the end some were under way that did not count.
            let ended = tally.log.len() as u64;
            assert!(ended <= ran.asked && ran.asked - ended <= 5 * depth as u64);
            assert_eq!(tally.stopped, None);
            assert_eq!(tally.measured, plan.duration);
        }
    }
}

#[test]
fn in_an_open_loop_as_many_begin_as_are_due() {
    for seed in 0..3 {
        let plan = plan(sessions(200.0), session(2, 1));
        let ran = run(seed, NONE, Some(Manner::Chunked), &plan);
        check(&ran, &plan);
        assert_eq!(ran.tally.connects, 200);
        assert_eq!((ran.tally.due, ran.tally.begun, ran.tally.replies), (400, 400, 400));
        assert_eq!(ran.tally.connect.len(), 200);
        assert_eq!(ran.tally.lag.len(), 200);
    }
}

#[test]
fn requests_that_are_due_wait_for_a_connection() {
    for seed in 0..3 {
        let pace = Pace::Requests { rate: 300.0, arrivals: Arrivals::Poisson, connections: 4 };
        let plan = plan(pace, session(3, 1));
        let ran = run(seed, NONE, Some(Manner::Good(10)), &plan);
        check(&ran, &plan);
        assert!(ran.tally.due > 200 && ran.tally.replies == ran.tally.due);
        assert!(ran.tally.series.iter().all(|slice| slice.open <= 4));
    }
}

#[test]
fn a_pause_of_the_server_is_seen_by_all_that_were_due_meanwhile() {
    for seed in 0..3 {
        let pause = (Duration::from_millis(500), Duration::from_millis(800));
        let plan = plan(sessions(200.0), session(1, 1));
        let plan = Plan { deadline: Duration::from_secs(2), ..plan };
        let ran = run(seed, NONE, Some(Manner::Pauses(pause.0, pause.1)), &plan);
        check(&ran, &plan);
        assert_eq!(ran.tally.failures.total(), 0);
        // Of those due within the pause each waited for its end; a closed loop would have seen it
        // once for each connection.
        let slow = ran.tally.log.iter().filter(|log| log.end > Duration::from_millis(100));
        let slow = slow.count();
        assert!((38..=62).contains(&slow), "{slow}");
    }
}

#[test]
fn a_server_past_saturation_is_not_left_alone_with_its_last_requests() {
    for seed in 0..3 {
        let plan = plan(sessions(250.0), session(1, 1));
        let plan = Plan { warm_up: Duration::from_secs(1), ..plan };
        let ran = run(seed, NONE, Some(Manner::Slow(Duration::from_millis(10))), &plan);
        check(&ran, &plan);
        // It can do 100 in a second. Were the load to end with the second that counts, the server
        // would use the half second of the last clients' patience for 50 more.
        assert!((80..=105).contains(&ran.tally.replies), "{}", ran.tally.replies);
        assert_eq!(ran.tally.due, 250);
    }
}

#[test]
fn every_way_to_fail_has_its_name() {
    let failed = |manner, deadline_ms| {
        (0..3).for_each(|seed| {
            let plan = plan(sessions(50.0), session(1, 1));
            let plan = Plan { deadline: Duration::from_millis(deadline_ms), ..plan };
            let ran = run(seed, NONE, manner, &plan);
            check(&ran, &plan);
            let expected = match manner {
                Some(Manner::Overloaded) => Failed::Unavailable,
                Some(Manner::Missing) => Failed::Status,
                Some(Manner::Short) => Failed::ShortBody,
                Some(Manner::Close) => Failed::Closed,
                Some(Manner::Nonsense) => Failed::Malformed,
                _ => Failed::ReplyTimeout,
            };
            assert_eq!(ran.tally.failures.of(expected), ran.tally.due, "{manner:?}");
            assert_eq!(ran.tally.due, 50);
        });
    };
    failed(Some(Manner::Overloaded), 500);
    failed(Some(Manner::Missing), 500);
    failed(Some(Manner::Short), 500);
    failed(Some(Manner::Close), 500);
    failed(Some(Manner::Nonsense), 500);
    failed(Some(Manner::Silent), 100);
}

#[test]
fn who_can_not_begin_before_the_time_is_over_is_given_up() {
    let pace = Pace::Sessions { rate: 1_000_000.0, arrivals: Arrivals::Fixed };
    let short = Duration::from_millis(20);
    let plan = Plan { duration: short, deadline: short / 20, ..plan(pace, session(1, 1)) };
    let plan = Plan { warm_up: Duration::ZERO, keep_log: false, ..plan };
    let ran = run(0, NONE, Some(Manner::Good(5)), &plan);
    let (tally, late) = (&ran.tally, ran.tally.failures.of(Failed::ReplyTimeout));
    assert!((19_990..=20_000).contains(&tally.due), "{}", tally.due);
    assert_eq!(tally.due, tally.replies + tally.failures.total());
    // Those come to their end at once, without a connection.
    assert!(late > 0 && ran.asked + late <= tally.due, "{late} late, {} asked", ran.asked);
    assert!(!tally.doubts().is_empty());
}

#[test]
fn replies_that_nobody_asked_for_are_malformed() {
    for (seed, depth) in [(0, 1), (1, 3), (2, 1)] {
        let plan = plan(Pace::Closed { clients: 3 }, session(1, Session::FOREVER));
        let plan = Plan { depth, duration: Duration::from_millis(100), ..plan };
        let ran = run(seed, NONE, Some(Manner::Chatty), &plan);
        check(&ran, &plan);
        assert!(ran.tally.failures.of(Failed::Malformed) > 0);
    }
}

#[test]
fn a_body_of_another_length_than_expected_is_short() {
    let requests = vec![Ask::new("GET", "/", "h", "").expecting(Some(9))];
    let plan = plan(sessions(50.0), Session { requests, rounds: 1 });
    let ran = run(0, NONE, Some(Manner::Good(10)), &plan);
    check(&ran, &plan);
    assert_eq!(ran.tally.failures.of(Failed::ShortBody), 50);
}

#[test]
fn a_client_thinks_before_it_asks_on() {
    let think = Duration::from_millis(50);
    let requests = vec![Ask::new("GET", "/", "h", "").after(think); 4];
    let plan = plan(Pace::Closed { clients: 1 }, Session { requests, rounds: 1 });
    let ran = run(0, NONE, Some(Manner::Good(1)), &plan);
    check(&ran, &plan);
    // The first is asked at once; three times 50 ms pass in each session.
    assert!((20..=36).contains(&ran.tally.log.len()), "{}", ran.tally.log.len());
}

#[test]
fn cold_connections_are_open_and_stay_idle() {
    for seed in 0..3 {
        let plan = Plan { cold: 100, ..plan(sessions(50.0), session(1, 1)) };
        let ran = run(seed, NONE, Some(Manner::Good(1)), &plan);
        check(&ran, &plan);
        assert_eq!((ran.tally.cold, ran.tally.cold_lost, ran.tally.replies), (100, 0, 50));
    }
}

#[test]
fn slow_clients_take_their_time_beside_the_load() {
    for seed in 0..3 {
        let slow = Slow { readers: 5, senders: 5, rate: 1_000 };
        let plan = Plan { slow: Some(slow), ..plan(sessions(50.0), session(1, 1)) };
        let ran = run(seed, NONE, Some(Manner::Good(2_000)), &plan);
        check(&ran, &plan);
        assert_eq!(ran.tally.replies, 50);
        // A reply of some 2,000 bytes takes two seconds, a request of 40 bytes 40 milliseconds;
        // there is a little more than one second.
        let (made, replies) = (ran.tally.slow, ran.tally.slow_replies);
        assert!((10..=150).contains(&made) && replies <= made, "{made} {replies}");
        assert!((40..=140).contains(&replies), "{replies} replies");
        assert_eq!(ran.tally.slow_lost, 0);
    }
}

#[test]
fn a_server_that_is_not_there_is_said_to_be_gone() {
    for seed in 0..3 {
        for pace in [sessions(50.0), Pace::Closed { clients: 3 }] {
            let plan = Plan { duration: Duration::from_secs(60), ..plan(pace, session(1, 1)) };
            let ran = run(seed, NONE, None, &plan);
            assert_eq!(ran.verdict.failure, None);
            assert_eq!(ran.tally.stopped, Some(Stopped::Gone));
            // Each client of the closed loop rests a little before it tries again.
            assert!(ran.tally.log.len() <= 400, "{}", ran.tally.log.len());
            assert!(ran.tally.measured < Duration::from_secs(2), "partial results say how long");
        }
        let plan = Plan { cold: 1, ..plan(sessions(50.0), session(1, 1)) };
        let ran = run(seed, NONE, None, &plan);
        assert_eq!(ran.tally.stopped, Some(Stopped::NotOpened(Failed::Refused)));
    }
}

#[test]
fn more_connections_than_there_may_be_are_counted_and_doubted() {
    let plan = Plan { max_open: 3, ..plan(sessions(100.0), session(1, 1)) };
    let ran = run(0, NONE, Some(Manner::Silent), &plan);
    check(&ran, &plan);
    assert!(ran.tally.failures.of(Failed::NoRoom) > 50);
    assert!(!ran.tally.doubts().is_empty());
}

/// Whatever servers and networks do: all that was due comes to one end, and no rule is broken.
#[test]
fn nothing_is_lost_whatever_happens() {
    let seeds = std::env::var("LOAD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let pace = match seed % 4 {
            0 => Pace::Closed { clients: 7 },
            1 => Pace::Requests { rate: 400.0, arrivals: Arrivals::Poisson, connections: 5 },
            _ => Pace::Sessions { rate: 200.0, arrivals: Arrivals::Poisson },
        };
        let rounds = [Session::FOREVER, 1, 2, 3, 1, 2, 3, 1][seed as usize % 8];
        let depth = [1, 1, 3][seed as usize % 3];
        let slow = (seed % 5 == 0).then_some(Slow { readers: 2, senders: 2, rate: 5_000 });
        let plan = Plan { depth, seed, slow, ..plan(pace, session(1 + seed as usize % 4, rounds)) };
        let ran = run(seed, Faults::ALL, Some(Manner::Any), &plan);
        assert_eq!(ran.verdict.failure, None, "seed {seed}");
        match ran.tally.stopped {
            None => check(&ran, &plan),
            // One of the connections to be kept met with a fault.
            Some(Stopped::NotOpened(_)) => {}
            stopped => panic!("seed {seed}: {stopped:?}"),
        }
    }
}
