//! Statistics of a store.

macro_rules! counts {
    ($($name:ident)*) => {
        /// Statistics of a store, named as in memcached.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Stats {
            $(pub(crate) $name: u64,)*
        }

        impl Stats {
            /// Adds the statistics of another store.
            pub(crate) fn add(&mut self, other: &Stats) {
                $(self.$name += other.$name;)*
            }

            /// Iterates over names and values.
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

/// Current usage of a store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Values in the index.
    pub(crate) items: u64,
    /// Blocks of all values, including those being received.
    pub(crate) blocks: u64,
    /// Maximum number of blocks.
    pub(crate) max_blocks: u64,
    /// Buckets of the hash table.
    pub(crate) buckets: u64,
}

impl Usage {
    /// Adds the usage of another store.
    pub(crate) fn add(&mut self, other: &Usage) {
        self.items += other.items;
        self.blocks += other.blocks;
        self.max_blocks += other.max_blocks;
        self.buckets += other.buckets;
    }
}
