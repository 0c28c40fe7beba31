//! Bytes that are expected, in order.

use std::collections::VecDeque;

/// Bytes that are expected and have not been heard.
#[derive(Default)]
pub(super) struct Replies(VecDeque<u8>);

impl Replies {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes what was heard off the front.
    pub(super) fn compare(&mut self, heard: &[u8]) -> Result<usize, String> {
        let (head, tail) = self.0.as_slices();
        let n = head.len().min(heard.len());
        let rest = heard.len() - n;
        let same = rest <= tail.len() && heard[..n] == head[..n] && heard[n..] == tail[..rest];
        if !same {
            let expected: Vec<u8> = self.0.iter().copied().take(heard.len().max(1)).collect();
            return Err(format!("expected \"{}\", heard \"{}\"", short(&expected), short(heard)));
        }
        self.0.drain(..heard.len());
        Ok(heard.len())
    }

    pub(super) fn owed(&self) -> Option<String> {
        let first: Vec<u8> = self.0.iter().copied().take(40).collect();
        (!self.is_empty()).then(|| format!("{} bytes, \"{}\"...", self.0.len(), short(&first)))
    }
}

/// Bytes as a person reads them, not too many.
fn short(bytes: &[u8]) -> String {
    let more = if bytes.len() > 80 { "..." } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(80)].escape_ascii())
}
