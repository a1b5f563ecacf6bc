// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::{PLANE_OFFSET, seal, verify};
use proptest::prelude::*;

const KEY: Key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

fn shape() -> Shape {
    Shape { trust: 2, policy: 2, members: 3, cluster: 0x1122_3344_5566_7788, list: 0x99aa_bbcc_ddee_ff00 }
}

fn golden(text: &str) -> Vec<u8> {
    let digits: String = text.lines().flat_map(|l| l.split('#').next().unwrap_or("").split_whitespace()).collect();
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn golden_shape() {
    let name = "h2".parse().unwrap();
    let mut packet = shape().packet(2, &name, 0x11);
    seal(&mut packet, 1, &KEY);
    let text = golden(include_str!("../../golden/shape.txt"));
    let (derived, wanted) = text.split_at(16);
    assert_eq!(shape().key(&KEY).0, derived);
    assert_eq!(packet[PLANE_OFFSET], 1);
    assert_eq!(wanted, packet);
    assert_eq!(AnnouncedShape::read(&packet), Some(AnnouncedShape { name, incarnation: 0x11, shape: shape() }));
}

#[test]
fn hosts_that_differ_in_one_item_have_other_keys() {
    let one = shape();
    let others = [
        Shape { trust: 1, ..one },
        Shape { policy: 1, ..one },
        Shape { members: 4, ..one },
        Shape { cluster: 1, ..one },
        Shape { list: 1, ..one },
    ];
    let mut payload = [9; 60];
    for other in others {
        seal(&mut payload, 0, &other.key(&KEY));
        assert!(verify(&payload, &one.key(&KEY).into()).is_err());
        assert!(verify(&payload, &KEY.into()).is_err());
        assert_ne!(one.digest(), other.digest());
    }
    // A change of keys goes through both.
    let keys = one.keys(&Keys { current: KEY, previous: Some(Key([7; 16])) });
    seal(&mut payload, 0, &one.key(&Key([7; 16])));
    assert_eq!(verify(&payload, &keys), Ok(()));
}

#[test]
fn what_is_added_is_not_what_is_added_otherwise() {
    let of = |parts: &[&str]| {
        let mut digest = Digest::default();
        parts.iter().for_each(|part| digest.add(part.as_bytes()));
        digest.value()
    };
    assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
    assert_ne!(of(&["ab"]), of(&["ab", ""]));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..SHAPE_LEN, value: u8) {
        let _ = AnnouncedShape::read(&bytes);
        let name: Name = "h2".parse().unwrap();
        let mut packet = shape().packet(2, &name, 0x11);
        packet[at] = value;
        if let Some(announced) = AnnouncedShape::read(&packet) {
            prop_assert!(usize::from(announced.shape.members) <= MAX_HOSTS);
        }
        prop_assert_eq!(AnnouncedShape::read(&packet[..at]), None);
    }
}
