//! Uploads files: `curl -T FILE http://127.0.0.1:8080/files/NAME` stores a file of any size in a directory,
//! from which `GET /NAME` serves it. Threads of a pool write, so a slow disk delays no other client.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evring_httpd::body::RequestBody;
use evring_httpd::handlers::{Pool, param};
use evring_httpd::http::StatusCode;
use evring_httpd::options::Limits;
use evring_httpd::{Error, Request, Server, put};
use tempfile::Builder;

/// Receives a file, and gives it its name when it is complete. Until then it has a name of its own that begins with a
/// dot, so nobody gets half of it. If the client leaves, this is dropped, and the file removed.
async fn store(pool: Pool, target: PathBuf, mut body: RequestBody) -> io::Result<u64> {
    let directory = target.parent().unwrap_or(Path::new("")).to_owned();
    let create = move || {
        // As for other files: the umask of the process restricts it.
        let mode = Permissions::from_mode(0o666);
        Builder::new().prefix(".").suffix(".part").permissions(mode).tempfile_in(directory)
    };
    let (mut part, mut len) = (run(&pool, create).await?, 0);
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(io::Error::other)?;
        len += piece.len() as u64;
        // The next piece arrives meanwhile; if the disk is slower than the client, the client waits.
        part = run(&pool, move || part.write_all(&piece).map(|()| part)).await?;
    }
    run(&pool, move || part.persist(target).map_err(io::Error::from)).await?;
    Ok(len)
}

/// Calls a function on a thread.
async fn run<T: Send + 'static>(
    pool: &Pool,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    pool.run(call).await.map_err(io::Error::other)?
}

/// Returns the path of an uploaded file, unless its name could be another directory or hidden.
fn target(directory: &Path, name: &str) -> Option<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let accepted = name.chars().all(is_plain) && !name.starts_with('.');
    accepted.then(|| directory.join(name))
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("usage: upload DIRECTORY [ADDRESS]"));
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let pool = Pool::new(2, 1000).map_err(Error::Thread)?;
    let mut limits = Limits::default();
    limits.max_body_bytes = 10 << 30;
    let files = directory.clone();
    let upload = move |request: Request<RequestBody>| {
        let target = target(&directory, param(&request, "name").unwrap_or_default());
        let pool = pool.clone();
        async move {
            let Some(target) = target else {
                return (StatusCode::BAD_REQUEST, "bad name\n".to_owned());
            };
            match store(pool, target, request.into_body()).await {
                Ok(len) => (StatusCode::CREATED, format!("{len} bytes\n")),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            }
        }
    };
    let server = Server::builder().listen(address).limits(limits).files(files);
    let server = server.route("/files/{name}", put(upload)).start()?;
    println!("listening on http://{}", server.addresses()[0]);
    server.wait_until_signal()
}
