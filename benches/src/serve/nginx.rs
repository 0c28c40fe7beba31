//! nginx as a server under test, configured as its own experts would for one core.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::command::Serve;
use crate::failure::Failure;
use crate::outcome;

/// Each configuration and what makes it.
const CONFIGURATIONS: [(&str, &str); 3] = [
    ("copy-cached", "sendfile off; open_file_cache max=1000 inactive=60s;"),
    ("sendfile-cached", "sendfile on; tcp_nopush on; open_file_cache max=1000 inactive=60s;"),
    // What Debian's nginx.conf says, but for its access log: none of the others writes one.
    ("shipped", "sendfile on; tcp_nopush on;"),
];

/// Tells an address and becomes nginx, which listens there. Returns only when that fails.
pub(super) fn become_nginx(options: &Serve, hello: &str) -> Result<(), Failure> {
    let (configuration, root) = (options.mechanism.as_str(), options.root()?);
    let (workers, backlog) = (options.cores.len(), options.backlog);
    let known = CONFIGURATIONS.iter().find(|(name, _)| *name == configuration);
    let Some((_, settings)) = known else {
        return Err(Failure::Request(format!("nginx has no configuration `{configuration}`")));
    };
    let prefix = outcome::directory()?.join(format!("nginx-{configuration}"));
    fs::create_dir_all(&prefix)?;
    // Nobody else takes a port so soon after it was free.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    // The master would have its worker be somebody who may not read the files.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let file = prefix.join("nginx.conf");
    let (prefix, root, hello) = (prefix.display(), root.display(), hello.trim_end());
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
    println!("{address}");
    let error = Command::new(program()).arg("-e").arg("stderr").arg("-c").arg(file).exec();
    Err(Failure::new("nginx does not start", error))
}

/// Looks whether it is installed; returns its version.
pub(crate) fn find() -> Result<String, Failure> {
    match Command::new(program()).arg("-v").output() {
        // `nginx version: nginx/1.22.1`
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Ok(text.trim().rsplit('/').next().unwrap_or("").to_owned())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::Run("nginx is not installed (Debian package: nginx-light)".to_owned()))
        }
        Err(error) => Err(Failure::new("nginx can't be run", error)),
    }
}

/// It may lie where only root looks.
fn program() -> &'static str {
    if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" }
}
