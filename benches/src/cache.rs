//! The requests to a cache, which holds every key that they name.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fastrand::Rng;

use crate::client::Batch;
use crate::failure::Failure;

/// Number of keys.
const KEYS: usize = 10_000;
/// Number of batches before the first is sent again.
const BATCHES: usize = 10_000;
/// In a mixed load, one of so many requests is a `set`.
const SET_EVERY: usize = 10;

const STORED: &[u8] = b"STORED\r\n";
const END: &[u8] = b"END\r\n";

/// A key and the length of its value.
struct Entry {
    key: String,
    value_bytes: usize,
}

impl Entry {
    /// Returns every key, the same in each process. Keys and values have random lengths, as those of
    /// memslap.
    fn all() -> Vec<Entry> {
        let mut random = Rng::with_seed(1);
        let entry = |number: usize| {
            let mut key = format!("{number}-");
            let length = random.usize(16..=48);
            key.extend((key.len()..length).map(|_| random.alphanumeric()));
            Entry { key, value_bytes: random.usize(10..=500) }
        };
        (0..KEYS).map(entry).collect()
    }

    /// Appends a request that stores the value.
    fn set(&self, last: &str, to: &mut Vec<u8>) {
        let Entry { key, value_bytes } = self;
        to.extend_from_slice(format!("set {key} 0 0 {value_bytes}{last}\r\n").as_bytes());
        to.resize(to.len() + value_bytes, b'v');
        to.extend_from_slice(b"\r\n");
    }

    /// Returns the length of the value in a reply, with its lines.
    fn found_bytes(&self) -> usize {
        format!("VALUE {} 0 {}\r\n\r\n", self.key, self.value_bytes).len() + self.value_bytes
    }
}

/// Stores a value for every key.
pub(crate) fn fill(cache: SocketAddr) -> Result<(), Failure> {
    let failed = |e| Failure::new("cannot fill the cache", e);
    let mut requests = Vec::new();
    Entry::all().iter().for_each(|entry| entry.set(" noreply", &mut requests));
    // Its reply shows that all the values have been stored.
    requests.extend_from_slice(b"verbosity 0\r\n");
    let mut stream = TcpStream::connect(cache).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(failed)?;
    stream.write_all(&requests).map_err(failed)?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).map_err(failed)?;
    (reply == *b"OK\r\n").then_some(()).ok_or_else(|| {
        Failure::Run(format!("the cache replied {:?}", String::from_utf8_lossy(&reply)))
    })
}

/// Returns single requests for random keys: nine `get`, then one `set`.
pub(crate) fn mixed() -> Vec<Batch> {
    batches(|number, entries, random| {
        let entry = random.choice(entries).expect("there are keys");
        if number % SET_EVERY == SET_EVERY - 1 {
            let mut bytes = Vec::new();
            entry.set("", &mut bytes);
            return Batch { bytes, reply_bytes: STORED.len() };
        }
        let bytes = format!("get {}\r\n", entry.key).into_bytes();
        Batch { bytes, reply_bytes: entry.found_bytes() + END.len() }
    })
}

/// Returns batches of `count` lines, each a `get` of a random key.
pub(crate) fn gets(count: usize) -> Vec<Batch> {
    batches(|_, entries, random| {
        let mut batch = Batch { bytes: Vec::new(), reply_bytes: 0 };
        for entry in random.choose_multiple(entries, count) {
            batch.bytes.extend_from_slice(format!("get {}\r\n", entry.key).as_bytes());
            batch.reply_bytes += entry.found_bytes() + END.len();
        }
        batch
    })
}

/// Returns `get` lines, each with `count` random keys.
pub(crate) fn multigets(count: usize) -> Vec<Batch> {
    batches(|_, entries, random| {
        let mut batch = Batch { bytes: b"get".to_vec(), reply_bytes: END.len() };
        for entry in random.choose_multiple(entries, count) {
            batch.bytes.extend_from_slice(format!(" {}", entry.key).as_bytes());
            batch.reply_bytes += entry.found_bytes();
        }
        batch.bytes.extend_from_slice(b"\r\n");
        batch
    })
}

fn batches(mut batch: impl FnMut(usize, &[Entry], &mut Rng) -> Batch) -> Vec<Batch> {
    let (entries, mut random) = (Entry::all(), Rng::with_seed(2));
    (0..BATCHES).map(|number| batch(number, &entries, &mut random)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_ten_stores_a_value() {
        let sets = mixed().iter().filter(|batch| batch.bytes.starts_with(b"set ")).count();
        assert_eq!(sets * SET_EVERY, BATCHES);
    }

    #[test]
    fn a_batch_names_different_keys() {
        let batch = &gets(16)[0];
        let mut lines: Vec<_> = batch.bytes.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.pop(), Some(&b""[..]));
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 16);
        assert_eq!(multigets(16)[0].reply_bytes, batch.reply_bytes - 15 * END.len());
    }
}
