//! Index of objects by their address.

use hashbrown::HashMap;

/// Bytes of a region, as a power of two. Offsets in one fit 16 bits.
const REGION: u32 = 16;

/// Numbers by address: those of a region lie side by side, in the order of addresses. That takes 6 bytes for each, a
/// quarter of a hash map. Objects that refer to one another often lie in the same region.
#[derive(Debug, Default)]
pub(super) struct AddressIndex {
    /// Start of each region in the two lists, and their common end.
    regions: HashMap<u64, (u32, u32)>,
    offsets: Vec<u16>,
    numbers: Vec<u32>,
}

impl AddressIndex {
    /// Numbers addresses from 0. The last number counts for an address that occurs several times.
    pub(super) fn of(addresses: impl Iterator<Item = u64> + Clone) -> Self {
        let mut regions: HashMap<u64, (u32, u32)> = HashMap::new();
        for address in addresses.clone() {
            regions.entry(address >> REGION).or_default().1 += 1;
        }
        let mut end = 0;
        for (start, count) in regions.values_mut() {
            // Both are the start now; the second moves on as the region fills up.
            let here = *count;
            (*start, *count) = (end, end);
            end += here;
        }
        let mut entries = vec![(0_u16, 0_u32); end as usize];
        for (address, number) in addresses.zip(0..) {
            if let Some((_, next)) = regions.get_mut(&(address >> REGION)) {
                entries[*next as usize] = (address as u16, number);
                *next += 1;
            }
        }
        for &(start, end) in regions.values() {
            entries[start as usize..end as usize].sort_unstable();
        }
        Self {
            regions,
            offsets: entries.iter().map(|entry| entry.0).collect(),
            numbers: entries.iter().map(|entry| entry.1).collect(),
        }
    }

    pub(super) fn get(&self, address: u64) -> Option<u32> {
        let &(start, end) = self.regions.get(&(address >> REGION))?;
        let offsets = &self.offsets[start as usize..end as usize];
        let behind = offsets.partition_point(|&offset| offset <= address as u16);
        let at = behind.checked_sub(1)?;
        (offsets[at] == address as u16).then(|| self.numbers[start as usize + at])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_address_leads_to_its_last_number(
            addresses in prop::collection::vec((0_u64..4, 0_u64..1 << 16), 0..200),
            other in (0_u64..4, 0_u64..1 << 16),
        ) {
            let address = |(region, offset): (u64, u64)| (region << REGION) + offset;
            let addresses: Vec<u64> = addresses.into_iter().map(address).collect();
            let index = AddressIndex::of(addresses.iter().copied());
            let expected = |address| addresses.iter().rposition(|&known| known == address);
            for address in addresses.iter().copied().chain([address(other)]) {
                prop_assert_eq!(index.get(address).map(|number| number as usize), expected(address));
            }
        }
    }
}
