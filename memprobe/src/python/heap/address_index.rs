//! Index of objects by their address.

use hashbrown::HashMap;

/// Bytes of a region, as a power of two.
const REGION: u32 = 16;

/// Alignment of nearly all objects in bytes, as a power of two: that of pymalloc.
const ALIGNED: u32 = 4;

/// Words of the bitmap of a region.
const WORDS: usize = 1 << (REGION - ALIGNED - u64::BITS.trailing_zeros());

/// Numbers by address. A bitmap of each region has the addresses, and the number of an object lies behind those of the
/// addresses before it. That takes about 5 bytes for each object in a dense region, and no search.
///
/// A region takes 648 bytes. The memory that a snapshot keeps bounds the number of regions.
#[derive(Debug, Default)]
pub(crate) struct AddressIndex {
    /// Index in `regions` by region number.
    places: HashMap<u64, u32>,
    regions: Vec<Region>,
    numbers: Vec<u32>,
    /// Objects whose address is not aligned.
    others: HashMap<u64, u32>,
}

#[derive(Clone, Debug)]
struct Region {
    /// Index in the numbers of the first one of this region.
    start: u32,
    /// Objects of this region before each word.
    before: [u16; WORDS],
    /// Addresses of objects, one bit each.
    bits: [u64; WORDS],
}

impl AddressIndex {
    /// Numbers addresses from 0. The last number counts for an address that occurs several times.
    pub(crate) fn of(addresses: impl Iterator<Item = u64> + Clone) -> Self {
        let mut index = Self::default();
        for (address, number) in addresses.clone().zip(0..) {
            index.add(address, number);
        }
        let mut end = 0;
        for region in &mut index.regions {
            region.start = end;
            let mut within = 0;
            for (before, bits) in region.before.iter_mut().zip(&region.bits) {
                *before = within;
                within += bits.count_ones() as u16;
            }
            end += u32::from(within);
        }
        index.numbers = vec![0; end as usize];
        for (address, number) in addresses.zip(0..) {
            if let Some(place) = index.place(address) {
                index.numbers[place] = number;
            }
        }
        index
    }

    fn add(&mut self, address: u64, number: u32) {
        let Some((word, bit)) = position(address) else {
            self.others.insert(address, number);
            return;
        };
        let regions = &mut self.regions;
        let place = self.places.entry(address >> REGION);
        let place = *place.or_insert_with(|| {
            regions.push(Region {
                start: 0,
                before: [0; WORDS],
                bits: [0; WORDS],
            });
            regions.len() as u32 - 1
        });
        regions[place as usize].bits[word] |= 1 << bit;
    }

    pub(crate) fn get(&self, address: u64) -> Option<u32> {
        if position(address).is_none() {
            return self.others.get(&address).copied();
        }
        Some(self.numbers[self.place(address)?])
    }

    /// Index in the numbers of an aligned address.
    fn place(&self, address: u64) -> Option<usize> {
        let (word, bit) = position(address)?;
        let place = *self.places.get(&(address >> REGION))?;
        let region = &self.regions[place as usize];
        let bits = region.bits[word];
        let before = (bits & ((1 << bit) - 1)).count_ones();
        let within = u32::from(region.before[word]) + before;
        (bits >> bit & 1 != 0).then_some((region.start + within) as usize)
    }
}

/// Word and bit of an aligned address in the bitmap of its region.
fn position(address: u64) -> Option<(usize, u32)> {
    let offset = address as u16 >> ALIGNED;
    let is_aligned = address.is_multiple_of(1 << ALIGNED);
    is_aligned.then_some((usize::from(offset / 64), u32::from(offset % 64)))
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
            // Half of them are aligned.
            let address = |(region, offset): (u64, u64)| {
                (region << REGION) + if offset % 2 == 0 { offset & !15 } else { offset }
            };
            let addresses: Vec<u64> = addresses.into_iter().map(address).collect();
            let index = AddressIndex::of(addresses.iter().copied());
            let expected = |address| addresses.iter().rposition(|&known| known == address);
            for address in addresses.iter().copied().chain([address(other)]) {
                prop_assert_eq!(index.get(address).map(|number| number as usize), expected(address));
            }
        }
    }
}
