//! memcached as a server under test.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::external::Origin::Installed;
use super::external::{self, External, Start};
use crate::failure::Failure;

/// The memory limit of a cache: the default of both.
pub(super) const CACHE_BYTES: usize = 64 << 20;

/// See the module.
pub(super) const MEMCACHED: External = External {
    name: "memcached",
    origin: Installed {
        program: "memcached",
        package: "memcached",
        // `memcached 1.6.18`
        version: |program| {
            let line = external::first_line(program, &["-V"])?;
            Ok(line.rsplit(' ').next().unwrap_or("").to_owned())
        },
    },
    configure,
};

fn configure(start: &Start<'_>, _: &Path) -> Result<Vec<String>, Failure> {
    let (ip, port) = (start.address.ip(), start.address.port());
    let (threads, backlog, memory) = (start.workers, start.backlog, CACHE_BYTES >> 20);
    // It sets its limit of descriptors to this, and valgrind permits no other than the present one.
    let connections = getrlimit(Resource::Nofile).maximum.unwrap_or(15_000);
    // As root it demands a user; to change it would also cancel the signal at the end of the lab.
    let line = format!(
        "-u root -B ascii -U 0 -l {ip} -p {port} -t {threads} -m {memory} -c {connections} -b {backlog}"
    );
    Ok(line.split(' ').map(str::to_owned).collect())
}
