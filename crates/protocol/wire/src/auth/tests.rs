// SPDX-License-Identifier: Apache-2.0
use super::*;

fn unhex(text: &str) -> Vec<u8> {
    let text: String = text.split_whitespace().collect();
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn siphash_reference_vectors() {
    let text = include_str!("../../golden/siphash.txt");
    let key: Key = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
    let mut checked = 0;
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let (message, value) = line.split_once('|').unwrap();
        let mut hasher = SipHasher24::new_with_key(&key.0);
        hasher.write(&unhex(message));
        assert_eq!(hasher.finish().to_le_bytes().to_vec(), unhex(value), "{line}");
        checked += 1;
    }
    assert_eq!(checked, 4);
}

#[test]
fn keys_are_parsed_and_never_shown() {
    let key: Key = "000102030405060708090A0b0c0d0e0f\n".parse().unwrap();
    assert_eq!(key.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(format!("{key:?}"), "Key(..)");
    assert_eq!("00".parse::<Key>(), Err(KeyError::Length { len: 2 }));
    assert_eq!("0001020304050607080g0a0b0c0d0e0f".parse::<Key>(), Err(KeyError::Digit { at: 19 }));
}

#[test]
fn the_previous_key_is_accepted_until_dropped() {
    let (old, new) = (Key([1; 16]), Key([2; 16]));
    let mut payload = [9u8; 40];
    seal(&mut payload, 1, &old);
    assert_eq!(payload[PLANE_OFFSET], 1);
    assert_eq!(verify(&payload, &Keys { current: new, previous: Some(old) }), Ok(()));
    assert_eq!(verify(&payload, &new.into()), Err(WrongTag));
    assert_eq!(verify(&payload, &old.into()), Ok(()));
    assert_eq!(verify(&payload[..23], &old.into()), Err(WrongTag));
}
