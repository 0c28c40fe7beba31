//! Looks for values that are gone, a few buckets at a time, so that their memory is free before it
//! is needed.

use super::Store;

impl Store {
    /// How many buckets are looked at each time a value comes.
    pub(super) const SWEPT_A_STORE: usize = 1;

    /// How many buckets are looked at in each second in which there is work at all.
    pub(super) const SWEPT_A_SECOND: usize = 256;

    /// Looks at the next `n` buckets, unless there is nothing to be found.
    pub(super) fn sweep(&mut self, n: usize) {
        for _ in 0..n {
            if self.index.expiring == 0 && self.to_sweep == 0 {
                return;
            }
            self.to_sweep = self.to_sweep.saturating_sub(1);
            let bucket = self.swept;
            self.swept = (bucket + 1) % self.index.buckets();
            self.sweep_bucket(bucket);
        }
    }

    fn sweep_bucket(&mut self, bucket: usize) {
        loop {
            let mut seen = 0;
            let gone = self.index.chain(&self.blocks, bucket).find(|item| {
                seen += 1;
                self.gone(*item).is_some()
            });
            self.stats.crawler_items_checked += seen;
            let Some(item) = gone else { return };
            self.stats.crawler_reclaimed += 1;
            self.count_unfetched(item);
            let hash = self.hash_of(item);
            self.remove(item, hash);
        }
    }
}
