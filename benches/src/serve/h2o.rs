//! h2o as a server under test.

use std::fs;
use std::path::Path;

use super::external::Origin::Installed;
use super::external::{self, External, Start};
use crate::failure::Failure;

/// See the module.
pub(super) const H2O: External = External {
    name: "h2o",
    origin: Installed {
        program: "/usr/bin/h2o",
        package: "h2o",
        version: |program| external::first_line(program, &["--version"]),
    },
    configure,
};

fn configure(start: &Start<'_>, prefix: &Path) -> Result<Vec<String>, Failure> {
    let (root, threads) = (start.root.display(), start.workers);
    let (ip, port) = (start.address.ip(), start.address.port());
    // The default user may not be permitted to read the files.
    let user = if rustix::process::geteuid().is_root() { "user: root\n" } else { "" };
    let text = format!(
        r#"{user}num-threads: {threads}
max-connections: 15000
http1-request-timeout: 60
listen:
  host: {ip}
  port: {port}
hosts:
  default:
    paths:
      "/hello":
        file.file: {root}/hello.txt
      "/":
        file.dir: {root}
"#
    );
    let file = prefix.join("h2o.conf");
    fs::write(&file, text)?;
    Ok(["-c".to_owned(), file.display().to_string()].into())
}
