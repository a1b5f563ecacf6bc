// SPDX-License-Identifier: Apache-2.0
//! Who may speak: the program and `fide-wire` agree about every tag.

use fide_wire::{HEADER_LEN, Key, PAYLOAD_MAX, tag};
use proptest::{prelude::*, test_runner::TestRunner};

use super::rig::{Beat, KEY, Rig, XDP_DROP, frame};
use crate::intf::Admit;

/// Bytes without a pattern, the same every time.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

fn signed(mut payload: Vec<u8>, key: &Key) -> Vec<u8> {
    let tag = tag(key, &payload);
    payload[16..24].copy_from_slice(&tag.to_le_bytes());
    payload
}

#[test]
fn root_tags_agree_for_every_length() {
    let Some(mut rig) = Rig::new() else { return };
    for len in HEADER_LEN..=PAYLOAD_MAX {
        let before = rig.receive.stats();
        let mut payload = signed(noise(len, len as u64), &KEY);
        assert_eq!(rig.run(&payload), XDP_DROP);
        let good = rig.receive.stats();
        assert_eq!(good.bad_tag, before.bad_tag, "{len} bytes: its tag was not believed");
        payload[16 + len % 8] ^= 1 << (len % 7);
        assert_eq!(rig.run(&payload), XDP_DROP);
        assert_eq!(rig.receive.stats().bad_tag, good.bad_tag + 1, "{len} bytes: a forged tag was believed");
    }
    let _ = rig.wakes();
}

#[test]
fn root_tags_agree_for_any_key_and_contents() {
    let keys = any::<[u8; 16]>();
    let contents = proptest::collection::vec(any::<u8>(), HEADER_LEN..=PAYLOAD_MAX);
    let Some(rig) = Rig::new() else { return };
    TestRunner::default()
        .run(&(keys, contents, any::<bool>()), |(key, payload, truly)| {
            rig.receive.set_key(0, Some(&key));
            let key = Key(key);
            let payload = if truly { signed(payload, &key) } else { payload };
            let believed = payload[16..24] == tag(&key, &payload).to_le_bytes();
            let before = rig.receive.stats().bad_tag;
            rig.run(&payload);
            prop_assert_eq!(rig.receive.stats().bad_tag == before, believed);
            Ok(())
        })
        .expect("agree");
}

/// The packets that `fide-wire` keeps as text.
fn golden(text: &str) -> Vec<u8> {
    let digits: String = text.lines().flat_map(|line| [line.split('#').next().unwrap_or(""), " "]).collect();
    let bytes: Vec<&str> = digits.split_ascii_whitespace().collect();
    bytes.iter().map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect()
}

#[test]
fn root_golden_packets_are_authentic() {
    let Some(rig) = Rig::new() else { return };
    for text in [
        include_str!("../../../../protocol/wire/golden/heartbeat.txt"),
        include_str!("../../../../protocol/wire/golden/notice.txt"),
    ] {
        rig.run(&golden(text));
    }
    // Of a cluster of three, so that it is refused, but not for its tag.
    let stats = rig.receive.stats();
    assert_eq!((stats.bad_tag, stats.malformed), (0, 0), "{stats:?}");
}

#[test]
fn root_a_flipped_bit_anywhere_is_a_bad_tag_and_changes_nothing() {
    let Some(mut rig) = Rig::new() else { return };
    assert_eq!(rig.run(&Beat::of(1, 10).plain()), XDP_DROP);
    let before = (rig.slots(), rig.receive.stats());
    let good = Beat::of(1, 11).with(|b| b.promise(1500).expect("room"));
    for bit in 0..good.len() * 8 {
        let mut forged = good.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(rig.run(&forged), XDP_DROP);
    }
    let stats = rig.receive.stats();
    assert_eq!(stats.bad_tag, before.1.bad_tag + good.len() as u64 * 8);
    assert_eq!((stats.accepted, stats.malformed, stats.stale, stats.replayed), (1, 0, 0, 0));
    assert_eq!(rig.slots(), before.0);
    assert!(rig.wakes().is_empty());
    // The window did not move either.
    rig.run(&good);
    assert_eq!(rig.receive.stats().accepted, 2);
}

#[test]
fn root_two_keys_while_they_change_and_one_after() {
    let Some(rig) = Rig::new() else { return };
    let new = Key([9; 16]);
    let accepted = |seq, key| {
        let before = rig.receive.stats().accepted;
        rig.run(&Beat::of(1, seq).key(key).plain());
        rig.receive.stats().accepted > before
    };
    assert!(accepted(1, KEY) && !accepted(2, new));
    rig.receive.set_key(1, Some(&KEY.0));
    rig.receive.set_key(0, Some(&new.0));
    assert!(accepted(3, KEY) && accepted(4, new), "both while keys are being changed");
    rig.receive.set_key(1, None);
    assert!(!accepted(5, KEY) && accepted(6, new), "only the new one after");
    rig.receive.set_key(0, None);
    assert!(!accepted(7, KEY) && !accepted(8, new), "nobody without a key");
    assert!(!accepted(9, Key([0; 16])), "a cleared key is none, not zeroes");
}

#[test]
fn root_a_wrong_tag_is_refused_before_anything_is_believed() {
    let Some(mut rig) = Rig::new() else { return };
    rig.receive.admit(1, Admit::default());
    let mut forged = Beat::of(1, 1).incarnation(u32::MAX).plain();
    forged[20] ^= 1;
    rig.run_frame(&frame(&forged));
    let stats = rig.receive.stats();
    assert_eq!((stats.bad_tag, stats.stale, stats.foreign), (1, 0, 0));
    assert!(rig.wakes().is_empty(), "an unknown incarnation is news only from somebody with the key");
}

#[test]
fn root_shape_is_handed_on_under_the_plain_key_alone() {
    let Some(mut rig) = Rig::new() else { return };
    let shape = fide_wire::Shape { trust: 2, policy: 2, members: 9, cluster: 1, list: 2 };
    // Of a host that has this one's number, and more members.
    let mut packet = shape.packet(super::rig::ME, &"h9".parse().expect("a name"), 5);
    fide_wire::seal(&mut packet, 0, &Key([9; 16]));
    rig.run(&packet);
    assert_eq!(rig.receive.stats().bad_tag, 1, "no plain key yet");
    rig.receive.set_plain_key(1, Some(&[9; 16]));
    rig.run(&packet);
    let wakes = rig.wakes();
    let [(wake, payload)] = wakes.as_slice() else { panic!("{wakes:?}") };
    assert_eq!((wake.detail, payload.as_slice()), (crate::intf::PACKET_SHAPE, packet.as_slice()));
    // Few of many, and none under the key of tags; nor does anything else go under the plain one.
    let stats = rig.receive.stats();
    for _ in 0..1000 {
        rig.run(&packet);
    }
    assert!(rig.wakes().len() < 1000, "every one was handed on");
    fide_wire::seal(&mut packet, 0, &KEY);
    rig.run(&packet);
    rig.run(&Beat::of(1, 1).key(Key([9; 16])).plain());
    assert_eq!(rig.receive.stats().bad_tag, stats.bad_tag + 2);
    assert!(rig.wakes().is_empty());
}
