// SPDX-License-Identifier: Apache-2.0
//! A link between two hosts that is as slow, long, lossy and variable as a test wants it (`fide_link_model`), for any
//! program and protocol: a TUN device at each host, and a thread between them. This kernel need have neither netem nor fq.
//!
//! Packets come late by what the thread is late: tens of microseconds on an idle machine.

use crate::{Error, Host, Result, sys};
use fide_link_model::{Link, LinkSpec};
use fide_sys::clock::mono_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{read, write};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Name of the device at each host.
pub const DEVICE: &str = "e0";
/// Packets taken from one device in one turn.
const READS_MAX: usize = 256;
/// Packets under way; further ones are dropped, as a test has asked for more than one machine can hold.
const UNDER_WAY_MAX: usize = 100_000;
/// How soon the thread sees that it is to end.
const LOOKS_EVERY_NS: u64 = 50_000_000;

/// A running link. Dropped, it and its devices are gone.
#[derive(Debug)]
pub struct Emulator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    is_over: AtomicBool,
    longest_late_ns: AtomicU64,
    /// There and back.
    links: Mutex<[Link; 2]>,
}

/// What has entered a way of a link so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub packets: u64,
    /// With IP's header.
    pub bytes: u64,
    /// Lost, or without room.
    pub dropped: u64,
}

/// A packet under way: when it comes, in which order, which way, and whether it was marked.
type UnderWay = Reverse<(u64, u64, usize, bool, Vec<u8>)>;

impl Emulator {
    /// Between two hosts, which have the addresses [`Emulator::address`] on it. `seed`: of losses and the like.
    ///
    /// # Errors
    /// There are no TUN devices here, or one could not be set up.
    pub fn between(here: &Host, there: &Host, ways: [LinkSpec; 2], seed: u64) -> Result<Self> {
        let mut devices = Vec::new();
        for (at, host) in [here, there].into_iter().enumerate() {
            let device = host.run_in(|| sys::open_tun(DEVICE))??;
            let commands = format!(
                "addr add {}/30 dev {DEVICE}\nlink set {DEVICE} mtu 1500 txqueuelen 10000 up\n",
                Self::address(at)
            );
            crate::tools::batch("ip", &["-netns", host.namespace(), "-batch", "-"], &commands)?;
            devices.push(device);
        }
        let links = Mutex::new([Link::new(ways[0], seed), Link::new(ways[1], !seed)]);
        let shared = Arc::new(Shared { is_over: AtomicBool::new(false), longest_late_ns: AtomicU64::new(0), links });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("emulator".into())
            .spawn(move || run(&of_thread, &devices))
            .map_err(|why| Error::io("starting a thread for an emulated link", why))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Of the first host (0) or the second one (1).
    #[must_use]
    pub fn address(host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, 0, if host == 0 { 1 } else { 2 })
    }

    /// The link is another one from now on.
    pub fn change(&self, way: usize, spec: LinkSpec) {
        self.links()[way].spec = spec;
    }

    /// The longest time in the buffer of a way since this was asked last, and packets dropped so far.
    pub fn take_longest_queue_ns(&self, way: usize) -> (u64, u64) {
        let link = &mut self.links()[way];
        (std::mem::take(&mut link.longest_queue_ns), link.dropped)
    }

    /// The most bytes that a packet found before it in the buffer of a way since this was asked last.
    pub fn take_longest_queue_bytes(&self, way: usize) -> u64 {
        std::mem::take(&mut self.links()[way].longest_queue_bytes)
    }

    /// By how much the thread was woken late at most since this was asked last: what hosts sent meanwhile has entered the buffers at
    /// once.
    pub fn take_longest_late_ns(&self) -> u64 {
        self.shared.longest_late_ns.swap(0, Ordering::Relaxed)
    }

    /// What has entered a way so far.
    #[must_use]
    pub fn seen(&self, way: usize) -> Seen {
        let Link { packets, bytes, dropped, .. } = self.links()[way];
        Seen { packets, bytes, dropped }
    }

    fn links(&self) -> std::sync::MutexGuard<'_, [Link; 2]> {
        self.shared.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, devices: &[OwnedFd]) {
    let _ = rustix::thread::set_current_timer_slack(Some(1.try_into().expect("not zero")));
    let mut under_way: BinaryHeap<UnderWay> = BinaryHeap::new();
    let (mut count, mut spare, mut buffer) = (0_u64, Vec::new(), vec![0; 65_536]);
    while !shared.is_over.load(Ordering::Relaxed) {
        for (way, device) in devices.iter().enumerate() {
            for _ in 0..READS_MAX {
                let Ok(len) = read(device, &mut buffer) else { break };
                if under_way.len() >= UNDER_WAY_MAX {
                    continue;
                }
                let mut links = shared.links.lock().unwrap_or_else(PoisonError::into_inner);
                for arrival in links[way].enter(mono_ns(), len) {
                    let mut packet: Vec<u8> = spare.pop().unwrap_or_default();
                    packet.clear();
                    packet.extend_from_slice(&buffer[..len]);
                    count += 1;
                    under_way.push(Reverse((arrival.at_ns, count, way, arrival.is_marked, packet)));
                }
            }
        }
        let now = mono_ns();
        while let Some(Reverse((at_ns, ..))) = under_way.peek()
            && *at_ns <= now
        {
            let Some(Reverse((_, _, way, is_marked, mut packet))) = under_way.pop() else { break };
            if is_marked {
                mark(&mut packet);
            }
            // A host that takes no packets loses them.
            let _ = write(&devices[1 - way], &packet);
            spare.push(packet);
        }
        let next_ns = under_way.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns);
        let begun_ns = mono_ns();
        let wait_ns = next_ns.saturating_sub(begun_ns).min(LOOKS_EVERY_NS);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait_ns).unwrap_or(0) };
        let mut fds: Vec<PollFd<'_>> =
            devices.iter().map(|device| PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&timeout));
        let late_ns = mono_ns().saturating_sub(begun_ns + wait_ns);
        shared.longest_late_ns.fetch_max(late_ns, Ordering::Relaxed);
    }
}

/// Marks an IPv4 packet as one that met congestion, if its sender can make use of that.
fn mark(packet: &mut [u8]) {
    let is_capable = packet.len() >= 20 && packet[0] >> 4 == 4 && packet[1] & 3 != 0;
    if !is_capable {
        return;
    }
    packet[1] |= 3;
    // RFC 1071.
    packet[10..12].fill(0);
    let len = usize::from(packet[0] & 15) * 4;
    let words = packet[..len.min(packet.len())]
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    #[allow(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    let checksum = !(folded as u16);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Departures, Spec, Testbed, retry_until};
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    #[test]
    fn marked_packet_has_a_checksum_that_holds() {
        let mut packet = [0x45, 0x02, 0, 20, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 90, 0, 1, 10, 90, 0, 2];
        mark(&mut packet);
        assert_eq!(packet[1], 3);
        let sum: u32 = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let mut other = packet;
        other[1] = 0;
        let before = other;
        mark(&mut other);
        assert_eq!(other, before, "its sender could make no use of it");
    }

    #[test]
    fn root_packets_take_as_long_as_the_link_says_and_find_no_room_in_a_full_buffer() {
        if crate::supported().is_err() {
            return;
        }
        let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).unwrap();
        let way = LinkSpec::of(30_000_000).with_rate(8_000_000, 10_300);
        let emulator = Emulator::between(testbed.host(1), testbed.host(2), [way, LinkSpec::of(0)], 1).unwrap();
        let bind = |host: usize| {
            let address = Emulator::address(host - 1);
            testbed.host(host).run_in(|| UdpSocket::bind((address, 7000)).unwrap()).unwrap()
        };
        let (here, there) = (bind(1), bind(2));
        there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut departures, mut times) = (Departures::of(testbed.host(1), DEVICE).unwrap(), Vec::new());
        retry_until("a packet whose time is known", Duration::from_secs(10), || {
            here.send_to(&[0], (Emulator::address(1), 9)).unwrap();
            departures.take(&mut times).unwrap();
            if times.is_empty() { Err("none".into()) } else { Ok(()) }
        })
        .unwrap();
        let begun = Instant::now();
        for at in 0..20_u8 {
            here.send_to(&[at; 1000], (Emulator::address(1), 7000)).unwrap();
        }
        let mut buffer = [0; 1500];
        let mut came = Vec::new();
        while came.len() < 10 {
            let (len, _) = there.recv_from(&mut buffer).unwrap();
            assert_eq!(len, 1000);
            came.push(buffer[0]);
        }
        // Never sooner than the link lets it; how much later is the machine's.
        assert!(begun.elapsed() >= Duration::from_micros(30_000 + 10 * 1028), "{:?}", begun.elapsed());
        assert_eq!(came, (0..10).collect::<Vec<u8>>());
        let (queue_ns, dropped) = emulator.take_longest_queue_ns(0);
        assert_eq!(dropped, 10);
        assert!((8_000_000..=9_300_000).contains(&queue_ns), "{queue_ns}");
        let lost = departures.take(&mut times).unwrap();
        let sent: Vec<u64> = times.iter().filter(|(_, bytes)| *bytes == 1028).map(|(at_ns, _)| *at_ns).collect();
        assert!(sent.len() == 20 && sent.is_sorted() && lost == 0, "{times:?}");
        // The host may say something by itself.
        let seen = emulator.seen(0);
        assert!(seen.packets >= 20 && seen.bytes >= 20 * 1028 && seen.dropped == 10, "{seen:?}");
        let queue_bytes = emulator.take_longest_queue_bytes(0);
        assert!((8000..=9300).contains(&queue_bytes), "{queue_bytes}");
        assert_eq!(emulator.take_longest_queue_bytes(0), 0);
        there.send_to(b"back", (Emulator::address(0), 7000)).unwrap();
        here.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(here.recv_from(&mut buffer).unwrap().0, 4);
    }
}
