//! Access logs of virtual hosts: the log of each request, and its mark in the buffer between a worker and the writer.

use crate::decision::options::HostIndex;
use crate::host_options::HostName;
use crate::message::request::RequestHead;
use crate::site::hosts::HostNames;

/// The number of an access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogIndex(pub(crate) u16);

/// The access log of each virtual host.
#[derive(Clone, Debug)]
pub(crate) struct HostLogs {
    names: HostNames,
    /// The log of each host, if its requests are logged. The first host also has what is no valid request.
    logs: Vec<Option<LogIndex>>,
}

impl HostLogs {
    pub(crate) fn new(first: Option<LogIndex>) -> Self {
        HostLogs { names: HostNames::default(), logs: vec![first] }
    }

    /// Adds the next host.
    pub(crate) fn add(&mut self, names: &[HostName], log: Option<LogIndex>) {
        self.names.add(names, HostIndex(self.logs.len() as u16));
        self.logs.push(log);
    }

    /// Returns the log of a request, or of what is no valid request.
    pub(crate) fn of(&self, request: Option<&RequestHead<'_>>) -> Option<LogIndex> {
        let host = request.map_or(HostIndex::default(), |request| self.names.of(request));
        self.logs[usize::from(host.0)]
    }
}

/// Bytes of a mark.
const MARK_BYTES: usize = 3;

/// Marks the line that follows. A mark has no end of a line.
pub(crate) fn put_mark(line: &mut Vec<u8>, LogIndex(log): LogIndex) {
    line.extend([log >> 12, log >> 6, log].map(|bits| b'@' | (bits & 0x3f) as u8));
}

/// Returns the lines of each log, without their marks. They need the memory of the marked lines at most, and 32 bytes
/// for each log.
pub(crate) fn sort(lines: &[u8], logs: usize) -> Vec<Vec<u8>> {
    let mut lengths = vec![0; logs];
    for (log, line) in marked(lines) {
        if let Some(length) = lengths.get_mut(log) {
            *length += line.len();
        }
    }
    let mut sorted: Vec<_> = lengths.into_iter().map(Vec::with_capacity).collect();
    for (log, line) in marked(lines) {
        if let Some(of_log) = sorted.get_mut(log) {
            of_log.extend_from_slice(line);
        }
    }
    sorted
}

/// Returns each line with the number of its log.
fn marked(lines: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = lines.split_inclusive(|byte| *byte == b'\n');
    lines.filter_map(|line| {
        let (mark, line) = line.split_at_checked(MARK_BYTES)?;
        Some((mark.iter().fold(0, |log, byte| log << 6 | usize::from(byte & 0x3f)), line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_by_their_marks() {
        let mut lines = Vec::new();
        // 10 is the end of a line.
        for (log, line) in [(0, "a\n"), (10, "b\n"), (700, "\n"), (10, "@@@\n")] {
            put_mark(&mut lines, LogIndex(log));
            lines.extend_from_slice(line.as_bytes());
        }
        let sorted = sort(&lines, 701);
        let found: Vec<_> = sorted.iter().enumerate().filter(|(_, b)| !b.is_empty()).collect();
        let expected = [(0, b"a\n".to_vec()), (10, b"b\n@@@\n".to_vec()), (700, b"\n".to_vec())];
        assert_eq!(found, expected.iter().map(|(log, b)| (*log, b)).collect::<Vec<_>>());
        let capacity: usize = sorted.iter().map(Vec::capacity).sum();
        assert!(capacity <= lines.len(), "{capacity} bytes for {}", lines.len());
        put_mark(&mut lines, LogIndex(u16::MAX));
        assert_eq!(lines[lines.len() - 3..], [b'@' | 0xf, 0x7f, 0x7f]);
    }
}
