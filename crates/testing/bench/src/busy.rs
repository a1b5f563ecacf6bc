// SPDX-License-Identifier: Apache-2.0
//! The published configuration (FiDe §6.3), as far as two cores allow: the watcher spins on its ring, and no
//! thread on another core has to be woken.
//!
//! The victim, its agent and the killer share a core, so that the death wakes the agent where it happens; the
//! watcher has the other core. Two lower bounds of this machine are measured in turn with it (`..._floor`):
//! from a kill until a thread that spins on the exit hook's ring has the record, and from a send over the
//! same bridge until a thread that spins on the receive program's output has the packet.

use crate::Args;
use crate::fide_side::{Fide, Layout};
use crate::killed::{Kill, Stages, Watcher, stages_of};
use crate::trials::{Outcome, Subject, interleave};
use anyhow::{Context, ensure};
use fide_bpf::intf::{WAKE_RING_BYTES, Wake};
use fide_bpf::pingpong::{Mode, PingPong};
use fide_bpf::{ExitWatch, Receive, Registration, Settings, XdpMode};
use fide_host_tuning::parse::steal_ticks;
use fide_jitter_analysis::MISSING;
use fide_latency_probe::packet::{HEADER, Header, Kind};
use fide_shm::bpf_ring::BpfRing;
use fide_sys::clock::mono_ns;
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::sys::{bind_to_core, usable_cores};
use fide_testbed::{Spec, Testbed, Victim, VictimSpec};
use fide_types::MAX_PLANES;
use std::cell::RefCell;
use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;
use zerocopy::FromBytes;

const NAME: &str = "sigkill_busy";
/// How long the waiting thread takes to spin, and the victim to sleep.
const SETTLE: Duration = Duration::from_millis(2);
/// A reader that has seen nothing for so long gives up.
const SPIN_NS: u64 = 1_000_000_000;
const HOP_PORT: u16 = 7499;
/// Published: 4.58 us on average, on machines with dedicated cores.
const GOAL_US: f64 = 20.0;

#[derive(Debug, Clone, Copy)]
struct Cores {
    /// Core of the victim, the agents and the killer.
    deaths: usize,
    /// Core of the spinning thread.
    spins: usize,
}

/// Calls `look` on a core of its own until it returns a value; runs `act` once that thread spins.
fn spin<T: Send>(
    core: usize,
    look: impl FnMut() -> Option<T> + Send,
    act: impl FnOnce() -> anyhow::Result<u64>,
) -> anyhow::Result<(u64, T)> {
    let mut look = look;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            bind_to_core(None, core)?;
            let until_ns = mono_ns() + SPIN_NS;
            while mono_ns() < until_ns {
                if let Some(seen) = look() {
                    return Ok(seen);
                }
                std::hint::spin_loop();
            }
            Err(anyhow::anyhow!("nothing was seen for a second"))
        });
        std::thread::sleep(SETTLE);
        let acted = act();
        let seen = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        Ok((acted?, seen?))
    })
}

/// From `kill(2)` until a thread that spins on the exit hook's ring has its record.
struct ExitFloor<'a> {
    bed: &'a Testbed,
    cores: Cores,
    watch: ExitWatch,
    ring: BpfRing,
    serial: u64,
    _receive: Receive,
}

impl<'a> ExitFloor<'a> {
    fn new(bed: &'a Testbed, cores: Cores) -> anyhow::Result<Self> {
        // Loaded only for its maps: it is attached to no interface.
        let settings = Settings {
            me: 1,
            members: 2,
            port: 1,
            ifindex: [0; MAX_PLANES],
            any_plane: false,
            salvage: false,
            key: [0; 16],
        };
        let receive = Receive::load(&settings, None)?;
        let ring = BpfRing::map(receive.wake_fd(), WAKE_RING_BYTES)?;
        let watch = ExitWatch::attach(receive.wake_fd(), receive.stats_fd(), None)?;
        Ok(ExitFloor { bed, cores, watch, ring, serial: 0, _receive: receive })
    }
}

impl Subject for ExitFloor<'_> {
    fn name(&self) -> String {
        format!("{NAME}_floor_exit")
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let mut victim = Victim::spawn(Some(self.bed.host(2)), &VictimSpec::default())?;
        victim.bind_to_core(self.cores.deaths)?;
        self.serial += 1;
        let (serial, pid) = (self.serial, victim.pid());
        let start_ticks = victim.start_ticks().context("the victim has ended")?;
        self.watch.watch(&Registration { pid, start_ticks, slot: 0, cookie: serial })?;
        let ring = &mut self.ring;
        let look = || {
            let mut seen = None;
            let drained = ring.drain(1, |bytes| {
                let of = Wake::read_from_prefix(bytes).map(|(wake, _)| wake.cookie);
                seen = of.is_ok_and(|cookie| cookie == serial).then(mono_ns);
            });
            drained.map_or_else(|broken| Some(Err(broken)), |_| seen.map(Ok))
        };
        let done = spin(self.cores.spins, look, || Ok(victim.kill()?));
        self.watch.unwatch(pid);
        victim.wait()?;
        let (killed_ns, seen_ns) = done?;
        Ok(seen_ns?.saturating_sub(killed_ns))
    }
}

/// From before a packet is sent until a thread that spins on the receive program's output has it.
struct HopFloor<'a> {
    cores: Cores,
    receive: PingPong,
    socket: UdpSocket,
    to: SocketAddrV4,
    id: u64,
    _bed: &'a Testbed,
}

impl<'a> HopFloor<'a> {
    fn new(bed: &'a Testbed, cores: Cores) -> anyhow::Result<Self> {
        let (here, there) = (bed.host(2), bed.host(1));
        let mut receive = PingPong::load(HOP_PORT, Mode::Slot, 1)?;
        let address = there.address(0);
        there.run_in(|| -> anyhow::Result<()> {
            let interface = fide_sys::interface::by_address(address)?;
            Ok(receive.attach(interface.index, XdpMode::Native)?)
        })??;
        let from = SocketAddrV4::new(here.address(0), 0);
        let socket = here.run_in(move || UdpSocket::bind(from))??;
        let mut floor = HopFloor { cores, receive, socket, to: SocketAddrV4::new(address, HOP_PORT), id: 0, _bed: bed };
        // The first packet resolves the other's address.
        floor.trial()?;
        Ok(floor)
    }
}

impl Subject for HopFloor<'_> {
    fn name(&self) -> String {
        format!("{NAME}_floor_hop")
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        self.id += 1;
        let mut packet = [0; HEADER];
        let header = Header {
            kind: Kind::Ping,
            packet_bytes: HEADER as u16,
            run: 1,
            id: self.id,
            ts1_ns: 0,
            ts2_ns: 0,
            ts3_ns: 0,
            kernel_ns: MISSING,
            incarnation: 0,
        };
        header.emit(&mut packet);
        let (receive, socket, to) = (&mut self.receive, &self.socket, self.to);
        let (sent_ns, seen_ns) = spin(
            self.cores.spins,
            || receive.take().map(|_| mono_ns()),
            || {
                let at = mono_ns();
                socket.send_to(&packet, to)?;
                Ok(at)
            },
        )?;
        ensure!(self.receive.overwritten() == 0, "packets of others came");
        Ok(seen_ns.saturating_sub(sent_ns))
    }
}

/// A kill, and whether the hypervisor took a core away meanwhile.
struct Watched<'a> {
    kill: Kill<'a>,
    cores: Cores,
    stolen: &'a RefCell<Vec<bool>>,
}

impl Subject for Watched<'_> {
    fn name(&self) -> String {
        NAME.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let before = stolen_ticks(self.cores);
        let ns = self.kill.trial()?;
        self.stolen.borrow_mut().push(stolen_ticks(self.cores) != before);
        Ok(ns)
    }
}

/// Of both cores, in ticks of 10 ms; `None` where the kernel does not say.
fn stolen_ticks(cores: Cores) -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    Some(steal_ticks(&stat, cores.deaths)? + steal_ticks(&stat, cores.spins)?)
}

/// The figure, its floor and its parts; or why there are none.
pub(crate) fn measure(args: &Args, report: &mut Report) {
    // A thread of its own, as it is bound to a core.
    let done = std::thread::scope(|scope| scope.spawn(|| try_measure(args)).join());
    match done.map_err(|_| anyhow::anyhow!("it panicked")).and_then(|figures| figures) {
        Ok(figures) => figures.into_iter().for_each(|figure| report.add(figure)),
        Err(why) => report.add(Figure::unmeasured(NAME, "us", format!("{why:#}")).goal(Goal::AtMost(GOAL_US))),
    }
}

fn try_measure(args: &Args) -> anyhow::Result<Vec<Figure>> {
    let usable = usable_cores();
    let (Some(&deaths), Some(&spins)) = (usable.first(), usable.last()) else { anyhow::bail!("no cores") };
    ensure!(deaths != spins, "one core only: nobody can spin while somebody dies");
    let cores = Cores { deaths, spins };
    // A bed each, as one interface has one receive program.
    let (bed, floor_bed) = (Testbed::build(Spec::default())?, Testbed::build(Spec::hosts(2))?);
    let (stages, stolen) = (RefCell::new(Stages::default()), RefCell::new(Vec::new()));
    let mut fide = Fide::start_laid_out(&bed, &Layout { agents: deaths, watcher: spins, spin_ns: SPIN_NS })?;
    let (exit, hop) = (ExitFloor::new(&floor_bed, cores)?, HopFloor::new(&floor_bed, cores)?);
    bind_to_core(None, deaths)?;
    let watcher = Watcher::Fide(&mut fide, &stages);
    let kill = Kill { bed: &bed, watcher, resident_mib: 0, beside: true, core: Some(deaths) };
    let mut subjects: Vec<(Box<dyn Subject + '_>, u32)> = vec![
        (Box::new(exit), args.kills),
        (Box::new(hop), args.kills),
        (Box::new(Watched { kill, cores, stolen: &stolen }), args.kills),
    ];
    let mut outcomes = interleave("SIGKILL of a process, the watcher spins", &mut subjects).into_iter();
    drop(subjects);
    let (Some(exit), Some(hop), Some(busy)) = (outcomes.next(), outcomes.next(), outcomes.next()) else {
        anyhow::bail!("a subject is missing");
    };
    Ok(figures(&exit, &hop, &busy, &stolen.into_inner(), stages.into_inner()))
}

fn figures(exit: &Outcome, hop: &Outcome, busy: &Outcome, stolen: &[bool], stages: Stages) -> Vec<Figure> {
    let time = |what: &str, statistic, samples: &Samples| Figure::time(&format!("{NAME}{what}"), statistic, samples);
    let mut floor = Samples::default();
    exit.order().iter().zip(hop.order()).for_each(|(exit, hop)| floor.add(exit + hop));
    let mut kept = Samples::default();
    busy.order().iter().zip(stolen).filter(|(_, stolen)| !**stolen).for_each(|(ns, _)| kept.add(*ns));
    let left_out = format!("{} trials in which the hypervisor ran others are left out", busy.samples.n() - kept.n());
    let all = |figure| hop.judge_beside("floor_hop", exit.judge_beside("floor_exit", busy.judge(figure)));
    let mut figures = vec![
        exit.judge(time("_floor_exit", Statistic::P50, &exit.samples)),
        hop.judge(time("_floor_hop", Statistic::P50, &hop.samples)),
        busy.judge(time("", Statistic::P50, &busy.samples).goal(Goal::AtMost(GOAL_US))),
        all(time("_vs_floor", Statistic::P50, &busy.samples)
            .against("floor_exit and floor_hop", Statistic::P50, &floor)
            .goal(Goal::AtMost(2.0))),
        busy.judge(
            time("_tail", Statistic::P99, &busy.samples)
                .against(NAME, Statistic::P50, &busy.samples)
                .goal(Goal::AtMost(3.0)),
        ),
        busy.judge(time("_without_steal", Statistic::P50, &kept).remark(left_out)),
    ];
    figures.extend(stages_of("busy", &stages));
    figures
}
