//! What a store has done.

macro_rules! counts {
    ($($name:ident)*) => {
        /// Counts of what a store has done, named as memcached names them.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Stats {
            $(pub(crate) $name: u64,)*
        }

        impl Stats {
            /// Adds those of another store.
            pub(crate) fn add(&mut self, other: &Stats) {
                $(self.$name += other.$name;)*
            }

            /// Names and values.
            pub(crate) fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counts! {
    cmd_get cmd_set cmd_flush cmd_touch
    get_hits get_misses get_expired get_flushed
    delete_misses delete_hits
    incr_misses incr_hits decr_misses decr_hits
    cas_misses cas_hits cas_badval
    touch_hits touch_misses
    store_too_large store_no_memory
    total_items
    expired_unfetched evicted_unfetched evictions reclaimed
    crawler_reclaimed crawler_items_checked
}

/// What a store holds at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Values that can be found.
    pub(crate) items: u64,
    /// Blocks of all values, those that are arriving included.
    pub(crate) blocks: u64,
    /// Blocks there may be.
    pub(crate) max_blocks: u64,
    /// Buckets of the hash table.
    pub(crate) buckets: u64,
}

impl Usage {
    /// Adds that of another store.
    pub(crate) fn add(&mut self, other: &Usage) {
        self.items += other.items;
        self.blocks += other.blocks;
        self.max_blocks += other.max_blocks;
        self.buckets += other.buckets;
    }
}
