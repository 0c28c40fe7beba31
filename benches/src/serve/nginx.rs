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

/// A configuration.
struct Configuration {
    name: &'static str,
    events: &'static str,
    http: &'static str,
    /// Directives of the server.
    server: &'static str,
}

const CONFIGURATIONS: [Configuration; 10] = [
    // Debian's nginx.conf, which lists `multi_accept on` as a comment, without its access log, which
    // no other server writes.
    Configuration {
        name: "shipped",
        events: "worker_connections 768;",
        http: "sendfile on; tcp_nopush on; gzip on;",
        server: "",
    },
    // Files are copied from open descriptors; the largest one is sent by sendfile(2), which is
    // quicker from somewhere between 64 KiB and 1 MiB on.
    Configuration {
        name: "tuned",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile off; open_file_cache max=1000 inactive=60s; keepalive_requests 1000000000;",
        server: "location = /1m.txt { sendfile on; tcp_nopush on; }",
    },
    // As tuned, but each request opens its file.
    Configuration {
        name: "uncached",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile off; open_file_cache off; keepalive_requests 1000000000;",
        server: "",
    },
    // The same, but an event accepts one connection, which is better with a connection for each request.
    Configuration {
        name: "uncached-one",
        events: "worker_connections 15000; multi_accept off;",
        http: "sendfile off; open_file_cache off; keepalive_requests 1000000000;",
        server: "",
    },
    // TLS as tuned, with the certificate of the site, and without a cache of sessions, as no client resumes one.
    Configuration {
        name: "tls",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile off; open_file_cache max=1000 inactive=60s; keepalive_requests 1000000000; \
               ssl_session_cache none; ssl_protocols TLSv1.2 TLSv1.3;",
        server: "ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem;",
    },
    Configuration {
        name: "gzip",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile off; open_file_cache max=1000 inactive=60s; keepalive_requests 1000000000; \
               gzip on; gzip_comp_level 1;",
        server: "",
    },
    // Many large files at a time.
    Configuration {
        name: "downloads",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile on; tcp_nopush on; open_file_cache max=1000 inactive=60s; \
               keepalive_requests 1000000000;",
        server: "",
    },
    // The same, with threads that read.
    Configuration {
        name: "aio",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile on; aio threads; tcp_nopush on; open_file_cache max=1000 inactive=60s; \
               keepalive_requests 1000000000;",
        server: "",
    },
    // Threads read files of 1 MiB and more past the page cache.
    Configuration {
        name: "directio",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile on; aio threads; directio 1m; output_buffers 2 256k; tcp_nopush on; \
               open_file_cache max=1000 inactive=60s; keepalive_requests 1000000000;",
        server: "",
    },
    // Through the memory of the server.
    Configuration {
        name: "copy",
        events: "worker_connections 15000; multi_accept on;",
        http: "sendfile off; open_file_cache max=1000 inactive=60s; keepalive_requests 1000000000;",
        server: "",
    },
];

fn configure(start: &Start<'_>, prefix: &Path) -> Result<Vec<String>, Failure> {
    let entry = CONFIGURATIONS.iter().find(|one| one.name == start.mechanism);
    let Some(Configuration { events, http, server, .. }) = entry else {
        let what = format!("nginx has no configuration `{}`", start.mechanism);
        return Err(Failure::Request(what));
    };
    // The default user of workers may not be permitted to read the files.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let file = prefix.join("nginx.conf");
    let (prefix, root, hello) = (prefix.display(), start.root.display(), start.hello.trim_end());
    let send_buffer = start.send_buffer.map_or(String::new(), |bytes| format!(" sndbuf={bytes}"));
    let server = server.replace("{root}", &root.to_string());
    let tls = if start.mechanism == "tls" { " ssl" } else { "" };
    let (address, workers, backlog) = (start.address, start.workers, start.backlog);
    let text = format!(
        r#"{user}
daemon off;
worker_processes {workers};
pid {prefix}/pid;
error_log stderr;
events {{ {events} }}
http {{
    types {{ text/plain txt; text/html html; }}
    access_log off;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    {http}
    server {{
        listen {address}{tls} backlog={backlog}{send_buffer};
        root {root};
        {server}
        location = /hello {{ return 200 "{hello}\n"; }}
    }}
}}
"#
    );
    fs::write(&file, text)?;
    let args = ["-e", "stderr", "-c"].map(str::to_owned).into_iter();
    Ok(args.chain([file.display().to_string()]).collect())
}
