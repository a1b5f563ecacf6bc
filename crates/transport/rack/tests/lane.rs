// SPDX-License-Identifier: Apache-2.0
//! What the agents of two hosts send each other, through windows: packets of lanes and heartbeats.

use std::{array, fs::File};

use fide_detector::{Config, Detector, Event, Member, Policy, Role, Trust};
use fide_lane::{Inlet, Outlet, Terms};
use fide_rack::{
    packets::{Dropped, Inbox, Outbox},
    pci::{PciWindow, Side},
    shm::ShmWindow,
    window::Window,
};
use fide_types::{HostId, HostSet};
use fide_wire::{Key, Keys, PAYLOAD_MAX, chunk, chunk::ChunkPacket, message, seal, verify};

const KEY: Key = Key([3; 16]);
const PERIOD_NS: u64 = 1_000_000;
/// Words of each part: room for a few dozen packets of a lane.
const WORDS: usize = 512;

/// An end of a window, with what sends and receives through it.
struct Link {
    window: Box<dyn AnyWindow>,
    outbox: Outbox,
    inbox: Inbox,
}

/// A window of either kind.
trait AnyWindow {
    fn send(&self, outbox: &mut Outbox, packet: &[u8]) -> Result<(), Dropped>;
    fn receive(&self, inbox: &mut Inbox, into: &mut [u8]) -> Option<usize>;
    fn write_garbage(&self, number: u64);
}

impl<W: Window> AnyWindow for W {
    fn send(&self, outbox: &mut Outbox, packet: &[u8]) -> Result<(), Dropped> {
        outbox.send(self, packet)
    }

    fn receive(&self, inbox: &mut Inbox, into: &mut [u8]) -> Option<usize> {
        inbox.receive(self, into)
    }

    fn write_garbage(&self, number: u64) {
        let mixed = (number ^ number >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let at = usize::try_from(mixed >> 20).unwrap() % (self.len() / 8);
        // Often where the ring's own words are.
        self.publish(if number.is_multiple_of(2) { at } else { at % 20 } * 8, mixed >> (number % 64));
    }
}

impl Link {
    fn new<W: Window + 'static>(window: W, number: u64) -> Self {
        Self { outbox: Outbox::new(&window, number), inbox: Inbox::new(&window, number), window: Box::new(window) }
    }

    fn send(&mut self, packet: &[u8]) -> Result<(), Dropped> {
        self.window.send(&mut self.outbox, packet)
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> Option<usize> {
        self.window.receive(&mut self.inbox, buffer)
    }
}

/// Within a host.
fn in_memory() -> [Link; 2] {
    ShmWindow::<WORDS>::pair().unwrap().map(|window| Link::new(window, 1))
}

/// As between two hosts: each end has a mapping of its own.
fn through_device() -> [Link; 2] {
    let file = tempfile::tempfile().unwrap();
    file.set_len((2 * WORDS * 8) as u64).unwrap();
    let open = |file: File, side| Link::new(PciWindow::of_file(file, side).unwrap(), 1);
    [open(file.try_clone().unwrap(), Side::First), open(file, Side::Second)]
}

/// Over two trees, of which one stands still for a while: its packets are dropped and counted, and the lane loses nothing.
#[test]
fn lane_over_two_windows_delivers_each_message_once() {
    const COUNT: u32 = 300;
    let (scheme, packet_max_bytes) = message::best_scheme(1, 40).unwrap();
    let mut outlet = Outlet::new(0, 1, Terms { packet_max_bytes, period_ns: PERIOD_NS, scheme }, 1);
    let mut trees = [in_memory(), through_device()];
    let (mut inlet, mut delivered) = (Inlet::default(), Vec::new());
    let mut full = 0_u64;
    for number in 0..COUNT {
        let now = u64::from(number + 1) * PERIOD_NS;
        outlet.offer(now, 9, &[&number.to_le_bytes()[..], &[7; 36]].concat()).unwrap();
        let packet = outlet.poll(now, 1).unwrap().unwrap();
        for (plane, [here, _]) in (0_u8..).zip(&mut trees) {
            chunk::seal(packet, plane, &KEY);
            full += u64::from(here.send(packet) == Err(Dropped::Full));
        }
        for (tree, [_, there]) in trees.iter_mut().enumerate() {
            let stands_still = (100..200).contains(&number) && tree == 0;
            let mut buffer = [0; PAYLOAD_MAX + 1];
            while !stands_still && let Some(len) = there.receive(&mut buffer) {
                assert!(verify(&buffer[..len], &Keys::from(KEY)).is_ok());
                let packet = ChunkPacket::new(&buffer[..len]).unwrap();
                inlet.take(&packet, true, |message| {
                    delivered.push(u32::from_le_bytes(message.bytes[..4].try_into().unwrap()));
                });
            }
        }
    }
    // Before the two ends of a window have met it drops what comes.
    let first = *delivered.first().unwrap();
    assert!(first < 5 && delivered.into_iter().eq(first..COUNT), "from {first} on");
    assert_eq!(full, trees[0][0].outbox.sent().full);
    assert!(full > 0 && trees[1][0].outbox.sent().full == 0);
    assert!(inlet.received().duplicates > 0, "the other tree has brought its packets, too");
}

const HOSTS: u16 = 3;

fn config(me: HostId) -> Config {
    let member = |id| {
        let mut monitors = HostSet::first(HOSTS.into());
        monitors.remove(id);
        Member { id, name: format!("h{id}").parse().unwrap(), role: Role::Voter, monitors }
    };
    Config {
        me,
        incarnation: 1,
        members: (1..=HOSTS).map(member).collect(),
        planes: 1,
        heartbeat_ns: PERIOD_NS,
        trust: Trust::Lease,
        policy: Policy::Majority,
        timeout_ns: 5 * PERIOD_NS,
        stall_slack_ns: PERIOD_NS,
        drift_ppm: 200,
        piggyback_max: 1418,
        payload_max: PAYLOAD_MAX,
    }
}

struct Host {
    detector: Detector,
    /// To each host, from the first on; none to itself.
    links: [Option<Link>; HOSTS as usize],
    verdicts: Vec<Event>,
    refused: u64,
}

impl Host {
    fn turn(&mut self, now: u64) {
        let mut buffer = [0; PAYLOAD_MAX + 1];
        for link in self.links.iter_mut().flatten() {
            while let Some(len) = link.receive(&mut buffer) {
                // As the agent does with what comes over a wire.
                let is_whole = len <= PAYLOAD_MAX && verify(&buffer[..len], &Keys::from(KEY)).is_ok();
                if !is_whole || self.detector.handle_packet(now, now, 0, &buffer[..len]).is_err() {
                    self.refused += 1;
                }
            }
        }
        self.detector.tick(now);
        let mut packet = [0; PAYLOAD_MAX];
        while let Some(transmit) = self.detector.poll_transmit(now, &mut packet) {
            seal(&mut packet[..transmit.len], 0, &KEY);
            for link in self.links.iter_mut().flatten() {
                let _ = link.send(&packet[..transmit.len]);
            }
        }
        while let Some(event) = self.detector.poll_event() {
            if matches!(event, Event::Verdict(_) | Event::Fenced { .. } | Event::Excluded { .. }) {
                self.verdicts.push(event);
            }
        }
    }
}

/// Three hosts whose only plane is a window for each pair.
fn rack() -> [Host; HOSTS as usize] {
    let mut hosts: [Host; HOSTS as usize] = array::from_fn(|host| Host {
        detector: Detector::new(config(u16::try_from(host + 1).unwrap()), 0).unwrap(),
        links: [const { None }; HOSTS as usize],
        verdicts: Vec::new(),
        refused: 0,
    });
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let [here, there] = if b == 2 { through_device() } else { in_memory() };
        (hosts[a].links[b], hosts[b].links[a]) = (Some(here), Some(there));
    }
    hosts
}

/// The third host dies, or breaks and writes anything into its windows: it is declared dead, and nobody else is.
#[test]
fn heartbeats_through_windows_tell_who_has_died() {
    for is_broken in [false, true] {
        let mut hosts = rack();
        for turn in 0..4000_u64 {
            let now = turn * PERIOD_NS / 10;
            let is_dead = turn >= 2000;
            if turn == 2000 {
                assert!(hosts.iter().all(|host| host.verdicts.is_empty()), "{:?}", hosts[0].verdicts);
            }
            for (index, host) in hosts.iter_mut().enumerate() {
                if index < 2 || !is_dead {
                    host.turn(now);
                } else if is_broken {
                    for link in host.links.iter().flatten() {
                        (0..20).for_each(|number| link.window.write_garbage(turn * 20 + number));
                    }
                }
            }
        }
        for host in &hosts[..2] {
            let of: Vec<_> = host
                .verdicts
                .iter()
                .map(|event| match event {
                    Event::Verdict(verdict) => verdict.host,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(of, [3], "broken {is_broken}");
            let beats = host.detector.counters().heartbeats_accepted;
            assert!(beats > 500, "{beats}");
        }
    }
}
