// SPDX-License-Identifier: Apache-2.0
//! Chunks: the data of several services in one packet, each with a checksum of its own (X-Lane §2.4, §4.1).
//!
//! A flipped bit then costs the chunk that it is in, not the packet. Written by [`ChunkBuilder`], sealed by
//! [`seal`], read through [`ChunkPacket`]. Two schemes fill an MTU of 1500: 55 chunks of 26 bytes, 40 of 36,
//! checksum included.
//!
//! The first 28 bytes are a heartbeat's, so that tag, plane and sequence number are where they always are.
//! Little-endian:
//!
//! ```text
//!  0 u16 magic 0xF1DE      8 u64 seq
//!  2 u8  version<<4|3     16 u64 tag, as in every packet
//!  3 u8  plane            24 u32 incarnation of the sending agent
//!  4 u16 sender           28 u32 CRC-32C of bytes 0..16 and 24..28
//!  6 u8  scheme           32 count x chunk; nothing follows the last one
//!  7 u8  count
//!
//! chunk of SIZE bytes (scheme 1: 26, scheme 2: 36)
//!  0 u8  service, 0: an empty place
//!  1 u8  len
//!  2 len bytes, then zeros up to SIZE - 4
//!  SIZE-4 u32 checksum, over 17 bytes that are not sent and the chunk's first SIZE - 4:
//!         u8 version<<4|3, u8 scheme, u16 sender, u32 incarnation, u64 seq, u8 index of the chunk
//! ```
//!
//! The bytes that are not sent tie a chunk to its place. A chunk that stands in another place of its packet,
//! or an old packet's that has not been overwritten (its seq the same but for the low 32 bits), never fits;
//! one of another scheme or sender fits with odds of 2^-32. A `seq` must not be used twice within an
//! incarnation, and [`crate::set_seq`] is not for these packets.
//!
//! All checksums are reflected (first bit on an Ethernet wire = highest power of x), so that any burst of up
//! to 32 bits is seen. Which polynomial, why, and what odds remain: `docs/internals/chunks.md`; `tests/odds`
//! computes them.
//!
//! **A checksum is not a tag.** A packet whose tag fits ([`crate::verify`]) is whole and from a host of the
//! cluster. In one whose tag does not fit, the chunks whose checksums fit are *undamaged*, but anybody may
//! have written them. Whether those are used is the receiver's decision; on a network that others can send
//! to, it must be no.

use crate::section::{le16, le32, le64};
use crate::{Key, MAGIC, MAX_HOSTS, MAX_PLANES, PAYLOAD_MAX, PLANE_OFFSET, VERSION};
use crc::{Algorithm, CRC_32_ISCSI, Crc, Digest, Table};

/// Lower half of byte 2 of a chunk packet. (1 and 2 are [`crate::Kind`]s of [`crate::Packet`], which refuses this one.)
pub const CHUNKS: u8 = 3;
/// Bytes before the first chunk.
pub const CHUNK_HEADER_LEN: usize = 32;
/// Service number of an empty place.
pub const NO_SERVICE: u8 = 0;
/// Where the header's checksum begins.
const HEADER_CRC: usize = 28;
/// Bytes of a chunk's checksum.
const CRC_LEN: usize = 4;
/// Bytes of a chunk before its data.
const CHUNK_PREFIX: usize = 2;

const fn algorithm(poly: u32, check: u32, residue: u32) -> Algorithm<u32> {
    let (init, xorout) = (u32::MAX, u32::MAX);
    Algorithm { width: 32, poly, init, refin: true, refout: true, xorout, check, residue }
}

/// The checksum of scheme [`Scheme::Chunks26`]: distance 9 at its 208 bits.
pub const CRC_26: Algorithm<u32> = algorithm(0x6CAB_82FD, 0x6E26_D7C3, 0xD419_2BDF);
/// The checksum of scheme [`Scheme::Chunks36`]: distance 8 at its 288 bits.
pub const CRC_36: Algorithm<u32> = algorithm(0x78D7_F811, 0x212B_F80F, 0xAB83_8C79);
/// The header's checksum: distance 8 up to 177 bits of data, the header has 160.
pub const CRC_HEADER: Algorithm<u32> = CRC_32_ISCSI;

type Lanes = Table<16>;
static TABLE_26: Crc<u32, Lanes> = Crc::<u32, Lanes>::new(&CRC_26);
static TABLE_36: Crc<u32, Lanes> = Crc::<u32, Lanes>::new(&CRC_36);
static TABLE_HEADER: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_HEADER);

/// How a packet is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scheme {
    /// Up to 55 chunks of 26 bytes, 20 of them data.
    Chunks26 = 1,
    /// Up to 40 chunks of 36 bytes, 30 of them data.
    Chunks36 = 2,
}

impl Scheme {
    pub const ALL: [Scheme; 2] = [Scheme::Chunks26, Scheme::Chunks36];

    pub const fn from_u8(scheme: u8) -> Option<Scheme> {
        match scheme {
            1 => Some(Scheme::Chunks26),
            2 => Some(Scheme::Chunks36),
            _ => None,
        }
    }

    /// Bytes of a chunk, its checksum included.
    pub const fn chunk_len(self) -> usize {
        match self {
            Scheme::Chunks26 => 26,
            Scheme::Chunks36 => 36,
        }
    }

    /// Chunks of the longest packet.
    pub const fn chunks_max(self) -> usize {
        match self {
            Scheme::Chunks26 => 55,
            Scheme::Chunks36 => 40,
        }
    }

    /// Bytes of a service's data that a chunk can carry.
    pub const fn data_max(self) -> usize {
        self.chunk_len() - CHUNK_PREFIX - CRC_LEN
    }

    /// Bytes of a packet with `chunks` of them.
    pub const fn packet_len(self, chunks: usize) -> usize {
        CHUNK_HEADER_LEN + chunks * self.chunk_len()
    }

    fn table(self) -> &'static Crc<u32, Lanes> {
        match self {
            Scheme::Chunks26 => &TABLE_26,
            Scheme::Chunks36 => &TABLE_36,
        }
    }
}

const _: () = assert!(Scheme::Chunks26.packet_len(Scheme::Chunks26.chunks_max()) <= PAYLOAD_MAX);
const _: () = assert!(Scheme::Chunks36.packet_len(Scheme::Chunks36.chunks_max()) == PAYLOAD_MAX);

/// The checksums of one packet's chunks: those 16 of the bytes that are not sent which are the same for all of them.
#[derive(Clone)]
struct Seed(Digest<'static, u32, Lanes>);

impl Seed {
    fn new(scheme: Scheme, sender: u16, incarnation: u32, seq: u64) -> Seed {
        let mut bytes = [VERSION << 4 | CHUNKS, scheme as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&sender.to_le_bytes());
        bytes[4..8].copy_from_slice(&incarnation.to_le_bytes());
        bytes[8..16].copy_from_slice(&seq.to_le_bytes());
        let mut digest = scheme.table().digest();
        digest.update(&bytes);
        Seed(digest)
    }

    /// Checksum of the chunk at `index` with this `body`, which is all of it but the checksum.
    fn checksum(&self, index: u8, body: &[u8]) -> u32 {
        let mut digest = self.0.clone();
        digest.update(&[index]);
        digest.update(body);
        digest.finalize()
    }
}

fn header_checksum(b: &[u8]) -> u32 {
    let mut digest = TABLE_HEADER.digest();
    digest.update(&b[..16]);
    digest.update(&b[24..HEADER_CRC]);
    digest.finalize()
}

/// Makes a built chunk packet ready for `plane`: sets the plane byte, the header's checksum, then the tag.
/// The chunks stay as they are, so one packet is built once and sealed for each plane. ([`crate::seal`]
/// leaves the header's checksum wrong.)
///
/// Panics if `payload` is shorter than [`CHUNK_HEADER_LEN`] (a [`ChunkBuilder`] never makes one).
pub fn seal(payload: &mut [u8], plane: u8, key: &Key) {
    payload[PLANE_OFFSET] = plane;
    let checksum = header_checksum(payload);
    payload[HEADER_CRC..CHUNK_HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    crate::seal(payload, plane, key);
}

/// Why bytes are not a chunk packet. All its chunks are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkPacketError {
    #[error("{len} bytes; a chunk packet has {CHUNK_HEADER_LEN} to {PAYLOAD_MAX}")]
    Length { len: usize },
    #[error("magic {magic:#06x}; it must be {MAGIC:#06x}")]
    Magic { magic: u16 },
    #[error("version {version}; this program speaks version {VERSION}")]
    Version { version: u8 },
    #[error("kind {kind}; chunk packets are of kind {CHUNKS}, the others are for Packet::new")]
    Kind { kind: u8 },
    #[error("the header's checksum is {carried:#010x}, its bytes give {computed:#010x}: damaged on the way")]
    Header { carried: u32, computed: u32 },
    #[error("plane {plane}; it must be below {MAX_PLANES}")]
    Plane { plane: u8 },
    #[error("sender {sender}; host ids are 1..={MAX_HOSTS}")]
    Sender { sender: u16 },
    #[error("scheme {scheme}; 1 (26 bytes) and 2 (36 bytes) are known")]
    Scheme { scheme: u8 },
    #[error("{count} chunks; this scheme has at most {max}")]
    Count { count: u8, max: usize },
    #[error("{len} bytes; {need} are the header and the chunks that it announces")]
    Announced { len: usize, need: usize },
}

/// Why a chunk is not taken. The others of its packet are not concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    #[error("chunk {index} is damaged, or not of this place in this packet: its checksum does not fit")]
    Damaged { index: u8 },
    #[error(
        "chunk {index} is undamaged but no chunk: its length or padding is wrong; the sender speaks another format"
    )]
    Malformed { index: u8 },
}

/// One service's data, as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Its place in the packet, from 0.
    pub index: u8,
    /// Never [`NO_SERVICE`].
    pub service: u8,
    pub bytes: &'a [u8],
}

/// A packet of chunks whose header and length were checked. Says nothing of its tag (see [`crate::verify`]), and each
/// chunk is checked when it is read.
#[derive(Debug, Clone, Copy)]
pub struct ChunkPacket<T: AsRef<[u8]>> {
    bytes: T,
    scheme: Scheme,
}

impl<T: AsRef<[u8]>> ChunkPacket<T> {
    pub fn new(bytes: T) -> Result<ChunkPacket<T>, ChunkPacketError> {
        let scheme = check(bytes.as_ref())?;
        Ok(ChunkPacket { bytes, scheme })
    }

    fn b(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn plane(&self) -> u8 {
        self.b()[PLANE_OFFSET]
    }

    pub fn sender(&self) -> u16 {
        le16(self.b(), 4)
    }

    pub fn seq(&self) -> u64 {
        le64(self.b(), 8)
    }

    pub fn tag(&self) -> u64 {
        le64(self.b(), 16)
    }

    pub fn incarnation(&self) -> u32 {
        le32(self.b(), 24)
    }

    /// Chunks, empty places included.
    pub fn count(&self) -> usize {
        usize::from(self.b()[7])
    }

    /// Every chunk in order, empty places left out; a damaged chunk is an error and the next one comes after it.
    pub fn chunks(&self) -> Chunks<'_> {
        self.places().chunks()
    }

    /// Every place in order: `None` is an empty one.
    pub fn places(&self) -> Places<'_> {
        Places {
            rest: &self.b()[CHUNK_HEADER_LEN..],
            chunk_len: self.scheme.chunk_len(),
            index: 0,
            seed: Seed::new(self.scheme, self.sender(), self.incarnation(), self.seq()),
        }
    }

    pub fn into_inner(self) -> T {
        self.bytes
    }
}

/// Iterator over the places of a [`ChunkPacket`], empty ones included.
#[derive(Clone)]
pub struct Places<'a> {
    rest: &'a [u8],
    chunk_len: usize,
    index: u8,
    seed: Seed,
}

impl<'a> Places<'a> {
    fn chunks(self) -> Chunks<'a> {
        Chunks { places: self }
    }
}

impl<'a> Iterator for Places<'a> {
    type Item = Result<Option<Chunk<'a>>, ChunkError>;
    fn next(&mut self) -> Option<Self::Item> {
        let (chunk, rest) = self.rest.split_at_checked(self.chunk_len)?;
        let index = self.index;
        self.rest = rest;
        self.index = index.wrapping_add(1);
        Some(read(&self.seed, index, chunk))
    }
}

/// Iterator over the chunks of a [`ChunkPacket`].
#[derive(Clone)]
pub struct Chunks<'a> {
    places: Places<'a>,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, ChunkError>;
    fn next(&mut self) -> Option<Self::Item> {
        self.places.find_map(Result::transpose)
    }
}

fn read<'a>(seed: &Seed, index: u8, chunk: &'a [u8]) -> Result<Option<Chunk<'a>>, ChunkError> {
    let (body, _) = chunk.split_at(chunk.len() - CRC_LEN);
    if seed.checksum(index, body) != le32(chunk, body.len()) {
        return Err(ChunkError::Damaged { index });
    }
    let (service, len) = (body[0], usize::from(body[1]));
    let (bytes, padding) = body[CHUNK_PREFIX..].split_at_checked(len).ok_or(ChunkError::Malformed { index })?;
    if padding.iter().any(|b| *b != 0) || (service == NO_SERVICE && len > 0) {
        return Err(ChunkError::Malformed { index });
    }
    Ok((service != NO_SERVICE).then_some(Chunk { index, service, bytes }))
}

fn check(b: &[u8]) -> Result<Scheme, ChunkPacketError> {
    if b.len() < CHUNK_HEADER_LEN || b.len() > PAYLOAD_MAX {
        return Err(ChunkPacketError::Length { len: b.len() });
    }
    let magic = le16(b, 0);
    if magic != MAGIC {
        return Err(ChunkPacketError::Magic { magic });
    }
    let (version, kind) = (b[2] >> 4, b[2] & 0xf);
    if version != VERSION {
        return Err(ChunkPacketError::Version { version });
    }
    if kind != CHUNKS {
        return Err(ChunkPacketError::Kind { kind });
    }
    let (carried, computed) = (le32(b, HEADER_CRC), header_checksum(b));
    if carried != computed {
        return Err(ChunkPacketError::Header { carried, computed });
    }
    if usize::from(b[PLANE_OFFSET]) >= MAX_PLANES {
        return Err(ChunkPacketError::Plane { plane: b[PLANE_OFFSET] });
    }
    let sender = le16(b, 4);
    if sender == 0 || usize::from(sender) > MAX_HOSTS {
        return Err(ChunkPacketError::Sender { sender });
    }
    let scheme = Scheme::from_u8(b[6]).ok_or(ChunkPacketError::Scheme { scheme: b[6] })?;
    let (count, max) = (b[7], scheme.chunks_max());
    if usize::from(count) > max {
        return Err(ChunkPacketError::Count { count, max });
    }
    let need = scheme.packet_len(usize::from(count));
    if b.len() != need {
        return Err(ChunkPacketError::Announced { len: b.len(), need });
    }
    Ok(scheme)
}

/// Why data did not go into a packet. The packet is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkBuildError {
    #[error("a buffer of {room} bytes; {CHUNK_HEADER_LEN} are the header")]
    NoRoom { room: usize },
    #[error("the packet is full: it has its {max} chunks; send the rest in the next one")]
    Full { max: usize },
    #[error("{len} bytes of data; a chunk carries at most {max}, the service has to send them in several")]
    TooLong { len: usize, max: usize },
    #[error("service 0 is an empty place; services are 1..=255")]
    Service,
}

/// Writes a packet of chunks into a buffer. Plane, header checksum and tag are left to [`seal`].
pub struct ChunkBuilder<'a> {
    buf: &'a mut [u8],
    scheme: Scheme,
    seed: Seed,
    /// At most 55.
    count: u8,
    max: usize,
}

impl<'a> ChunkBuilder<'a> {
    /// Starts a packet. `buf` must hold a header, and takes as many chunks as fit behind it, at most
    /// [`Scheme::chunks_max`]. `seq` is not to be used again in this incarnation: chunks of packets with the
    /// same one can be taken for each other.
    pub fn new(
        buf: &'a mut [u8],
        scheme: Scheme,
        sender: u16,
        incarnation: u32,
        seq: u64,
    ) -> Result<ChunkBuilder<'a>, ChunkBuildError> {
        let room = buf.len();
        let max = room.checked_sub(CHUNK_HEADER_LEN).ok_or(ChunkBuildError::NoRoom { room })? / scheme.chunk_len();
        buf[..CHUNK_HEADER_LEN].fill(0);
        buf[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        buf[2] = VERSION << 4 | CHUNKS;
        buf[4..6].copy_from_slice(&sender.to_le_bytes());
        buf[6] = scheme as u8;
        buf[8..16].copy_from_slice(&seq.to_le_bytes());
        buf[24..28].copy_from_slice(&incarnation.to_le_bytes());
        let seed = Seed::new(scheme, sender, incarnation, seq);
        Ok(ChunkBuilder { buf, scheme, seed, count: 0, max: max.min(scheme.chunks_max()) })
    }

    /// Chunks that still fit.
    pub fn remaining(&self) -> usize {
        self.max - usize::from(self.count)
    }

    /// Adds a chunk; `bytes` may be empty. Returns its place.
    pub fn push(&mut self, service: u8, bytes: &[u8]) -> Result<u8, ChunkBuildError> {
        if service == NO_SERVICE {
            return Err(ChunkBuildError::Service);
        }
        self.write(service, bytes)
    }

    /// Adds an empty place, for packets that always have the same length.
    pub fn push_empty(&mut self) -> Result<u8, ChunkBuildError> {
        self.write(NO_SERVICE, &[])
    }

    /// The packet's length.
    pub fn finish(self) -> usize {
        self.buf[7] = self.count;
        self.scheme.packet_len(usize::from(self.count))
    }

    fn write(&mut self, service: u8, bytes: &[u8]) -> Result<u8, ChunkBuildError> {
        let (len, max) = (bytes.len(), self.scheme.data_max());
        if len > max {
            return Err(ChunkBuildError::TooLong { len, max });
        }
        if self.remaining() == 0 {
            return Err(ChunkBuildError::Full { max: self.max });
        }
        let at = self.scheme.packet_len(usize::from(self.count));
        let chunk = &mut self.buf[at..at + self.scheme.chunk_len()];
        let (body, checksum) = chunk.split_at_mut(CHUNK_PREFIX + max);
        body[0] = service;
        body[1] = len as u8;
        body[CHUNK_PREFIX..CHUNK_PREFIX + len].copy_from_slice(bytes);
        body[CHUNK_PREFIX + len..].fill(0);
        checksum.copy_from_slice(&self.seed.checksum(self.count, body).to_le_bytes());
        self.count += 1;
        Ok(self.count - 1)
    }
}

#[cfg(test)]
mod tests;
