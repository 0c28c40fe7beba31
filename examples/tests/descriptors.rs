//! Behavior without free descriptors. A single test in a separate process, as it changes the process'
//! limit.

mod support;

use std::fs::File;
use std::time::{Duration, Instant};

use examples::Echo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::client::Client;
use support::{Server, config, on_each};

/// Requests while there are no descriptors.
const ASKS: u64 = 10;

/// Opens files until no descriptor is left.
fn fill() -> Vec<File> {
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    files
}

#[test]
fn listener_pauses_without_descriptors_and_resumes() {
    let old = getrlimit(Resource::Nofile);
    on_each(|backend| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(200), ..old }).unwrap();
        let server = Server::start(backend, config(), || Echo);
        let mut before = Client::connect(server.address);
        before.ask(b"before", b"before");

        // The client's end takes the last descriptor, so the server has none.
        let mut full = fill();
        full.pop();
        let mut during = Client::connect(server.address);
        during.send(b"during");
        // Long enough to detect a busy loop, also of one turn in a millisecond.
        let begin = Instant::now();
        for _ in 0..ASKS {
            before.ask(b"meanwhile", b"meanwhile");
            std::thread::sleep(Duration::from_millis(50));
        }
        let millis = begin.elapsed().as_millis() as u64;
        drop(full);
        let mut after = Client::connect(server.address);
        after.ask(b"after", b"after");
        // A ring accepts before it detects the lack of descriptors, and loses that client.
        drop((before, during, after));
        let stats = server.stop();
        assert!(stats.accepted >= 2 && stats.accept_pauses >= 1, "{stats:?}");
        let turns = stats.kernel.turns.max(stats.kernel.system_calls);
        // The listener tries again each 100 ms.
        let max = 20 * ASKS + millis / 10;
        assert!(turns < max, "the listener did not pause in {millis} ms: {stats:?}");
    });
    setrlimit(Resource::Nofile, old).unwrap();
}
