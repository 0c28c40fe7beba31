//! The server under test.

mod axum;
mod external;
mod externals;
mod h2o;
mod haproxy;
mod hyper;
mod lighttpd;
mod may_minihttp;
mod memcached;
mod nginx;
mod plain;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::FromStr;
use std::thread;
use std::time::Duration;
use std::{fs, process};

use ash_sandbox::sandbox::{Policy, Sandboxer};
use evring::sockets::{BufferSizes, ListeningSocket};
use evring::{Admission, AnyMechanism, Application, Config, FileDelivery, Root, Stats};
use evring_httpd::handlers::SandboxedHandler;
use evring_httpd::options::{Compression, Limits, TlsOptions};
use evring_httpd::{Builder, Head};
use examples::{Proxy, Timeouts};
use rustix::net::{Shutdown, shutdown, sockopt};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Map, Value, json};

use crate::allocator;
use crate::command::{Serve, ServerKind, Workload};
use crate::failure::Failure;
use crate::floors::{self, Task};
use crate::measure::{CERTIFICATE, HELLO, KEY, join, pin, raise_descriptors};

pub(crate) use externals::named;

/// An address whose port the kernel chooses.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Time that the server gives a client for a head, for progress in a body, and between two requests.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_millis(2_500);

/// Maximum time for a server to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until the end of standard input, then prints its counters.
pub(crate) fn serve(options: &Serve) -> Result<(), Failure> {
    pin(&options.cores)?;
    raise_descriptors();
    if let Some(group) = &options.group {
        join(group).map_err(|e| {
            Failure::new(format_args!("cannot join the control group {}", group.display()), e)
        })?;
    }
    // The server ends with its parent, even if the parent is killed.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let counters_json = match options.what {
        ServerKind::Floor => floor(options)?,
        ServerKind::App => application(options)?,
        ServerKind::Httpd => httpd(options, &options.mechanism, Sending::default())?,
        ServerKind::Delivery => delivery(options)?,
        ServerKind::Variant => variant(options)?,
        ServerKind::Plain => plain(options)?,
        ServerKind::Proxy => proxy(options)?,
        other => {
            let unknown = || Failure::Request(format!("{} is not a server", other.name()));
            return named(other).ok_or_else(unknown)?.exec(options, HELLO);
        }
    };
    println!("{counters_json}");
    Ok(())
}

fn floor(options: &Serve) -> Result<Value, Failure> {
    let name = &options.mechanism;
    let serve = floors::named(name)
        .ok_or_else(|| Failure::Request(format!("there is no floor `{name}`")))?;
    let task = match (options.work, &options.reply) {
        (Workload::Echo, _) => Task::Echo,
        (Workload::File, Some(path)) => Task::Reply(fs::read(path)?.leak()),
        (Workload::File, None) => {
            return Err(Failure::Request("missing option --reply".to_owned()));
        }
        (Workload::Kv | Workload::KvGets | Workload::KvMultiget, _) => {
            return Err(Failure::Request("no floor is a cache".to_owned()));
        }
    };
    let listener = listen(options)?;
    let handle = listener.try_clone()?;
    handle_input(options, listener.local_addr()?, move || {
        // Fails only if the floor has already ended.
        let _ = shutdown(&handle, Shutdown::Both);
    });
    let calls = serve(listener, task).map_err(|e| Failure::new(format_args!("floor {name}"), e))?;
    Ok(json!({ "system_calls": calls }))
}

fn listen(options: &Serve) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(ANY_PORT)?;
    // As in the mechanisms; accepted sockets inherit it.
    sockopt::set_tcp_nodelay(&listener, true)?;
    rustix::net::listen(&listener, options.backlog.cast_signed())?;
    Ok(listener)
}

fn application(options: &Serve) -> Result<Value, Failure> {
    match options.work {
        Workload::Echo => on_mechanism(options, examples::Echo),
        Workload::File => on_mechanism(options, evring_httpd::Site::new(Some(Root(0)))),
        Workload::Kv | Workload::KvGets | Workload::KvMultiget => {
            let kv = kv::Kv::with_memory(memcached::CACHE_BYTES, 0);
            on_mechanism(options, kv.map_err(|e| Failure::new("the cache", e))?)
        }
    }
}

/// Runs an HTTP proxy, which connects to its upstream only after a request.
fn proxy(options: &Serve) -> Result<Value, Failure> {
    let missing = || Failure::Request("missing option --upstream".to_owned());
    let upstream = options.upstream.ok_or_else(missing)?;
    on_mechanism(options, Proxy::new(upstream, Timeouts::default()).connecting_late())
}

fn on_mechanism(options: &Serve, app: impl Application + 'static) -> Result<Value, Failure> {
    let config = Config::default().with(|c| {
        c.listen = vec![ANY_PORT];
        c.roots = options.root.iter().cloned().collect();
        c.max_connections = 19_500;
        c.backlog = options.backlog;
        c.admission = admission(options);
        c.drain_timeout = Duration::from_secs(1);
    });
    let server = AnyMechanism::new(&options.mechanism, &config)
        .map_err(|e| Failure::new(&options.mechanism, e))?;
    let remote = server.remote();
    handle_input(options, server.addresses()[0], move || remote.stop());
    let stats = server.run(app);
    Ok(counters(&stats.map_err(|e| Failure::new(&options.mechanism, e))?))
}

/// Returns the default admission control, unless it is disabled.
fn admission(options: &Serve) -> Option<Admission> {
    (!options.unbounded).then(Admission::default)
}

/// How files are sent.
#[derive(Clone, Copy, Default)]
struct Sending {
    policy: FileDelivery,
    /// See [`Config::max_unsent_bytes`].
    max_unsent_bytes: Option<u32>,
}

impl FromStr for Sending {
    type Err = String;

    /// Parses a policy, or `POLICY+KIB` with a limit of unsent bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((policy, kib)) = text.split_once('+') else {
            return Ok(Sending { policy: text.parse()?, max_unsent_bytes: None });
        };
        let bytes = kib.parse().ok().and_then(|kib: u32| kib.checked_mul(1024));
        let bytes = bytes.ok_or_else(|| format!("`{kib}` is not a number of KiB"))?;
        Ok(Sending { policy: policy.parse()?, max_unsent_bytes: Some(bytes) })
    }
}

/// Runs the web server with a policy for sending files.
fn delivery(options: &Serve) -> Result<Value, Failure> {
    let (mechanism, sending) = split(options)?;
    httpd(options, mechanism, sending.parse().map_err(Failure::Request)?)
}

/// Returns the parts of `MECHANISM/POLICY` or `MECHANISM/SETTING`.
fn split(options: &Serve) -> Result<(&str, &str), Failure> {
    let expected = || Failure::Request("expected a mechanism, a slash and a setting".to_owned());
    options.mechanism.split_once('/').ok_or_else(expected)
}

/// Runs the web server with a setting: `tls` with the certificate of the site, `gzip-LEVEL` without
/// a cache, `uncached` without a search for precompressed files, `observed` with metrics and an access log, `router`
/// with a router of axum, `slow` and `slow-tls` with short time-outs, or `plain`.
fn variant(options: &Serve) -> Result<Value, Failure> {
    let (mechanism, setting) = split(options)?;
    run_web_server(options, mechanism, server_with(options, mechanism, setting)?)
}

fn server_with(options: &Serve, mechanism: &str, setting: &str) -> Result<Builder, Failure> {
    let root = options.root()?;
    if setting == "router" {
        let router = axum::router(HELLO);
        let server = server_of_files(options, mechanism, Sending::default())?;
        return Ok(server.route("/hello", router.clone()).route("/", router));
    }
    let server = web_server(options, mechanism, Sending::default())?;
    Ok(match setting {
        "plain" => server,
        "tls" => server.tls(tls_of(root)),
        "slow" => server.limits(impatient()),
        "slow-tls" => server.limits(impatient()).tls(tls_of(root)),
        "gzip-1" | "gzip-2" => {
            let mut compression = Compression::default();
            compression.levels = setting.replace('-', ":").parse().map_err(Failure::Request)?;
            server.compression(compression).limits(without_cache())
        }
        "uncached" => server.limits(without_cache()).precompressed(false),
        "observed" => server.metrics_listen(ANY_PORT).access_log(root.join("access.log").into()),
        other => return Err(Failure::Request(format!("there is no setting `{other}`"))),
    })
}

/// Runs a blocking process for each connection.
fn plain(options: &Serve) -> Result<Value, Failure> {
    let unknown = || Failure::Request(format!("there is no method `{}`", options.mechanism));
    let method = plain::Method::named(&options.mechanism).ok_or_else(unknown)?;
    let listener = listen(options)?;
    if let Some(bytes) = options.send_buffer {
        sockopt::set_socket_send_buffer_size(&listener, bytes).map_err(io::Error::from)?;
    }
    plain::start(&listener, options.root()?, method, options.processes)
        .map_err(|e| Failure::new("cannot start the processes", e))?;
    let address = listener.local_addr()?;
    handle_input(options, address, move || {
        // Fails only if the server has already ended.
        let _ = shutdown(&listener, Shutdown::Both);
    });
    plain::wait_for_processes();
    Ok(json!({ "system_calls": 0 }))
}

/// Runs the web server with a policy for sending files.
fn httpd(options: &Serve, mechanism: &str, sending: Sending) -> Result<Value, Failure> {
    run_web_server(options, mechanism, web_server(options, mechanism, sending)?)
}

/// Returns limits without one for the requests of a connection.
fn unlimited() -> Limits {
    let mut limits = Limits::default();
    limits.max_keep_alive_requests = u32::MAX;
    limits
}

/// Returns limits with short time-outs.
fn impatient() -> Limits {
    let mut limits = unlimited();
    limits.header_timeout = SLOW_CLIENT_TIMEOUT;
    limits.keep_alive_timeout = SLOW_CLIENT_TIMEOUT;
    limits.progress_interval = SLOW_CLIENT_TIMEOUT;
    limits
}

/// Returns the settings of TLS with the certificate of a site.
fn tls_of(root: &Path) -> TlsOptions {
    TlsOptions::files(root.join(CERTIFICATE), root.join(KEY))
}

/// Returns the same, without a cache of files.
fn without_cache() -> Limits {
    let mut limits = unlimited();
    limits.cache_bytes = 0;
    limits
}

/// Returns the web server, configured as its program configures it, with a handler.
fn web_server(options: &Serve, mechanism: &str, sending: Sending) -> Result<Builder, Failure> {
    let server = server_of_files(options, mechanism, sending)?;
    Ok(server.route("/hello", |_: &Head<'_>| HELLO))
}

/// Returns the same without the handler.
fn server_of_files(options: &Serve, mechanism: &str, sending: Sending) -> Result<Builder, Failure> {
    let config = Config::default().with(|c| {
        c.send_policy = sending.policy.send_policy();
        c.max_unsent_bytes = sending.max_unsent_bytes;
        c.socket_buffers = BufferSizes { send: options.send_buffer, receive: None };
        c.backlog = options.backlog;
        c.admission = admission(options);
        c.max_connections = 15_000;
    });
    let mut server = evring_httpd::Server::builder()
        .backend(mechanism)
        .config(config)
        .limits(unlimited())
        .files(options.root()?)
        .workers(options.cores.len() as u16)
        .lab_routes();
    if let Some(path) = &options.handler {
        let handler = sandboxed(path)?;
        // Requests land in its memory, except under valgrind, where the server inherits its socket.
        server = server.sandbox(if options.alone { handler } else { handler.listener(ANY_PORT) });
    }
    Ok(server)
}

fn run_web_server(options: &Serve, mechanism: &str, server: Builder) -> Result<Value, Failure> {
    let ended = |e| Failure::new(mechanism, e);
    let server = if options.alone {
        // Under valgrind 3.19 a worker that waits in io_uring_enter keeps this thread from running.
        let socket = ListeningSocket::try_from(OwnedFd::from(listen(options)?))?;
        println!("{}", socket.address());
        server.inherit(vec![socket]).start().map_err(ended)?
    } else {
        let server = server.listen(ANY_PORT).start().map_err(ended)?;
        let handle = server.handle();
        handle_input(options, server.addresses()[0], move || handle.stop());
        server
    };
    let workers = server.wait().map_err(ended)?;
    Ok(counters(&workers[0]))
}

/// Loads a handler, whose budget is not used up.
fn sandboxed(path: &Path) -> Result<SandboxedHandler, Failure> {
    let policy = Policy::default().with(|p| p.operations_per_second = u64::MAX / 4);
    let sandboxer = Sandboxer::new(policy).map_err(|e| Failure::new("the sandbox", e))?;
    let ash = sandboxer.load(&fs::read(path)?).map_err(|e| Failure::new("the handler", e))?;
    Ok(SandboxedHandler::new("handler", ash))
}

fn counters(stats: &Stats) -> Value {
    let kernel = stats.kernel.each().map(|(name, count)| (name.to_owned(), count.into()));
    Value::Object(kernel.collect::<Map<_, _>>())
}

/// Prints the address. A thread answers every line of standard input with the allocation counters, and
/// stops the server at end of input.
fn handle_input(options: &Serve, address: SocketAddr, stop: impl FnOnce() + Send + 'static) {
    println!("{address}");
    if options.alone {
        return;
    }
    thread::spawn(move || {
        let mut input = [0; 64];
        while let Ok(n @ 1..) = rustix::io::read(io::stdin(), &mut input[..]) {
            input[..n].iter().filter(|b| **b == b'\n').for_each(|_| print_counts());
        }
        stop();
        thread::sleep(STOP_TIMEOUT);
        eprintln!("lab: the server did not stop within 5 s");
        process::exit(3);
    });
}

/// Prints the allocation counters. Does not allocate, as that would change them.
fn print_counts() {
    let (allocations, live) = (allocator::calls(), allocator::live());
    let mut line = [0; 96];
    let mut remaining = &mut line[..];
    writeln!(remaining, "{{\"allocations\":{allocations},\"live\":{live}}}")
        .expect("the line is short");
    let length = 96 - remaining.len();
    // A closed pipe is not an error.
    let _ = rustix::io::write(io::stdout(), &line[..length]);
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    #[test]
    fn a_server_could_not_start_with_its_setting() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(dir.path().join(CERTIFICATE), made.cert.pem()).unwrap();
        fs::write(dir.path().join(KEY), made.signing_key.serialize_pem()).unwrap();
        let root = dir.path().to_str().unwrap();
        let flags = ["serve", "--what", "variant", "--mechanism", "epoll/plain", "--root", root];
        let flags = Serve::augment_args(Command::new("serve")).get_matches_from(flags);
        let options = Serve::from_arg_matches(&flags).unwrap();
        for setting in [
            "plain", "router", "tls", "slow", "slow-tls", "gzip-1", "gzip-2", "uncached",
            "observed",
        ] {
            let server = server_with(&options, "epoll", setting).unwrap();
            server.check().unwrap_or_else(|error| panic!("{setting}: {error}"));
        }
    }

    #[test]
    fn policy_and_limit_of_unsent_bytes_are_parsed() {
        let parse = |text: &str| {
            text.parse::<Sending>().map(|sending| (sending.policy, sending.max_unsent_bytes))
        };
        assert_eq!(parse("ded"), Ok((FileDelivery::Ded, None)));
        assert_eq!(parse("dns+16"), Ok((FileDelivery::Dns, Some(16 * 1024))));
        for wrong in ["dnx", "dnx+16", "dns+", "dns+4194304"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
