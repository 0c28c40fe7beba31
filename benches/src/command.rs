//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ash_sandbox::model::ProcessState;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::failure::Failure;
use crate::load::Load;

/// Help text after the options of `lab load`.
const TIMES: &str = "\
Times count from the moment a request was due, whatever delayed it, including this program: \
`connect` until the connection was established, `response` until the complete good reply was \
received. `lag` is the delay before this program started the request. If `lag` exceeds 1 ms for 1 % \
of the requests, the figures are unreliable, and a warning is printed.

Exit status: 0 if the load ran to its end and at least one reply was good, 2 for invalid options, 1 \
otherwise; partial results are printed.";

/// Help text after the options of `lab run`.
const GOALS: &str = "\
A ratio is the median of its rounds, with its 95 % interval. A goal is met if the whole \
interval keeps the limit, open if the limit lies in it or the rounds are fewer than six, else missed. \
A count is judged from one measurement.

Exit status: 0 if no goal was missed, 3 if one was, 2 for invalid options, 1 if the experiment failed.";

/// Help text after the options of `lab recommend`.
const PLACEMENTS: &str = "\
The model is that of ASH, chapter 7: times from the arrival of a message until it is handled. An ASH runs in the \
sandbox, an upcall in another process; an interrupt wakes or interrupts the application, and a poll finds it at work. \
The handler has no table of an application, and no pipe lists. An empty handler's time is subtracted from its time. \
Its time without a sandbox is not measured: it follows from the factor. The column `ASH up to` has the factor up to which an \
ASH is the fastest.";

/// Measures the mechanisms on this machine
#[derive(Parser)]
#[command(name = "lab", version)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the experiments
    List(List),
    /// Run an experiment
    #[command(after_help = GOALS)]
    Run(Run),
    /// Write the last runs to one HTML file with plots and tables
    Report(Report),
    /// Write the tables and the plot of README.md and BENCHMARKS.md from the results in docs/results
    Tables(Tables),
    /// Measure a handler in a sandbox and this machine, and say where the handler should run
    #[command(after_help = PLACEMENTS)]
    Recommend(Recommend),
    /// Load a web server and report its performance
    #[command(after_help = TIMES)]
    Load(Box<Load>),
    /// Run a server under test: prints its address, answers each line of standard input with
    /// counters, and stops at end of input
    #[command(hide = true)]
    Serve(Serve),
    /// Run the client: makes the number of requests given by each line of standard input
    #[command(hide = true)]
    Client(Client),
    /// Compute until killed, on the server's core
    #[command(hide = true)]
    Spin,
    /// Answer upcalls with the number of messages, or a page; standard input is a stream to the server
    #[command(hide = true)]
    Upcalls(Upcalls),
    /// Invoke a handler that writes what messages say, for instruction counts
    #[command(hide = true)]
    Invoke(Invoke),
    /// Post null calls and take their completions, for instruction counts
    #[command(hide = true)]
    Complete(Complete),
}

/// The process for upcalls.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Upcalls {
    /// Run before all threads that are not real-time
    #[arg(long)]
    pub(crate) real_time: bool,
    /// Answer requests with a page of this many bytes
    #[arg(long, value_name = "N")]
    pub(crate) page_bytes: Option<usize>,
}

#[derive(Args)]
pub(crate) struct Invoke {
    #[arg(long)]
    pub(crate) what: RemoteWrite,
    /// The bytes of data in a message
    #[arg(long)]
    pub(crate) bytes: usize,
    #[arg(long)]
    pub(crate) count: u64,
}

#[derive(Args)]
pub(crate) struct Complete {
    #[arg(long)]
    pub(crate) way: CompletionWay,
    /// The number of other calls that wait
    #[arg(long)]
    pub(crate) outstanding: usize,
    #[arg(long)]
    pub(crate) count: u32,
}

/// The way in which a call completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionWay {
    /// The owner makes the call.
    InPlace,
    /// The ring of io_uring.
    Ring,
    /// Syscall threads.
    Threads,
    /// A descriptor is ready, in the epoll set.
    Readiness,
}

impl CompletionWay {
    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CompletionWay::InPlace => "in-place",
            CompletionWay::Ring => "ring",
            CompletionWay::Threads => "threads",
            CompletionWay::Readiness => "readiness",
        }
    }
}

/// The code that writes the data of a message to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RemoteWrite {
    /// A handler in the sandbox.
    Sandboxed,
    /// An unsafe handler.
    Unsafe,
    /// An unsafe handler that trusts no sender.
    Generic,
    /// A function that nothing dispatches.
    Function,
    /// Nothing: an unsafe handler that returns.
    Nothing,
}

impl RemoteWrite {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RemoteWrite::Sandboxed => "sandboxed",
            RemoteWrite::Unsafe => "unsafe",
            RemoteWrite::Generic => "generic",
            RemoteWrite::Function => "function",
            RemoteWrite::Nothing => "nothing",
        }
    }
}

#[derive(Args)]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Run {
    /// The experiment; see `lab list`
    pub(crate) id: String,
    /// End within a minute, with less precision
    #[arg(long)]
    pub(crate) quick: bool,
    /// Begin no further round after this time; a goal counts as met with six rounds at least [default: 1770, or 42
    /// with --quick]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_time: Option<u32>,
    /// Also write the outcome to this file; docs/results/ID.json is the place of published results
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) simulation: Simulation,
}

/// Options of the experiment `simulate`.
#[derive(Args, Clone, Default)]
pub(crate) struct Simulation {
    /// Seed of the load and of the order of servers, as recorded in an outcome [default: random]; for
    /// `simulate`: run only this seed
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// For `simulate`: the length of each run, in steps of peers and network [default: 2000]
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// For `simulate`: repeat the run recorded in this file, and show it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "steps"])]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Report {
    /// The output file
    #[arg(long, value_name = "FILE", default_value = "lab-report.html")]
    pub(crate) output: PathBuf,
    /// Also write each figure as a separate SVG file to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) figures: Option<PathBuf>,
    /// Draw only these series
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "figures")]
    pub(crate) series: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Recommend {
    /// The module, in its binary or text format
    #[arg(long, value_name = "FILE")]
    pub(crate) handler: PathBuf,
    /// A message; several are handled in turn, and their mix decides how often the handler passes one on
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) message: Vec<PathBuf>,
    /// How much longer the handler takes in the sandbox than as native code [default: 1.25, as an assumption]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub(crate) sandboxing_factor: Option<f64>,
    /// The probability that the handler passes a message on [default: as measured]
    #[arg(long, value_name = "0..1", value_parser = share)]
    pub(crate) abort_probability: Option<f64>,
    /// The share of its time after which it passes a message on [default: as measured, or 1/8]
    #[arg(long, value_name = "0..1", value_parser = share)]
    pub(crate) share_before_abort: Option<f64>,
    /// The state of the application's process when a message arrives [default: each]
    #[arg(long)]
    pub(crate) state: Option<State>,
    /// The number of other processes that compute
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) other_processes: u32,
}

/// The state of an application's process (ASH, table 7-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// It runs and polls for a message.
    Spinning,
    /// It runs other code.
    Busy,
    /// It sleeps until a message arrives.
    Blocked,
    /// It is suspended and waits for something else.
    BusySuspended,
}

impl State {
    /// Returns the state of the model.
    pub(crate) fn model(self) -> ProcessState {
        match self {
            State::Spinning => ProcessState::Spinning,
            State::Busy => ProcessState::Busy,
            State::Blocked => ProcessState::Blocked,
            State::BusySuspended => ProcessState::BusySuspended,
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "not a number between 0 and 1".to_owned())
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.1..=1000.0).contains(factor));
    factor.ok_or_else(|| "not a number between 0.1 and 1000".to_owned())
}

#[derive(Args)]
pub(crate) struct Tables {
    /// Only compare; exit status 1 if a table differs
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Args)]
pub(crate) struct Serve {
    #[arg(long)]
    pub(crate) what: ServerKind,
    #[arg(long)]
    pub(crate) mechanism: String,
    #[arg(long, default_value = "file")]
    pub(crate) work: Workload,
    /// The file that a floor sends as its reply
    #[arg(long)]
    pub(crate) reply: Option<PathBuf>,
    /// The directory that the file server serves
    #[arg(long)]
    pub(crate) root: Option<PathBuf>,
    /// The control group to run in
    #[arg(long, value_name = "DIR")]
    pub(crate) group: Option<PathBuf>,
    /// The length of the listen backlog
    #[arg(long, default_value_t = 4096)]
    pub(crate) backlog: u32,
    /// Disable admission control
    #[arg(long)]
    pub(crate) unbounded: bool,
    /// The cores to run on, with one worker each
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(crate) cores: Vec<usize>,
    /// The address of the server behind a proxy
    #[arg(long)]
    pub(crate) upstream: Option<SocketAddr>,
    /// The size of the sockets' send buffers (`SO_SNDBUF`)
    #[arg(long, value_name = "BYTES")]
    pub(crate) send_buffer: Option<usize>,
    /// The number of processes of `plain`, one for each connection
    #[arg(long, default_value_t = 16)]
    pub(crate) processes: u32,
    /// The module of a handler in a sandbox, for the web server
    #[arg(long, value_name = "FILE")]
    pub(crate) handler: Option<PathBuf>,
    /// Do not read standard input; only a signal ends the server
    #[arg(long)]
    pub(crate) alone: bool,
}

#[derive(Args)]
pub(crate) struct Client {
    #[arg(long)]
    pub(crate) connect: SocketAddr,
    #[arg(long)]
    pub(crate) work: Workload,
    #[arg(long)]
    pub(crate) connections: usize,
    /// The length of the reply to each batch; a cache's replies have their own lengths
    #[arg(long)]
    pub(crate) reply_bytes: usize,
    /// The path of the file to request
    #[arg(long, default_value = Workload::PATH)]
    pub(crate) path: String,
    /// Requests in a batch, which is sent at once
    #[arg(long, default_value_t = 1)]
    pub(crate) batch: usize,
    /// Request that the server close the connection, and open a new one for the next batch
    #[arg(long)]
    pub(crate) close: bool,
}

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerKind {
    /// A baseline: the smallest program that does the work.
    Floor,
    /// An application on a mechanism.
    App,
    /// This project's web server, configured as its program configures it.
    Httpd,
    /// nginx; the mechanism is the name of a configuration.
    Nginx,
    /// lighttpd; the mechanism is its event handler.
    Lighttpd,
    /// haproxy.
    Haproxy,
    /// h2o.
    H2o,
    /// hyper on tokio.
    Hyper,
    /// A router of axum on hyper.
    Axum,
    /// may_minihttp.
    MayMinihttp,
    /// The example proxy, on a mechanism.
    Proxy,
    /// This project's web server with a policy for sending files: `MECHANISM/POLICY`.
    Delivery,
    /// This project's web server with further settings: `MECHANISM/SETTING`.
    Variant,
    /// A blocking process for each connection; the mechanism is `read-write` or `sendfile`.
    Plain,
    /// memcached.
    Memcached,
}

/// The requests that a server receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Echo the received bytes.
    Echo,
    /// Serve a file of 12 bytes over HTTP.
    File,
    /// Nine `get` and one `set` in ten requests to a cache, one at a time.
    Kv,
    /// 16 `get` lines at once.
    KvGets,
    /// One `get` line with 16 keys.
    KvMultiget,
}

impl Workload {
    /// The path of the file.
    pub(crate) const PATH: &str = "/hello.txt";

    /// Returns the name on the command line and in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Echo => "echo",
            Workload::File => "file",
            Workload::Kv => "kv",
            Workload::KvGets => "kv-gets",
            Workload::KvMultiget => "kv-multiget",
        }
    }

    /// Returns the number of requests that a client sends at once; each key of a `get` line is one.
    pub(crate) fn batch(self) -> usize {
        match self {
            Workload::Echo | Workload::File | Workload::Kv => 1,
            Workload::KvGets | Workload::KvMultiget => 16,
        }
    }

    /// The bytes to echo.
    pub(crate) const ECHO: [u8; 64] = [b'e'; 64];
}

impl Serve {
    /// Returns the root directory, or an error if none was given.
    pub(crate) fn root(&self) -> Result<&Path, Failure> {
        let missing = || Failure::Request("missing option --root".to_owned());
        self.root.as_deref().ok_or_else(missing)
    }
}

impl ServerKind {
    /// Returns the name on the command line and in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ServerKind::Floor => "floor",
            ServerKind::App => "app",
            ServerKind::Httpd => "httpd",
            ServerKind::Nginx => "nginx",
            ServerKind::Lighttpd => "lighttpd",
            ServerKind::Haproxy => "haproxy",
            ServerKind::H2o => "h2o",
            ServerKind::Hyper => "hyper",
            ServerKind::Axum => "axum",
            ServerKind::MayMinihttp => "may-minihttp",
            ServerKind::Proxy => "proxy",
            ServerKind::Delivery => "delivery",
            ServerKind::Variant => "variant",
            ServerKind::Plain => "plain",
            ServerKind::Memcached => "memcached",
        }
    }
}
