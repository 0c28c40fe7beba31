//! Servers of others, each configured as its own experts would for so many cores.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Serve, What};
use crate::failure::Failure;
use crate::outcome;

/// A server of others.
pub(crate) struct External {
    pub(super) name: &'static str,
    pub(super) origin: Origin,
    /// Writes its configuration and returns the arguments of its program.
    pub(super) configure: fn(&Start<'_>, &Path) -> Result<Vec<String>, Failure>,
}

/// Where a server comes from.
pub(super) enum Origin {
    /// From Debian.
    Installed {
        /// Where it is, as some lie where only root looks.
        program: &'static str,
        package: &'static str,
        /// Asks for its version; nothing if it can't be run.
        version: fn(&Path) -> io::Result<String>,
    },
    /// From a Rust library, by a small program in `benches/peers` that cargo builds.
    Built,
}

use Origin::{Built, Installed};

/// What a server is to do.
pub(super) struct Start<'a> {
    pub(super) mechanism: &'a str,
    pub(super) address: SocketAddr,
    pub(super) root: &'a Path,
    pub(super) hello: &'a str,
    pub(super) workers: usize,
    pub(super) backlog: u32,
}

/// The one that is meant, if it is one of others.
pub(crate) fn named(what: What) -> Option<External> {
    match what {
        What::Nginx => Some(super::nginx::NGINX),
        What::Lighttpd => Some(super::lighttpd::LIGHTTPD),
        What::Haproxy => Some(super::haproxy::HAPROXY),
        What::H2o => Some(super::h2o::H2O),
        What::Hyper => Some(super::hyper::HYPER),
        What::MayMinihttp => Some(super::may_minihttp::MAY_MINIHTTP),
        _ => None,
    }
}

impl External {
    /// Looks whether it is there; returns its version. With `build` it is built if need be.
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
            Err(error) => Err(Failure::new(format_args!("{name} can't be run"), error)),
        }
    }

    fn not_built(&self) -> Failure {
        Failure::Run(format!("{} is not built yet; a run without --quick builds it", self.name))
    }

    /// Builds it, which takes no time when it is built, and returns its library's version.
    fn build(&self) -> Result<String, Failure> {
        let name = self.name;
        let output = Command::new("cargo")
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(self.package().join("Cargo.toml"))
            .arg("--target-dir")
            .arg(built()?)
            .output()
            .map_err(|e| Failure::new("can't run cargo", e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Run(format!("{name} can't be built: {}", said.trim())));
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

    /// Tells an address and becomes the server, which listens there. Returns only when that fails.
    pub(super) fn become_it(&self, options: &Serve, hello: &str) -> Result<(), Failure> {
        let prefix = outcome::directory()?.join(format!("{}-{}", self.name, options.mechanism));
        fs::create_dir_all(&prefix)?;
        // Nobody else takes a port so soon after it was free.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let start = Start {
            mechanism: &options.mechanism,
            address,
            root: options.root()?,
            hello,
            workers: options.cores.len(),
            backlog: options.backlog,
        };
        let arguments = (self.configure)(&start, &prefix)?;
        println!("{address}");
        let error = Command::new(self.program()?).args(arguments).exec();
        Err(Failure::new(format_args!("{} does not start", self.name), error))
    }

    fn program(&self) -> Result<PathBuf, Failure> {
        Ok(match self.origin {
            Installed { program, .. } if Path::new(program).exists() => program.into(),
            Installed { .. } => self.name.into(),
            Built => built()?.join("release").join(format!("peer-{}", self.name)),
        })
    }
}

/// Where the programs of `benches/peers` are built.
fn built() -> Result<PathBuf, Failure> {
    Ok(outcome::directory()?.join("peers"))
}

/// The version of a package in a `Cargo.lock`.
fn locked(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    Some(lines.next()?.strip_prefix("version = ")?.trim_matches('"').to_owned())
}

/// What the programs of `benches/peers` are told.
pub(super) fn arguments(start: &Start<'_>, _: &Path) -> Result<Vec<String>, Failure> {
    Ok(vec![start.address.to_string(), start.backlog.to_string(), start.hello.to_owned()])
}

/// The first line that a program says.
pub(super) fn said(program: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::locked;

    #[test]
    fn a_version_is_found_in_the_lock() {
        let lock = "[[package]]\nname = \"hyper-util\"\nversion = \"0.1.2\"\n\n\
                    [[package]]\nname = \"hyper\"\nversion = \"1.8.1\"\n";
        assert_eq!(locked(lock, "hyper").as_deref(), Some("1.8.1"));
        assert_eq!(locked(lock, "ntex"), None);
    }
}
