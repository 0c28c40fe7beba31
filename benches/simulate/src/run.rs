//! One run.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use evring::{
    Admission, Application, Config, EventLoop, KernelError, Order, RemoteHandle, StartError, Stats,
};
use evring_httpd::{Root, Site};
use examples::{Echo, Proxy, Timeouts};
use kv::{Database, Kv, Limits};
use send_core::{Capacity, Delivery, SendKernel};
use shared_ring::sim::{
    CheckedKernel, Machine, RunReport, SimDevPoll, SimEngine, SimInterest, SimKernel, SimRtSig,
};
use shared_ring::{Kernel, Mode, UringKernel};

use super::bounds;
use super::case::{Case, Mechanism, Program};
use super::contract::Contract;
use super::echo::Echoed;
use super::http::{self, Browsing};
use super::kv::Caching;
use super::origin::Origin;
use super::pattern::add_files;
use super::script::Script;
use super::stop::Stopper;
use super::talker::{Shared, Talker};
use super::wild::{self, Asking, Wild};

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine's verdict.
    pub verdict: RunReport,
    /// What the server did, if it came to its end.
    pub stats: Stats,
    /// How many requests its clients made; of a script, none are counted.
    pub requests: u64,
}

/// Where the server listens, and where the one behind a proxy does.
const SERVER: SocketAddr = address(80);
const ORIGIN: SocketAddr = address(7);

const fn address(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), port)
}

/// How many places of connections hung work may keep for good: as many as it has threads or workers.
const HUNG: usize = 4;

/// Runs a case to its end.
pub fn run(case: &Case) -> Report {
    let machine = Machine::new(&case.plan);
    let shared = Shared::default();
    let mut random = fastrand::Rng::with_seed(case.plan.seed ^ 0x5eed);
    let config = configuration(&mut random, case);
    let room = config.max_connections as usize;
    shared.crowded.set(case.program == Program::Httpd && room < case.clients);
    shared.bounded.set(config.max_per_address.is_some_and(|most| most < bounds::MANY));
    shared.tight.set(room < case.clients + HUNG || case.plan.descriptors < 100);
    let clients = |remote: RemoteHandle| add_clients(case, &machine, &shared, remote);
    let stage = Stage { case, machine: &machine, config: &config, clients: &clients };
    let outcome = catch(|| match case.program {
        Program::Echo => stage.serve(Echo),
        Program::Kv => stage.serve(cache(case.plan.seed)),
        Program::Proxy => {
            machine.add_server(ORIGIN, Origin::default());
            let timeouts = Timeouts { connect: Duration::from_secs(60), ..Timeouts::default() };
            let proxy = Proxy::new(ORIGIN, timeouts);
            let late = case.plan.seed.is_multiple_of(8);
            let proxy = if late { proxy.connecting_late() } else { proxy };
            stage.serve(proxy)
        }
        Program::Wild => {
            machine.add_server(ORIGIN, Origin::default());
            add_files(&machine, &wild::FILES);
            stage.serve(Wild::new(ORIGIN))
        }
        Program::Httpd => {
            add_files(&machine, &http::FILES);
            stage.serve(http::site(Site::new(Some(Root(0)))))
        }
    });
    Report { requests: shared.requests.get(), ..end(case, &machine, outcome) }
}

/// Runs the web server with a client that does what `bytes` say, as machine, mechanism and configuration
/// do: `script.rs` has the meaning of each. Whatever they are, the run must not fail.
pub fn run_script(bytes: &[u8], trace_steps: bool) -> Report {
    let (mut case, config, script) = Script::read(bytes);
    case.plan.trace_steps = trace_steps;
    let machine = Machine::new(&case.plan);
    let clients = |remote: RemoteHandle| {
        machine.add_peer(script.player(SERVER, config.max_connections, remote));
    };
    let config = Config { listen: vec![SERVER], roots: vec!["/site".into()], ..config };
    let stage = Stage { case: &case, machine: &machine, config: &config, clients: &clients };
    let outcome = catch(|| {
        add_files(&machine, &http::FILES);
        stage.serve(http::site(Site::new(Some(Root(0)))))
    });
    end(&case, &machine, outcome)
}

/// Ends a run.
fn end(case: &Case, machine: &Machine, outcome: Result<Result<Stats, Ended>, String>) -> Report {
    let stats = match outcome {
        Ok(Ok(stats)) => stats,
        // Of a rule that was broken, the verdict tells more.
        Ok(Err(Ended::KernelError(fault))) => {
            machine.fail(fault.to_string());
            Stats::default()
        }
        Ok(Err(Ended::Start(error))) => {
            if case.plan.descriptors > 6 {
                machine.fail(format!("the server does not start: {error}"));
            }
            Stats::default()
        }
        Err(panic) => {
            machine.fail(panic);
            Stats::default()
        }
    };
    Report { verdict: machine.verdict(), stats, requests: 0 }
}

/// A cache with room for what its clients store. In every fourth run its values are in several stores, as
/// they are if workers share them.
fn cache(seed: u64) -> Kv {
    let limits = Limits::default();
    let database = match seed % 4 {
        0 => Database::shared(limits, seed, 2),
        _ => Database::new(limits, seed),
    };
    Kv::new(database.expect("a test has that much memory"))
}

/// Why a server ended early.
enum Ended {
    KernelError(KernelError),
    Start(StartError),
}

fn configuration(random: &mut fastrand::Rng, case: &Case) -> Config {
    let of = |random: &mut fastrand::Rng, all: [u32; 4]| all[random.usize(..4)];
    let most = of(random, [1, 4, 20, 1_000]);
    let has_files = matches!(case.program, Program::Httpd | Program::Wild);
    let connects = matches!(case.program, Program::Proxy | Program::Wild);
    let backlog = of(random, [1, 8, 100, 100]);
    Config {
        listen: vec![SERVER],
        roots: if has_files { vec!["/site".into()] } else { Vec::new() },
        // Who has no room for connections of its own drops its clients.
        max_connections: if connects { 1_000 } else { most },
        max_queued_bytes: wild::MAX_QUEUED_BYTES,
        max_per_address: [None, Some(1_000), Some(1), Some(3)][random.usize(..4)],
        backlog,
        buffers: of(random, [1, 4, 16, 64]) as u16,
        buffer_size: of(random, [16, 64, 512, 2_048]),
        linger_timeout: [Duration::from_secs(2), Duration::from_millis(10)][random.usize(..2)],
        progress_interval: [Duration::from_secs(30), Duration::from_millis(200)][random.usize(..2)],
        drain_timeout: [Duration::from_secs(10), Duration::from_millis(10)][random.usize(..2)],
        admission: admission(random, backlog),
        ..Config::default()
    }
}

/// With periods short enough for a simulated server to have no slack now and then. Nobody is refused, as
/// clients would take that for a failure: they have patience, and room where the newest come first.
fn admission(random: &mut fastrand::Rng, backlog: u32) -> Option<Admission> {
    let order = if backlog < 100 { Order::Oldest } else { Order::Newest };
    let delay = Duration::from_micros(random.u64(1_000..5_000));
    let admission =
        Admission { max_queue_delay: delay, min_queue: 100, max_wait: Duration::MAX, order };
    random.bool().then_some(admission)
}

/// How many hints or signals there may be.
const FEW: [usize; 4] = [1, 4, 20, 1_000];

/// Adds the clients of a case, and somebody who stops the server.
fn add_clients(case: &Case, machine: &Machine, shared: &Shared, remote: RemoteHandle) {
    for me in 0..case.clients {
        match case.program {
            Program::Echo => machine.add_peer(Talker::new(Echoed::default(), SERVER, shared)),
            Program::Proxy => machine.add_peer(Talker::new(Echoed::by_proxy(), SERVER, shared)),
            Program::Wild => machine.add_peer(Talker::new(Asking::default(), SERVER, shared)),
            Program::Kv => machine.add_peer(Talker::new(Caching::new(me), SERVER, shared)),
            Program::Httpd => {
                machine.add_peer(Talker::new(Browsing::new(shared), SERVER, shared));
            }
        }
    }
    let stops = case.plan.seed.is_multiple_of(4);
    machine.add_peer(Stopper::new(remote, shared, stops));
}

/// Where a server runs, and who comes to it.
struct Stage<'a> {
    case: &'a Case,
    machine: &'a Machine,
    config: &'a Config,
    /// Adds the clients.
    clients: &'a dyn Fn(RemoteHandle),
}

impl Stage<'_> {
    /// Runs a server on the mechanism of the case.
    fn serve<A: Application + 'static>(&self, app: A) -> Result<Stats, Ended> {
        let Stage { case, machine, config, .. } = *self;
        let start = |error: StartError| Ended::Start(error);
        let system =
            |error| Ended::Start(StartError::System("the event loop can't be set up", error));
        let ring = |mode| {
            let config = config.uring_config(mode).map_err(start)?;
            SimKernel::new(machine, &config)
                .map_err(|missing| Ended::Start(evring::Unavailable(missing.to_string()).into()))
        };
        let engine = config.engine_config().map_err(start)?;
        let sends = |delivery: Delivery| {
            let words = |reason: String| Ended::Start(evring::Unavailable(reason).into());
            let config = config.uring_config(delivery.mode()).map_err(start)?;
            let ring =
                UringKernel::simulated(machine, &config).map_err(|e| words(e.to_string()))?;
            let sizes = Capacity { events: 3, queued: 5 };
            SendKernel::over(ring, delivery, sizes)
                .map(|kernel| CheckedKernel::over(kernel, machine))
                .map_err(|e| words(e.to_string()))
        };
        let few = FEW[(case.plan.seed / 3 % 4) as usize];
        match case.mechanism {
            Mechanism::Uring => self.drive(app, ring(Mode::Deferred)?),
            Mechanism::Immediate => self.drive(app, ring(Mode::Immediate)?),
            Mechanism::Send => self.drive(app, sends(Delivery::Preemptive)?),
            Mechanism::SendPs1 => self.drive(app, sends(Delivery::Ps1)?),
            Mechanism::SendPs2 => self.drive(app, sends(Delivery::Ps2)?),
            Mechanism::Level => {
                self.drive(app, SimEngine::<false>::new(machine, &engine).map_err(system)?)
            }
            Mechanism::Edge => {
                self.drive(app, SimEngine::<true>::new(machine, &engine).map_err(system)?)
            }
            Mechanism::Interest => {
                let poller = SimInterest::simulated(machine, few);
                self.drive(app, CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
            Mechanism::RtSig => {
                let poller = SimRtSig::simulated(machine, few);
                self.drive(app, CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
            Mechanism::DevPoll => {
                let poller = SimDevPoll::simulated(machine);
                self.drive(app, CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
        }
    }

    fn drive<A: Application + 'static, K: Kernel>(
        &self,
        app: A,
        kernel: K,
    ) -> Result<Stats, Ended> {
        let Stage { case, machine, config, clients } = *self;
        let mut server = EventLoop::new(kernel, config).map_err(Ended::Start)?;
        let stopped = bounds::Stopped::default();
        server.inspect(bounds::watch(machine, config, case.mechanism.rings(), &stopped));
        clients(server.remote());
        let remote = server.remote();
        machine.on_end(move || remote.stop());
        let stats = server.run(Contract::new(app, machine)).map_err(Ended::KernelError)?;
        bounds::watch_end(machine, config, &stopped, &stats);
        Ok(stats)
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    /// The first panic of a run.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Turns a panic into words.
fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                PANIC.with_borrow_mut(|told| {
                    told.get_or_insert_with(|| info.to_string());
                });
            } else {
                before(info);
            }
        }));
    });
    CATCHING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    CATCHING.set(false);
    outcome.map_err(|_| PANIC.take().unwrap_or_else(|| "a panic".to_owned()))
}
