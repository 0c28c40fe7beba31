//! Connections per source address, if that number is limited.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Source of connections for the limit: an IPv4 address, or an IPv6 /64 network, which usually belongs to
/// one client (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    V4(u32),
    V6(u64),
}

impl Source {
    pub(crate) fn of(address: SocketAddr) -> Self {
        let network = |address: Ipv6Addr| Source::V6((address.to_bits() >> 64) as u64);
        match address.ip() {
            IpAddr::V4(address) => Source::V4(address.to_bits()),
            IpAddr::V6(address) => address
                .to_ipv4_mapped()
                .map_or_else(|| network(address), |address| Source::V4(address.to_bits())),
        }
    }
}

/// Number of connections per source.
#[derive(Debug)]
pub(crate) struct Shares {
    max: u32,
    counts: HashMap<Source, u32>,
}

impl Shares {
    /// Creates a table with a maximum per source.
    pub(crate) fn new(max: u32) -> Self {
        Shares { max, counts: HashMap::new() }
    }

    /// Counts a connection. Returns false if the source has reached the maximum.
    pub(crate) fn take(&mut self, source: Source) -> bool {
        match self.counts.entry(source) {
            Entry::Occupied(count) if *count.get() >= self.max => false,
            Entry::Occupied(mut count) => {
                *count.get_mut() += 1;
                true
            }
            Entry::Vacant(free) => {
                free.insert(1);
                true
            }
        }
    }

    /// Releases a counted connection.
    pub(crate) fn give_back(&mut self, source: Source) {
        let Entry::Occupied(mut count) = self.counts.entry(source) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }

    /// Returns the number of connections of all sources together, and of the largest.
    pub(crate) fn in_use(&self) -> (u32, u32) {
        (self.counts.values().sum(), self.counts.values().copied().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Source::of(SocketAddr::new(address.parse().unwrap(), 80))
    }

    #[test]
    fn addresses_of_one_client_share_a_limit() {
        assert_ne!(source("127.0.0.1"), source("127.0.0.2"));
        assert_eq!(source("127.0.0.1"), source("::ffff:127.0.0.1"));
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
    }

    #[test]
    fn address_without_connections_takes_no_memory() {
        let mut shares = Shares::new(2);
        let (first, second) = (source("10.0.0.1"), source("10.0.0.2"));
        assert!(shares.take(first) && shares.take(first) && shares.take(second));
        assert!(!shares.take(first));
        shares.give_back(first);
        assert!(shares.take(first));
        for source in [first, first, second] {
            shares.give_back(source);
        }
        assert!(shares.counts.is_empty());
    }
}
