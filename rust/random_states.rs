//! States of pseudo random number generators, packed relative to a snapshot that both sides have.
//!
//! Per state: a tag, then for [`FULL`] the words, then the index (LEB128) and the pending
//! Gauss value (a flag byte, then 8 bytes if it is 1). A tag up to [`MAX_TWISTS`] says that the
//! words are those of the snapshot after so many twists: most agents draw a few numbers per
//! step, and agents created together twist in the same step.

use crate::error::{DecodeError, Result};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use twox_hash::xxhash3_128::DEFAULT_SECRET_LENGTH as SECRET_LEN;
use twox_hash::XxHash3_128;

use crate::mersenne::{self, STATE_LEN, WORDS};
use crate::wire::{Reader, Write};

/// Twists that packing tries before it writes the words out.
pub const MAX_TWISTS: u8 = 4;
const FULL: u8 = 0xfe;
const ABSENT: u8 = 0xff;

/// A generator's state apart from its words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// Words already drawn from the block, 0 to 624.
    pub index: u32,
    pub gauss_next: Option<f64>,
}

impl Position {
    /// Whether both are the same, the pending Gauss value to the bit.
    pub fn is(self, other: Position) -> bool {
        self.index == other.index && self.has_gauss_of(other)
    }

    /// Whether both have the same pending Gauss value, to the bit.
    pub fn has_gauss_of(self, other: Position) -> bool {
        let bits = |at: Position| at.gauss_next.map(f64::to_bits);
        bits(self) == bits(other)
    }
}

/// Bytes of the first four words.
pub const HEAD: usize = 16;

fn head(words: &[u8; STATE_LEN]) -> [u8; HEAD] {
    *words
        .first_chunk()
        .expect("a state is longer than its head")
}

/// Hashes words with a key of this process, so that nobody can make up words with the same digest.
fn digest(words: &[u8; STATE_LEN]) -> u128 {
    static SECRET: OnceLock<[u8; SECRET_LEN]> = OnceLock::new();
    let secret = SECRET.get_or_init(|| {
        let mut secret = [0; SECRET_LEN];
        for part in secret.chunks_mut(8) {
            // The keys of a hasher are random, and differ from one to the next.
            let random = RandomState::new().build_hasher().finish().to_le_bytes();
            part.copy_from_slice(&random[..part.len()]);
        }
        secret
    });
    XxHash3_128::oneshot_with_secret(secret, words).expect("the secret is long enough")
}

/// Words that later ones are compared with.
///
/// A simulation has thousands of generators with 2.5 kB of words each, more than the caches hold,
/// and words hardly ever change. So they are compared by a digest, and the old ones are only
/// touched if it differs.
pub struct KnownWords {
    digest: u128,
    head: [u8; HEAD],
    words: Box<[u8; STATE_LEN]>,
}

impl KnownWords {
    pub fn new(words: &[u8; STATE_LEN]) -> Self {
        KnownWords {
            digest: digest(words),
            head: head(words),
            words: Box::new(*words),
        }
    }

    pub fn are(&self, words: &[u8; STATE_LEN]) -> bool {
        digest(words) == self.digest
    }

    pub fn replace(&mut self, words: &[u8; STATE_LEN]) {
        self.digest = digest(words);
        self.head = head(words);
        *self.words = *words;
    }

    pub fn bytes(&self) -> &[u8; STATE_LEN] {
        &self.words
    }

    pub fn head(&self) -> &[u8; HEAD] {
        &self.head
    }
}

/// What packed words are relative to.
#[derive(Clone, Copy)]
pub enum Base<'a> {
    Bytes(&'a [u8; STATE_LEN]),
    Known(&'a KnownWords),
}

impl<'a> Base<'a> {
    pub fn bytes(self) -> &'a [u8; STATE_LEN] {
        match self {
            Base::Bytes(words) => words,
            Base::Known(known) => known.bytes(),
        }
    }

    pub fn are(self, words: &[u8; STATE_LEN]) -> bool {
        match self {
            Base::Bytes(base) => base == words,
            Base::Known(known) => known.are(words),
        }
    }
}

/// Where the words of one packed state come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The snapshot's words after so many twists.
    Twists(u8),
    /// Written out at this offset of the packed bytes.
    Packed(usize),
}

/// Appends the mark of a generator whose state travels otherwise.
pub fn put_absent(out: &mut Vec<u8>) {
    out.push(ABSENT);
}

/// Appends one state; `base` are its words in the snapshot, if it has any there.
pub fn put_state(out: &mut Vec<u8>, base: Option<Base<'_>>, words: &[u8; STATE_LEN], at: Position) {
    match base.and_then(|base| twists_between(base, words)) {
        Some(twists) => out.push(twists),
        None => {
            out.push(FULL);
            out.extend_from_slice(words);
        }
    }
    out.put_varint(u64::from(at.index));
    put_gauss(out, at.gauss_next);
}

/// Appends a pending Gauss value.
pub fn put_gauss(out: &mut impl Write, gauss_next: Option<f64>) {
    match gauss_next {
        None => out.put_byte(0),
        Some(value) => {
            out.put_byte(1);
            out.put_bytes(&value.to_le_bytes());
        }
    }
}

/// Reads what [`put_gauss`] wrote.
pub fn read_gauss(reader: &mut Reader) -> Result<Option<f64>> {
    let at = reader.position();
    match reader.byte()? {
        0 => Ok(None),
        1 => Ok(Some(f64::from_le_bytes(reader.array()?))),
        _ => Err(DecodeError::Malformed {
            what: "neither a Gauss value nor its absence",
            at,
        }),
    }
}

/// Checks a word index read from bytes.
pub fn checked_index(index: u64, at: usize) -> Result<u32> {
    match u32::try_from(index) {
        Ok(index) if index as usize <= WORDS => Ok(index),
        _ => Err(DecodeError::Malformed {
            what: "a word index above 624",
            at,
        }),
    }
}

fn twists_between(base: Base<'_>, words: &[u8; STATE_LEN]) -> Option<u8> {
    if base.are(words) {
        return Some(0);
    }
    let target = mersenne::from_bytes(words);
    let mut twisted = mersenne::from_bytes(base.bytes());
    (1..=MAX_TWISTS).find(|_| {
        mersenne::twist(&mut twisted);
        twisted == target
    })
}

/// The words of a state whose words in the snapshot are `base`.
pub fn twisted(base: &[u8; STATE_LEN], twists: u8) -> [u8; STATE_LEN] {
    if twists == 0 {
        return *base;
    }
    let mut words = mersenne::from_bytes(base);
    for _ in 0..twists {
        mersenne::twist(&mut words);
    }
    mersenne::to_bytes(&words)
}

/// Parses packed states; `None` stands for an absent one.
pub fn parse(packed: &[u8]) -> Result<Vec<Option<(Origin, Position)>>> {
    let mut reader = Reader::new(packed);
    let mut states = Vec::new();
    while reader.remaining() > 0 {
        let at = reader.position();
        let source = match reader.byte()? {
            ABSENT => {
                states.push(None);
                continue;
            }
            FULL => {
                let start = reader.position();
                reader.bytes(STATE_LEN as u64)?;
                Origin::Packed(start)
            }
            twists if twists <= MAX_TWISTS => Origin::Twists(twists),
            _ => {
                return Err(DecodeError::Malformed {
                    what: "an unknown kind of generator state",
                    at,
                })
            }
        };
        let position = Position {
            index: checked_index(reader.varint()?, at)?,
            gauss_next: read_gauss(&mut reader)?,
        };
        states.push(Some((source, position)));
    }
    Ok(states)
}

/// Bits of the first number of a change below the step of the word index: where the words come
/// from, whether the pending Gauss value is the old one or none, and otherwise whether there is
/// a new one.
const CHANGE_SOURCE_BITS: u64 = 2;
const CHANGE_GAUSS: u64 = 1 << CHANGE_SOURCE_BITS;
const CHANGE_SAME_GAUSS: u64 = 1 << (CHANGE_SOURCE_BITS + 1);
const CHANGE_STEP_SHIFT: u64 = CHANGE_SOURCE_BITS + 2;
/// Steps of the index are counted modulo this, so that they are never negative.
const CHANGE_STEPS: u32 = 1024;
/// In place of a count of twists: a byte with the count follows, or 0 if the words are written
/// out.
const CHANGE_MORE: u64 = 3;

/// Appends the new state of a generator for somebody who has its old one; returns whether the
/// words are the old ones.
///
/// One number holds the step of the word index, flags for the pending Gauss value and the count
/// of twists that lead from the old words to the new ones; a new Gauss value (8 bytes) and, if so
/// many twists are not enough, the words follow.
pub fn put_change(
    out: &mut impl Write,
    base: Base<'_>,
    old: Position,
    words: &[u8; STATE_LEN],
    at: Position,
) -> bool {
    let twists = twists_between(base, words);
    let source = twists.map_or(CHANGE_MORE, |twists| u64::from(twists).min(CHANGE_MORE));
    let (gauss, new_value) = match at.gauss_next {
        _ if at.has_gauss_of(old) => (CHANGE_SAME_GAUSS, None),
        None => (0, None),
        value => (CHANGE_GAUSS, value),
    };
    let step = at.index.wrapping_sub(old.index) % CHANGE_STEPS;
    out.put_varint(u64::from(step) << CHANGE_STEP_SHIFT | gauss | source);
    if let Some(value) = new_value {
        out.put_bytes(&value.to_le_bytes());
    }
    if source == CHANGE_MORE {
        out.put_byte(twists.unwrap_or(0));
        if twists.is_none() {
            out.put_bytes(words);
        }
    }
    twists == Some(0)
}

/// New words of a generator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NewWords<'a> {
    /// The old ones after so many twists.
    Twists(u8),
    Full(&'a [u8; STATE_LEN]),
}

/// New state of a generator, for somebody who has its old one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change<'a> {
    pub words: NewWords<'a>,
    /// `None` if the pending Gauss value is the old one.
    pub gauss_next: Option<Option<f64>>,
    step: u32,
}

impl Change<'_> {
    /// The new word index; `None` if no generator with the old one can have this change.
    pub fn index_after(&self, old_index: u32) -> Option<u32> {
        let index = old_index.wrapping_add(self.step) % CHANGE_STEPS;
        (index as usize <= WORDS).then_some(index)
    }
}

/// Reads what [`put_change`] wrote.
pub fn read_change<'a>(reader: &mut Reader<'a>) -> Result<Change<'a>> {
    let at = reader.position();
    let number = reader.varint()?;
    let step = u32::try_from(number >> CHANGE_STEP_SHIFT).ok();
    let step = step.filter(|step| *step < CHANGE_STEPS);
    let step = step.ok_or(DecodeError::Malformed {
        what: "a step of a word index above 1023",
        at,
    })?;
    let gauss_next = match number & (CHANGE_GAUSS | CHANGE_SAME_GAUSS) {
        0 => Some(None),
        CHANGE_GAUSS => Some(Some(f64::from_le_bytes(reader.array()?))),
        CHANGE_SAME_GAUSS => None,
        _ => {
            return Err(DecodeError::Malformed {
                what: "a Gauss value that is both new and old",
                at,
            })
        }
    };
    let few = (number & CHANGE_MORE) as u8;
    let twists = if u64::from(few) == CHANGE_MORE {
        let at = reader.position();
        match reader.byte()? {
            0 => None,
            twists if twists <= MAX_TWISTS => Some(twists),
            _ => {
                return Err(DecodeError::Malformed {
                    what: "too many twists",
                    at,
                })
            }
        }
    } else {
        Some(few)
    };
    let words = match twists {
        None => {
            let left = reader.remaining();
            let words = reader.bytes(STATE_LEN as u64)?;
            NewWords::Full(words.first_chunk().ok_or(DecodeError::Truncated {
                at,
                needed: STATE_LEN as u64,
                left,
            })?)
        }
        Some(twists) => NewWords::Twists(twists),
    };
    Ok(Change {
        words,
        gauss_next,
        step,
    })
}

/// Changes of one generator after the other, by ascending numbers.
///
/// Agents that were created alike lie at equal distances, and most of them have drawn equally
/// often, so an entry says how often it occurs: twice the distance from the number before, plus 1
/// if a count follows the change of how often it is repeated.
#[derive(Default)]
pub struct Changes {
    count: u64,
    last_number: u32,
    /// Complete entries.
    bytes: Vec<u8>,
    distance: u32,
    change: Vec<u8>,
    repeats: u64,
}

impl Changes {
    /// Adds a change, which `put` writes.
    pub fn add<T>(&mut self, number: u32, put: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let distance = number - self.last_number;
        self.last_number = number;
        let mut change = Vec::new();
        let result = put(&mut change);
        if self.count > 0 && distance == self.distance && change == self.change {
            self.repeats += 1;
        } else {
            self.complete();
            (self.distance, self.change) = (distance, change);
        }
        self.count += 1;
        result
    }

    fn complete(&mut self) {
        if self.count > 0 {
            let is_repeated = self.repeats > 0;
            self.bytes
                .put_varint(u64::from(self.distance) << 1 | u64::from(is_repeated));
            self.bytes.extend_from_slice(&self.change);
            if is_repeated {
                self.bytes.put_varint(self.repeats);
            }
            self.repeats = 0;
        }
    }

    /// Count of the changes, and all of them as bytes.
    pub fn finish(mut self) -> (u64, Vec<u8>) {
        self.complete();
        (self.count, self.bytes)
    }
}

/// Reads an entry of [`Changes`]: distance from the number before, change, and how many generators
/// in a row have both.
pub fn read_repeated_change<'a>(reader: &mut Reader<'a>) -> Result<(u64, Change<'a>, u64)> {
    let head = reader.varint()?;
    let change = read_change(reader)?;
    let repeats = if head & 1 == 1 { reader.varint()? } else { 0 };
    Ok((head >> 1, change, repeats.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(seed: u8) -> [u8; STATE_LEN] {
        std::array::from_fn(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
    }

    type State = ([u8; STATE_LEN], Position);

    fn unpack(base: &[u8; STATE_LEN], packed: &[u8]) -> Vec<Option<State>> {
        let words = |source| match source {
            Origin::Twists(twists) => twisted(base, twists),
            Origin::Packed(at) => packed[at..at + STATE_LEN].try_into().unwrap(),
        };
        parse(packed)
            .unwrap()
            .into_iter()
            .map(|entry| entry.map(|(source, position)| (words(source), position)))
            .collect()
    }

    #[test]
    fn unchanged_words_take_a_few_bytes() {
        let base = state(1);
        let mut out = Vec::new();
        let position = Position {
            index: 624,
            gauss_next: None,
        };
        put_state(&mut out, Some(Base::Bytes(&base)), &base, position);
        assert_eq!(out.len(), 4);
    }

    proptest! {
        #[test]
        fn changes_survive(
            twists in 0u8..6,
            old_index in 0u32..=624,
            index in 0u32..=624,
            old_gauss in prop::option::of(any::<f64>()),
            new_gauss in prop::option::of(any::<f64>()),
            is_same in any::<bool>(),
        ) {
            let known = KnownWords::new(&state(3));
            let words = twisted(known.bytes(), twists);
            let old = Position { index: old_index, gauss_next: old_gauss };
            let gauss_next = if is_same { old_gauss } else { new_gauss };
            let position = Position { index, gauss_next };
            let mut out = Vec::new();
            let is_old = put_change(&mut out, Base::Known(&known), old, &words, position);
            prop_assert_eq!(is_old, twists == 0);
            let mut reader = Reader::new(&out);
            let change = read_change(&mut reader).unwrap();
            prop_assert_eq!(reader.remaining(), 0);
            let found = match change.words {
                NewWords::Twists(twists) => twisted(known.bytes(), twists),
                NewWords::Full(words) => *words,
            };
            prop_assert_eq!(found, words);
            prop_assert_eq!(change.index_after(old_index), Some(index));
            let found = change.gauss_next.unwrap_or(old_gauss);
            prop_assert_eq!(found.map(f64::to_bits), gauss_next.map(f64::to_bits));
            for len in 0..out.len() {
                prop_assert!(read_change(&mut Reader::new(&out[..len])).is_err());
            }
        }

        #[test]
        fn any_other_word_is_noticed(at in 0..STATE_LEN, bit in 0u32..8) {
            let known = KnownWords::new(&state(5));
            let mut words = state(5);
            prop_assert!(known.are(&words));
            words[at] ^= 1u8 << bit;
            prop_assert!(!known.are(&words));
        }
    }

    proptest! {
        #[test]
        fn entries_survive(
            steps in prop::collection::vec((1u32..4, 0u32..3, 0u8..2), 0..60),
        ) {
            let known = KnownWords::new(&state(3));
            let old = Position { index: 10, gauss_next: None };
            let mut changes = Changes::default();
            let (mut number, mut expected) = (0, Vec::new());
            for (distance, step, twists) in steps {
                number += distance;
                let new = Position { index: 10 + step, gauss_next: None };
                let words = twisted(known.bytes(), twists);
                changes.add(number, |out| {
                    put_change(out, Base::Known(&known), old, &words, new)
                });
                expected.push((number, 10 + step, twists));
            }
            let (count, bytes) = changes.finish();
            prop_assert_eq!(count as usize, expected.len());
            let (mut reader, mut number, mut found) = (Reader::new(&bytes), 0, Vec::new());
            while reader.remaining() > 0 {
                let (distance, change, count) = read_repeated_change(&mut reader).unwrap();
                for _ in 0..count {
                    number += distance as u32;
                    let NewWords::Twists(twists) = change.words else { panic!() };
                    found.push((number, change.index_after(10).unwrap(), twists));
                }
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_few_draws_take_one_byte() {
        let old = Position {
            index: 300,
            gauss_next: None,
        };
        let new = Position {
            index: 307,
            gauss_next: None,
        };
        let known = KnownWords::new(&state(1));
        let mut out = Vec::new();
        put_change(&mut out, Base::Known(&known), old, &state(1), new);
        assert_eq!(out.len(), 1);
    }

    #[test]
    fn an_index_above_624_is_refused() {
        let old = Position {
            index: 0,
            gauss_next: None,
        };
        let new = Position {
            index: 624,
            gauss_next: None,
        };
        let known = KnownWords::new(&state(1));
        let mut out = Vec::new();
        put_change(&mut out, Base::Known(&known), old, &state(1), new);
        let change = read_change(&mut Reader::new(&out)).unwrap();
        assert_eq!(change.index_after(0), Some(624));
        assert_eq!(change.index_after(1), None);
    }

    proptest! {
        #[test]
        fn states_survive(
            twists in prop::collection::vec(0u8..8, 0..6),
            index in 0u32..=624,
            gauss in prop::option::of(any::<f64>()),
        ) {
            let base = state(3);
            let gauss = gauss.filter(|value| !value.is_nan());
            let position = Position { index, gauss_next: gauss };
            let mut out = Vec::new();
            for &n in &twists {
                put_absent(&mut out);
                put_state(&mut out, Some(Base::Bytes(&base)), &twisted(&base, n), position);
            }
            let got = unpack(&base, &out);
            prop_assert_eq!(got.len(), 2 * twists.len());
            for (pair, &n) in got.chunks(2).zip(&twists) {
                prop_assert!(pair[0].is_none());
                prop_assert_eq!(pair[1].unwrap(), (twisted(&base, n), position));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(data in any::<Vec<u8>>()) {
            let _ = parse(&data);
        }

        /// States that are read have words and an index that generators can have.
        #[test]
        fn damaged_states_are_refused_or_harmless(
            twists in prop::collection::vec(0u8..8, 1..5),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
            is_cut in any::<bool>(),
        ) {
            let base = state(3);
            let mut packed = Vec::new();
            for &n in &twists {
                let position = Position { index: 600 + u32::from(n), gauss_next: Some(0.5) };
                put_state(&mut packed, Some(Base::Bytes(&base)), &twisted(&base, n), position);
            }
            for (at, byte) in damage {
                let at = at.index(packed.len());
                packed[at] = byte;
            }
            if is_cut {
                packed.truncate(cut.index(packed.len()));
            }
            for (origin, position) in parse(&packed).unwrap_or_default().into_iter().flatten() {
                prop_assert!(position.index as usize <= WORDS);
                match origin {
                    Origin::Twists(twists) => prop_assert!(twists <= MAX_TWISTS),
                    Origin::Packed(start) => prop_assert!(start + STATE_LEN <= packed.len()),
                }
            }
        }

        /// The same for changes: none of them takes more bytes than there are, or leads to an
        /// index that no generator has.
        #[test]
        fn damaged_changes_are_refused_or_harmless(
            steps in prop::collection::vec((1u32..4, 0u32..3, 0u8..7), 1..20),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            extra in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let known = KnownWords::new(&state(3));
            let old = Position { index: 10, gauss_next: None };
            let mut changes = Changes::default();
            let mut number = 0;
            for (distance, step, twists) in steps {
                number += distance;
                let new = Position { index: 10 + step, gauss_next: Some(1.5) };
                let words = twisted(known.bytes(), twists);
                changes.add(number, |out| {
                    put_change(out, Base::Known(&known), old, &words, new)
                });
            }
            let (_, mut bytes) = changes.finish();
            bytes.extend(extra);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let mut reader = Reader::new(&bytes);
            while reader.remaining() > 0 {
                let before = reader.position();
                let Ok((_, change, count)) = read_repeated_change(&mut reader) else { break };
                prop_assert!(reader.position() > before);
                prop_assert!(count > 0);
                for old_index in [0, 10, 624, 625, 1023, u32::MAX] {
                    let index = change.index_after(old_index);
                    prop_assert!(index.is_none_or(|index| index as usize <= WORDS));
                }
                if let NewWords::Twists(twists) = change.words {
                    prop_assert!(twists <= MAX_TWISTS);
                }
            }
        }
    }
}
