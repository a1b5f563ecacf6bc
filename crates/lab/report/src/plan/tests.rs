// SPDX-License-Identifier: Apache-2.0
//! Drawings are read back as XML. Of the places of things, only their order is asserted.

mod drawing;
mod json;
mod layout;
mod random;

use fide_planner::{
    Limits, Planner, Request,
    topology::{CableSpec, FatTree, LeafSpine, Topology},
};
use roxmltree::{Document, Node};

pub(crate) fn request(name: &str, sender: &str, receivers: &[&str], redundancy: u8) -> Request {
    Request {
        name: name.to_owned(),
        sender: sender.to_owned(),
        receivers: receivers.iter().map(|name| (*name).to_owned()).collect(),
        size_max_bytes: 1418,
        period_min_ns: 1_000_000,
        priority: 0,
        redundancy,
        latency_max_ns: None,
    }
}

/// Three hosts on two switches.
pub(crate) fn pair() -> Planner {
    let topology = LeafSpine { groups: 1, homing: 2, spines: 0, hosts: 3 }.build(&CableSpec::default()).unwrap();
    Planner::new(topology, Limits::default()).unwrap()
}

pub(crate) fn leaf_spine() -> Planner {
    let topology = LeafSpine { groups: 4, homing: 2, spines: 3, hosts: 4 }.build(&CableSpec::default()).unwrap();
    Planner::new(topology, Limits::default()).unwrap()
}

pub(crate) fn fat_tree(k: u64) -> Planner {
    Planner::new(FatTree { k, homing: 2 }.build(&CableSpec::default()).unwrap(), Limits::default()).unwrap()
}

/// Makes `n` requests between hosts all over the network. Returns how many were granted.
pub(crate) fn fill(planner: &mut Planner, n: usize) -> usize {
    let hosts: Vec<String> = host_names(planner.topology());
    let held = (0..n).filter(|i| {
        let at = |step: usize| hosts[(i * 37 + step) % hosts.len()].as_str();
        let mut receivers: Vec<&str> = (1..=3 + i % 5).map(|j| at(j * (1 + i * 13 % (hosts.len() / 8)))).collect();
        receivers.sort_unstable();
        receivers.dedup();
        receivers.retain(|name| *name != at(0));
        planner.request(request(&format!("r{i}"), at(0), &receivers, 2)).is_ok()
    });
    held.count()
}

pub(crate) fn host_names(topology: &Topology) -> Vec<String> {
    topology.hosts().map(|host| topology.node(host).name.clone()).collect()
}

/// Parses a drawing. It must be well-formed, without NaN, scripts, or anything that is loaded from elsewhere.
pub(crate) fn checked(svg: &str) -> Document<'_> {
    let document = Document::parse(svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
    for node in document.descendants() {
        assert!(!["script", "image", "foreignObject", "a"].contains(&node.tag_name().name()), "{node:?}");
        for attribute in node.attributes().filter(|attribute| attribute.name() != "class") {
            let value = attribute.value();
            assert!(!value.contains("NaN") && !value.contains("inf"), "{attribute:?}");
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
            if attribute.name() == "href" {
                let id = value.strip_prefix('#').unwrap_or_else(|| panic!("elsewhere: {value}"));
                assert!(document.descendants().any(|node| node.attribute("id") == Some(id)), "{id} is nowhere");
            }
        }
    }
    document
}

/// Elements of a class.
pub(crate) fn of_class<'a, 'b>(document: &'a Document<'b>, class: &str) -> Vec<Node<'a, 'b>> {
    let has = |node: &Node<'_, '_>| node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class));
    document.descendants().filter(has).collect()
}

/// The `<title>` of an element.
pub(crate) fn title<'a>(node: &Node<'a, '_>) -> &'a str {
    node.children().find(|child| child.has_tag_name("title")).and_then(|title| title.text()).unwrap_or("")
}

/// All text in a drawing.
pub(crate) fn written(document: &Document<'_>) -> String {
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|text| text.text()).collect::<Vec<_>>().join("\n")
}
