//! Release of cached memory to CUDA.

use super::{CachingAllocator, Key};

impl CachingAllocator {
    /// Releases all segments and pages without live blocks (`torch.cuda.empty_cache()`). Private pools keep theirs.
    pub fn empty_cache(&mut self) {
        for pool in 0..self.pools.len() {
            if self.pools[pool].place.private.is_some() {
                continue;
            }
            let free = self.pools[pool].free.iter();
            let whole = free.filter(|key| {
                let block = &self.blocks[key.3];
                block.is_expandable || block.is_segment()
            });
            let whole: Vec<Key> = whole.copied().collect();
            for key in whole {
                if self.blocks[key.3].is_expandable {
                    self.unmap(key.3);
                } else {
                    self.release(pool, key);
                }
            }
        }
    }

    /// Releases oversize blocks until there is room for `size` bytes (`release_available_cached_blocks`). Returns true
    /// if enough was released. Does nothing without `max_split_size_mb`.
    pub(super) fn release_oversize(&mut self, size: u64, pool: usize) -> bool {
        let most = self.settings.max_split;
        if most == u64::MAX {
            return false;
        }
        let wanted = size.max(most);
        let free = &self.pools[pool].free;
        let fitting = free.range((wanted, 0, 0, 0)..).next().copied();
        if let Some(key) = fitting.filter(|key| !self.blocks[key.3].is_expandable) {
            self.release(pool, key);
            return true;
        }
        let oversize = free.range((most, 0, 0, 0)..(wanted, 0, 0, 0)).rev();
        let oversize: Vec<Key> = oversize.copied().collect();
        let mut released = 0;
        for key in oversize {
            if released >= wanted {
                break;
            }
            if !self.blocks[key.3].is_expandable {
                released += key.0;
                self.release(pool, key);
            }
        }
        released >= wanted
    }

    fn release(&mut self, pool: usize, key: Key) {
        self.pools[pool].free.remove(&key);
        self.totals.reserved.0 = self.totals.reserved.0.saturating_sub(key.0);
        self.vacant.push(key.3);
    }
}
