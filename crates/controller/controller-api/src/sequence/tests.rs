// SPDX-License-Identifier: Apache-2.0

use super::*;
use proptest::prelude::*;

fn at(incarnation: u64, number: u64) -> Sequence {
    Sequence { incarnation, number }
}

proptest! {
    #[test]
    fn header_is_read_strictly(text in prop_oneof![".{0,60}", "[0-9.+ -]{0,45}"]) {
        if let Ok(sequence) = text.parse::<Sequence>() {
            prop_assert_eq!(sequence.to_string(), text);
            prop_assert!(sequence.incarnation > 0 && sequence.number > 0);
        }
    }

    #[test]
    fn header_is_read_back(incarnation in 1..=u64::MAX, number in 1..=u64::MAX) {
        prop_assert_eq!(at(incarnation, number).to_string().parse::<Sequence>(), Ok(at(incarnation, number)));
    }
}
