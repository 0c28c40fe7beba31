//! Which pages of files are in memory.

use std::collections::HashMap;
use std::ops::Range;

use shared_ring::nonblocking::FileRange;

const PAGE_BYTES: u64 = 4096;

/// The pages in memory of the files that were [evicted](crate::Machine::evict). Of the other files, chance decides.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    files: HashMap<u32, File>,
    pub(crate) ignores_hints: bool,
    pub(crate) hinted_bytes: u64,
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

    /// Returns whether a page of a part is missing. `None` if chance decides.
    pub(crate) fn is_cold(&self, node: u32, part: FileRange) -> Option<bool> {
        let file = self.files.get(&node)?;
        Some(!file.pages[file.range(part)].iter().all(|&cached| cached))
    }

    /// Reads a part from the disk, or from memory. Returns false if the disk has an error there.
    pub(crate) fn read(&mut self, node: u32, part: FileRange) -> bool {
        if self.is_cold(node, part) != Some(true) {
            return true;
        }
        let Some(file) = self.files.get_mut(&node) else { return true };
        let range = file.range(part);
        file.pages[range].fill(!file.is_damaged);
        !file.is_damaged
    }

    /// Notes a hint to read a part, which is followed at once or never.
    pub(crate) fn prefetch(&mut self, node: u32, part: FileRange) {
        self.hinted_bytes += u64::from(part.len);
        if !self.ignores_hints {
            self.read(node, part);
        }
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
