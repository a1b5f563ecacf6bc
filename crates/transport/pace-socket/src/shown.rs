// SPDX-License-Identifier: Apache-2.0
//! What an endpoint shows of its connections to `fide pace top`, if it is asked to ([`crate::Endpoint::show`]).
//!
//! An anonymous file in memory (memfd) under sequence locks. The endpoint's thread writes it at most ten times a second:
//! it waits for no reader, and allocates nothing. A reader finds it among the descriptors of the process, which the
//! kernel shows to the same user and to root alone. Nothing has to be removed: it is gone with its process, however that
//! ends.

pub(crate) mod read;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use fide_pace::{
    receiver::ReceivedCounts,
    sender::SentCounts,
    step::{Paces, Step},
    transport::{Counts, Snapshot},
};
use fide_shm::{
    region::{Region, RegionError, Shared},
    seqlock::SeqLock,
};

/// Connections of an endpoint that are shown; further ones are counted.
pub const SHOWN_MAX: usize = 64;
/// How often they are written at most.
const WRITES_NS: u64 = 100_000_000;
/// Name of the file, which the kernel shows.
pub(crate) const NAME: &str = "fide-pace";
/// Of the layout below, in its first word: to be changed with it.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"fpace\0\0\x02");

/// Words of the endpoint's record, and of a connection's.
const ENDPOINT_WORDS: usize = 10;
const CONNECTION_WORDS: usize = 51;

/// There is no memory to show connections in.
#[derive(Debug, thiserror::Error)]
#[error("connections cannot be shown to `fide pace top`: {0}")]
pub struct ShowError(RegionError);

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) endpoint: SeqLock<ENDPOINT_WORDS>,
    pub(crate) connections: [SeqLock<CONNECTION_WORDS>; SHOWN_MAX],
}

// SAFETY: only sequence locks, which are atomics and padding; any content is valid; aligned to 64 bytes.
unsafe impl Shared for Layout {}

/// An endpoint as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndpointRecord {
    pub(crate) magic: u64,
    /// The process, by its own number: a child that was forked has the file, too, and does not write it.
    pub(crate) pid: u64,
    /// When it was written (`CLOCK_BOOTTIME`).
    pub(crate) written_ns: u64,
    /// All connections, and those that have a record.
    pub(crate) connections: u64,
    pub(crate) shown: u64,
    pub(crate) is_server: u64,
    pub(crate) local: SocketAddr,
    /// Datagrams that were no packet of a connection.
    pub(crate) dropped: u64,
}

/// A connection as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionRecord {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) snapshot: Snapshot,
}

/// Words of a record, one after the other: written, or read.
struct Words<'a> {
    words: &'a mut [u64],
    at: usize,
    reads: bool,
}

impl Words<'_> {
    fn word(&mut self, value: &mut u64) {
        let word = &mut self.words[self.at];
        self.at += 1;
        if self.reads {
            *value = *word;
        } else {
            *word = *value;
        }
    }

    /// None is a number that no field has.
    fn maybe(&mut self, value: &mut Option<u64>) {
        let mut word = value.unwrap_or(u64::MAX);
        self.word(&mut word);
        *value = (word != u64::MAX).then_some(word);
    }

    /// A number of 32 bits with its sign.
    fn maybe_signed(&mut self, value: &mut Option<i64>) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits, there and back")]
        let mut word = value.map(|value| u64::from(value as i32 as u32));
        self.maybe(&mut word);
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "32 bits, there and back")]
        let read = word.map(|word| i64::from(word as u32 as i32));
        *value = read;
    }

    fn flag(&mut self, value: &mut bool) {
        let mut word = (*value).into();
        self.word(&mut word);
        *value = word != 0;
    }

    fn paces(&mut self, paces: &mut Paces) {
        for step in Step::ALL {
            let mut ns = paces.get(step);
            self.word(&mut ns);
            paces.set(step, ns);
        }
    }

    /// An address of IPv4 as one of IPv6 that stands for it.
    fn address(&mut self, address: &mut SocketAddr) {
        let bits = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let mut halves = [(bits >> 64) as u64, (bits & u128::from(u64::MAX)) as u64];
        let mut port = address.port().into();
        halves.iter_mut().for_each(|half| self.word(half));
        self.word(&mut port);
        let ip = Ipv6Addr::from_bits(u128::from(halves[0]) << 64 | u128::from(halves[1]));
        *address = SocketAddr::new(ip.to_canonical(), (port & 0xffff) as u16);
    }
}

impl EndpointRecord {
    fn visit(&mut self, words: &mut Words<'_>) {
        let Self { magic, pid, written_ns, connections, shown, is_server, local, dropped } = self;
        [magic, pid, written_ns, connections, shown, is_server, dropped].into_iter().for_each(|word| words.word(word));
        words.address(local);
    }

    fn to_words(mut self) -> [u64; ENDPOINT_WORDS] {
        let mut words = [0; ENDPOINT_WORDS];
        self.visit(&mut Words { words: &mut words, at: 0, reads: false });
        words
    }

    fn of_words(mut words: [u64; ENDPOINT_WORDS]) -> Self {
        let local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let mut record =
            Self { magic: 0, pid: 0, written_ns: 0, connections: 0, shown: 0, is_server: 0, local, dropped: 0 };
        record.visit(&mut Words { words: &mut words, at: 0, reads: true });
        record
    }
}

impl ConnectionRecord {
    fn visit(&mut self, words: &mut Words<'_>) {
        let Self { id, peer, snapshot } = self;
        words.word(id);
        words.address(peer);
        let Snapshot {
            there,
            back,
            waiting_to_leave,
            waiting_there,
            waiting_here,
            network_bytes_per_s,
            paced_bytes_per_s,
            round_trip_us,
            shortest_us,
            clock_uncertainty_us,
            clock_ahead_us,
            drift_ppm,
            one_way_us,
            one_way_here_us,
            send_total_ns,
            deliver_total_ns,
            in_flight_bytes,
            window_bytes,
            packet_bytes,
            came_packets,
            lost_packets,
            deadline_ns,
            counts,
            is_over,
            written_ahead_ns,
        } = snapshot;
        words.paces(there);
        words.paces(back);
        [network_bytes_per_s, round_trip_us, shortest_us, clock_uncertainty_us]
            .into_iter()
            .for_each(|value| words.maybe(value));
        [waiting_to_leave, waiting_there, waiting_here, paced_bytes_per_s, in_flight_bytes, window_bytes]
            .into_iter()
            .chain([packet_bytes, came_packets, lost_packets, deadline_ns, written_ahead_ns])
            .for_each(|value| words.word(value));
        words.flag(is_over);
        let Counts { sent, received, repeated_packets, black_holes, clock_steps } = counts;
        let SentCounts { messages, dropped, symbols, again, redundancy, given_up } = sent;
        let ReceivedCounts { delivered, lost, late, restored, repeated, passed_over } = received;
        [messages, dropped, symbols, again, redundancy, given_up, delivered, lost, late, restored, repeated]
            .into_iter()
            .chain([passed_over, repeated_packets, black_holes, clock_steps])
            .for_each(|value| words.word(value));
        words.maybe_signed(clock_ahead_us);
        let mut drift = Some(*drift_ppm);
        words.maybe_signed(&mut drift);
        *drift_ppm = drift.unwrap_or(0);
        [one_way_us, one_way_here_us, send_total_ns, deliver_total_ns].into_iter().for_each(|value| words.maybe(value));
    }

    fn to_words(mut self) -> [u64; CONNECTION_WORDS] {
        let mut words = [0; CONNECTION_WORDS];
        self.visit(&mut Words { words: &mut words, at: 0, reads: false });
        words
    }

    fn of_words(mut words: [u64; CONNECTION_WORDS]) -> Self {
        let peer = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let mut record = Self { id: 0, peer, snapshot: Snapshot::default() };
        record.visit(&mut Words { words: &mut words, at: 0, reads: true });
        record
    }
}

/// The memory in which an endpoint shows its connections.
#[derive(Debug)]
pub(crate) struct Writer {
    region: Region<Layout>,
    local: SocketAddr,
    is_server: bool,
    due_ns: u64,
}

impl Writer {
    pub(crate) fn new(local: SocketAddr, is_server: bool) -> Result<Self, ShowError> {
        let region = Region::<Layout>::create(NAME).map_err(ShowError)?;
        // Each page is there before the endpoint's thread writes to it.
        region.get().connections.iter().for_each(|slot| slot.write(&[0; CONNECTION_WORDS]));
        let mut writer = Self { region, local, is_server, due_ns: 0 };
        writer.write(crate::now_ns(), 0, std::iter::empty(), 0);
        writer.write_soon();
        Ok(writer)
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// There is another connection, or one less.
    pub(crate) fn write_soon(&mut self) {
        self.due_ns = 0;
    }

    /// `connections`: how many there are, and each of them.
    pub(crate) fn write(
        &mut self,
        now_ns: u64,
        connections: usize,
        each: impl Iterator<Item = ConnectionRecord>,
        dropped: u64,
    ) {
        self.due_ns = now_ns + WRITES_NS;
        let layout = self.region.get();
        let mut shown = 0;
        for (slot, connection) in layout.connections.iter().zip(each) {
            slot.write(&connection.to_words());
            shown += 1;
        }
        let record = EndpointRecord {
            magic: MAGIC,
            pid: std::process::id().into(),
            written_ns: now_ns,
            connections: connections as u64,
            shown,
            is_server: self.is_server.into(),
            local: self.local,
            dropped,
        };
        layout.endpoint.write(&record.to_words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut words: [u64; CONNECTION_WORDS] = std::array::from_fn(|at| 1000 + at as u64);
        // A flag, and an address whose port has 16 bits.
        words[29] = 1;
        let record = ConnectionRecord::of_words(words);
        assert_eq!(record.to_words(), words, "each word has one field");
        assert_eq!((record.id, record.snapshot.deliver_total_ns), (1000, Some(1000 + CONNECTION_WORDS as u64 - 1)));

        let local = "192.0.2.7:7000".parse().unwrap();
        let record = EndpointRecord {
            magic: MAGIC,
            pid: 7,
            written_ns: 8,
            connections: 3,
            shown: 2,
            is_server: 1,
            local,
            dropped: 9,
        };
        assert_eq!(EndpointRecord::of_words(record.to_words()), record);
        let peer = "[2001:db8::1]:65535".parse().unwrap();
        let snapshot = Snapshot {
            round_trip_us: Some(30_000),
            clock_ahead_us: Some(-1),
            drift_ppm: -7,
            is_over: true,
            ..Snapshot::default()
        };
        let record = ConnectionRecord { id: 1, peer, snapshot };
        assert_eq!(ConnectionRecord::of_words(record.to_words()), record);
    }
}
