//! The kernel's counters of listeners, as in nstat(8).

use std::fs;
use std::io;

/// Counters of connections before they are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpCounts {
    /// Number of times a listen backlog was full.
    pub(crate) listen_overflows: u64,
    /// Connections dropped before they were accepted, for this or another reason.
    pub(crate) listen_drops: u64,
}

impl TcpCounts {
    /// Reads the counters of this process's network namespace.
    pub(crate) fn now() -> io::Result<Self> {
        let extended = fs::read_to_string("/proc/self/net/netstat")?;
        let of = |name| counter(&extended, "TcpExt:", name).unwrap_or(0);
        Ok(TcpCounts { listen_overflows: of("ListenOverflows"), listen_drops: of("ListenDrops") })
    }

    /// Returns the increase since `before`.
    pub(crate) fn since(self, before: TcpCounts) -> TcpCounts {
        TcpCounts {
            listen_overflows: self.listen_overflows - before.listen_overflows,
            listen_drops: self.listen_drops - before.listen_drops,
        }
    }
}

/// Finds a counter in pairs of lines with equal first words, one with names and one with values.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.split(' ').next() == Some(group));
    let (names, values) = (lines.next()?.split(' '), lines.next()?.split(' '));
    names.zip(values).find(|(each, _)| *each == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: A B\nIp: 1 2\nTcpExt: ListenDrops ListenOverflows\nTcpExt: 30 4\n";
        assert_eq!(counter(text, "TcpExt:", "ListenOverflows"), Some(4));
        assert_eq!(counter(text, "Ip:", "B"), Some(2));
        assert_eq!(counter(text, "Tcp:", "OutRsts"), None);
        assert!(TcpCounts::now().is_ok());
    }
}
