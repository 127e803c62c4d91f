//! The snapshot format: instruction codes, header, and reading and writing of their operands.
//!
//! A snapshot is a 24-byte header and a stream of instructions for a stack machine. Operands
//! are little-endian words, LEB128 counts and numbers, or counted bytes. Instructions marked (n) give the
//! object they make the next number.
//!
//! Header: magic, format version (`u16`), zero (`u16`), length of the stream (`u64`), count of
//! numbered objects (`u32`), CRC-32 of the stream followed by the header up to here (`u32`).

use crate::error::{DecodeError, Result};

pub const MAGIC: [u8; 4] = *b"PPSN";
pub const VERSION: u16 = 2;
pub const HEADER_LEN: usize = 24;
const CHECKED_HEADER_LEN: usize = 20;

/// Instruction codes. Codes from [`op::SMALL_INT`] on push the integer `code - SMALL_INT`.
pub mod op {
    /// End of the stream.
    pub const END: u8 = 0x00;
    pub const NONE: u8 = 0x01;
    pub const TRUE: u8 = 0x02;
    pub const FALSE: u8 = 0x03;
    /// 8 bytes: a signed integer.
    pub const INT: u8 = 0x04;
    /// 4 bytes: a signed integer.
    pub const INT_32: u8 = 0x0e;
    /// 2 bytes: a signed integer.
    pub const INT_16: u8 = 0x0f;
    /// Counted bytes: two's complement, little endian.
    pub const BIG_INT: u8 = 0x05;
    /// 8 bytes.
    pub const FLOAT: u8 = 0x06;
    /// Count, then 8 bytes each: pushes so many floats.
    pub const FLOATS: u8 = 0x07;
    /// (n) Counted UTF-8.
    pub const STR: u8 = 0x08;
    /// (n) Counted UTF-8 with encoded lone surrogates.
    pub const STR_SURROGATES: u8 = 0x09;
    /// (n) Counted bytes.
    pub const BYTES: u8 = 0x0a;
    /// (n) Counted bytes.
    pub const BYTEARRAY: u8 = 0x0b;
    /// Number of an object met before.
    pub const REF: u8 = 0x0c;
    /// Index of an external object.
    pub const EXTERNAL: u8 = 0x0d;

    /// (n) An empty list.
    pub const LIST: u8 = 0x10;
    /// Count: pops so many items and appends them to the object below.
    pub const APPEND: u8 = 0x11;
    /// (n) Count: pops so many numbers or `None`s and makes a list of them.
    pub const ATOM_LIST: u8 = 0x12;
    /// (n) An empty dict.
    pub const DICT: u8 = 0x13;
    /// Count: pops so many key-value pairs and sets them in the object below.
    pub const SET_ITEMS: u8 = 0x14;
    /// As `SET_ITEMS` on a dict, and again at the end: hashes of keys may change until then.
    pub const SET_ITEMS_LATE: u8 = 0x15;
    /// (n) An empty set.
    pub const SET: u8 = 0x16;
    /// Count: pops so many elements and adds them to the set below.
    pub const ADD: u8 = 0x17;
    /// As `ADD`, and again at the end.
    pub const ADD_LATE: u8 = 0x18;
    pub const EMPTY_TUPLE: u8 = 0x19;
    /// (n) Count: pops so many items.
    pub const TUPLE: u8 = 0x1a;
    /// (n) Count: pops so many elements.
    pub const FROZENSET: u8 = 0x1b;

    /// Count, then counted UTF-8 each: pops a class and gives it and these attribute names
    /// the next shape number.
    pub const SHAPE: u8 = 0x20;
    /// (n) A shape number: an instance of its class without attributes.
    pub const NEW: u8 = 0x21;
    /// (n) As `NEW`, with the shape of the latest one.
    pub const NEW_AGAIN: u8 = 0x26;
    /// As `FILL`, with the shape of the latest `NEW`.
    pub const FILL_NEW: u8 = 0x27;
    /// A shape number: pops a value per name and sets them on the object below.
    pub const FILL: u8 = 0x22;
    /// Count: pops so many name-value pairs and sets them in the `__dict__` of the object below.
    pub const ATTRIBUTES: u8 = 0x23;
    /// (n) Gauss flag (one byte, then a float if it is 1), word index (`u32`), 624 words:
    /// a `random.Random`.
    pub const RANDOM: u8 = 0x24;

    /// (n) Counted bytes: a pickle.
    pub const PICKLED: u8 = 0x30;
    /// (n) Pops arguments and a callable, and pushes the result of the call.
    pub const REDUCE: u8 = 0x31;
    /// Pops a state and gives it to the object below.
    pub const BUILD: u8 = 0x32;
    /// Pops a state and a state setter and calls the setter with the object below.
    pub const STATE_SETTER: u8 = 0x33;
    /// Count: pops so many objects and forgets them.
    pub const POP: u8 = 0x34;
    /// The codes from here to `LAST_MEDIUM_REF` do what `REF` does with the number
    /// `65536 * (code - MEDIUM_REF) + word`, with the two-byte word that follows.
    pub const MEDIUM_REF: u8 = 0x28;
    pub const LAST_MEDIUM_REF: u8 = 0x2f;

    /// Pops the next root.
    pub const ROOT: u8 = 0x35;

    /// The codes from here to `LAST_SHORT_EXTERNAL` do what `EXTERNAL` does with an index from 0 on.
    pub const SHORT_EXTERNAL: u8 = 0x38;
    pub const LAST_SHORT_EXTERNAL: u8 = 0x3f;

    // The following occur in frames of a source only, see [`crate::wire::Preface`].

    /// The preface of a frame.
    pub const FRAME: u8 = 0x40;
    /// Difference (LEB128, signs folded in) between the number of an object that the following
    /// instructions change and the one of the object before it that was changed; pushes it.
    pub const UPDATE: u8 = 0x41;
    /// Start, length and count: pops so many items and puts them in the place of that stretch of
    /// the list below.
    pub const SPLICE: u8 = 0x42;
    /// Empties the list, dict or set on top, or takes the attributes from the instance.
    pub const CLEAR: u8 = 0x43;
    /// Count: pops so many keys, elements or attribute names and deletes them from the object
    /// below.
    pub const DELETE: u8 = 0x44;
    /// Count: pops so many name-value pairs and sets them as attributes of the object below.
    pub const SET_ATTRIBUTES: u8 = 0x45;
    /// Counted bytes: the new contents of the `bytearray` on top.
    pub const SET_BYTES: u8 = 0x46;
    /// Changes of generators, see [`crate::random_states::put_change`].
    pub const RANDOM_STATES: u8 = 0x47;
    /// (n) Number: a new list with the items that the list of that number has.
    pub const CLONE_LIST: u8 = 0x48;
    /// Count, then numbers that are free from the next frame on, ascending: LEB128 of each less the
    /// one before.
    pub const FREE: u8 = 0x49;
    /// Pops the parts that the object on top has now: a tuple of its slots, attributes, items and
    /// factory.
    pub const ASSEMBLE: u8 = 0x4a;
    /// Counted bytes: changed bytes of the array on top, each stretch with its start and length.
    pub const PATCH_ARRAY: u8 = 0x4b;
    /// 8 bytes: a float that later instructions refer to.
    pub const NEW_FLOAT: u8 = 0x4e;
    /// How many of the floats that can be referred to have come after this one: that float again.
    pub const FLOAT_AGAIN: u8 = 0x4f;
    /// Pops an object, the one that `UPDATE` has pushed.
    pub const UPDATED: u8 = 0x4d;
    /// Pops the state that the generator of NumPy on top has now.
    pub const SET_STATE: u8 = 0x4c;

    /// (n) The codes from here to `LAST_SHORT_TUPLE` do what `TUPLE` does with counts from 1 on.
    pub const SHORT_TUPLE: u8 = 0x50;
    pub const LAST_SHORT_TUPLE: u8 = 0x57;
    /// Count, then places of so many items of the list on top, which are taken note of: LEB128 of
    /// the difference (signs folded in) to the place that follows the one before.
    pub const LIFT: u8 = 0x59;
    /// Count: pushes so many of the items that have been taken note of, each once, in their order.
    pub const LIFTED: u8 = 0x5a;
    /// Distance and count: so many of them, the next ones, take the places of as many items of the
    /// list below, which begin so far behind those of the `REPLACE_LIFTED` before.
    pub const REPLACE_LIFTED: u8 = 0x5b;
    /// Pops a name and a value and sets that attribute of the object below.
    pub const SET_ATTRIBUTE: u8 = 0x5c;
    /// `SET_ATTRIBUTE` and `UPDATED`.
    pub const UPDATED_ATTRIBUTE: u8 = 0x5f;
    /// Pushes the name that was set last by `SET_ATTRIBUTE`.
    pub const LAST_NAME: u8 = 0x5d;
    /// Pops a key and a value and sets that item of the dict below.
    pub const SET_ITEM: u8 = 0x5e;
    /// `SET_ITEM` and `UPDATED`.
    pub const UPDATED_ITEM: u8 = 0x36;
    /// As `ASSEMBLE`, and again at the end: hashes of keys may change until then.
    pub const ASSEMBLE_LATE: u8 = 0x37;
    /// Gives all objects of a keyframe other numbers. How many shapes are forgotten, which were
    /// defined first; runs of objects, in the order in which they have been numbered: length, and
    /// the number of the first one plus 1, or 0 if they are to have none; an empty run; count of
    /// the numbers that are free, and these.
    pub const RENUMBER: u8 = 0x58;
    /// The codes from here to before [`SMALL_INT`] push the integer
    /// `MEDIUM_INT_MIN + 256 * (code - MEDIUM_INT) + byte`, with the byte that follows.
    pub const MEDIUM_INT: u8 = 0x60;
    pub const MEDIUM_INT_MIN: i64 = SMALL_INT_MAX + 1;
    pub const MEDIUM_INT_MAX: i64 = MEDIUM_INT_MIN + 256 * (SMALL_INT - MEDIUM_INT) as i64 - 1;
    pub const SMALL_INT: u8 = 0x80;
    /// Largest integer that an instruction code holds.
    pub const SMALL_INT_MAX: i64 = 0x7f;
}

/// The fields of a header that vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub stream_len: u64,
    pub objects: u32,
    pub checksum: u32,
}

impl Header {
    /// Header for a stream whose CRC-32 so far is `stream_hasher`.
    pub fn new(stream_len: u64, objects: u32, stream_hasher: crc32fast::Hasher) -> Self {
        let mut header = Header {
            stream_len,
            objects,
            checksum: 0,
        };
        header.checksum = header.checksum_with(stream_hasher);
        header
    }

    fn checksum_with(&self, mut hasher: crc32fast::Hasher) -> u32 {
        hasher.update(&self.to_bytes()[..CHECKED_HEADER_LEN]);
        hasher.finalize()
    }

    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.stream_len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.objects.to_le_bytes());
        bytes[20..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }
}

/// What a frame of a source begins with: whose it is and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    /// Tells sources apart.
    pub source: u64,
    /// Frames of one source are numbered from 0 on.
    pub sequence: u64,
    /// Everything, not only what has changed since the frame before.
    pub is_keyframe: bool,
}

impl Preface {
    pub fn put(self, out: &mut impl Write) {
        out.put_byte(op::FRAME);
        out.put_bytes(&self.source.to_le_bytes());
        out.put_bytes(&self.sequence.to_le_bytes());
        out.put_byte(u8::from(self.is_keyframe));
    }

    /// Reads what [`Preface::put`] wrote.
    pub fn read(reader: &mut Reader) -> Result<Self> {
        let malformed = |at| DecodeError::Malformed {
            what: "a snapshot that is no frame of a source",
            at,
        };
        if reader.byte()? != op::FRAME {
            return Err(malformed(HEADER_LEN));
        }
        Ok(Preface {
            source: u64::from_le_bytes(reader.array()?),
            sequence: u64::from_le_bytes(reader.array()?),
            is_keyframe: match reader.byte()? {
                0 => false,
                1 => true,
                _ => return Err(malformed(HEADER_LEN)),
            },
        })
    }
}

/// Checks header, length and checksum; returns the header and the instructions.
///
/// Bytes after the stream are ignored, so a snapshot may lie in a larger buffer.
pub fn open(data: &[u8]) -> Result<(Header, &[u8])> {
    if !data.starts_with(&MAGIC) {
        return Err(DecodeError::Magic);
    }
    let mut reader = Reader::new(data);
    reader.bytes(MAGIC.len() as u64)?;
    let found = u16::from_le_bytes(reader.array()?);
    if found != VERSION {
        return Err(DecodeError::Version {
            found,
            expected: VERSION,
        });
    }
    let reserved = u16::from_le_bytes(reader.array()?);
    let header = Header {
        stream_len: u64::from_le_bytes(reader.array()?),
        objects: u32::from_le_bytes(reader.array()?),
        checksum: u32::from_le_bytes(reader.array()?),
    };
    let stream = reader.bytes(header.stream_len)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(stream);
    if reserved != 0 || header.checksum_with(hasher) != header.checksum {
        return Err(DecodeError::Checksum);
    }
    Ok((header, stream))
}

/// A code and an operand of at most 8 bytes, assembled to be written in one go.
#[derive(Clone, Copy)]
pub struct Short {
    word: u128,
    len: usize,
}

impl Short {
    /// Bytes that [`Short::bytes`] gives, of which [`Short::used`] count.
    pub const SIZE: usize = 16;

    #[inline]
    pub fn code(code: u8) -> Self {
        Short {
            word: u128::from(code),
            len: 1,
        }
    }

    #[inline]
    pub fn with_u8(code: u8, operand: u8) -> Self {
        Short {
            word: u128::from(code) | u128::from(operand) << 8,
            len: 2,
        }
    }

    #[inline]
    pub fn with_u16(code: u8, operand: u16) -> Self {
        Short {
            word: u128::from(code) | u128::from(operand) << 8,
            len: 3,
        }
    }

    /// The operand in LEB128.
    #[inline]
    pub fn with_varint(code: u8, operand: u32) -> Self {
        let mut rest = operand;
        let mut word = u64::from(code);
        let mut len = 1;
        while rest >= 0x80 {
            word |= u64::from(rest & 0x7f | 0x80) << (8 * len);
            rest >>= 7;
            len += 1;
        }
        word |= u64::from(rest) << (8 * len);
        Short {
            word: u128::from(word),
            len: len + 1,
        }
    }

    #[inline]
    pub fn with_u32(code: u8, operand: u32) -> Self {
        Short {
            word: u128::from(code) | u128::from(operand) << 8,
            len: 5,
        }
    }

    #[inline]
    pub fn with_u64(code: u8, operand: u64) -> Self {
        Short {
            word: u128::from(code) | u128::from(operand) << 8,
            len: 9,
        }
    }

    #[inline]
    pub fn bytes(self) -> [u8; Self::SIZE] {
        self.word.to_le_bytes()
    }

    #[inline]
    pub fn used(self) -> usize {
        self.len
    }
}

/// Appends codes and operands to a byte buffer.
pub trait Write {
    fn put_bytes(&mut self, bytes: &[u8]);

    #[inline]
    fn put_byte(&mut self, byte: u8) {
        self.put_bytes(&[byte]);
    }

    #[inline]
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put_byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.put_byte(value as u8);
    }

    /// LEB128 of a number with a sign, which goes into the lowest bit.
    fn put_signed(&mut self, value: i64) {
        self.put_varint((value << 1 ^ value >> 63).cast_unsigned());
    }

    /// Length and bytes.
    #[inline]
    fn put_counted(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.put_bytes(bytes);
    }
}

impl Write for Vec<u8> {
    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads operands, never past the end.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0 }
    }

    /// Offset of the next byte.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    #[inline]
    pub fn bytes(&mut self, len: u64) -> Result<&'a [u8]> {
        let left = self.remaining();
        if len > left as u64 {
            return Err(DecodeError::Truncated {
                at: self.at,
                needed: len,
                left,
            });
        }
        let start = self.at;
        self.at += len as usize;
        Ok(&self.data[start..self.at])
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N as u64)?);
        Ok(array)
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A number of an object, external or shape.
    #[inline]
    pub fn number(&mut self) -> Result<u32> {
        let at = self.at;
        u32::try_from(self.varint()?).map_err(|_| DecodeError::Malformed {
            what: "a number of more than 32 bits",
            at,
        })
    }

    /// Reads what `put_signed` wrote.
    pub fn signed(&mut self) -> Result<i64> {
        let folded = self.varint()?;
        Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        let start = self.at;
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || (shift == 63 && bits > 1) {
                return Err(DecodeError::Varint { at: start });
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    #[inline]
    pub fn counted(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        self.bytes(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn snapshot(stream: &[u8], objects: u32) -> Vec<u8> {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(stream);
        let mut data = Header::new(stream.len() as u64, objects, hasher)
            .to_bytes()
            .to_vec();
        data.extend_from_slice(stream);
        data
    }

    #[test]
    fn opens_what_it_wrote_and_ignores_what_follows() {
        let mut data = snapshot(b"abc", 7);
        data.extend_from_slice(b"tail");
        let (header, stream) = open(&data).unwrap();
        assert_eq!(stream, b"abc");
        assert_eq!(header.objects, 7);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_an_error() {
        let data = snapshot(b"some instructions", 3);
        for bit in 0..data.len() * 8 {
            let mut damaged = data.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..data.len() {
            assert!(open(&data[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn names_what_is_wrong() {
        assert_eq!(open(b"pickle"), Err(DecodeError::Magic));
        let mut other = snapshot(b"", 0);
        other[4] = 9;
        assert_eq!(
            open(&other),
            Err(DecodeError::Version {
                found: 9,
                expected: VERSION
            })
        );
        assert_eq!(
            Reader::new(&[0xff; 11]).varint(),
            Err(DecodeError::Varint { at: 0 })
        );
        assert_eq!(
            Reader::new(&[5, 1, 2]).counted(),
            Err(DecodeError::Truncated {
                at: 1,
                needed: 5,
                left: 2
            })
        );
    }

    proptest! {
        #[test]
        fn operands_survive(number in any::<u64>(), signed in any::<i64>(), bytes in any::<Vec<u8>>()) {
            let mut out = Vec::new();
            out.put_varint(number);
            let short = Short::with_u64(7, signed as u64);
            out.put_bytes(&short.bytes()[..short.used()]);
            out.put_counted(&bytes);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint().unwrap(), number);
            prop_assert_eq!(reader.byte().unwrap(), 7);
            prop_assert_eq!(i64::from_le_bytes(reader.array().unwrap()), signed);
            prop_assert_eq!(reader.counted().unwrap(), &bytes[..]);
            prop_assert_eq!(reader.remaining(), 0);
        }

        #[test]
        fn numbers_survive(number in any::<u32>()) {
            let short = Short::with_varint(7, number);
            let bytes = short.bytes();
            let mut reader = Reader::new(&bytes[..short.used()]);
            prop_assert_eq!(reader.byte().unwrap(), 7);
            prop_assert_eq!(reader.number().unwrap(), number);
            prop_assert_eq!(reader.remaining(), 0);
        }

        #[test]
        fn prefaces_survive(source in any::<u64>(), sequence in any::<u64>(), is_keyframe in any::<bool>()) {
            let preface = Preface { source, sequence, is_keyframe };
            let mut out = Vec::new();
            preface.put(&mut out);
            prop_assert_eq!(Preface::read(&mut Reader::new(&out)), Ok(preface));
            for len in 0..out.len() {
                prop_assert!(Preface::read(&mut Reader::new(&out[..len])).is_err());
            }
        }

        #[test]
        fn numbers_with_a_sign_survive(number in any::<i64>()) {
            let mut out = Vec::new();
            out.put_signed(number);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.signed(), Ok(number));
            prop_assert_eq!(reader.remaining(), 0);
            for len in 0..out.len() {
                prop_assert!(Reader::new(&out[..len]).signed().is_err());
            }
        }

        #[test]
        fn short_operands_are_what_was_written_at_length(
            code in any::<u8>(),
            byte in any::<u8>(),
            two in any::<u16>(),
            four in any::<u32>(),
            eight in any::<u64>(),
        ) {
            let mut varint = vec![code];
            varint.put_varint(u64::from(four));
            let expected = [
                (Short::code(code), vec![code]),
                (Short::with_u8(code, byte), vec![code, byte]),
                (Short::with_u16(code, two), [&[code], &two.to_le_bytes()[..]].concat()),
                (Short::with_u32(code, four), [&[code], &four.to_le_bytes()[..]].concat()),
                (Short::with_u64(code, eight), [&[code], &eight.to_le_bytes()[..]].concat()),
                (Short::with_varint(code, four), varint),
            ];
            for (short, bytes) in expected {
                prop_assert_eq!(&short.bytes()[..short.used()], &bytes[..]);
            }
        }

        /// A reader stays inside of its bytes, and what it cannot read costs nothing.
        #[test]
        fn a_reader_never_leaves_its_bytes(
            data in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(0xff), Just(0x80), Just(0x01)], 0..60),
            reads in prop::collection::vec(0u8..9, 1..20),
            len in any::<u64>(),
        ) {
            let mut reader = Reader::new(&data);
            for read in reads {
                let before = reader.position();
                match read {
                    0 => drop(reader.bytes(len)),
                    1 => drop(reader.bytes(len % 70)),
                    2 => drop(reader.array::<8>()),
                    3 => drop(reader.byte()),
                    4 => drop(reader.number()),
                    5 => drop(reader.signed()),
                    6 => drop(reader.varint()),
                    7 => drop(reader.counted()),
                    _ => drop(Preface::read(&mut reader)),
                }
                prop_assert!(reader.position() >= before);
                prop_assert_eq!(reader.position() + reader.remaining(), data.len());
            }
        }

        /// Whatever a header with a valid checksum says, no more is read than there is.
        #[test]
        fn headers_are_not_believed(
            stream in prop::collection::vec(any::<u8>(), 0..40),
            objects in any::<u32>(),
            claimed in prop_oneof![any::<u64>(), 0u64..50],
            rest in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&stream);
            let header = Header::new(claimed, objects, hasher);
            let mut data = header.to_bytes().to_vec();
            data.extend_from_slice(&stream);
            data.extend_from_slice(&rest);
            match open(&data) {
                Ok((found, opened)) => {
                    prop_assert_eq!(found, header);
                    prop_assert_eq!(opened.len() as u64, claimed);
                    prop_assert_eq!(opened, &data[HEADER_LEN..HEADER_LEN + claimed as usize]);
                }
                Err(error) => {
                    prop_assert!(claimed != stream.len() as u64);
                    let is_expected =
                        matches!(error, DecodeError::Checksum | DecodeError::Truncated { .. });
                    prop_assert!(is_expected);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(data in any::<Vec<u8>>()) {
            let _ = open(&data);
            let mut reader = Reader::new(&data);
            while reader.counted().is_ok() && reader.array::<4>().is_ok() {}
        }
    }
}
