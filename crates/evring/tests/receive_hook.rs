//! A hook that answers one message before the application, on every mechanism and in simulation.

use crate::server;

use std::io::{ErrorKind, Read, Write};

use evring::hooks::{Hooked, ReceiveHook};
use evring::{Application, Chunk, Close, Commands, ConnId, Cx, Listener, Rx};
use server::{Server, ask, listening, one_by_one};

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
        assert!(!rx.bytes().is_empty());
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

#[test]
fn hook_answers_before_the_application_on_every_mechanism() {
    one_by_one(|name| {
        let server = Server::start(name, listening(2), hooked);
        let mut client = server.connect();
        ask(&mut client, b"ping\n", b"PONG\n");
        // The rest goes to the application, in order.
        ask(&mut client, b"ping\nping\nab\nping\n", b"PONG\nPONG\n2 ab\n4 ping\n");
        // A message that began with the application ends there. The answer shows that `pi` has arrived.
        ask(&mut client, b"x\npi", b"1 x\n");
        ask(&mut client, b"ng\nping\n", b"4 ping\n4 ping\n");
        ask(&mut client, b"ping\n", b"PONG\n");
        // The other listener has no hook.
        let mut other = server.connect_to(1);
        ask(&mut other, b"ping\n", b"4 ping\n");
        client.write_all(b"reset\n").unwrap();
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "by the hook");
        drop(other);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (2, 2));
    });
}

/// Leaves the first message to the next hook, the second one to the application, and answers the third one.
#[derive(Default)]
struct Turns(u32);

impl ReceiveHook for Turns {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        self.0 += 1;
        if self.0 == 3 {
            rx.consume(rx.bytes().len());
            io.send(id, Chunk::Static(b"MINE\n"));
        }
    }

    fn passes_to_next(&self) -> bool {
        self.0 != 2
    }
}

fn answers_in_turns<A: Application + 'static>(app: fn() -> A) {
    let server = Server::start("auto", listening(1), app);
    let mut client = server.connect();
    for answer in [&b"PONG\n"[..], b"4 ping\n", b"MINE\n", b"PONG\n"] {
        ask(&mut client, b"ping\n", answer);
    }
    drop(client);
    server.stop();
}

#[test]
fn hook_of_an_application_behind_a_hook_got_messages_that_were_not_for_it() {
    answers_in_turns(|| Hooked::new(hooked(), Turns::default()));
    answers_in_turns(|| Hooked::new(Lines, (Turns::default(), Pings::default())));
}

/// Closes a connection for a message that it does not consume.
struct Ends;

impl ReceiveHook for Ends {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, _: &mut Rx<'_>) {
        io.close(id, Close::Flush);
    }
}

/// Gets nothing.
struct Never;

impl ReceiveHook for Never {
    fn received(&mut self, _: &mut impl Commands, _: ConnId, rx: &mut Rx<'_>) {
        panic!("{} after a close", rx.bytes().escape_ascii());
    }
}

impl Application for Never {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        assert_eq!(rx.bytes().escape_ascii().to_string(), "", "after a close");
    }
}

/// Holds a message until another one has arrived, for which it closes the connection.
#[derive(Default)]
struct EndsLater {
    is_holding: bool,
}

impl EndsLater {
    const FIRST: &[u8] = b"first\n";

    fn hold(&mut self, io: &mut impl Commands, id: ConnId) {
        self.is_holding = true;
        io.hold(id, true);
        io.set_timer(0, Some(io.now())).unwrap();
    }
}

impl ReceiveHook for EndsLater {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if rx.bytes().starts_with(Self::FIRST) {
            self.hold(io, id);
        } else {
            io.close(id, Close::Flush);
        }
    }

    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        if rx.bytes() == Self::FIRST {
            self.hold(io, id);
            return false;
        }
        rx.consume(Self::FIRST.len());
        true
    }

    fn holds(&self, _: ConnId) -> bool {
        self.is_holding
    }

    fn timer(&mut self, io: &mut impl Commands, _: u32) -> bool {
        self.is_holding = false;
        io.hold(io.next_open(0).expect("it has a message"), false);
        true
    }
}

#[test]
fn others_got_a_message_after_a_hook_had_closed_the_connection() {
    fn ends<A: Application + 'static>(app: fn() -> A, messages: &[&[u8]]) {
        let server = Server::start("auto", listening(1), app);
        let mut client = server.connect();
        for message in messages {
            client.write_all(message).unwrap();
        }
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all.escape_ascii().to_string(), "");
        server.stop();
    }
    let first = EndsLater::FIRST;
    ends(|| Hooked::new(Never, (Ends, Never)), &[first]);
    ends(|| Hooked::new(Hooked::new(Never, Never), Ends), &[first]);
    ends(|| Hooked::new(Never, EndsLater::default()), &[first, b"second\n"]);
}

mod simulated {
    use std::time::Duration;

    use evring::Config;
    use evring::mechanisms::{EventLoop, Mode};
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

/// A hook that holds messages, before an application that pauses and resumes its connections meanwhile.
mod holds {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    use evring::hooks::{Hooked, ReceiveHook};
    use evring::mechanisms::{EventLoop, Mode};
    use evring::{Application, Chunk, Close, Commands, Config, ConnId, Cx, Listener, Others, Rx};
    use evring_sim::{
        Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimEngine, SimKernel,
    };
    use shared_ring::Kernel;

    /// Timer of the application, which pauses and resumes its connections.
    const PAUSE: u32 = 0;
    /// Timer of the hook, which ends its holds.
    const RELEASE: u32 = 1;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const LEN: usize = 2_000;

    fn pattern(range: std::ops::Range<usize>) -> Vec<u8> {
        range.map(|at| (at % 251) as u8).collect()
    }

    /// Times that one of the two pauses ended before the other, and messages that had arrived behind one that was held.
    #[derive(Default)]
    struct Ends {
        hold: Cell<u32>,
        pause: Cell<u32>,
        behind: Cell<u32>,
    }

    #[derive(Clone, Copy, Default, PartialEq)]
    enum Message {
        #[default]
        None,
        Held(usize),
        Released(usize),
        /// The hook has not seen the one behind a message that was held.
        Behind,
    }

    type Messages = Rc<RefCell<Vec<Message>>>;

    /// Holds every second message for at most three milliseconds, and echoes it then.
    struct Holds {
        messages: Messages,
        is_armed: bool,
        ends: Rc<Ends>,
    }

    impl ReceiveHook for Holds {
        fn accepted(&mut self, _: &mut impl Commands, id: ConnId, _: Listener) {
            let (slot, mut messages) = (id.slot() as usize, self.messages.borrow_mut());
            let len = messages.len().max(slot + 1);
            messages.resize(len, Message::None);
            messages[slot] = Message::None;
        }

        fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
            let message = &mut self.messages.borrow_mut()[id.slot() as usize];
            if message == &Message::Behind {
                *message = Message::None;
                self.ends.behind.set(self.ends.behind.get() + 1);
            }
            if !rx.bytes().is_empty() && io.random().is_multiple_of(2) {
                *message = Message::Held(rx.bytes().len());
                io.hold(id, true);
                if !std::mem::replace(&mut self.is_armed, true) {
                    io.set_timer(RELEASE, Some(io.now() + 3 * MILLISECOND)).unwrap();
                }
            }
        }

        fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
            let message = &mut self.messages.borrow_mut()[id.slot() as usize];
            assert!(io.is_receiving(id), "the application has paused the connection");
            match std::mem::take(message) {
                Message::None => true,
                Message::Held(_) => panic!("bytes were offered although the hook holds them"),
                Message::Released(len) => {
                    io.send(id, Chunk::Copy(&rx.bytes()[..len]));
                    rx.consume(len);
                    if !rx.bytes().is_empty() {
                        *message = Message::Behind;
                    }
                    true
                }
                Message::Behind => panic!("bytes were offered that the hook has not seen"),
            }
        }

        fn holds(&self, id: ConnId) -> bool {
            matches!(self.messages.borrow().get(id.slot() as usize), Some(Message::Held(_)))
        }

        fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
            if timer == RELEASE {
                self.is_armed = false;
                let mut next = io.next_open(0);
                while let Some(id) = next {
                    let message = &mut self.messages.borrow_mut()[id.slot() as usize];
                    if let Message::Held(len) = *message {
                        *message = Message::Released(len);
                        io.hold(id, false);
                        let is_first = u32::from(!io.is_receiving(id));
                        self.ends.hold.set(self.ends.hold.get() + is_first);
                    }
                    next = io.next_open(id.slot() + 1);
                }
            }
            timer == RELEASE
        }

        fn closed(&mut self, id: ConnId) {
            self.messages.borrow_mut()[id.slot() as usize] = Message::None;
        }
    }

    /// Echoes bytes.
    struct Pauses {
        messages: Messages,
        ends: Rc<Ends>,
    }

    impl Application for Pauses {
        type State = ();
        const MAX_UNCONSUMED: usize = LEN;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _: Listener) {
            x.io.set_timer(PAUSE, Some(x.io.now() + MILLISECOND)).unwrap();
        }

        fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            assert!(x.io.is_receiving(x.id), "the connection is paused");
            let is_behind = self.messages.borrow()[x.id.slot() as usize] == Message::Behind;
            assert!(!is_behind, "the hook has not seen the bytes");
            x.io.send(x.id, Chunk::Received(rx.take()));
            if rx.eof() {
                x.io.close(x.id, Close::Flush);
            }
        }

        fn timer(&mut self, io: &mut impl Commands, mut all: Others<'_, ()>, _: u32) {
            all.for_each(io, |io, id, ()| {
                let is_paused = !io.is_receiving(id);
                let is_held =
                    matches!(self.messages.borrow()[id.slot() as usize], Message::Held(_));
                io.set_receiving(id, is_paused);
                let is_first = u32::from(is_paused && is_held);
                self.ends.pause.set(self.ends.pause.get() + is_first);
            });
            let at = io.next_open(0).map(|_| io.now() + MILLISECOND);
            io.set_timer(PAUSE, at).unwrap();
        }
    }

    /// Sends bytes in pieces, and expects them back.
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
                return Next::After(MILLISECOND);
            };
            if self.sent < LEN {
                if net.is_disrupted(line) {
                    net.close(self.line.take().expect("just used"));
                    return Next::Done;
                }
                let end = (self.sent + 1 + net.below(200)).min(LEN);
                self.sent += net.send(line, &pattern(self.sent..end));
                if self.sent == LEN {
                    net.finish(line);
                }
            }
            let is_right = |received: &[u8]| *received == *pattern(0..received.len());
            match net.receive(line, 100, &mut self.received) {
                ReceiveResult::Bytes(_) => return Next::Ready,
                ReceiveResult::Nothing if self.sent < LEN => return Next::After(MILLISECOND),
                ReceiveResult::Nothing => return Next::Wait,
                ReceiveResult::End if self.received.len() == LEN && is_right(&self.received) => {}
                _ if net.is_disrupted(line) && is_right(&self.received) => {}
                got => net.fail(format!("{got:?} after {} bytes", self.received.len())),
            }
            net.close(self.line.take().expect("just used"));
            Next::Done
        }

        fn waits_for(&self) -> String {
            format!("an echo after {} of {} bytes", self.received.len(), self.sent)
        }
    }

    /// Holds one of some messages until another connection has one, at most a millisecond, and echoes it then.
    struct Takes {
        messages: Vec<Message>,
        /// It holds one message of so many, and leaves the others to the next hook.
        one_in: u64,
        timer: u32,
    }

    impl Takes {
        fn new(one_in: u64, timer: u32) -> Self {
            Takes { messages: Vec::new(), one_in, timer }
        }

        fn release_all(&mut self, io: &mut impl Commands) {
            let mut next = io.next_open(0);
            while let Some(id) = next {
                let message = &mut self.messages[id.slot() as usize];
                if let Message::Held(len) = *message {
                    *message = Message::Released(len);
                    io.hold(id, false);
                }
                next = io.next_open(id.slot() + 1);
            }
        }
    }

    impl ReceiveHook for Takes {
        fn accepted(&mut self, _: &mut impl Commands, id: ConnId, _: Listener) {
            let slot = id.slot() as usize;
            self.messages.resize(self.messages.len().max(slot + 1), Message::None);
        }

        fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
            assert!(!rx.bytes().is_empty(), "nothing has arrived");
            if !io.random().is_multiple_of(self.one_in) {
                return;
            }
            self.release_all(io);
            self.messages[id.slot() as usize] = Message::Held(rx.bytes().len());
            io.hold(id, true);
            io.set_timer(self.timer, Some(io.now() + MILLISECOND)).unwrap();
        }

        fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
            if self.holds(id) {
                return false;
            }
            if let Message::Released(len) = std::mem::take(&mut self.messages[id.slot() as usize]) {
                io.send(id, Chunk::Copy(&rx.bytes()[..len]));
                rx.consume(len);
            }
            true
        }

        fn holds(&self, id: ConnId) -> bool {
            matches!(self.messages.get(id.slot() as usize), Some(Message::Held(_)))
        }

        fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
            if timer == self.timer {
                self.release_all(io);
            }
            timer == self.timer
        }

        fn closed(&mut self, id: ConnId) {
            self.messages[id.slot() as usize] = Message::None;
        }
    }

    /// Behind a hook that takes everything, it gets the ends of streams.
    struct Closes;

    impl Application for Closes {
        type State = ();
        /// Less than a message.
        const MAX_UNCONSUMED: usize = 64;

        fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            assert_eq!(rx.bytes().len(), 0, "the hook has not seen the bytes");
            if rx.eof() {
                x.io.close(x.id, Close::Flush);
            }
        }
    }

    fn run<K: Kernel, A: Application>(
        seed: u64,
        machine: &Machine,
        kernel: K,
        config: &Config,
        app: A,
    ) {
        let server = EventLoop::new(kernel, config).unwrap();
        let remote = server.remote();
        (0..3).for_each(|_| machine.add_peer(Client::default()));
        machine.on_end(move || remote.stop());
        let result = server.run(app);
        assert_eq!(machine.verdict().failure, None, "seed {seed}");
        result.unwrap();
    }

    /// Runs an application on both simulated kernels.
    fn simulate<A: Application>(app: impl Fn() -> A) {
        let listen = vec!["10.0.0.1:7".parse().unwrap()];
        let config = Config::default().with(|c| c.listen = listen);
        for seed in 0..100 {
            let plan = Plan::default().with(|p| p.seed = seed);
            let machine = Machine::new(&plan);
            let uring = config.uring_config(Mode::Deferred).unwrap();
            run(seed, &machine, SimKernel::new(&machine, &uring).unwrap(), &config, app());
            let machine = Machine::new(&plan);
            let engine = config.engine_config().unwrap();
            let kernel = SimEngine::<false>::new(&machine, &engine).unwrap();
            run(seed, &machine, kernel, &config, app());
        }
    }

    /// The hook also sees the messages that have arrived behind one that it held.
    #[test]
    fn connection_is_received_from_when_neither_hook_nor_application_pauses_it() {
        let ends = Rc::<Ends>::default();
        simulate(|| {
            let messages = Messages::default();
            let hook = Holds { messages: messages.clone(), is_armed: false, ends: ends.clone() };
            Hooked::new(Pauses { messages, ends: ends.clone() }, hook)
        });
        let ends = [ends.hold.get(), ends.pause.get(), ends.behind.get()];
        assert!(ends.iter().all(|count| *count > 100), "{ends:?}");
    }

    #[test]
    fn message_that_arrived_as_a_hold_ended_went_past_the_hook() {
        simulate(|| Hooked::new(Closes, Takes::new(1, RELEASE)));
    }

    /// Echoes every message at once, and holds the connection for at most a millisecond.
    struct Rests(Takes);

    impl ReceiveHook for Rests {
        fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
            self.0.accepted(io, id, at);
        }

        fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
            self.0.received(io, id, rx);
            io.send(id, Chunk::Received(rx.take()));
        }

        fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
            if std::mem::take(&mut self.0.messages[id.slot() as usize]) != Message::None {
                io.send(id, Chunk::Received(rx.take()));
            }
            true
        }

        fn holds(&self, id: ConnId) -> bool {
            self.0.holds(id)
        }

        fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
            self.0.timer(io, timer)
        }

        fn closed(&mut self, id: ConnId) {
            self.0.closed(id);
        }
    }

    #[test]
    fn message_that_a_hook_held_during_the_hold_of_another_hook_got_lost() {
        simulate(|| {
            let hooks = (Takes::new(2, RELEASE), Rests(Takes::new(1, RELEASE + 1)));
            Hooked::new(Closes, hooks)
        });
    }
}
