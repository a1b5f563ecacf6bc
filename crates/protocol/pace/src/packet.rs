// SPDX-License-Identifier: Apache-2.0
//! What is in a packet, byte by byte. All numbers are big-endian.
//!
//! ```text
//!  outer, in clear                 inner, sealed
//! ┌──────┬────────────┬─────────┐ ┌─────────┬───────────────────────────┐ ┌─────┐
//! │ kind │ connection │ number  │ │ sent us │ frames                    │ │ tag │
//! │ 1    │ 4          │ 4       │ │ 4       │ each begins with its kind │ │ 16  │
//! └──────┴────────────┴─────────┘ └─────────┴───────────────────────────┘ └─────┘
//! ```
//!
//! Numbers and times are sent as their lowest 32 bits: the receiver knows the rest ([`extend`]), as no two that
//! are alive at once are 2^31 apart. A time counts microseconds of the sender's own clock. A pace is a number of 32 bits, too: of
//! nanoseconds, or of whole microseconds if the highest bit is set, which is more than half an hour at most ([`PACE_MAX_NS`]).
//!
//! | frame | after its kind |
//! |---|---|
//! | DATA | number of the symbol, and the symbol: to the end of the packet |
//! | REDUNDANCY | first symbol of its block, symbols of data and of redundancy in the block, index among these, and the coded bytes: to the end of the packet |
//! | WINDOW | first of the symbols that the coded bytes stand for, how many these are, the seed of their factors, and the coded bytes: to the end of the packet |
//! | FEEDBACK | largest number received, when, runs of numbers received before it, messages lost so far, the first symbol that is awaited |
//! | PACES | the five paces that are known to this packet's sender, messages that wait for its application, and how many of a million may be lost |
//! | FLOOR | symbols below this one do not come any more |
//! | PING | eight bytes that come back: at once, if the first bit is set ([`AT_ONCE`]), else with a packet that leaves soon |
//! | PONG | the eight bytes, and when they came |
//! | CLOSE | why, as text |
//! | PADDING | to the end of the packet: the packet measures the path |
//!
//! A *symbol* is a message, or a part of one, with its description: what is lost, repeated and protected by
//! redundancy as a whole.

/// What an outer packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A client asks for a connection.
    Initiation = 0xb1,
    /// The server wants to see first that the client gets packets at its address.
    Cookie = 0xb2,
    /// The server agrees.
    Response = 0xb3,
    /// Everything else.
    Sealed = 0xb4,
    /// The server does not agree, and says why.
    Refusal = 0xb5,
}

impl Kind {
    #[must_use]
    pub fn of(datagram: &[u8]) -> Option<Self> {
        [Self::Initiation, Self::Cookie, Self::Response, Self::Sealed, Self::Refusal]
            .into_iter()
            .find(|kind| datagram.first() == Some(&(*kind as u8)))
    }
}

/// Bytes of the largest datagram.
pub const DATAGRAM_MAX: usize = 1500;

/// Bytes of a sealed packet before what is sealed.
pub const HEADER_LEN: usize = 9;
/// Bytes behind it.
pub const TAG_LEN: usize = 16;
/// When the packet left, in what is sealed.
pub const SENT_LEN: usize = 4;
/// Bytes of a packet that carries one symbol, but for the symbol.
pub const DATA_OVERHEAD: usize = HEADER_LEN + SENT_LEN + 5 + TAG_LEN;
/// Bytes before the coded bytes of redundancy, with the frame's kind.
pub const REDUNDANCY_LEN: usize = 8;
/// The same of a window.
const WINDOW_LEN: usize = 7;
const _: () = assert!(WINDOW_LEN <= REDUNDANCY_LEN);
/// Most runs that one FEEDBACK names; older ones were named by earlier ones.
pub const RUNS_MAX: usize = 32;
/// In the first byte of a PING that is to be answered at once.
pub const AT_ONCE: u8 = 0x80;
/// Longest pace that crosses the network: 35 minutes. A longer one counts as this.
pub const PACE_MAX_NS: u64 = (IN_MICROSECONDS as u64 - 1) * 1000;
/// In a pace: the rest is microseconds.
const IN_MICROSECONDS: u32 = 1 << 31;
/// Longest reason to close.
pub const REASON_MAX: usize = 200;

/// The number whose lowest 32 bits are these, nearest to a known one.
#[must_use]
pub fn extend(low: u32, near: u64) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "the lowest bits")]
    let ahead = low.wrapping_sub(near as u32);
    #[allow(clippy::cast_possible_wrap, reason = "a distance, either way")]
    let distance = i64::from(ahead as i32);
    near.checked_add_signed(distance).unwrap_or(u64::from(low))
}

/// The lowest 32 bits.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "the lowest bits")]
pub fn low(number: u64) -> u32 {
    number as u32
}

/// A pace as it crosses the network: to the nanosecond below 2.1 s, to the microsecond above, cut.
fn pace_of(ns: u64) -> u32 {
    match u32::try_from(ns) {
        Ok(ns) if ns < IN_MICROSECONDS => ns,
        _ => IN_MICROSECONDS | low(ns.min(PACE_MAX_NS) / 1000),
    }
}

fn pace_ns(of: u32) -> u64 {
    if of < IN_MICROSECONDS { of.into() } else { u64::from(of - IN_MICROSECONDS) * 1000 }
}

/// A run of packet numbers that were received, before a gap: numbers below the gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// Numbers missing between this run and the later one; at least 1.
    pub gap: u16,
    /// Numbers received; at least 1.
    pub len: u16,
}

/// The runs of one FEEDBACK, the newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    runs: [Run; RUNS_MAX],
    count: usize,
}

impl Runs {
    #[must_use]
    pub fn new() -> Self {
        Self { runs: [Run::default(); RUNS_MAX], count: 0 }
    }

    /// False: there is no room for it.
    pub fn push(&mut self, run: Run) -> bool {
        let Some(place) = self.runs.get_mut(self.count) else { return false };
        *place = run;
        self.count += 1;
        true
    }

    #[must_use]
    pub fn as_slice(&self) -> &[Run] {
        &self.runs[..self.count]
    }
}

impl Default for Runs {
    fn default() -> Self {
        Self::new()
    }
}

/// What the receiver of packets says of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Largest number received.
    pub largest: u32,
    /// When that one came, by the receiver's clock.
    pub received_us: u32,
    /// Numbers received without a gap up to the largest, itself included; at least 1.
    pub newest: u16,
    pub runs: Runs,
    /// Packets that came with a mark of congestion (ECN), so far.
    pub marked: u32,
    /// Messages that were not delivered, so far.
    pub lost: u32,
    /// Symbols below this one are not awaited.
    pub awaited: u32,
}

/// Paces, in nanoseconds for a message, and what waits for the application that receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacesFrame {
    /// Send, transmit and network; then receive and deliver of the other direction.
    pub paces_ns: [u64; 5],
    /// Messages that are here and that the application has not taken.
    pub waiting: u16,
    /// Of a million messages of this packet's sender so many may be lost.
    pub tolerated_ppm: u32,
}

/// A part of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    Data {
        symbol: u32,
        content: &'a [u8],
    },
    Redundancy {
        first: u32,
        data: u8,
        redundancy: u8,
        index: u8,
        content: &'a [u8],
    },
    Window {
        first: u32,
        data: u8,
        seed: u8,
        content: &'a [u8],
    },
    Feedback(Feedback),
    Paces(PacesFrame),
    Floor {
        symbol: u32,
    },
    Ping([u8; 8]),
    /// `came_us`: when the PING came, by this sender's clock.
    Pong {
        echo: [u8; 8],
        came_us: u32,
    },
    Close {
        reason: &'a str,
    },
    Padding,
}

/// Why a packet is not one. Authenticated packets are well-formed unless the peer is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the packet ends within a {0} frame")]
    Short(&'static str),
    #[error("{0:#04x} is no kind of frame: 1 to 10 are")]
    Kind(u8),
    #[error("a FEEDBACK frame with {0} runs, and at most {RUNS_MAX} are allowed")]
    Runs(u8),
    #[error("a FEEDBACK frame with an empty run")]
    EmptyRun,
    #[error(
        "a REDUNDANCY frame of {data} and {redundancy} symbols with index {index}: none may be 0, and the index is below the second"
    )]
    Block { data: u8, redundancy: u8, index: u8 },
    #[error("a CLOSE frame whose reason is no text of at most {REASON_MAX} bytes")]
    Reason,
}

const DATA: u8 = 1;
const REDUNDANCY: u8 = 2;
const FEEDBACK: u8 = 3;
const PACES: u8 = 4;
const FLOOR: u8 = 5;
const PING: u8 = 6;
const PONG: u8 = 7;
const CLOSE: u8 = 8;
const PADDING: u8 = 9;
const WINDOW: u8 = 10;

/// Reads numbers from the front of bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    frame: &'static str,
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.bytes.split_first_chunk::<N>().ok_or(Malformed::Short(self.frame))?;
        self.bytes = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }
}

/// Takes the next frame of a packet, and leaves the rest. None at the end.
///
/// # Errors
/// The bytes are no frame.
pub fn read_frame<'a>(bytes: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Malformed> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    let of = |frame| Reader { bytes: rest, frame };
    let (frame, rest) = match *kind {
        DATA => {
            let mut reader = of("DATA");
            (Frame::Data { symbol: reader.u32()?, content: reader.rest() }, reader.bytes)
        }
        REDUNDANCY => {
            let mut reader = of("REDUNDANCY");
            let (first, data, redundancy, index) = (reader.u32()?, reader.u8()?, reader.u8()?, reader.u8()?);
            if data == 0 || index >= redundancy {
                return Err(Malformed::Block { data, redundancy, index });
            }
            (Frame::Redundancy { first, data, redundancy, index, content: reader.rest() }, reader.bytes)
        }
        WINDOW => {
            let mut reader = of("WINDOW");
            let (first, data, seed) = (reader.u32()?, reader.u8()?, reader.u8()?);
            (Frame::Window { first, data, seed, content: reader.rest() }, reader.bytes)
        }
        FEEDBACK => {
            let mut reader = of("FEEDBACK");
            let mut feedback = Feedback {
                largest: reader.u32()?,
                received_us: reader.u32()?,
                marked: reader.u32()?,
                lost: reader.u32()?,
                awaited: reader.u32()?,
                newest: reader.u16()?,
                runs: Runs::new(),
            };
            let count = reader.u8()?;
            for _ in 0..count {
                let run = Run { gap: reader.u16()?, len: reader.u16()? };
                if run.gap == 0 || run.len == 0 {
                    return Err(Malformed::EmptyRun);
                }
                if !feedback.runs.push(run) {
                    return Err(Malformed::Runs(count));
                }
            }
            if feedback.newest == 0 {
                return Err(Malformed::EmptyRun);
            }
            (Frame::Feedback(feedback), reader.bytes)
        }
        PACES => {
            let mut reader = of("PACES");
            let mut frame = PacesFrame::default();
            for pace in &mut frame.paces_ns {
                *pace = pace_ns(reader.u32()?);
            }
            frame.waiting = reader.u16()?;
            frame.tolerated_ppm = reader.u32()?;
            (Frame::Paces(frame), reader.bytes)
        }
        FLOOR => {
            let mut reader = of("FLOOR");
            (Frame::Floor { symbol: reader.u32()? }, reader.bytes)
        }
        PING => {
            let mut reader = of("PING");
            (Frame::Ping(reader.take()?), reader.bytes)
        }
        PONG => {
            let mut reader = of("PONG");
            (Frame::Pong { echo: reader.take()?, came_us: reader.u32()? }, reader.bytes)
        }
        CLOSE => {
            let mut reader = of("CLOSE");
            let text = reader.rest();
            let reason = std::str::from_utf8(text).ok().filter(|text| text.len() <= REASON_MAX);
            (Frame::Close { reason: reason.ok_or(Malformed::Reason)? }, reader.bytes)
        }
        PADDING => (Frame::Padding, &[][..]),
        other => return Err(Malformed::Kind(other)),
    };
    *bytes = rest;
    Ok(Some(frame))
}

/// Writes frames into a buffer, as long as they fit.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: 0 }
    }

    /// Bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer.len() - self.len
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends when the packet leaves.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn sent(&mut self, now_us: u64) {
        self.put(&low(now_us).to_be_bytes());
    }

    /// Appends a frame. False: it does not fit, and nothing was written.
    pub fn frame(&mut self, frame: &Frame<'_>) -> bool {
        if frame_len(frame) > self.room() {
            return false;
        }
        match frame {
            Frame::Data { symbol, content } => {
                self.put(&[DATA]);
                self.put(&symbol.to_be_bytes());
                self.put(content);
            }
            Frame::Redundancy { first, data, redundancy, index, content } => {
                self.put(&[REDUNDANCY]);
                self.put(&first.to_be_bytes());
                self.put(&[*data, *redundancy, *index]);
                self.put(content);
            }
            Frame::Window { first, data, seed, content } => {
                self.put(&[WINDOW]);
                self.put(&first.to_be_bytes());
                self.put(&[*data, *seed]);
                self.put(content);
            }
            Frame::Feedback(feedback) => {
                self.put(&[FEEDBACK]);
                let Feedback { largest, received_us, marked, lost, awaited, .. } = *feedback;
                for number in [largest, received_us, marked, lost, awaited] {
                    self.put(&number.to_be_bytes());
                }
                self.put(&feedback.newest.to_be_bytes());
                let runs = feedback.runs.as_slice();
                #[allow(clippy::cast_possible_truncation, reason = "at most RUNS_MAX")]
                self.put(&[runs.len() as u8]);
                for run in runs {
                    self.put(&run.gap.to_be_bytes());
                    self.put(&run.len.to_be_bytes());
                }
            }
            Frame::Paces(paces) => {
                self.put(&[PACES]);
                paces.paces_ns.iter().for_each(|ns| self.put(&pace_of(*ns).to_be_bytes()));
                self.put(&paces.waiting.to_be_bytes());
                self.put(&paces.tolerated_ppm.to_be_bytes());
            }
            Frame::Floor { symbol } => {
                self.put(&[FLOOR]);
                self.put(&symbol.to_be_bytes());
            }
            Frame::Ping(bytes) => {
                self.put(&[PING]);
                self.put(bytes);
            }
            Frame::Pong { echo, came_us } => {
                self.put(&[PONG]);
                self.put(echo);
                self.put(&came_us.to_be_bytes());
            }
            Frame::Close { reason } => {
                self.put(&[CLOSE]);
                self.put(reason.as_bytes());
            }
            Frame::Padding => {
                let len = self.room();
                self.buffer[self.len..].fill(0);
                self.buffer[self.len] = PADDING;
                self.len += len;
            }
        }
        true
    }
}

/// Bytes of a frame; of PADDING the least.
#[must_use]
pub fn frame_len(frame: &Frame<'_>) -> usize {
    match frame {
        Frame::Data { content, .. } => 5 + content.len(),
        Frame::Redundancy { content, .. } => REDUNDANCY_LEN + content.len(),
        Frame::Window { content, .. } => WINDOW_LEN + content.len(),
        Frame::Feedback(feedback) => 24 + 4 * feedback.runs.as_slice().len(),
        Frame::Paces(_) => 27,
        Frame::Floor { .. } => 5,
        Frame::Ping(_) => 9,
        Frame::Pong { .. } => 13,
        Frame::Close { reason } => 1 + reason.len(),
        Frame::Padding => 1,
    }
}

/// How a packet came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arrival {
    /// With a mark of congestion (ECN).
    pub is_marked: bool,
    /// How long it has waited in this host until it was read.
    pub waited_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lowest_bits_are_extended_to_the_nearest_number() {
        for near in [0, 5, 1 << 31, (1 << 32) - 1, 1 << 32, 0xffff_ffff_0000_0001, u64::MAX - 1] {
            for distance in [-1_000_000_i64, -1, 0, 1, 1_000_000] {
                let Some(number) = near.checked_add_signed(distance) else { continue };
                assert_eq!(extend(low(number), near), number, "{near} {distance}");
            }
        }
    }

    fn written(frames: &[Frame<'_>], room: usize) -> Vec<u8> {
        let mut buffer = vec![0xff; room];
        let mut writer = Writer::new(&mut buffer);
        for frame in frames {
            let (before, fits) = (writer.len(), frame_len(frame) <= writer.room());
            assert_eq!(writer.frame(frame), fits, "{frame:?}");
            let is_padding = matches!(frame, Frame::Padding);
            let len = if is_padding && fits { room - before } else { frame_len(frame) };
            assert_eq!(writer.len() - before, if fits { len } else { 0 });
        }
        let len = writer.len();
        buffer.truncate(len);
        buffer
    }

    fn read(mut bytes: &[u8]) -> Result<Vec<Frame<'_>>, Malformed> {
        let mut frames = Vec::new();
        while let Some(frame) = read_frame(&mut bytes)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    fn runs(count: u16) -> Runs {
        let mut runs = Runs::new();
        (1..=count).for_each(|at| assert!(runs.push(Run { gap: at, len: 2 * at })));
        runs
    }

    #[test]
    fn each_frame_is_read_as_it_was_written() {
        let feedback =
            Feedback { largest: 9, received_us: 8, newest: 3, runs: runs(4), marked: 5, lost: 6, awaited: 10 };
        let small = [
            Frame::Feedback(feedback),
            Frame::Paces(PacesFrame {
                paces_ns: [1, 2, 3_000_000_000, 1_800_000_000_000, PACE_MAX_NS],
                waiting: 7,
                tolerated_ppm: 12,
            }),
            Frame::Floor { symbol: 11 },
            Frame::Ping(*b"12345678"),
            Frame::Pong { echo: *b"abcdefgh", came_us: 9 },
        ];
        for last in [
            Frame::Data { symbol: 7, content: b"content" },
            Frame::Data { symbol: 7, content: b"" },
            Frame::Redundancy { first: 5, data: 4, redundancy: 2, index: 1, content: b"coded" },
            Frame::Window { first: 5, data: 4, seed: 200, content: b"coded" },
            Frame::Close { reason: "enough" },
            Frame::Padding,
        ] {
            let mut frames = small.to_vec();
            frames.push(last);
            assert_eq!(read(&written(&frames, 400)), Ok(frames));
        }
    }

    #[test]
    fn what_a_peer_must_not_send_is_named() {
        assert_eq!(read(&[0]), Err(Malformed::Kind(0)));
        assert_eq!(read(&[FLOOR, 0, 0]), Err(Malformed::Short("FLOOR")));
        let block = |data, redundancy, index| read(&[REDUNDANCY, 0, 0, 0, 0, data, redundancy, index]).map(|_| ());
        assert!(block(1, 1, 0).is_ok());
        for (data, redundancy, index) in [(0, 1, 0), (1, 0, 0), (1, 1, 1)] {
            assert_eq!(block(data, redundancy, index), Err(Malformed::Block { data, redundancy, index }));
        }
        assert_eq!(read(&[CLOSE, 0xff]), Err(Malformed::Reason));
        assert_eq!(read(&[&[CLOSE][..], &[b'x'; REASON_MAX + 1]].concat()), Err(Malformed::Reason));
        let feedback = Feedback { newest: 1, runs: runs(32), ..Feedback::default() };
        let mut bytes = written(&[Frame::Feedback(feedback)], 400);
        bytes[23] = 33;
        bytes.extend([0, 1, 0, 1]);
        assert_eq!(read(&bytes), Err(Malformed::Runs(33)));
        let empty = Feedback { newest: 0, ..feedback };
        assert_eq!(read(&written(&[Frame::Feedback(empty)], 400)), Err(Malformed::EmptyRun));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(frames) = read(&bytes) {
                let again = written(&frames, bytes.len());
                prop_assert_eq!(read(&again), Ok(frames));
            }
        }

        /// Those up to 2^31 ns as they are, longer ones but for what is less than a microsecond, and the longest as the longest there is.
        #[test]
        fn paces_cross(ns in prop_oneof![0..1_u64 << 33, 0..2 * PACE_MAX_NS, any::<u64>(), (1_u64 << 31) - 2000..(1 << 31) + 2000]) {
            let crossed_ns = pace_ns(pace_of(ns));
            let expected_ns = if ns < 1 << 31 { ns } else { ns.min(PACE_MAX_NS) / 1000 * 1000 };
            prop_assert_eq!(crossed_ns, expected_ns);
            prop_assert!(ns > crossed_ns || pace_of(ns) == pace_of(crossed_ns));
        }

        #[test]
        fn numbers_come_back(near in any::<u64>(), distance in -(1_i64 << 31)..(1_i64 << 31)) {
            if let Some(number) = near.checked_add_signed(distance) {
                prop_assert_eq!(extend(low(number), near), number);
            }
        }
    }
}
