// SPDX-License-Identifier: Apache-2.0
//! Redundancy: from the symbols of a block coded bytes are made, of which any so many stand for as many lost
//! symbols.
//!
//! One coded packet is the exclusive or of all symbols; more are a Reed-Solomon code over GF(2^16). Symbols have
//! their lengths before them and are filled up with zeros to the length of the longest one.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// Most symbols of a block, and most coded packets for it.
pub const BLOCK_MAX: usize = 64;

/// Bytes of a symbol's length before it.
const LEN_LEN: usize = 2;

/// Why a block cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("a block of {data} symbols and {redundancy} coded packets: from 1 to {BLOCK_MAX} of each")]
    Counts { data: usize, redundancy: usize },
    #[error("coded packets of {0} bytes: an even number, and not zero")]
    Size(usize),
    #[error("{have} of {data} packets of the block are there")]
    TooFew { have: usize, data: usize },
    #[error("a restored symbol has no length of its own: the peer coded something else")]
    Content,
}

/// Bytes of each coded packet of a block whose longest symbol has this length.
#[must_use]
pub fn coded_len(longest: usize) -> usize {
    (LEN_LEN + longest).next_multiple_of(2)
}

/// Makes and uses redundancy. Its memory is used again.
#[derive(Default)]
pub struct Codec {
    encoder: Option<ReedSolomonEncoder>,
    decoder: Option<ReedSolomonDecoder>,
    shard: Vec<u8>,
    parity: Vec<u8>,
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

/// A symbol with its length before it, filled up.
fn fill(shard: &mut Vec<u8>, symbol: &[u8], size: usize) {
    shard.clear();
    let len = u16::try_from(symbol.len()).unwrap_or(u16::MAX);
    shard.extend_from_slice(&len.to_be_bytes());
    shard.extend_from_slice(symbol);
    shard.resize(size, 0);
}

fn xor(into: &mut [u8], bytes: &[u8]) {
    into.iter_mut().zip(bytes).for_each(|(into, byte)| *into ^= byte);
}

/// The symbol of a restored shard.
fn symbol(shard: &[u8]) -> Result<&[u8], BlockError> {
    let (len, rest) = shard.split_first_chunk::<LEN_LEN>().ok_or(BlockError::Content)?;
    rest.get(..u16::from_be_bytes(*len).into()).ok_or(BlockError::Content)
}

fn check(data: usize, redundancy: usize, size: usize) -> Result<(), BlockError> {
    let is_count = |count: usize| (1..=BLOCK_MAX).contains(&count);
    if !is_count(data) || !is_count(redundancy) {
        return Err(BlockError::Counts { data, redundancy });
    }
    if size == 0 || !size.is_multiple_of(2) {
        return Err(BlockError::Size(size));
    }
    Ok(())
}

impl Codec {
    /// Hands out `redundancy` coded packets for these symbols, one after the other, with their index.
    ///
    /// # Errors
    /// [`BlockError::Counts`].
    pub fn encode<'a>(
        &mut self,
        symbols: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
        redundancy: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), BlockError> {
        let data = symbols.len();
        let size = coded_len(symbols.clone().map(<[u8]>::len).max().unwrap_or(0));
        check(data, redundancy, size)?;
        if redundancy == 1 {
            self.parity.clear();
            self.parity.resize(size, 0);
            for symbol in symbols {
                fill(&mut self.shard, symbol, size);
                xor(&mut self.parity, &self.shard);
            }
            take(0, &self.parity);
            return Ok(());
        }
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder.reset(data, redundancy, size).map(|()| encoder),
            none => ReedSolomonEncoder::new(data, redundancy, size).map(|encoder| none.insert(encoder)),
        };
        let encoder = encoder.map_err(|_| BlockError::Counts { data, redundancy })?;
        for symbol in symbols {
            fill(&mut self.shard, symbol, size);
            encoder.add_original_shard(&self.shard).map_err(|_| BlockError::Size(size))?;
        }
        let coded = encoder.encode().map_err(|_| BlockError::Counts { data, redundancy })?;
        coded.recovery_iter().enumerate().for_each(|(at, coded)| take(at, coded));
        Ok(())
    }

    /// Restores the missing symbols of a block, and hands them out with their index. `symbols`: those that are
    /// here, one for each of the block's `data`. `coded`: coded packets with their index.
    ///
    /// # Errors
    /// There are too few, or the peer coded something else. Symbols that were handed out before are whole.
    pub fn decode<'a>(
        &mut self,
        symbols: impl Iterator<Item = Option<&'a [u8]>> + Clone,
        data: usize,
        redundancy: usize,
        coded: impl Iterator<Item = (usize, &'a [u8])> + Clone,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), BlockError> {
        let size = coded.clone().next().map_or(0, |(_, coded)| coded.len());
        check(data, redundancy, size)?;
        let have = symbols.clone().flatten().count() + coded.clone().count();
        if have < data {
            return Err(BlockError::TooFew { have, data });
        }
        // Symbols longer than the coded packets, or coded packets of several lengths: not of this block.
        if symbols.clone().flatten().any(|symbol| coded_len(symbol.len()) > size)
            || coded.clone().any(|(at, coded)| coded.len() != size || at >= redundancy)
        {
            return Err(BlockError::Content);
        }
        if redundancy == 1 {
            let Some(missing) = symbols.clone().position(|symbol| symbol.is_none()) else { return Ok(()) };
            self.parity.clear();
            coded.clone().take(1).for_each(|(_, coded)| self.parity.extend_from_slice(coded));
            for symbol in symbols.flatten() {
                fill(&mut self.shard, symbol, size);
                xor(&mut self.parity, &self.shard);
            }
            take(missing, symbol(&self.parity)?);
            return Ok(());
        }
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder.reset(data, redundancy, size).map(|()| decoder),
            none => ReedSolomonDecoder::new(data, redundancy, size).map(|decoder| none.insert(decoder)),
        };
        let decoder = decoder.map_err(|_| BlockError::Counts { data, redundancy })?;
        for (at, symbol) in symbols.enumerate() {
            if let Some(symbol) = symbol {
                fill(&mut self.shard, symbol, size);
                decoder.add_original_shard(at, &self.shard).map_err(|_| BlockError::Content)?;
            }
        }
        for (at, coded) in coded {
            decoder.add_recovery_shard(at, coded).map_err(|_| BlockError::Content)?;
        }
        let restored = decoder.decode().map_err(|_| BlockError::TooFew { have, data })?;
        for (at, shard) in restored.restored_original_iter() {
            take(at, symbol(shard)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coded(codec: &mut Codec, symbols: &[Vec<u8>], redundancy: usize) -> Vec<Vec<u8>> {
        let mut coded = vec![Vec::new(); redundancy];
        codec.encode(symbols.iter().map(Vec::as_slice), redundancy, |at, bytes| coded[at] = bytes.to_vec()).unwrap();
        coded
    }

    proptest! {
        /// Any so many coded packets stand for as many lost symbols; fewer are refused.
        #[test]
        fn any_loss_up_to_the_redundancy_is_restored(
            symbols in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..24),
            redundancy in 1_usize..12,
            fates in prop::collection::vec(any::<bool>(), 36),
        ) {
            let mut codec = Codec::default();
            // The memory of another block is used again.
            coded(&mut codec, &[vec![1; 9], vec![2; 90]], 3);
            let all = coded(&mut codec, &symbols, redundancy);
            let here = symbols.iter().zip(&fates).map(|(symbol, here)| here.then_some(&symbol[..]));
            let left = all.iter().enumerate().zip(&fates[24..]).filter(|(_, here)| **here);
            let left = left.map(|((at, coded), _)| (at, &coded[..]));
            let missing = here.clone().filter(Option::is_none).count();
            let mut restored: Vec<Option<Vec<u8>>> = here.clone().map(|symbol| symbol.map(<[u8]>::to_vec)).collect();
            let count = left.clone().count();
            let outcome = codec.decode(here, symbols.len(), redundancy, left, |at, symbol| {
                assert!(restored[at].replace(symbol.to_vec()).is_none());
            });
            if count == 0 {
                prop_assert_eq!(outcome, Err(BlockError::Size(0)));
            } else if count < missing {
                let have = symbols.len() - missing + count;
                prop_assert_eq!(outcome, Err(BlockError::TooFew { have, data: symbols.len() }));
            } else {
                prop_assert_eq!(outcome, Ok(()));
                prop_assert!(restored.iter().map(Option::as_ref).eq(symbols.iter().map(Some)));
            }
        }

        /// A peer may send anything.
        #[test]
        fn odd_blocks_are_refused(
            symbols in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..9)), 0..70),
            redundancy in 0_usize..70,
            coded in prop::collection::vec((0_usize..70, prop::collection::vec(any::<u8>(), 0..9)), 0..5),
        ) {
            let here = symbols.iter().map(|symbol| symbol.as_deref());
            let coded = coded.iter().map(|(at, coded)| (*at, &coded[..]));
            let _ = Codec::default().decode(here, symbols.len(), redundancy, coded, |_, _| {});
        }
    }
}
