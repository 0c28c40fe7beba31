//! Runs load on a simulated machine and compares the statistics with what the server did.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring_sim::{
    Faults, Machine, Net, Next, Peer, PeerConn, ReceiveResult, SimEngine, SimKernel,
    WatchingAllocator,
};
use load_generator::{
    Arrivals, Generator, LoadModel, Plan, Request, RequestError, RunEvent, Session, SlowClients,
    Stats, StopReason,
};
use shared_ring::uring::{Mode, UringConfig};
use shared_ring::{EngineConfig, Kernel};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<std::alloc::System> = WatchingAllocator(std::alloc::System);

const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 80);

/// Behavior of the simulated server on a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behavior {
    /// Replies with this number of body bytes.
    Reply(usize),
    /// Replies with a chunked body.
    Chunked,
    /// Replies with status 503.
    Overloaded,
    /// Replies with status 404.
    NotFound,
    /// Closes the connection within the body.
    ShortBody,
    /// Closes the connection without a reply.
    Close,
    /// Sends bytes that are not an HTTP reply.
    Malformed,
    /// Never replies.
    Silent,
    /// Pauses between these two times, then replies to all requests.
    Pauses(Duration, Duration),
    /// Replies to one request, then pauses for this time.
    Slow(Duration),
    /// Sends two replies to each request.
    TwoReplies,
    /// Any of these, chosen at random.
    Any,
}

struct Server {
    behavior: Behavior,
    paused_until: Duration,
    connections: Vec<ServerConnection>,
    requests_received: Rc<Cell<u64>>,
}

struct ServerConnection {
    socket: PeerConn,
    received: Vec<u8>,
    output: Vec<u8>,
    closing: bool,
}

impl Server {
    /// Appends the reply to the request `head`. Returns whether the server closes the connection.
    fn reply(behavior: Behavior, net: &mut Net<'_>, head: &str, output: &mut Vec<u8>) -> bool {
        let last = head.contains("Connection: close");
        match behavior {
            Behavior::Reply(n) => {
                output.extend(format!("HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n").bytes());
                output.resize(output.len() + n, b'x');
                last
            }
            Behavior::Chunked => {
                output
                    .extend(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
                output.extend(b"0\r\n\r\n");
                last
            }
            Behavior::Overloaded => {
                output.extend(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
                last
            }
            Behavior::NotFound => {
                output.extend(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
                last
            }
            Behavior::TwoReplies => {
                (0..2).fold(last, |_, _| Self::reply(Behavior::Reply(5), net, head, output))
            }
            Behavior::ShortBody => {
                output.extend(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
                true
            }
            Behavior::Close => true,
            Behavior::Malformed => {
                output.extend(b"220 mail.example ESMTP\r\n");
                false
            }
            Behavior::Silent => false,
            Behavior::Pauses(..) | Behavior::Slow(_) => {
                Self::reply(Behavior::Reply(5), net, head, output)
            }
            Behavior::Any => {
                let all = [
                    Behavior::Reply(5),
                    Behavior::Reply(3_000),
                    Behavior::Chunked,
                    Behavior::Overloaded,
                    Behavior::NotFound,
                    Behavior::ShortBody,
                    Behavior::Close,
                    Behavior::Malformed,
                    Behavior::Silent,
                    Behavior::TwoReplies,
                ];
                let n = if net.once_in(4) { net.below(all.len()) } else { net.below(3) };
                Self::reply(all[n], net, head, output)
            }
        }
    }
}

impl ServerConnection {
    /// Receives and sends. Returns whether any bytes were transferred, and whether to close.
    fn step(
        &mut self,
        net: &mut Net<'_>,
        behavior: Behavior,
        requests_received: &Cell<u64>,
    ) -> (bool, bool) {
        let mut progress = false;
        if !self.closing {
            match net.receive(&self.socket, 10_000, &mut self.received) {
                ReceiveResult::Bytes(_) => progress = true,
                ReceiveResult::Nothing => {}
                ReceiveResult::End | ReceiveResult::Reset => return (true, true),
            }
            while let Some(end) = self.received.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8(self.received.drain(..end + 4).collect()).unwrap();
                requests_received.set(requests_received.get() + 1);
                self.closing = Server::reply(behavior, net, &head, &mut self.output);
                if self.closing {
                    break;
                }
            }
        }
        let sent = net.send(&self.socket, &self.output);
        self.output.drain(..sent);
        let finished = self.closing && self.output.is_empty() || net.is_broken(&self.socket);
        (progress || sent > 0, finished)
    }
}

impl Peer for Server {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if let Behavior::Pauses(from, to) = self.behavior
            && net.now() >= from
            && net.now() < to
        {
            return Next::After(to - net.now());
        }
        if net.now() < self.paused_until {
            return Next::After(self.paused_until - net.now());
        }
        let mut progress = false;
        while let Some(socket) = net.accept() {
            // Newest connection first.
            self.connections.insert(
                0,
                ServerConnection {
                    socket,
                    received: Vec::new(),
                    output: Vec::new(),
                    closing: false,
                },
            );
            progress = true;
        }
        let mut at = 0;
        while at < self.connections.len() {
            let before = self.requests_received.get();
            let (has_progress, finished) =
                self.connections[at].step(net, self.behavior, &self.requests_received);
            progress |= has_progress;
            if finished {
                net.close(self.connections.remove(at).socket);
            } else {
                at += 1;
            }
            if let Behavior::Slow(pause) = self.behavior
                && self.requests_received.get() > before
            {
                self.paused_until = net.now() + pause;
                return Next::After(pause);
            }
        }
        if progress { Next::Ready } else { Next::Wait }
    }

    fn waits_for(&self) -> String {
        format!("a server with {} connections", self.connections.len())
    }
}

/// Result of a run.
struct RunResult {
    stats: Stats,
    requests_received: u64,
    report: evring_sim::RunReport,
}

fn machine(seed: u64, faults: Faults) -> Machine {
    let mut plan = evring_sim::Plan::default();
    (plan.seed, plan.faults, plan.steps) = (seed, faults, 20_000);
    Machine::new(&plan)
}

fn run_on<K: Kernel>(kernel: K, plan: &Plan) -> Stats {
    let generator = Generator::new(kernel, plan).unwrap();
    let mut intervals = 0;
    let mut events = Vec::new();
    let stats = generator.run(|event, stats| {
        match event {
            RunEvent::Poll => {}
            RunEvent::IntervalEnd => {
                intervals += 1;
                assert_eq!(stats.intervals.len(), intervals);
            }
            _ => events.push(event),
        }
        true
    });
    let stats = stats.unwrap();
    if stats.stop_reason.is_none() {
        assert_eq!(events, [RunEvent::MeasurementStart, RunEvent::MeasurementEnd]);
    }
    stats
}

fn run(seed: u64, faults: Faults, behavior: Option<Behavior>, plan: &Plan) -> RunResult {
    let machine = machine(seed, faults);
    let requests_received = Rc::new(Cell::new(0));
    if let Some(behavior) = behavior {
        machine.add_server(
            SERVER,
            Server {
                behavior,
                paused_until: Duration::ZERO,
                connections: Vec::new(),
                requests_received: requests_received.clone(),
            },
        );
    }
    let operations = Generator::<SimKernel>::operations(plan);
    let stats = if seed % 3 == 2 {
        let config = EngineConfig::new(operations, 16, 512);
        run_on(SimEngine::<false>::new(&machine, &config).unwrap(), plan)
    } else {
        let mode = [Mode::Deferred, Mode::Cooperative][seed as usize % 3];
        let config = UringConfig::new(mode, operations, 16, 512);
        run_on(SimKernel::new(&machine, &config).unwrap(), plan)
    };
    RunResult { stats, requests_received: requests_received.get(), report: machine.verdict() }
}

fn session(requests: usize, rounds: u64) -> Session {
    Session { requests: vec![Request::new("GET", "/", "h", ""); requests], rounds }
}

fn plan(model: LoadModel, session: Session) -> Plan {
    Plan {
        target: SERVER,
        sessions: vec![session],
        model,
        warm_up: Duration::from_millis(100),
        duration: Duration::from_secs(1),
        interval: Duration::from_millis(100),
        timeout: Duration::from_millis(500),
        max_open: 200,
        log_requests: true,
        ..Plan::default()
    }
}

fn sessions(rate: f64) -> LoadModel {
    LoadModel::OpenSessions { rate, arrivals: Arrivals::Fixed }
}

/// Asserts the invariants of every run.
fn check(result: &RunResult, plan: &Plan) {
    let stats = &result.stats;
    assert_eq!(result.report.failure, None);
    assert_eq!(stats.due, stats.replies + stats.errors.total());
    assert_eq!(stats.latency_ns.len(), stats.replies);
    let successful = stats.log.iter().filter(|record| record.error.is_none());
    let sum =
        |of: fn(&load_generator::IntervalStats) -> u64| stats.intervals.iter().map(of).sum::<u64>();
    assert_eq!(successful.clone().count() as u64, sum(|interval| interval.replies));
    assert_eq!(stats.log.len() as u64, sum(|s| s.replies + s.errors.total()));
    assert!(
        successful.clone().all(|record| record.latency <= plan.timeout && record.connect.is_some())
    );
    assert!(stats.intervals.iter().all(|interval| interval.open <= plan.max_open));
}

const NONE: Faults = Faults::NONE;

#[test]
fn closed_loop_answers_every_request() {
    for (seed, requests, rounds) in [(0, 1, 1), (1, 1, Session::FOREVER), (2, 3, 5)] {
        for pipeline_depth in [1, 4] {
            let plan = plan(LoadModel::Closed { connections: 5 }, session(requests, rounds));
            let plan = Plan { pipeline_depth, duration: Duration::from_millis(100), ..plan };
            let result = run(seed, NONE, Some(Behavior::Reply(700)), &plan);
            check(&result, &plan);
            let stats = &result.stats;
            assert!(stats.replies > 50 && stats.errors.total() == 0, "{:?}", stats.errors);
            assert_eq!(stats.body_bytes, 700 * stats.replies);
            // Requests in flight at the end were not recorded.
            let ended = stats.log.len() as u64;
            assert!(
                ended <= result.requests_received
                    && result.requests_received - ended <= 5 * pipeline_depth as u64
            );
            assert_eq!(stats.stop_reason, None);
            assert_eq!(stats.duration, plan.duration);
        }
    }
}

#[test]
fn open_loop_starts_every_due_session() {
    for seed in 0..3 {
        let plan = plan(sessions(200.0), session(2, 1));
        let result = run(seed, NONE, Some(Behavior::Chunked), &plan);
        check(&result, &plan);
        assert_eq!(result.stats.connects, 200);
        assert_eq!((result.stats.due, result.stats.started, result.stats.replies), (400, 400, 400));
        assert_eq!(result.stats.connect_ns.len(), 200);
        assert_eq!(result.stats.lag_ns.len(), 200);
    }
}

#[test]
fn due_requests_wait_for_an_idle_connection() {
    for seed in 0..3 {
        let model =
            LoadModel::OpenRequests { rate: 300.0, arrivals: Arrivals::Poisson, connections: 4 };
        let plan = plan(model, session(3, 1));
        let result = run(seed, NONE, Some(Behavior::Reply(10)), &plan);
        check(&result, &plan);
        assert!(result.stats.due > 200 && result.stats.replies == result.stats.due);
        assert!(result.stats.intervals.iter().all(|interval| interval.open <= 4));
    }
}

#[test]
fn server_pause_delays_every_request_due_during_it() {
    for seed in 0..3 {
        let pause = (Duration::from_millis(500), Duration::from_millis(800));
        let plan = plan(sessions(200.0), session(1, 1));
        let plan = Plan { timeout: Duration::from_secs(2), ..plan };
        let result = run(seed, NONE, Some(Behavior::Pauses(pause.0, pause.1)), &plan);
        check(&result, &plan);
        assert_eq!(result.stats.errors.total(), 0);
        // Each request that became due during the pause waits for its end. In a closed loop, one
        // request per connection would.
        let slow =
            result.stats.log.iter().filter(|record| record.latency > Duration::from_millis(100));
        let slow = slow.count();
        assert!((38..=62).contains(&slow), "{slow}");
    }
}

#[test]
fn load_continues_until_measured_requests_end() {
    for seed in 0..3 {
        let plan = plan(sessions(250.0), session(1, 1));
        let plan = Plan { warm_up: Duration::from_secs(1), ..plan };
        let result = run(seed, NONE, Some(Behavior::Slow(Duration::from_millis(10))), &plan);
        check(&result, &plan);
        // The server's capacity is 100 per second. If the load stopped at the end of the
        // measurement period, the server would complete 50 more before the last requests time out.
        assert!((80..=105).contains(&result.stats.replies), "{}", result.stats.replies);
        assert_eq!(result.stats.due, 250);
    }
}

#[test]
fn each_failure_has_its_own_error() {
    let failed = |behavior, timeout_ms| {
        (0..3).for_each(|seed| {
            let plan = plan(sessions(50.0), session(1, 1));
            let plan = Plan { timeout: Duration::from_millis(timeout_ms), ..plan };
            let result = run(seed, NONE, behavior, &plan);
            check(&result, &plan);
            let expected = match behavior {
                Some(Behavior::Overloaded) => RequestError::Unavailable,
                Some(Behavior::NotFound) => RequestError::Status,
                Some(Behavior::ShortBody) => RequestError::ShortBody,
                Some(Behavior::Close) => RequestError::Closed,
                Some(Behavior::Malformed) => RequestError::Malformed,
                _ => RequestError::ReplyTimeout,
            };
            assert_eq!(result.stats.errors.of(expected), result.stats.due, "{behavior:?}");
            assert_eq!(result.stats.due, 50);
        });
    };
    failed(Some(Behavior::Overloaded), 500);
    failed(Some(Behavior::NotFound), 500);
    failed(Some(Behavior::ShortBody), 500);
    failed(Some(Behavior::Close), 500);
    failed(Some(Behavior::Malformed), 500);
    failed(Some(Behavior::Silent), 100);
}

#[test]
fn sessions_not_started_before_their_timeout_fail() {
    let model = LoadModel::OpenSessions { rate: 1_000_000.0, arrivals: Arrivals::Fixed };
    let short = Duration::from_millis(20);
    let plan = Plan { duration: short, timeout: short / 20, ..plan(model, session(1, 1)) };
    let plan = Plan { warm_up: Duration::ZERO, log_requests: false, ..plan };
    let result = run(0, NONE, Some(Behavior::Reply(5)), &plan);
    let (stats, late) = (&result.stats, result.stats.errors.of(RequestError::ReplyTimeout));
    assert!((19_990..=20_000).contains(&stats.due), "{}", stats.due);
    assert_eq!(stats.due, stats.replies + stats.errors.total());
    // They fail without a connection.
    assert!(
        late > 0 && result.requests_received + late <= stats.due,
        "{late} late, {} received",
        result.requests_received
    );
    assert!(!stats.warnings().is_empty());
}

#[test]
fn unsolicited_replies_are_malformed() {
    for (seed, pipeline_depth) in [(0, 1), (1, 3), (2, 1)] {
        let plan = plan(LoadModel::Closed { connections: 3 }, session(1, Session::FOREVER));
        let plan = Plan { pipeline_depth, duration: Duration::from_millis(100), ..plan };
        let result = run(seed, NONE, Some(Behavior::TwoReplies), &plan);
        check(&result, &plan);
        assert!(result.stats.errors.of(RequestError::Malformed) > 0);
    }
}

#[test]
fn unexpected_body_length_is_short_body() {
    let requests = vec![Request::new("GET", "/", "h", "").with_expected_len(Some(9))];
    let plan = plan(sessions(50.0), Session { requests, rounds: 1 });
    let result = run(0, NONE, Some(Behavior::Reply(10)), &plan);
    check(&result, &plan);
    assert_eq!(result.stats.errors.of(RequestError::ShortBody), 50);
}

#[test]
fn think_time_delays_the_next_request() {
    let think_time = Duration::from_millis(50);
    let requests = vec![Request::new("GET", "/", "h", "").with_think_time(think_time); 4];
    let plan = plan(LoadModel::Closed { connections: 1 }, Session { requests, rounds: 1 });
    let result = run(0, NONE, Some(Behavior::Reply(1)), &plan);
    check(&result, &plan);
    // The first request has no think time; each session has three times 50 ms.
    assert!((20..=36).contains(&result.stats.log.len()), "{}", result.stats.log.len());
}

#[test]
fn idle_connections_stay_open() {
    for seed in 0..3 {
        let plan = Plan { idle_connections: 100, ..plan(sessions(50.0), session(1, 1)) };
        let result = run(seed, NONE, Some(Behavior::Reply(1)), &plan);
        check(&result, &plan);
        assert_eq!((result.stats.idle, result.stats.idle_lost, result.stats.replies), (100, 0, 50));
    }
}

#[test]
fn slow_clients_keep_to_their_rate() {
    for seed in 0..3 {
        let slow =
            SlowClients { readers: 5, senders: 5, bytes_per_second: 1_000, receive_buffer: 4_096 };
        let plan = Plan { slow: Some(slow), ..plan(sessions(50.0), session(1, 1)) };
        let result = run(seed, NONE, Some(Behavior::Reply(2_000)), &plan);
        check(&result, &plan);
        assert_eq!(result.stats.replies, 50);
        // A reply of 2,000 bytes takes two seconds, a request of 40 bytes takes 40 ms. The run
        // takes a little more than one second.
        let (opened, replies) = (result.stats.slow, result.stats.slow_replies);
        assert!((10..=150).contains(&opened) && replies <= opened, "{opened} {replies}");
        assert!((40..=140).contains(&replies), "{replies} replies");
        assert_eq!(result.stats.slow_lost, 0);
    }
}

#[test]
fn slow_reader_received_many_pieces_at_once_and_then_paused_for_seconds() {
    for seed in 0..3 {
        let slow =
            SlowClients { readers: 20, senders: 0, bytes_per_second: 10_000, receive_buffer: 500 };
        let plan = Plan { slow: Some(slow), ..plan(sessions(0.01), session(1, 1)) };
        let plan = Plan { warm_up: Duration::from_secs(1), drain: false, ..plan };
        let result = run(seed, NONE, Some(Behavior::Reply(1_000_000)), &plan);
        check(&result, &plan);
        assert_eq!((result.stats.slow, result.stats.slow_lost), (20, 0));
        let expected = 200_000.0 * plan.duration.as_secs_f64();
        let received = result.stats.received_bytes as f64;
        assert!((0.9..1.1).contains(&(received / expected)), "{received} bytes, not {expected}");
    }
}

#[test]
fn unavailable_server_stops_the_run() {
    for seed in 0..3 {
        for model in [sessions(50.0), LoadModel::Closed { connections: 3 }] {
            let plan = Plan { duration: Duration::from_secs(60), ..plan(model, session(1, 1)) };
            let result = run(seed, NONE, None, &plan);
            assert_eq!(result.report.failure, None);
            assert_eq!(result.stats.stop_reason, Some(StopReason::ServerUnavailable));
            // Clients of the closed loop pause before they retry.
            assert!(result.stats.log.len() <= 400, "{}", result.stats.log.len());
            assert!(
                result.stats.duration < Duration::from_secs(2),
                "measured time of a partial run"
            );
        }
        let plan = Plan { idle_connections: 1, ..plan(sessions(50.0), session(1, 1)) };
        let result = run(seed, NONE, None, &plan);
        assert_eq!(result.stats.stop_reason, Some(StopReason::SetupFailed(RequestError::Refused)));
    }
}

#[test]
fn connections_over_the_maximum_fail_with_a_warning() {
    let plan = Plan { max_open: 3, ..plan(sessions(100.0), session(1, 1)) };
    let result = run(0, NONE, Some(Behavior::Silent), &plan);
    check(&result, &plan);
    assert!(result.stats.errors.of(RequestError::NoResources) > 50);
    assert!(!result.stats.warnings().is_empty());
}

/// Each measured request ends exactly once, under any faults of server and network.
#[test]
fn every_request_ends_once_under_faults() {
    let seeds = std::env::var("LOAD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let model = match seed % 4 {
            0 => LoadModel::Closed { connections: 7 },
            1 => {
                LoadModel::OpenRequests { rate: 400.0, arrivals: Arrivals::Poisson, connections: 5 }
            }
            _ => LoadModel::OpenSessions { rate: 200.0, arrivals: Arrivals::Poisson },
        };
        let rounds = [Session::FOREVER, 1, 2, 3, 1, 2, 3, 1][seed as usize % 8];
        let pipeline_depth = [1, 1, 3][seed as usize % 3];
        let slow = (seed % 5 == 0).then_some(SlowClients {
            readers: 2,
            senders: 2,
            bytes_per_second: 5_000,
            receive_buffer: 4_096,
        });
        let plan = Plan {
            pipeline_depth,
            seed,
            slow,
            ..plan(model, session(1 + seed as usize % 4, rounds))
        };
        let result = run(seed, Faults::ALL, Some(Behavior::Any), &plan);
        assert_eq!(result.report.failure, None, "seed {seed}");
        match result.stats.stop_reason {
            None => check(&result, &plan),
            // A fault affected one of the persistent connections.
            Some(StopReason::SetupFailed(_)) => {}
            reason => panic!("seed {seed}: {reason:?}"),
        }
    }
}
