//! Bytes that are expected, in order.

use std::collections::VecDeque;
use std::ops::Range;

use shared_ring::sim::is_of_file;

use super::pattern::PATTERN;

/// Bytes that are expected and have not been heard.
#[derive(Default)]
pub(super) struct Replies {
    bytes: VecDeque<u8>,
    /// How many were heard.
    heard: usize,
    /// Which of all bytes are those of a file, from which place in it on.
    files: VecDeque<(Range<usize>, usize)>,
}

impl Replies {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Adds part of a file, which may have changed since.
    pub(super) fn add_file(&mut self, part: Range<usize>) {
        let start = self.heard + self.bytes.len();
        self.files.push_back((start..start + part.len(), part.start));
        self.add(&PATTERN[part]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Replies::default();
    }

    /// Takes what was heard off the front.
    pub(super) fn compare(&mut self, heard: &[u8]) -> Result<usize, String> {
        let (head, tail) = self.bytes.as_slices();
        let n = head.len().min(heard.len());
        let rest = heard.len() - n;
        let same = rest <= tail.len() && heard[..n] == head[..n] && heard[n..] == tail[..rest];
        if !same && !self.is_of_files(heard) {
            let expected: Vec<u8> = self.bytes.iter().copied().take(heard.len().max(1)).collect();
            return Err(format!("expected \"{}\", heard \"{}\"", short(&expected), short(heard)));
        }
        self.bytes.drain(..heard.len());
        self.heard += heard.len();
        while self.files.front().is_some_and(|(range, _)| range.end <= self.heard) {
            self.files.pop_front();
        }
        Ok(heard.len())
    }

    /// Whether what was heard differs from what is expected only where files have changed.
    fn is_of_files(&self, heard: &[u8]) -> bool {
        heard.len() <= self.bytes.len()
            && heard.iter().enumerate().zip(&self.bytes).all(|((n, byte), expected)| {
                let at = self.heard + n;
                let file = self.files.iter().find(|(range, _)| range.contains(&at));
                byte == expected
                    || file.is_some_and(|(range, start)| {
                        is_of_file(&PATTERN, start + at - range.start, *byte)
                    })
            })
    }

    pub(super) fn owed(&self) -> Option<String> {
        let first: Vec<u8> = self.bytes.iter().copied().take(40).collect();
        (!self.is_empty()).then(|| format!("{} bytes, \"{}\"...", self.bytes.len(), short(&first)))
    }
}

/// Bytes as a person reads them, not too many.
fn short(bytes: &[u8]) -> String {
    let more = if bytes.len() > 80 { "..." } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(80)].escape_ascii())
}
