// SPDX-License-Identifier: Apache-2.0
//! A peer that has the keys, and sends anything: nothing panics, nothing goes on for ever, and messages stay in order.

use fide_pace::{
    packet::{Feedback, Frame, PacesFrame, Run, Runs, Writer},
    symbol::Description,
    transport::{Algorithm, Arrival, Config, Transport},
};
use proptest::prelude::*;

/// Packets that one call after another may give at one time: more would be a loop.
const PACKETS_MAX: usize = 20_000;

/// Numbers near a border, near each other, or any.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..40_u32, 1 => 8000..17_000_u32, 1 => any::<u32>(), 1 => (u32::MAX - 5)..=u32::MAX]
}

/// One frame, with contents of its own.
#[derive(Debug, Clone)]
enum Part {
    Symbol {
        symbol: u32,
        description: Description,
        len: usize,
    },
    Data {
        symbol: u32,
        content: Vec<u8>,
    },
    Redundancy {
        first: u32,
        data: u8,
        redundancy: u8,
        index: u8,
        content: Vec<u8>,
    },
    Window {
        first: u32,
        data: u8,
        seed: u8,
        content: Vec<u8>,
    },
    Feedback(Feedback),
    Paces(PacesFrame),
    Floor(u32),
    Ping([u8; 8]),
    /// The last PING that was heard comes back.
    Pong(u32),
    Close(String),
}

fn part() -> impl Strategy<Value = Part> {
    let description = (number(), 0..3000_u32, prop_oneof![Just(0), number()], number());
    let description =
        description.prop_map(|(message, len, offset, expires_us)| Description { message, len, offset, expires_us });
    let bytes = || prop::collection::vec(any::<u8>(), 0..60);
    let runs = prop::collection::vec((1..9_u16, 1..9_u16), 0..32).prop_map(|all| {
        let mut runs = Runs::new();
        all.into_iter().for_each(|(gap, len)| assert!(runs.push(Run { gap, len })));
        runs
    });
    let feedback = (number(), number(), 1..20_u16, runs, number(), number(), number());
    let feedback = feedback.prop_map(|(largest, received_us, newest, runs, marked, lost, awaited)| Feedback {
        largest,
        received_us,
        newest,
        runs,
        marked,
        lost,
        awaited,
    });
    let paces = (any::<[u64; 5]>(), any::<u16>(), any::<u32>());
    let paces = paces.prop_map(|(paces_ns, waiting, tolerated_ppm)| PacesFrame { paces_ns, waiting, tolerated_ppm });
    let block = (number(), 1..=255_u8, 1..=255_u8, 0..=255_u8, bytes());
    prop_oneof![
        4 => (number(), description, 0..60_usize)
            .prop_map(|(symbol, description, len)| Part::Symbol { symbol, description, len }),
        1 => (number(), bytes()).prop_map(|(symbol, content)| Part::Data { symbol, content }),
        2 => block.prop_map(|(first, data, redundancy, index, content)| Part::Redundancy {
            first, data, redundancy, index: index % redundancy, content
        }),
        2 => (number(), 0..70_u8, any::<u8>(), bytes())
            .prop_map(|(first, data, seed, content)| Part::Window { first, data, seed, content }),
        4 => feedback.prop_map(Part::Feedback),
        1 => paces.prop_map(Part::Paces),
        1 => number().prop_map(Part::Floor),
        1 => any::<[u8; 8]>().prop_map(Part::Ping),
        2 => number().prop_map(Part::Pong),
        1 => "[a-z]{0,9}".prop_map(Part::Close),
    ]
}

#[derive(Debug, Clone)]
enum Action {
    Passes(u64),
    /// A packet with a number so far behind the highest one or ahead of it.
    Packet {
        ahead: i64,
        sent_us: u32,
        parts: Vec<Part>,
        is_marked: bool,
        waited_ns: u64,
    },
    Bytes(Vec<u8>),
    Sends {
        len: usize,
        deadline_ns: Option<u64>,
    },
    Takes,
}

fn action() -> impl Strategy<Value = Action> {
    let time = || prop_oneof![8 => 0..50_000_000_u64, 1 => 0..20_000_000_000_u64, 1 => 0..1_u64 << 45];
    let parts = prop::collection::vec(part(), 0..4);
    prop_oneof![
        3 => time().prop_map(Action::Passes),
        6 => (prop_oneof![8 => Just(1), 1 => -70..70_i64, 1 => any::<u32>().prop_map(i64::from)], number(), parts, any::<bool>(), time())
            .prop_map(|(ahead, sent_us, parts, is_marked, waited_ns)| Action::Packet { ahead, sent_us, parts, is_marked, waited_ns }),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Action::Bytes),
        3 => (0..5000_usize, prop::option::of(time())).prop_map(|(len, deadline_ns)| Action::Sends { len, deadline_ns }),
        1 => Just(Action::Takes),
    ]
}

struct Attacked {
    transport: Transport,
    now_ns: u64,
    largest: u64,
    last_ping: [u8; 8],
    delivered: Option<u64>,
}

impl Attacked {
    fn new(algorithm: Algorithm) -> Self {
        let now_ns = 5_000_000_000_000;
        let config = Config { algorithm, queue_max: 50, ..Config::default() };
        let transport = Transport::new(now_ns, config, 20_000);
        Self { transport, now_ns, largest: 0, last_ping: [0; 8], delivered: None }
    }

    fn open(&mut self, number: u64, plain: &[u8], arrival: Arrival) {
        // What it must not send ends the connection.
        let _ = self.transport.open(self.now_ns, number, plain, arrival);
    }

    fn packet(&mut self, sent_us: u32, parts: &[Part]) -> Vec<u8> {
        let mut plain = vec![0; 1400];
        let mut writer = Writer::new(&mut plain);
        writer.sent(sent_us.into());
        let mut ends = false;
        for part in parts {
            if ends {
                break;
            }
            let mut content = Vec::new();
            let frame = match part {
                Part::Symbol { symbol, description, len } => {
                    content.extend(description.write());
                    content.resize(content.len() + len, 7);
                    ends = true;
                    Frame::Data { symbol: *symbol, content: &content }
                }
                Part::Data { symbol, content } => {
                    ends = true;
                    Frame::Data { symbol: *symbol, content }
                }
                Part::Redundancy { first, data, redundancy, index, content } => {
                    ends = true;
                    let (first, data, redundancy, index) = (*first, *data, *redundancy, *index);
                    Frame::Redundancy { first, data, redundancy, index, content }
                }
                Part::Window { first, data, seed, content } => {
                    ends = true;
                    Frame::Window { first: *first, data: *data, seed: *seed, content }
                }
                Part::Feedback(feedback) => Frame::Feedback(*feedback),
                Part::Paces(paces) => Frame::Paces(*paces),
                Part::Floor(symbol) => Frame::Floor { symbol: *symbol },
                Part::Ping(echo) => Frame::Ping(*echo),
                Part::Pong(came_us) => Frame::Pong { echo: self.last_ping, came_us: *came_us },
                Part::Close(reason) => {
                    ends = true;
                    Frame::Close { reason }
                }
            };
            assert!(writer.frame(&frame));
        }
        let len = writer.len();
        plain.truncate(len);
        plain
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Passes(ns) => self.now_ns += ns,
            Action::Packet { ahead, sent_us, parts, is_marked, waited_ns } => {
                let number = self.largest.saturating_add_signed(*ahead);
                self.largest = self.largest.max(number);
                let plain = self.packet(*sent_us, parts);
                self.open(number, &plain, Arrival { is_marked: *is_marked, waited_ns: *waited_ns });
            }
            Action::Bytes(bytes) => {
                self.largest += 1;
                self.open(self.largest, bytes, Arrival::default());
            }
            Action::Sends { len, deadline_ns } => {
                let _ = self.transport.send(self.now_ns, &vec![3; *len], *deadline_ns);
            }
            Action::Takes => {
                while let Some(message) = self.transport.poll_message(self.now_ns) {
                    assert!(self.delivered.is_none_or(|last| last < message.number), "out of order");
                    self.delivered = Some(message.number);
                    self.transport.recycle(message);
                }
            }
        }
        self.transport.timeout(self.now_ns);
        let mut plain = [0; 1500];
        let mut count = 0;
        while let Some(written) = self.transport.write(self.now_ns, &mut plain) {
            count += 1;
            assert!(count < PACKETS_MAX, "it never stops to send");
            self.hear(&plain[4..written.len]);
        }
        assert!(self.transport.due_ns(self.now_ns) >= self.now_ns);
        let _ = self.transport.view(self.now_ns);
    }

    fn hear(&mut self, mut frames: &[u8]) {
        while let Some(frame) = fide_pace::packet::read_frame(&mut frames).expect("an end writes frames") {
            if let Frame::Ping(echo) = frame {
                self.last_ping = echo;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn peer_that_has_the_keys_and_sends_anything_breaks_nothing(
        actions in prop::collection::vec(action(), 0..120), is_level: bool,
    ) {
        let mut attacked = Attacked::new(if is_level { Algorithm::Level } else { Algorithm::XPace });
        for action in &actions {
            attacked.act(action);
        }
    }
}
