//! nginx as a server under test.

use std::fs;
use std::path::Path;

use super::external::Origin::Installed;
use super::external::{self, External, Start};
use crate::failure::Failure;

/// See the module.
pub(super) const NGINX: External = External {
    name: "nginx",
    origin: Installed {
        program: "/usr/sbin/nginx",
        package: "nginx-light",
        // `nginx version: nginx/1.22.1`
        version: |program| {
            let line = external::first_line(program, &["-v"])?;
            Ok(line.rsplit('/').next().unwrap_or("").to_owned())
        },
    },
    configure,
};

/// The configurations and their directives.
const CONFIGURATIONS: [(&str, &str); 3] = [
    ("copy-cached", "sendfile off; open_file_cache max=1000 inactive=60s;"),
    ("sendfile-cached", "sendfile on; tcp_nopush on; open_file_cache max=1000 inactive=60s;"),
    // As in Debian's nginx.conf, except the access log, which no other server writes.
    ("shipped", "sendfile on; tcp_nopush on;"),
];

fn configure(start: &Start<'_>, prefix: &Path) -> Result<Vec<String>, Failure> {
    let entry = CONFIGURATIONS.iter().find(|(name, _)| *name == start.mechanism);
    let Some((_, settings)) = entry else {
        let what = format!("nginx has no configuration `{}`", start.mechanism);
        return Err(Failure::Request(what));
    };
    // The default user of workers may not be permitted to read the files.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let file = prefix.join("nginx.conf");
    let (prefix, root, hello) = (prefix.display(), start.root.display(), start.hello.trim_end());
    let (address, workers, backlog) = (start.address, start.workers, start.backlog);
    let text = format!(
        r#"{user}
daemon off;
worker_processes {workers};
pid {prefix}/pid;
error_log stderr;
events {{ worker_connections 15000; multi_accept on; }}
http {{
    types {{ text/plain txt; }}
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    {settings}
    server {{
        listen {address} backlog={backlog};
        root {root};
        location = /hello {{ return 200 "{hello}\n"; }}
    }}
}}
"#
    );
    fs::write(&file, text)?;
    let args = ["-e", "stderr", "-c"].map(str::to_owned).into_iter();
    Ok(args.chain([file.display().to_string()]).collect())
}
