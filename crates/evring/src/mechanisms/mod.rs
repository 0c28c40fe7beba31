//! The mechanisms, each a feature by its name, and the choice among them.

#[cfg(feature = "devpoll")]
mod devpoll;
#[cfg(feature = "epoll")]
mod epoll;
#[cfg(feature = "epoll-edge")]
mod epoll_edge;
#[cfg(feature = "flexsc")]
mod flexsc;
#[cfg(feature = "interest")]
mod interest;
mod kernels;
#[cfg(feature = "poll")]
mod poll;
#[cfg(feature = "rtsig")]
mod rtsig;
#[cfg(feature = "select")]
mod select;
#[cfg(feature = "send")]
mod send;
#[cfg(feature = "send-ps1")]
mod send_ps1;
#[cfg(feature = "send-ps2")]
mod send_ps2;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "uring")]
mod uring;

pub use crate::event_loop::{EventLoop, Mechanism, MechanismLoop};
pub use crate::multiplexer::{Family, Multiplexer};
pub use crate::start_error::Unavailable;
pub use shared_ring::Counters;
#[cfg(feature = "io-uring")]
pub use shared_ring::uring::Mode;

use std::fmt;
use std::net::SocketAddr;

use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};

use crate::driver::Usage;
use crate::{Application, Config, KernelError, Listener, RemoteHandle, StartError, Stats};

/// The mechanisms that [`auto`] prefers, best first.
const PREFERRED: [&str; 2] = ["uring", "epoll"];

/// A mechanism that is compiled in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Backend {
    /// Its name.
    pub name: &'static str,
    /// Its way of reporting events.
    pub family: Family,
    /// A description of a few words.
    pub summary: &'static str,
    /// An error with the reason if it cannot run on this machine.
    pub available: Result<(), Unavailable>,
}

impl Backend {
    fn probe<M: Multiplexer>() -> Self {
        Backend { name: M::NAME, family: M::FAMILY, summary: M::SUMMARY, available: M::available() }
    }
}

/// Probes every mechanism that is compiled in.
pub fn backends() -> Vec<Backend> {
    PROBES.iter().map(|(_, probe)| probe()).collect()
}

/// The choice of [`auto`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AutoChoice {
    /// The name of the mechanism.
    pub name: &'static str,
    /// Preferred mechanisms that cannot run on this machine, and the reasons.
    pub unavailable: Vec<(&'static str, Unavailable)>,
}

/// Chooses a mechanism that can run on this machine: `uring`, else `epoll`, else the first of the others.
/// Probes none beyond the chosen one.
///
/// # Errors
/// If no mechanism that is compiled in can run: the error has the reason of each.
pub fn auto() -> Result<AutoChoice, Unavailable> {
    choose(PROBES)
}

fn choose(probes: &[(&'static str, Probe)]) -> Result<AutoChoice, Unavailable> {
    let preferred =
        PREFERRED.iter().filter_map(|name| probes.iter().find(|probe| probe.0 == *name));
    let others = probes.iter().filter(|(name, _)| !PREFERRED.contains(name));
    let mut unavailable = Vec::new();
    for (name, probe) in preferred.chain(others) {
        match probe().available {
            Ok(()) => return Ok(AutoChoice { name, unavailable }),
            Err(reason) => unavailable.push((*name, reason)),
        }
    }
    let reasons: Vec<_> =
        unavailable.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    let mut message = format!("no mechanism can run here: {}", reasons.join("; "));
    if !probes.iter().any(|(name, _)| *name == "epoll") {
        message.push_str("; build with the feature `epoll`, which needs no io_uring");
    }
    Err(Unavailable(message))
}

macro_rules! mechanisms {
    ($($feature:literal => $module:ident::$name:ident, $multiplexer:ty;)*) => {
        #[cfg(not(any($(feature = $feature),*)))]
        compile_error!("choose at least one mechanism, such as --features epoll");

        $(
            #[cfg(feature = $feature)]
            pub use $module::$name;
        )*

        /// The names of the mechanisms that are compiled in.
        pub const NAMES: &[&str] = &[$(
            #[cfg(feature = $feature)]
            $feature,
        )*];

        type Probe = fn() -> Backend;

        /// By name, what probes the mechanism.
        const PROBES: &[(&str, Probe)] = &[$(
            #[cfg(feature = $feature)]
            ($feature, Backend::probe::<$multiplexer>),
        )*];

        /// A mechanism that was chosen by name. Each variant runs its own loop, without dynamic dispatch.
        #[allow(clippy::large_enum_variant, reason = "a worker has one value")]
        pub enum AnyMechanism {
            $(
                #[doc = concat!("The mechanism `", $feature, "`.")]
                #[cfg(feature = $feature)]
                $name($multiplexer),
            )*
        }

        impl fmt::Debug for AnyMechanism {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("AnyMechanism")
                    .field("name", &self.name())
                    .field("addresses", &self.addresses())
                    .finish_non_exhaustive()
            }
        }

        impl AnyMechanism {
            /// Sets up the mechanism called `name`; for `auto`, the one that [`auto`] chooses.
            ///
            /// # Errors
            /// Those of [`Multiplexer::new`], and [`StartError::Unknown`].
            pub fn new(name: &str, config: &Config) -> Result<Self, StartError> {
                let name = if name == "auto" { auto()?.name } else { name };
                match name {
                    $(
                        #[cfg(feature = $feature)]
                        $feature => Multiplexer::new(config).map(AnyMechanism::$name),
                    )*
                    _ => Err(StartError::Unknown(name.to_owned(), NAMES)),
                }
            }

            /// Returns the mechanism's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(_) => $feature,
                    )*
                }
            }

            /// See [`Multiplexer::addresses`].
            pub fn addresses(&self) -> &[SocketAddr] {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(mechanism) => mechanism.addresses(),
                    )*
                }
            }

            /// See [`Multiplexer::remote`].
            pub fn remote(&self) -> RemoteHandle {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(mechanism) => mechanism.remote(),
                    )*
                }
            }

            /// See [`Multiplexer::add_buffers`].
            ///
            /// # Errors
            /// Those of [`Multiplexer::add_buffers`].
            pub fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(mechanism) => mechanism.add_buffers(buffers),
                    )*
                }
            }

            /// See [`Multiplexer::set_listener_group`].
            ///
            /// # Errors
            /// Those of [`Multiplexer::set_listener_group`].
            pub fn set_listener_group(
                &mut self,
                at: Listener,
                group: BufferGroup,
            ) -> Result<(), BufferError> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(mechanism) => mechanism.set_listener_group(at, group),
                    )*
                }
            }

            /// See [`Multiplexer::run`].
            ///
            /// # Errors
            /// Those of [`Multiplexer::run`].
            pub fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(mechanism) => mechanism.run(app),
                    )*
                }
            }

            /// As `run`, and calls `inspect` with what the server uses, after each completion and each turn.
            ///
            /// # Errors
            /// Those of [`Multiplexer::run`].
            #[doc(hidden)]
            pub fn run_inspected<A: Application + 'static>(
                self,
                app: A,
                inspect: impl FnMut(&Usage) + 'static,
            ) -> Result<Stats, KernelError> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        AnyMechanism::$name(mechanism) => mechanism.run_inspected(app, inspect),
                    )*
                }
            }
        }
    };
}
mechanisms! {
    "devpoll" => devpoll::DevPoll, MechanismLoop<DevPoll>;
    "epoll" => epoll::Epoll, MechanismLoop<Epoll>;
    "epoll-edge" => epoll_edge::EpollEdge, MechanismLoop<EpollEdge>;
    "flexsc" => flexsc::FlexSc, MechanismLoop<FlexSc>;
    "interest" => interest::Interest, MechanismLoop<Interest>;
    "poll" => poll::Poll, MechanismLoop<Poll>;
    "rtsig" => rtsig::RtSig, MechanismLoop<RtSig>;
    "select" => select::Select, MechanismLoop<Select>;
    "send" => send::Send, MechanismLoop<Send>;
    "send-ps1" => send_ps1::SendPs1, MechanismLoop<SendPs1>;
    "send-ps2" => send_ps2::SendPs2, MechanismLoop<SendPs2>;
    "tokio" => tokio::Tokio, Tokio;
    "uring" => uring::Uring, MechanismLoop<Uring>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(name: &'static str, available: Result<(), Unavailable>) -> Backend {
        Backend { name, family: Family::Readiness, summary: "", available }
    }

    fn no_uring() -> Backend {
        probe("uring", Err(Unavailable("the kernel has no io_uring".into())))
    }

    fn no_epoll() -> Backend {
        probe("epoll", Err(Unavailable("no descriptor is left".into())))
    }

    fn select() -> Backend {
        probe("select", Ok(()))
    }

    /// The error of `auto` had no reason.
    #[test]
    fn without_a_mechanism_the_error_has_the_reason_of_each() {
        let error = choose(&[("epoll", no_epoll), ("uring", no_uring)]).unwrap_err().to_string();
        assert_eq!(
            error,
            "no mechanism can run here: uring: the kernel has no io_uring; epoll: no descriptor is left"
        );
    }

    #[test]
    fn without_epoll_the_error_names_its_feature() {
        let error = choose(&[("uring", no_uring)]).unwrap_err().to_string();
        assert!(
            error.starts_with("no mechanism can run here: uring: the kernel has no io_uring; ")
        );
        assert!(error.contains("the feature `epoll`"), "{error}");
    }

    #[test]
    fn the_choice_has_the_reasons_of_preferred_mechanisms() {
        let choice = choose(&[("select", select), ("uring", no_uring)]).unwrap();
        assert_eq!(choice.name, "select");
        assert_eq!(choice.unavailable.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["uring"]);
    }
}
