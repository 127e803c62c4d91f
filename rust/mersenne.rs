//! The Mersenne Twister's step from one block of 624 words to the next.
//!
//! Source: M. Matsumoto and T. Nishimura, "Mersenne Twister: A 623-dimensionally
//! equidistributed uniform pseudo-random number generator", ACM TOMACS 8 (1998), 3-30.
//! CPython's `random.Random` draws 624 times from a block, then twists it.

/// Words of a state.
pub const WORDS: usize = 624;
/// Bytes of a state's words.
pub const STATE_LEN: usize = WORDS * 4;

const SHIFT: usize = 397;
const MATRIX: u32 = 0x9908_b0df;
const UPPER: u32 = 0x8000_0000;
const LOWER: u32 = 0x7fff_ffff;

pub type Words = [u32; WORDS];

/// Replaces the words by those of the next block.
pub fn twist(words: &mut Words) {
    let mix = |high: u32, low: u32, far: u32| {
        let joined = (high & UPPER) | (low & LOWER);
        far ^ (joined >> 1) ^ (if joined & 1 == 1 { MATRIX } else { 0 })
    };
    for i in 0..WORDS - SHIFT {
        words[i] = mix(words[i], words[i + 1], words[i + SHIFT]);
    }
    for i in WORDS - SHIFT..WORDS - 1 {
        words[i] = mix(words[i], words[i + 1], words[i + SHIFT - WORDS]);
    }
    words[WORDS - 1] = mix(words[WORDS - 1], words[0], words[SHIFT - 1]);
}

/// Words in the order and byte order in which snapshots hold them.
pub fn from_bytes(bytes: &[u8; STATE_LEN]) -> Words {
    let mut words = [0; WORDS];
    for (word, four) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    }
    words
}

/// Inverse of [`from_bytes`].
pub fn to_bytes(words: &Words) -> [u8; STATE_LEN] {
    let mut bytes = [0; STATE_LEN];
    for (word, four) in words.iter().zip(bytes.chunks_exact_mut(4)) {
        four.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference implementation's `init_genrand`.
    fn seeded(seed: u32) -> Words {
        let mut words = [0; WORDS];
        words[0] = seed;
        for i in 1..WORDS {
            let previous = words[i - 1];
            words[i] = 1_812_433_253u32
                .wrapping_mul(previous ^ (previous >> 30))
                .wrapping_add(i as u32);
        }
        words
    }

    fn temper(mut y: u32) -> u32 {
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    #[test]
    fn gives_the_published_outputs() {
        // First outputs of the reference implementation for seed 5489, and its 10000th.
        let mut words = seeded(5489);
        twist(&mut words);
        let first: Vec<u32> = words[..3].iter().map(|&w| temper(w)).collect();
        assert_eq!(first, [3_499_211_612, 581_869_302, 3_890_346_734]);
        for _ in 0..(10_000 - 1) / WORDS {
            twist(&mut words);
        }
        assert_eq!(temper(words[(10_000 - 1) % WORDS]), 4_123_659_995);
    }

    proptest! {
        /// Also words that no seeding gives: frames can have any.
        #[test]
        fn any_words_can_be_twisted(
            pattern in prop::collection::vec(any::<u8>(), 1..40),
            twists in 1usize..4,
        ) {
            let bytes = std::array::from_fn(|at| pattern[at % pattern.len()]);
            let mut words = from_bytes(&bytes);
            prop_assert_eq!(to_bytes(&words), bytes);
            for _ in 0..twists {
                twist(&mut words);
            }
            prop_assert_eq!(from_bytes(&to_bytes(&words)), words);
        }
    }

    #[test]
    fn bytes_round_trip() {
        let words = seeded(1);
        assert_eq!(from_bytes(&to_bytes(&words)), words);
    }
}
