// SPDX-License-Identifier: Apache-2.0
//! Redundancy of a window that slides: a coded packet stands for any one of the last symbols, up to [`WINDOW_MAX`] of them.
//!
//! Each symbol is protected by all coded packets that leave while it is in the window, and the first one after a burst begins to make
//! good for it. In blocks the last symbol has the same protection as the first one, though it could wait as long: for a deadline
//! of 27 packets they cost up to half as much again, or lose several times as much.
//!
//! A coded packet is a sum of symbols, each times a factor of GF(2^8) that follows from its number and the packet's seed: a random linear
//! code (as RFC 8681). Symbols have their lengths before them and count as if zeros followed. The receiver takes what it
//! has out of each sum, and keeps the sums as rows of a matrix in reduced form: a row with one symbol left is that symbol.

use crate::pool::Pool;

/// Most symbols that a coded packet stands for.
pub const WINDOW_MAX: usize = 64;
/// Symbols from the oldest to the newest that rows may be of.
const SPAN: u64 = 2 * WINDOW_MAX as u64;
/// Most rows that are kept: more are of no use for a window.
const ROWS_MAX: usize = WINDOW_MAX;

/// Bytes of a symbol's length before it.
const LEN_LEN: usize = 2;
/// x^8 + x^4 + x^3 + x^2 + 1, but for x^8.
const POLYNOMIAL: u8 = 0x1d;

/// By which a symbol of this number is multiplied; never 0.
fn factor(number: u64, seed: u8) -> u8 {
    // Mixed so that the bits of both are in all of the result ("lowbias32").
    let mut mixed = crate::packet::low(number).wrapping_mul(0x9e37_79b1) ^ u32::from(seed).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x7feb_352d);
    mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    mixed ^= mixed >> 16;
    #[allow(clippy::cast_possible_truncation, reason = "at most 255")]
    let factor = (mixed % 255 + 1) as u8;
    factor
}

/// x times this.
fn doubled(byte: u8) -> u8 {
    (byte << 1) ^ (POLYNOMIAL & 0_u8.wrapping_sub(byte >> 7))
}

fn times(one: u8, other: u8) -> u8 {
    (0..8).rev().fold(0, |sum, bit| doubled(sum) ^ (one & 0_u8.wrapping_sub(other >> bit & 1)))
}

fn inverse(byte: u8) -> u8 {
    // byte^254.
    (0..7).fold((1, byte), |(product, power), _| (times(times(product, power), power), times(power, power))).0
}

fn xor(into: &mut [u8], bytes: &[u8]) {
    into.iter_mut().zip(bytes).for_each(|(into, byte)| *into ^= byte);
}

/// A byte times a factor, by a mask for each of that one's bits: without a branch, so that a loop over bytes is done for many at once.
fn masked(byte: u8, masks: &[u8; 8]) -> u8 {
    masks.iter().fold((0, byte), |(sum, power), mask| (sum ^ (power & mask), doubled(power))).0
}

fn masks(factor: u8) -> [u8; 8] {
    std::array::from_fn(|bit| 0_u8.wrapping_sub(factor >> bit & 1))
}

/// Adds a row's bytes, times a factor; `into` is no shorter.
fn add(into: &mut [u8], bytes: &[u8], factor: u8) {
    let masks = masks(factor);
    into.iter_mut().zip(bytes).for_each(|(into, byte)| *into ^= masked(*byte, &masks));
}

/// The sum of these symbols, each with its length before it and times its factor, is added to `sum`, which has room for all. The powers of
/// x are shared by all symbols.
fn add_symbols<'a>(sum: &mut [u8], scratch: &mut Vec<u8>, symbols: impl Iterator<Item = (u8, &'a [u8])> + Clone) {
    scratch.clear();
    scratch.resize(sum.len(), 0);
    for bit in (0..8).rev() {
        scratch.iter_mut().for_each(|byte| *byte = doubled(*byte));
        for (_, symbol) in symbols.clone().filter(|(factor, _)| factor >> bit & 1 == 1) {
            let len = u16::try_from(symbol.len()).unwrap_or(u16::MAX);
            xor(scratch, &len.to_be_bytes());
            xor(&mut scratch[LEN_LEN..], symbol);
        }
    }
    xor(sum, scratch);
}

/// Makes coded packets. Its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    scratch: Vec<u8>,
    seed: u8,
}

impl Encoder {
    /// The seed and the bytes of the next coded packet of these symbols, in `into`, which is empty.
    pub(crate) fn encode<'a>(
        &mut self,
        first: u64,
        symbols: impl Iterator<Item = &'a [u8]> + Clone,
        into: &mut Vec<u8>,
    ) -> u8 {
        self.seed = self.seed.wrapping_add(1);
        let seed = self.seed;
        let longest = symbols.clone().map(<[u8]>::len).max().unwrap_or(0);
        into.resize(LEN_LEN + longest, 0);
        let numbered = (first..).zip(symbols).map(|(number, symbol)| (factor(number, seed), symbol));
        add_symbols(into, &mut self.scratch, numbered);
        seed
    }
}

/// A sum of symbols that are not here.
#[derive(Debug)]
struct Row {
    /// The lowest number of those, whose factor is 1.
    pivot: u64,
    /// The factor of each, in the place of its number.
    factors: [u8; SPAN as usize],
    bytes: Vec<u8>,
}

fn place(number: u64) -> usize {
    usize::try_from(number % SPAN).unwrap_or(0)
}

/// Restores symbols.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    rows: Vec<Row>,
    /// One more than the newest symbol that a row may be of.
    end: u64,
    scratch: Vec<u8>,
}

impl Decoder {
    /// A coded packet has come. `here`: the symbol of a number, if it is here.
    pub(crate) fn coded<'a>(
        &mut self,
        (first, data, seed): (u64, u8, u8),
        bytes: &[u8],
        here: impl Fn(u64) -> Option<&'a [u8]>,
        pool: &mut Pool,
    ) {
        let numbers = first..first + u64::from(data);
        let known = numbers.clone().filter_map(|number| here(number).map(|symbol| (factor(number, seed), symbol)));
        let is_too_short = known.clone().any(|(_, symbol)| LEN_LEN + symbol.len() > bytes.len());
        if is_too_short || numbers.end + SPAN < self.end + u64::from(data) {
            // The peer coded something else, or it was overtaken by many.
            return;
        }
        self.end = self.end.max(numbers.end);
        let oldest = self.end.saturating_sub(SPAN);
        self.forget(pool, |row| row.pivot < oldest);
        let mut row = Row { pivot: first, factors: [0; SPAN as usize], bytes: pool.copy(bytes) };
        add_symbols(&mut row.bytes, &mut self.scratch, known);
        for number in numbers.filter(|number| here(*number).is_none()) {
            row.factors[place(number)] = factor(number, seed);
        }
        self.put(row, pool);
    }

    fn forget(&mut self, pool: &mut Pool, is_over: impl Fn(&Row) -> bool) {
        let mut at = 0;
        while at < self.rows.len() {
            if is_over(&self.rows[at]) {
                pool.give(self.rows.swap_remove(at).bytes);
            } else {
                at += 1;
            }
        }
    }

    /// Keeps the matrix in reduced form: no row has a factor where another one has its pivot.
    fn put(&mut self, mut row: Row, pool: &mut Pool) {
        for other in &self.rows {
            let factor = row.factors[place(other.pivot)];
            if factor != 0 {
                row.subtract(other, factor);
            }
        }
        let from = self.end.saturating_sub(SPAN);
        let pivot = (from..self.end).find(|number| row.factors[place(*number)] != 0);
        let Some(pivot) = pivot.filter(|_| self.rows.len() < ROWS_MAX) else {
            pool.give(row.bytes);
            return;
        };
        row.pivot = pivot;
        row.scale(inverse(row.factors[place(pivot)]));
        for other in &mut self.rows {
            let factor = other.factors[place(pivot)];
            if factor != 0 {
                other.subtract(&row, factor);
            }
        }
        self.rows.push(row);
    }

    /// This symbol is here, after all.
    pub(crate) fn came(&mut self, number: u64, symbol: &[u8], pool: &mut Pool) {
        if self.rows.is_empty() || number >= self.end || number < self.end.saturating_sub(SPAN) {
            return;
        }
        let mut loose = None;
        for at in 0..self.rows.len() {
            let row = &mut self.rows[at];
            let factor = std::mem::take(&mut row.factors[place(number)]);
            if factor == 0 {
                continue;
            }
            if row.bytes.len() < LEN_LEN + symbol.len() {
                row.bytes.resize(LEN_LEN + symbol.len(), 0);
            }
            add_symbols(&mut row.bytes, &mut self.scratch, std::iter::once((factor, symbol)));
            if row.pivot == number {
                loose = Some(at);
            }
        }
        if let Some(at) = loose {
            let row = self.rows.swap_remove(at);
            self.put(row, pool);
        }
    }

    /// A symbol that is known now, with its number: of a row of which nothing else is left. None if there is none.
    pub(crate) fn restored(&mut self, pool: &mut Pool) -> Option<(u64, Vec<u8>)> {
        loop {
            let is_alone = |row: &Row| row.factors.iter().filter(|factor| **factor != 0).count() == 1;
            let at = self.rows.iter().position(is_alone)?;
            let Row { pivot, mut bytes, .. } = self.rows.swap_remove(at);
            let len = bytes.first_chunk().map_or(usize::MAX, |len| u16::from_be_bytes(*len).into());
            if bytes.len() < LEN_LEN + len.min(usize::from(u16::MAX)) {
                // The peer coded something else.
                pool.give(bytes);
                continue;
            }
            bytes.truncate(LEN_LEN + len);
            bytes.drain(..LEN_LEN);
            return Some((pivot, bytes));
        }
    }

    /// Nobody awaits symbols below this one.
    pub(crate) fn is_awaited_from(&mut self, number: u64, pool: &mut Pool) {
        if self.end <= number {
            self.forget(pool, |_| true);
        }
    }
}

impl Row {
    fn subtract(&mut self, other: &Self, factor: u8) {
        if self.bytes.len() < other.bytes.len() {
            self.bytes.resize(other.bytes.len(), 0);
        }
        add(&mut self.bytes, &other.bytes, factor);
        add(&mut self.factors, &other.factors, factor);
    }

    fn scale(&mut self, factor: u8) {
        let masks = masks(factor);
        self.bytes.iter_mut().for_each(|byte| *byte = masked(*byte, &masks));
        self.factors.iter_mut().for_each(|factor| *factor = masked(*factor, &masks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_byte_has_an_inverse() {
        assert!((1..=255).all(|byte| times(byte, inverse(byte)) == 1));
        assert_eq!((times(2, 0x80), times(0, 7), times(1, 0xca)), (POLYNOMIAL, 0, 0xca));
        let mut sums = [0; 4];
        add(&mut sums, &[1, 2, 0x80, 0xff], 0x53);
        assert_eq!(sums, [1, 2, 0x80, 0xff].map(|byte| times(byte, 0x53)));
    }

    #[test]
    fn factors_differ() {
        let mut counts = [0; 256];
        for number in 0..256 {
            (0..=255).for_each(|seed| counts[usize::from(factor(number, seed))] += 1);
        }
        assert!(counts[0] == 0 && counts[1..].iter().all(|count| (150..370).contains(count)), "{counts:?}");
    }

    proptest! {
        /// Whatever is lost comes back once about as many coded packets have come.
        #[test]
        fn symbols_that_were_lost_are_restored(
            symbols in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 40..200),
            fates in prop::collection::vec(0..20_u8, 400),
            window in 8..=WINDOW_MAX,
            begin in prop_oneof![Just(0_u64), Just(u64::from(u32::MAX) - 50)],
        ) {
            let (mut encoder, mut decoder, mut pool) = (Encoder::default(), Decoder::default(), Pool::new(1 << 16));
            let mut here: Vec<Option<Vec<u8>>> = vec![None; symbols.len()];
            let number = |at: usize| begin + at as u64;
            let at_of = |number: u64| usize::try_from(number - begin).unwrap();
            let (mut missing, mut rows) = (0, 0);
            for at in 0..symbols.len() {
                if fates[at] < 18 {
                    here[at] = Some(symbols[at].clone());
                    decoder.came(number(at), &symbols[at], &mut pool);
                } else {
                    missing += 1;
                }
                if at % 2 == 1 {
                    let from = (at + 1).saturating_sub(window);
                    let mut coded = Vec::new();
                    let seed = encoder.encode(number(from), symbols[from..=at].iter().map(Vec::as_slice), &mut coded);
                    let data = u8::try_from(at + 1 - from).unwrap();
                    let is_here = |number: u64| here[at_of(number)].as_deref();
                    decoder.coded((number(from), data, seed), &coded, is_here, &mut pool);
                }
                while let Some((number, symbol)) = decoder.restored(&mut pool) {
                    prop_assert_eq!(&symbol, &symbols[at_of(number)]);
                    prop_assert!(here[at_of(number)].replace(symbol).is_none());
                    missing -= 1;
                }
                rows = rows.max(decoder.rows.len());
            }
            // One in ten is lost, and one coded for two.
            prop_assert!(rows <= ROWS_MAX && missing <= 8, "{missing} missing, {rows} rows");
        }

        /// A peer may send anything.
        #[test]
        fn odd_packets_change_nothing_that_is_here(
            packets in prop::collection::vec((0..300_u64, 1..=64_u8, any::<u8>(), prop::collection::vec(any::<u8>(), 0..9)), 0..150),
            came in prop::collection::vec((0..300_u64, prop::collection::vec(any::<u8>(), 0..9)), 0..150),
        ) {
            let (mut decoder, mut pool) = (Decoder::default(), Pool::new(1 << 16));
            let is_here = |number: u64| came.iter().find(|(at, _)| *at == number && *at % 3 == 0).map(|(_, symbol)| &symbol[..]);
            for ((first, data, seed, bytes), (number, symbol)) in packets.iter().zip(&came) {
                decoder.coded((*first, *data, *seed), bytes, is_here, &mut pool);
                decoder.came(*number, symbol, &mut pool);
                while decoder.restored(&mut pool).is_some() {}
                prop_assert!(decoder.rows.len() <= ROWS_MAX);
            }
        }
    }
}
