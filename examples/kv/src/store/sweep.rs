//! Sweeps for stale values, a few buckets at a time, so that their memory is free before it is needed.

use super::Store;

impl Store {
    /// Number of buckets to sweep per new value.
    pub(super) const SWEPT_PER_STORE: usize = 1;

    /// Number of buckets to sweep per second with requests.
    pub(super) const SWEPT_PER_SECOND: usize = 256;

    /// Sweeps the next `n` buckets, unless no value can be stale.
    pub(super) fn sweep(&mut self, n: usize) {
        for _ in 0..n {
            if self.index.expiring == 0 && self.to_sweep == 0 {
                return;
            }
            self.to_sweep = self.to_sweep.saturating_sub(1);
            let bucket = self.next_bucket;
            self.next_bucket = (bucket + 1) % self.index.buckets();
            self.sweep_bucket(bucket);
        }
    }

    fn sweep_bucket(&mut self, bucket: usize) {
        loop {
            let mut checked = 0;
            let stale = self.index.chain(&self.blocks, bucket).find(|item| {
                checked += 1;
                self.stale(*item).is_some()
            });
            self.stats.crawler_items_checked += checked;
            let Some(item) = stale else { return };
            self.stats.crawler_reclaimed += 1;
            self.count_unfetched(item);
            let hash = self.hash_of(item);
            self.remove(item, hash);
        }
    }
}
