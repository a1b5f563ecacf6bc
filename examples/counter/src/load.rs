// SPDX-License-Identifier: Apache-2.0
//! Clients in the replica itself: closed loops, each with one value outstanding, exactly as in
//! `baselines/etcd-raft`.

use fide_group::{Member, Start, batch};
use fide_testbed::figures::Samples;

use crate::{
    lines::{Add, Reported},
    state::{VALUE_MIN, Value},
};

pub(crate) const CLIENTS_MAX: u32 = 64 << 10;
pub(crate) const VALUE_MAX: u32 = 1 << 10;
pub(crate) const SECONDS_MAX: f64 = 600.0;
/// This fraction of the measured time comes first and is not counted.
const WARM_UP_FRACTION: u64 = 5;
/// Most bytes of values in one payload; an instance names many payloads.
const BUNDLE_MAX: usize = 64 << 10;
/// How many values are written at once.
const VALUES: usize = 16;
/// How long outstanding values are waited for at the end, ns.
const DRAIN_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Client {
    count: u32,
    since_ns: u64,
}

/// A run of clients.
#[derive(Debug)]
pub(crate) struct Load {
    name: String,
    run: u64,
    seconds: f64,
    clients: Vec<Client>,
    idle: Vec<u32>,
    value: Vec<u8>,
    /// [`VALUES`] values.
    values: Vec<u8>,
    warm_ns: u64,
    end_ns: u64,
    decisions: u64,
    latency: Samples,
}

impl Load {
    /// `run` is part of all its values, and no other load has it. Without `seconds` it goes on for ever.
    pub(crate) fn new(
        name: String,
        run: u64,
        clients: u32,
        value_bytes: u32,
        seconds: Option<f64>,
        now: u64,
    ) -> Result<Self, String> {
        if !(1..=CLIENTS_MAX).contains(&clients) {
            return Err(format!("clients is from 1 to {CLIENTS_MAX}, not {clients}"));
        }
        if !(VALUE_MIN as u32..=VALUE_MAX).contains(&value_bytes) {
            return Err(format!("value_bytes is from {VALUE_MIN} to {VALUE_MAX}, not {value_bytes}"));
        }
        if seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds <= SECONDS_MAX)) {
            return Err(format!("seconds is more than 0 and at most {SECONDS_MAX}"));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most ten minutes")]
        let measured_ns = seconds.map_or(u64::MAX / 4, |seconds| (seconds * 1e9) as u64);
        let warm_ns = seconds.map_or(now, |_| now + measured_ns / WARM_UP_FRACTION);
        let value: Vec<u8> = (0..value_bytes).map(|at| at as u8).collect();
        Ok(Self {
            name,
            run,
            seconds: seconds.unwrap_or(0.0),
            clients: vec![Client { count: 0, since_ns: now }; clients as usize],
            idle: (0..clients).collect(),
            values: value.repeat(VALUES),
            value,
            warm_ns,
            end_ns: warm_ns.saturating_add(measured_ns),
            decisions: 0,
            latency: Samples::default(),
        })
    }

    /// Proposes the values of idle clients: from `bundles` clients on as payloads of many values each. These
    /// are sent ahead, and are no longer than the decisions that name them.
    pub(crate) fn propose_bundles<P: Start>(&mut self, member: &mut Member<P>, now: u64, bundles: usize) {
        while now < self.end_ns && self.idle.len() >= bundles {
            let (mut bundle, mut taken) = (Vec::new(), 0);
            for id in &self.idle {
                let add = Add { client: *id, count: self.clients[*id as usize].count };
                Value { run: self.run, add }.write(&mut self.value);
                if !batch::push(&mut bundle, &self.value, BUNDLE_MAX) {
                    break;
                }
                taken += 1;
            }
            if member.propose_payload(bundle).is_err() {
                break;
            }
            self.idle.drain(..taken);
        }
        self.propose(member, now);
    }

    /// Proposes the values of idle clients, as far as there is room.
    pub(crate) fn propose<P: Start>(&mut self, member: &mut Member<P>, now: u64) {
        if now >= self.end_ns {
            return;
        }
        let Self { run, clients, idle, values, value, .. } = self;
        let mut taken = 0;
        member.propose_with(|propose| {
            // Several values are written before the first one is read: a core waits if it reads what it has
            // just written in pieces.
            'all: for ids in idle.chunks(VALUES) {
                for (id, bytes) in ids.iter().zip(values.chunks_mut(value.len())) {
                    Value { run: *run, add: Add { client: *id, count: clients[*id as usize].count } }.write(bytes);
                }
                for bytes in values.chunks(value.len()).take(ids.len()) {
                    if propose(bytes).is_err() {
                        break 'all;
                    }
                    taken += 1;
                }
            }
        });
        self.idle.drain(..taken);
    }

    /// A value was delivered. True if it is a request of one of these clients.
    pub(crate) fn delivered(&mut self, value: &Value, now: u64) -> bool {
        let Value { run, add: Add { client: id, count } } = *value;
        let client = self.clients.get_mut(id as usize).filter(|client| run == self.run && client.count == count);
        let Some(client) = client else { return false };
        client.count = client.count.wrapping_add(1);
        let latency_ns = now - client.since_ns;
        // The client sends the next value at once: waiting for room counts too.
        client.since_ns = now;
        self.idle.push(id);
        if (self.warm_ns..self.end_ns).contains(&now) {
            self.decisions += 1;
            self.latency.add(latency_ns);
        }
        true
    }

    /// Ends the load. The result counts decisions until `now`.
    #[allow(clippy::cast_precision_loss, reason = "to be read")]
    pub(crate) fn end(&mut self, now: u64) {
        self.end_ns = self.end_ns.min(now);
        // A load that ends within the warm-up has decided nothing, in no time: avoid a rate that is not a
        // number.
        self.seconds = (self.end_ns.saturating_sub(self.warm_ns).max(1)) as f64 / 1e9;
    }

    /// No outstanding value is waited for any more.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        let drained_ns = self.end_ns.saturating_add(DRAIN_NS);
        now >= drained_ns || now >= self.end_ns && self.idle.len() == self.clients.len()
    }

    #[allow(clippy::cast_precision_loss, reason = "to be read")]
    pub(crate) fn result(&self) -> Reported {
        let us = |ns: u64| ns as f64 / 1e3;
        Reported::Result {
            run: self.name.clone(),
            decisions: self.decisions,
            seconds: self.seconds,
            per_second: self.decisions as f64 / self.seconds,
            p50_us: us(self.latency.quantile(0.5)),
            p99_us: us(self.latency.quantile(0.99)),
            max_us: us(self.latency.max()),
            clients: self.clients.len() as u32,
        }
    }
}
