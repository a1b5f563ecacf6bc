// SPDX-License-Identifier: Apache-2.0
//! The examples do what they say.

#[allow(dead_code, reason = "its main")]
#[path = "../examples/modes.rs"]
mod modes;

#[test]
fn modes_carry_the_same_samples() {
    let count = 100 * 256;
    let sum = (0..count).map(|number| number * number).sum();
    for (mode, got) in modes::sums().unwrap() {
        assert_eq!(got, (count, sum), "{mode}");
    }
}
