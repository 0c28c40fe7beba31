//! Expected bytes, in order.

use std::collections::VecDeque;
use std::ops::Range;

use evring_sim::FileVersions;

use super::pattern::PATTERN;

/// Bytes that are expected and were not received.
#[derive(Default)]
pub(super) struct Replies {
    bytes: VecDeque<u8>,
    /// Number of received bytes.
    received: usize,
    /// Ranges of the stream that are parts of files, in order.
    files: VecDeque<FilePart>,
}

/// A part of a file.
struct FilePart {
    /// Where it is in the stream.
    range: Range<usize>,
    /// Its offset in the file.
    start: usize,
    versions: FileVersions,
}

impl Replies {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Adds a part of a file, which may change.
    pub(super) fn add_file(&mut self, part: Range<usize>) {
        let start = self.received + self.bytes.len();
        let range = start..start + part.len();
        let versions = FileVersions::default();
        self.files.push_back(FilePart { range, start: part.start, versions });
        self.add(&PATTERN[part]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Replies::default();
    }

    /// Removes received bytes from the front.
    ///
    /// # Errors
    /// If they differ from the expected ones.
    pub(super) fn compare(&mut self, new: &[u8]) -> Result<usize, String> {
        if let Err(wrong) = self.accept(new) {
            let expected: Vec<u8> = self.bytes.iter().copied().take(new.len().max(1)).collect();
            return Err(format!(
                "expected \"{}\", received \"{}\": {wrong}",
                show(&expected),
                show(new)
            ));
        }
        self.bytes.drain(..new.len());
        self.received += new.len();
        while self.files.front().is_some_and(|file| file.range.end <= self.received) {
            self.files.pop_front();
        }
        Ok(new.len())
    }

    /// Compares new bytes with the expected ones, except in files, which may have changed.
    ///
    /// # Errors
    /// The first one that differs.
    fn accept(&mut self, new: &[u8]) -> Result<(), String> {
        let mut files = self.files.iter_mut().peekable();
        for (at, (byte, expected)) in (self.received..).zip(new.iter().zip(&self.bytes)) {
            while files.next_if(|file| file.range.end <= at).is_some() {}
            let n = at - self.received;
            match files.peek_mut().filter(|file| file.range.contains(&at)) {
                Some(file) => {
                    let offset = file.start + at - file.range.start;
                    if !file.versions.accepts(&PATTERN, offset, *byte) {
                        return Err(format!(
                            "byte {n}, at {offset} of a file, differs; {}",
                            file.versions
                        ));
                    }
                }
                None if byte != expected => return Err(format!("byte {n} differs")),
                None => {}
            }
        }
        match new.len().saturating_sub(self.bytes.len()) {
            0 => Ok(()),
            more => Err(format!("{more} bytes are too many")),
        }
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
