// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::lldp::{Capabilities, Id};

const DOWN: &[Frame] = &[];

/// A hardware address for each port.
fn mac(node: &str, port: &str) -> [u8; 6] {
    let sum = node.bytes().chain(*b":").chain(port.bytes()).fold(7_u32, |sum, b| sum.wrapping_mul(31) + u32::from(b));
    let [a, b, c, d] = sum.to_be_bytes();
    [2, 0, a, b, c, d]
}

fn says(role: Role, node: &str, port: &str) -> Frame {
    Frame::ours(role, (node, port), mac(node, port), 120, None)
}

/// As another program says it.
fn other(node: &str, port: &str, chassis: u8, enabled: u16) -> Frame {
    Frame {
        chassis: Id { subtype: 4, value: vec![2, 0, 0, 0, 0, chassis] },
        capabilities: Some(Capabilities { available: enabled, enabled }),
        role: None,
        ..says(Role::Host, node, port)
    }
}

fn at(node: &str, port: &str, heard: &[Frame]) -> Listened {
    Listened {
        at: End::new(node, port),
        carrier: !heard.is_empty(),
        rate: None,
        queue: None,
        heard: heard.to_vec(),
        refused: 0,
        why_refused: None,
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn look(switches: &[&str], listened: &[Listened]) -> Survey {
    survey(&names(switches), listened, None, &Given::default())
}

fn drawn(survey: &Survey) -> Vec<String> {
    survey.cables.iter().map(|cable| format!("{}--{}", cable.a, cable.b)).collect()
}

/// Two switches, joined twice, with a host at each and one at both.
fn good() -> Vec<Listened> {
    use Role::{Host, Switch};
    vec![
        at("s1", "up1", &[says(Switch, "s2", "down1")]),
        at("s1", "up2", &[says(Switch, "s2", "down2")]),
        at("s1", "h10", &[says(Host, "h10", "p0")]),
        at("s1", "h2", &[says(Host, "h2", "p0")]),
        at("s2", "down1", &[says(Switch, "s1", "up1")]),
        at("s2", "down2", &[says(Switch, "s1", "up2")]),
        at("s2", "h2", &[says(Host, "h2", "p1")]),
    ]
}

#[test]
fn cables_need_both_ends() {
    let found = look(&["s1", "s2"], &good());
    assert_eq!(found.odd, []);
    assert_eq!((&found.hosts, &found.switches), (&names(&["h2", "h10"]), &names(&["s1", "s2"])));
    let cables = ["h2:p0--s1:h2", "h2:p1--s2:h2", "h10:p0--s1:h10", "s1:up1--s2:down1", "s1:up2--s2:down2"];
    assert_eq!(drawn(&found), cables);
}

#[test]
fn each_oddity_is_reported_and_makes_no_cable() {
    let change = |n: usize, heard: &[Frame]| {
        let mut listened = good();
        listened[n].heard = heard.to_vec();
        look(&["s1", "s2"], &listened)
    };
    let end = End::new;

    let found = change(3, DOWN);
    assert_eq!(found.odd, [Oddity::NoNeighbour { at: end("s1", "h2"), carrier: true }]);
    assert_eq!(found.cables.len(), 4);

    let found = change(3, &[says(Role::Host, "h2", "p0"), says(Role::Host, "h3", "p0")]);
    let neighbours = vec![end("h2", "p0"), end("h3", "p0")];
    assert_eq!(found.odd, [Oddity::SeveralNeighbours { at: end("s1", "h2"), neighbours }]);

    // One way only: the other end is silent, or hears somebody else.
    let found = change(4, DOWN);
    let disagree = |at, hears, which_hears| Oddity::EndsDisagree { at, hears, which_hears };
    assert!(found.odd.contains(&disagree(end("s1", "up1"), end("s2", "down1"), None)), "{:?}", found.odd);
    assert!(!drawn(&found).contains(&"s1:up1--s2:down1".to_owned()));
    let found = change(4, &[says(Role::Switch, "s1", "up2")]);
    let expected = [
        disagree(end("s1", "up1"), end("s2", "down1"), Some(end("s1", "up2"))),
        disagree(end("s2", "down1"), end("s1", "up2"), Some(end("s2", "down2"))),
    ];
    assert_eq!(found.odd, expected);

    let found = change(6, &[says(Role::Host, "h2", "p0")]);
    assert_eq!(found.odd[0], Oddity::HeardTwice { who: end("h2", "p0"), at: vec![end("s1", "h2"), end("s2", "h2")] });
    assert_eq!(found.hosts, ["h10"]);

    let found = change(2, &[says(Role::Host, "s2", "p0")]);
    assert_eq!(found.odd, [Oddity::NameTaken { name: "s2".into(), at: end("s1", "h10") }]);
    let found = change(2, &[says(Role::Switch, "s3", "p0")]);
    assert_eq!(found.odd, [Oddity::UnknownSwitch { who: end("s3", "p0"), at: end("s1", "h10") }]);
    let found = change(2, &[says(Role::Host, "my host", "p0")]);
    assert_eq!(found.odd, [Oddity::Unfit { who: end("my host", "p0"), at: end("s1", "h10") }]);
    let found = change(2, &[says(Role::Switch, "s1", "h2")]);
    assert_eq!(found.odd[0], Oddity::Loop { at: end("s1", "h10"), hears: end("s1", "h2") });

    let mut listened = good();
    listened.push(at("s3", "p", DOWN));
    let found = look(&["s1", "s2", "s3"], &listened);
    let islands = vec![names(&["h2", "h10", "s1", "s2"]), names(&["s3"])];
    let expected = [Oddity::NoNeighbour { at: end("s3", "p"), carrier: false }, Oddity::Islands { islands }];
    assert_eq!(found.odd, expected);

    let mut listened = good();
    (listened[0].refused, listened[0].why_refused) = (7, Some("bad\u{1b}".into()));
    let why = "bad\u{fffd}".into();
    assert_eq!(look(&["s1", "s2"], &listened).odd, [Oddity::Refused { at: end("s1", "up1"), frames: 7, why }]);
}

#[test]
fn loop_is_reported_once() {
    let listened = [at("s1", "a", &[says(Role::Switch, "s1", "b")]), at("s1", "b", &[says(Role::Switch, "s1", "a")])];
    let found = look(&["s1"], &listened);
    assert_eq!(found.odd, [Oddity::Loop { at: End::new("s1", "a"), hears: End::new("s1", "b") }]);
    assert_eq!(found.cables, []);

    // A port that hears itself, and one that hears what another already has a loop for, have one of their own
    // each.
    let hears_a = |port| at("s1", port, &[says(Role::Switch, "s1", "a")]);
    let found = look(&["s1"], &[hears_a("a"), hears_a("b")]);
    let hears_itself = |port| Oddity::Loop { at: End::new("s1", port), hears: End::new("s1", "a") };
    assert_eq!(found.odd, [hears_itself("a"), hears_itself("b")]);
}

#[test]
fn hosts_with_other_programs_are_known_by_capability_or_name() {
    let switches = names(&["s1"]);
    let (station, bridge) = (Capabilities::STATION, Capabilities::BRIDGE | Capabilities::ROUTER);
    let listened =
        [at("s1", "a", &[other("h1", "eth0", 1, station)]), at("s1", "b", &[other("h2", "eth0", 2, bridge)])];
    let found = survey(&switches, &listened, None, &Given::default());
    assert_eq!(drawn(&found), ["h1:eth0--s1:a"]);
    assert_eq!(found.odd, [Oddity::UnknownSwitch { who: End::new("h2", "eth0"), at: End::new("s1", "b") }]);
    let known = BTreeSet::from(["h2".to_owned()]);
    let found = survey(&switches, &listened, Some(&known), &Given::default());
    assert_eq!(drawn(&found), ["h1:eth0--s1:a", "h2:eth0--s1:b"]);
    assert_eq!(found.odd, [Oddity::UnknownHost { who: End::new("h1", "eth0"), at: End::new("s1", "a") }]);

    let twins = [at("s1", "a", &[other("h1", "eth0", 1, station)]), at("s1", "b", &[other("h1", "eth1", 2, station)])];
    let found = survey(&switches, &twins, None, &Given::default());
    let where_ = vec![End::new("s1", "a"), End::new("s1", "b")];
    assert_eq!(found.odd, [Oddity::NameTwice { name: "h1".into(), at: where_ }]);

    // lldpd beside Fide on one host: one port, one neighbour, and Fide's name for it.
    let both = [at("s1", "a", &[other("h1", "p0", 1, station), says(Role::Host, "h1", "p0")])];
    let found = survey(&switches, &both, None, &Given::default());
    assert_eq!((drawn(&found), found.odd.as_slice()), (names(&["h1:p0--s1:a"]), &[][..]));
}

#[test]
fn figures_are_the_smaller_of_both_ends_and_name_their_source() {
    let mut listened = good();
    let (fast, slow) = (Figure::new(10_000, Source::Port), Figure::new(1_000, Source::Queue));
    (listened[0].rate, listened[4].rate) = (Some(fast), Some(slow));
    (listened[0].queue, listened[4].queue) = (None, Some(Figure::new(84, Source::Queue)));
    listened[1].rate = Some(Figure::new(1_500, Source::Driver));
    listened[5].rate = Some(fast);
    listened[6].heard[0].rate_bps = Some(2_000);
    let given = Given { bandwidth_bps: Some(77), host_jitter_max_ns: Some(5), ..Given::default() };
    let found = survey(&names(&["s1", "s2"]), &listened, None, &given);
    let cable = |name: &str| found.cables.iter().find(|c| format!("{}--{}", c.a, c.b) == name).unwrap();
    assert_eq!(cable("s1:up1--s2:down1").bandwidth_bps, slow);
    assert_eq!(cable("s1:up1--s2:down1").queue_bytes, Figure::new(84, Source::Queue));
    assert_eq!(cable("s1:up2--s2:down2").bandwidth_bps, Figure::new(1_500, Source::Driver));
    assert_eq!(cable("h2:p1--s2:h2").bandwidth_bps, Figure::new(2_000, Source::Announced));
    assert_eq!(cable("h2:p0--s1:h2").bandwidth_bps, Figure::new(77, Source::Given));
    assert_eq!(cable("h2:p0--s1:h2").queue_bytes.source, Source::Assumed);
    assert_eq!(found.latencies.host_jitter_max_ns, Figure::new(5, Source::Given));
    assert_eq!(found.latencies.jitter_max_ns.source, Source::Assumed);
    listened[2].heard[0].rate_bps = Some(3);
    let found = survey(&names(&["s1", "s2"]), &listened, None, &given);
    // The limited one is no surprise.
    let (a, b) = (End::new("s1", "up1"), End::new("s2", "down1"));
    let unfit = Oddity::UnfitRate { at: End::new("h10", "p0"), bps: 3 };
    assert_eq!(found.odd, [unfit, Oddity::RatesDiffer { a, a_bps: 10_000, b, b_bps: 1_000 }]);
}

fn heard() -> impl Strategy<Value = Frame> {
    let name = prop_oneof![Just("s1"), Just("s2"), Just("h1"), Just("h2"), Just("x y"), Just("")];
    let port = prop_oneof![Just("a"), Just("b"), Just("c"), Just("--")];
    (name, port, 0..4_u8, any::<bool>(), prop::option::of(0..3_u64)).prop_map(|(node, port, kind, same, rate_bps)| {
        let mut frame = match kind {
            0 => says(Role::Host, node, port),
            1 => says(Role::Switch, node, port),
            kind => other(node, port, kind, if kind == 2 { 0 } else { 0xffff }),
        };
        if same {
            frame.source = [2; 6];
        }
        Frame { rate_bps, ..frame }
    })
}

proptest! {
    /// Whatever was heard: no port has two cables, the survey can be planned with, and everything left out
    /// is reported.
    #[test]
    fn everything_heard_is_a_cable_or_reported(
        heard in prop::collection::vec(prop::collection::vec(heard(), 0..4), 6),
    ) {
        let ends = ["s1", "s2"].into_iter().flat_map(|node| ["a", "b", "c"].map(|port| (node, port)));
        let listened: Vec<Listened> = ends.zip(&heard).map(|((node, port), heard)| at(node, port, heard)).collect();
        let found = look(&["s1", "s2"], &listened);
        let ends: Vec<&End> = found.cables.iter().flat_map(|cable| [&cable.a, &cable.b]).collect();
        prop_assert_eq!(ends.iter().collect::<BTreeSet<_>>().len(), ends.len());
        let reported = format!("{:?}", found.odd);
        for port in &listened {
            prop_assert!(ends.contains(&&port.at) || reported.contains(&format!("{:?}", port.at)), "{} in {}", port.at, reported);
        }
        if !found.hosts.is_empty() {
            let text = crate::write(&found, &Given::default());
            let file = fide_planner::file::parse(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(crate::compare(&found, &file.topology), []);
        }
    }
}
