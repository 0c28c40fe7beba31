//! Connections per source address and per network, if these numbers are limited.

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

    /// Returns the network of an address: the /24 of an IPv4 address.
    fn network(self) -> Self {
        match self {
            Source::V4(address) => Source::V4(address & !0xff),
            Source::V6(network) => Source::V6(network),
        }
    }
}

/// Why a connection is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// Its address has reached the maximum.
    Address,
    /// Its network has reached the maximum.
    Network,
}

/// Number of connections per source and per network.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) addresses: Option<Counts>,
    pub(crate) networks: Option<Counts>,
}

impl Shares {
    /// Creates a table with maxima per source and per network. Returns `None` if there are none.
    pub(crate) fn new(per_address: Option<u32>, per_network: Option<u32>) -> Option<Self> {
        let shares = Shares {
            addresses: per_address.map(Counts::new),
            networks: per_network.map(Counts::new),
        };
        (shares.addresses.is_some() || shares.networks.is_some()).then_some(shares)
    }

    /// Counts a connection.
    pub(crate) fn take(&mut self, source: Source) -> Result<(), Rejected> {
        if self.addresses.as_mut().is_some_and(|counts| !counts.take(source)) {
            return Err(Rejected::Address);
        }
        if self.networks.as_mut().is_some_and(|counts| !counts.take(source.network())) {
            if let Some(counts) = &mut self.addresses {
                counts.give_back(source);
            }
            return Err(Rejected::Network);
        }
        Ok(())
    }

    /// Releases a counted connection.
    pub(crate) fn give_back(&mut self, source: Source) {
        if let Some(counts) = &mut self.addresses {
            counts.give_back(source);
        }
        if let Some(counts) = &mut self.networks {
            counts.give_back(source.network());
        }
    }
}

/// Number of connections per source, with a maximum.
#[derive(Debug)]
pub(crate) struct Counts {
    max: u32,
    counts: HashMap<Source, u32>,
}

impl Counts {
    /// Creates a table with a maximum per source.
    fn new(max: u32) -> Self {
        Counts { max, counts: HashMap::new() }
    }

    /// Counts a connection. Returns false if the source has reached the maximum.
    fn take(&mut self, source: Source) -> bool {
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
    fn give_back(&mut self, source: Source) {
        let Entry::Occupied(mut count) = self.counts.entry(source) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }

    /// Returns the number of connections of all sources together, and of the largest.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let counts = || self.counts.values().map(|&count| count as usize);
        (counts().sum(), counts().max().unwrap_or(0))
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
        let mut shares = Shares::new(Some(2), Some(3)).unwrap();
        let (first, second) = (source("10.0.0.1"), source("10.0.0.2"));
        for source in [first, first, second] {
            shares.take(source).unwrap();
        }
        assert_eq!(shares.take(first), Err(Rejected::Address));
        // The rejected connection does not count for its address.
        for _ in 0..3 {
            assert_eq!(shares.take(second), Err(Rejected::Network));
        }
        shares.take(source("10.0.1.1")).unwrap();
        shares.give_back(source("10.0.1.1"));
        shares.give_back(first);
        shares.take(first).unwrap();
        for source in [first, first, second] {
            shares.give_back(source);
        }
        assert!(shares.addresses.unwrap().counts.is_empty());
        assert!(shares.networks.unwrap().counts.is_empty());
    }
}
