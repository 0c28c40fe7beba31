//! The state that the owner of the pages and the syscall threads share.

use crate::bell::Bell;
use crate::completions::Completions;
use crate::entry::Entry;
use crate::page::{ENTRIES, Page, Submitted};

/// Pages, the queue of completions, and the owner's bell.
#[derive(Debug)]
pub(crate) struct Shared {
    pages: Box<[Page]>,
    pub(crate) submitted: Box<[Submitted]>,
    pub(crate) completions: Completions,
    pub(crate) bell: Bell,
}

impl Shared {
    pub(crate) fn new(pages: usize) -> std::io::Result<Self> {
        Ok(Shared {
            pages: (0..pages).map(|_| Page::new()).collect(),
            submitted: (0..pages).map(|_| Submitted::new()).collect(),
            completions: Completions::new(pages * ENTRIES),
            bell: Bell::new()?,
        })
    }

    #[inline]
    pub(crate) fn entry(&self, index: u32) -> &Entry {
        &Page::entries_of(&self.pages)[index as usize]
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Hands a done entry to the owner.
    pub(crate) fn complete(&self, index: u32) {
        self.completions.push(index);
        self.bell.ring();
    }
}
