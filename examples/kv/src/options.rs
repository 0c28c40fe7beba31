//! Command-line options, with the letters of memcached.

use std::net::{IpAddr, SocketAddr};

use clap::Parser;
use kv::Limits;

/// Maximum number of connections, as of [`evring::Config::max_connections`].
const MAX_CONNECTIONS: u32 = 1 << 22;

/// Descriptors of a worker beside its connections and listeners: two event queues with their wake-up descriptors, that of
/// a connection that gets an error, and a few for connections that are being closed.
const OF_WORKER: u64 = 8;
/// Descriptors that are open before the workers start, and those of the thread that waits for signals.
const OF_PROCESS: u64 = 8;

/// A memcached server
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Addresses to listen on, separated by commas, each with an optional port
    #[arg(short, long, default_value = "127.0.0.1", value_delimiter = ',')]
    listen: Vec<String>,
    /// TCP port; 0 selects a free port
    #[arg(short, long, default_value_t = 11211)]
    port: u16,
    /// Memory in MiB for values, their headers and the hash table; at most 512 GiB
    #[arg(short, long = "memory-limit", alias = "memory", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
    /// Maximum number of connections; others wait, or with several threads get an error
    #[arg(short, long = "conn-limit", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    connections: u32,
    /// Maximum item size in bytes, or with suffix k or m in KiB or MiB
    #[arg(short = 'I', long = "max-item-size", default_value = "1m")]
    max_item: String,
    /// Number of worker threads; they share all values
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    /// Event mechanism; `auto` selects uring, else epoll, else another one that can run
    #[arg(long, default_value = "auto")]
    pub(crate) backend: String,
    /// A handler in a sandbox that answers `get` from memory shared with it, such as
    /// examples/handlers/kv_get.wasm
    #[cfg(feature = "sandbox")]
    #[arg(long, value_name = "FILE")]
    pub(crate) handler: Option<std::path::PathBuf>,
    /// Serve new connections in the order of their arrival, and keep the handler on, also under overload
    #[arg(long)]
    pub(crate) no_admission: bool,
    /// Print the available mechanisms
    #[arg(long)]
    pub(crate) list_backends: bool,
}

impl Options {
    /// Returns the addresses to listen on.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let address = |text: &String| {
            let text = text.trim();
            let with_port = text.parse::<SocketAddr>();
            let without = |_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, self.port));
            with_port.or_else(without).map_err(|_| {
                format!(
                    "`{text}` is not an IP address; use one such as 127.0.0.1 or 127.0.0.1:11211"
                )
            })
        };
        self.listen.iter().map(address).collect()
    }

    /// Returns how many connections a worker accepts. The kernel does not divide them evenly, so one of several workers
    /// may accept all, and one more, to which it sends an error.
    pub(crate) fn connections_of_worker(&self) -> u32 {
        (self.connections + u32::from(self.threads > 1)).min(MAX_CONNECTIONS)
    }

    /// Checks that this many descriptors are enough for all connections.
    pub(crate) fn check_descriptors(&self, limit: u64) -> Result<(), String> {
        let of_worker = OF_WORKER + self.listen.len() as u64;
        let needed = OF_PROCESS + u64::from(self.threads) * of_worker + u64::from(self.connections);
        if needed <= limit {
            return Ok(());
        }
        Err(format!(
            "-c {} needs {needed} descriptors, and the hard limit of this process is {limit} (ulimit -Hn); raise it, or \
             use a smaller -c",
            self.connections
        ))
    }

    /// Returns the limits of the server.
    pub(crate) fn limits(&self) -> Result<Limits, String> {
        let memory = (self.memory as usize) << 20;
        if memory > Limits::MAX_MEMORY {
            return Err(format!(
                "-m {} exceeds the memory that one server can use; use at most {}, and several servers for more",
                self.memory,
                Limits::MAX_MEMORY >> 20
            ));
        }
        let max_item = size(&self.max_item)
            .filter(|size| (1024..=1 << 30).contains(size))
            .ok_or_else(|| format!("-I {} is not a size between 1k and 1024m", self.max_item))?;
        if max_item > memory / 2 {
            let half = self.memory as usize * 512;
            return Err(format!(
                "-I {} exceeds half of the memory (-m); use at most {half}k",
                self.max_item
            ));
        }
        Ok(Limits { memory, max_item, connections: self.connections })
    }
}

fn size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from([&["kv"], arguments].concat())
    }

    #[test]
    fn addresses_without_a_port_get_the_default() {
        let read = |arguments: &[&str]| {
            options(arguments).addresses().map(|all| all.iter().map(|a| a.to_string()).collect())
        };
        assert_eq!(read(&[]), Ok(vec!["127.0.0.1:11211".to_owned()]));
        let all = ["127.0.0.1:7".to_owned(), "[::1]:5".to_owned()];
        assert_eq!(read(&["-p", "5", "-l", "127.0.0.1:7,::1"]), Ok(all.to_vec()));
        assert!(read(&["-l", "here"]).unwrap_err().contains("`here` is not an IP address"));
    }

    #[test]
    fn item_size_is_validated() {
        let max_item =
            |arguments: &[&str]| options(arguments).limits().map(|limits| limits.max_item);
        assert_eq!(max_item(&[]), Ok(1 << 20));
        assert_eq!(max_item(&["-I", "2m"]), Ok(2 << 20));
        assert_eq!(max_item(&["-I", "1024"]), Ok(1024));
        for size in ["1023", "x", "k", "-1", "2048m", "99999999999999999999m"] {
            assert!(max_item(&[&format!("-I{size}")[..]]).is_err(), "{size}");
        }
        let refused = max_item(&["-m", "1", "-I", "1m"]).unwrap_err();
        assert!(refused.contains("at most 512k"), "{refused}");
    }

    #[test]
    fn memory_had_no_bound_that_block_numbers_can_count() {
        let memory = |megabytes: &str| options(&["-m", megabytes]).limits();
        assert_eq!(memory("524288").unwrap().memory, 512 << 30);
        assert!(memory("524289").unwrap_err().contains("at most 524288"));
        assert!(memory("4294967295").is_err());
    }

    #[test]
    fn connections_that_the_descriptors_did_not_suffice_for_were_promised() {
        let check = |arguments: &[&str], limit| options(arguments).check_descriptors(limit);
        assert_eq!(check(&[], 1024 + 17), Ok(()));
        let refused = check(&[], 1024 + 16).unwrap_err();
        assert!(refused.contains("-c 1024 needs 1041 descriptors"), "{refused}");
        assert!(check(&["-t", "4", "-l", "127.0.0.1,::1"], 1024 + 47).is_err());
        assert_eq!(check(&["-t", "4", "-l", "127.0.0.1,::1"], 1024 + 48), Ok(()));
    }

    #[test]
    fn worker_had_a_part_of_the_connections() {
        let of_worker = |arguments: &[&str]| options(arguments).connections_of_worker();
        assert_eq!(of_worker(&["-c", "100"]), 100);
        assert_eq!(of_worker(&["-c", "100", "-t", "4"]), 101);
        assert_eq!(of_worker(&["-c", "4194304", "-t", "4"]), 4_194_304);
    }
}
