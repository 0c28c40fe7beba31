//! haproxy as a server under test, which replies from memory.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::external::Origin::Installed;
use super::external::{self, External, Start};
use crate::failure::Failure;

/// See the module.
pub(super) const HAPROXY: External = External {
    name: "haproxy",
    origin: Installed {
        program: "/usr/sbin/haproxy",
        package: "haproxy",
        version: |program| external::first_line(program, &["-v"]),
    },
    configure,
};

/// Maximum size of a file that it loads into memory.
const MAX_FILE_BYTES: u64 = 12 * 1024;

fn configure(start: &Start<'_>, prefix: &Path) -> Result<Vec<String>, Failure> {
    let mut replies = String::new();
    for entry in fs::read_dir(start.root)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() && metadata.len() <= MAX_FILE_BYTES {
            let (path, file) = (entry.file_name(), entry.path());
            let (path, file) = (path.display(), file.display());
            line(&mut replies, &format!("path /{path}"), &format!("file {file}"));
        }
    }
    line(&mut replies, "path /hello", &format!("string \"{}\\n\"", start.hello.trim_end()));
    let (address, backlog, threads) = (start.address, start.backlog, start.workers);
    let text = format!(
        r#"global
    nbthread {threads}
    maxconn 9000
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 5s
frontend files
    bind {address}
    backlog {backlog}
{replies}    http-request return status 404
"#
    );
    let file = prefix.join("haproxy.cfg");
    fs::write(&file, text)?;
    Ok(["-db", "-f"].map(str::to_owned).into_iter().chain([file.display().to_string()]).collect())
}

fn line(replies: &mut String, condition: &str, body: &str) {
    writeln!(
        replies,
        "    http-request return status 200 content-type text/plain {body} if {{ {condition} }}"
    )
    .expect("writing to a string cannot fail");
}
