//! The program's options, which have the letters that memcached gives them.

use std::net::{IpAddr, SocketAddr};

use clap::Parser;
use kv::Limits;

/// A memcached server
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Addresses to listen at, separated by commas, with a port of their own or without
    #[arg(short, long, default_value = "127.0.0.1", value_delimiter = ',')]
    listen: Vec<String>,
    /// TCP port; 0 takes any free one
    #[arg(short, long, default_value_t = 11211)]
    port: u16,
    /// Memory for values in MiB, their headers and the hash table included
    #[arg(short, long = "memory-limit", alias = "memory", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
    /// Connections at a time; others wait
    #[arg(short, long = "conn-limit", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub(crate) connections: u32,
    /// Largest item: bytes, or with k or m behind them KiB or MiB
    #[arg(short = 'I', long = "max-item-size", default_value = "1m")]
    max_item: String,
    /// Threads that serve; they share all values
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    /// Event mechanism; `auto` takes the best one here
    #[arg(long, default_value = "auto")]
    pub(crate) backend: String,
    /// Print the mechanisms that can run here
    #[arg(long)]
    pub(crate) list_backends: bool,
}

impl Options {
    /// The addresses to listen at.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let address = |text: &String| {
            let text = text.trim();
            let with_port = text.parse::<SocketAddr>();
            let without = |_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, self.port));
            with_port.or_else(without).map_err(|_| {
                format!("`{text}` is no address to listen at; one is 127.0.0.1 or 127.0.0.1:11211")
            })
        };
        self.listen.iter().map(address).collect()
    }

    /// How much the server may hold.
    pub(crate) fn limits(&self) -> Result<Limits, String> {
        let memory = (self.memory as usize) << 20;
        let max_item = size(&self.max_item)
            .filter(|size| (1024..=1 << 30).contains(size))
            .ok_or_else(|| format!("-I {} is no size from 1k to 1024m", self.max_item))?;
        if max_item > memory / 2 {
            let half = self.memory as usize * 512;
            return Err(format!(
                "-I {} is more than half of the memory (-m); {half}k would fit",
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
    fn addresses_have_the_port_unless_they_bring_their_own() {
        let read = |arguments: &[&str]| {
            options(arguments).addresses().map(|all| all.iter().map(|a| a.to_string()).collect())
        };
        assert_eq!(read(&[]), Ok(vec!["127.0.0.1:11211".to_owned()]));
        let all = ["127.0.0.1:7".to_owned(), "[::1]:5".to_owned()];
        assert_eq!(read(&["-p", "5", "-l", "127.0.0.1:7,::1"]), Ok(all.to_vec()));
        assert!(read(&["-l", "here"]).unwrap_err().contains("`here` is no address"));
    }

    #[test]
    fn an_item_has_a_size_that_fits() {
        let max_item =
            |arguments: &[&str]| options(arguments).limits().map(|limits| limits.max_item);
        assert_eq!(max_item(&[]), Ok(1 << 20));
        assert_eq!(max_item(&["-I", "2m"]), Ok(2 << 20));
        assert_eq!(max_item(&["-I", "1024"]), Ok(1024));
        for size in ["1023", "x", "k", "-1", "2048m", "99999999999999999999m"] {
            assert!(max_item(&[&format!("-I{size}")[..]]).is_err(), "{size}");
        }
        let refused = max_item(&["-m", "1", "-I", "1m"]).unwrap_err();
        assert!(refused.contains("512k would fit"), "{refused}");
    }
}
