// SPDX-License-Identifier: Apache-2.0

use fide_planner::{CableId, file};
use fide_testbed::documented;

use super::{fill, leaf_spine, pair, request};
use crate::plan::{FORMAT, Figures, Plan, Refused, VERSION, to_json};

/// A plan with a granted and a refused request, a broken cable, a cable that the limits exclude, and
/// reservations.
fn small() -> serde_json::Value {
    let file = file::parse(
        "[topology]\ngenerator = \"leaf_spine\"\ngroups = 1\nhoming = 2\nspines = 0\nhosts = 3\n\
         [limits]\nexclude = [\"h4--leaf-0-0\"]\n\
         [[host]]\nname = \"h4\"\n[[cable]]\na = \"h4\"\nb = \"leaf-0-0\"\nreserved_bps = 1000000\nfailure_per_year = 0.5\n\
         [rates]\ntrunk_per_year = 0.01\n",
    )
    .unwrap();
    let mut planner = fide_planner::Planner::new(file.topology, file.limits).unwrap();
    planner.request(request("heartbeat", "h1", &["h2", "h3"], 2)).unwrap();
    let wrong = request("lost", "h1", &["h9"], 2);
    let why = planner.request(wrong.clone()).unwrap_err().to_string();
    let refused = [Refused { request: wrong, why }];
    planner.set_cable(CableId(3), false);
    let plan = Plan { planner: &planner, rates: file.rates, generator: file.generator.as_ref(), refused: &refused };
    to_json(plan, &[])
}

#[test]
fn a_small_plan_is_this_json() {
    insta::assert_snapshot!(format!("{:#}", small()));
}

#[test]
fn every_field_is_documented() {
    let page = include_str!("../../../../../../docs/develop/plan-json.md");
    documented::assert_documented(page, &documented::fields(&small()));
    assert!(page.contains(&format!("version {VERSION}")), "the page is about this version");
}

#[test]
fn unused_cables_are_listed_with_their_parameters() {
    let json = small();
    let cables = json["cables"].as_array().unwrap();
    assert_eq!(json["topology"]["cables"], cables.len());
    let of = |name: &str| cables.iter().find(|cable| cable["cable"] == name).unwrap_or_else(|| panic!("{name}"));
    let unused = of("h4--leaf-0-0");
    assert_eq!((&unused["trees"], &unused["allowed"], &unused["works"]), (&0.into(), &false.into(), &true.into()));
    assert_eq!((&unused["reserved_bps"], &unused["failure_per_year"]), (&1_000_000.into(), &0.5.into()));
    let used = of("h2--leaf-0-1");
    assert_eq!((&used["trees"], &used["allowed"], &used["works"]), (&1.into(), &true.into(), &false.into()));
    assert_eq!((&used["kind"], &used["failure_per_year"]), (&"trunk".into(), &0.01.into()));
}

#[test]
fn packet_model_follows_the_requests() {
    let json = small();
    let (model, request) = (&json["packet_model"], &json["requests"][0]);
    let [overhead, wire, payload] =
        [&model["packet_overhead_bytes"], &request["wire_max_bytes"], &request["size_max_bytes"]]
            .map(|v| v.as_u64().unwrap());
    assert_eq!((overhead, wire), (66, payload + 66));
    assert_eq!(request["bandwidth_bps"], wire * 8 * 1000, "a packet each ms");
}

#[test]
fn the_timeout_is_the_published_one() {
    let mut planner = pair();
    planner.request(request("heartbeat", "h1", &["h2", "h3"], 2)).unwrap();
    let json = to_json(&planner, &[]);
    assert_eq!((&json["format"], &json["version"]), (&FORMAT.into(), &VERSION.into()));
    let mut checked = 0;
    let mut check = |of: &serde_json::Value| {
        let [min, max, jitter, timeout] = ["latency_min_ns", "latency_max_ns", "jitter_max_ns", "timeout_ns"]
            .map(|key| of[key].as_u64().unwrap_or_else(|| panic!("{key} of {of}")));
        assert_eq!((max, timeout), (min + jitter, 1_000_000 + min + 2 * jitter));
        checked += 1;
    };
    for request in json["requests"].as_array().unwrap() {
        check(&request["overall"]);
        request["receivers"].as_array().unwrap().iter().for_each(&mut check);
        for tree in request["trees"].as_array().unwrap() {
            check(&tree["overall"]);
            tree["receivers"].as_array().unwrap().iter().for_each(&mut check);
        }
    }
    assert_eq!(checked, 1 + 2 + 2 * (1 + 2));
}

#[test]
fn only_named_requests_are_listed() {
    let mut planner = leaf_spine();
    assert!(fill(&mut planner, 9) > 2);
    let json = to_json(&planner, &["r1".to_owned()]);
    assert_eq!(json["requests"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["requests"][0]["name"], "r1");
    assert_eq!(json["links"].as_array().map(Vec::len), Some(planner.links().count()), "links carry all trees");
}

#[test]
fn every_link_has_delay_and_backlog() {
    let mut planner = leaf_spine();
    fill(&mut planner, 9);
    let figures = Figures::of(&planner);
    for link in &figures.links {
        assert!(link.trees > 0 && link.lane_bps > 0 && link.lane_bps <= link.allowed_bps, "{link:?}");
        // At least the packet itself, 1484 bytes at 10 Gbit/s.
        assert!(link.delay_max_ns >= 1187 && link.backlog_bytes <= link.allowed_bytes, "{link:?}");
    }
    let fullest = figures.fullest(3);
    let most = figures.links.iter().map(|link| link.lane_share().max(link.backlog_share())).fold(0.0, f64::max);
    assert_eq!((fullest.len(), fullest[0].lane_share().max(fullest[0].backlog_share())), (3, most));
}
