//! Faults.

use std::fmt;
use std::str::FromStr;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident $word:literal $rate:literal,)*) => {
        /// A kind of fault, or of unusual but permitted behaviour.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// Every kind.
            pub const ALL: [Fault; Fault::COUNT] = [$(Fault::$name,)*];
            /// Number of kinds.
            pub const COUNT: usize = Fault::NAMES.len();
            // References to static arrays: LLVM takes minutes over copies of arrays on the stack.
            const NAMES: &[&str] = &[$($word),*];
            const RATES: &[u16] = &[$($rate),*];

            /// Returns its name.
            pub fn name(self) -> &'static str {
                Fault::NAMES[self as usize]
            }

            /// Returns its usual rate per 65,536 occasions.
            pub(super) fn rate(self) -> u16 {
                Fault::RATES[self as usize]
            }
        }
    };
}

faults! {
    /// A receive returns less than has arrived.
    ShortReceive "short-receive" 8000,
    /// A send takes less than there is room for.
    ShortSend "short-send" 8000,
    /// Bytes stay in transit for a while.
    SlowWire "slow-wire" 8000,
    /// The kernel ends a multishot operation early.
    MultishotEnds "multishot-ends" 3000,
    /// A receive fails with ENOBUFS although buffers are free.
    NoBuffers "no-buffers" 1000,
    /// An accept fails with ENFILE; the connection stays queued.
    TableFull "table-full" 600,
    /// A connection was reset before its accept (ECONNABORTED).
    AcceptAborted "accept-aborted" 600,
    /// A system call is interrupted (EINTR).
    Interrupted "interrupted" 1500,
    /// The kernel takes no submissions at the moment (EBUSY, EAGAIN).
    Busy "busy" 1500,
    /// The kernel takes only some of the submissions.
    TakesFew "takes-few" 2000,
    /// An operation completes before its cancel.
    CancelLoses "cancel-loses" 16000,
    /// The connection breaks (ECONNRESET).
    Reset "reset" 150,
    /// A peer neither reads nor writes for a while.
    Stall "stall" 1500,
    /// A file cannot be read (EIO).
    DiskError "disk-error" 1000,
    /// A read of a file is not in the page cache.
    Cold "cold" 12000,
    /// A read of a file returns less than there is.
    ShortRead "short-read" 3000,
    /// A poller reports readiness wrongly.
    Spurious "spurious" 1500,
    /// A peer is unreachable (ETIMEDOUT).
    Unreachable "unreachable" 1500,
    /// A signal interrupts the application.
    Signal "signal" 6000,
    /// A file is truncated, extended or overwritten while it is read or sent.
    FileChanges "file-changes" 1000,
    /// A file operation takes many seconds.
    SlowDisk "slow-disk" 300,
    /// A file operation never ends.
    DiskHangs "disk-hangs" 150,
    /// A write to a file writes less than requested.
    ShortWrite "short-write" 3000,
}

/// A set of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u32);

impl Faults {
    /// All faults.
    pub const ALL: Faults = Faults((1 << Fault::COUNT) - 1);
    /// No fault.
    pub const NONE: Faults = Faults(0);

    /// Returns whether the set contains this fault.
    pub fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }

    /// Returns the set with this fault.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Faults(self.0 | 1 << fault as u32)
    }

    /// Returns the set without this fault.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Faults(self.0 & !(1 << fault as u32))
    }

    /// Returns the faults of the set.
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
            let number = Fault::NAMES.iter().position(|known| *known == name);
            number.map(|number| set.with(Fault::ALL[number])).ok_or_else(|| {
                format!("unknown fault `{name}`; known faults: {}", Fault::NAMES.join(", "))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_set_round_trips_through_text() {
        for set in [
            Faults::ALL,
            Faults::NONE,
            Faults::ALL.without(Fault::Reset),
            Faults::NONE.with(Fault::Cold).with(Fault::FileChanges),
        ] {
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        assert!("cold+warm".parse::<Faults>().unwrap_err().contains("unknown fault `warm`"));
    }
}
