//! The workloads and the servers measured under each.

use super::super::servers::{NGINX, NGINX_SHIPPED};
use crate::measure::Peer::{self, Floor, Hyper, MayMinihttp, Ours};
use crate::measure::Requests;

/// A workload.
#[derive(Debug)]
pub(super) struct PeerWork {
    /// Its name in the names of ratios.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) path: &'static str,
    /// Length of the body of each reply.
    pub(super) bytes: usize,
    pub(super) requests: Requests,
    pub(super) peers: &'static [Peer],
}

const EPOLL: Peer = Ours("epoll");
const URING: Peer = Ours("uring");
const SEND: Peer = Ours("send");
const TOKIO: Peer = Ours("tokio");
const TUNED: Peer = NGINX;
const SHIPPED: Peer = NGINX_SHIPPED;

/// The servers measured with replies from memory.
const HANDLERS: [Peer; 10] =
    [EPOLL, URING, SEND, TOKIO, Floor("epoll"), Floor("uring"), TUNED, SHIPPED, Hyper, MayMinihttp];

/// The servers of Rust libraries.
pub(super) const LIBRARIES: [Peer; 2] = [Hyper, MayMinihttp];

/// Every workload.
///
/// Without files, nginx answers from its configuration. Libraries serve no files. A floor answers each read with one reply, so it has only the simple workloads.
pub(super) const ALL: [PeerWork; 6] = [
    PeerWork {
        name: "hello",
        title: "12 bytes from a handler",
        path: "/hello",
        bytes: 12,
        requests: Requests::KeepAlive,
        peers: &HANDLERS,
    },
    PeerWork {
        name: "file1k",
        title: "a file of 1 KiB",
        path: "/1k.txt",
        bytes: 1 << 10,
        requests: Requests::KeepAlive,
        peers: &[EPOLL, URING, SEND, TOKIO, Floor("epoll"), Floor("uring"), TUNED, SHIPPED],
    },
    PeerWork {
        name: "file64k",
        title: "a file of 64 KiB",
        path: "/64k.txt",
        bytes: 1 << 16,
        requests: Requests::KeepAlive,
        peers: &[EPOLL, URING, SEND, TOKIO, TUNED, SHIPPED],
    },
    PeerWork {
        name: "file1m",
        title: "a file of 1 MiB",
        path: "/1m.txt",
        bytes: 1 << 20,
        requests: Requests::KeepAlive,
        peers: &[EPOLL, URING, SEND, TOKIO, TUNED, SHIPPED],
    },
    PeerWork {
        name: "pipelined",
        title: "12 bytes from a handler, 16 requests at once",
        path: "/hello",
        bytes: 12,
        requests: Requests::Pipelined(16),
        peers: &HANDLERS,
    },
    PeerWork {
        name: "conn",
        title: "12 bytes from a handler, a new connection for each request",
        path: "/hello",
        bytes: 12,
        requests: Requests::Close,
        // may_minihttp never closes a connection.
        peers: &[EPOLL, URING, SEND, TOKIO, TUNED, SHIPPED, Hyper],
    },
];
