// SPDX-License-Identifier: Apache-2.0
//! Members in one thread, and the messages between them, in the order in which they were sent.

use std::{collections::VecDeque, time::Instant};

use fide_agreement::{Agreement, Group, HostSet, Hsuc, Lease, Message, batch, group::entries};
use fide_types::PerHost;

use super::{MEMBERS, PROPOSAL, RUNS};

/// A lease that does not end during the measurement.
const LEASE: Lease = Lease { now_ns: 0, until_ns: 1 };

/// A member, as these benchmarks drive it.
pub(super) trait Node: Sized {
    /// False if the node accepts no more proposals now.
    fn propose(&mut self) -> bool;
    /// How many proposals the next decision has, if there is one.
    fn decided(&mut self) -> Option<u64>;
    /// Writes the next message over `bytes`, and returns its receivers.
    fn send(&mut self, bytes: &mut Vec<u8>) -> Option<HostSet>;
    fn address(&self, bytes: &mut [u8], to: u16);
    /// # Errors
    /// The node refuses the message.
    fn take(&mut self, from: u16, bytes: &[u8]) -> anyhow::Result<()>;
}

/// A protocol without a group.
pub(super) struct Bare<A>(pub(super) A);

impl<A: Agreement> Node for Bare<A> {
    fn propose(&mut self) -> bool {
        self.0.propose(&PROPOSAL).is_ok()
    }

    fn decided(&mut self) -> Option<u64> {
        self.0.poll_decision().map(|decision| batch::values(decision.value).count() as u64)
    }

    fn send(&mut self, bytes: &mut Vec<u8>) -> Option<HostSet> {
        bytes.clear();
        if let Some(message) = self.0.poll_broadcast() {
            message.write(bytes);
            self.0.broadcast_left();
            return Some(HostSet::first(MEMBERS.into()));
        }
        let (to, message) = self.0.poll_transmit()?;
        message.write(bytes);
        Some(to)
    }

    fn address(&self, _: &mut [u8], _: u16) {}

    fn take(&mut self, from: u16, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.receive(from, &Message::read(bytes)?)?)
    }
}

impl Node for Group<Hsuc> {
    fn propose(&mut self) -> bool {
        Group::propose(self, LEASE, &PROPOSAL).is_ok()
    }

    fn decided(&mut self) -> Option<u64> {
        self.poll_decision(LEASE).map(|decision| entries(decision.value).count() as u64)
    }

    fn send(&mut self, bytes: &mut Vec<u8>) -> Option<HostSet> {
        self.poll_transmit(bytes)
    }

    fn address(&self, bytes: &mut [u8], to: u16) {
        Group::address(self, bytes, to);
    }

    fn take(&mut self, from: u16, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.receive(from, bytes)?)
    }
}

struct Members<N> {
    nodes: PerHost<N>,
    wire: VecDeque<(u16, u16, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    datagram: Vec<u8>,
    /// Proposals that were delivered at the last member.
    decided: u64,
}

impl<N: Node> Members<N> {
    fn new(node: fn(u16) -> anyhow::Result<N>) -> anyhow::Result<Self> {
        let mut made = (1..=MEMBERS).map(node).collect::<anyhow::Result<Vec<_>>>()?.into_iter();
        let nodes = PerHost::new(usize::from(MEMBERS), |_| made.next().expect("one for each member"));
        let mut members = Self { nodes, wire: VecDeque::new(), spare: Vec::new(), datagram: Vec::new(), decided: 0 };
        (1..=MEMBERS).for_each(|member| members.drain(member));
        Ok(members)
    }

    /// Takes all output that follows from the last call of a member.
    fn drain(&mut self, member: u16) {
        let node = &mut self.nodes[member];
        loop {
            let mut anything = false;
            while let Some(proposals) = node.decided() {
                anything = true;
                if member == MEMBERS {
                    self.decided += proposals;
                }
            }
            while let Some(to) = node.send(&mut self.datagram) {
                anything = true;
                for receiver in to.iter().filter(|receiver| *receiver != member) {
                    node.address(&mut self.datagram, receiver);
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.clear();
                    bytes.extend_from_slice(&self.datagram);
                    self.wire.push_back((member, receiver, bytes));
                }
            }
            if !anything {
                return;
            }
        }
    }

    fn deliver(&mut self) -> anyhow::Result<bool> {
        let Some((from, to, bytes)) = self.wire.pop_front() else { return Ok(false) };
        self.nodes[to].take(from, &bytes)?;
        self.spare.push(bytes);
        self.drain(to);
        Ok(true)
    }

    /// Decided proposals per second of all members, `together` of them offered at a time.
    fn run(&mut self, proposals: u64, together: u64) -> anyhow::Result<f64> {
        let (begun, until) = (Instant::now(), self.decided + proposals);
        let mut offered = 0;
        while self.decided < until {
            for _ in 0..together.min(proposals - offered) {
                if !self.nodes[1].propose() {
                    break;
                }
                offered += 1;
            }
            self.drain(1);
            for _ in 0..4 * MEMBERS {
                if !self.deliver()? {
                    break;
                }
            }
        }
        while self.deliver()? {}
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        Ok(proposals as f64 / begun.elapsed().as_secs_f64())
    }
}

/// Rates of [`RUNS`] runs, sorted.
pub(super) fn rates<N: Node>(
    node: fn(u16) -> anyhow::Result<N>,
    proposals: u64,
    together: u64,
) -> anyhow::Result<Vec<f64>> {
    let mut members = Members::new(node)?;
    members.run(proposals / 4, together)?;
    let mut rates = (0..RUNS).map(|_| members.run(proposals, together)).collect::<anyhow::Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}
