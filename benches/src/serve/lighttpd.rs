//! lighttpd as a server under test, on one of its event handlers.

use std::fs;
use std::path::Path;

use super::external::Origin::Installed;
use super::external::{self, External, Start};
use crate::failure::Failure;

/// See the module.
pub(super) const LIGHTTPD: External = External {
    name: "lighttpd",
    origin: Installed {
        program: "/usr/sbin/lighttpd",
        package: "lighttpd",
        version: |program| external::first_line(program, &["-v"]),
    },
    configure,
};

/// Its event handlers: our name, its name, and the maximum number of descriptors.
const HANDLERS: [(&str, &str, u32); 3] =
    [("select", "select", 1_000), ("poll", "poll", 16_000), ("epoll", "linux-sysepoll", 16_000)];

fn configure(start: &Start<'_>, prefix: &Path) -> Result<Vec<String>, Failure> {
    let entry = HANDLERS.iter().find(|(name, ..)| *name == start.mechanism);
    let Some((_, handler, descriptors)) = entry else {
        let what = format!("lighttpd has no event handler `{}`", start.mechanism);
        return Err(Failure::Request(what));
    };
    let (root, address, backlog) = (start.root.display(), start.address, start.backlog);
    let (ip, port, connections) = (address.ip(), address.port(), descriptors / 2);
    // With 0 a single process serves; otherwise a parent starts the workers.
    let workers = if start.workers > 1 { start.workers } else { 0 };
    let text = format!(
        r#"server.document-root = "{root}"
server.bind = "{ip}"
server.port = {port}
server.modules = ("mod_rewrite")
server.event-handler = "{handler}"
server.listen-backlog = {backlog}
server.max-worker = {workers}
server.max-fds = {descriptors}
server.max-connections = {connections}
server.max-keep-alive-requests = 1000000000
server.stat-cache-engine = "simple"
mimetype.assign = (".txt" => "text/plain", ".bin" => "application/octet-stream")
url.rewrite-once = ("^/hello$" => "/hello.txt")
"#
    );
    let file = prefix.join("lighttpd.conf");
    fs::write(&file, text)?;
    Ok(["-D", "-f"].map(str::to_owned).into_iter().chain([file.display().to_string()]).collect())
}
