//! The paper's functions on descriptors, with valid and invalid ones.

use std::error::Error as _;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use ecem::{AddError, Correlations, Error, Event, EventKind, Flags, Readiness};

#[test]
fn pairs_are_found_from_either_side() {
    let file = tempfile::tempfile().unwrap();
    let (a, b) = UnixStream::pair().unwrap();
    let mut table = Correlations::new(8);
    table.add(&file, &a, Flags::DED | Flags::DNS).unwrap();
    table.add(&file, &b, Flags::DNS).unwrap();
    assert_eq!(table.table().len(), 3);
    for socket in [&a, &b] {
        assert_eq!(table.correlated_disk(socket.as_raw_fd()), Some(file.as_raw_fd()));
    }
    let mut networks: Vec<_> = table.correlated_networks(file.as_raw_fd()).collect();
    networks.sort_unstable();
    assert_eq!(networks, [a.as_raw_fd(), a.as_raw_fd(), b.as_raw_fd()]);
    assert!(table.del(file.as_raw_fd(), a.as_raw_fd(), Flags::DNS));
    assert!(!table.del(file.as_raw_fd(), a.as_raw_fd(), Flags::DNS));
    assert_eq!(table.correlated_disk(a.as_raw_fd()), Some(file.as_raw_fd()));
    assert_eq!(table.close(a.as_raw_fd()), 1);
    assert_eq!(table.correlated_disk(a.as_raw_fd()), None);
    assert_eq!(table.close(file.as_raw_fd()), 1);
    assert!(table.table().is_empty());
}

#[test]
fn pair_is_in_rw_state_while_data_is_there_and_the_send_buffer_is_full() {
    let file = tempfile::tempfile().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    let (disk, net) = (file.as_raw_fd(), socket.as_raw_fd());
    let mut table = Correlations::new(1);
    table.add(&file, &socket, Flags::DED).unwrap();
    assert!(!table.is_in_rw_state(net, disk));
    let read = Event::new(disk, EventKind::DiskReadResponse);
    table.set(read, Readiness::Ready, |_, _, _| {});
    assert!(table.is_in_rw_state(net, disk));
    let write = Event::new(net, EventKind::NetworkWriteRequest);
    table.set(write, Readiness::Ready, |_, _, _| {});
    assert!(!table.is_in_rw_state(net, disk));
}

#[test]
fn pipe_and_socket_or_two_sockets_could_not_be_paired() {
    let (pipe, _write) = std::io::pipe().unwrap();
    let (upstream, _peer) = UnixStream::pair().unwrap();
    let (client, _peer) = UnixStream::pair().unwrap();
    let (from_pipe, from_socket) = (pipe.as_raw_fd(), upstream.as_raw_fd());
    let net = client.as_raw_fd();
    let mut table = Correlations::new(2);
    table.add(&pipe, &client, Flags::DED).unwrap();
    table.add(&upstream, &client, Flags::DED).unwrap();
    for source in [from_pipe, from_socket] {
        table.set(Event::new(source, EventKind::DiskReadResponse), Readiness::Ready, |_, _, _| {});
        assert!(table.is_in_rw_state(net, source));
    }
    assert_eq!(table.correlated_disk(net), Some(from_socket), "it was paired last");
    table.set(Event::new(net, EventKind::NetworkWriteRequest), Readiness::Ready, |_, _, _| {});
    assert!(!table.is_in_rw_state(net, from_pipe) && !table.is_in_rw_state(net, from_socket));
    assert_eq!(table.close(net), 2);
}

#[test]
fn socket_in_the_middle_of_a_chain_had_its_source_as_a_network() {
    let (a, b) = UnixStream::pair().unwrap();
    let (c, _peer) = UnixStream::pair().unwrap();
    let [from, middle, to] = [&a, &b, &c].map(AsRawFd::as_raw_fd);
    for flag in [Flags::DED, Flags::DNS] {
        let mut table = Correlations::new(2);
        table.add(&a, &b, flag).unwrap();
        table.add(&b, &c, flag).unwrap();
        let networks = |disk| table.correlated_networks(disk).collect::<Vec<_>>();
        assert_eq!([from, middle, to].map(networks), [vec![middle], vec![to], vec![]]);
        let disks = [from, middle, to].map(|net| table.correlated_disk(net));
        assert_eq!(disks, [None, Some(from), Some(middle)]);
    }
}

#[test]
fn sockets_of_a_proxy_that_copies_both_ways_were_paired_twice() {
    let (client, upstream) = UnixStream::pair().unwrap();
    let (one, other) = (client.as_raw_fd(), upstream.as_raw_fd());
    for flags in [Flags::DED, Flags::DNS] {
        let mut table = Correlations::new(2);
        table.add(&client, &upstream, flags).unwrap();
        table.add(&upstream, &client, flags).unwrap();
        assert_eq!(table.correlated_networks(one).collect::<Vec<_>>(), [other]);
        assert_eq!(table.correlated_networks(other).collect::<Vec<_>>(), [one]);
        // With one direction left, each has the other on one side only.
        assert!(table.del(other, one, flags));
        assert_eq!((table.correlated_disk(one), table.correlated_disk(other)), (None, Some(one)));
    }
}

#[test]
fn flags_that_name_no_pair_counted_as_added() {
    let file = tempfile::tempfile().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    let mut table = Correlations::new(1);
    let unknown = Flags::from_bits_retain(4);
    assert_eq!(table.add(&file, &socket, unknown), Err(Error::NoFlags));
    table.add(&file, &socket, unknown | Flags::DED).unwrap();
    assert_eq!(table.table().len(), 1);
}

#[test]
fn wrong_descriptors_and_repeated_pairs_are_errors() {
    let file = tempfile::tempfile().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    let mut table = Correlations::new(3);
    let disk = file.as_raw_fd();
    // SAFETY: no descriptor has this number, and fstat(2) reports that.
    let closed = unsafe { BorrowedFd::borrow_raw(i32::MAX) };
    assert_eq!(table.add(closed, &socket, Flags::DED), Err(Error::Closed(i32::MAX)));
    assert_eq!(table.add(&file, closed, Flags::DED), Err(Error::Closed(i32::MAX)));
    let null = std::fs::File::open("/dev/null").unwrap();
    let number = null.as_raw_fd();
    assert_eq!(table.add(&null, &socket, Flags::DED), Err(Error::NotAFile(number)));
    assert_eq!(table.add(&file, &file, Flags::DED), Err(Error::NotASocket(disk)));
    assert_eq!(table.add(&file, &socket, Flags::empty()), Err(Error::NoFlags));
    table.add(&file, &socket, Flags::DNS).unwrap();
    // The first pair is taken back if the second one fails.
    let error = table.add(&file, &socket, Flags::DED | Flags::DNS).unwrap_err();
    assert!(matches!(error, Error::Add(AddError::Exists(_))));
    assert!(error.source().is_some());
    assert_eq!(table.table().len(), 1);
    for error in [Error::Closed(3), Error::NotAFile(3), Error::NotASocket(3), Error::NoFlags, error]
    {
        assert!(!error.to_string().is_empty());
    }
}
