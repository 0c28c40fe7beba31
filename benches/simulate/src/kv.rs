//! What clients of the cache say, and what they hear.

use std::collections::HashMap;

use shared_ring::sim::{Line, Net};

use super::replies::Replies;
use super::talker::Dialogue;

/// A client of the cache that has keys of its own, and so knows what is stored.
pub(super) struct Caching {
    me: usize,
    stored: HashMap<usize, Vec<u8>>,
    expected: Replies,
    /// Goes up when a connection ended with requests on their way: they may be carried out at any
    /// time, so it is not known what is stored.
    era: usize,
}

impl Caching {
    pub(super) fn new(me: usize) -> Self {
        Caching { me, stored: HashMap::new(), expected: Replies::default(), era: 0 }
    }

    fn key(&self, number: usize) -> String {
        format!("client{}-{}-{number}", self.me, self.era)
    }

    fn set(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) {
        let number = net.below(5);
        let len = [0, 5, 300, 3_000][net.below(4)];
        let value: Vec<u8> = (0..len).map(|at| b'a' + ((at + number) % 26) as u8).collect();
        out.extend_from_slice(format!("set {} 7 0 {len}\r\n", self.key(number)).as_bytes());
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
        self.expected.add(b"STORED\r\n");
        self.stored.insert(number, value);
    }

    fn get(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"get");
        let mut reply = Vec::new();
        for _ in 0..1 + net.below(3) {
            let number = net.below(5);
            let key = self.key(number);
            out.extend_from_slice(format!(" {key}").as_bytes());
            if let Some(value) = self.stored.get(&number) {
                reply.extend_from_slice(format!("VALUE {key} 7 {}\r\n", value.len()).as_bytes());
                reply.extend_from_slice(value);
                reply.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(b"\r\n");
        reply.extend_from_slice(b"END\r\n");
        self.expected.add(&reply);
    }

    fn delete(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) {
        let number = net.below(5);
        out.extend_from_slice(format!("delete {}\r\n", self.key(number)).as_bytes());
        let found = self.stored.remove(&number).is_some();
        self.expected.add(if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
    }
}

impl Dialogue for Caching {
    fn begin(&mut self) {
        if !self.expected.is_empty() {
            self.era += 1;
            self.stored.clear();
            self.expected.clear();
        }
    }

    fn ask(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        match net.below(20) {
            0..7 => self.set(net, out),
            7..16 => self.get(net, out),
            16..18 => self.delete(net, out),
            18 => {
                out.extend_from_slice(b"bogus\r\n");
                self.expected.add(b"ERROR\r\n");
            }
            _ => {
                out.extend_from_slice(b"set a 0 0 x\r\n");
                self.expected.add(b"CLIENT_ERROR bad command line format\r\n");
            }
        }
        true
    }

    fn hear(&mut self, _net: &mut Net<'_>, _line: &Line, bytes: &[u8]) -> Result<usize, String> {
        self.expected.compare(bytes)
    }

    fn owed(&self) -> Option<String> {
        self.expected.owed()
    }
}
