use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use super::*;

/// Runs every floor in turn, and calls `talk` with connections to it.
fn with_each(task: Task, talk: impl Fn(&str, TcpStream)) {
    for (name, serve) in ALL {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
        let floor = thread::spawn(move || serve(listener, task));
        for _ in 0..3 {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            talk(name, stream);
        }
        rustix::net::shutdown(&stop, rustix::net::Shutdown::Both).unwrap();
        let calls = floor.join().unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(calls > 3, "{name} made {calls} system calls");
    }
}

#[test]
fn every_floor_echoes() {
    with_each(Task::Echo, |name, mut stream| {
        for text in [&b"hello"[..], &[7; 4096], &[b'x'; 20_000]] {
            stream.write_all(text).unwrap();
            let mut back = vec![0; text.len()];
            stream.read_exact(&mut back).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(back, text, "{name}");
        }
    });
}

#[test]
fn every_floor_replies_and_closes_at_end_of_stream() {
    with_each(Task::Reply(b"a reply"), |name, mut stream| {
        for _ in 0..3 {
            stream.write_all(b"anything").unwrap();
            let mut back = [0; 7];
            stream.read_exact(&mut back).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(&back, b"a reply", "{name}");
        }
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "{name}");
    });
}

#[test]
fn mechanisms_of_one_interface_share_a_floor() {
    assert_eq!(for_mechanism("epoll-edge"), Some("epoll"));
    assert_eq!(for_mechanism("flexsc"), Some("epoll"));
    assert_eq!(for_mechanism("send-ps1"), Some("uring"));
    assert_eq!(for_mechanism("tokio"), Some("tokio"));
    assert_eq!(for_mechanism("unknown"), None);
    assert!(named("select").is_some() && named("send").is_none());
}
