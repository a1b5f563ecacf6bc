// SPDX-License-Identifier: Apache-2.0

use fide_planner::file::parse;
use proptest::prelude::*;

use super::*;
use crate::figures::{Figure, Given, Latencies};
use crate::survey::Cable;

const PLANNED: [[&str; 4]; 5] = [
    ["h1", "p0", "l1", "h1"],
    ["h2", "p0", "l2", "h2"],
    ["l1", "s1", "s1", "l1"],
    ["l2", "s1", "s1", "l2"],
    ["l1", "s2", "s2", "l1"],
];

fn topology() -> Topology {
    let nodes = ["h1", "h2"].map(|n| format!("[[host]]\nname = \"{n}\"\n"));
    let switches = ["l1", "l2", "s1", "s2"].map(|n| format!("[[switch]]\nname = \"{n}\"\n"));
    let cables = PLANNED.map(|[a, p, b, q]| {
        format!("[[cable]]\na = \"{a}\"\na_port = \"{p}\"\nb = \"{b}\"\nb_port = \"{q}\"\nbandwidth_bps = 1000000\n")
    });
    parse(&[nodes.concat(), switches.concat(), cables.concat()].concat()).unwrap().topology
}

fn found(cables: &[[&str; 4]]) -> Survey {
    let cables: Vec<Cable> = cables
        .iter()
        .map(|[a, p, b, q]| Cable {
            a: End::new(*a, *p),
            b: End::new(*b, *q),
            host: a.starts_with('h'),
            bandwidth_bps: Figure::new(1_000_000, Source::Port),
            queue_bytes: Figure::new(1, Source::Assumed),
        })
        .collect();
    let mut hosts: Vec<String> = cables.iter().filter(|c| c.host).map(|c| c.a.node.clone()).collect();
    hosts.dedup();
    let switches = ["l1", "l2", "s1", "s2"].map(str::to_owned).into();
    Survey { hosts, switches, cables, latencies: Latencies::of(&Given::default()), odd: Vec::new() }
}

fn said(cables: &[[&str; 4]]) -> Vec<String> {
    compare(&found(cables), &topology()).iter().map(Difference::to_string).collect()
}

#[test]
fn planned_cables_differ_in_neither_direction() {
    assert_eq!(said(&PLANNED), Vec::<String>::new());
    assert_eq!(
        said(&PLANNED.map(|[a, p, b, q]| if a.starts_with('h') { [a, p, b, q] } else { [b, q, a, p] })),
        [""; 0]
    );
}

#[test]
fn cables_are_missing_extra_or_crossed() {
    assert_eq!(said(&PLANNED[..4]), ["missing: l1:s2--s2:l1"]);
    assert_eq!(said(&PLANNED[1..]), ["missing: h1:p0--l1:h1; nothing was heard of h1 at all"]);
    let mut more = PLANNED.to_vec();
    more.push(["l2", "s2", "s2", "l2"]);
    assert_eq!(said(&more), ["extra: l2:s2--s2:l2"]);
    // Two swapped.
    let mut swapped = PLANNED;
    (swapped[2], swapped[3]) = (["l1", "s1", "s1", "l2"], ["l2", "s1", "s1", "l1"]);
    let crossed = "crossed: instead of l1:s1--s1:l1, l2:s1--s1:l2 there is l1:s1--s1:l2, l2:s1--s1:l1";
    assert_eq!(said(&swapped), [crossed]);
    // One in another place.
    let mut moved = PLANNED;
    moved[4] = ["l1", "s3", "s2", "l1"];
    assert_eq!(said(&moved), ["crossed: instead of l1:s2--s2:l1 there is l1:s3--s2:l1"]);
    // Several at once, each for itself.
    let mut several = swapped.to_vec();
    several.remove(4);
    several.push(["l2", "s2", "s2", "l2"]);
    assert_eq!(said(&several), [crossed, "missing: l1:s2--s2:l1", "extra: l2:s2--s2:l2"]);
}

#[test]
fn only_known_bandwidths_below_the_plan_are_reported() {
    let mut survey = found(&PLANNED);
    survey.cables[2].bandwidth_bps = Figure::new(10, Source::Queue);
    survey.cables[3].bandwidth_bps = Figure::new(10, Source::Assumed);
    survey.cables[4].bandwidth_bps.value = 2_000_000;
    let said: Vec<String> = compare(&survey, &topology()).iter().map(Difference::to_string).collect();
    assert_eq!(said, ["slower: l1:s1--s1:l1 has 10 bit/s (the port's queue), and the file promises 1000000"]);
}

proptest! {
    /// However the ends of the planned cables are joined anew: each port that is joined otherwise is
    /// reported once.
    #[test]
    fn each_changed_port_is_reported_once(order in Just((0..10).collect::<Vec<usize>>()).prop_shuffle(), keep in 0..=5_usize) {
        let ends: Vec<End> =
            PLANNED.iter().flat_map(|[a, p, b, q]| [End::new(*a, *p), End::new(*b, *q)]).collect();
        let mut survey = found(&[]);
        for pair in order.chunks(2).take(keep) {
            let [a, b] = [pair[0], pair[1]].map(|n| ends[n].clone());
            let figure = Figure::new(1_000_000, Source::Port);
            survey.cables.push(Cable { a, b, host: false, bandwidth_bps: figure, queue_bytes: figure });
        }
        let partner = |end: &End, pairs: Vec<(End, End)>| {
            pairs.into_iter().find_map(|(a, b)| if a == *end { Some(b) } else { (b == *end).then_some(a) })
        };
        let mut changed = BTreeSet::new();
        for end in &ends {
            let planned = partner(end, ends.chunks(2).map(|p| (p[0].clone(), p[1].clone())).collect());
            let found = partner(end, survey.cables.iter().map(|c| (c.a.clone(), c.b.clone())).collect());
            if planned != found {
                changed.insert(end.clone());
            }
        }
        let mut reported = Vec::new();
        for difference in compare(&survey, &topology()) {
            let mut here = BTreeSet::new();
            match difference {
                Difference::Missing { a, b, .. } | Difference::Extra { a, b } => here.extend([a, b]),
                Difference::Crossed { planned, found } => {
                    here.extend(planned.into_iter().chain(found).flat_map(|(a, b)| [a, b]));
                }
                Difference::Slower { .. } => prop_assert!(false, "all are equally fast"),
            }
            reported.extend(here);
        }
        reported.sort();
        prop_assert_eq!(reported, changed.into_iter().collect::<Vec<_>>());
    }
}
