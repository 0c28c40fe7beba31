//! Every mechanism carries bytes; the behaviour suite of the examples has the rest.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;

use multiplex::{
    Any, Application, Chunk, Close, Commands, Config, Cx, Remote, Rx, Stats, backends,
};

struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        x.io.send(x.id, Chunk::Received(rx.take()));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn every_mechanism_echoes_and_stops() {
    for backend in backends() {
        if let Err(why) = &backend.available {
            println!("{} is not available: {why}", backend.name);
            continue;
        }
        println!("{}", backend.name);
        let (sender, receiver) = mpsc::channel();
        let server = thread::spawn(move || -> Stats {
            let config =
                Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
            let server = Any::new(backend.name, &config).unwrap();
            sender.send((server.addresses()[0], server.remote())).unwrap();
            server.run(Echo).unwrap()
        });
        let (address, remote): (_, Remote) = receiver.recv().unwrap();
        let mut first = TcpStream::connect(address).unwrap();
        let mut second = TcpStream::connect(address).unwrap();
        let text = b"to and fro".repeat(1000);
        for stream in [&mut first, &mut second] {
            stream.write_all(&text).unwrap();
            let mut back = vec![0; text.len()];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, text);
        }
        first.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        remote.stop();
        assert_eq!(second.read(&mut [0]).unwrap(), 0);
        let stats = server.join().unwrap();
        assert_eq!((stats.accepted, stats.closed), (2, 2));
    }
}
