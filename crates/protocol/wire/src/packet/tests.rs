// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::*;
use proptest::prelude::*;

const KEY: Key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

fn golden(text: &str) -> Vec<u8> {
    let digits: String =
        text.lines().flat_map(|l| l.split('#').next().unwrap_or("").split_whitespace().collect::<Vec<_>>()).collect();
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn check_golden(text: &str, plane: u8, build: impl FnOnce(&mut [u8]) -> usize) {
    let mut buf = [0u8; PAYLOAD_MAX];
    let len = build(&mut buf);
    seal(&mut buf[..len], plane, &KEY);
    assert_eq!(golden(text), buf[..len].to_vec());
    assert_eq!(verify(&buf[..len], &KEY.into()), Ok(()));
    fuzz::fuzz_body(&buf[..len]);
}

fn roster() -> Roster {
    Roster {
        slot: 3,
        state: ProcessState::Alive,
        name: Some(Name::try_from("redis").unwrap()),
        incarnation: 7,
        pb_seq: 2,
        at_ns: 100_000_000,
    }
}

fn full_heartbeat(buf: &mut [u8]) -> usize {
    let mut b = Builder::heartbeat(buf, 2, 0x11, 0x1122_3344_5566_7788).unwrap();
    b.push_ack(Ack { incarnation: 5, seq_low: 1000 }).unwrap();
    b.push_ack(Ack::default()).unwrap();
    b.roster(&roster()).unwrap();
    b.piggyback(3, 2, b"abc").unwrap();
    b.view(&ViewRepr::steady(ViewId { generation: 0x11, number: 4 })).unwrap();
    b.promise(1500).unwrap();
    assert_eq!(b.excluded([(3, 9)].into_iter()), Ok(1));
    b.goodbye().unwrap();
    b.monitor(&Monitor { target_host: 1, target_slot: HOST_SLOT, watcher_slot: 3, timeout_us: 1500, pbsize: 128 })
        .unwrap();
    b.finish()
}

fn long_view() -> ViewRepr {
    let mut three = Membership::EMPTY;
    three.insert(1, 5);
    three.insert(2, 9);
    three.insert(3, 4);
    let mut two = three;
    two.remove(3);
    ViewRepr {
        id: ViewId { generation: 9, number: 2 },
        members: Some(three),
        wait_us: 63_000,
        acceptor: Some((0x101, 4)),
        accepted: Some((0x101, two)),
        binds_us: 3_300,
        proposal: Some(Proposal { ballot: 0x101, value: Some(two) }),
    }
}

#[test]
fn golden_heartbeat() {
    check_golden(include_str!("../../golden/heartbeat.txt"), 1, full_heartbeat);
}

#[test]
fn golden_notice() {
    let roster = Roster {
        slot: 2,
        state: ProcessState::Killed(9),
        name: Some(Name::try_from("left-out").unwrap()),
        incarnation: 1,
        pb_seq: 0,
        at_ns: 123_456_789,
    };
    check_golden(include_str!("../../golden/notice.txt"), 0, |buf| Builder::notice(buf, 1, 5, 42, &roster).unwrap());
}

#[test]
fn golden_view() {
    check_golden(include_str!("../../golden/view.txt"), 0, |buf| {
        let mut b = Builder::heartbeat(buf, 1, 5, 1).unwrap();
        b.view(&long_view()).unwrap();
        b.finish()
    });
}

#[test]
fn golden_echo() {
    check_golden(include_str!("../../golden/echo.txt"), 0, |buf| {
        let mut b = Builder::heartbeat(buf, 1, 5, 1).unwrap();
        b.push_ack(Ack::default()).unwrap();
        b.push_ack(Ack::default()).unwrap();
        assert_eq!(b.echoes([(2, 0x11, 0x1122_3344_5566_7788), (3, 9, 7)].into_iter()), Ok(2));
        b.finish()
    });
}

#[test]
fn that_all_are_named_is_an_empty_section() {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, 1, 5, 1).unwrap();
    b.all_named().unwrap();
    let len = b.finish();
    assert_eq!(buf[HEADER_LEN..len], [9, 0, 0, 0]);
    fuzz::fuzz_body(&buf[..len]);
    let body = |slot, bytes| Section { kind: section::ALL_NAMED, slot, bytes }.body();
    assert_eq!(body(0, &[]), Ok(Body::AllNamed));
    assert_eq!(body(0, &[1]), Err(SectionError::Length { kind: section::ALL_NAMED, len: 1, need: 0 }));
    assert!(matches!(body(1, &[]), Err(SectionError::Slot { .. })));
}

#[test]
fn echoes_are_read_and_what_does_not_fit_is_left_out() {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, 1, 5, 1).unwrap();
    assert_eq!(b.echoes(std::iter::empty()), Ok(0), "no empty section");
    let many = (0..1000).map(|i| (1 + i % 64, u32::from(i), 1 << 40));
    let fit = (PAYLOAD_MAX - HEADER_LEN - SECTION_HEADER_LEN) / ECHO_LEN;
    assert_eq!(b.echoes(many.clone()), Ok(fit));
    assert_eq!(b.echoes(many.clone()), Ok(0));
    let len = b.finish();
    let packet = Packet::new(&buf[..len]).unwrap();
    let Some(Body::Echo(echoes)) = packet.bodies().next() else { panic!("no echoes") };
    assert!(echoes.iter().eq(many.take(fit)));
    let refused = |bytes: &[u8]| Section { kind: section::ECHO, slot: 0, bytes }.body().unwrap_err();
    assert_eq!(refused(&[]), SectionError::Length { kind: section::ECHO, len: 0, need: 16 });
    assert_eq!(refused(&[1; 17]), SectionError::Length { kind: section::ECHO, len: 17, need: 32 });
    assert_eq!(refused(&[0; 16]), SectionError::Host { host: 0 });
}

#[test]
fn reads_what_it_wrote() {
    let mut buf = [0u8; PAYLOAD_MAX];
    let len = full_heartbeat(&mut buf);
    let p = Packet::new(&buf[..len]).unwrap();
    assert_eq!((p.kind(), p.plane(), p.sender(), p.incarnation()), (Kind::Heartbeat, 0, 2, 0x11));
    assert_eq!(p.ack(1), Some(Ack { incarnation: 5, seq_low: 1000 }));
    assert_eq!(p.ack(3), Some(Ack::default()));
    assert_eq!((p.ack(2), p.ack(4), p.ack(0)), (None, None, None));
    let bodies: Vec<Body<'_>> = p.bodies().collect();
    assert_eq!(bodies.len(), 7);
    assert_eq!(bodies[0], Body::Roster(roster()));
    assert_eq!(bodies[1], Body::Piggyback { slot: 3, pb_seq: 2, bytes: b"abc" });
    assert!(matches!(bodies[4], Body::Excluded(e) if e.iter().eq([(3, 9)])));
}

#[test]
fn the_longest_view_fits_beside_the_fixed_parts() {
    let all = Membership { hosts: u64::MAX, incarnations: [u32::MAX; MAX_HOSTS] };
    let view = ViewRepr {
        id: ViewId { generation: 1, number: 1 },
        members: Some(all),
        wait_us: 1,
        acceptor: Some((1, 1)),
        accepted: Some((1, all)),
        binds_us: 1,
        proposal: Some(Proposal { ballot: 1, value: Some(all) }),
    };
    assert_eq!(view.wire_len(), view::VIEW_MAX_LEN);
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, 1, 1, 1).unwrap();
    for _ in 0..63 {
        b.push_ack(Ack::default()).unwrap();
    }
    assert_eq!(b.push_ack(Ack::default()), Err(BuildError::AckOrder));
    b.view(&view).unwrap();
    b.promise(1).unwrap();
    assert!(b.remaining() >= SECTION_HEADER_LEN + ROSTER_LEN + MAX_NAME, "room for a roster entry stays");
    let len = b.finish();
    assert!(Packet::new(&buf[..len]).unwrap().bodies().any(|b| matches!(b, Body::View(v) if v.repr() == view)));
}

#[test]
fn the_piggyback_maximum_fits_and_one_more_does_not() {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, 1, 1, 1).unwrap();
    b.push_ack(Ack::default()).unwrap();
    b.piggyback(0, 1, &[7; PIGGYBACK_MAX]).unwrap();
    let room = b.remaining();
    assert_eq!(b.section(99, 0, &[], &[0; 64][..room]), Err(BuildError::NoRoom { need: room + 4, room }));
    let len = b.finish();
    assert!(Packet::new(&buf[..len]).is_ok());
}

#[test]
fn refusals_say_what_was_wrong() {
    let mut good = [0u8; PAYLOAD_MAX];
    let len = full_heartbeat(&mut good);
    let with = |at: usize, value: u8| {
        let mut b = good;
        b[at] = value;
        Packet::new(&b[..len]).map(|_| ()).unwrap_err()
    };
    assert_eq!(Packet::new(&good[..27]).unwrap_err(), PacketError::Length { len: 27 });
    assert_eq!(Packet::new(&[0u8; 1473]).unwrap_err(), PacketError::Length { len: 1473 });
    assert_eq!(with(0, 0), PacketError::Magic { magic: 0xf100 });
    assert_eq!(with(2, 0x21), PacketError::Version { version: 2 });
    assert_eq!(with(2, 0x13), PacketError::Kind { kind: 3 });
    assert_eq!(with(2, 0x12), PacketError::Notice);
    assert_eq!(with(3, 2), PacketError::Plane { plane: 2 });
    assert_eq!(with(4, 0), PacketError::Sender { sender: 0 });
    assert_eq!(with(4, 65), PacketError::Sender { sender: 65 });
    assert_eq!(with(6, 64), PacketError::Acks { acks: 64 });
    assert_eq!(with(7, 6), PacketError::Trailing { left: 16 });
    assert_eq!(with(7, 8), PacketError::Truncated { index: 7 });
    let roster_at = HEADER_LEN + 16 + 4;
    assert_eq!(with(roster_at, 6), PacketError::Section { index: 0, error: SectionError::State { state: 6 } });
    assert!(with(2, 0x21).to_string().contains("speaks version 1"));
}

#[test]
fn unknown_sections_are_skipped() {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, 1, 1, 1).unwrap();
    b.section(200, 77, &[1, 2, 3], &[]).unwrap();
    b.promise(5).unwrap();
    let len = b.finish();
    let p = Packet::new(&buf[..len]).unwrap();
    assert_eq!(p.bodies().collect::<Vec<_>>(), vec![Body::Unknown, Body::Promise { timeout_us: 5 }]);
}

#[test]
fn excluded_takes_what_fits() {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf[..HEADER_LEN + 4 + 20], 1, 1, 1).unwrap();
    assert_eq!(b.excluded((1..=5).map(|h| (h, 1))), Ok(2));
    assert_eq!(b.excluded((1..=5).map(|h| (h, 1))), Ok(0));
    let len = b.finish();
    assert!(Packet::new(&buf[..len]).is_ok());
}

prop_compose! {
    fn any_membership()(hosts in any::<u64>(), seed in any::<u32>()) -> Membership {
        let mut m = Membership::EMPTY;
        for id in 1..=64u16 { if hosts >> (id - 1) & 1 == 1 { m.insert(id, seed.wrapping_mul(u32::from(id))); } }
        m
    }
}

prop_compose! {
    fn any_view()(
        generation in any::<u32>(), number in any::<u32>(), times in any::<(u32, u32)>(),
        members in proptest::option::of(any_membership()),
        acceptor in proptest::option::of(any::<(u32, u64)>()),
        accepted in proptest::option::of((any::<u32>(), any_membership())),
        proposal in proptest::option::of((any::<u32>(), proptest::option::of(any_membership()))),
    ) -> ViewRepr {
        ViewRepr {
            id: ViewId { generation, number }, members, acceptor, accepted,
            wait_us: members.map_or(0, |_| times.0), binds_us: accepted.map_or(0, |_| times.1),
            proposal: proposal.map(|(ballot, value)| Proposal { ballot, value }),
        }
    }
}

prop_compose! {
    fn any_roster()(
        slot in 0u8..64, state in 1u8..=5, name in proptest::option::of("[A-Za-z0-9._-]{1,31}"),
        incarnation in any::<u32>(), pb_seq in any::<u32>(), code in any::<i32>(), at_ns in any::<u64>(),
    ) -> Roster {
        Roster {
            slot, state: ProcessState::from_bytes(state, code).unwrap(), name: name.map(|n| Name::try_from(n.as_str()).unwrap()),
            incarnation, pb_seq, at_ns,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn round_trip(
        sender in 1u16..=64, incarnation in any::<u32>(), seq in any::<u64>(),
        acks in proptest::collection::vec(any::<(u32, u32)>(), 0..8),
        view in any_view(), roster in any_roster(), promise in any::<u32>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..64), pb_seq in 1u32..,
    ) {
        let mut buf = [0u8; PAYLOAD_MAX];
        let mut b = Builder::heartbeat(&mut buf, sender, incarnation, seq).unwrap();
        for (incarnation, seq_low) in &acks { b.push_ack(Ack { incarnation: *incarnation, seq_low: *seq_low }).unwrap(); }
        b.view(&view).unwrap();
        b.roster(&roster).unwrap();
        b.promise(promise).unwrap();
        b.piggyback(roster.slot, pb_seq, &bytes).unwrap();
        let len = b.finish();
        let p = Packet::new(&buf[..len]).unwrap();
        prop_assert_eq!((p.sender(), p.incarnation(), p.seq()), (sender, incarnation, seq));
        let seen = p.bodies().find_map(|body| if let Body::View(view) = body { Some(view) } else { None });
        prop_assert_eq!(seen.map(|seen| (seen.id(), seen.repr())), Some((view.id, view)));
        let expected = vec![
            Body::View(seen.unwrap()), Body::Roster(roster), Body::Promise { timeout_us: promise },
            Body::Piggyback { slot: roster.slot, pb_seq, bytes: &bytes },
        ];
        prop_assert_eq!(p.bodies().collect::<Vec<_>>(), expected);
        let heard: Vec<_> = (1..=64).filter_map(|h| p.ack(h)).map(|a| (a.incarnation, a.seq_low)).collect();
        prop_assert_eq!(heard, acks);
        fuzz::fuzz_body(&buf[..len]);
    }

    #[test]
    fn any_flip_is_seen(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut buf = [0u8; PAYLOAD_MAX];
        let len = full_heartbeat(&mut buf);
        seal(&mut buf[..len], 0, &KEY);
        buf[at.index(len)] ^= flip;
        prop_assert!(verify(&buf[..len], &KEY.into()).is_err() || Packet::new(&buf[..len]).is_err());
    }

    #[test]
    fn truncation_never_panics(cut in any::<prop::sample::Index>()) {
        let mut buf = [0u8; PAYLOAD_MAX];
        let len = full_heartbeat(&mut buf);
        let cut = cut.index(len);
        fuzz::fuzz_body(&buf[..cut]);
        prop_assert!(Packet::new(&buf[..cut]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz::fuzz_body(&bytes);
    }

    #[test]
    fn nearly_good_bytes_never_panic(
        acks in 0u8..4, sections in 0u8..4, mut bytes in proptest::collection::vec(0u8..16, 28..160),
    ) {
        bytes[0..8].copy_from_slice(&[0xde, 0xf1, 0x11, 0, 1, 0, acks, sections]);
        fuzz::fuzz_body(&bytes);
    }
}
