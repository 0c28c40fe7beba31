//! Expected bytes, in order.

use std::collections::VecDeque;
use std::ops::Range;

use evring_sim::is_of_file;

use super::pattern::PATTERN;

/// Bytes that are expected and were not received.
#[derive(Default)]
pub(super) struct Replies {
    bytes: VecDeque<u8>,
    /// Number of received bytes.
    received: usize,
    /// Ranges of the stream that are parts of files, with their offsets in the file.
    files: VecDeque<(Range<usize>, usize)>,
}

impl Replies {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Adds a part of a file, which may change.
    pub(super) fn add_file(&mut self, part: Range<usize>) {
        let start = self.received + self.bytes.len();
        self.files.push_back((start..start + part.len(), part.start));
        self.add(&PATTERN[part]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Replies::default();
    }

    /// Removes received bytes from the front.
    ///
    /// # Errors
    /// If they differ from the expected ones.
    pub(super) fn compare(&mut self, new: &[u8]) -> Result<usize, String> {
        let (head, tail) = self.bytes.as_slices();
        let n = head.len().min(new.len());
        let remaining = new.len() - n;
        let same =
            remaining <= tail.len() && new[..n] == head[..n] && new[n..] == tail[..remaining];
        if !same && !self.is_of_files(new) {
            let expected: Vec<u8> = self.bytes.iter().copied().take(new.len().max(1)).collect();
            return Err(format!("expected \"{}\", received \"{}\"", show(&expected), show(new)));
        }
        self.bytes.drain(..new.len());
        self.received += new.len();
        while self.files.front().is_some_and(|(range, _)| range.end <= self.received) {
            self.files.pop_front();
        }
        Ok(new.len())
    }

    /// Returns whether new bytes differ from the expected ones only where files have changed.
    fn is_of_files(&self, new: &[u8]) -> bool {
        new.len() <= self.bytes.len()
            && new.iter().enumerate().zip(&self.bytes).all(|((n, byte), expected)| {
                let at = self.received + n;
                let file = self.files.iter().find(|(range, _)| range.contains(&at));
                byte == expected
                    || file.is_some_and(|(range, start)| {
                        is_of_file(&PATTERN, start + at - range.start, *byte)
                    })
            })
    }

    pub(super) fn outstanding(&self) -> Option<String> {
        let first: Vec<u8> = self.bytes.iter().copied().take(40).collect();
        (!self.is_empty()).then(|| format!("{} bytes, \"{}\"...", self.bytes.len(), show(&first)))
    }
}

/// Formats the first bytes for a message.
fn show(bytes: &[u8]) -> String {
    let more = if bytes.len() > 80 { "..." } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(80)].escape_ascii())
}
