//! A hook that answers one path before the application, from memory of the caller into which the kernel
//! receives: on every mechanism.

use crate::mapped;
use crate::server;

use evring::buffers::{BufferError, BufferGroup, BufferPool};
use evring::hooks::{Hooked, ReceiveHook};
use evring::{Application, Chunk, Close, Commands, ConnId, Cx, Listener, Rx};
use mapped::{View, mapped};
use server::{Server, ask, listening, one_by_one};

const PATH: &[u8] = b"GET /direct ";

/// Answers one path with the request as it lies in the map of its group.
struct Direct {
    /// By listener: the buffer group, and the other mapping of its memory.
    tenants: Vec<(BufferGroup, View)>,
}

impl Direct {
    fn tenant(&self, group: BufferGroup) -> Option<usize> {
        self.tenants.iter().position(|tenant| tenant.0 == group)
    }
}

impl ReceiveHook for Direct {
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
        // The first listener has a group; here the hook chooses that of the connection.
        if at == Listener(1) {
            io.set_receive_group(id, self.tenants[1].0).unwrap();
        }
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        let place = rx.place().expect("the kernel receives into a group");
        let Some(tenant) = self.tenant(place.group) else { return };
        let (group, view) = &self.tenants[tenant];
        assert_eq!(io.set_receive_group(id, *group), Err(BufferError::TooLate));
        let in_map = view.read(place.offset, rx.bytes().len());
        if in_map.starts_with(PATH) && in_map.ends_with(b"\n") {
            let answer = [format!("{tenant}: ").as_bytes(), &in_map].concat();
            rx.consume(in_map.len());
            io.send(id, Chunk::Copy(&answer));
        }
    }
}

/// Answers each line with one of its own, and where its bytes lie.
struct Lines;

impl Application for Lines {
    type State = ();
    const MAX_UNCONSUMED: usize = 1024;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        assert!(!rx.bytes().starts_with(PATH), "the hook answers it");
        if rx.bytes().ends_with(b"\n") {
            let group = rx.place().map_or(0, |place| place.group.index());
            rx.consume(rx.bytes().len());
            x.io.send(x.id, Chunk::Copy(format!("application, group {group}\n").as_bytes()));
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn hook_answers_from_memory_of_the_caller_on_every_mechanism() {
    one_by_one(|name| {
        let (server, ()) = Server::start_with(name, listening(3), |server| {
            let tenants: Vec<_> = [2, 4]
                .into_iter()
                .map(|count| {
                    let (memory, view) = mapped(BufferPool::memory_len(count, 512).unwrap());
                    let buffers = BufferPool::over(memory, count, 512).unwrap();
                    (server.add_buffers(buffers).unwrap(), view)
                })
                .collect();
            server.set_listener_group(Listener(0), tenants[0].0).unwrap();
            let absent = server.set_listener_group(Listener(3), tenants[0].0);
            assert_eq!(absent, Err(BufferError::Absent));
            (Hooked::new(Lines, Direct { tenants }), ())
        });
        let mut clients: Vec<_> = (0..3).map(|listener| server.connect_to(listener)).collect();
        // More requests than the groups have buffers.
        for round in 0..20 {
            for (tenant, client) in clients[..2].iter_mut().enumerate() {
                let request = format!("GET /direct {round} of {tenant}\n");
                ask(client, request.as_bytes(), format!("{tenant}: {request}").as_bytes());
                let expected = format!("application, group {}\n", tenant + 1);
                ask(client, b"GET /other\n", expected.as_bytes());
            }
            ask(&mut clients[2], b"GET /other\n", b"application, group 0\n");
        }
        drop(clients);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (3, 3));
    });
}

/// Adds groups while the server runs, until it has the maximum.
struct Adds(Vec<View>);

impl Application for Adds {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _: Listener) {
        let mut group = BufferGroup::DEFAULT;
        let rejected = loop {
            let (memory, view) = mapped(BufferPool::memory_len(1, 64).unwrap());
            self.0.push(view);
            match x.io.add_buffers(BufferPool::over(memory, 1, 64).unwrap()) {
                Ok(added) => group = added,
                Err(error) => break error,
            }
        };
        assert_eq!((rejected, self.0.len()), (BufferError::TooMany, BufferGroup::MAX));
        x.io.set_receive_group(x.id, group).unwrap();
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.eof() {
            return x.io.close(x.id, Close::Flush);
        }
        let place = rx.place().unwrap();
        let view = &self.0[place.group.index() - 1];
        assert_eq!(view.read(place.offset, rx.bytes().len()), rx.bytes());
        // A copy, as the group has no other buffer.
        let bytes = rx.take();
        assert_eq!(bytes.place(), None);
        x.io.send(x.id, Chunk::Received(bytes));
    }
}

#[test]
fn groups_are_added_to_a_running_server_up_to_a_maximum() {
    one_by_one(|name| {
        let server = Server::start(name, listening(1), || Adds(Vec::new()));
        let mut client = server.connect();
        // Longer than the only buffer of the group.
        ask(&mut client, [b'x'; 1_000], [b'x'; 1_000]);
        drop(client);
        server.stop();
    });
}
