//! Which stretches of a sequence have changed.
//!
//! Histories grow at their end, heaps change in a few places, queues lose items in the middle. A
//! greedy comparison finds all of these in one pass; what it returns always leads from the old
//! sequence to the new one, though not always by the shortest way.

use std::ops::Range;

/// How many items ahead the two sequences are searched for where they go on alike.
const WINDOW: usize = 32;

/// Items `inserted` of the new sequence take the place of `removed` items at `start`.
///
/// `start` counts in the sequence as it is when all earlier edits are done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub start: usize,
    pub removed: usize,
    pub inserted: Range<usize>,
}

/// Edits that make a sequence of `new_len` items of one of `old_len`, in order.
///
/// `same` says whether the old item at the first index is the new one at the second.
pub fn edits(old_len: usize, new_len: usize, same: impl Fn(usize, usize) -> bool) -> Vec<Edit> {
    let equal = |i: usize, j: usize| i < old_len && j < new_len && same(i, j);
    let mut edits = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old_len || j < new_len {
        if equal(i, j) {
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let (from, start) = (i, j);
        loop {
            if i >= old_len || j >= new_len {
                (i, j) = (old_len, new_len);
                break;
            }
            // The first two are known to differ; each round makes progress, whatever `same` says.
            if (i, j) != (from, start) && equal(i, j) {
                break;
            }
            if !equal(i + 1, j + 1) {
                let shifted = (1..=WINDOW).find_map(|by| {
                    if equal(i + by, j) {
                        Some((i + by, j))
                    } else if equal(i, j + by) {
                        Some((i, j + by))
                    } else {
                        None
                    }
                });
                if let Some(found) = shifted {
                    (i, j) = found;
                    break;
                }
            }
            (i, j) = (i + 1, j + 1);
        }
        edits.push(Edit {
            start,
            removed: i - from,
            inserted: start..j,
        });
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(old: &[u8], new: &[u8]) -> (Vec<u8>, Vec<Edit>) {
        let found = edits(old.len(), new.len(), |i, j| old[i] == new[j]);
        let mut result = old.to_vec();
        for edit in &found {
            result.splice(
                edit.start..edit.start + edit.removed,
                new[edit.inserted.clone()].iter().copied(),
            );
        }
        (result, found)
    }

    #[test]
    fn nothing_changed_gives_no_edits() {
        assert!(apply(b"abc", b"abc").1.is_empty());
    }

    #[test]
    fn usual_changes_give_short_edits() {
        let inserted = |old: &[u8], new: &[u8]| -> usize {
            apply(old, new)
                .1
                .iter()
                .map(|edit| edit.inserted.len())
                .sum()
        };
        assert_eq!(inserted(b"abcdef", b"abcdefgh"), 2); // a history grows
        assert_eq!(inserted(b"abcdef", b"aXcdYf"), 2); // a heap changes in places
        assert_eq!(inserted(b"abcdefgh", b"acdfgh"), 0); // a queue loses items
        assert_eq!(inserted(b"abcd", b"Xabcd"), 1);
    }

    proptest! {
        /// Also if nobody could have such sequences.
        #[test]
        fn edits_stay_within_the_sequences(
            old_len in 0usize..60,
            new_len in 0usize..60,
            answers in prop::collection::vec(any::<bool>(), 1..200),
        ) {
            let asked = std::cell::Cell::new(0);
            let found = edits(old_len, new_len, |i, j| {
                assert!(i < old_len && j < new_len);
                asked.set(asked.get() + 1);
                answers[asked.get() % answers.len()]
            });
            let mut len = old_len;
            for edit in found {
                prop_assert!(edit.start + edit.removed <= len);
                prop_assert!(edit.inserted.start <= edit.inserted.end);
                prop_assert!(edit.inserted.end <= new_len);
                len = len - edit.removed + edit.inserted.len();
            }
            prop_assert_eq!(len, new_len);
        }

        #[test]
        fn edits_lead_to_the_new_sequence(
            old in prop::collection::vec(0u8..6, 0..80),
            new in prop::collection::vec(0u8..6, 0..80),
        ) {
            prop_assert_eq!(apply(&old, &new).0, new);
        }
    }
}
