//! Streams at a limited rate, on every mechanism, and on a simulated machine.

use crate::simulated::{self, Received, machine, machine_with};
use crate::support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
#[cfg(feature = "programs")]
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evring::{Config, FileDelivery, HIGH_WATER};
use evring_sim::{Fault, Faults, ReceiveResult};
use examples::Throttle;
use rustix::event::{PollFd, PollFlags, poll};
use support::{Server, TIMEOUT, config, on_each_at_once, pattern, tiny};

const SECOND: Duration = Duration::from_secs(1);

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
const HEAD: &str = "HTTP/1.0 200 OK\r\nContent-Length: ";

fn request(server: &Server) -> TcpStream {
    let mut client = TcpStream::connect(server.address).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(REQUEST).unwrap();
    client
}

fn body(reply: &[u8]) -> &[u8] {
    let text = reply.strip_prefix(HEAD.as_bytes()).expect("a reply");
    let end = text.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    &text[end + 4..]
}

/// Returns the configuration of a server on a simulated machine.
fn simulated_config(policy: FileDelivery) -> Config {
    Config::default().with(|c| {
        c.listen = vec![simulated::at()];
        c.roots = vec!["/site".into()];
        c.send_policy = policy.send_policy();
    })
}

#[test]
fn stream_is_exact_and_not_quicker_than_its_rate() {
    const RATE: u32 = 100_000;
    let root = tempfile::tempdir().unwrap();
    let contents = pattern(60_000);
    fs::write(root.path().join("file"), &contents).unwrap();
    on_each_at_once(|backend| {
        let config = config().with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.send_policy = FileDelivery::Ded.send_policy();
        });
        let begin = Instant::now();
        let server = Server::start(backend, config, || Throttle::new("file", RATE));
        let mut clients: Vec<_> = (0..3).map(|_| request(&server)).collect();
        for client in &mut clients {
            let mut reply = Vec::new();
            client.read_to_end(&mut reply).unwrap();
            assert!(body(&reply) == contents, "{backend}");
        }
        // All but the last piece, of a tenth of a second, are waited for.
        assert!(begin.elapsed() >= Duration::from_millis(500), "{backend}: {:?}", begin.elapsed());
        drop(clients);
        server.stop();
    });
}

#[test]
fn client_slower_than_the_rate_gets_every_byte() {
    let root = tempfile::tempdir().unwrap();
    let contents = pattern(1_000_000);
    fs::write(root.path().join("file"), &contents).unwrap();
    on_each_at_once(|backend| {
        let config = tiny().with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.send_policy = FileDelivery::Ded.send_policy();
        });
        let server = Server::start(backend, config, || Throttle::new("file", u32::MAX));
        let mut client = request(&server);
        let (mut reply, mut piece) = (Vec::new(), [0; 1_000]);
        while let Ok(n @ 1..) = client.read(&mut piece) {
            reply.extend_from_slice(&piece[..n]);
        }
        assert!(body(&reply) == contents, "{backend}");
        drop(client);
        server.stop();
    });
}

#[test]
fn client_slower_than_the_rate_was_reset_while_it_read() {
    const RATE: u32 = 200_000;
    const MAX_STALL: Duration = Duration::from_secs(2);
    // Pieces come for longer than a client may take nothing.
    let contents = pattern(3 * RATE as usize);
    let machine = machine(2_000);
    machine.add_file("site/file", contents.clone());
    let config = simulated_config(FileDelivery::Ded).with(|c| {
        // Each piece is read before the client has taken the one before.
        c.max_read_delay = Duration::from_millis(1);
    });
    // At half of the rate.
    let (client, received) = simulated::Client::new(REQUEST, RATE as usize / 400, SECOND / 200);
    machine.add_peer(client);
    let app = Throttle::new("file", RATE).with_max_stall(MAX_STALL);
    simulated::serve(&machine, &config, app, |_| {});
    let received = received.take();
    assert!(body(&received.bytes) == contents, "{} bytes", received.bytes.len());
    assert_eq!(received.end, Some(ReceiveResult::End));
    assert!(received.time > 2 * MAX_STALL, "{:?}", received.time);
}

#[test]
fn bytes_were_queued_without_end_for_a_client_that_does_not_read() {
    let contents = pattern(2_000_000);
    for policy in FileDelivery::ALL {
        let machine = machine(10_000);
        machine.add_file("site/file", contents.clone());
        let config = simulated_config(policy);
        let (mut client, received) = simulated::Client::new(REQUEST, 10_000, SECOND / 1_000);
        client.reads_at = 10 * SECOND;
        machine.add_peer(client);
        let mut queued = 0;
        simulated::serve(&machine, &config, Throttle::new("file", u32::MAX), |usage| {
            queued = queued.max(usage.queued);
        });
        let max = HIGH_WATER + Throttle::MAX_PIECE_BYTES as usize;
        assert!(queued <= max, "{policy}: {queued} bytes");
        // It continues when the client reads.
        assert!(body(&received.borrow().bytes) == contents, "{policy}");
    }
}

#[test]
fn client_that_never_reads_kept_its_connection() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), pattern(8_000_000)).unwrap();
    on_each_at_once(|backend| {
        let config = tiny().with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.send_policy = FileDelivery::Ded.send_policy();
            c.max_read_delay = Duration::from_millis(10);
        });
        let server = Server::start(backend, config, || {
            Throttle::new("file", u32::MAX).with_max_stall(Duration::from_millis(50))
        });
        let client = request(&server);
        let mut ended = [PollFd::new(&client, PollFlags::RDHUP)];
        let timeout = TIMEOUT.try_into().unwrap();
        assert_eq!(poll(&mut ended, Some(&timeout)), Ok(1), "{backend}: it is still open");
        server.stop();
    });
}

#[test]
fn client_that_never_reads_kept_its_place_at_a_small_rate() {
    const RATE: u32 = 1_000;
    const ROOM: usize = 2_000;
    let contents = pattern(100_000);
    for policy in FileDelivery::ALL {
        let machine = machine(ROOM);
        machine.add_file("site/file", contents.clone());
        let (mut client, received) = simulated::Client::new(REQUEST, 10_000, SECOND / 1_000);
        // Its buffer and that of the server are full before. The stream has not filled the queue by then.
        client.reads_at = SECOND * (2 * ROOM as u32) / RATE + 2 * Throttle::MAX_STALL;
        machine.add_peer(client);
        let app = Throttle::new("file", RATE);
        simulated::serve(&machine, &simulated_config(policy), app, |_| {});
        let received = received.take();
        let len = received.bytes.len();
        assert_eq!(received.end, Some(ReceiveResult::Reset), "{policy}: {len} bytes");
        assert!(len <= 2 * ROOM, "{policy}: {len} bytes");
    }
}

/// Streams a file with at most one fault.
fn received_with(fault: Fault, policy: FileDelivery, seed: u64) -> Received {
    let machine = machine_with(20_000, |p| {
        p.seed = seed;
        p.faults = Faults::NONE.with(fault);
        // Every other run has one, unless it ends before.
        p.max_faults = seed % 2;
    });
    machine.add_file("site/file", pattern(30_000));
    let (client, received) = simulated::Client::new(REQUEST, 10_000, SECOND / 1_000);
    machine.add_peer(client);
    let app = Throttle::new("file", 5_000);
    simulated::serve(&machine, &simulated_config(policy), app, |_| {});
    received.take()
}

/// Returns the length that a reply with the file promises, and that of its body. `None` if its head has not arrived.
fn promised_and_received(reply: &[u8]) -> Option<(usize, usize)> {
    let after = reply.strip_prefix(HEAD.as_bytes())?;
    let digits = after.iter().position(|byte| *byte == b'\r')?;
    after[digits..].starts_with(b"\r\n\r\n").then(|| {
        let promised = str::from_utf8(&after[..digits]).unwrap().parse().unwrap();
        (promised, after.len() - digits - 4)
    })
}

#[test]
fn stream_that_fails_in_the_middle_is_reset_and_has_one_head() {
    const NOT_FOUND: &[u8] = b"HTTP/1.0 404 ";
    for fault in [Fault::DiskError, Fault::FileChanges] {
        let (mut cut, mut complete) = (0, 0);
        for (policy, seed) in FileDelivery::ALL.iter().flat_map(|p| (0..40).map(move |n| (*p, n))) {
            let Received { bytes, end, .. } = received_with(fault, policy, seed);
            let name = format!("{}, {policy}, seed {seed}", fault.name());
            let heads = bytes.windows(7).filter(|part| part.starts_with(b"HTTP/1.")).count();
            assert!(heads <= 1, "{name}: {heads} heads");
            let expected = match promised_and_received(&bytes) {
                Some((promised, received)) if promised == received => {
                    complete += 1;
                    ReceiveResult::End
                }
                Some((promised, received)) => {
                    assert!(received < promised, "{name}: {received} of {promised} bytes");
                    cut += 1;
                    ReceiveResult::Reset
                }
                // The fault was in the open.
                None if bytes.starts_with(NOT_FOUND) => ReceiveResult::End,
                // It was in the first read.
                None => ReceiveResult::Reset,
            };
            assert_eq!(end, Some(expected), "{name}: {} bytes", bytes.len());
        }
        let name = fault.name();
        assert!(cut >= 4 && complete >= 80, "{name}: {cut} cut, {complete} complete");
    }
}

#[test]
fn silent_client_kept_the_only_place() {
    let contents = pattern(60_000);
    let machine = machine(10_000);
    machine.add_file("site/file", contents.clone());
    let config = simulated_config(FileDelivery::Plain).with(|c| c.max_connections = 1);
    machine.add_peer(simulated::Client::new(b"", 1, SECOND).0);
    let (mut client, received) = simulated::Client::new(REQUEST, 10_000, SECOND / 1_000);
    client.connects_at = SECOND;
    machine.add_peer(client);
    simulated::serve(&machine, &config, Throttle::new("file", u32::MAX), |_| {});
    let received = received.take();
    assert!(body(&received.bytes) == contents, "{:?}", received.end);
    assert!(received.time < 2 * SECOND, "{:?}", received.time);
}

#[test]
fn silent_client_was_never_closed() {
    let machine = machine(10_000);
    machine.add_file("site/file", pattern(1));
    let (client, received) = simulated::Client::new(b"", 1, SECOND);
    machine.add_peer(client);
    let config = simulated_config(FileDelivery::Plain);
    simulated::serve(&machine, &config, Throttle::new("file", 1), |_| {});
    let received = received.take();
    assert_eq!((received.end, received.bytes.len()), (Some(ReceiveResult::End), 0));
    let time = Throttle::MAX_STALL..Throttle::MAX_STALL + SECOND;
    assert!(time.contains(&received.time), "{:?}", received.time);
}

#[test]
fn client_of_a_missing_file_got_an_empty_reply() {
    let root = tempfile::tempdir().unwrap();
    on_each_at_once(|backend| {
        let config = config().with(|c| c.roots = vec![root.path().to_owned()]);
        let server = Server::start(backend, config, || Throttle::new("none", 1));
        let mut reply = Vec::new();
        request(&server).read_to_end(&mut reply).unwrap();
        assert!(reply.starts_with(b"HTTP/1.0 404 "), "{backend}: {}", reply.escape_ascii());
        server.stop();
    });
}

#[cfg(feature = "programs")]
#[test]
fn program_served_a_file_that_does_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("public");
    fs::create_dir(&root).unwrap();
    let absolute = root.join("file");
    fs::write(&absolute, "x").unwrap();
    fs::write(dir.path().join("outside"), "x").unwrap();
    symlink("../outside", root.join("link")).unwrap();
    for file in ["none", ".", "../outside", "link", absolute.to_str().unwrap()] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_throttle"));
        program.arg("--root").arg(&root).arg(file);
        let mut program = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // Fails if it has ended.
        let _ = program.kill();
        let output = program.wait_with_output().unwrap();
        assert_eq!(line, "", "{file}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(&format!("cannot stream {file}: ")), "{error}");
    }
}

#[test]
fn stop_of_the_server_truncated_streams() {
    let root = tempfile::tempdir().unwrap();
    // Pieces of a tenth of a second: two come after the stop.
    let contents = pattern(30_000);
    fs::write(root.path().join("file"), &contents).unwrap();
    on_each_at_once(|backend| {
        let config = config().with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.drain_timeout = TIMEOUT;
        });
        let server = Server::start(backend, config, || Throttle::new("file", 100_000));
        // A connection without a stream closes at once.
        let mut idle = TcpStream::connect(server.address).unwrap();
        let mut client = request(&server);
        let mut reply = vec![0; 1];
        client.read_exact(&mut reply).unwrap();
        server.remote.stop();
        client.read_to_end(&mut reply).unwrap();
        assert!(body(&reply) == contents, "{backend}: {} bytes", reply.len());
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "{backend}");
        drop(client);
        server.stop();
    });
}
