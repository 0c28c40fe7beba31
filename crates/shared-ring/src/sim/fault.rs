//! What can go wrong.

use std::fmt;
use std::str::FromStr;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident $word:literal $rate:literal,)*) => {
        /// A kind of thing that goes wrong, or goes its own way.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// Every kind.
            pub const ALL: [Fault; Fault::COUNT] = [$(Fault::$name,)*];
            /// How many kinds there are.
            pub const COUNT: usize = [$($word),*].len();

            /// Its name.
            pub fn name(self) -> &'static str {
                [$($word),*][self as usize]
            }

            /// Of 65,536 occasions, at how many it happens in a usual run.
            pub(super) fn rate(self) -> u16 {
                [$($rate),*][self as usize]
            }
        }
    };
}

faults! {
    /// A receive takes less than has arrived.
    ShortReceive "short-receive" 8000,
    /// A send takes less than there is room for.
    ShortSend "short-send" 8000,
    /// Bytes stay on their way for a while.
    SlowWire "slow-wire" 8000,
    /// The kernel ends an operation early that goes on.
    MultishotEnds "multishot-ends" 3000,
    /// A receive finds no buffer (ENOBUFS) though there are some.
    NoBuffers "no-buffers" 1000,
    /// An accept finds no descriptor (ENFILE); the connection goes on waiting.
    TableFull "table-full" 600,
    /// A connection is gone when it is accepted (ECONNABORTED).
    AcceptAborted "accept-aborted" 600,
    /// A system call is interrupted (EINTR).
    Interrupted "interrupted" 1500,
    /// The kernel takes no submissions at the moment (EBUSY, EAGAIN).
    Busy "busy" 1500,
    /// The kernel takes only some of the submissions.
    TakesFew "takes-few" 2000,
    /// An operation that is being cancelled gets done first.
    CancelLoses "cancel-loses" 16000,
    /// The connection breaks (ECONNRESET).
    Reset "reset" 150,
    /// A peer neither reads nor writes for a while.
    Stall "stall" 1500,
    /// The disk can't read (EIO).
    DiskError "disk-error" 1000,
    /// A read of a file is not in memory.
    Cold "cold" 12000,
    /// A read of a file takes less than there is.
    ShortRead "short-read" 3000,
    /// A poller reports readiness that is not there.
    Spurious "spurious" 1500,
    /// A peer can't be reached (ETIMEDOUT).
    Unreachable "unreachable" 1500,
    /// A signal interrupts the application.
    Signal "signal" 6000,
    /// A file is cut, grows or is written to while it is read or sent.
    FileChanges "file-changes" 1000,
    /// Work on a file ends many seconds late.
    SlowDisk "slow-disk" 300,
    /// Work on a file never ends.
    DiskHangs "disk-hangs" 150,
}

/// A set of kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u32);

impl Faults {
    /// Every kind.
    pub const ALL: Faults = Faults((1 << Fault::COUNT) - 1);
    /// None.
    pub const NONE: Faults = Faults(0);

    /// Whether it has this kind.
    pub fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }

    /// The set with this kind.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Faults(self.0 | 1 << fault as u32)
    }

    /// The set without this kind.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Faults(self.0 & !(1 << fault as u32))
    }

    /// Its kinds.
    pub fn kinds(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |fault| self.has(*fault))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Faults::ALL => return f.write_str("all"),
            Faults::NONE => return f.write_str("none"),
            _ => {}
        }
        for (at, fault) in self.kinds().enumerate() {
            f.write_str(if at > 0 { "+" } else { "" })?;
            f.write_str(fault.name())?;
        }
        Ok(())
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Faults::ALL),
            "none" => return Ok(Faults::NONE),
            _ => {}
        }
        text.split('+').try_fold(Faults::NONE, |set, name| {
            let fault = Fault::ALL.into_iter().find(|fault| fault.name() == name);
            fault.map(|fault| set.with(fault)).ok_or_else(|| {
                let known: Vec<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
                format!("there is no fault `{name}`; there are: {}", known.join(", "))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_as_it_is_written() {
        for set in [
            Faults::ALL,
            Faults::NONE,
            Faults::ALL.without(Fault::Reset),
            Faults::NONE.with(Fault::Cold).with(Fault::FileChanges),
        ] {
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        assert!("cold+warm".parse::<Faults>().unwrap_err().contains("no fault `warm`"));
    }
}
