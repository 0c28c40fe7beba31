//! A hook that answers one message before the application, on every mechanism and in simulation.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use evring::{
    AnyMechanism, Application, Chunk, Close, Commands, Config, ConnId, Cx, Hooked, Listener,
    ReceiveHook, Rx, backends,
};

/// Answers messages that are complete.
#[derive(Default)]
struct Pings {
    /// Whether it is bound to the connection in a slot.
    bound: Vec<bool>,
}

impl ReceiveHook for Pings {
    fn accepted(&mut self, _: &mut impl Commands, id: ConnId, at: Listener) {
        let slot = id.slot() as usize;
        self.bound.resize(self.bound.len().max(slot + 1), false);
        self.bound[slot] = at == Listener(0);
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        while self.bound[id.slot() as usize] && rx.bytes().starts_with(b"ping\n") {
            rx.consume(5);
            io.send(id, Chunk::Static(b"PONG\n"));
        }
        if rx.bytes() == b"reset\n" {
            io.close(id, Close::Reset);
        }
    }

    fn closed(&mut self, id: ConnId) {
        self.bound[id.slot() as usize] = false;
    }
}

/// Echoes lines, after their lengths.
struct Lines;

impl Application for Lines {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        assert_ne!(rx.bytes(), b"reset\n", "the hook has closed the connection");
        while let Some(end) = rx.bytes().iter().position(|byte| *byte == b'\n') {
            let line = format!("{} {}", end, String::from_utf8_lossy(&rx.bytes()[..=end]));
            x.io.send(x.id, Chunk::Copy(line.as_bytes()));
            rx.consume(end + 1);
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

fn hooked() -> Hooked<Lines, Pings> {
    Hooked::new(Lines, Pings::default())
}

fn ask(client: &mut TcpStream, question: &[u8], expected: &[u8]) {
    client.write_all(question).unwrap();
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn hook_answers_before_the_application_on_every_mechanism() {
    for backend in backends().into_iter().filter(|backend| backend.available.is_ok()) {
        println!("{}", backend.name);
        let (sender, receiver) = mpsc::channel();
        let server = thread::spawn(move || {
            let any = "127.0.0.1:0".parse().unwrap();
            let config = Config::default().with(|c| c.listen = vec![any, any]);
            let server = AnyMechanism::new(backend.name, &config).unwrap();
            sender.send((server.addresses().to_vec(), server.remote())).unwrap();
            server.run(hooked()).unwrap()
        });
        let (addresses, remote) = receiver.recv().unwrap();
        let connect = |listener: usize| {
            let client = TcpStream::connect(addresses[listener]).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.set_nodelay(true).unwrap();
            client
        };
        let mut client = connect(0);
        ask(&mut client, b"ping\n", b"PONG\n");
        // The rest goes to the application, in order.
        ask(&mut client, b"ping\nping\nab\nping\n", b"PONG\nPONG\n2 ab\n4 ping\n");
        // A message that began with the application ends there. The answer shows that `pi` has arrived.
        ask(&mut client, b"x\npi", b"1 x\n");
        ask(&mut client, b"ng\nping\n", b"4 ping\n4 ping\n");
        ask(&mut client, b"ping\n", b"PONG\n");
        // The other listener has no hook.
        let mut other = connect(1);
        ask(&mut other, b"ping\n", b"4 ping\n");
        client.write_all(b"reset\n").unwrap();
        assert!(client.read(&mut [0]).is_err(), "the hook resets the connection");
        drop(other);
        remote.stop();
        let stats = server.join().unwrap();
        assert_eq!((stats.accepted, stats.closed), (2, 2));
    }
}

mod simulated {
    use std::time::Duration;

    use evring::{Config, EventLoop, Mode};
    use evring_sim::{Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};

    const QUESTION: &[u8] = b"ping\nhello\nping\nworld\n";

    /// Returns whether `answer` begins an answer to [`QUESTION`]: either party may answer a ping.
    fn is_answer(answer: &[u8], is_complete: bool) -> bool {
        let pings = [&b"PONG\n"[..], b"4 ping\n"];
        pings.iter().flat_map(|first| pings.iter().map(move |second| (first, second))).any(
            |(first, second)| {
                let full = [first, &b"5 hello\n"[..], second, b"5 world\n"].concat();
                full.starts_with(answer) && (!is_complete || full.len() == answer.len())
            },
        )
    }

    #[derive(Default)]
    struct Client {
        line: Option<PeerConn>,
        sent: usize,
        received: Vec<u8>,
    }

    impl Peer for Client {
        fn step(&mut self, net: &mut Net<'_>) -> Next {
            let Some(line) = &self.line else {
                self.line = net.connect("10.0.0.1:7".parse().unwrap());
                return Next::After(Duration::from_millis(1));
            };
            if self.sent < QUESTION.len() {
                // Two pieces, split at any byte.
                let end =
                    if self.sent == 0 { 1 + self.received.capacity() % 20 } else { QUESTION.len() };
                let sent = net.send(line, &QUESTION[self.sent..end]);
                self.sent += sent;
                if sent == 0 && net.is_disrupted(line) {
                    net.close(self.line.take().expect("just used"));
                    return Next::Done;
                }
                if self.sent == QUESTION.len() {
                    net.finish(line);
                }
                return Next::After(Duration::from_millis(1));
            }
            match net.receive(line, 100, &mut self.received) {
                ReceiveResult::Bytes(_) => return Next::Ready,
                ReceiveResult::Nothing => return Next::Wait,
                ReceiveResult::End if is_answer(&self.received, true) => {}
                _ if net.is_disrupted(line) && is_answer(&self.received, false) => {}
                got => net.fail(format!("{got:?} after {}", self.received.escape_ascii())),
            }
            net.close(self.line.take().expect("just used"));
            Next::Done
        }

        fn waits_for(&self) -> String {
            "answers".to_owned()
        }
    }

    #[test]
    fn every_message_is_answered_once_and_in_order() {
        for seed in 0..200 {
            let machine = Machine::new(&Plan::default().with(|p| p.seed = seed));
            let listen = vec!["10.0.0.1:7".parse().unwrap()];
            let config = Config::default().with(|c| c.listen = listen);
            let kernel =
                SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
            let server = EventLoop::new(kernel, &config).unwrap();
            let remote = server.remote();
            for client in 0..3 {
                let received = Vec::with_capacity((seed as usize * 3 + client) % 20);
                machine.add_peer(Client { received, ..Client::default() });
            }
            machine.on_end(move || remote.stop());
            let result = server.run(super::hooked());
            assert_eq!(machine.verdict().failure, None, "seed {seed}");
            result.unwrap();
        }
    }
}
