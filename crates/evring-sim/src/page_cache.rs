//! Which pages of files are in memory.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use shared_ring::Fd;
use shared_ring::nonblocking::FileRange;

const PAGE_BYTES: u64 = 4096;

/// Number of bytes that are read ahead of each read.
const READ_AHEAD_BYTES: u32 = 256 * 1024;

/// The pages in memory of the files that were [evicted](crate::Machine::evict). For other files, the random generator decides.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    files: HashMap<u32, File>,
    /// The open files in which nothing is read ahead.
    random: HashSet<Fd>,
    pub(crate) reads_nothing_ahead: bool,
    pub(crate) disk_bytes: u64,
    pub(crate) blocking_sends: u64,
}

#[derive(Debug, Default)]
struct File {
    /// Whether each page is in memory.
    pages: Vec<bool>,
    is_damaged: bool,
}

impl PageCache {
    /// Removes the pages of a file. Reads of its pages from the disk fail if it is damaged.
    pub(crate) fn evict(&mut self, node: u32, len: u64, is_damaged: bool) {
        let pages = vec![false; len.div_ceil(PAGE_BYTES) as usize];
        self.files.insert(node, File { pages, is_damaged });
    }

    /// Returns whether a page of a part is missing. `None` if the random generator decides.
    pub(crate) fn is_cold(&self, node: u32, part: FileRange) -> Option<bool> {
        let file = self.files.get(&node)?;
        Some(!file.pages[file.range(part)].iter().all(|&cached| cached))
    }

    /// Reads a part from the disk, or from memory. Returns false if the disk has an error there.
    pub(crate) fn read(&mut self, node: u32, part: FileRange) -> bool {
        if self.is_cold(node, part) != Some(true) {
            return true;
        }
        self.fill(node, part)
    }

    /// Reads ahead of a part that is read or sent, at once.
    pub(crate) fn read_ahead(&mut self, node: u32, part: FileRange) {
        if !self.reads_nothing_ahead && !self.random.contains(&part.file) {
            self.fill(node, FileRange { len: part.len.saturating_add(READ_AHEAD_BYTES), ..part });
        }
    }

    /// Reads the pages of a part that are missing. Returns false if the disk has an error there.
    fn fill(&mut self, node: u32, part: FileRange) -> bool {
        let Some(file) = self.files.get_mut(&node) else { return true };
        let range = file.range(part);
        let pages = &mut file.pages[range];
        if !file.is_damaged {
            let missing = pages.iter().filter(|cached| !**cached).count() as u64;
            self.disk_bytes += missing * PAGE_BYTES;
            pages.fill(true);
        }
        !file.is_damaged
    }

    /// Sets whether the kernel reads ahead in an open file. Closing it forgets that.
    pub(crate) fn set_read_ahead(&mut self, file: Fd, on: bool) {
        match on {
            true => self.random.remove(&file),
            false => self.random.insert(file),
        };
    }

    /// Forgets a file that is closed.
    pub(crate) fn closed(&mut self, file: Fd) {
        self.random.remove(&file);
    }
}

impl File {
    /// Returns the pages of a part.
    fn range(&self, part: FileRange) -> Range<usize> {
        let Range { start, end } = part.range();
        let page = |at: u64| (at as usize).min(self.pages.len());
        page(start / PAGE_BYTES)..page(end.div_ceil(PAGE_BYTES))
    }
}
