//! Selection of a mechanism by name.

use std::net::SocketAddr;

use shared_ring::KernelError;

use crate::{
    Application, Config, Family, Multiplexer, RemoteHandle, StartError, Stats, Unavailable,
};

/// Description of a mechanism.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Name by which users select it.
    pub name: &'static str,
    /// The way it reports events.
    pub family: Family,
    /// Short description.
    pub summary: &'static str,
    /// Availability on this machine, or the reason why not.
    pub available: Result<(), Unavailable>,
}

impl Backend {
    fn of<M: Multiplexer>() -> Self {
        Backend { name: M::NAME, family: M::FAMILY, summary: M::SUMMARY, available: M::available() }
    }
}

/// Mechanisms that `auto` tries first, in this order.
const PREFERRED: [&str; 2] = ["uring", "epoll"];

/// The mechanism selected by [`auto`].
#[derive(Clone, Debug)]
pub struct AutoChoice {
    /// Name of the mechanism.
    pub name: &'static str,
    /// Preferred mechanisms that are unavailable, with the reasons.
    pub passed_over: Vec<(&'static str, Unavailable)>,
}

/// Selects the fastest mechanism that is available.
///
/// # Errors
/// Fails if no mechanism in this build is available.
pub fn auto() -> Result<AutoChoice, Unavailable> {
    let mut all = backends();
    all.sort_by_key(|b| PREFERRED.iter().position(|p| *p == b.name).unwrap_or(PREFERRED.len()));
    let mut passed_over = Vec::new();
    for backend in all {
        match backend.available {
            Ok(()) => return Ok(AutoChoice { name: backend.name, passed_over }),
            Err(reason) => passed_over.push((backend.name, reason)),
        }
    }
    Err(Unavailable("no mechanism of this build can run on this machine".into()))
}

macro_rules! mechanisms {
    ($($name:ident,)*) => {
        /// Names of all mechanisms in this build.
        pub const NAMES: &[&str] = &[$(<$name as Multiplexer>::NAME,)*];

        /// Returns all mechanisms in this build.
        pub fn backends() -> Vec<Backend> {
            vec![$(Backend::of::<$name>(),)*]
        }

        /// A mechanism selected by name. Each variant runs its own statically dispatched loop.
        pub enum AnyMechanism {
            $(
                #[doc = concat!("[`", stringify!($name), "`]")]
                $name($name),
            )*
        }

        impl AnyMechanism {
            /// Sets up the mechanism called `name`; for `auto`, the one that [`auto`] selects.
            ///
            /// # Errors
            /// Fails like [`Multiplexer::new`], and for an unknown name.
            pub fn new(name: &str, config: &Config) -> Result<Self, StartError> {
                let name = if name == "auto" { auto()?.name } else { name };
                match name {
                    $(<$name as Multiplexer>::NAME => Ok(AnyMechanism::$name(Multiplexer::new(config)?)),)*
                    _ => Err(StartError::Unknown(name.to_owned())),
                }
            }

            /// See [`Multiplexer::NAME`].
            pub fn name(&self) -> &'static str {
                match self {
                    $(AnyMechanism::$name(_) => <$name as Multiplexer>::NAME,)*
                }
            }

            /// See [`Multiplexer::addresses`].
            pub fn addresses(&self) -> &[SocketAddr] {
                match self {
                    $(AnyMechanism::$name(m) => m.addresses(),)*
                }
            }

            /// See [`Multiplexer::remote`].
            pub fn remote(&self) -> RemoteHandle {
                match self {
                    $(AnyMechanism::$name(m) => m.remote(),)*
                }
            }

            /// See [`Multiplexer::run`].
            ///
            /// # Errors
            /// Fails like [`Multiplexer::run`].
            pub fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
                match self {
                    $(AnyMechanism::$name(m) => m.run(app),)*
                }
            }
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/mechanisms.rs"));
