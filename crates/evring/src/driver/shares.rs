//! How many connections each address has, where that is bounded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where connections come from, as far as they count together: an IPv4 address, or a network of 2^64 IPv6
/// addresses (/64), which is what one client has (RFC 6177).
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

/// The connections of each address that has any.
#[derive(Debug)]
pub(crate) struct Shares {
    most: u32,
    taken: HashMap<Source, u32>,
}

impl Shares {
    /// Lets each address have so many.
    pub(crate) fn new(most: u32) -> Self {
        Shares { most, taken: HashMap::new() }
    }

    /// Takes a place of an address, if it has one left.
    pub(crate) fn take(&mut self, source: Source) -> bool {
        match self.taken.entry(source) {
            Entry::Occupied(taken) if *taken.get() >= self.most => false,
            Entry::Occupied(mut taken) => {
                *taken.get_mut() += 1;
                true
            }
            Entry::Vacant(free) => {
                free.insert(1);
                true
            }
        }
    }

    /// Gives back a place that was taken.
    pub(crate) fn give_back(&mut self, source: Source) {
        let Entry::Occupied(mut taken) = self.taken.entry(source) else { return };
        *taken.get_mut() -= 1;
        if *taken.get() == 0 {
            taken.remove();
        }
    }

    /// Places taken by all addresses together, and by the one that has most.
    #[cfg(feature = "sim")]
    pub(crate) fn in_use(&self) -> (u32, u32) {
        (self.taken.values().sum(), self.taken.values().copied().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Source::of(SocketAddr::new(address.parse().unwrap(), 80))
    }

    #[test]
    fn addresses_of_one_client_count_together() {
        assert_ne!(source("127.0.0.1"), source("127.0.0.2"));
        assert_eq!(source("127.0.0.1"), source("::ffff:127.0.0.1"));
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
    }

    #[test]
    fn an_address_without_connections_takes_no_memory() {
        let mut shares = Shares::new(2);
        let (one, other) = (source("10.0.0.1"), source("10.0.0.2"));
        assert!(shares.take(one) && shares.take(one) && shares.take(other));
        assert!(!shares.take(one));
        shares.give_back(one);
        assert!(shares.take(one));
        for source in [one, one, other] {
            shares.give_back(source);
        }
        assert!(shares.taken.is_empty());
    }
}
