//! Choosing a mechanism by its name.

use std::net::SocketAddr;

use shared_ring::KernelError;

use crate::{
    Application, Config, Family, Multiplexer, RemoteHandle, StartError, Stats, Unavailable,
};

/// What there is to know of a mechanism before it runs.
#[derive(Clone, Debug)]
pub struct Backend {
    /// The name by which users choose it.
    pub name: &'static str,
    /// How it reports events.
    pub family: Family,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// Whether it can run here, or why not.
    pub available: Result<(), Unavailable>,
}

impl Backend {
    fn of<M: Multiplexer>() -> Self {
        Backend { name: M::NAME, family: M::FAMILY, summary: M::SUMMARY, available: M::available() }
    }
}

/// The mechanisms that `auto` tries, in this order, before any other.
const PREFERRED: [&str; 2] = ["uring", "epoll"];

/// The mechanism to use when none was asked for.
#[derive(Clone, Debug)]
pub struct AutoChoice {
    /// Its name.
    pub name: &'static str,
    /// Those that would have been better but can't run here, and why.
    pub passed_over: Vec<(&'static str, Unavailable)>,
}

/// Chooses the fastest mechanism that can run here.
///
/// # Errors
/// When none that is built in can.
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
    Err(Unavailable("none of the mechanisms that are built in can run here".into()))
}

macro_rules! mechanisms {
    ($($name:ident,)*) => {
        /// The names of the mechanisms that are built in.
        pub const NAMES: &[&str] = &[$(<$name as Multiplexer>::NAME,)*];

        /// Every mechanism that is built in.
        pub fn backends() -> Vec<Backend> {
            vec![$(Backend::of::<$name>(),)*]
        }

        /// A mechanism that was chosen by name. Static dispatch resumes inside: each mechanism
        /// runs a loop of its own.
        pub enum AnyMechanism {
            $(
                #[doc = concat!("[`", stringify!($name), "`]")]
                $name($name),
            )*
        }

        impl AnyMechanism {
            /// Sets up the mechanism called `name`; `auto` lets [`auto`] choose.
            ///
            /// # Errors
            /// Those of [`Multiplexer::new`], and an unknown name.
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
            /// Those of [`Multiplexer::run`].
            pub fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
                match self {
                    $(AnyMechanism::$name(m) => m.run(app),)*
                }
            }
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/mechanisms.rs"));
