// SPDX-License-Identifier: Apache-2.0
//! The planner: requests in, trees and contracts out, one after the other (X-Lane §3.2, "Two-Phase Allocation").

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{Limits, LimitsError};
use crate::network::{FlowId, LinkUse, Network, Overload, Shares, Trouble};
use crate::queue::transmission_ps;
use crate::request::{Contract, Latency, Request, RequestError, Resolved};
use crate::topology::{CableId, LinkId, NodeId, Topology};
use crate::tree::{Tree, TreeError, check_disjoint};
use crate::trees::{Cost, Found, Method, NoTrees, Search, Weigh, Weight};

/// Requests held at once.
pub const REQUESTS_MAX: usize = 100_000;
/// Other trees tried after the best ones overload a link.
const TRIES_MAX: usize = 8;

/// A request that is held, by a number that is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// A request with its trees.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub request: Request,
    /// K trees that share nothing.
    pub trees: Vec<Tree>,
    /// The contract last announced to the sender and the receivers.
    pub contract: Contract,
    pub cost: Cost,
    pub method: Method,
    /// No cheaper trees existed when they were chosen.
    pub proved: bool,
}

/// A contract that has changed, before and after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    pub id: RequestId,
    pub before: Contract,
    pub after: Contract,
}

/// Why a request is refused. Nothing has changed then.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    NoTrees(#[from] NoTrees),
    #[error("link {link}: {what}{}", hint(.what))]
    Link { link: String, what: Overload },
    #[error(
        "{receiver} would be reached within {latency_ns} ns, {allowed_ns} are asked for; {slowest} takes longest. \
         A smaller packet, a higher sub-lane or a nearer host would help"
    )]
    Late { receiver: String, latency_ns: u64, allowed_ns: u64, slowest: String },
    #[error(
        "request {other:?} would be served within {latency_ns} ns, it was promised {allowed_ns}, because of link {link}"
    )]
    Harms { other: String, latency_ns: u64, allowed_ns: u64, link: String },
    #[error("{REQUESTS_MAX} requests are held; release one")]
    Full,
    #[error("there is no request {0}")]
    Unknown(u64),
    #[error("there is a request {0} already")]
    Taken(u64),
    #[error("request {request:?} has {trees} trees, counted from 0; there is no tree {tree}")]
    NoSuchTree { request: String, trees: usize, tree: usize },
    /// The planner's own result did not pass its proof: a fault in this program.
    #[error("the trees found are wrong ({0}); please report this with the topology")]
    Wrong(TreeError),
}

impl From<TreeError> for Refusal {
    fn from(why: TreeError) -> Self {
        Self::Wrong(why)
    }
}

fn hint(what: &Overload) -> &'static str {
    match what {
        Overload::Bandwidth { .. } => ". A longer period, a smaller packet or a larger bandwidth_share would fit",
        Overload::Queue { .. } => ". Fewer or smaller packets, or a larger queue_share, would fit",
        Overload::Unbounded => ". Less bandwidth would help",
    }
}

/// Topology, limits and all requests that are held.
#[derive(Clone, Debug)]
pub struct Planner {
    topology: Topology,
    limits: Limits,
    /// Cables that the limits allow.
    allowed: Vec<bool>,
    /// Cables and switches that do not work.
    down: BTreeSet<CableId>,
    switches_down: BTreeSet<NodeId>,
    network: Network,
    allocations: BTreeMap<RequestId, Allocation>,
    next: u64,
}

/// What links cost one more tree of a request.
pub struct LinkCosts<'a> {
    planner: &'a Planner,
    request: &'a Request,
    /// Switches of trees that stay.
    blocked: BTreeSet<NodeId>,
    /// Cables not to use beside those that do not work.
    avoid: &'a BTreeSet<CableId>,
}

impl Weigh for LinkCosts<'_> {
    fn weigh(&self, link: LinkId) -> Option<Weight> {
        let planner = self.planner;
        let cable = link.cable();
        if !planner.allowed[cable.at()] || planner.down.contains(&cable) || self.avoid.contains(&cable) {
            return None;
        }
        let topology = &planner.topology;
        let needed = planner.network.lane_bps(link) + self.request.bandwidth_bps();
        if needed > planner.network.allowed_bps(topology, link) {
            return None;
        }
        let cable = topology.cable(link);
        let itself = transmission_ps(self.request.wire_bytes(), cable.bandwidth_bps);
        let under_way = (cable.latency_min_ns + cable.jitter_max_ns) * 1000;
        Some(Weight {
            latency_ps: planner.network.wait_ps(topology, link, self.request.priority) + itself + under_way,
            load_ps: itself * planner.network.delayed(link, self.request.priority),
        })
    }

    fn blocked(&self, switch: NodeId) -> bool {
        self.blocked.contains(&switch) || self.planner.switches_down.contains(&switch)
    }
}

impl Planner {
    /// A network without requests.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn new(topology: Topology, limits: Limits) -> Result<Self, LimitsError> {
        let allowed = limits.usable(&topology)?;
        let shares = Shares {
            bandwidth: limits.bandwidth_share,
            queue: limits.queue_share,
            best_effort_wire_bytes: limits.best_effort_wire_bytes,
        };
        let network = Network::new(&topology, shares);
        Ok(Self {
            topology,
            limits,
            allowed,
            down: BTreeSet::new(),
            switches_down: BTreeSet::new(),
            network,
            allocations: BTreeMap::new(),
            next: 1,
        })
    }

    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the limits let trees use a cable; whether it works is another matter.
    #[must_use]
    pub fn allows(&self, cable: CableId) -> bool {
        self.allowed[cable.at()]
    }

    /// All requests that are held.
    pub fn allocations(&self) -> impl Iterator<Item = (RequestId, &Allocation)> {
        self.allocations.iter().map(|(id, allocation)| (*id, allocation))
    }

    /// One request.
    #[must_use]
    pub fn allocation(&self, id: RequestId) -> Option<&Allocation> {
        self.allocations.get(&id)
    }

    /// What of every link in use is used.
    pub fn links(&self) -> impl Iterator<Item = LinkUse> + '_ {
        self.network.links(&self.topology)
    }

    /// Latency of receiver `j` over one tree, whatever the contract says.
    #[must_use]
    pub fn tree_latency(&self, id: RequestId, tree: usize, j: usize) -> Option<Latency> {
        let allocation = self.allocations.get(&id)?;
        if tree >= allocation.trees.len() || j >= allocation.request.receivers.len() {
            return None;
        }
        Some(self.latency(flow(id, tree), j))
    }

    fn latency(&self, flow: FlowId, j: usize) -> Latency {
        let (earliest_ps, latest_ps) = self.network.arrival_ps(&self.topology, flow, j);
        let latency_min_ns = earliest_ps / 1000;
        Latency { latency_min_ns, jitter_max_ns: latest_ps.div_ceil(1000) - latency_min_ns }
    }

    /// FiDe App. B: over the whole set of trees the earliest of any, and the latest of any.
    fn contract(&self, id: RequestId, request: &Request) -> Contract {
        let receivers = (0..request.receivers.len())
            .map(|j| {
                let trees = (0..usize::from(request.redundancy)).map(|tree| self.latency(flow(id, tree), j));
                let (min, max) = trees.fold((u64::MAX, 0), |(min, max), latency| {
                    (min.min(latency.latency_min_ns), max.max(latency.latency_max_ns()))
                });
                Latency { latency_min_ns: min, jitter_max_ns: max - min }
            })
            .collect();
        Contract { size_max_bytes: request.size_max_bytes, period_min_ns: request.period_min_ns, receivers }
    }

    /// Which cables and switches do not work; trees over them stay until [`Planner::replace`] moves them.
    pub fn set_cable(&mut self, cable: CableId, works: bool) {
        if works {
            self.down.remove(&cable);
        } else {
            self.down.insert(cable);
        }
    }

    /// The same for a switch.
    pub fn set_switch(&mut self, switch: NodeId, works: bool) {
        if works {
            self.switches_down.remove(&switch);
        } else {
            self.switches_down.insert(switch);
        }
    }

    /// Whether a cable works, and both its ends.
    #[must_use]
    pub fn works(&self, cable: CableId) -> bool {
        let ends = self.topology.cables()[cable.at()].ends;
        !self.down.contains(&cable) && !ends.iter().any(|end| self.switches_down.contains(end))
    }

    /// Cables that do not work.
    pub fn cables_down(&self) -> impl Iterator<Item = CableId> + '_ {
        self.down.iter().copied()
    }

    /// Trees of a request that use something that does not work.
    #[must_use]
    pub fn broken(&self, id: RequestId) -> Vec<usize> {
        let Some(allocation) = self.allocations.get(&id) else { return Vec::new() };
        let broken = |tree: &Tree| tree.links().any(|link| !self.works(link.cable()));
        allocation.trees.iter().enumerate().filter(|(_, tree)| broken(tree)).map(|(i, _)| i).collect()
    }

    /// Requests with a tree over a cable.
    #[must_use]
    pub fn users(&self, cable: CableId) -> BTreeSet<(RequestId, usize)> {
        let flows = cable.links().into_iter().flat_map(|link| self.network.users(link));
        flows.map(|FlowId(id, tree)| (RequestId(id), usize::from(tree))).collect()
    }

    /// Holds one more request, if all that is promised already can be kept.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed.
    pub fn request(&mut self, request: Request) -> Result<(RequestId, Vec<Changed>), Refusal> {
        let id = RequestId(self.next);
        let changed = self.request_as(id, request)?;
        self.next += 1;
        Ok((id, changed))
    }

    /// The same under a number of the caller's.
    ///
    /// # Errors
    /// [`Refusal`], also if the number is taken; nothing has changed.
    pub fn request_as(&mut self, id: RequestId, request: Request) -> Result<Vec<Changed>, Refusal> {
        if self.allocations.contains_key(&id) {
            return Err(Refusal::Taken(id.0));
        }
        if self.allocations.len() >= REQUESTS_MAX {
            return Err(Refusal::Full);
        }
        let resolved = request.resolve(&self.topology)?;
        let places: Vec<usize> = (0..usize::from(request.redundancy)).collect();
        let found = self.place(id, &request, &resolved, &places, &[], &BTreeSet::new())?;
        let contract = self.contract(id, &request);
        let trees = places.iter().map(|tree| self.network.tree(flow(id, *tree)).clone()).collect();
        let Found { cost, method, proved, .. } = found;
        self.allocations.insert(id, Allocation { request, trees, contract, cost, method, proved });
        Ok(self.announce_changed(Some(id)))
    }

    /// Holds a request over trees that were found before, as a controller does that starts again. `links` are
    /// those of each tree.
    ///
    /// # Errors
    /// [`Refusal`], also if the trees are none, share something or use what may not be used; nothing has changed.
    pub fn hold(&mut self, id: RequestId, request: Request, links: &[Vec<LinkId>]) -> Result<Vec<Changed>, Refusal> {
        if self.allocations.contains_key(&id) {
            return Err(Refusal::Taken(id.0));
        }
        let resolved = request.resolve(&self.topology)?;
        let mut trees = Vec::new();
        for links in links {
            trees.push(Tree::new(&self.topology, resolved.sender, &resolved.receivers, links)?);
        }
        if trees.len() != usize::from(request.redundancy) {
            return Err(TreeError::Count { wanted: usize::from(request.redundancy), given: trees.len() }.into());
        }
        check_disjoint(&self.topology, &trees)?;
        let flows = trees.iter().enumerate().map(|(tree, links)| (flow(id, tree), links.clone())).collect();
        self.network
            .add(&self.topology, &request, flows)
            .map_err(|Trouble { link, what }| Refusal::Link { link: self.topology.link_name(link), what })?;
        let contract = self.contract(id, &request);
        let (cost, method, proved) = (Cost::default(), Method::Kept, false);
        self.allocations.insert(id, Allocation { request, trees, contract, cost, method, proved });
        self.next = self.next.max(id.0 + 1);
        Ok(self.announce_changed(Some(id)))
    }

    /// Finds trees for `places` beside those in `stay`, adds them to the network, and keeps them if all contracts hold.
    fn place(
        &mut self,
        id: RequestId,
        request: &Request,
        resolved: &Resolved,
        places: &[usize],
        stay: &[Tree],
        avoid: &BTreeSet<CableId>,
    ) -> Result<Found, Refusal> {
        let blocked: BTreeSet<NodeId> = stay.iter().flat_map(|tree| tree.switches(&self.topology)).collect();
        let mut avoid = avoid.clone();
        avoid.extend(stay.iter().flat_map(Tree::links).map(LinkId::cable));
        let mut refused: Option<Refusal> = None;
        for _ in 0..TRIES_MAX {
            let view = LinkCosts { planner: self, request, blocked: blocked.clone(), avoid: &avoid };
            let search = Search {
                topology: &self.topology,
                weigh: &view,
                sender: resolved.sender,
                receivers: &resolved.receivers,
                redundancy: places.len(),
            };
            let mut found = match search.find() {
                Ok(found) => found,
                // That a link was too full is the better answer than that there is no way without it.
                Err(no_trees) => {
                    let why = refused.unwrap_or_else(|| self.why_not(request, resolved, no_trees));
                    return Err(why);
                }
            };
            // Tree 0 leaves by the sender's first port, if it is a port of its own.
            found.trees.sort_by_key(|links| {
                links.iter().filter(|l| self.topology.from(**l) == resolved.sender).min().copied()
            });
            let mut trees = Vec::new();
            for links in &found.trees {
                trees.push(Tree::new(&self.topology, resolved.sender, &resolved.receivers, links)?);
            }
            let all: Vec<Tree> = trees.iter().chain(stay).cloned().collect();
            check_disjoint(&self.topology, &all)?;
            let flows: Vec<_> = places.iter().map(|place| flow(id, *place)).zip(trees).collect();
            let added: Vec<FlowId> = flows.iter().map(|(flow, _)| *flow).collect();
            let worst = match self.network.add(&self.topology, request, flows) {
                Ok(()) => match self.broken_promise(id, request) {
                    None => return Ok(found),
                    Some((refusal, link)) => {
                        self.network.remove(&self.topology, &added);
                        refused = Some(refusal);
                        link
                    }
                },
                Err(Trouble { link, what }) => {
                    refused = Some(Refusal::Link { link: self.topology.link_name(link), what });
                    link
                }
            };
            // Another way round the link that is too much, unless it was so already.
            if !avoid.insert(worst.cable()) {
                break;
            }
        }
        Err(refused.expect("a loop without a result was refused"))
    }

    /// If there are trees when bandwidth is no matter, bandwidth is what is missing.
    fn why_not(&self, request: &Request, resolved: &Resolved, no_trees: NoTrees) -> Refusal {
        let needed = request.bandwidth_bps();
        let full = |link: &LinkId| {
            let cable = link.cable();
            let free = self.allowed[cable.at()] && self.works(cable);
            free && self.network.lane_bps(*link) + needed > self.network.allowed_bps(&self.topology, *link)
        };
        let near = [resolved.sender].into_iter().chain(resolved.receivers.iter().copied());
        let out = self.topology.leaving(resolved.sender).iter().copied();
        let ways: Vec<LinkId> = out
            .chain(near.skip(1).flat_map(|receiver| self.topology.entering(receiver)))
            .chain((0..self.topology.links()).map(|l| LinkId(u32::try_from(l).expect("bounded"))))
            .collect();
        match ways.iter().find(|link| full(link)) {
            Some(link) => Refusal::Link {
                link: self.topology.link_name(*link),
                what: Overload::Bandwidth {
                    needed_bps: self.network.lane_bps(*link) + needed,
                    allowed_bps: self.network.allowed_bps(&self.topology, *link),
                },
            },
            None => no_trees.into(),
        }
    }

    /// The first latency beyond what was asked for, and the link on its way that adds most.
    fn broken_promise(&self, new: RequestId, request: &Request) -> Option<(Refusal, LinkId)> {
        let others = self.allocations.iter().map(|(id, allocation)| (*id, &allocation.request));
        for (id, asked) in [(new, request)].into_iter().chain(others.filter(|(id, _)| *id != new)) {
            let Some(allowed_ns) = asked.latency_max_ns else { continue };
            for tree in 0..usize::from(asked.redundancy) {
                let flow = flow(id, tree);
                for (j, receiver) in asked.receivers.iter().enumerate() {
                    let latency_ns = self.latency(flow, j).latency_max_ns();
                    if latency_ns <= allowed_ns {
                        continue;
                    }
                    let tree = self.network.tree(flow);
                    let path = tree.path(j).into_iter().map(|hop| tree.hops()[hop].link);
                    let slowest = path
                        .max_by_key(|link| self.network.wait_ps(&self.topology, *link, asked.priority))
                        .expect("a path has a link");
                    let link = self.topology.link_name(slowest);
                    let refusal = if id == new {
                        Refusal::Late { receiver: receiver.clone(), latency_ns, allowed_ns, slowest: link }
                    } else {
                        Refusal::Harms { other: asked.name.clone(), latency_ns, allowed_ns, link }
                    };
                    return Some((refusal, slowest));
                }
            }
        }
        None
    }

    /// The contracts of all others that differ from what was announced: these are announced anew.
    fn announce_changed(&mut self, but: Option<RequestId>) -> Vec<Changed> {
        let mut changed = Vec::new();
        let ids: Vec<RequestId> = self.allocations.keys().copied().collect();
        for id in ids {
            let allocation = &self.allocations[&id];
            let after = self.contract(id, &allocation.request);
            let allocation = self.allocations.get_mut(&id).expect("its key is there");
            if allocation.contract != after {
                let before = std::mem::replace(&mut allocation.contract, after.clone());
                if but != Some(id) {
                    changed.push(Changed { id, before, after });
                }
            }
        }
        changed
    }

    /// Gives up a request.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn release(&mut self, id: RequestId) -> Result<Vec<Changed>, Refusal> {
        let allocation = self.allocations.remove(&id).ok_or(Refusal::Unknown(id.0))?;
        let flows: Vec<FlowId> = (0..allocation.trees.len()).map(|tree| flow(id, tree)).collect();
        self.network.remove(&self.topology, &flows);
        Ok(self.announce_changed(None))
    }

    /// Another size, period, sub-lane or other hosts for a request that is held (`changeBandwidth` of X-Lane
    /// Listing 1).
    ///
    /// # Errors
    /// [`Refusal`]; the request is held as before.
    pub fn change(&mut self, id: RequestId, request: Request) -> Result<Vec<Changed>, Refusal> {
        let before = self.clone_of(id)?;
        let announced: BTreeMap<RequestId, Contract> =
            self.allocations.iter().map(|(id, allocation)| (*id, allocation.contract.clone())).collect();
        self.release(id)?;
        match self.request_as(id, request) {
            Ok(_) => {
                let now = self.allocations.iter().filter(|(other, _)| **other != id);
                Ok(now
                    .filter_map(|(other, allocation)| {
                        let before = announced.get(other)?.clone();
                        let after = allocation.contract.clone();
                        (before != after).then_some(Changed { id: *other, before, after })
                    })
                    .collect())
            }
            Err(refusal) => {
                self.restore(id, before);
                Err(refusal)
            }
        }
    }

    fn clone_of(&self, id: RequestId) -> Result<Allocation, Refusal> {
        self.allocations.get(&id).cloned().ok_or(Refusal::Unknown(id.0))
    }

    /// Restores a request that was released a moment ago.
    fn restore(&mut self, id: RequestId, allocation: Allocation) {
        let flows = allocation.trees.iter().enumerate().map(|(tree, links)| (flow(id, tree), links.clone())).collect();
        self.network.add(&self.topology, &allocation.request, flows).expect("it was held a moment ago");
        self.allocations.insert(id, allocation);
        self.announce_changed(None);
    }

    /// Another tree in place of one that is broken or too slow (FiDe §3.3, "tree recovery"); the others of
    /// the request stay untouched. Cables in `avoid` are not used, beside those that do not work.
    ///
    /// # Errors
    /// [`Refusal`]; the tree is as before.
    pub fn replace(&mut self, id: RequestId, tree: usize, avoid: &BTreeSet<CableId>) -> Result<Vec<Changed>, Refusal> {
        let before = self.clone_of(id)?;
        if tree >= before.trees.len() {
            let request = before.request.name;
            return Err(Refusal::NoSuchTree { request, trees: before.trees.len(), tree });
        }
        let resolved = before.request.resolve(&self.topology)?;
        let mut stay = before.trees.clone();
        let old = stay.remove(tree);
        self.network.remove(&self.topology, &[flow(id, tree)]);
        match self.place(id, &before.request, &resolved, &[tree], &stay, avoid) {
            Ok(_) => {
                let new = self.network.tree(flow(id, tree)).clone();
                self.allocations.get_mut(&id).expect("it is held").trees[tree] = new;
                Ok(self.announce_changed(None))
            }
            Err(refusal) => {
                self.network
                    .add(&self.topology, &before.request, vec![(flow(id, tree), old)])
                    .expect("it was held a moment ago");
                Err(refusal)
            }
        }
    }

    /// What `f` makes of the search for a request's trees as the network is now; nothing is held. For
    /// comparing methods.
    ///
    /// # Errors
    /// [`Refusal::Request`].
    pub fn with_search<T>(
        &self,
        request: &Request,
        f: impl FnOnce(&Search<'_, LinkCosts<'_>>) -> T,
    ) -> Result<T, Refusal> {
        let resolved = request.resolve(&self.topology)?;
        let avoid = BTreeSet::new();
        let view = LinkCosts { planner: self, request, blocked: BTreeSet::new(), avoid: &avoid };
        let search = Search {
            topology: &self.topology,
            weigh: &view,
            sender: resolved.sender,
            receivers: &resolved.receivers,
            redundancy: usize::from(request.redundancy),
        };
        Ok(f(&search))
    }
}

fn flow(id: RequestId, tree: usize) -> FlowId {
    FlowId(id.0, u8::try_from(tree).expect("at most 3 trees"))
}

#[cfg(test)]
mod tests;
