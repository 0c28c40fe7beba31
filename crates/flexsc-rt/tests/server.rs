//! The example of figure 4 serves files.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use flexsc_rt::{Config, Descriptor, EventLoop};
use rustix::net::{AddressFamily, SocketType, socket};

#[allow(dead_code, reason = "the program's main")]
#[path = "../examples/server.rs"]
mod server;

/// Starts the server for the directory of a test. It ends with the process.
fn start(root: &std::path::Path) -> SocketAddr {
    start_with(root, server::READ_TIMEOUT, Config::default())
}

fn start_with(root: &std::path::Path, read_timeout: Duration, config: Config) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (master, root) = (Descriptor::new(listener), Descriptor::new(File::open(root).unwrap()));
    thread::spawn(move || {
        server::serve(&server::Server::new(master, root, read_timeout), &config).unwrap();
    });
    address
}

fn reply_of(mut stream: TcpStream) -> Vec<u8> {
    let mut reply = Vec::new();
    // A server that closes with bytes unread resets the connection.
    let _ = stream.read_to_end(&mut reply);
    reply
}

fn request(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    reply_of(stream)
}

#[test]
fn each_connection_gets_the_file_that_it_names() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("sub")).unwrap();
    let file = |number: usize| vec![number as u8; number * 997];
    for number in 0..50 {
        fs::write(root.path().join(format!("sub/{number}")), file(number)).unwrap();
    }
    let address = start(root.path());
    // All are connected before the first asks.
    let mut streams: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (number, stream) in streams.iter_mut().enumerate().rev() {
        stream.write_all(format!("sub/{number}\n").as_bytes()).unwrap();
    }
    for (number, stream) in streams.into_iter().enumerate() {
        assert!(reply_of(stream) == file(number), "{number}");
    }
}

#[test]
fn file_that_exceeds_the_buffers_arrives_whole() {
    let root = tempfile::tempdir().unwrap();
    let large: Vec<_> = (0..20_000_000_u32).map(|byte| (byte / 251) as u8).collect();
    fs::write(root.path().join("large"), &large).unwrap();
    fs::write(root.path().join("small"), "small").unwrap();
    let address = start(root.path());
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"large\n").unwrap();
    // A client that does not read delays no other one.
    assert_eq!(request(address, b"small\n"), b"small");
    assert!(reply_of(slow) == large);
}

#[test]
fn clients_that_name_no_file_get_nothing_and_affect_no_other() {
    let root = tempfile::tempdir().unwrap();
    let inside = root.path().join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(root.path().join("outside"), "secret").unwrap();
    fs::write(inside.join("file"), "file").unwrap();
    let address = start(&inside);
    let hostile: [&[u8]; 8] = [
        b"missing\n",
        b"../outside\n",
        b"/etc/passwd\n",
        b"\n",
        b"nul\0l\n",
        b"..\n",
        &[0xff; 4096],
        &[b'a'; 10_000],
    ];
    for bytes in hostile {
        assert_eq!(request(address, bytes), b"", "{:?}", &bytes[..4.min(bytes.len())]);
        let silent = TcpStream::connect(address).unwrap();
        silent.shutdown(Shutdown::Write).unwrap();
        assert_eq!(reply_of(silent), b"");
        drop(TcpStream::connect(address).unwrap());
        assert_eq!(request(address, b"file\n"), b"file");
    }
}

#[test]
fn silent_client_kept_its_connection_without_end() {
    let root = tempfile::tempdir().unwrap();
    let address = start_with(root.path(), Duration::from_millis(1), Config::default());
    for _ in 0..3 {
        assert_eq!(reply_of(TcpStream::connect(address).unwrap()), b"");
    }
}

/// Waits for the end of a stream, or its reset.
fn wait_for_end(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let ended = stream.read_to_end(&mut Vec::new());
    let has_ended = ended.map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock);
    assert!(has_ended, "the connection does not end");
}

#[test]
fn timer_waited_for_an_entry_behind_the_reads_that_it_cancels() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "file").unwrap();
    let other = start(root.path());
    // The other times on a slow machine.
    for timeout_ms in [400, 4_000, 40_000] {
        let timeout = Duration::from_millis(timeout_ms);
        let mut config = Config::with_entries(64);
        config.reserve = 4;
        let address = start_with(root.path(), timeout, config);
        // More silent clients than entries. Another server serves files between two of them, so that few are due at
        // once.
        let (begin, mut in_time) = (Instant::now(), 0);
        let mut silent = Vec::new();
        for _ in 0..90 {
            silent.push(TcpStream::connect(address).unwrap());
            in_time += usize::from(begin.elapsed() < timeout);
            for _ in 0..20 {
                assert_eq!(request(other, b"file\n"), b"file");
            }
        }
        silent.into_iter().for_each(wait_for_end);
        if in_time > 64 {
            return;
        }
    }
    panic!("the first client was closed before there were more than entries");
}

#[test]
fn accept_that_failed_was_posted_again_at_once() {
    const TURNS: u64 = 200;
    // Nothing listens, so each accept fails.
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::ioctl_fionbio(&listener, true).unwrap();
    let (master, root) = (Descriptor::new(listener), Descriptor::new(File::open("/").unwrap()));
    let server = server::Server::new(master, root, server::READ_TIMEOUT);
    let mut events = EventLoop::new(&Config::default()).unwrap();
    server::accept_next(&mut events, server);
    for _ in 0..TURNS {
        events.turn(Some(Duration::ZERO)).unwrap();
    }
    assert!(events.counters().posted < TURNS / 2, "{:?}", events.counters());
    // It accepts again after a pause.
    let posted = events.counters().posted;
    while events.counters().posted < posted + 2 {
        events.turn(None).unwrap();
    }
}
