//! Options of `lab load`.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use load_generator::{
    Arrivals, CloseMode, LoadModel, Plan, Request, Session, SlowClients, parse_sessions,
};
use rustix::process::{Resource, getrlimit};

use super::target::Target;
use crate::failure::Failure;
use crate::measure::raise_descriptors;

/// Options of `lab load`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// URL to request, such as http://127.0.0.1:8080/index.html
    pub(super) url: String,

    /// Open loop: arrivals per second, whether or not the server keeps up. An arrival is a new
    /// connection with its requests or, with --connections, a single request
    #[arg(long, short, value_name = "N", allow_negative_numbers = true)]
    rate: Option<f64>,

    /// Distribution of the intervals between arrivals
    #[arg(long, value_name = "HOW", default_value = "poisson", requires = "rate")]
    arrivals: ArrivalKind,

    /// Without --rate: number of clients of a closed loop (default 64), each of which sends its
    /// next request after a reply. With --rate: number of persistent connections for the requests
    #[arg(long, short, value_name = "N")]
    connections: Option<u32>,

    /// Requests per connection, which is closed after them. Default: 1 in an open loop; in a closed
    /// loop, until the server closes the connection
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "sessions")]
    requests: Option<u64>,

    /// Method of closing a connection after its last request
    #[arg(long, value_name = "MODE", default_value = "server")]
    close_mode: CloseKind,

    /// Maximum number of requests in flight per connection (pipelining)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pipeline: usize,

    /// Session file in the format of httperf's --wsesslog: one line per request, such as
    /// `/index.html size=1024 think=0.5`, and an empty line between sessions. Further option:
    /// `method=HEAD`. A # begins a comment. Indentation has no meaning
    #[arg(long, value_name = "FILE")]
    sessions: Option<PathBuf>,

    /// Length of the measurement period
    #[arg(long, short, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,

    /// Length of the warm-up before the measurement period
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,

    /// End with the measurement period, instead of waiting for the replies to its requests
    #[arg(long)]
    no_drain: bool,

    /// Multiplies the rate during the warm-up, to measure how the server recovers
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, requires = "rate")]
    burst: f64,

    /// Request timeout, from when the request was due; on expiry its connection is reset
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,

    /// Local source addresses, used round-robin, such as 127.0.0.2-127.0.0.17; each has its ports
    #[arg(long, value_name = "FIRST-LAST", value_parser = addresses)]
    sources: Option<Addresses>,

    /// Receive buffer of each connection, in bytes; the kernel doubles it. Default: the kernel adjusts it, up to
    /// net.ipv4.tcp_rmem
    #[arg(long, value_name = "BYTES")]
    receive_buffer: Option<u32>,

    /// Additional idle connections, opened before the load starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle_connections: u32,

    /// Additional clients that receive their replies slowly
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow_readers: u32,

    /// Additional clients that send their requests slowly, one byte at a time
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow_senders: u32,

    /// Session file with the requests of slow clients, which make them in turn. Default: the first request
    #[arg(long, value_name = "FILE")]
    slow_sessions: Option<PathBuf>,

    /// Time over which the first requests of slow clients are spread
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    slow_spread: Duration,

    /// Rate of each slow client, in bytes per second
    #[arg(long, value_name = "BYTES", default_value_t = 1000)]
    slow_rate: u32,

    /// Receive buffer of each slow reader, in bytes; the kernel doubles it
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    slow_buffer: u32,

    /// Maximum number of open connections [default: as many as the descriptor limit permits]
    #[arg(long, value_name = "N")]
    max_open: Option<u32>,

    /// Request method
    #[arg(long, value_name = "NAME", default_value = "GET", value_parser = method)]
    method: String,

    /// Additional request header, such as 'Accept-Encoding: gzip'; may be repeated
    #[arg(long, short = 'H', value_name = "FIELD", value_parser = field)]
    header: Vec<String>,

    /// Expected length of each reply's body
    #[arg(long, value_name = "BYTES")]
    expect: Option<u64>,

    /// Length of the intervals of the time series and of the progress display
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Seed of the random number generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Poll without sleeping; otherwise the server's replies wake the generator's core, which costs
    /// the server CPU time under low load
    #[arg(long)]
    busy_poll: bool,

    /// Pin the generator to this core
    #[arg(long, value_name = "N")]
    pub(super) core: Option<usize>,

    /// Write all results to this file as JSON; `-` for standard output, instead of the summary
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write the time series to this file as CSV; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,

    /// Write one line per request to this file as CSV, in order of completion; `-` for standard
    /// output
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Mark the measurement period by lines on standard error
    #[arg(long, hide = true)]
    pub(super) mark: bool,

    /// Permit a server that is not on this machine; it must be your own
    #[arg(long)]
    anywhere: bool,
}

/// Distribution of the intervals between arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalKind {
    /// Exponential intervals, as with many independent clients
    Poisson,
    /// Equal intervals
    Fixed,
}

/// Method of closing a connection after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CloseKind {
    /// The server closes, as requested by `Connection: close`
    Server,
    /// The client closes after the reply
    Client,
    /// The client resets the connection, which leaves no port in TIME_WAIT
    Reset,
}

/// A list of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Addresses(Vec<IpAddr>);

/// Default number of clients in a closed loop.
const DEFAULT_CONNECTIONS: u32 = 64;
/// Maximum number of addresses in a range.
const MAX_ADDRESSES: u32 = 4096;

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "expected a number of seconds, such as 30 or 0.5".to_owned())
}

fn addresses(text: &str) -> Result<Addresses, String> {
    let address = |text: &str| {
        text.trim().parse::<IpAddr>().map_err(|_| format!("`{text}` is not an IP address"))
    };
    let Some((first, last)) = text.split_once('-') else {
        return Ok(Addresses(vec![address(text)?]));
    };
    let (IpAddr::V4(first), IpAddr::V4(last)) = (address(first)?, address(last)?) else {
        return Err("only IPv4 addresses can form a range".to_owned());
    };
    let (first, last) = (u32::from(first), u32::from(last));
    if first > last || last - first >= MAX_ADDRESSES {
        return Err(format!("a range must have between 1 and {MAX_ADDRESSES} addresses"));
    }
    Ok(Addresses((first..=last).map(|bits| IpAddr::V4(bits.into())).collect()))
}

fn method(text: &str) -> Result<String, String> {
    let is_token = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
    is_token.then(|| text.to_owned()).ok_or_else(|| "expected a method such as HEAD".to_owned())
}

fn field(text: &str) -> Result<String, String> {
    let well_formed = text.split_once(':').is_some_and(|(name, value)| {
        http::HeaderName::from_bytes(name.as_bytes()).is_ok()
            && http::HeaderValue::from_str(value.trim()).is_ok()
    });
    if well_formed { Ok(format!("{text}\r\n")) } else { Err("expected `Name: value`".to_owned()) }
}

fn is_host(field: &str) -> bool {
    field.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case("host"))
}

/// Reads a session file.
fn session_file(path: &Path, host: &str, fields: &str) -> Result<Vec<Session>, Failure> {
    let failure = |message: String| Failure::Request(format!("{}: {message}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| failure(e.to_string()))?;
    parse_sessions(&text, host, fields).map_err(|e| failure(e.to_string()))
}

impl Load {
    /// Returns the plan for the options.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let target = Target::parse(&self.url)?;
        if !self.anywhere {
            target.check()?;
        }
        let arrivals = match self.arrivals {
            ArrivalKind::Poisson => Arrivals::Poisson,
            ArrivalKind::Fixed => Arrivals::Fixed,
        };
        let model = match (self.rate, self.connections) {
            (None, connections) => {
                LoadModel::Closed { connections: connections.unwrap_or(DEFAULT_CONNECTIONS) }
            }
            (Some(rate), None) => LoadModel::OpenSessions { rate, arrivals },
            (Some(rate), Some(connections)) => {
                LoadModel::OpenRequests { rate, arrivals, connections }
            }
        };
        let plan = Plan {
            target: target.address,
            sessions: self.sessions(&target, model)?,
            model,
            pipeline_depth: self.pipeline,
            close_mode: match self.close_mode {
                CloseKind::Server => CloseMode::Server,
                CloseKind::Client => CloseMode::Client,
                CloseKind::Reset => CloseMode::Reset,
            },
            timeout: self.timeout,
            sources: self.sources.clone().map_or(Vec::new(), |addresses| addresses.0),
            receive_buffer: self.receive_buffer,
            idle_connections: self.idle_connections,
            slow: (self.slow_readers > 0 || self.slow_senders > 0).then_some(SlowClients {
                readers: self.slow_readers,
                senders: self.slow_senders,
                bytes_per_second: self.slow_rate,
                receive_buffer: self.slow_buffer,
            }),
            slow_requests: self.slow_requests(&target)?,
            slow_spread: self.slow_spread,
            warm_up: self.warm_up,
            drain: !self.no_drain,
            burst: self.burst,
            duration: self.duration,
            interval: self.interval,
            max_open: self.max_open()?,
            busy_poll: self.busy_poll,
            seed: self.seed,
            log_requests: self.log.is_some(),
        };
        plan.validate().map_err(|invalid| Failure::Request(invalid.to_string()))?;
        for source in &plan.sources {
            UdpSocket::bind((*source, 0)).map_err(|e| {
                Failure::Request(format!("cannot connect from {source}: {e}; use a local address"))
            })?;
        }
        Ok(plan)
    }

    fn sessions(&self, target: &Target, model: LoadModel) -> Result<Vec<Session>, Failure> {
        let (hosts, fields): (Vec<_>, Vec<_>) =
            self.header.iter().map(String::as_str).partition(|field| is_host(field));
        let fields = fields.concat();
        let host_field = hosts.last().and_then(|field| field.split_once(':'));
        let host = host_field.map_or(target.host.as_str(), |(_, host)| host.trim());
        if let Some(path) = &self.sessions {
            return session_file(path, host, &fields);
        }
        let request = Request::new(&self.method, &target.path, host, &fields);
        let requests = vec![request.with_expected_len(self.expect)];
        let rounds = match (self.requests, model) {
            (Some(_), LoadModel::OpenRequests { .. }) => {
                let message = "--requests cannot limit the persistent connections of --rate with --connections";
                return Err(Failure::Request(message.to_owned()));
            }
            (Some(0), _) => {
                return Err(Failure::Request("--requests must be at least 1".to_owned()));
            }
            (Some(n), _) => n,
            (None, LoadModel::OpenSessions { .. }) => 1,
            (None, _) => Session::FOREVER,
        };
        Ok(vec![Session { requests, rounds }])
    }

    /// Returns the requests of slow clients, if there is a file of them.
    fn slow_requests(&self, target: &Target) -> Result<Vec<Request>, Failure> {
        let Some(path) = &self.slow_sessions else { return Ok(Vec::new()) };
        let sessions = session_file(path, &target.host, "")?;
        Ok(sessions.into_iter().flat_map(|session| session.requests).collect())
    }

    /// Returns the maximum number of connections: the requested one, or the descriptor limit.
    fn max_open(&self) -> Result<u32, Failure> {
        raise_descriptors();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let available =
            descriptors.saturating_sub(Plan::RESERVED_DESCRIPTORS.into()).clamp(1, 1 << 20) as u32;
        let connections = [
            self.connections.unwrap_or(0),
            self.idle_connections,
            self.slow_readers,
            self.slow_senders,
        ];
        let connections = connections.map(u64::from).iter().sum::<u64>();
        let connections = connections.max(self.max_open.unwrap_or(0).into());
        if connections > available.into() {
            return Err(Failure::Request(format!(
                "{connections} connections require {} descriptors, but the limit is {descriptors}; \
                 raise it with ulimit -Hn",
                connections + u64::from(Plan::RESERVED_DESCRIPTORS)
            )));
        }
        Ok(self.max_open.unwrap_or(available))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Lab};
    use clap::Parser;

    fn plan(words: &str) -> Result<Plan, String> {
        let words = ["lab", "load"].into_iter().chain(words.split(' '));
        let lab = Lab::try_parse_from(words).map_err(|e| e.to_string())?;
        let Command::Load(options) = lab.command else { panic!("expected `load`") };
        options.plan().map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_make_a_plan() {
        let closed = plan("127.0.0.1:80/x").unwrap();
        assert_eq!(closed.model, LoadModel::Closed { connections: 64 });
        assert_eq!(closed.sessions[0].rounds, Session::FOREVER);
        let open = plan("127.0.0.1:80/ --rate 50 --arrivals fixed").unwrap();
        assert_eq!(open.model, LoadModel::OpenSessions { rate: 50.0, arrivals: Arrivals::Fixed });
        assert_eq!(open.sessions[0].rounds, 1);
        let persistent = plan("127.0.0.1:80/ -r 50 -c 3 --sources 127.0.0.2-127.0.0.17").unwrap();
        let arrivals = Arrivals::Poisson;
        assert_eq!(
            persistent.model,
            LoadModel::OpenRequests { rate: 50.0, arrivals, connections: 3 }
        );
        let last = persistent.sources[15].to_string();
        assert_eq!((persistent.sources.len(), last.as_str()), (16, "127.0.0.17"));
        assert_eq!(plan("127.0.0.1:80/ -n 20").unwrap().sessions[0].rounds, 20);
    }

    #[test]
    fn invalid_options_are_rejected() {
        let rejects = |words: &str, expected: &str| {
            let message = plan(words).unwrap_err();
            assert!(message.contains(expected), "{message}");
        };
        rejects("127.0.0.1/ --rate 0", "the rate must be between");
        rejects("127.0.0.1/ --rate -5", "the rate must be between");
        rejects("127.0.0.1/ --arrivals fixed", "--rate <N>");
        rejects("127.0.0.1/ --burst 3", "--rate <N>");
        rejects("127.0.0.1/ --rate 5 --burst 0.5", "between 1 and 1000 times the rate");
        rejects("127.0.0.1/ --sources 192.0.2.77", "cannot connect from 192.0.2.77");
        rejects("127.0.0.1/ --rate 1e12", "1000000 per second");
        rejects("127.0.0.1/ --rate many", "invalid value 'many'");
        rejects("127.0.0.1/ --connections 0", "at least one connection");
        rejects("127.0.0.1/ --connections 4000000000", "descriptors, but the limit is");
        rejects("127.0.0.1/ --duration soon", "a number of seconds");
        rejects("127.0.0.1/ --duration 0", "the duration must be greater than 0");
        rejects("127.0.0.1/ -r 5 -c 2 -n 3", "--requests cannot limit");
        rejects("127.0.0.1/ --receive-buffer 0", "the receive buffer must be between 1 and");
        rejects("127.0.0.1/ --requests 0", "--requests must be at least 1");
        rejects("127.0.0.1/ --sources 127.0.0.9-127.0.0.2", "between 1 and 4096");
        rejects("127.0.0.1/ --sources here", "`here` is not an IP address");
        rejects("127.0.0.1/ --sources ::1", "cannot connect from ::1 to");
        rejects("127.0.0.1/ --sessions /nowhere/at/all", "No such file");
        rejects("127.0.0.1/ -H nonsense", "expected `Name: value`");
        rejects("127.0.0.1/ --method G:T", "a method such as HEAD");
    }
}
