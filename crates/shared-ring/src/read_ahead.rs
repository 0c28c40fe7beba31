//! Which files the Linux kernel reads ahead of the sockets to which sendfile(2) sends them.
//!
//! Linux reads ahead of a reader that goes through a file in order, in growing windows. It fills large folios by large
//! requests, for a fraction of the CPU time of hints (`POSIX_FADV_WILLNEED`), which fill the page cache page by page. But it
//! goes up to twice the read-ahead of the device ahead of each reader, however slow, and of any number of them. So it reads
//! ahead for a number of sockets; what others send is read in small parts, as they are needed.

use crate::Fd;
use crate::table::Table;

/// The sockets of a kernel for whose files, sent by sendfile(2), Linux reads ahead.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// By the number of the socket.
    has: Table<bool>,
    sockets: u32,
}

impl ReadAhead {
    /// Maximum number of sockets. With the usual read-ahead of 128 KiB, 64 MiB are read ahead for all of them.
    pub const MAX_SOCKETS: u32 = 256;

    /// Notes that a socket has to wait for the disk. Returns whether Linux reads ahead for it.
    #[must_use]
    pub fn begin(&mut self, socket: Fd) -> bool {
        let has = self.has.at(socket.index());
        if !*has && self.sockets < Self::MAX_SOCKETS {
            *has = true;
            self.sockets += 1;
        }
        *has
    }

    /// Forgets a socket: it has sent its file, sends bytes from memory, such as the rest of its file, or its kernel closes
    /// it.
    #[inline]
    pub fn forget(&mut self, socket: Fd) {
        if self.sockets > 0
            && let Some(has) = self.has.get_mut(socket.index())
        {
            self.sockets -= u32::from(std::mem::take(has));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_sockets_is_bounded() {
        let mut ahead = ReadAhead::default();
        let max = ReadAhead::MAX_SOCKETS as i32;
        for _ in 0..2 {
            assert!((0..max).all(|socket| ahead.begin(Fd::from_raw(socket))));
        }
        assert!(!ahead.begin(Fd::from_raw(max)));
        // Once another socket has sent its file, there is room.
        ahead.forget(Fd::from_raw(7));
        ahead.forget(Fd::from_raw(7));
        ahead.forget(Fd::from_raw(max + 1));
        assert!(ahead.begin(Fd::from_raw(max)));
        assert!(!ahead.begin(Fd::from_raw(7)));
        (0..=max).for_each(|socket| ahead.forget(Fd::from_raw(socket)));
        assert_eq!(ahead.sockets, 0);
    }
}
