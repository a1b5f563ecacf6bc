// SPDX-License-Identifier: Apache-2.0
//! Which hosts hear which others, over which tree, as every agent's table shows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use fide_client::{Client, now_ns};

use super::super::ears::connect;

/// Time between two reads of the tables.
const LOOK: Duration = Duration::from_millis(1);
/// A packet that was sent before a cut arrives within this.
const UNDER_WAY_NS: u64 = 4_000_000;
/// A tree that was not heard for this long is silent.
const SILENT_NS: u64 = 12_000_000;
/// Number of trees of a host.
pub(super) const TREES: usize = 2;

/// One direction: `observer` hears `peer` over `tree`. Hosts from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Way {
    pub(super) observer: usize,
    pub(super) peer: usize,
    pub(super) tree: usize,
}

/// Programs that read the tables.
pub(super) struct Tables {
    clients: Vec<Client>,
}

/// The state of the ways after a cut.
pub(super) struct After {
    /// When the last silent way was heard again, CLOCK_MONOTONIC; `None` if no way was silent.
    pub(super) restored_ns: Option<u64>,
    /// Still silent at the end.
    pub(super) silent: Vec<Way>,
}

impl Tables {
    pub(super) fn open(sockets: &[PathBuf]) -> anyhow::Result<Self> {
        Ok(Self { clients: sockets.iter().map(|socket| connect(socket)).collect::<Result<_, _>>()? })
    }

    /// When each way was last used.
    fn heard(&self) -> Vec<(Way, u64)> {
        let hosts = self.clients.len();
        let ways = (1..=hosts).flat_map(move |observer| {
            (1..=hosts)
                .filter(move |peer| *peer != observer)
                .flat_map(move |peer| (0..TREES).map(move |tree| Way { observer, peer, tree }))
        });
        ways.map(|way| {
            let record = self.clients[way.observer - 1].table().host(u16::try_from(way.peer).expect("few hosts"));
            (way, record.map_or(0, |record| record.plane_rx_ns[way.tree]))
        })
        .collect()
    }

    /// Ways that are not used now.
    pub(super) fn silent(&self) -> Vec<Way> {
        let now = now_ns();
        self.heard()
            .into_iter()
            .filter(|(_, rx_ns)| now.saturating_sub(*rx_ns) > SILENT_NS)
            .map(|(way, _)| way)
            .collect()
    }

    /// Waits until all ways are used; returns those that are still unused at the limit.
    pub(super) fn await_all(&self, limit: Duration) -> Vec<Way> {
        let until = Instant::now() + limit;
        loop {
            let silent = self.silent();
            if silent.is_empty() || Instant::now() >= until {
                return silent;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Watches the effect of a cut at `cut_ns` on the ways that used the cable and on all others, until
    /// everything was heard for `steady`, or until the limit. A way counts as restored at the end of the
    /// longest silence that began no later than the cut.
    pub(super) fn follow(&self, cut_ns: u64, concerned: &BTreeSet<Way>, steady: Duration, limit: Duration) -> After {
        let mut last = self.heard();
        let mut longest: BTreeMap<Way, (u64, u64)> = BTreeMap::new();
        let until = Instant::now() + limit;
        let mut calm_since = Instant::now();
        loop {
            std::thread::sleep(LOOK);
            let heard = self.heard();
            for ((way, before), (_, after)) in last.iter().zip(&heard) {
                let spans = *before <= cut_ns + UNDER_WAY_NS && *after > cut_ns;
                if concerned.contains(way) && spans {
                    let silence = longest.entry(*way).or_default();
                    *silence = (*silence).max((after - before, *after));
                }
            }
            last = heard;
            let silent = self.silent();
            if !silent.is_empty() {
                calm_since = Instant::now();
            }
            if calm_since.elapsed() >= steady || Instant::now() >= until {
                return After { restored_ns: longest.into_values().map(|(_, end)| end).max(), silent };
            }
        }
    }
}
