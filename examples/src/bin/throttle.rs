//! Streams a file to each client, at a limited rate.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Parser;
use evring::{Config, FileDelivery};
use examples::{Listen, Throttle};

/// Streams a file to each client, at a limited rate
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    listen: Listen,
    /// Directory of the file
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Bytes per second and client
    #[arg(long, default_value_t = 1_000_000)]
    rate: u32,
    /// Path of the file below the directory
    file: String,
}

/// Returns whether there is a file of this path, which no link leads out of the directory.
fn is_file_below(root: &Path, file: &str) -> bool {
    let (Ok(path), Ok(root)) = (root.join(file).canonicalize(), root.canonicalize()) else {
        return false;
    };
    path.is_file() && path.starts_with(root)
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options { listen, root, rate, file } = Options::parse();
    if Path::new(&file).is_absolute() || !is_file_below(&root, &file) {
        return Err(format!(
            "cannot stream {file}: there is no such file below {}",
            root.display()
        )
        .into());
    }
    let config = Config::default().with(|c| {
        c.roots = vec![root];
        c.send_policy = FileDelivery::Ded.send_policy();
    });
    listen.serve_with(config, Throttle::new(&file, rate))
}
