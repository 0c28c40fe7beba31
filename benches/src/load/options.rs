//! What can be asked of `lab load`.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use load_generator::{Arrivals, Ask, Ending, Pace, Plan, Session, Slow, sessions};
use rustix::process::{Resource, getrlimit};

use super::target::Target;
use crate::failure::Failure;
use crate::measure::raise_descriptors;

/// What can be asked of `lab load`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Whom to ask for what, such as http://127.0.0.1:8080/index.html
    pub(super) url: String,

    /// Open loop: so many arrivals per second, whether or not the server keeps up. What arrives is
    /// a new connection with its requests or, with --connections, a single request
    #[arg(long, short, value_name = "N", allow_negative_numbers = true)]
    rate: Option<f64>,

    /// How far arrivals lie apart
    #[arg(long, value_name = "HOW", default_value = "poisson", requires = "rate")]
    arrivals: Spacing,

    /// Without --rate, a closed loop of so many clients (64 unless told), each of which asks again
    /// when it was answered. With --rate, so many connections are kept, on which requests are made
    #[arg(long, short, value_name = "N")]
    connections: Option<u32>,

    /// Requests of one connection, which ends then. Without this it is 1 in an open
    /// loop, and as many as the server allows in a closed one
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "sessions")]
    requests: Option<u64>,

    /// Who ends a connection after its last request
    #[arg(long, value_name = "WHO", default_value = "server")]
    ending: Ends,

    /// Most requests of one connection under way at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pipeline: usize,

    /// Sessions, as httperf's --wsesslog has them: a line for each request, such as
    /// `/index.html size=1024 think=0.5`, and an empty line between two sessions; `method=HEAD` may
    /// follow too, and what follows a # is a comment. Lines set in are requests like the others
    #[arg(long, value_name = "FILE")]
    sessions: Option<PathBuf>,

    /// For how long what becomes due counts
    #[arg(long, short, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,

    /// For how long load is made before
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,

    /// So many times the rate in that time: what follows shows how a server recovers
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, requires = "rate")]
    burst: f64,

    /// How long after it was due a request is given up, by a reset of its connection
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    deadline: Duration,

    /// Addresses of this machine to connect from in turn, such as 127.0.0.2-127.0.0.17; each has
    /// ports of its own
    #[arg(long, value_name = "FIRST-LAST", value_parser = addresses)]
    sources: Option<Addresses>,

    /// Further connections that are opened before anything else, and stay idle
    #[arg(long, value_name = "N", default_value_t = 0)]
    cold: u32,

    /// Further clients that take their replies slowly, a little at a time
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow_readers: u32,

    /// Further clients that send their requests slowly, a byte at a time
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow_senders: u32,

    /// Bytes per second of each of those
    #[arg(long, value_name = "BYTES", default_value_t = 1000)]
    slow_rate: u32,

    /// Most connections at a time [default: as many as the descriptors allow]
    #[arg(long, value_name = "N")]
    max_open: Option<u32>,

    /// The method of the requests
    #[arg(long, value_name = "NAME", default_value = "GET", value_parser = method)]
    method: String,

    /// A field of each request's head, such as 'Accept-Encoding: gzip'; may be given more than once
    #[arg(long, short = 'H', value_name = "FIELD", value_parser = field)]
    header: Vec<String>,

    /// Length of the body that each reply must have
    #[arg(long, value_name = "BYTES")]
    expect: Option<u64>,

    /// Length of the intervals of the time series, and of the display
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Decides whatever is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Never sleep: otherwise a server's replies have to wake the generator's core, which costs the server
    /// more the less there is to do
    #[arg(long)]
    busy: bool,

    /// Run on this core only
    #[arg(long, value_name = "N")]
    pub(super) core: Option<usize>,

    /// Write everything to this file, as JSON; `-` for standard output, where the summary is left out then
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write the time series to this file; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,

    /// Write a line for each request to this file, in the order of their ends; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Say on standard error when what becomes due begins to count, and when it ends to
    #[arg(long, hide = true)]
    pub(super) mark: bool,

    /// The server is mine, wherever it is
    #[arg(long)]
    anywhere: bool,
}

/// How far arrivals lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Spacing {
    /// At random, as those of many clients are
    Poisson,
    /// All alike
    Fixed,
}

/// Who ends a connection after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ends {
    /// The server, which is asked to by `Connection: close`
    Server,
    /// The client, when it has the reply
    Client,
    /// The client, by a reset, which leaves no port in use behind
    Reset,
}

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Addresses(Vec<IpAddr>);

/// Clients of a closed loop, unless told.
const CLIENTS: u32 = 64;
/// Most addresses of a range.
const MAX_ADDRESSES: u32 = 4096;

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "it must be a number of seconds, such as 30 or 0.5".to_owned())
}

fn addresses(text: &str) -> Result<Addresses, String> {
    let address =
        |text: &str| text.trim().parse::<IpAddr>().map_err(|_| format!("`{text}` is no address"));
    let Some((first, last)) = text.split_once('-') else {
        return Ok(Addresses(vec![address(text)?]));
    };
    let (IpAddr::V4(first), IpAddr::V4(last)) = (address(first)?, address(last)?) else {
        return Err("a range is one of IPv4 addresses".to_owned());
    };
    let (first, last) = (u32::from(first), u32::from(last));
    if first > last || last - first >= MAX_ADDRESSES {
        return Err(format!("a range has between 1 and {MAX_ADDRESSES} addresses"));
    }
    Ok(Addresses((first..=last).map(|bits| IpAddr::V4(bits.into())).collect()))
}

fn method(text: &str) -> Result<String, String> {
    let is_token = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
    is_token.then(|| text.to_owned()).ok_or_else(|| "it must be a word such as HEAD".to_owned())
}

fn field(text: &str) -> Result<String, String> {
    let well_formed = text.split_once(':').is_some_and(|(name, value)| {
        http::HeaderName::from_bytes(name.as_bytes()).is_ok()
            && http::HeaderValue::from_str(value.trim()).is_ok()
    });
    if well_formed {
        Ok(format!("{text}\r\n"))
    } else {
        Err("it must look like `Name: value`".to_owned())
    }
}

fn is_host(field: &str) -> bool {
    field.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case("host"))
}

impl Load {
    /// The plan that the options make.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let target = Target::parse(&self.url)?;
        if !self.anywhere {
            target.check()?;
        }
        let arrivals = match self.arrivals {
            Spacing::Poisson => Arrivals::Poisson,
            Spacing::Fixed => Arrivals::Fixed,
        };
        let pace = match (self.rate, self.connections) {
            (None, clients) => Pace::Closed { clients: clients.unwrap_or(CLIENTS) },
            (Some(rate), None) => Pace::Sessions { rate, arrivals },
            (Some(rate), Some(connections)) => Pace::Requests { rate, arrivals, connections },
        };
        let plan = Plan {
            to: target.address,
            sessions: self.asked(&target, pace)?,
            pace,
            depth: self.pipeline,
            ending: match self.ending {
                Ends::Server => Ending::Server,
                Ends::Client => Ending::Client,
                Ends::Reset => Ending::Reset,
            },
            deadline: self.deadline,
            sources: self.sources.clone().map_or(Vec::new(), |addresses| addresses.0),
            cold: self.cold,
            slow: (self.slow_readers > 0 || self.slow_senders > 0).then_some(Slow {
                readers: self.slow_readers,
                senders: self.slow_senders,
                rate: self.slow_rate,
            }),
            warm_up: self.warm_up,
            burst: self.burst,
            duration: self.duration,
            interval: self.interval,
            max_open: self.max_open()?,
            busy: self.busy,
            seed: self.seed,
            keep_log: self.log.is_some(),
        };
        plan.check().map_err(|invalid| Failure::Request(invalid.to_string()))?;
        for source in &plan.sources {
            UdpSocket::bind((*source, 0)).map_err(|e| {
                Failure::Request(format!("{source} is no address to connect from here: {e}"))
            })?;
        }
        Ok(plan)
    }

    fn asked(&self, target: &Target, pace: Pace) -> Result<Vec<Session>, Failure> {
        let (hosts, fields): (Vec<_>, Vec<_>) =
            self.header.iter().map(String::as_str).partition(|field| is_host(field));
        let fields = fields.concat();
        let named = hosts.last().and_then(|field| field.split_once(':'));
        let host = named.map_or(target.host.as_str(), |(_, host)| host.trim());
        if let Some(path) = &self.sessions {
            let named = |what: String| Failure::Request(format!("{}: {what}", path.display()));
            let text = fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
            return sessions(&text, host, &fields).map_err(|e| named(e.to_string()));
        }
        let ask = Ask::new(&self.method, &target.path, host, &fields);
        let requests = vec![ask.expecting(self.expect)];
        let rounds = match (self.requests, pace) {
            (Some(_), Pace::Requests { .. }) => {
                let what = "connections that are kept do not end after so many --requests";
                return Err(Failure::Request(what.to_owned()));
            }
            (Some(0), _) => {
                return Err(Failure::Request("a connection makes one request at least".to_owned()));
            }
            (Some(n), _) => n,
            (None, Pace::Sessions { .. }) => 1,
            (None, _) => Session::FOREVER,
        };
        Ok(vec![Session { requests, rounds }])
    }

    /// How many connections there may be: what was asked for, or what the descriptors allow.
    fn max_open(&self) -> Result<u32, Failure> {
        raise_descriptors();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = descriptors.saturating_sub(Plan::SPARE.into()).clamp(1, 1 << 20) as u32;
        let wanted =
            [self.connections.unwrap_or(0), self.cold, self.slow_readers, self.slow_senders];
        let wanted = wanted.map(u64::from).iter().sum::<u64>();
        let wanted = wanted.max(self.max_open.unwrap_or(0).into());
        if wanted > room.into() {
            return Err(Failure::Request(format!(
                "{wanted} connections need {} descriptors, but a process may have {descriptors} \
                 here (ulimit -Hn)",
                wanted + u64::from(Plan::SPARE)
            )));
        }
        Ok(self.max_open.unwrap_or(room))
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
        let Command::Load(options) = lab.command else { panic!("it is `load`") };
        options.plan().map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_make_a_plan() {
        let closed = plan("127.0.0.1:80/x").unwrap();
        assert_eq!(closed.pace, Pace::Closed { clients: 64 });
        assert_eq!(closed.sessions[0].rounds, Session::FOREVER);
        let open = plan("127.0.0.1:80/ --rate 50 --arrivals fixed").unwrap();
        assert_eq!(open.pace, Pace::Sessions { rate: 50.0, arrivals: Arrivals::Fixed });
        assert_eq!(open.sessions[0].rounds, 1);
        let kept = plan("127.0.0.1:80/ -r 50 -c 3 --sources 127.0.0.2-127.0.0.17").unwrap();
        let arrivals = Arrivals::Poisson;
        assert_eq!(kept.pace, Pace::Requests { rate: 50.0, arrivals, connections: 3 });
        assert_eq!((kept.sources.len(), kept.sources[15].to_string().as_str()), (16, "127.0.0.17"));
        assert_eq!(plan("127.0.0.1:80/ -n 20").unwrap().sessions[0].rounds, 20);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let refused = |words: &str, what: &str| {
            let said = plan(words).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        refused("127.0.0.1/ --rate 0", "a rate must lie between");
        refused("127.0.0.1/ --rate -5", "a rate must lie between");
        refused("127.0.0.1/ --arrivals fixed", "--rate <N>");
        refused("127.0.0.1/ --burst 3", "--rate <N>");
        refused("127.0.0.1/ --rate 5 --burst 0.5", "between 1 and 1000 times the rate");
        refused("127.0.0.1/ --sources 192.0.2.77", "no address to connect from here");
        refused("127.0.0.1/ --rate 1e12", "1000000 per second");
        refused("127.0.0.1/ --rate many", "invalid value 'many'");
        refused("127.0.0.1/ --connections 0", "at least one connection");
        refused("127.0.0.1/ --connections 4000000000", "descriptors, but a process may have");
        refused("127.0.0.1/ --duration soon", "a number of seconds");
        refused("127.0.0.1/ --duration 0", "the duration must lie above 0");
        refused("127.0.0.1/ -r 5 -c 2 -n 3", "do not end after so many");
        refused("127.0.0.1/ --requests 0", "one request at least");
        refused("127.0.0.1/ --sources 127.0.0.9-127.0.0.2", "between 1 and 4096");
        refused("127.0.0.1/ --sources here", "`here` is no address");
        refused("127.0.0.1/ --sources ::1", "can't connect to");
        refused("127.0.0.1/ --sessions /nowhere/at/all", "No such file");
        refused("127.0.0.1/ -H nonsense", "must look like `Name: value`");
        refused("127.0.0.1/ --method G:T", "a word such as HEAD");
    }
}
