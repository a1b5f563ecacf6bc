// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    condition::How,
    machine::Copy,
    made_up::{MadeUp, Tree},
};

fn by_verdict(conditions: &[Condition], verdict: Effect) -> Vec<&str> {
    conditions.iter().filter(|condition| condition.verdict == verdict).map(|condition| condition.id).collect()
}

fn find<'a>(conditions: &'a [Condition], id: &str) -> &'a Condition {
    conditions.iter().find(|condition| condition.id == id).expect("a condition")
}

#[test]
fn ids_are_not_used_twice() {
    assert_eq!(ids().collect::<BTreeSet<_>>().len(), ids().count());
}

#[test]
fn a_good_host_is_good() {
    let conditions = conditions(&Tree::good().host(&MadeUp::good()));
    let others: Vec<_> = conditions.iter().filter(|condition| condition.verdict != Effect::Good).collect();
    assert!(others.is_empty(), "{others:#?}");
    assert_eq!(conditions.len(), ids().count(), "one interface, every condition once");
}

#[test]
fn untuned_host_is_bad_in_every_respect() {
    let conditions = conditions(&Tree::bad().host(&MadeUp::bad()));
    assert_eq!(by_verdict(&conditions, Effect::Good), Vec::<&str>::new(), "nothing");
    assert_eq!(by_verdict(&conditions, Effect::Unknown), Vec::<&str>::new());
    assert_eq!(by_verdict(&conditions, Effect::NotApplicable), ["huge-pages"], "the agent uses none");
    let irqs = find(&conditions, "irq-affinity");
    assert_eq!(irqs.found, "2 of 2: 24 nvme0q0, 25 PCI-MSIX eth0-rx-0", "9 has no device");
    assert!(irqs.change.contains("without core 3") && irqs.change.contains("irqaffinity=0-2"), "{}", irqs.change);
    assert_eq!((irqs.how, find(&conditions, "isolated-core").how), (How::Tune, How::Boot));
    assert_eq!(find(&conditions, "nic-numa").found, "node 0, with cores 0-1");
    assert_eq!(find(&conditions, "c-states").found, "deepest is C6, 133 us to leave; driver intel_idle, governor menu");
    assert_eq!(find(&conditions, "kernel-threads").found, "1: kthreadd");
}

#[test]
fn clock_is_judged_by_the_configured_drift() {
    let tree = Tree::good();
    for (off_ppm, drift_ppm, verdict) in [
        (99, 200, Effect::Good),
        (101, 200, Effect::Bad),
        (431, 1000, Effect::Good),
        (731, 1000, Effect::Bad),
        (0, 1, Effect::Good),
        (1, 1, Effect::Bad),
    ] {
        let machine = MadeUp { off_ppm, ..MadeUp::good() };
        let conditions = conditions(&Host { drift_ppm, ..tree.host(&machine) });
        let rate = find(&conditions, "clock-rate");
        assert_eq!(rate.verdict, verdict, "{off_ppm} of {drift_ppm}: {rate:?}");
        assert!(rate.wanted.contains(&format!("at most {} ppm", drift_ppm / 2)), "{}", rate.wanted);
        let least = (off_ppm / 100 * 100).max(u64::from(drift_ppm / 2) + 1);
        let found = match verdict {
            Effect::Good => format!("at most {} ppm", drift_ppm / 2),
            _ => format!("by {least} ppm or more"),
        };
        assert!(rate.found.contains(&found), "{}", rate.found);
    }
}

#[test]
fn in_a_container_without_files_all_is_unknown_and_nothing_is_guessed() {
    let tree = Tree::empty();
    let conditions = conditions(&tree.host(&Copy));
    assert_eq!(by_verdict(&conditions, Effect::Good), Vec::<&str>::new());
    // A file that the agent itself needs and that is missing is bad.
    assert_eq!(by_verdict(&conditions, Effect::Bad), ["cpu-dma-latency"]);
    assert_eq!(by_verdict(&conditions, Effect::NotApplicable), Vec::<&str>::new());
    for condition in conditions.iter().filter(|condition| condition.verdict == Effect::Unknown) {
        assert!(!condition.found.is_empty(), "says why: {condition:?}");
    }
    let fair = find(&conditions, "fair-server");
    assert!(fair.found.ends_with("proc/sys/kernel/osrelease is not there"), "{}", fair.found);
}

#[test]
fn two_looks_are_equal() {
    let (tree, machine) = (Tree::bad(), MadeUp::bad());
    let json = || serde_json::to_string(&conditions(&tree.host(&machine))).expect("JSON");
    assert_eq!(json(), json());
}

#[test]
fn conditions_of_interfaces_come_for_each() {
    let (tree, machine) = (Tree::good(), MadeUp::good());
    let mut host = tree.host(&machine);
    host.interfaces = vec!["eth0".into(), "none".into()];
    let all = conditions(&host);
    let coalescing: Vec<_> = all.iter().filter(|condition| condition.id == "coalescing").collect();
    assert_eq!(coalescing.iter().map(|c| c.interface.as_deref()).collect::<Vec<_>>(), [Some("eth0"), Some("none")]);
    host.interfaces.clear();
    assert_eq!(find(&conditions(&host), "xdp").verdict, Effect::NotApplicable);
}

#[test]
fn interfaces_that_are_up() {
    let (tree, machine) = (Tree::good(), MadeUp::good());
    assert_eq!(
        Host::up(&tree.host(&machine).roots).expect("a list"),
        ["eth0"],
        "neither loopback nor one that is down"
    );
}

#[test]
fn missing_and_hidden_kernel_features_differ() {
    let (tree, machine) = (Tree::good(), MadeUp::good());
    tree.take("sys/devices/system/cpu/nohz_full");
    tree.take("sys/kernel/security/lockdown");
    tree.take("proc/sys/kernel/numa_balancing");
    let conditions = conditions(&tree.host(&machine));
    let nohz = find(&conditions, "nohz-full");
    assert_eq!((nohz.verdict, nohz.how), (Effect::Bad, How::NotHere));
    assert_eq!(find(&conditions, "lockdown").verdict, Effect::Unknown);
    assert_eq!(find(&conditions, "numa-balancing").verdict, Effect::NotApplicable);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn garbage_in_every_file_is_survived(seed in prop::collection::vec(any::<u8>(), 1..40)) {
        let tree = Tree::good();
        for (index, path) in tree.all().keys().enumerate() {
            let cut = index % seed.len();
            let text: Vec<u8> = seed[cut..].iter().chain(&seed[..cut]).copied().collect();
            tree.put(path, &String::from_utf8_lossy(&text));
        }
        let conditions = conditions(&tree.host(&Copy));
        prop_assert_eq!(conditions.len(), ids().count());
    }
}
