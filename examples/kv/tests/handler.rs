//! The server behind a handler that answers `get`: on every mechanism the replies are those of the server alone.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use evring::hooks::Tenant;
use evring::{AnyMechanism, RemoteHandle};
use kv::model::Model;
use kv::{Database, GetHandler, Kv, Limits};
use support::client::Client;
use support::{Server, TIMEOUT, config, on_each, on_each_at_once};

const MEMORY: usize = 16 << 20;

fn limits() -> Limits {
    Limits { memory: MEMORY, ..Limits::default() }
}

/// Returns the module, of the directory `ASH_HANDLERS` if it is set.
fn module() -> PathBuf {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../handlers");
    std::env::var_os("ASH_HANDLERS").map_or_else(committed, PathBuf::from).join("kv_get.wasm")
}

fn load() -> GetHandler {
    GetHandler::load(&std::fs::read(module()).unwrap(), MEMORY).unwrap()
}

/// A server behind the handler.
struct Handled {
    client: Client,
    tenant: Tenant,
    remote: RemoteHandle,
    thread: Option<thread::JoinHandle<()>>,
}

impl Handled {
    /// Starts a worker on a database that is mirrored.
    fn worker(
        backend: &'static str,
        handler: &GetHandler,
        database: Database,
        number: u64,
    ) -> Handled {
        let (sender, receiver) = mpsc::channel();
        let handler = handler.clone();
        let serve = move || {
            // Admission control turns handlers off on a busy machine.
            let config = config().with(|c| c.admission = None);
            let mut mechanism = AnyMechanism::new(backend, &config).unwrap();
            let (address, remote) = (mechanism.addresses()[0], mechanism.remote());
            let (server, tenant) = handler.before(database, number, &mut mechanism).unwrap();
            sender.send((address, remote, tenant)).unwrap();
            mechanism.run(server).unwrap();
        };
        let thread = thread::spawn(serve);
        let (address, remote, tenant) = receiver.recv_timeout(TIMEOUT).unwrap();
        Handled { client: Client::connect(address), tenant, remote, thread: Some(thread) }
    }

    fn start(backend: &'static str) -> Handled {
        let handler = load();
        let database = Database::new(limits(), 0).unwrap().mirrored(handler.mirror());
        Handled::worker(backend, &handler, database, 0)
    }

    fn handled(&self) -> u64 {
        self.tenant.counters().handled
    }

    /// Sends the same until the handler answers, as replies are valid for a second at least.
    fn ask_until_handled(&mut self, request: &str, reply: &str) {
        let begin = Instant::now();
        let before = self.handled();
        while self.handled() == before {
            assert!(begin.elapsed() < TIMEOUT, "the handler does not answer {request:?}");
            self.client.ask(request, reply);
        }
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        self.remote.stop();
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || thread::panicking());
    }
}

/// Returns the reply to a `get`.
fn get(client: &mut Client, request: &str) -> Vec<u8> {
    client.send(request.as_bytes());
    let mut reply = Vec::new();
    let read_line = |client: &mut Client, reply: &mut Vec<u8>| {
        let start = reply.len();
        while !reply[start..].ends_with(b"\r\n") {
            let mut byte = [0];
            client.0.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        String::from_utf8(reply[start..].to_vec()).unwrap()
    };
    loop {
        let line = read_line(client, &mut reply);
        let Some(value) = line.strip_prefix("VALUE ") else { return reply };
        let len: usize = value.split_whitespace().nth(2).unwrap().parse().unwrap();
        let start = reply.len();
        reply.resize(start + len + 2, 0);
        client.0.read_exact(&mut reply[start..]).unwrap();
    }
}

fn stats(client: &mut Client) -> String {
    client.send(b"stats\r\n");
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut byte = [0];
        client.0.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// Returns the seconds since the start of the server.
fn uptime(client: &mut Client) -> u64 {
    let text = stats(client);
    let line = text.lines().find_map(|line| line.strip_prefix("STAT uptime "));
    line.unwrap().parse().unwrap()
}

#[test]
fn handler_answers_what_the_server_has_answered_before() {
    on_each(|backend| {
        let mut kv = Handled::start(backend);
        kv.client.ask("set a 7 0 3\r\nabc\r\n", "STORED\r\n");
        kv.client.ask("get b\r\n", "END\r\n");
        assert_eq!(kv.handled(), 0, "{backend}");
        kv.ask_until_handled("get a\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n");
        // What it passes on.
        for (request, reply) in [
            ("gets a\r\n", "VALUE a 7 3 1\r\nabc\r\nEND\r\n"),
            ("get a a\r\n", "VALUE a 7 3\r\nabc\r\nVALUE a 7 3\r\nabc\r\nEND\r\n"),
            ("get  a\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n"),
            ("get a\n", "VALUE a 7 3\r\nabc\r\nEND\r\n"),
            ("get a\r\nget b\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\nEND\r\n"),
            ("get a\0b\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n"),
            ("get ab\r\n", "END\r\n"),
            ("get \r\n", "ERROR\r\n"),
        ] {
            let before = kv.handled();
            kv.client.ask(request, reply);
            assert_eq!(kv.handled(), before, "{backend}: {request:?}");
        }
        let handled = kv.handled();
        let passed = kv.tenant.counters().passed;
        assert_eq!(kv.tenant.counters().landed + kv.tenant.counters().copied, handled + passed);
    });
}

/// Changes of `a`, and the reply to a `get` behind them.
const CHANGES: &[(&str, &str, &str)] = &[
    ("set a 1 0 3\r\nnew\r\n", "STORED\r\n", "VALUE a 1 3\r\nnew\r\nEND\r\n"),
    ("append a 0 0 1\r\n!\r\n", "STORED\r\n", "VALUE a 7 3\r\n10!\r\nEND\r\n"),
    ("incr a 5\r\n", "15\r\n", "VALUE a 7 2\r\n15\r\nEND\r\n"),
    ("decr a 2\r\n", "8\r\n", "VALUE a 7 2\r\n8 \r\nEND\r\n"),
    ("delete a\r\n", "DELETED\r\n", "END\r\n"),
    ("touch a -1\r\n", "TOUCHED\r\n", "END\r\n"),
    ("gat -1 a\r\n", "VALUE a 7 2\r\n10\r\nEND\r\n", "END\r\n"),
    ("flush_all\r\n", "OK\r\n", "END\r\n"),
    ("set a 0 -1 1\r\nx\r\n", "STORED\r\n", "END\r\n"),
    ("set a 0 0 9999999\r\n", "SERVER_ERROR object too large for cache\r\n", "END\r\n"),
];

#[test]
fn handler_never_answers_with_a_value_that_has_changed() {
    on_each(|backend| {
        let mut kv = Handled::start(backend);
        for (change, reply, after) in CHANGES {
            kv.client.ask("set a 7 0 2\r\n10\r\n", "STORED\r\n");
            kv.ask_until_handled("get a\r\n", "VALUE a 7 2\r\n10\r\nEND\r\n");
            kv.client.ask(change, reply);
            if change.ends_with("9999999\r\n") {
                kv.client.send(&vec![b'x'; 9_999_999]);
                kv.client.send(b"\r\n");
            }
            for _ in 0..3 {
                assert_eq!(
                    get(&mut kv.client, "get a\r\n").escape_ascii().to_string(),
                    after.as_bytes().escape_ascii().to_string(),
                    "{backend}: {change:?}"
                );
            }
        }
    });
}

#[test]
fn value_that_reads_as_a_get_was_answered() {
    on_each(|backend| {
        let mut kv = Handled::start(backend);
        kv.client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        kv.ask_until_handled("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
        // Its reply shows that the server has received the line before the value.
        kv.client.ask("version\r\nset b 0 0 7\r\n", "VERSION 1.6.18-kv\r\n");
        kv.client.ask("get a\r\n\r\n", "STORED\r\n");
        kv.client.ask("get b\r\n", "VALUE b 0 7\r\nget a\r\n\r\nEND\r\n");
        kv.client.ask("version\r\nset b 0 0 5\r\n", "VERSION 1.6.18-kv\r\n");
        kv.client.ask("get a\r\n", "STORED\r\n");
    });
}

/// Requests after which `a` exists for two seconds, and their reply: longer than the server lets a handler send a reply
/// without asking again, so that it writes another reply in the last second.
const EXPIRING: [(&str, &str); 2] = [
    ("set a 0 2 1\r\nx\r\n", "STORED\r\n"),
    ("set a 0 0 1\r\nx\r\nflush_all 2\r\n", "STORED\r\nOK\r\n"),
];

/// Sends requests of [`EXPIRING`], and `get a` until the value has expired.
fn expect_expiry(kv: &mut Handled, (set, reply): (&str, &str)) {
    let handled = kv.handled();
    kv.client.ask(set, reply);
    // The server keeps it for one second more at most.
    let begin = Instant::now();
    let end = begin + Duration::from_secs(3);
    loop {
        let now = Instant::now();
        if get(&mut kv.client, "get a\r\n") == b"END\r\n" {
            break;
        }
        assert!(now < end, "{set:?}: {:?}", now - begin);
    }
    assert!(kv.handled() > handled, "{set:?}");
}

#[test]
fn expired_value_is_never_answered() {
    on_each_at_once(|backend| {
        for expiring in EXPIRING {
            expect_expiry(&mut Handled::start(backend), expiring);
        }
    });
}

#[test]
fn handler_whose_clock_began_later_knows_the_time_of_the_server() {
    on_each_at_once(|backend| {
        for expiring in EXPIRING {
            let handler = load();
            let database = Database::shared(limits(), 7, 2).unwrap().mirrored(handler.mirror());
            let worker = |n| Handled::worker(backend, &handler, database.share().unwrap(), n);
            let mut first = worker(0);
            let begin = Instant::now();
            // A reply is valid for so long without the server.
            while uptime(&mut first.client) < 2 {
                assert!(begin.elapsed() < TIMEOUT, "{backend}");
            }
            expect_expiry(&mut worker(1), expiring);
        }
    });
}

#[test]
fn handler_did_not_start_for_a_large_memory() {
    let wasm = std::fs::read(module()).unwrap();
    for memory in [0, 1 << 20, 7_680 << 20, 7_681 << 20, 16 << 30, usize::MAX] {
        assert!(GetHandler::load(&wasm, memory).is_ok(), "{memory}");
    }
}

#[test]
fn evicted_value_is_not_answered() {
    on_each(|backend| {
        let handler = load();
        let database = Database::new(Limits { memory: 1 << 20, ..Limits::default() }, 0).unwrap();
        let mut kv = Handled::worker(backend, &handler, database.mirrored(handler.mirror()), 0);
        kv.client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        kv.ask_until_handled("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
        // More than there is room for.
        let large = "l".repeat(300_000);
        for n in 0..5 {
            kv.client.ask(format!("set k{n} 0 0 300000\r\n{large}\r\n"), "STORED\r\n");
        }
        kv.client.ask("get a\r\n", "END\r\n");
    });
}

#[test]
fn statistics_count_what_the_handler_answers() {
    let mut kv = Handled::start("auto");
    kv.client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for _ in 0..100 {
        kv.client.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    assert!(kv.handled() > 0);
    let text = stats(&mut kv.client);
    for line in ["STAT cmd_get 100\r\n", "STAT get_hits 100\r\n", "STAT get_misses 0\r\n"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    kv.client.ask("stats reset\r\n", "RESET\r\n");
    let text = stats(&mut kv.client);
    assert!(text.contains("STAT get_hits 0\r\n"), "{text}");
}

/// The same requests to a server with the handler, to one without it, and to a model.
#[test]
fn replies_with_the_handler_are_those_without_it() {
    on_each(|backend| {
        let mut kv = Handled::start(backend);
        let alone =
            Server::start(backend, config(), || Kv::new(Database::new(limits(), 0).unwrap()));
        let mut plain = Client::connect(alone.address);
        let mut random = fastrand::Rng::with_seed(7);
        let mut model = Model::new("key".to_owned(), 600, true);
        for n in 0..1_500 {
            let (mut request, mut reply) = (Vec::new(), Vec::new());
            model.step(&mut |n| random.usize(..n), &mut request, &mut reply);
            kv.client.ask(&request, &reply);
            plain.ask(&request, &reply);
            for _ in 0..2 {
                // Of the keys of the model that are short.
                let line = format!("get key{}\r\n", [0, 1, 2, 5, 6, 7][random.usize(..6)]);
                let replies = [get(&mut kv.client, &line), get(&mut plain, &line)];
                let [with, without] = replies.map(|reply| reply.escape_ascii().to_string());
                assert_eq!(with, without, "{backend}: {n}: {line:?}");
            }
        }
        assert!(kv.handled() > 200, "{backend}: {}", kv.handled());
        assert_eq!(kv.tenant.counters().aborted, 0, "{backend}");
        drop(plain);
        alone.stop();
    });
}

/// One client writes by one worker and reads by the other, while others read all the time.
#[test]
fn values_are_whole_and_never_older_than_the_last_reply() {
    const WRITES: usize = 3_000;
    let handler = load();
    let database = Database::shared(limits(), 7, 2).unwrap().mirrored(handler.mirror());
    let worker = |n| Handled::worker("auto", &handler, database.share().unwrap(), n);
    let mut workers = [worker(0), worker(1)];
    let addresses = workers.each_ref().map(|worker| worker.client.0.peer_addr().unwrap());
    // Returns the number that all of a value's digits repeat.
    let number = |reply: &[u8]| {
        let text = str::from_utf8(reply).unwrap();
        let data = text.lines().nth(1).unwrap();
        let digits = &data[..8];
        assert_eq!(data, digits.repeat(40), "torn");
        digits.parse::<usize>().unwrap()
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let set = |client: &mut Client, n: usize| {
            let value = format!("{n:08}").repeat(40);
            client.ask(format!("set a 0 0 320\r\n{value}\r\n"), "STORED\r\n");
        };
        set(&mut workers[0].client, 0);
        for address in addresses {
            let (is_over, number) = (&is_over, &number);
            scope.spawn(move || {
                let (mut client, mut last) = (Client::connect(address), 0);
                while !is_over.load(Ordering::Relaxed) {
                    let now = number(&get(&mut client, "get a\r\n"));
                    assert!(now >= last, "{now} after {last}");
                    last = now;
                }
            });
        }
        for n in 1..=WRITES {
            let [first, second] = &mut workers;
            let (writer, reader) = if n % 2 == 0 { (first, second) } else { (second, first) };
            set(&mut writer.client, n);
            for _ in 0..2 {
                let read = number(&get(&mut reader.client, "get a\r\n"));
                assert_eq!(read, n, "the reply to the set came before");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let handled: u64 = workers.iter().map(Handled::handled).sum();
    assert!(handled > 1_000, "{handled}");
}

/// The server program, which ends with the value.
struct Program(Child);

impl Program {
    /// Starts it with two workers, whose handlers have clocks of their own.
    fn start(handler: &Path) -> (Program, Vec<Client>) {
        let mut program = Program(
            Command::new(env!("CARGO_BIN_EXE_kv"))
                .args(["-p", "0", "-t", "2", "--no-admission", "--handler"])
                .arg(handler)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut line = String::new();
        BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").unwrap().split(' ').next().unwrap();
        let clients = (0..8).map(|_| Client::connect(address.parse().unwrap())).collect();
        (program, clients)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers `get` as the server would not.
const UNLIKE_THE_SERVER: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "VALUE a 0 7\r\nhandler\r\nEND\r\n")
    (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (drop (call $send (i32.const 0) (i32.const 27)))
        (i32.const 1)))"#;

#[test]
fn program_puts_the_handler_before_each_worker() {
    let (_program, mut clients) = Program::start(&module());
    clients[0].ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for n in 0..400 {
        clients[n % 8].ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    // Connections of both workers get what the handler sends.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unlike_the_server.wasm");
    std::fs::write(&path, wat::parse_str(UNLIKE_THE_SERVER).unwrap()).unwrap();
    let (_program, mut clients) = Program::start(&path);
    for client in &mut clients {
        client.ask("get a\r\n", "VALUE a 0 7\r\nhandler\r\nEND\r\n");
        client.ask("gets a\r\n", "END\r\n");
    }
}

#[test]
fn program_without_its_handler_does_not_start() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
    let output = command.args(["-p", "0", "--handler", "none.wasm"]).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    assert!(!output.status.success() && text.is_empty(), "{text}");
    let errors = String::from_utf8_lossy(errors);
    assert!(errors.contains("--handler none.wasm: "), "{errors}");
}
