// SPDX-License-Identifier: Apache-2.0
//! Messages over chunks: what is longer than a chunk's data is cut into pieces, one chunk each, all in one packet.
//!
//! The first byte of a piece is `last << 7 | number`, numbers count from 0. The pieces of a message stand
//! next to each other, so that a damaged chunk costs the message that it is of, and no other.

use crate::PAYLOAD_MAX;
use crate::chunk::{CHUNK_HEADER_LEN, ChunkBuildError, ChunkBuilder, ChunkError, ChunkPacket, Scheme};

/// Set in the first byte of a message's last piece.
const LAST: u8 = 0x80;

/// Bytes of a message that one chunk carries.
#[must_use]
pub const fn piece_max(scheme: Scheme) -> usize {
    scheme.data_max() - 1
}

/// Chunks that a message of `len` bytes takes; an empty one takes one.
#[must_use]
pub const fn pieces(scheme: Scheme, len: usize) -> usize {
    if len == 0 { 1 } else { len.div_ceil(piece_max(scheme)) }
}

/// Bytes of a packet that carries `messages` of `len` bytes each; `None` if no packet does.
#[must_use]
pub fn packet_len(scheme: Scheme, messages: usize, len: usize) -> Option<usize> {
    let chunks = pieces(scheme, len).checked_mul(messages)?;
    (chunks <= scheme.chunks_max()).then(|| scheme.packet_len(chunks))
}

/// The scheme whose packet for such messages is the shorter one, and its length; `None` if neither has room for them.
#[must_use]
pub fn best_scheme(messages: usize, len: usize) -> Option<(Scheme, usize)> {
    let fits = Scheme::ALL.into_iter().filter_map(|scheme| Some((scheme, packet_len(scheme, messages, len)?)));
    fits.min_by_key(|(_, bytes)| *bytes)
}

/// Chunks that fit into a packet of at most `packet_max` bytes.
#[must_use]
pub fn chunks_in(scheme: Scheme, packet_max: usize) -> usize {
    (packet_max.min(PAYLOAD_MAX).saturating_sub(CHUNK_HEADER_LEN) / scheme.chunk_len()).min(scheme.chunks_max())
}

/// Adds a message, whole or not at all.
///
/// # Errors
/// [`ChunkBuildError::Full`] if its pieces do not fit into this packet any more, [`ChunkBuildError::Service`]
/// for service 0.
pub fn push(
    builder: &mut ChunkBuilder<'_>,
    scheme: Scheme,
    service: u8,
    message: &[u8],
) -> Result<(), ChunkBuildError> {
    let count = pieces(scheme, message.len());
    if count > builder.remaining() {
        return Err(ChunkBuildError::Full { max: scheme.chunks_max() });
    }
    let mut piece = [0; 64];
    let mut rest = message;
    for number in 0..count {
        let (now, later) = rest.split_at(rest.len().min(piece_max(scheme)));
        rest = later;
        piece[0] = u8::try_from(number).expect("at most 55") | if number + 1 == count { LAST } else { 0 };
        piece[1..=now.len()].copy_from_slice(now);
        builder.push(service, &piece[..=now.len()])?;
    }
    Ok(())
}

/// A message that has come whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// 1..=255.
    pub service: u8,
    /// A bit for each place of the packet that it stood in.
    pub places: u64,
    /// As they were sent.
    pub bytes: &'a [u8],
}

/// What of a packet did not come to anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damage {
    /// Chunks whose checksum does not fit.
    pub damaged: usize,
    /// Chunks that are whole but none of ours, and pieces whose others are not there.
    pub stray: usize,
}

/// Puts the messages of a packet together, in their order. Each is given to `take`; a message that lacks a
/// piece is not.
pub fn read<T: AsRef<[u8]>>(packet: &ChunkPacket<T>, mut take: impl FnMut(Message<'_>)) -> Damage {
    let max = piece_max(packet.scheme());
    let mut whole = [0; PAYLOAD_MAX];
    let mut damage = Damage::default();
    // The message being put together: its service, the number of the next piece, its length so far, its places.
    let mut open: Option<(u8, u8, usize, u64)> = None;
    for (place, read) in packet.places().enumerate() {
        let chunk = match read {
            Ok(Some(chunk)) if !chunk.bytes.is_empty() => chunk,
            Ok(None) => {
                damage.stray += usize::from(open.take().is_some());
                continue;
            }
            Err(ChunkError::Damaged { .. }) => {
                damage.damaged += 1;
                damage.stray += usize::from(open.take().is_some());
                continue;
            }
            Ok(Some(_)) | Err(ChunkError::Malformed { .. }) => {
                damage.stray += 1 + usize::from(open.take().is_some());
                continue;
            }
        };
        let (number, last, bytes) = (chunk.bytes[0] & !LAST, chunk.bytes[0] & LAST != 0, &chunk.bytes[1..]);
        let (len, places) = match (number, open.take()) {
            (0, former) => {
                damage.stray += usize::from(former.is_some());
                (0, 0)
            }
            (_, Some((service, next, len, places))) if service == chunk.service && next == number => (len, places),
            (_, former) => {
                damage.stray += 1 + usize::from(former.is_some());
                continue;
            }
        };
        // Only the last piece may be short: what is said in the middle has its place.
        if !last && bytes.len() != max {
            damage.stray += 1;
            continue;
        }
        whole[len..len + bytes.len()].copy_from_slice(bytes);
        let (len, places) = (len + bytes.len(), places | 1 << place);
        if last {
            take(Message { service: chunk.service, places, bytes: &whole[..len] });
        } else {
            open = Some((chunk.service, number + 1, len, places));
        }
    }
    damage.stray += usize::from(open.is_some());
    damage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::chunk::seal;
    use proptest::prelude::*;

    fn packet(scheme: Scheme, messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut buffer = [0; PAYLOAD_MAX];
        let mut builder = ChunkBuilder::new(&mut buffer, scheme, 3, 7, 11).unwrap();
        for (service, bytes) in messages {
            push(&mut builder, scheme, *service, bytes).unwrap();
        }
        let len = builder.finish();
        seal(&mut buffer[..len], 0, &Key([9; 16]));
        buffer[..len].to_vec()
    }

    fn read_all(packet: &[u8]) -> (Vec<(u8, Vec<u8>)>, Damage) {
        let mut out = Vec::new();
        let packet = ChunkPacket::new(packet).unwrap();
        let damage = read(&packet, |message| out.push((message.service, message.bytes.to_vec())));
        (out, damage)
    }

    fn messages() -> impl Strategy<Value = (Scheme, Vec<(u8, Vec<u8>)>)> {
        let message = (1u8..=255, prop::collection::vec(any::<u8>(), 0..200));
        (prop::sample::select(&Scheme::ALL[..]), prop::collection::vec(message, 0..20)).prop_map(|(scheme, all)| {
            let mut room = scheme.chunks_max();
            let fits = all.into_iter().take_while(|(_, bytes)| {
                let need = pieces(scheme, bytes.len());
                let fits = need <= room;
                room = room.saturating_sub(need);
                fits
            });
            (scheme, fits.collect())
        })
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives_in_its_order((scheme, sent) in messages()) {
            let (read, damage) = read_all(&packet(scheme, &sent));
            prop_assert_eq!(read, sent);
            prop_assert_eq!(damage, Damage::default());
        }

        #[test]
        fn a_damaged_chunk_costs_its_own_message_only((scheme, sent) in messages(), place: prop::sample::Index, bit: prop::sample::Index) {
            let mut bytes = packet(scheme, &sent);
            let chunks = (bytes.len() - CHUNK_HEADER_LEN) / scheme.chunk_len();
            prop_assume!(chunks > 0);
            let place = place.index(chunks);
            let bit = bit.index(scheme.chunk_len() * 8);
            bytes[scheme.packet_len(place) + bit / 8] ^= 1 << (bit % 8);
            let mut left = place;
            let hit = sent.iter().position(|(_, bytes)| {
                let need = pieces(scheme, bytes.len());
                let here = left < need;
                left = left.wrapping_sub(need);
                here
            });
            let mut expected = sent.clone();
            expected.remove(hit.unwrap());
            let (read, damage) = read_all(&bytes);
            prop_assert_eq!(read, expected);
            prop_assert_eq!(damage.damaged, 1);
        }

        #[test]
        fn any_pieces_are_read_or_counted(scheme in prop::sample::select(&Scheme::ALL[..]), pieces in prop::collection::vec((1u8..3, 0u8..4, any::<bool>(), 0usize..30), 0..40)) {
            let mut buffer = [0; PAYLOAD_MAX];
            let mut builder = ChunkBuilder::new(&mut buffer, scheme, 3, 7, 11).unwrap();
            for (service, number, last, len) in pieces {
                let mut piece = vec![number | if last { LAST } else { 0 }];
                piece.resize(1 + len.min(piece_max(scheme)), 5);
                builder.push(service, &piece).unwrap();
            }
            let len = builder.finish();
            seal(&mut buffer[..len], 0, &Key([9; 16]));
            let _ = read_all(&buffer[..len]);
        }
    }

    #[test]
    fn the_shorter_scheme_is_taken_and_what_fits_no_packet_is_said() {
        assert_eq!(best_scheme(1, 19), Some((Scheme::Chunks26, 58)));
        assert_eq!(best_scheme(1, 29), Some((Scheme::Chunks36, 68)));
        assert_eq!(best_scheme(1, 1160), Some((Scheme::Chunks36, PAYLOAD_MAX)));
        assert_eq!(best_scheme(1, 1161), None);
        assert_eq!(best_scheme(55, 0), Some((Scheme::Chunks26, 1462)));
        assert_eq!(best_scheme(56, 0), None);
        assert_eq!(best_scheme(usize::MAX, 40), None);
        assert_eq!(chunks_in(Scheme::Chunks26, 57), 0);
        assert_eq!(chunks_in(Scheme::Chunks26, usize::MAX), 55);
    }
}
