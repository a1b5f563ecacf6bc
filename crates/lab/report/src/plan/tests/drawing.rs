// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use fide_planner::{CableId, LinkId, NodeId, Planner, Tree, topology::Topology};

use super::{checked, fat_tree, fill, leaf_spine, of_class, pair, request, title, written};
use crate::plan::draw::net::CABLES_DRAWN_MAX;
use crate::plan::{DrawError, DrawOptions, ONLY_MAX, PANELS_MAX, Plan, Refused, draw, draw_before_after};

/// The required bound for a fat tree of k = 16 with 200 requests.
const SIZE_MAX: usize = 2_000_000;

fn only(names: &[&str]) -> DrawOptions {
    DrawOptions { title: "A plan".to_owned(), only: names.iter().map(|name| (*name).to_owned()).collect() }
}

/// `from to` of all links.
fn hops(topology: &Topology, tree: &Tree) -> BTreeSet<String> {
    let name = |node: NodeId| topology.node(node).name.clone();
    tree.links().map(|link| format!("{} to {}", name(topology.from(link)), name(topology.to(link)))).collect()
}

/// Asserts that every tree of every granted request is drawn, link by link, and each switch once.
fn whole(planner: &Planner, svg: &str, scenes: usize) {
    let document = checked(svg);
    // Styles reach what <use> draws only through a class within it.
    let parts = document.descendants().filter(|node| node.parent().is_some_and(|parent| parent.has_tag_name("defs")));
    assert!(parts.filter(roxmltree::Node::is_element).all(|part| part.attribute("class") == Some("fide-plan")));
    for n in 0..3 {
        let mut drawn: Vec<String> = of_class(&document, &format!("t{n}"))
            .iter()
            .filter_map(|path| title(path).split_once(&format!(", tree {n}: ")))
            .map(|(_, rest)| rest.split(", port").next().unwrap_or("").to_owned())
            .collect();
        let trees = planner.allocations().filter_map(|(_, held)| held.trees.get(n));
        let mut wanted: Vec<String> = trees.flat_map(|tree| hops(planner.topology(), tree)).collect();
        drawn.sort();
        wanted.sort();
        assert_eq!(drawn, wanted, "tree {n}");
    }
    let topology = planner.topology();
    let mut switches: Vec<&str> =
        of_class(&document, "s").iter().map(|node| title(node).split(',').next().unwrap_or("")).collect();
    let nodes = topology.node_ids().filter(|node| !topology.is_host(*node));
    let mut wanted: Vec<&str> =
        nodes.flat_map(|node| std::iter::repeat_n(topology.node(node).name.as_str(), scenes)).collect();
    switches.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(switches, wanted);
}

#[test]
fn each_tree_is_drawn_link_by_link_and_each_switch_once() {
    let mut planner = pair();
    planner.request(request("heartbeat", "h1", &["h2", "h3"], 2)).unwrap();
    planner.request(request("answer", "h2", &["h1"], 1)).unwrap();
    let svg = draw(&planner, &DrawOptions::default()).unwrap();
    whole(&planner, &svg, 1);
    let document = checked(&svg);
    assert_eq!(of_class(&document, "from").len(), 2 + 1, "senders, and the legend");
    assert_eq!(of_class(&document, "to").len(), 3 + 1, "receivers, and the legend");
    let text = written(&document);
    for words in ["heartbeat", "h1 to 2 receivers", "timeout", "jitter", "fail together at most once in", "sender"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    for mut planner in [leaf_spine(), fat_tree(4), fat_tree(8)] {
        let hosts = super::host_names(planner.topology());
        planner.request(request("heartbeat", &hosts[0], &[&hosts[1], &hosts[7], &hosts[15]], 2)).unwrap();
        whole(&planner, &draw(&planner, &DrawOptions::default()).unwrap(), 1);
    }
}

#[test]
fn idle_hosts_of_a_large_network_are_counted() {
    let mut planner = fat_tree(8);
    planner.request(request("heartbeat", "h-0-0-0", &["h-3-0-0"], 2)).unwrap();
    let svg = draw(&planner, &DrawOptions::default()).unwrap();
    let document = checked(&svg);
    let counts: Vec<usize> = of_class(&document, "p")
        .iter()
        .flat_map(|pill| pill.children().filter(|child| child.has_tag_name("text")))
        .filter_map(|text| text.text()?.strip_prefix('+')?.parse().ok())
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), 128 - 2);
    assert_eq!(of_class(&document, "o").iter().filter(|host| !title(host).is_empty()).count(), 2);
}

#[test]
fn names_stay_text() {
    let mut planner = pair();
    let name = "<script>&\"'\n]]>\u{202e}\u{0}\u{ffff}";
    planner.request(request(name, "h1", &["h2"], 2)).unwrap();
    let wrong = request("<b>", "h1", &["<h9>"], 2);
    let why = planner.request(wrong.clone()).unwrap_err().to_string();
    let refused = [Refused { request: wrong, why }];
    let plan = Plan { refused: &refused, ..Plan::from(&planner) };
    let svg = draw(plan, &DrawOptions { title: name.to_owned(), only: vec![name.to_owned()] }).unwrap();
    let text = written(&checked(&svg));
    assert!(text.contains("<script>&\"' ]]>\u{fffd}\u{fffd}\u{fffd}"), "{text}");
    assert!(text.contains("refused: <b>: there is no host \"<h9>\""), "{text}");
    let long = "x".repeat(10_000);
    let mut planner = pair();
    planner.request(request(&long, "h1", &["h2"], 2)).unwrap();
    assert!(draw(&planner, &DrawOptions { title: long, only: vec![] }).unwrap().len() < 20_000);
}

#[test]
fn broken_parts_are_crossed_out() {
    let mut planner = leaf_spine();
    planner.request(request("heartbeat", "h1", &["h5", "h9"], 2)).unwrap();
    assert!(of_class(&checked(&draw(&planner, &DrawOptions::default()).unwrap()), "x").is_empty());
    let cable = planner.allocations().next().unwrap().1.trees[0].hops()[1].link.cable();
    planner.set_cable(cable, false);
    let svg = draw(&planner, &DrawOptions::default()).unwrap();
    let document = checked(&svg);
    let crosses: Vec<&str> = of_class(&document, "x").iter().map(title).filter(|title| !title.is_empty()).collect();
    assert_eq!(crosses, [format!("{} does not work", planner.topology().cable_name(cable))]);
    assert!(written(&document).contains("tree 0 is broken"));
    assert!(written(&document).contains("1 cable broken"));
    // A switch takes all its cables with it.
    let spine = planner.topology().find("spine-2").unwrap();
    planner.set_switch(spine, false);
    let svg = draw(&planner, &DrawOptions::default()).unwrap();
    assert_eq!(of_class(&checked(&svg), "x").iter().filter(|cross| !title(cross).is_empty()).count(), 1 + 8);
}

#[test]
fn many_requests_are_drawn_by_how_full_cables_are() {
    let mut planner = fat_tree(8);
    let held = fill(&mut planner, 60);
    assert!(held > PANELS_MAX, "{held}");
    let svg = draw(&planner, &DrawOptions::default()).unwrap();
    let document = checked(&svg);
    assert!(of_class(&document, "t0").is_empty());
    let lines: Vec<&str> = (0..5)
        .flat_map(|n| of_class(&document, &format!("u{n}")))
        .map(|path| title(&path))
        .filter(|title| !title.is_empty())
        .collect();
    assert!(lines.len() > 100 && lines.iter().all(|line| line.contains("queue at most")), "{}", lines.len());
    let text = written(&document);
    assert!(text.contains("share of the allowed bandwidth") && text.contains("0% to"), "{text}");
    assert!(text.contains(&format!("and {} more", held - 12)), "{text}");
    // One of them by name.
    let one = checked_trees(&planner, &only(&["r7"]));
    let trees = planner.allocations().find(|(_, held)| held.request.name == "r7").unwrap().1;
    assert_eq!(one, trees.trees[0].hops().len());
}

fn checked_trees(planner: &Planner, view: &DrawOptions) -> usize {
    let svg = draw(planner, view).unwrap();
    of_class(&checked(&svg), "t0").iter().filter(|path| !title(path).is_empty()).count()
}

#[test]
fn unknown_request_cannot_be_drawn() {
    let mut planner = pair();
    let nobody = draw(&planner, &only(&["x"])).unwrap_err();
    assert_eq!(nobody, DrawError::Unknown { name: "x".to_owned(), held: "none".to_owned() });
    planner.request(request("heartbeat", "h1", &["h2"], 2)).unwrap();
    let error = draw(&planner, &only(&["heartbeat", "x\u{1b}"])).unwrap_err().to_string();
    assert_eq!(error, "no request is called \"x\u{fffd}\"; the plan has 1, the first is \"heartbeat\"");
    let all = vec!["heartbeat"; ONLY_MAX + 1];
    assert_eq!(draw(&planner, &only(&all)).unwrap_err(), DrawError::TooMany(ONLY_MAX + 1));
    // A refused request is known, but has no trees.
    let refused = [Refused { request: request("big", "h1", &["h2"], 2), why: "too big".to_owned() }];
    let plan = Plan { refused: &refused, ..Plan::from(&planner) };
    assert!(written(&checked(&draw(plan, &only(&["big"])).unwrap())).contains("refused: big: too big"));
}

#[test]
fn before_and_after_stand_side_by_side() {
    let mut planner = leaf_spine();
    let (id, _) = planner.request(request("heartbeat", "h1", &["h5", "h9"], 2)).unwrap();
    let before = planner.clone();
    let cable = planner.allocation(id).unwrap().trees[0].hops()[1].link.cable();
    planner.set_cable(cable, false);
    planner.replace(id, 0, &BTreeSet::new()).unwrap();
    let svg = draw_before_after(&before, &planner, &only(&[])).unwrap();
    let document = checked(&svg);
    let text = written(&document);
    for words in ["before: heartbeat", "after: heartbeat", ", moved"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert_eq!(text.matches(", moved").count(), 1, "tree 1 stayed");
    assert_eq!(of_class(&document, "s").len(), 2 * 11);
    // A request that was released, and a plan with nothing at all.
    planner.release(id).unwrap();
    let svg = draw_before_after(&before, &planner, &only(&["heartbeat"])).unwrap();
    assert!(written(&checked(&svg)).contains("after: heartbeat is not in the plan"));
    checked(&draw_before_after(&planner, &planner, &only(&[])).unwrap());
}

#[test]
fn of_many_requests_moved_ones_are_shown() {
    let mut planner = fat_tree(8);
    fill(&mut planner, 40);
    let before = planner.clone();
    checked(&draw_before_after(&before, &planner, &only(&[])).unwrap());
    let (id, name, cable) = {
        let topology = planner.topology();
        let inner =
            |link: &LinkId| [topology.from(*link), topology.to(*link)].iter().all(|node| !topology.is_host(*node));
        let mut moving = planner
            .allocations()
            .filter_map(|(id, held)| Some((id, held.request.name.clone(), held.trees[0].links().find(inner)?.cable())));
        moving.next().expect("some do not stay in a rack")
    };
    planner.set_cable(cable, false);
    planner.replace(id, 0, &BTreeSet::new()).unwrap();
    let svg = draw_before_after(&before, &planner, &only(&[])).unwrap();
    let text = written(&checked(&svg));
    assert!(text.contains(&format!("before: {name}\n")) && text.contains(&format!("after: {name}\n")), "{text}");
    assert_eq!(text.matches("before: ").count(), 1, "{text}");
}

#[test]
fn a_large_network_makes_no_large_drawing() {
    let mut planner = fat_tree(16);
    assert!(fill(&mut planner, 200) >= 190);
    let before = planner.clone();
    planner.set_switch(planner.topology().find("agg-3-1").unwrap(), false);
    let names: Vec<String> = (0..ONLY_MAX).map(|n| format!("r{n}")).collect();
    let chosen = DrawOptions { title: String::new(), only: names };
    for (svg, what) in [
        (draw(&planner, &DrawOptions::default()).unwrap(), "all"),
        (draw(&planner, &chosen).unwrap(), "as many as may be named"),
        (draw_before_after(&before, &planner, &DrawOptions::default()).unwrap(), "before and after"),
    ] {
        checked(&svg);
        assert!(svg.len() < SIZE_MAX, "{what}: {} bytes", svg.len());
    }
    let mut largest = fat_tree(48);
    fill(&mut largest, 3);
    for cable in 0..40_000 {
        largest.set_cable(CableId(cable), false);
    }
    let svg = draw(&largest, &DrawOptions::default()).unwrap();
    let document = checked(&svg);
    let grey = |path: &roxmltree::Node<'_, '_>| path.attribute("d").map_or(0, |way| way.matches('M').count());
    let lines: usize = of_class(&document, "c").iter().map(grey).sum();
    assert!((CABLES_DRAWN_MAX / 2..=CABLES_DRAWN_MAX + 1).contains(&lines), "thinned: {lines}");
    assert!(svg.len() < 3 * SIZE_MAX, "27648 hosts, 40000 broken cables: {} bytes", svg.len());
}

#[test]
fn the_same_plan_gives_the_same_drawing() {
    let make = || {
        let mut planner = fat_tree(8);
        fill(&mut planner, 30);
        (draw(&planner, &only(&["r3"])).unwrap(), draw(&planner, &DrawOptions::default()).unwrap())
    };
    assert!(make() == make());
}
