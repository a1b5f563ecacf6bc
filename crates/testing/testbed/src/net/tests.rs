// SPDX-License-Identifier: Apache-2.0
use super::*;

fn refused(spec: Spec) -> String {
    spec.check().unwrap_err().to_string()
}

#[test]
fn spec_out_of_bounds_has_a_hint() {
    assert!(refused(Spec::hosts(0)).contains("1 to 64"));
    assert!(refused(Spec::hosts(65)).contains("1 to 64"));
    let planes = Spec { planes: 3, ..Spec::default() };
    assert!(refused(planes).contains("1 or 2"));
    let rate = Spec { rate_mbit: Some(0), ..Spec::default() };
    assert!(refused(rate).contains("1 or more"));
    let tree = Tree { plane: 0, group: Ipv4Addr::new(10, 0, 0, 1), receivers: vec![1] };
    let trees = Spec { multicast: Multicast::Trees(vec![tree]), ..Spec::default() };
    assert!(refused(trees).contains("224.0.0.0/4"));
    assert!(Spec::hosts(64).check().is_ok());
}

#[test]
fn addresses_and_macs_tell_host_and_plane() {
    assert_eq!(address(64, 1), Ipv4Addr::new(10, 70, 2, 64));
    assert_eq!(mac(64, 1), "02:f1:de:00:01:40");
}
