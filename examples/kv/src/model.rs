//! A simple reference model of the server, for tests.
//!
//! A [`Model`] generates requests with their replies. Only this model uses its keys, and its time does not
//! advance.

use std::collections::BTreeMap;

/// A client that predicts the stored values.
#[derive(Debug)]
pub struct Model {
    prefix: String,
    /// No other client uses the server, so the model may use `cas` numbers and `flush_all`.
    alone: bool,
    max_value: usize,
    values: BTreeMap<usize, Value>,
    /// The `cas` number of the newest value.
    unique: u64,
}

#[derive(Clone, Debug)]
struct Value {
    flags: u32,
    bytes: Vec<u8>,
    unique: u64,
}

/// Number of keys.
const KEYS: usize = 12;

/// Maximum item size of a server with default limits, and the overhead besides key and value.
const MAX_ITEM: usize = 1 << 20;
const COUNTED: usize = 59;

/// Invalid lines and their replies.
const INVALID_LINES: &[(&str, &str)] = &[
    ("", "ERROR"),
    ("bogus", "ERROR"),
    ("get", "ERROR"),
    ("gats 0", "END"),
    ("gat x a", "CLIENT_ERROR invalid exptime argument"),
    ("mg a v", "ERROR"),
    ("set a 0 0 x", "CLIENT_ERROR bad command line format"),
    ("set a 0 0 -1", "CLIENT_ERROR bad command line format"),
    ("set a 0 0 1 2 3", "ERROR"),
    ("cas a 0 0 1", "ERROR"),
    ("incr a", "ERROR"),
    ("incr a x", "CLIENT_ERROR invalid numeric delta argument"),
    ("decr a 18446744073709551616", "CLIENT_ERROR invalid numeric delta argument"),
    ("touch a x", "CLIENT_ERROR invalid exptime argument"),
    ("delete a 5", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
    ("verbosity", "ERROR"),
    ("verbosity 1", "OK"),
    ("flush_all x", "CLIENT_ERROR invalid exptime argument"),
    ("stats bogus", "ERROR"),
];

impl Model {
    /// Creates a client whose keys begin with `prefix` and whose values have at most `max_value` bytes. If
    /// `alone` since the server's start, the client also uses commands that depend on others.
    pub fn new(prefix: String, max_value: usize, alone: bool) -> Self {
        Model { prefix, alone, max_value, values: BTreeMap::new(), unique: 0 }
    }

    /// Appends a request and its reply. `below` returns a random number below its argument.
    pub fn step(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) {
        match below(100) {
            0..40 => self.get(below, request, reply),
            40..70 => self.store(below, request, reply),
            70..80 => self.count(below, request, reply),
            80..85 => self.touch(below, request, reply),
            85..93 => self.delete(below, request, reply),
            93..95 if self.alone && below(5) == 0 => {
                self.values.clear();
                self.unique += 1;
                let quiet = quiet(below);
                add(request, &format!("flush_all{}", word(quiet)));
                respond(reply, quiet, "OK");
            }
            _ => {
                let (line, error) = INVALID_LINES[below(INVALID_LINES.len())];
                add(request, line);
                add(reply, error);
            }
        }
    }

    fn key(&self, number: usize) -> String {
        // Some need one or two blocks of their own.
        let pad = [0, 0, 0, 100, 180][number % 5];
        format!("{}{number}{:x<pad$}", self.prefix, "")
    }

    fn get(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) {
        let unique = self.alone && below(4) == 0;
        let exptime = (below(6) == 0).then(|| exptime(below));
        let name = match (exptime, unique) {
            (None, false) => "get".to_owned(),
            (None, true) => "gets".to_owned(),
            (Some((seconds, _)), false) => format!("gat {seconds}"),
            (Some((seconds, _)), true) => format!("gats {seconds}"),
        };
        request.extend_from_slice(name.as_bytes());
        for _ in 0..1 + below(4) {
            let number = below(KEYS);
            let key = self.key(number);
            request.extend_from_slice(&b"   "[..1 + below(2)]);
            request.extend_from_slice(key.as_bytes());
            let Some(Value { flags, bytes, unique: number_of }) = self.values.get(&number) else {
                continue;
            };
            let last = if unique { format!(" {number_of}") } else { String::new() };
            add(reply, &format!("VALUE {key} {flags} {}{last}", bytes.len()));
            reply.extend_from_slice(bytes);
            add(reply, "");
            if let Some((_, false)) = exptime {
                self.values.remove(&number);
            }
        }
        add(request, "");
        add(reply, "END");
    }

    fn store(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) {
        let (number, quiet) = (below(KEYS), quiet(below));
        let flags = [0, 1, u32::MAX][below(3)];
        let (exptime, lives) = exptime(below);
        let bytes = self.bytes(below);
        let verb = below(12);
        let name = ["set", "add", "replace", "append", "prepend", "cas"][verb.saturating_sub(6)];
        let key = self.key(number);
        let old = self.values.get(&number).cloned();
        let requested = match old {
            Some(ref old) if self.alone && below(2) == 0 => old.unique,
            _ => 1 << 60,
        };
        let last = if name == "cas" { format!(" {requested}") } else { String::new() };
        let line = format!("{name} {key} {flags} {exptime} {}{last}{}", bytes.len(), word(quiet));
        add(request, &line);
        request.extend_from_slice(&bytes);
        if below(50) == 0 {
            // The line end is missing, so the next bytes form a line.
            request.extend_from_slice(b"!!\r\n");
            respond(
                reply,
                quiet || is_large(&key, flags, bytes.len()),
                "CLIENT_ERROR bad data chunk",
            );
            if is_large(&key, flags, bytes.len()) {
                respond(reply, quiet, "SERVER_ERROR object too large for cache");
                if name == "set" {
                    self.values.remove(&number);
                }
            }
            add(reply, "ERROR");
            return;
        }
        add(request, "");
        if is_large(&key, flags, bytes.len()) {
            if name == "set" {
                self.values.remove(&number);
            }
            return respond(reply, quiet, "SERVER_ERROR object too large for cache");
        }
        let new = Value { flags, bytes, unique: 0 };
        let result = match (name, old) {
            ("set", _) | ("add", None) | ("replace", Some(_)) => Ok((new, lives)),
            ("add", Some(_)) | ("replace" | "append" | "prepend", None) => Err("NOT_STORED"),
            ("append" | "prepend", Some(old)) => {
                let parts = [&old.bytes[..], &new.bytes[..]];
                let bytes = if name == "append" { parts } else { [parts[1], parts[0]] }.concat();
                match is_large(&key, old.flags, bytes.len()) {
                    true => Err("NOT_STORED"),
                    false => Ok((Value { bytes, ..old }, true)),
                }
            }
            (_, None) => Err("NOT_FOUND"),
            (_, Some(old)) if old.unique == requested => Ok((new, lives)),
            (_, Some(_)) => Err("EXISTS"),
        };
        match result {
            Ok((value, lives)) => {
                self.put(number, value, lives);
                respond(reply, quiet, "STORED");
            }
            Err(word) => respond(reply, quiet, word),
        }
    }

    fn put(&mut self, number: usize, value: Value, lives: bool) {
        self.unique += 1;
        self.values.remove(&number);
        if lives {
            self.values.insert(number, Value { unique: self.unique, ..value });
        }
    }

    fn bytes(&self, below: &mut dyn FnMut(usize) -> usize) -> Vec<u8> {
        let text = match below(10) {
            0 => format!("{}", below(1000)),
            1 => format!("{}", u64::MAX - below(3) as u64),
            2 => format!(" {} apples", below(100)),
            _ => {
                let len = match below(40) {
                    0..30 => below(40),
                    30..37 => 60 + below(200),
                    37..39 => 1000 + below(5000),
                    _ => below(70_000),
                };
                let len = len.min(self.max_value);
                let first = below(26);
                return (0..len).map(|at| b'a' + ((at + first) % 26) as u8).collect();
            }
        };
        text.into_bytes()
    }

    fn count(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) {
        let (number, quiet, up) = (below(KEYS), quiet(below), below(2) == 0);
        let delta = [0, 1, 99, u64::MAX][below(4)];
        let name = if up { "incr" } else { "decr" };
        add(request, &format!("{name} {} {delta}{}", self.key(number), word(quiet)));
        let Some(old) = self.values.get(&number).cloned() else {
            return respond(reply, quiet, "NOT_FOUND");
        };
        let counted = counted(&self.key(number), old.flags, old.bytes.len());
        let Some(value) = decimal(&old.bytes).filter(|_| counted <= MAX_ITEM / 2) else {
            let error = "CLIENT_ERROR cannot increment or decrement non-numeric value";
            return respond(reply, quiet, error);
        };
        let value = if up { value.wrapping_add(delta) } else { value.saturating_sub(delta) };
        let mut bytes = value.to_string().into_bytes();
        bytes.resize(bytes.len().max(old.bytes.len()), b' ');
        self.put(number, Value { bytes, ..old }, true);
        respond(reply, quiet, &value.to_string());
    }

    fn touch(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) {
        let (number, quiet, (exptime, lives)) = (below(KEYS), quiet(below), exptime(below));
        add(request, &format!("touch {} {exptime}{}", self.key(number), word(quiet)));
        let found = self.values.contains_key(&number);
        if !lives {
            self.values.remove(&number);
        }
        respond(reply, quiet, if found { "TOUCHED" } else { "NOT_FOUND" });
    }

    fn delete(
        &mut self,
        below: &mut dyn FnMut(usize) -> usize,
        request: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) {
        let (number, quiet) = (below(KEYS), quiet(below));
        add(request, &format!("delete {}{}", self.key(number), word(quiet)));
        let found = self.values.remove(&number).is_some();
        respond(reply, quiet, if found { "DELETED" } else { "NOT_FOUND" });
    }
}

fn is_large(key: &str, flags: u32, len: usize) -> bool {
    counted(key, flags, len) > MAX_ITEM
}

fn counted(key: &str, flags: u32, len: usize) -> usize {
    key.len() + len + COUNTED + if flags == 0 { 0 } else { 4 }
}

/// Returns the number that a value starts with, if any.
fn decimal(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns an expiry time, and whether a value with it is alive.
fn exptime(below: &mut dyn FnMut(usize) -> usize) -> (i64, bool) {
    match below(12) {
        0 => (-1, false),
        1 => (2_592_001, false),
        2..4 => (100_000, true),
        _ => (0, true),
    }
}

fn quiet(below: &mut dyn FnMut(usize) -> usize) -> bool {
    below(4) == 0
}

fn word(quiet: bool) -> &'static str {
    if quiet { " noreply" } else { "" }
}

fn add(to: &mut Vec<u8>, line: &str) {
    to.extend_from_slice(line.as_bytes());
    to.extend_from_slice(b"\r\n");
}

fn respond(to: &mut Vec<u8>, quiet: bool, line: &str) {
    if !quiet {
        add(to, line);
    }
}
