// SPDX-License-Identifier: Apache-2.0
//! FiDe App. B: K vertex-disjoint trees bottom-up, on networks of regular structure.
//!
//! Nodes at distance r from the sender fall into classes by the receivers that lie beyond them on shortest
//! paths. On a regular network any two nodes of a distance lead to the same receivers, or have none in
//! common. (App. B asks this of all end hosts; only the receivers matter, so that more networks are regular.)
//! Where a cable or a switch is missing a node may lead to fewer receivers than its like: it is put into
//! their class, where only nodes that lead to all receivers of the class are of use. Every tree then passes
//! each class exactly once, and what it does behind one class is independent of what it does behind another.
//!
//! A set of K roots in a class has, for each class behind it, a choice of K nodes there and of a link to each. App. B
//! keeps the cheapest choice. As cost is the largest latency plus a sum of loads, a cheapest part need not be part of a
//! cheapest whole; kept are therefore all choices that no other beats in every latency and in load (at most
//! [`FRONT_MAX`]). A lower bound for each single node, from the same recursion without disjointness, ends the search of
//! a class as soon as a choice meets it, which on a lightly loaded network is the first.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::{Search, Weigh, Weight};
use crate::request::REDUNDANCY_MAX;
use crate::topology::{LinkId, NodeId};

/// Choices kept for one set of roots. Beyond it those of the smallest sum are kept, and the result may cost more than
/// the cheapest.
const FRONT_MAX: usize = 32;

/// K nodes or values; places from K on are unused and equal in all.
type Each<T> = [T; REDUNDANCY_MAX];

struct Class {
    receivers: u64,
    nodes: Vec<NodeId>,
    /// Classes one step further out that share its receivers.
    behind: Vec<usize>,
    leaf: bool,
}

/// A way to serve all receivers behind K roots.
#[derive(Clone)]
struct Choice {
    /// Largest latency from root i.
    latency: Each<u64>,
    load: u64,
    /// For each class behind: links from the roots, and what follows them.
    picks: Vec<Pick>,
}

#[derive(Clone)]
struct Pick {
    links: Each<LinkId>,
    /// The roots there, sorted, the choice among theirs, and which of them link i leads to.
    roots: Rc<Vec<Choice>>,
    choice: usize,
    place: Each<usize>,
}

#[derive(Clone, Copy)]
struct Bound {
    latency: u64,
    load: u64,
}

struct BottomUp<'a, W> {
    search: &'a Search<'a, W>,
    k: usize,
    classes: Vec<Class>,
    /// By node; none if it is in no class.
    class_of: Vec<Option<usize>>,
    /// For each node what K = 1 would cost at least; none if it does not reach all its receivers.
    bounds: Vec<Option<Bound>>,
    known: HashMap<(usize, Each<NodeId>), Rc<Vec<Choice>>>,
}

/// The cheapest trees of shortest paths that pass each class once; none if there are not K such.
pub(super) fn bottom_up<W: Weigh>(search: &Search<'_, W>) -> Option<Vec<Vec<LinkId>>> {
    let (classes, class_of) = classes(search)?;
    let bounds = vec![None; class_of.len()];
    let mut this = BottomUp { search, k: search.redundancy, classes, class_of, bounds, known: HashMap::new() };
    this.bound_all();
    let choices = this.solve(0, [search.sender; REDUNDANCY_MAX]);
    let total = |choice: &&Choice| choice.latency[..this.k].iter().max().copied().unwrap_or(0) + choice.load;
    let best = choices.iter().min_by_key(total)?;
    let mut trees = vec![Vec::new(); this.k];
    for (root, tree) in trees.iter_mut().enumerate() {
        gather(best, root, tree);
    }
    Some(trees)
}

fn gather(choice: &Choice, root: usize, links: &mut Vec<LinkId>) {
    for pick in &choice.picks {
        links.push(pick.links[root]);
        if let Some(next) = pick.roots.get(pick.choice) {
            gather(next, pick.place[root], links);
        }
    }
}

/// Classes by distance from the sender and receivers beyond; class 0 is the sender. None if a receiver cannot
/// be reached.
fn classes<W: Weigh>(search: &Search<'_, W>) -> Option<(Vec<Class>, Vec<Option<usize>>)> {
    let distance = distances(search)?;
    let classes = linked(layers(search, &distance, receivers_beyond(search, &distance)));
    let mut class_of = vec![None; search.topology.nodes().len()];
    for (i, class) in classes.iter().enumerate() {
        class.nodes.iter().for_each(|node| class_of[node.at()] = Some(i));
    }
    Some((classes, class_of))
}

/// By node: links on a shortest path from the sender, `u32::MAX` for nodes beyond the farthest receiver. `None` if a
/// receiver cannot be reached.
fn distances<W: Weigh>(search: &Search<'_, W>) -> Option<Vec<u32>> {
    let topology = search.topology;
    let mut distance = vec![u32::MAX; topology.nodes().len()];
    distance[search.sender.at()] = 0;
    let mut layer = vec![search.sender];
    let mut missing = search.receivers.len();
    let mut depth = 0;
    while missing > 0 && !layer.is_empty() {
        depth += 1;
        let mut next = Vec::new();
        for node in layer.into_iter().filter(|node| search.forwards(*node)) {
            for link in topology.leaving(node) {
                let to = topology.to(*link);
                if distance[to.at()] == u32::MAX && search.open(*link).is_some() {
                    distance[to.at()] = depth;
                    missing -= usize::from(topology.is_host(to));
                    next.push(to);
                }
            }
        }
        layer = next;
    }
    (missing == 0).then_some(distance)
}

/// For each node on a shortest path: the receivers beyond it, one bit each.
fn receivers_beyond<W: Weigh>(search: &Search<'_, W>, distance: &[u32]) -> HashMap<NodeId, u64> {
    let topology = search.topology;
    // From each receiver back along shortest paths.
    let mut beyond: HashMap<NodeId, u64> = HashMap::new();
    for (bit, receiver) in search.receivers.iter().enumerate() {
        let mut waiting = vec![*receiver];
        beyond.insert(*receiver, 1 << bit);
        while let Some(node) = waiting.pop() {
            for link in topology.entering(node) {
                let from = topology.from(link);
                let on_path = distance[from.at()] != u32::MAX
                    && distance[from.at()] + 1 == distance[node.at()]
                    && search.forwards(from)
                    && search.open(link).is_some();
                if on_path {
                    let bits = beyond.entry(from).or_insert(0);
                    if *bits >> bit & 1 == 0 {
                        *bits |= 1 << bit;
                        waiting.push(from);
                    }
                }
            }
        }
    }
    beyond
}

/// The classes of each distance, nearest first. Nodes that lead to a common receiver share a class.
fn layers<W: Weigh>(
    search: &Search<'_, W>,
    distance: &[u32],
    beyond: HashMap<NodeId, u64>,
) -> BTreeMap<u32, Vec<Class>> {
    let mut layers: BTreeMap<u32, Vec<Class>> = BTreeMap::new();
    let mut nodes: Vec<(NodeId, u64)> = beyond.into_iter().collect();
    nodes.sort_unstable();
    for (node, receivers) in nodes {
        let leaf = search.receivers.contains(&node);
        let layer = layers.entry(distance[node.at()]).or_default();
        let mut merged = Class { receivers, nodes: vec![node], behind: Vec::new(), leaf };
        layer.retain_mut(|class| {
            let apart = class.receivers & merged.receivers == 0;
            if !apart {
                merged.receivers |= class.receivers;
                merged.nodes.append(&mut class.nodes);
            }
            apart
        });
        merged.nodes.sort_unstable();
        layer.push(merged);
    }
    layers
}

/// All classes in one list, each linked from the class in front of it.
fn linked(layers: BTreeMap<u32, Vec<Class>>) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    let mut before = 0..0;
    for layer in layers.into_values() {
        let here = classes.len()..classes.len() + layer.len();
        for class in layer {
            // Its nodes have neighbours before them that lead to all that they lead to, in one class.
            let near = before.clone().find(|near: &usize| classes[*near].receivers & class.receivers != 0);
            if let Some(near) = near {
                let this = classes.len();
                classes[near].behind.push(this);
            }
            classes.push(class);
        }
        before = here;
    }
    classes
}

impl<W: Weigh> BottomUp<'_, W> {
    /// Usable links from a node into a class, with the bound of where they lead.
    fn links_into(&self, node: NodeId, class: usize) -> Vec<(LinkId, NodeId, Weight, Bound)> {
        let topology = self.search.topology;
        let mut links: Vec<_> = topology
            .leaving(node)
            .iter()
            .filter_map(|link| {
                let to = topology.to(*link);
                (self.class_of[to.at()] == Some(class)).then_some(())?;
                let bound = self.bounds[to.at()]?;
                let weight = self.search.open(*link)?;
                Some((*link, to, weight, bound))
            })
            .collect();
        links.sort_by_key(|(_, _, weight, bound)| weight.latency_ps + weight.load_ps + bound.latency + bound.load);
        links
    }

    /// Fills in the bounds, farthest classes first: their indices are the largest.
    fn bound_all(&mut self) {
        for class in (0..self.classes.len()).rev() {
            for node in self.classes[class].nodes.clone() {
                let mut sum = Some(Bound { latency: 0, load: 0 });
                for behind in &self.classes[class].behind {
                    let links = self.links_into(node, *behind);
                    let latency = links.iter().map(|(_, _, weight, bound)| weight.latency_ps + bound.latency).min();
                    let load = links.iter().map(|(_, _, weight, bound)| weight.load_ps + bound.load).min();
                    sum = sum.zip(latency.zip(load)).map(|(sum, (latency, load))| Bound {
                        latency: sum.latency.max(latency),
                        load: sum.load + load,
                    });
                }
                self.bounds[node.at()] = sum;
            }
        }
    }

    /// All choices worth keeping for the sorted roots of a class.
    fn solve(&mut self, class: usize, roots: Each<NodeId>) -> Rc<Vec<Choice>> {
        if let Some(known) = self.known.get(&(class, roots)) {
            return known.clone();
        }
        let mut front = vec![Choice { latency: [0; REDUNDANCY_MAX], load: 0, picks: Vec::new() }];
        for behind in self.classes[class].behind.clone() {
            let options = self.options(roots, behind);
            front = join(&front, &options, self.k);
            if front.is_empty() {
                break;
            }
        }
        let front = Rc::new(front);
        self.known.insert((class, roots), front.clone());
        front
    }

    /// All ways worth keeping from K roots into one class.
    fn options(&mut self, roots: Each<NodeId>, class: usize) -> Vec<Choice> {
        let k = self.k;
        let leaf = self.classes[class].leaf;
        let links: Vec<_> = roots[..k].iter().map(|root| self.links_into(*root, class)).collect();
        // No choice is better than this in anything.
        let mut ideal = Choice { latency: [0; REDUNDANCY_MAX], load: 0, picks: Vec::new() };
        for (i, links) in links.iter().enumerate() {
            let latency = links.iter().map(|(_, _, weight, bound)| weight.latency_ps + bound.latency).min();
            let load = links.iter().map(|(_, _, weight, bound)| weight.load_ps + bound.load).min();
            let (Some(latency), Some(load)) = (latency, load) else { return Vec::new() };
            ideal.latency[i] = latency;
            ideal.load += load;
        }
        let mut front: Vec<Choice> = Vec::new();
        let mut chosen = [0_usize; REDUNDANCY_MAX];
        // Diagonal order: the first links of each root are its best, so that good choices come early.
        let deepest: usize = links.iter().map(|links| links.len() - 1).sum();
        for depth in 0..=deepest {
            if self.diagonal(&links, leaf, class, 0, depth, &mut chosen, &ideal, &mut front) {
                break;
            }
        }
        front
    }

    /// All combinations whose places add up to `rest`; true as soon as one meets the ideal.
    #[allow(clippy::too_many_arguments, reason = "the state of one recursion")]
    fn diagonal(
        &mut self,
        links: &[Vec<(LinkId, NodeId, Weight, Bound)>],
        leaf: bool,
        class: usize,
        root: usize,
        rest: usize,
        chosen: &mut Each<usize>,
        ideal: &Choice,
        front: &mut Vec<Choice>,
    ) -> bool {
        if root == self.k {
            return rest == 0 && self.take(links, leaf, class, chosen, ideal, front);
        }
        let last = root + 1 == self.k;
        let range = if last { rest..=rest } else { 0..=rest };
        for place in range {
            if place >= links[root].len() {
                break;
            }
            let (link, node, ..) = links[root][place];
            let taken = (0..root).any(|other| {
                let (other_link, other_node, ..) = links[other][chosen[other]];
                if leaf { other_link.cable() == link.cable() } else { other_node == node }
            });
            if taken {
                continue;
            }
            chosen[root] = place;
            if self.diagonal(links, leaf, class, root + 1, rest - place, chosen, ideal, front) {
                return true;
            }
        }
        false
    }

    /// Tries one combination of links; true if a choice meets the ideal.
    fn take(
        &mut self,
        links: &[Vec<(LinkId, NodeId, Weight, Bound)>],
        leaf: bool,
        class: usize,
        chosen: &Each<usize>,
        ideal: &Choice,
        front: &mut Vec<Choice>,
    ) -> bool {
        let k = self.k;
        let mut least = Choice { latency: [0; REDUNDANCY_MAX], load: 0, picks: Vec::new() };
        let mut own = [Weight { latency_ps: 0, load_ps: 0 }; REDUNDANCY_MAX];
        let mut picked = [LinkId(0); REDUNDANCY_MAX];
        let mut nodes = [NodeId(u32::MAX); REDUNDANCY_MAX];
        for i in 0..k {
            let (link, node, weight, bound) = links[i][chosen[i]];
            (picked[i], nodes[i], own[i]) = (link, node, weight);
            least.latency[i] = weight.latency_ps + bound.latency;
            least.load += weight.load_ps + bound.load;
        }
        if front.iter().any(|known| beats(known, &least, k)) {
            return false;
        }
        let mut sorted = nodes;
        sorted[..k].sort_unstable();
        let mut place = [0; REDUNDANCY_MAX];
        for i in 0..k {
            place[i] = sorted[..k].iter().position(|node| *node == nodes[i]).expect("it is one of them");
        }
        let beyond = if leaf {
            Rc::new(vec![Choice { latency: [0; REDUNDANCY_MAX], load: 0, picks: Vec::new() }])
        } else {
            self.solve(class, sorted)
        };
        for (choice, next) in beyond.iter().enumerate() {
            let mut whole = Choice { latency: [0; REDUNDANCY_MAX], load: next.load, picks: Vec::new() };
            for i in 0..k {
                whole.latency[i] = own[i].latency_ps + next.latency[place[i]];
                whole.load += own[i].load_ps;
            }
            if front.iter().any(|known| beats(known, &whole, k)) {
                continue;
            }
            let meets = beats(&whole, ideal, k);
            whole.picks = vec![Pick { links: picked, roots: beyond.clone(), choice, place }];
            keep(front, whole, k);
            if meets {
                return true;
            }
        }
        false
    }
}

/// Whether `a` is at least as good as `b` in everything.
fn beats(a: &Choice, b: &Choice, k: usize) -> bool {
    a.load <= b.load && (0..k).all(|i| a.latency[i] <= b.latency[i])
}

fn keep(front: &mut Vec<Choice>, new: Choice, k: usize) {
    front.retain(|known| !beats(&new, known, k));
    front.push(new);
    if front.len() > FRONT_MAX {
        let total = |choice: &Choice| choice.latency[..k].iter().max().copied().unwrap_or(0) + choice.load;
        let worst = (0..front.len()).max_by_key(|i| total(&front[*i])).expect("not empty");
        front.swap_remove(worst);
    }
}

/// Every choice for some classes with every one for one more.
fn join(some: &[Choice], more: &[Choice], k: usize) -> Vec<Choice> {
    let mut front = Vec::new();
    for a in some {
        for b in more {
            let mut both = Choice { latency: a.latency, load: a.load + b.load, picks: Vec::new() };
            for i in 0..k {
                both.latency[i] = both.latency[i].max(b.latency[i]);
            }
            if front.iter().any(|known| beats(known, &both, k)) {
                continue;
            }
            both.picks = a.picks.iter().chain(&b.picks).cloned().collect();
            keep(&mut front, both, k);
        }
    }
    front
}
