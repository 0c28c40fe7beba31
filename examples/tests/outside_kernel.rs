//! A kernel that is written outside of `shared-ring` runs the echo server and the web server.

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use evring::mechanisms::{MechanismLoop, Multiplexer};
use evring::{Application, Config, RemoteHandle, Root, Stats};
use evring_httpd::Site;
use examples::{Echo, OwnPoll, PollKernel};
use shared_ring::calls::{Call, Executor};
use shared_ring::{
    EngineConfig, Errno, Fd, Host, Kernel, Op, OpKind, Outcome, Socket, Submit, Submitted, Token,
};
use support::client::{Client, End};
use support::{TIMEOUT, config, pattern, tiny};

struct Server {
    address: SocketAddr,
    remote: RemoteHandle,
    thread: JoinHandle<Stats>,
}

impl Server {
    fn start<A: Application + 'static>(
        config: Config,
        app: impl FnOnce() -> A + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let server = MechanismLoop::<OwnPoll>::new(&config).unwrap();
            sender.send((server.addresses()[0], server.remote())).unwrap();
            server.run(app()).unwrap()
        });
        let (address, remote) = receiver.recv_timeout(TIMEOUT).unwrap();
        Server { address, remote, thread }
    }

    fn stop(self) -> Stats {
        self.remote.stop();
        let stats = self.thread.join().unwrap();
        assert_eq!(stats.accepted, stats.closed, "connections leaked: {stats:?}");
        stats
    }
}

#[test]
fn echo_server_echoes() {
    let server = Server::start(tiny(), || Echo);
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(server.address)).collect();
    for client in &mut clients {
        client.ask(b"hello", b"hello");
    }
    let message = pattern(1 << 20);
    let mut narrow = Client::narrow(server.address);
    narrow.sending(&message, |client| client.expect(&message));
    clients.pop().unwrap().reset();
    for mut client in clients {
        client.ask(b"again", b"again");
        client.end();
        client.expect_last(b"", End::Eof);
    }
    drop(narrow);
    assert_eq!(server.stop().accepted, 21);
}

/// Requests a path on a new connection and returns the reply.
fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

#[test]
fn web_server_serves_files_and_listings() {
    let root = tempfile::tempdir().unwrap();
    let (small, big) = (pattern(1000), pattern(5_000_000));
    fs::write(root.path().join("small"), &small).unwrap();
    fs::write(root.path().join("big"), &big).unwrap();
    let config = config().with(|c| c.roots = vec![root.path().to_owned()]);
    let server = Server::start(config, || Site::new(Some(Root(0))).listing(true));
    for _ in 0..2 {
        for (path, content) in [("/small", &small), ("/big", &big)] {
            let reply = get(server.address, path);
            assert!(reply.starts_with(b"HTTP/1.1 200 OK\r\n"), "{path}");
            assert!(reply.ends_with(content), "{path}");
        }
    }
    assert!(get(server.address, "/absent").starts_with(b"HTTP/1.1 404 Not Found\r\n"));
    // Another thread lists the directory.
    let listing = get(server.address, "/");
    assert!(String::from_utf8_lossy(&listing).contains("small"));
    let stats = server.stop();
    assert_eq!(stats.accepted, 6);
    assert!(stats.kernel.offloaded_file_ops > 0);
}

#[test]
fn system_calls_are_made_by_each_executor() {
    let config = EngineConfig::new(8, 1, 64);
    let mut kernel = PollKernel::new(&config).unwrap();
    let token = Token::new(OpKind::Call, 0, 0);
    let run = |kernel: &mut PollKernel, call, by, meanwhile: &dyn Fn()| {
        let submitted = kernel.submit(token, Op::Call(Box::new(call), by)).unwrap();
        meanwhile();
        let outcome = match submitted {
            Submitted::Done(outcome) => outcome,
            Submitted::InFlight => loop {
                kernel.turn(None).unwrap();
                let mut done = std::iter::from_fn(|| kernel.next());
                if let Some(done) = done.find(|done| done.token == token) {
                    break done.outcome;
                }
            },
        };
        let Outcome::Called(call, result) = outcome else { panic!("{outcome:?}") };
        (call, result)
    };
    for by in [Executor::InPlace, Executor::Ring, Executor::Thread] {
        let (call, result) = run(&mut kernel, Call::random(16), by, &|| ());
        assert_eq!(result, Ok(16), "{by:?}");
        assert!(call.memory(0).iter().any(|byte| *byte != 0));
        // SAFETY: no system call has this number.
        let unknown = unsafe { Call::new(9_999, []) };
        assert_eq!(run(&mut kernel, unknown, by, &|| ()).1, Err(Errno::NOSYS), "{by:?}");
    }
    let (reads, writes) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reads, true).unwrap();
    let reads = Socket::from(std::os::fd::OwnedFd::from(reads));
    // SAFETY: the kernel closes it after the call.
    let fd: Fd = unsafe { reads.fd() };
    let write = || (&writes).write_all(b"later").unwrap();
    let (call, result) = run(&mut kernel, Call::read(fd, 8), Executor::WhenReadable, &write);
    assert_eq!((result, &call.memory(1)[..5]), (Ok(5), &b"later"[..]));
    let close = Token::new(OpKind::Close, 0, 0);
    assert!(matches!(
        kernel.submit(close, Op::Close { socket: reads }),
        Ok(Submitted::Done(Outcome::Closed))
    ));
    kernel.finish();
    let _ = kernel.host_mut().random();
}
