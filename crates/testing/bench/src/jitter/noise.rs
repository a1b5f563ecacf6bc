// SPDX-License-Identifier: Apache-2.0
//! Noise is planted on the core of the answering end: a thread, timers that run out together, and packets
//! whose receipt is steered to that core. To what does the analysis attribute packets that came late
//! meanwhile?

use crate::Args;
use anyhow::{Context, ensure};
use fide_jitter_analysis::attribute::{Culprit, attribute};
use fide_jitter_analysis::{CulpritKind, Host, Schedule, Stamp};
use fide_latency_probe::port::Method;
use fide_selftest::plant::{Plant, Window};
use fide_selftest::run::{Cores, How, measure};
use fide_testbed::Testbed;
use fide_testbed::figures::{Figure, Goal, Report};
use std::io::Write;
use std::net::SocketAddrV4;
use std::process::{Command, Stdio};

/// Time between two disturbances; shares no small factor with the sending interval.
const PERIOD_NS: u64 = 7_310_000;
const SENDING_NS: u64 = 200_000;
const THREAD_NS: u64 = 400_000;
/// Timers that together take some hundreds of microseconds in one interrupt.
const TIMERS: usize = 512;
/// Packets that together take some hundreds of microseconds in one softirq, since each is compared with
/// [`RULES`].
const PACKETS: usize = 40;
/// Rules of host 2's interface that no packet matches; pings are let through before them.
const RULES: usize = 1000;
/// A port without a listener: the kernel does all the work of receiving, and then drops the packet.
const SINK_PORT: u16 = 7499;
/// How long consequences of a planted moment last: for received packets, and for timers.
const AFTER_NS: (u64, u64) = (500_000, 200_000);

/// Late packets that the noise explains, and how many of them were attributed to it.
#[derive(Default)]
struct Score {
    planted: u64,
    right: u64,
    /// One example of another culprit that was blamed.
    instead: Option<String>,
}

pub(crate) fn run(args: &Args, bed: &Testbed, cores: Cores, report: &mut Report) {
    let mut all = Score::default();
    let mut why = None;
    for (kind, name) in [("thread", "planted"), ("interrupt", "local timer"), ("softirq", "net_rx")] {
        eprintln!("planted noise: {kind}");
        match score(args, bed, cores, kind, name) {
            Ok(score) => {
                let share = score.right as f64 / score.planted.max(1) as f64;
                let figure = Figure::share(&format!("culprit_attributed_{kind}"), share, score.planted);
                report.add(score.instead.iter().fold(figure, |f, text| f.remark(format!("else for example {text}"))));
                all.planted += score.planted;
                all.right += score.right;
            }
            Err(error) => {
                why = Some(format!("{kind}: {error:#}"));
                report.add(Figure::unmeasured(&format!("culprit_attributed_{kind}"), "share", format!("{error:#}")));
            }
        }
    }
    let share = all.right as f64 / all.planted.max(1) as f64;
    let figure = match why {
        // A kind without samples must not pass for attributed.
        Some(why) => Figure::unmeasured("culprit_attributed", "share", why),
        None => Figure::share("culprit_attributed", share, all.planted).goal(Goal::AtLeast(0.95)),
    };
    report.add(figure);
}

fn score(args: &Args, bed: &Testbed, cores: Cores, kind: &str, name: &str) -> anyhow::Result<Score> {
    let how = How {
        method: Method::Udp,
        schedule: Schedule::Absolute,
        period_ns: SENDING_NS,
        packets: u64::from(args.noise_s) * 1_000_000_000 / SENDING_NS,
        record: true,
    };
    let plant = match kind {
        "thread" => Plant::thread(cores.b, PERIOD_NS, THREAD_NS)?,
        "interrupt" => Plant::interrupts(cores.b, PERIOD_NS, TIMERS)?,
        _ => {
            steer(bed, cores.b)?;
            burden(bed)?;
            let to = SocketAddrV4::new(bed.host(2).address(0), SINK_PORT);
            let from = bed.host(3).address(0);
            bed.host(3).run_in(|| Plant::packets(cores.a, PERIOD_NS, from, to, PACKETS))??
        }
    };
    let measured = measure(bed, cores, how)?;
    let mut windows = plant.stop();
    if kind == "interrupt" {
        // They run out half a period after they were armed.
        for window in &mut windows {
            *window = Window { start_ns: window.start_ns + PERIOD_NS / 2, end_ns: window.start_ns + PERIOD_NS / 2 };
        }
    }
    ensure!(!windows.is_empty(), "nothing was planted");
    let found = attribute(&measured.info, &measured.samples, &measured.events);
    let mut score = Score::default();
    for late in found.packets.iter().filter(|late| late.stamp != Stamp::Ts1 && late.stamp != Stamp::Ts4) {
        let (from_ns, to_ns) = (late.from_ns.max(0).unsigned_abs(), late.to_ns.max(0).unsigned_abs());
        // The last window that began before this packet was there, and was not long over when the packet
        // began to wait.
        let next = windows.partition_point(|window| window.start_ns < to_ns);
        let Some(window) = next.checked_sub(1).map(|last| windows[last]) else { continue };
        let tail_ns = match kind {
            "thread" => 0,
            "interrupt" => AFTER_NS.1,
            _ => AFTER_NS.0,
        };
        let overlap = to_ns.min(window.end_ns + tail_ns).saturating_sub(from_ns.max(window.start_ns));
        if 2 * overlap < to_ns - from_ns {
            continue;
        }
        score.planted += 1;
        let blamed = late.blame.iter().find(|part| {
            let part_of = measured.names.get(part.name as usize).map(String::as_str);
            part_of == Some(name)
        });
        if blamed.is_some() && late.culprit != Culprit::Unknown {
            score.right += 1;
        } else if score.instead.is_none() {
            let name_of = |kind: CulpritKind, id: u32| {
                format!("{} {}", kind.name(), measured.names.get(id as usize).map_or("?", String::as_str))
            };
            let parts: Vec<String> = late
                .blame
                .iter()
                .take(3)
                .map(|part| format!("{} {} us", name_of(part.kind, part.name), part.ns / 1000))
                .collect();
            score.instead = Some(format!("{} us late: {}", late.late_ns() / 1000, parts.join(", ")));
        }
    }
    let seen = measured.events.iter().filter(|event| event.host == Host::B).count();
    ensure!(score.planted > 0, "no packet was late for it ({seen} records of core {})", cores.b);
    Ok(score)
}

/// Makes each packet except pings costly to receive for host 2, as a long list of rules does.
fn burden(bed: &Testbed) -> anyhow::Result<()> {
    let mut rules = format!(
        "qdisc add dev p0 ingress\n\
         filter add dev p0 parent ffff: protocol ip prio 1 u32 match ip dport {} 0xffff flowid :1\n",
        fide_latency_probe::PORT
    );
    for rule in 0..RULES {
        let [.., high, low] = (rule as u32).to_be_bytes();
        rules += &format!(
            "filter add dev p0 parent ffff: protocol ip prio 2 u32 match ip src 192.0.{high}.{low} flowid :1\n"
        );
    }
    in_host_2(bed, "tc -batch -", &rules).context("rules of the interface")
}

/// Packets that host 2 receives are processed on `core`.
fn steer(bed: &Testbed, core: usize) -> anyhow::Result<()> {
    let mask = format!("{:x}", 1u64 << core);
    in_host_2(bed, "cat > /sys/class/net/p0/queues/rx-0/rps_cpus", &mask).context("receive packet steering")
}

/// Runs a command in host 2's namespace. All settings in it end with the testbed.
fn in_host_2(bed: &Testbed, command: &str, input: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(["netns", "exec", bed.host(2).namespace(), "sh", "-c", command])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let sent = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let done = child.wait_with_output()?;
    ensure!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(sent?)
}
