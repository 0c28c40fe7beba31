//! A server under test.

mod external;
mod h2o;
mod haproxy;
mod hyper;
mod lighttpd;
mod may_minihttp;
mod nginx;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;
use std::{fs, process};

use evring::{Admission, AnyMechanism, Application, Config, Root, Stats};
use evring_httpd::Limits;
use examples::{Proxy, Timeouts};
use rustix::net::{Shutdown, shutdown, sockopt};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Map, Value, json};

use crate::allocator;
use crate::command::{Serve, What, Workload};
use crate::failure::Failure;
use crate::floors::{self, Task};
use crate::measure::{HELLO, join, pin, raise_descriptors};

pub(crate) use external::named;

/// How long a server may take to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the end of standard input, then says what it did.
pub(crate) fn serve(options: &Serve) -> Result<(), Failure> {
    pin(&options.cores)?;
    raise_descriptors();
    if let Some(group) = &options.group {
        join(group).map_err(|e| Failure::new(format_args!("joining {}", group.display()), e))?;
    }
    // Whatever becomes of the one who measures, no server is left behind.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let words = match options.what {
        What::Floor => floor(options)?,
        What::App => application(options)?,
        What::Httpd => httpd(options)?,
        What::Proxy => proxy(options)?,
        other => {
            let unknown = || Failure::Request(format!("{} can't be served", other.name()));
            return external::named(other).ok_or_else(unknown)?.become_it(options, HELLO);
        }
    };
    println!("{words}");
    Ok(())
}

fn floor(options: &Serve) -> Result<Value, Failure> {
    let name = &options.mechanism;
    let serve = floors::named(name)
        .ok_or_else(|| Failure::Request(format!("there is no floor called `{name}`")))?;
    let task = match (options.work, &options.reply) {
        (Workload::Echo, _) => Task::Echo,
        (Workload::File, Some(path)) => Task::Reply(fs::read(path)?.leak()),
        (Workload::File, None) => return Err(Failure::Request("--reply is missing".to_owned())),
    };
    let listener = listen(options)?;
    let handle = listener.try_clone()?;
    obey(options, listener.local_addr()?, move || {
        // It can only have ended by itself.
        let _ = shutdown(&handle, Shutdown::Both);
    });
    let calls = serve(listener, task).map_err(|e| Failure::new(format_args!("floor {name}"), e))?;
    Ok(json!({ "system_calls": calls }))
}

fn listen(options: &Serve) -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // What mechanisms set too, and sockets inherit.
    sockopt::set_tcp_nodelay(&listener, true)?;
    rustix::net::listen(&listener, options.backlog.cast_signed())?;
    Ok(listener)
}

fn application(options: &Serve) -> Result<Value, Failure> {
    match options.work {
        Workload::Echo => on_mechanism(options, examples::Echo),
        Workload::File => on_mechanism(options, evring_httpd::Site::new(Some(Root(0)))),
    }
}

/// An HTTP proxy, which has no use for the server behind before there is a request.
fn proxy(options: &Serve) -> Result<Value, Failure> {
    let missing = || Failure::Request("--upstream is missing".to_owned());
    let upstream = options.upstream.ok_or_else(missing)?;
    on_mechanism(options, Proxy::new(upstream, Timeouts::default()).connecting_late())
}

fn on_mechanism(options: &Serve, app: impl Application + 'static) -> Result<Value, Failure> {
    let config = Config {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        roots: options.root.iter().cloned().collect(),
        max_connections: 19_500,
        backlog: options.backlog,
        admission: admission(options),
        drain_timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let server = AnyMechanism::new(&options.mechanism, &config)
        .map_err(|e| Failure::new(&options.mechanism, e))?;
    let remote = server.remote();
    obey(options, server.addresses()[0], move || remote.stop());
    let stats = server.run(app);
    Ok(counters(&stats.map_err(|e| Failure::new(&options.mechanism, e))?))
}

/// As by default, if it is not switched off.
fn admission(options: &Serve) -> Option<Admission> {
    (!options.unbounded).then(Admission::default)
}

/// The web server as its program runs it, with a handler.
fn httpd(options: &Serve) -> Result<Value, Failure> {
    let config = Config {
        backlog: options.backlog,
        admission: admission(options),
        max_connections: 15_000,
        ..Config::default()
    };
    let limits = Limits { max_keep_alive_requests: u32::MAX, ..Limits::default() };
    let server = evring_httpd::Server::builder()
        .listen("127.0.0.1:0")
        .backend(&options.mechanism)
        .config(config)
        .limits(limits)
        .files(options.root()?)
        .workers(options.cores.len() as u16)
        .lab()
        .route("/hello", |_: evring_httpd::Request| HELLO)
        .start();
    let ended = |e| Failure::new(&options.mechanism, e);
    let server = server.map_err(ended)?;
    let handle = server.handle();
    obey(options, server.addresses()[0], move || handle.stop());
    let workers = server.wait().map_err(ended)?;
    Ok(counters(&workers[0]))
}

fn counters(stats: &Stats) -> Value {
    let kernel = stats.kernel.each().map(|(name, count)| (name.to_owned(), count.into()));
    Value::Object(kernel.collect::<Map<_, _>>())
}

/// Tells the address, and in a thread answers every line of standard input with the counts so far;
/// at its end, stops the server.
fn obey(options: &Serve, address: SocketAddr, stop: impl FnOnce() + Send + 'static) {
    println!("{address}");
    if options.alone {
        return;
    }
    thread::spawn(move || {
        let mut input = [0; 64];
        while let Ok(n @ 1..) = rustix::io::read(io::stdin(), &mut input[..]) {
            input[..n].iter().filter(|b| **b == b'\n').for_each(|_| tell_counts());
        }
        stop();
        thread::sleep(PATIENCE);
        eprintln!("lab: the server does not stop");
        process::exit(3);
    });
}

/// Allocates nothing, as that would be counted too.
fn tell_counts() {
    let (allocations, live) = (allocator::calls(), allocator::live());
    let mut line = [0; 96];
    let mut rest = &mut line[..];
    writeln!(rest, "{{\"allocations\":{allocations},\"live\":{live}}}").expect("the line is short");
    let length = 96 - rest.len();
    // Who does not listen does not miss it.
    let _ = rustix::io::write(io::stdout(), &line[..length]);
}
