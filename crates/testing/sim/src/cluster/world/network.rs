// SPDX-License-Identifier: Apache-2.0
//! Links between hosts, and waiting events.

use fide_types::{HostId, PerHost};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    super::{
        host::{Packet, Voice},
        plan::{Plan, STRAGGLE_NS},
    },
    Next,
    events::Events,
};

pub(super) struct Network {
    pub(super) events: Events,
    pub(super) random: ChaCha8Rng,
    /// By sender, then receiver: a bit for each plane that is cut.
    cuts: PerHost<PerHost<u8>>,
    latency_min_ns: u64,
    jitter_max_ns: u64,
    loss_permille: u32,
    duplicate_permille: u32,
    straggle_permille: u32,
    /// No packet is lost, repeated, or delayed beyond jitter.
    pub(super) calm: bool,
    /// Buffers of packets that have arrived, for reuse.
    buffers: Vec<Vec<u8>>,
}

impl Network {
    pub(super) fn new(plan: &Plan) -> Self {
        let hosts = usize::from(plan.hosts);
        Self {
            events: Events::new(),
            random: ChaCha8Rng::seed_from_u64(!plan.seed),
            cuts: PerHost::new(hosts, |_| PerHost::new(hosts, |_| 0)),
            latency_min_ns: plan.latency_min_ns,
            jitter_max_ns: plan.jitter_max_ns,
            loss_permille: plan.loss_permille,
            duplicate_permille: plan.duplicate_permille,
            straggle_permille: plan.straggle_permille,
            calm: true,
            buffers: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, at_ns: u64, next: Next) {
        self.events.push(at_ns, next);
    }

    pub(super) fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.random.random_range(0..1000) < permille
    }

    fn link(&mut self, from: u16, to: u16) -> &mut u8 {
        &mut self.cuts[from][to]
    }

    pub(super) fn cut(&mut self, from: u16, to: u16, plane: u8) {
        *self.link(from, to) |= 1 << plane;
    }

    pub(super) fn mend(&mut self) {
        self.cuts.values_mut().iter_mut().for_each(|to| to.values_mut().fill(0));
    }

    #[allow(clippy::too_many_arguments, reason = "what a packet is")]
    pub(super) fn send(&mut self, now_ns: u64, from: u16, to: u16, plane: u8, voice: Voice, bytes: &[u8]) {
        if *self.link(from, to) >> plane & 1 == 1 || !self.calm && self.chance(self.loss_permille) {
            return;
        }
        let copies = 1 + u32::from(!self.calm && self.chance(self.duplicate_permille));
        for _ in 0..copies {
            let mut late_ns = if self.jitter_max_ns == 0 { 0 } else { self.random.random_range(0..self.jitter_max_ns) };
            if !self.calm && self.chance(self.straggle_permille) {
                late_ns += self.random.random_range(0..STRAGGLE_NS);
            }
            let bytes = self.copy(bytes);
            self.push(now_ns + self.latency_min_ns + late_ns, Next::Arrives(to, Packet { plane, voice, bytes }));
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.buffers.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    /// Sends a recorded heartbeat again.
    pub(super) fn replay(&mut self, now_ns: u64, to: u16, plane: u8, bytes: &[u8]) {
        let bytes = self.copy(bytes);
        self.push(now_ns, Next::Arrives(to, Packet { plane, voice: Voice::Agent { forgets: false }, bytes }));
    }

    pub(super) fn cut_off(&mut self, host: HostId, plane: u8) {
        for other in 1..=self.cuts.hosts() as u16 {
            self.cut(host, other, plane);
            self.cut(other, host, plane);
        }
    }

    pub(super) fn give_back(&mut self, bytes: Vec<u8>) {
        self.buffers.push(bytes);
    }
}
