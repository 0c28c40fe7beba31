//! Servers of others, each configured as its own experts would for so many cores.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::command::{Serve, What};
use crate::failure::Failure;
use crate::outcome;

/// A server of others.
pub(crate) struct External {
    pub(super) name: &'static str,
    /// Where it is, as some lie where only root looks.
    pub(super) program: &'static str,
    /// The Debian package that has it.
    pub(super) package: &'static str,
    /// Asks for its version; nothing if it can't be run.
    pub(super) version: fn(&str) -> io::Result<String>,
    /// Writes its configuration and returns the arguments of its program.
    pub(super) configure: fn(&Start<'_>, &Path) -> Result<Vec<String>, Failure>,
}

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
        _ => None,
    }
}

impl External {
    /// Looks whether it is installed; returns its version.
    pub(crate) fn find(&self) -> Result<String, Failure> {
        match (self.version)(self.program()) {
            Ok(version) => Ok(version),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (name, package) = (self.name, self.package);
                Err(Failure::Run(format!("{name} is not installed (Debian package: {package})")))
            }
            Err(error) => Err(Failure::new(format_args!("{} can't be run", self.name), error)),
        }
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
        let error = Command::new(self.program()).args(arguments).exec();
        Err(Failure::new(format_args!("{} does not start", self.name), error))
    }

    fn program(&self) -> &str {
        if Path::new(self.program).exists() { self.program } else { self.name }
    }
}

/// The first line that a program says.
pub(super) fn said(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned())
}
