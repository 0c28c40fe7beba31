//! What can be asked of the lab.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::failure::Failure;
use crate::load::Load;

/// Below the options of `lab load`.
const TIMES: &str = "\
Times run from the moment at which a request was due, whatever delayed it, this program included: \
`connect` until its connection was there, `response` until its good reply was whole. `lag` is how \
late after that moment this program began it; beyond 1 ms for one request in a hundred the figures \
are not to be trusted, and it says so.

Ends with 0 when the load was made to its end and some reply was good, with 2 for a request that \
makes no sense, and with 1 otherwise; what was seen until then is told.";

/// Measures the mechanisms, on the machine at hand.
#[derive(Parser)]
#[command(name = "lab", version)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show the experiments
    List(List),
    /// Run an experiment
    Run(Run),
    /// Make one HTML file of the last runs, with plots and tables
    Report(Report),
    /// Make load on a web server, and tell how it bears it
    #[command(after_help = TIMES)]
    Load(Box<Load>),
    /// Be a server under test: address on standard output, counts for every line on standard
    /// input, at whose end it stops
    #[command(hide = true)]
    Serve(Serve),
    /// Be the load: for every line with a number on standard input make so many requests
    #[command(hide = true)]
    Client(Client),
}

#[derive(Args)]
pub(crate) struct List {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Which experiment; `lab list` shows them
    pub(crate) id: String,
    /// End within a minute, at the price of precision
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write the outcome to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) simulation: Simulation,
}

/// What only the experiment `simulate` takes.
#[derive(Args, Clone, Default)]
pub(crate) struct Simulation {
    /// For `simulate`: run this seed alone
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// For `simulate`: after how many steps of peers and network each run comes to its end
    /// [default: 2000]
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// For `simulate`: repeat the run that this file tells of, and show it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "steps"])]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Report {
    /// Where to write it [default: lab/report.html in cargo's target directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also write each figure as an SVG file of its own to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) figures: Option<PathBuf>,
    /// With these series only
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "figures")]
    pub(crate) series: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Serve {
    #[arg(long)]
    pub(crate) what: What,
    #[arg(long)]
    pub(crate) mechanism: String,
    #[arg(long, default_value = "file")]
    pub(crate) work: Workload,
    /// What a floor replies to a request for a file
    #[arg(long)]
    pub(crate) reply: Option<PathBuf>,
    /// The directory that the file server serves
    #[arg(long)]
    pub(crate) root: Option<PathBuf>,
    /// The control group to run in
    #[arg(long, value_name = "DIR")]
    pub(crate) group: Option<PathBuf>,
    /// The length of the listener's queue
    #[arg(long, default_value_t = 4096)]
    pub(crate) backlog: u32,
    /// Let in whatever comes, also more than can be served
    #[arg(long)]
    pub(crate) unbounded: bool,
    /// The cores to run on, with a worker for each
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(crate) cores: Vec<usize>,
    /// The server behind a proxy
    #[arg(long)]
    pub(crate) upstream: Option<SocketAddr>,
    /// Do without the thread that reads standard input; only a signal ends it then
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
    /// How long each reply is
    #[arg(long)]
    pub(crate) reply_bytes: usize,
}

/// What kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// The least program that does the work.
    Floor,
    /// An application on a mechanism.
    App,
    /// This project's web server as its program runs it.
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
    /// may_minihttp.
    MayMinihttp,
    /// The proxy of the examples, on a mechanism.
    Proxy,
}

/// What a server is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Send back what was received.
    Echo,
    /// Serve a file of 12 bytes over HTTP.
    File,
}

impl Workload {
    /// The file that is served.
    pub(crate) const PATH: &str = "/hello.txt";

    /// The word for it on the command line and in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Echo => "echo",
            Workload::File => "file",
        }
    }

    /// A request for it.
    pub(crate) fn request(self) -> &'static [u8] {
        match self {
            Workload::Echo => &[b'e'; 64],
            Workload::File => b"GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n\r\n",
        }
    }
}

impl Serve {
    /// The directory, for those who can't do without.
    pub(crate) fn root(&self) -> Result<&Path, Failure> {
        let missing = || Failure::Request("--root is missing".to_owned());
        self.root.as_deref().ok_or_else(missing)
    }
}

impl What {
    /// The word for it on the command line and in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Floor => "floor",
            What::App => "app",
            What::Httpd => "httpd",
            What::Nginx => "nginx",
            What::Lighttpd => "lighttpd",
            What::Haproxy => "haproxy",
            What::H2o => "h2o",
            What::Hyper => "hyper",
            What::MayMinihttp => "may-minihttp",
            What::Proxy => "proxy",
        }
    }
}
