//! Splitting a batch of agents into chunks of consecutive agents.

/// Bounds of at most `chunks` non-empty chunks whose sizes differ by at most one, longer first.
///
/// `chunks` must not be zero.
pub fn chunk_bounds(items: usize, chunks: usize) -> Vec<(usize, usize)> {
    let chunks = chunks.min(items);
    let Some(size) = items.checked_div(chunks) else {
        return Vec::new();
    };
    let longer = items % chunks;
    let mut start = 0;
    (0..chunks)
        .map(|index| {
            let stop = start + size + usize::from(index < longer);
            (std::mem::replace(&mut start, stop), stop)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn longer_chunks_come_first() {
        assert_eq!(chunk_bounds(10, 3), [(0, 4), (4, 7), (7, 10)]);
        assert_eq!(chunk_bounds(2, 3), [(0, 1), (1, 2)]);
        assert_eq!(chunk_bounds(0, 3), []);
    }

    #[test]
    fn the_largest_numbers_do_no_harm() {
        assert_eq!(chunk_bounds(3, usize::MAX), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(chunk_bounds(usize::MAX, 1), [(0, usize::MAX)]);
        let half = usize::MAX / 2;
        assert_eq!(
            chunk_bounds(usize::MAX, 2),
            [(0, half + 1), (half + 1, usize::MAX)]
        );
    }

    proptest! {
        #[test]
        fn covers_all_items_evenly(items in 0usize..2000, chunks in 1usize..70) {
            let bounds = chunk_bounds(items, chunks);
            prop_assert_eq!(bounds.len(), chunks.min(items));
            let mut next = 0;
            let mut sizes = Vec::new();
            for (start, stop) in bounds {
                prop_assert_eq!(start, next);
                prop_assert!(stop > start);
                sizes.push(stop - start);
                next = stop;
            }
            prop_assert_eq!(next, items);
            prop_assert!(sizes.windows(2).all(|pair| pair[0] == pair[1] || pair[0] == pair[1] + 1));
            prop_assert!(sizes.first().unwrap_or(&0) - sizes.last().unwrap_or(&0) <= 1);
        }
    }
}
