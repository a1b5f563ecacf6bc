// SPDX-License-Identifier: Apache-2.0
//! The plan of a seed: a cluster, its network, its clocks, and its faults.

use fide_detector::{HostSet, Policy, URGENT_MAX};
use fide_types::{HostId, PerHost};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{clock::Stands, protocol};

mod disks;
mod features;
mod machines;
mod walls;
mod what;

pub use disks::Durable;
pub use features::Features;
pub use walls::{NOTES_NS, WALLS};
pub(super) use what::milliseconds;
pub use what::{Fault, Reaches, What};

pub const MS: u64 = 1_000_000;
/// The heartbeat period of every host.
pub const HEARTBEAT_NS: u64 = MS;
/// Faults happen within this, from the time that [`Plan::early`] selects.
pub const FAULTS_NS: u64 = 800 * MS;
/// A straggler is late by at most this: longer than it takes to detect a crash.
pub const STRAGGLE_NS: u64 = 60 * MS;
/// Faults of one burst come within this.
const BURST_NS: u64 = 15 * MS;
/// After the faults the world is left alone for this long.
pub const QUIET_NS: u64 = 300 * MS;
/// If faults begin with the hosts, they come this many times closer together.
const EARLIER: u64 = 8;
/// Without faults, the hosts have founded their group by then.
pub const FOUNDED_NS: u64 = 300 * MS;

/// Everything that a run depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub hosts: u16,
    pub policy: Policy,
    /// Of each host, at the beginning.
    pub timeouts: PerHost<u64>,
    /// The longest promise of each host, over all timeouts that it has while it runs: its next life has to
    /// heed it.
    pub promises: PerHost<u64>,
    pub protocol: protocol::Name,
    /// Instances under way in HSUC.
    pub window: u64,
    /// The last host is a witness: it votes, stores its vote, and is no member of the group.
    pub witness: bool,
    /// Bytes of decisions that members keep for joining members.
    pub tail_max: u64,
    /// The bound of clock drift that hosts assume.
    pub drift_ppm: u32,
    /// Of each host: how much faster than true time its clock runs, and what it shows first.
    pub clocks: PerHost<(i64, u64)>,
    pub latency_min_ns: u64,
    pub jitter_max_ns: u64,
    /// Until the faults are over.
    pub loss_permille: u32,
    pub duplicate_permille: u32,
    /// Packets that are late by up to [`STRAGGLE_NS`], long after packets that were sent later.
    pub straggle_permille: u32,
    /// Turns that come late.
    pub nap_permille: u32,
    /// Mean time between two requests of users.
    pub work_every_ns: u64,
    /// Ordered by time.
    pub faults: Vec<Fault>,
    /// Faults begin with the hosts, and not once these have founded their group.
    pub early: bool,
    /// How often a member's process is late between its wait and the turn of its user.
    pub stall_permille: u32,
    /// A service that must run once.
    pub service: bool,
    /// Payloads may be equal, or too long.
    pub equal: bool,
    /// Members start again before their host is let in.
    pub hasty: bool,
    /// At the end all hosts are up again, including those that crashed or left.
    pub restores: bool,
    /// Of each host: whether its kernel receives heartbeats.
    pub xdp: PerHost<bool>,
    /// Of each host: the heartbeats that it sends between two of the schedule.
    pub urgent: PerHost<u32>,
    /// Of each host: how far its wall clock is ahead, ns, by how often the host has started.
    pub walls: PerHost<[u64; WALLS]>,
    /// The longest that it takes to store the generation of a view.
    pub disk_ns: u64,
    /// The group is durable.
    pub durable: Option<Durable>,
}

/// Kinds of faults that come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Mixed,
    Pauses,
    Churn,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self::with(seed, Features::ALL)
    }

    /// The plan of a seed with these features.
    #[must_use]
    pub fn with(seed: u64, features: Features) -> Self {
        let mut plan = Self::plain(seed);
        // A witness that forgets its vote shows only if the order of cut, end and restart is kept: half of
        // the seeds with a witness have no other features.
        let features = if plan.witness && seed % 2 == 1 { Features::NONE } else { features };
        let mut random = ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0xfea7);
        // Drawn whether they are used or not.
        let wants: [bool; 8] = std::array::from_fn(|_| random.random_range(0..2) == 0);
        let draws: [u64; 8] = std::array::from_fn(|_| random.random());
        let with = |at: usize| features.has(Features::NAMES[at].1) && wants[at];
        let random = |at: usize| ChaCha8Rng::seed_from_u64(draws[at]);
        if with(0) {
            plan.be_unequal(&mut random(0));
        }
        if with(1) {
            plan.come_apart(&mut random(1));
        }
        if with(2) {
            plan.service = true;
        }
        if with(3) {
            plan.be_slewed(&mut random(3));
        }
        if with(4) {
            plan.be_suspended(&mut random(4));
        }
        if with(5) {
            plan.be_replayed(&mut random(5));
        }
        // Drawn after everything else, so that plans without it stay what they were.
        let mut more = ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0x5709);
        let more: [(bool, u64); 4] = std::array::from_fn(|_| (more.random_range(0..2) == 0, more.random()));
        let with_more = |at: usize| features.has(Features::NAMES[8 + at].1) && more[at].0;
        if with_more(0) {
            plan.be_stopped(&mut ChaCha8Rng::seed_from_u64(more[0].1));
        }
        if with_more(1) {
            plan.be_flooded(&mut ChaCha8Rng::seed_from_u64(more[1].1));
        }
        if with_more(2) {
            plan.set_wall_clocks(&mut ChaCha8Rng::seed_from_u64(more[2].1));
        }
        if with_more(3) {
            let mut random = ChaCha8Rng::seed_from_u64(more[3].1);
            // Hosts are on different rungs.
            plan.xdp.values_mut().iter_mut().for_each(|xdp| *xdp = random.random_range(0..4) > 0);
        }
        let mut last = ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0xc10e);
        let mut durable = ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0xd15f);
        let is_durable = features.has(Features::DURABLE) && durable.random_range(0..4) == 0;
        // The disk of a machine that was put back has forgotten what others count as stored: nothing is
        // promised of a durable group then.
        if features.has(Features::CLONE) && last.random_range(0..2) == 0 && !is_durable {
            plan.be_cloned(&mut last);
        }
        let mut urgent = ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0x0e6e);
        // In most seeds, and not the same for all hosts: a host that has trees from a controller sends no
        // urgent heartbeats.
        if features.has(Features::URGENT) && urgent.random_range(0..4) > 0 {
            let most = |_| if urgent.random_range(0..4) > 0 { URGENT_MAX } else { urgent.random_range(0..URGENT_MAX) };
            plan.urgent = PerHost::new(usize::from(plan.hosts), most);
        }
        let mut hand = ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0x4a4d);
        if features.has(Features::HAND) && hand.random_range(0..2) == 0 {
            // To any member: leads that change often, also while hosts end and come.
            let hosts = plan.hosts;
            plan.add(&mut hand, 12, |random, _| What::HandOver { host: random.random_range(1..=hosts) });
        }
        if is_durable {
            plan.be_durable(&mut durable);
        }
        plan.equal = with(6);
        plan.hasty = with(7);
        plan.faults.sort_by_key(|fault| fault.at_ns);
        plan
    }

    /// Adds faults of one kind, spread over the time of faults.
    fn add(&mut self, random: &mut ChaCha8Rng, most: usize, mut what: impl FnMut(&mut ChaCha8Rng, u16) -> What) {
        let within_ns = if self.early { FAULTS_NS / EARLIER } else { FAULTS_NS };
        for _ in 0..random.random_range(1..=most) {
            let host = random.random_range(1..=self.hosts).min(random.random_range(1..=self.hosts));
            let at_ns = random.random_range(0..within_ns);
            self.faults.push(Fault { at_ns, what: what(random, host) });
        }
    }

    fn be_unequal(&mut self, random: &mut ChaCha8Rng) {
        let timeout_ns =
            |random: &mut ChaCha8Rng| [4, 6, 13, 60, random.random_range(4..=60)][random.random_range(0..5)] * MS;
        self.timeouts = PerHost::new(usize::from(self.hosts), |_| timeout_ns(random));
        self.add(random, 4, |random, host| What::Timeouts { host, timeout_ns: timeout_ns(random) });
        if self.policy == Policy::Majority && self.hosts > 2 && !self.witness && random.random_range(0..2) == 0 {
            self.forget_promises(random);
        }
        if self.policy == Policy::Majority && self.hosts > 3 && random.random_range(0..2) == 0 {
            self.rejoin(random);
        }
        self.promises = PerHost::new(usize::from(self.hosts), |host| self.longest_of(host));
    }

    /// All hosts but one raise their timeouts, start again with the shorter ones that they began with, and
    /// found a view, while that one is cut off. It still relies on their longer promises.
    fn forget_promises(&mut self, random: &mut ChaCha8Rng) {
        let mut at_ns = random.random_range(0..FAULTS_NS / 2);
        let one = random.random_range(1..=self.hosts);
        let others: Vec<u16> = (1..=self.hosts).filter(|host| *host != one).collect();
        for host in &others {
            self.faults.push(Fault { at_ns, what: What::Timeouts { host: *host, timeout_ns: 60 * MS } });
        }
        at_ns += random.random_range(10..40) * MS;
        for host in others {
            let what = What::KillAgent { host, down_ns: random.random_range(0..MS) };
            self.faults.push(Fault { at_ns, what });
        }
        at_ns += random.random_range(0..MS);
        for plane in 0..2 {
            self.faults.push(Fault { at_ns, what: What::Isolate { host: one, plane } });
        }
        at_ns += random.random_range(20..120) * MS;
        self.faults.push(Fault { at_ns, what: What::Heal });
    }

    /// The longest timeout that a host ever has.
    fn longest_of(&self, host: HostId) -> u64 {
        let raised = self.faults.iter().filter_map(|fault| match fault.what {
            What::Timeouts { host: of, timeout_ns } if of == host => Some(timeout_ns),
            _ => None,
        });
        raised.fold(self.timeouts[host], u64::max)
    }

    /// Hosts end and come back, and another host is cut off while they are let in. It still relies on the
    /// promise of a slow host.
    fn rejoin(&mut self, random: &mut ChaCha8Rng) {
        // Two hosts stay. The promise of the slow one matters if the other one and the returning hosts, which do
        // not know that promise, are a majority.
        let slow = (self.hosts == 5 && random.random_range(0..2) == 0).then(|| random.random_range(0..self.hosts));
        if let Some(slow) = slow {
            self.timeouts.values_mut().fill(random.random_range(4..8) * MS);
            self.timeouts[1 + slow] = 60 * MS;
        }
        let longest_ns = self.timeout_ns();
        for _ in 0..random.random_range(1..3) {
            let mut at_ns = random.random_range(0..FAULTS_NS / 2);
            let mut then = |after_ns: u64, what: What| {
                at_ns += after_ns;
                self.faults.push(Fault { at_ns, what });
            };
            let first = match slow {
                Some(slow) => (slow + random.random_range(1..=2)) % self.hosts,
                None => random.random_range(0..self.hosts),
            };
            let place = |step: u16| 1 + (first + step) % self.hosts;
            for step in 1..=self.hosts / 2 {
                then(0, What::Crash { host: place(step) });
            }
            for step in 1..=self.hosts / 2 {
                let after_ns = if step == 1 { 3 * longest_ns } else { random.random_range(0..2 * MS) };
                then(after_ns, What::Start { host: place(step) });
            }
            then(0, What::CutAtChange { host: place(0), after_ns: random.random_range(0..2 * MS) });
            then(random.random_range(20..120) * MS, What::Heal);
        }
    }

    fn come_apart(&mut self, random: &mut ChaCha8Rng) {
        self.stall_permille = [0, 5, 50][random.random_range(0..3)];
        let for_ns = |random: &mut ChaCha8Rng| match random.random_range(0..3) {
            0 => random.random_range(0..3 * MS),
            1 => random.random_range(0..30 * MS),
            _ => random.random_range(0..120 * MS),
        };
        self.add(random, 10, |random, host| match random.random_range(0..12) {
            0..2 => What::PauseAgent { host, for_ns: for_ns(random) },
            2..5 => What::PauseSeat { host, for_ns: for_ns(random) },
            5..9 => What::KillAgent { host, down_ns: random.random_range(0..3) * for_ns(random) / 4 },
            9 => What::TakeOver { host, for_ns: random.random_range(0..20 * MS) },
            10 => What::PauseService { host, for_ns: for_ns(random) },
            _ => What::KillSeat { host },
        });
    }

    fn be_slewed(&mut self, random: &mut ChaCha8Rng) {
        // Rates that NTP uses for long, or that a step of chrony uses for a short while.
        self.add(random, 4, |random, host| {
            let ppm = [-500, 0, 500, -80_000, 80_000][random.random_range(0..5)];
            What::Slew { host, ppm }
        });
        let short: Vec<Fault> = self
            .faults
            .iter()
            .copied()
            .filter(|fault| matches!(fault.what, What::Slew { ppm, .. } if ppm.abs() > 500))
            .collect();
        for Fault { at_ns, what } in short {
            if let What::Slew { host, .. } = what {
                let at_ns = at_ns + random.random_range(MS..100 * MS);
                self.faults.push(Fault { at_ns, what: What::Slew { host, ppm: 0 } });
            }
        }
    }

    fn be_suspended(&mut self, random: &mut ChaCha8Rng) {
        let longest_ns = self.timeout_ns();
        self.add(random, 4, |random, host| {
            let for_ns = match random.random_range(0..2) {
                0 => longest_ns + random.random_range(0..3 * MS),
                // No suspension is shorter: `fide_sys::clock::ASLEEP_NOISE_NS`.
                _ => random.random_range(2 * MS..120 * MS),
            };
            What::Suspend { host, for_ns }
        });
    }

    fn be_stopped(&mut self, random: &mut ChaCha8Rng) {
        let longest_ns = self.timeout_ns();
        let policy = self.policy;
        self.add(random, 4, |random, host| {
            let for_ns = match random.random_range(0..2) {
                0 => longest_ns + random.random_range(0..3 * MS),
                _ => random.random_range(0..120 * MS),
            };
            let stands = [None, Some(Stands::Counted), Some(Stands::Unseen)][random.random_range(0..3)];
            // Of two hosts, if one is stopped this way, both may continue for good, as after a cut.
            let unseen = policy == Policy::Majority;
            let stands = stands.filter(|stands| *stands != Stands::Unseen || unseen);
            What::Stop { host, for_ns, stands }
        });
    }

    fn be_flooded(&mut self, random: &mut ChaCha8Rng) {
        // More events than a turn takes, or than the ring holds.
        self.add(random, 3, |random, host| {
            let times = if random.random_range(0..3) == 0 { 600 } else { random.random_range(100..400) };
            What::Flood { host, times }
        });
        if random.random_range(0..2) == 0 {
            return;
        }
        // The ring is full when another member ends and begins again: this member is not notified of that.
        let host = random.random_range(1..=self.hosts);
        let other = 1 + (host + random.random_range(0..self.hosts - 1)) % self.hosts;
        let at_ns = random.random_range(0..FAULTS_NS / 2);
        let for_ns = random.random_range(30..80) * MS;
        for (after_ns, what) in [
            (0, What::PauseSeat { host, for_ns }),
            (MS / 10, What::Flood { host, times: 600 }),
            (random.random_range(MS..5 * MS), What::KillSeat { host: other }),
        ] {
            self.faults.push(Fault { at_ns: at_ns + after_ns, what });
        }
        // The ring is full when a new agent readmits the program and has not heard of all other hosts yet.
        let host = random.random_range(1..=self.hosts);
        let at_ns = random.random_range(FAULTS_NS / 2..FAULTS_NS - 10 * MS);
        self.faults.push(Fault { at_ns, what: What::KillAgent { host, down_ns: 0 } });
        let at_ns = at_ns + random.random_range(5 * MS..8 * MS);
        self.faults.push(Fault { at_ns, what: What::Flood { host, times: 600 } });
    }

    fn be_replayed(&mut self, random: &mut ChaCha8Rng) {
        self.add(random, 3, |random, host| What::Replay { host, for_ns: random.random_range(5 * MS..100 * MS) });
        // A host that starts anew has no replay window yet.
        for fault in self.faults.clone() {
            if let What::Start { host } = fault.what
                && random.random_range(0..2) == 0
            {
                let what = What::Replay { host, for_ns: random.random_range(5 * MS..100 * MS) };
                self.faults.push(Fault { at_ns: fault.at_ns, what });
            }
        }
    }

    fn plain(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let hosts = random.random_range(2..=5_u16);
        // Under `network` each host judges alone, and two hosts that are completely cut from each other both
        // go on: that policy accepts it.
        let policy = if random.random_range(0..3) == 0 { Policy::Network } else { Policy::Majority };
        // Coarse clocks on fast links, or better clocks on slower ones: the margin for drift has to matter in
        // some runs.
        let coarse = random.random_range(0..2) == 0;
        let drift_ppm: u32 = if coarse { 20_000 } else { 200 };
        // Two clocks that each differ from true time by less than half of it.
        let most = i64::from(drift_ppm) * 49 / 100;
        let latency_min_ns = if coarse { random.random_range(0..5_000) } else { random.random_range(1_000..300_000) };
        let timeout_ns = random.random_range(6..=12) * MS;
        let timeouts = PerHost::new(usize::from(hosts), |_| timeout_ns);
        let mut plan = Self {
            seed,
            hosts,
            policy,
            protocol: protocol::Name::Hsuc,
            promises: timeouts.clone(),
            timeouts,
            window: [1, 2, 4, 16][random.random_range(0..4)],
            witness: false,
            tail_max: [0, 300, 1000, 4096][random.random_range(0..4)],
            drift_ppm,
            clocks: PerHost::new(usize::from(hosts), |_| {
                (random.random_range(-most..=most), random.random_range(0..1 << 40))
            }),
            latency_min_ns,
            jitter_max_ns: if random.random_range(0..3) == 0 { 0 } else { random.random_range(0..900_000) },
            // Under `network` one tree carries every heartbeat that matters, so losses are low enough not to
            // lose a timeout's worth of them.
            loss_permille: if policy == Policy::Network {
                [0, 10, 50][random.random_range(0..3)]
            } else {
                [0, 10, 50, 150][random.random_range(0..4)]
            },
            duplicate_permille: [0, 20, 150][random.random_range(0..3)],
            straggle_permille: [0, 0, 5, 50][random.random_range(0..4)],
            nap_permille: [0, 5, 30][random.random_range(0..3)],
            work_every_ns: random.random_range(50_000..1_000_000),
            faults: Vec::new(),
            early: false,
            stall_permille: 0,
            service: false,
            equal: false,
            hasty: false,
            restores: ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ 0x5e57).random_range(0..8) > 0,
            xdp: PerHost::new(usize::from(hosts), |_| false),
            urgent: PerHost::new(usize::from(hosts), |_| 0),
            walls: PerHost::new(usize::from(hosts), |_| [0; WALLS]),
            disk_ns: NOTES_NS,
            durable: None,
        };
        plan.draw_faults(&mut random);
        plan.early = random.random_range(0..4) == 0;
        if plan.early {
            // Most of them while the group is being founded.
            plan.faults.iter_mut().for_each(|fault| fault.at_ns /= EARLIER);
        }
        if random.random_range(0..3) == 0 {
            plan.protocol = protocol::Name::Huc;
        }
        // With two members the witness decides, with more it is one vote.
        plan.witness =
            policy == Policy::Majority && hosts > 2 && random.random_range(0..if hosts == 3 { 2 } else { 6 }) == 0;
        if plan.witness {
            plan.divide(&mut random);
        } else if policy == Policy::Majority && hosts > 2 && random.random_range(0..3) == 0 {
            plan.part(&mut random);
        }
        plan
    }

    /// Draws the faults of a plan without features, spread over the time or in bursts.
    fn draw_faults(&mut self, random: &mut ChaCha8Rng) {
        // A mix of all faults; or faults that are rare in a mix: one pause after the other, or hosts that
        // come and go.
        let style = [Style::Mixed, Style::Mixed, Style::Pauses, Style::Churn][random.random_range(0..4)];
        let count = random.random_range(0..=if style == Style::Mixed { 12 } else { 24 });
        let bursts = random.random_range(0..2) == 0;
        let mut times: Vec<u64> = (0..count).map(|_| random.random_range(0..FAULTS_NS)).collect();
        if bursts {
            for at in (1..times.len()).filter(|at| at % 3 != 0) {
                times[at] = (times[at - 1] + random.random_range(0..BURST_NS)).min(FAULTS_NS - 1);
            }
        }
        times.sort_unstable();
        self.faults = times.into_iter().map(|at_ns| Fault { at_ns, what: self.fault(style, random) }).collect();
    }

    /// How long the world is left alone: the longer the timeouts, the longer. A host that was dropped for a
    /// partial partition is not let in for 16 timeouts (the detector's `BARRED_TIMEOUTS`).
    #[must_use]
    pub fn quiet_ns(&self, least_ns: u64) -> u64 {
        let raised = self.faults.iter().filter_map(|fault| match fault.what {
            What::Timeouts { timeout_ns, .. } => Some(timeout_ns),
            _ => None,
        });
        let back_ns = self.durable.map_or(0, |durable| disks::BACK_NS + 16 * durable.sync_ns);
        // Views may be founded more than once, each after its generation is on disk.
        least_ns
            + raised.max().unwrap_or(0).max(self.timeout_ns()).saturating_sub(12 * MS) * 16
            + 4 * self.disk_ns
            + back_ns
    }

    /// The longest timeout of any host at the beginning.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.timeouts.values().iter().copied().max().expect("hosts")
    }

    /// Hosts that may be in the group.
    #[must_use]
    pub fn group(&self) -> HostSet {
        HostSet::first(usize::from(self.hosts - u16::from(self.witness)))
    }

    /// Members hear no host but the witness, so the witness decides which one continues. That one is cut off,
    /// and the witness restarts: it must not help another one now.
    fn divide(&mut self, random: &mut ChaCha8Rng) {
        let (witness, among, timeout_ns) = (self.hosts, self.group().0, self.timeout_ns());
        for _ in 0..random.random_range(0..4) {
            let mut at_ns = random.random_range(0..FAULTS_NS / 2);
            let mut then = |after_ns: u64, what: What| {
                at_ns += after_ns;
                self.faults.push(Fault { at_ns, what });
            };
            then(0, What::Divide { among });
            // Mostly the host that continues.
            let host = random.random_range(1..witness).min(random.random_range(1..witness));
            let (ends, cut_off) = (random.random_range(0..4) > 0, random.random_range(0..4) > 0);
            // The silence lasts until promises to them run out.
            let granted_ns = 3 * timeout_ns + random.random_range(0..3 * timeout_ns);
            if cut_off {
                then(granted_ns, What::Isolate { host, plane: 0 });
                then(0, What::Isolate { host, plane: 1 });
            }
            if ends {
                let after_ns = if cut_off { random.random_range(0..2 * MS) } else { granted_ns };
                then(after_ns, What::Crash { host: witness });
                then(random.random_range(0..2 * MS), What::Start { host: witness });
            }
            then(random.random_range(0..8 * timeout_ns), What::Heal);
        }
        self.faults.sort_by_key(|fault| fault.at_ns);
    }

    /// Two hosts hear all others but not each other, sometimes for so long that one of them has to be
    /// dropped. Another host may end meanwhile.
    fn part(&mut self, random: &mut ChaCha8Rng) {
        for _ in 0..random.random_range(1..4) {
            let at_ns = random.random_range(0..FAULTS_NS);
            let one = random.random_range(1..=self.hosts);
            let other = 1 + (one + random.random_range(0..self.hosts - 1)) % self.hosts;
            let among = HostSet::from_iter([one, other]).0;
            let until_ns = (at_ns + random.random_range(2..20) * self.timeout_ns()).min(FAULTS_NS - 1);
            self.faults.push(Fault { at_ns, what: What::Divide { among } });
            if random.random_range(0..3) == 0 {
                let host = random.random_range(1..=self.hosts);
                let at_ns = random.random_range(at_ns..=until_ns);
                self.faults.push(Fault { at_ns, what: What::Crash { host } });
            }
            self.faults.push(Fault { at_ns: until_ns, what: What::Heal });
        }
        self.faults.sort_by_key(|fault| fault.at_ns);
    }

    fn fault(&self, style: Style, random: &mut ChaCha8Rng) -> What {
        let any = |random: &mut ChaCha8Rng| random.random_range(1..=self.hosts);
        // Leaders, and their successors, more often than others.
        let host = any(random).min(any(random));
        let other = any(random);
        // Under `network` two hosts are never completely cut: only plane 1 is.
        let splits = self.policy == Policy::Majority;
        let plane = if splits { random.random_range(0..2) } else { 1 };
        let kind = match style {
            Style::Mixed => random.random_range(0..24),
            Style::Pauses => [3, 6, 12, 12, 12, 12, 12, 12][random.random_range(0..8)],
            Style::Churn => [0, 3, 3, 6, 6, 6, 10, 12, 22, 22][random.random_range(0..10)],
        };
        match kind {
            0..3 => What::Crash { host },
            3..6 => What::CrashSending { host, copies: random.random_range(1..40) },
            6..10 => What::Start { host },
            10 => What::Remove { host },
            11 => What::Leave { host },
            12..17 => {
                // The worst pause is a little longer than it takes to be declared dead.
                let for_ns = match random.random_range(0..4) {
                    0 => random.random_range(0..3 * MS),
                    1 => random.random_range(0..30 * MS),
                    2 => random.random_range(0..120 * MS),
                    _ => self.timeout_ns() + random.random_range(0..3 * MS),
                };
                What::Pause { host, for_ns }
            }
            17..19 => What::Cut { from: host, to: other, plane },
            19..21 => What::Isolate { host, plane },
            21 if splits => What::Split { side: random.random_range(0..1 << self.hosts) },
            _ => What::Heal,
        }
    }
}
