//! Floats that have been written before.

use rustc_hash::FxHashMap;

/// The floats of one frame: prices, for instance, are in orders and again in logs.
#[derive(Default)]
pub struct KnownFloats {
    /// Places in the order of writing, by bits.
    places: FxHashMap<u64, u32>,
}

impl KnownFloats {
    /// How many other floats came after this one, or `None` if it has come for the first time.
    #[inline]
    pub fn look_up(&mut self, bits: u64) -> Option<u32> {
        let count = self.places.len() as u32;
        match self.places.entry(bits) {
            std::collections::hash_map::Entry::Occupied(place) => Some(count - 1 - place.get()),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(count);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As a reader that keeps every new float finds it.
        #[test]
        fn readers_find_the_same_floats(floats in prop::collection::vec(0u64..12, 0..60)) {
            let mut known = KnownFloats::default();
            let mut kept = Vec::new();
            for bits in floats {
                match known.look_up(bits) {
                    None => {
                        prop_assert!(!kept.contains(&bits));
                        kept.push(bits);
                    }
                    Some(back) => prop_assert_eq!(kept[kept.len() - 1 - back as usize], bits),
                }
            }
        }
    }

    #[test]
    fn says_how_far_back_a_float_is() {
        let mut known = KnownFloats::default();
        assert_eq!(known.look_up(7), None);
        assert_eq!(known.look_up(8), None);
        assert_eq!(known.look_up(8), Some(0));
        assert_eq!(known.look_up(7), Some(1));
        assert_eq!(known.look_up(0f64.to_bits()), None);
        assert_eq!(known.look_up((-0f64).to_bits()), None);
    }
}
