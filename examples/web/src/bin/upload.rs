//! Uploads files: `curl -T FILE http://127.0.0.1:8080/files/NAME` stores a file of up to 10 GiB in a directory,
//! from which `GET /NAME` serves it. Threads of a pool write, so a slow disk delays no other client.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evring_httpd::body::RequestBody;
use evring_httpd::handlers::{Pool, param};
use evring_httpd::http::StatusCode;
use evring_httpd::options::Limits;
use evring_httpd::{Request, Server, put};
use tempfile::{Builder, NamedTempFile};

/// A file that is not complete. Its name begins with a dot, so nobody gets half of it. A thread of the pool removes it if
/// the client leaves; the next start of the program, if the process ends before.
struct Part {
    file: Option<NamedTempFile>,
    pool: Pool,
}

impl Part {
    const PREFIX: &str = ".upload-";

    fn create(directory: &Path, pool: Pool) -> io::Result<Self> {
        // As for other files: the umask of the process restricts it.
        let mode = Permissions::from_mode(0o666);
        let mut builder = Builder::new();
        builder.prefix(Self::PREFIX).permissions(mode);
        Ok(Part { file: Some(builder.tempfile_in(directory)?), pool })
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(piece))
    }

    /// Gives the file its name, once the disk has its bytes.
    fn complete(mut self, target: &Path) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        file.as_file().sync_all()?;
        Ok(file.persist(target).map(drop)?)
    }

    /// Returns the parts in a directory: what a process that was killed has left, before this one receives any.
    fn all(directory: &Path) -> io::Result<Vec<PathBuf>> {
        let files = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
        let is_part = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            name.starts_with(Self::PREFIX.as_bytes())
        };
        files.filter(|path| path.as_ref().map_or(true, is_part)).collect()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            drop(self.pool.run(move || drop(file)));
        }
    }
}

/// Receives a file.
async fn store(pool: Pool, target: PathBuf, mut body: RequestBody) -> io::Result<u64> {
    let (directory, owner) = (target.parent().unwrap_or(Path::new("")).to_owned(), pool.clone());
    let (mut part, mut len) = (run(&pool, move || Part::create(&directory, owner)).await?, 0);
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(io::Error::other)?;
        len += piece.len() as u64;
        // The next piece arrives meanwhile; if the disk is slower than the client, the client waits.
        part = run(&pool, move || part.write(&piece).map(|()| part)).await?;
    }
    run(&pool, move || part.complete(&target)).await?;
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: upload DIRECTORY [ADDRESS]");
        std::process::exit(2);
    };
    let left = Part::all(&directory)?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let pool = Pool::new(2, 1000)?;
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
                Err(error) => {
                    // It may have the path of the directory, which is no client's business.
                    let _ = writeln!(io::stderr(), "upload: {error}");
                    let text = "the file cannot be stored\n".to_owned();
                    (StatusCode::INTERNAL_SERVER_ERROR, text)
                }
            }
        }
    };
    let server = Server::builder().listen(address).limits(limits).files(files);
    let server = server.route("/files/{name}", put(upload)).start()?;
    // The address is this program's, so no other one receives into them.
    for part in left {
        let _ = fs::remove_file(part);
    }
    println!("listening on http://{}", server.addresses()[0]);
    Ok(server.wait_until_signal()?)
}
