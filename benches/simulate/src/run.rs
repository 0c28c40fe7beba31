//! The run of a case.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use evring::buffers::BufferGroup;
use evring::mechanisms::EventLoop;
use evring::{Admission, Application, Config, Order, RemoteHandle, Stats};
use evring_httpd::{Root, Site};
use evring_sim::{Machine, Plan, RunReport, Unsupported};
use evring_tls::Layer;
use examples::{Echo, Proxy, Timeouts};
use kv::{Database, Kv, Limits};
use shared_ring::Kernel;

use super::case::{Case, Program};
use super::choices::Choices;
use super::contract::Contract;
use super::echo::EchoModel;
use super::hold::HoldBack;
use super::http::{self, HttpModel};
use super::kv::KvModel;
use super::layered::{Identity, landed};
use super::mechanism::{RunError, Server};
use super::origin::Origin;
use super::pattern::{LONG_FILE, add_files};
use super::script::Script;
use super::stop::Stopper;
use super::talker::{Client, Shared};
use super::wild::{self, Wild, WildModel};
use super::{bounds, buffers};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine's report.
    pub verdict: RunReport,
    /// The server's counters, if it ended regularly.
    pub stats: Stats,
    /// Number of requests of its clients; 0 for a script.
    pub requests: u64,
    /// Number of submissions that were queued when the application panicked, if it did.
    pub queued_at_panic: Option<usize>,
}

/// The addresses of the server and of the origin behind a proxy.
const SERVER: SocketAddr = address(80);
const ORIGIN: SocketAddr = address(7);

const fn address(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), port)
}

/// Maximum number of connections that hung file operations may keep open: one for each thread or worker.
const MAX_HUNG: usize = 4;

/// A total of buffered bytes that the clients of a run exceed.
pub(super) const SHORT_MEMORY_BYTES: usize = 40_000;

/// Runs a case.
pub fn run(case: &Case) -> Report {
    let choices = Choices::of(case.plan.seed);
    let has_long_file = choices.has_long_file && case.program.sends_files();
    let mut plan = plan(case, &choices);
    if has_long_file {
        plan.room = Some(LONG_ROOM);
    }
    let machine = Machine::new(&plan);
    if has_long_file {
        add_files(&machine, &[LONG_FILE]);
    }
    let shared = Shared::default();
    let mut random = fastrand::Rng::with_seed(case.plan.seed ^ 0x5eed);
    let config = configuration(&mut random, case, &choices);
    let room = config.max_connections as usize;
    shared.crowded.set(case.program == Program::Httpd && room < case.clients);
    let per_address = config.max_per_address;
    shared.may_refuse.set(per_address.is_some_and(|max| max < bounds::UNREACHED_PER_ADDRESS));
    shared.is_short_of_memory.set(config.max_buffered_bytes == SHORT_MEMORY_BYTES);
    shared.is_scarce.set(room < case.clients + MAX_HUNG || case.plan.descriptors < 100);
    let clients = |remote: RemoteHandle| add_clients(case, &choices, &machine, &shared, remote);
    let setup = Setup {
        case,
        choices,
        machine: &machine,
        config: &config,
        shared: &shared,
        clients: &clients,
    };
    let outcome = catch_panic(|| match case.program {
        Program::Echo => setup.serve(|_| Echo),
        Program::Kv => setup.serve(|_| cache(case.plan.seed, &choices)),
        Program::Proxy => {
            machine.add_server(ORIGIN, Origin::default());
            let timeouts = Timeouts { connect: Duration::from_secs(60), ..Timeouts::default() };
            let proxy = Proxy::new(ORIGIN, timeouts);
            let proxy = if choices.connects_late { proxy.connecting_late() } else { proxy };
            setup.serve(|_| proxy)
        }
        Program::Wild => {
            machine.add_server(ORIGIN, Origin::default());
            add_files(&machine, &wild::FILES);
            setup.serve(|_| Wild::new(ORIGIN))
        }
        Program::Httpd => setup.serve_files(),
    });
    Report { requests: shared.requests.get(), ..end(case, &machine, outcome) }
}

/// Room of the sockets in runs with a long file, so that it takes few steps.
const LONG_ROOM: usize = 70_000;

/// Runs the web server with a client that `bytes` control. They also choose the machine, the
/// mechanism and the configuration, as described in `script.rs`. No bytes may make the run fail.
pub fn run_script(bytes: &[u8], trace_steps: bool) -> Report {
    let (mut case, config, script) = Script::read(bytes);
    case.plan.trace_steps = trace_steps;
    let choices = Choices { panics_after: None, ..Choices::of(case.plan.seed) };
    let machine = Machine::new(&plan(&case, &choices));
    let config = config.with(|c| {
        c.listen = vec![SERVER];
        c.roots = vec!["/site".into()];
    });
    let clients = |remote: RemoteHandle| {
        machine.add_peer(script.client(SERVER, &case.plan, &config, remote));
    };
    let setup = Setup {
        case: &case,
        choices,
        machine: &machine,
        config: &config,
        shared: &Shared::default(),
        clients: &clients,
    };
    let outcome = catch_panic(|| setup.serve_files());
    end(&case, &machine, outcome)
}

/// Completes the report of a run.
fn end(case: &Case, machine: &Machine, outcome: Result<Result<Stats, RunError>, String>) -> Report {
    let mut queued_at_panic = None;
    let stats = match outcome {
        Ok(Ok(stats)) => stats,
        Ok(Err(RunError::Panicked(panic))) => {
            queued_at_panic = Some(panic.queued);
            Stats::default()
        }
        // If a rule was broken, the machine has already recorded it.
        Ok(Err(RunError::KernelError(fault))) => {
            machine.fail(fault.to_string());
            Stats::default()
        }
        Ok(Err(RunError::Start(error))) => {
            if case.plan.descriptors > 6 {
                machine.fail(format!("the server did not start: {error}"));
            }
            Stats::default()
        }
        Err(panic) => {
            machine.fail(panic);
            Stats::default()
        }
    };
    Report { verdict: machine.verdict(), stats, requests: 0, queued_at_panic }
}

fn plan(case: &Case, choices: &Choices) -> Plan {
    let unsupported = (!choices.has_multishot).then_some(Unsupported::Multishot);
    case.plan.clone().with(|plan| plan.unsupported = plan.unsupported.or(unsupported))
}

/// Returns a cache with room for its clients' values.
fn cache(seed: u64, choices: &Choices) -> Kv {
    let limits = Limits::default();
    let database = match choices.shares_stores {
        true => Database::shared(limits, seed, 2),
        false => Database::new(limits, seed),
    };
    Kv::new(database.expect("the memory suffices for the default limits"))
}

fn configuration(random: &mut fastrand::Rng, case: &Case, choices: &Choices) -> Config {
    let pick = |random: &mut fastrand::Rng, all: [u32; 4]| all[random.usize(..4)];
    let max_connections = pick(random, [1, 4, 20, 1_000]);
    let connects = matches!(case.program, Program::Proxy | Program::Wild);
    let backlog = pick(random, [1, 8, 100, 100]);
    let mut config = Config::default();
    config.listen = vec![SERVER];
    if case.program.sends_files() {
        config.roots = vec!["/site".into()];
        config.writable_roots = vec![Root(0)];
    }
    // A server without room for its own outgoing connections would close its clients.
    config.max_connections = if connects { 1_000 } else { max_connections };
    config.max_queued_bytes = wild::MAX_QUEUED_BYTES;
    config.max_per_address = match random.usize(..8) {
        0 => Some(1),
        1 => Some(3),
        2..5 => Some(bounds::UNREACHED_PER_ADDRESS),
        _ => None,
    };
    // A network has clients of several addresses.
    config.max_per_network = config.max_per_address.map(|max| max.saturating_mul(2));
    config.backlog = backlog;
    config.buffers = pick(random, [1, 4, 16, 64]) as u16;
    config.buffer_size = pick(random, [16, 64, 512, 2_048]);
    config.linger_timeout = [Duration::from_secs(2), Duration::from_millis(10)][random.usize(..2)];
    config.progress_interval =
        [Duration::from_secs(30), Duration::from_millis(200)][random.usize(..2)];
    config.drain_timeout = [Duration::from_secs(10), Duration::from_millis(10)][random.usize(..2)];
    config.admission = admission(random, backlog);
    config.send_policy = match choices.delivery {
        None => Some(|| Box::<HoldBack>::default() as _),
        Some(delivery) => delivery.send_policy(),
    };
    if choices.is_short_of_memory {
        config.max_buffered_bytes = SHORT_MEMORY_BYTES;
    }
    if choices.has_few_file_ops {
        config.max_file_ops = 4;
    }
    if choices.delays_reads {
        config.max_read_delay = Duration::from_millis(5);
    }
    config
}

/// Chooses admission control with short periods, so that a simulated server is sometimes
/// overloaded. No connection is shed, as clients count that as a failure: the maximum wait is
/// unlimited, and the backlog large if the newest come first.
fn admission(random: &mut fastrand::Rng, backlog: u32) -> Option<Admission> {
    let order = if backlog < 100 { Order::Oldest } else { Order::Newest };
    let delay = Duration::from_micros(random.u64(1_000..5_000));
    let mut admission = Admission::default();
    admission.max_queue_delay = delay;
    admission.min_queue = 100;
    admission.max_wait = Duration::MAX;
    admission.order = order;
    random.bool().then_some(admission)
}

/// Adds the clients of a case, and a peer that stops the server.
fn add_clients(
    case: &Case,
    choices: &Choices,
    machine: &Machine,
    shared: &Shared,
    remote: RemoteHandle,
) {
    for me in 0..case.clients {
        let requests_long = me == 0 && choices.has_long_file;
        match case.program {
            Program::Echo => machine.add_peer(Client::new(EchoModel::default(), SERVER, shared)),
            Program::Proxy => machine.add_peer(Client::new(EchoModel::via_proxy(), SERVER, shared)),
            Program::Wild => {
                machine.add_peer(Client::new(WildModel::new(requests_long), SERVER, shared))
            }
            Program::Kv => machine.add_peer(Client::new(KvModel::new(me), SERVER, shared)),
            Program::Httpd => {
                let model = HttpModel::new(shared).requesting_long(requests_long);
                machine.add_peer(Client::new(model, SERVER, shared));
            }
        }
    }
    machine.add_peer(Stopper::new(remote, SERVER, shared, choices));
}

/// The parameters of a run, before its server is chosen.
struct Setup<'a> {
    case: &'a Case,
    choices: Choices,
    machine: &'a Machine,
    config: &'a Config,
    shared: &'a Shared,
    /// Adds the clients.
    clients: &'a dyn Fn(RemoteHandle),
}

impl Setup<'_> {
    /// Runs the web server.
    fn serve_files(&self) -> Result<Stats, RunError> {
        add_files(self.machine, &http::FILES);
        self.serve(|remote| {
            let site = http::site(Site::new(Some(Root(0))).remote(remote));
            match self.choices.has_layer {
                true => Identity::around(site, landed(self.config)),
                false => Layer::transparent(site),
            }
        })
    }

    /// Runs the server that `app` returns on the mechanism of the case.
    fn serve<A: Application + 'static>(
        &self,
        app: impl FnOnce(&RemoteHandle) -> A,
    ) -> Result<Stats, RunError> {
        let server = Serving { setup: self, app };
        self.case.mechanism.run(self.machine, self.config, &self.choices, server)
    }

    fn drive<A: Application + 'static, K: Kernel>(
        &self,
        app: impl FnOnce(&RemoteHandle) -> A,
        kernel: K,
    ) -> Result<Stats, RunError> {
        let Setup { case, choices, machine, config, shared, clients } = *self;
        let mut server = EventLoop::new(kernel, config).map_err(RunError::Start)?;
        let stop_time = bounds::StopTime::default();
        let max_open_files = (case.program == Program::Httpd).then_some(http::MAX_OPEN_FILES);
        let inspect = bounds::check(machine, config, case.mechanism, max_open_files, &stop_time);
        clients(server.remote());
        let remote = server.remote();
        machine.on_end(move || remote.stop());
        let group = match choices.has_second_group {
            true => buffers::add(&mut server, config),
            false => BufferGroup::DEFAULT,
        };
        let has_own_tags = case.program == Program::Httpd;
        let app = app(&server.remote());
        let panics_after = choices.panics_after;
        let app = Contract::new(app, machine, group, shared, has_own_tags, panics_after);
        let served = panic::catch_unwind(AssertUnwindSafe(|| server.run_inspected(app, inspect)));
        let served = served.or_else(|panic| match panic.downcast() {
            Ok(planned) => Err(RunError::Panicked(*planned)),
            Err(other) => panic::resume_unwind(other),
        });
        let stats = served?.map_err(RunError::KernelError)?;
        bounds::check_end(machine, config, &stop_time, &stats);
        Ok(stats)
    }
}

/// A server that its mechanism starts.
struct Serving<'a, F> {
    setup: &'a Setup<'a>,
    app: F,
}

impl<A: Application + 'static, F: FnOnce(&RemoteHandle) -> A> Server for Serving<'_, F> {
    fn run<K: Kernel>(self, kernel: K) -> Result<Stats, RunError> {
        self.setup.drive(self.app, kernel)
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    /// The first panic of a run.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the message of a panic as an error.
fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                PANIC.with_borrow_mut(|message| {
                    message.get_or_insert_with(|| info.to_string());
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
