//! External servers, each configured as its experts would for the number of cores.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::Serve;
use crate::failure::Failure;
use crate::outcome;

/// An external server.
pub(crate) struct External {
    pub(super) name: &'static str,
    pub(super) origin: Origin,
    /// Writes its configuration and returns the arguments of its program.
    pub(super) configure: fn(&Start<'_>, &Path) -> Result<Vec<String>, Failure>,
}

/// The origin of a server.
pub(super) enum Origin {
    /// A Debian package.
    Installed {
        /// Path of the program, which may not be in `PATH`.
        program: &'static str,
        package: &'static str,
        /// Runs the program to query its version.
        version: fn(&Path) -> io::Result<String>,
    },
    /// A Rust library, with a small program in `benches/peers` that cargo builds.
    Built,
}

use Origin::{Built, Installed};

/// The parameters of a server.
pub(super) struct Start<'a> {
    pub(super) mechanism: &'a str,
    pub(super) address: SocketAddr,
    pub(super) root: &'a Path,
    pub(super) hello: &'a str,
    pub(super) workers: usize,
    pub(super) backlog: u32,
    /// The size of the sockets' send buffers, if it is set.
    pub(super) send_buffer: Option<usize>,
}

impl External {
    /// Returns its version. With `build`, a library's server is built if necessary.
    ///
    /// # Errors
    /// If it is not installed or not built, or cannot be run.
    pub(crate) fn find(&self, build: bool) -> Result<String, Failure> {
        let name = self.name;
        let program = self.program()?;
        let Installed { package, version, .. } = self.origin else {
            return match build {
                true => self.build(),
                false if program.exists() => self.locked_version(),
                false => Err(self.not_built()),
            };
        };
        match version(&program) {
            Ok(version) => Ok(version),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Failure::Run(format!("{name} is not installed (Debian package: {package})")))
            }
            Err(error) => Err(Failure::new(format_args!("cannot run {name}"), error)),
        }
    }

    fn not_built(&self) -> Failure {
        Failure::Run(format!("{} is not built; a run without --quick builds it", self.name))
    }

    /// Builds it, if it has changed, and returns its library's version.
    fn build(&self) -> Result<String, Failure> {
        let name = self.name;
        let output = Command::new("cargo")
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(self.package().join("Cargo.toml"))
            .arg("--target-dir")
            .arg(target()?)
            .output()
            .map_err(|e| Failure::new("cannot run cargo", e))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Run(format!("cannot build {name}: {}", stderr.trim())));
        }
        self.locked_version()
    }

    fn package(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(self.name)
    }

    fn locked_version(&self) -> Result<String, Failure> {
        let lock = fs::read_to_string(self.package().join("Cargo.lock"))?;
        Ok(locked(&lock, &self.name.replace('-', "_")).unwrap_or_default())
    }

    /// Prints an address and executes the server, which listens on it. Returns only on error.
    pub(super) fn exec(&self, options: &Serve, hello: &str) -> Result<(), Failure> {
        let prefix = outcome::directory()?.join(format!("{}-{}", self.name, options.mechanism));
        fs::create_dir_all(&prefix)?;
        // The kernel does not assign a port again so soon after it was freed.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let start = Start {
            mechanism: &options.mechanism,
            address,
            root: options.root()?,
            hello,
            workers: options.cores.len(),
            backlog: options.backlog,
            send_buffer: options.send_buffer,
        };
        let arguments = (self.configure)(&start, &prefix)?;
        println!("{address}");
        let error = Command::new(self.program()?).args(arguments).exec();
        Err(Failure::new(format_args!("cannot start {}", self.name), error))
    }

    fn program(&self) -> Result<PathBuf, Failure> {
        Ok(match self.origin {
            Installed { program, .. } if Path::new(program).exists() => program.into(),
            Installed { .. } => self.name.into(),
            Built => target()?.join("release").join(format!("peer-{}", self.name)),
        })
    }
}

/// Returns the target directory for the programs of `benches/peers`.
fn target() -> Result<PathBuf, Failure> {
    Ok(outcome::directory()?.join("peers"))
}

/// Returns the version of a package in a `Cargo.lock`.
fn locked(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    Some(lines.next()?.strip_prefix("version = ")?.trim_matches('"').to_owned())
}

/// Returns the arguments of the programs of `benches/peers`.
pub(super) fn arguments(start: &Start<'_>, _: &Path) -> Result<Vec<String>, Failure> {
    Ok(vec![start.address.to_string(), start.backlog.to_string(), start.hello.to_owned()])
}

/// Returns the first line of a program's output.
pub(super) fn first_line(program: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::locked;

    #[test]
    fn version_is_found_in_the_lock_file() {
        let lock = "[[package]]\nname = \"hyper-util\"\nversion = \"0.1.2\"\n\n\
                    [[package]]\nname = \"hyper\"\nversion = \"1.8.1\"\n";
        assert_eq!(locked(lock, "hyper").as_deref(), Some("1.8.1"));
        assert_eq!(locked(lock, "ntex"), None);
    }
}
