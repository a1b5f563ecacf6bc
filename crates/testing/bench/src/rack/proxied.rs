// SPDX-License-Identifier: Apache-2.0
//! Programs of two hosts, with a proxy each and a link between (NTSocks §4, §6.2.3 and §6.4). All are on this machine: what a bridge adds is
//! not in it.
//!
//! | figure | what happens |
//! |---|---|
//! | `rtt8_proxy_vs_tcp` | 8 bytes there and back, each way through two proxies, which are processes of their own: a host's program and proxy share a core |
//! | `isolation_us` | how much longer 2 KiB take at p99, from one program's write to the other one's read, beside 64 KiB as fast as they are read in the same partition, less the time of a slice |
//! | `isolation_p50_us` | the same, at the median |

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use fide_rack::{
    link::{App, Layout, Slices, Turn, rx::Rx, tx::Tx},
    pci::{PciWindow, Side},
    shm::ShmWindow,
    stream::{self, ReadHalf, WriteHalf},
    window::Window,
};
use fide_testbed::{
    figures::{Figure, Goal, Report, Samples, Statistic},
    sys::bind_to_core,
};
use serde::{Deserialize, Serialize};

use crate::{
    Trips, pairs,
    peer::{Memory, Peer, Role},
    trips_of,
};

/// Bytes of a link's memory.
const LINK_BYTES: u64 = 8 << 20;
const CONNECTION: u32 = 1;
/// Of the small flow, and of a write of the large one.
const SMALL: usize = 2 << 10;
const LARGE: usize = 64 << 10;
/// From the read of a small message to the next one, at least. A turn with the large one takes about as long.
const APART_NS: u64 = 30_000;
/// Of a program's window, for each direction.
type Window64 = ShmWindow<{ (128 << 10) / 8 }>;

/// A proxy of one program.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Proxy {
    link: PathBuf,
    is_first: bool,
    /// Its program has made the memory, or has it from others.
    is_maker: bool,
}

/// A program that calls the crate, as its proxy has it.
struct Plain<W>(Arc<(W, AtomicBool)>);

impl<W> Clone for Plain<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W> Plain<W> {
    fn new(window: W) -> Self {
        Self(Arc::new((window, AtomicBool::new(false))))
    }
}

impl<W: Window> App for Plain<W> {
    type Window = W;

    fn window(&self) -> &W {
        &self.0.0
    }

    fn is_woken_over_tcp(&self) -> bool {
        false
    }

    fn wakes(&self) {}

    fn resets(&self) {
        self.is_carried();
    }

    fn opens(&self) {}

    fn knows_over_tcp(&self) {}

    fn is_known_over_tcp(&self) -> bool {
        true
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn is_carried(&self) {
        self.0.1.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.0.1.load(Ordering::Relaxed)
    }
}

/// Both directions of one partition.
struct Carries<W: Window, A: Window> {
    link: W,
    tx: Tx<Plain<A>>,
    rx: Rx<Plain<A>>,
}

impl<W: Window, A: Window> Carries<W, A> {
    fn new(link: W, is_first: bool, slices: Slices) -> Result<Self> {
        let partition = Layout::new(link.len(), 1)?.partition(0);
        let keys = if is_first { [1, 2] } else { [2, 1] };
        Ok(Self { tx: Tx::new(&link, partition, 0, keys, slices), rx: Rx::new(&link, partition, 0, keys), link })
    }

    fn adds(&mut self, connection: u32, app: &Plain<A>) {
        self.tx.adds(connection, app.clone());
        self.rx.adds(connection, app.clone());
    }

    fn turn(&mut self) -> Result<Turn> {
        let sent = self.tx.turn(&self.link, |_, _| {})?;
        Ok(self.rx.turn(&self.link, &mut ())?.and(sent))
    }
}

fn opened(link: &Path, is_first: bool) -> Result<PciWindow> {
    Ok(PciWindow::open(link, if is_first { Side::First } else { Side::Second })?)
}

impl Proxy {
    /// The process: until it is killed, as its connection may be over before the other proxy's.
    pub(crate) fn run(&self) -> Result<()> {
        let window = Memory::open(io::stdin(), self.is_maker).context("the memory of a program, as standard input")?;
        let mut carries = Carries::new(opened(&self.link, self.is_first)?, self.is_first, Slices::default())?;
        let app = Plain::new(window);
        carries.adds(CONNECTION, &app);
        loop {
            if carries.turn()? != Turn::Busy {
                thread::yield_now();
            }
        }
    }
}

/// A file that two programs map.
struct Link {
    directory: tempfile::TempDir,
}

impl Link {
    fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("bench-rack").tempdir_in("/dev/shm")?;
        let link = Self { directory };
        File::create_new(link.path())?.set_len(LINK_BYTES)?;
        Ok(link)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("link")
    }
}

fn proxy_trips([here, there]: [usize; 2], count: usize) -> Result<Samples> {
    let link = Link::new()?;
    let proxy = |is_first, is_maker| Role::Proxy(Proxy { link: link.path(), is_first, is_maker });
    let (_, descriptor) = Memory::pair_and_descriptor()?;
    let echo = Peer::start(there, Role::Echo, None, Some(descriptor.try_clone()?))?;
    let second = Peer::start(there, proxy(false, true), None, Some(descriptor))?;
    let ([window, _], descriptor) = Memory::pair_and_descriptor()?;
    let first = Peer::start(here, proxy(true, false), None, Some(descriptor))?;
    let (mut reads, mut writes) = stream::halves(window);
    reads.set_timeout(Some(Duration::from_secs(10)));
    let samples = trips_of(count, &mut reads, &mut writes)?;
    drop((reads, writes));
    echo.end()?;
    drop((first, second));
    Ok(samples)
}

/// Times from the write of a small message to its read, on another core.
fn small_times([here, there]: [usize; 2], slices: Slices, has_large: bool, count: usize) -> Result<Samples> {
    let link = Link::new()?;
    let [(mut near, small, large), (mut far, small_far, large_far)] = [true, false].map(|is_first| {
        let mut carries = Carries::new(opened(&link.path(), is_first).unwrap(), is_first, slices).unwrap();
        let mut program = |connection| {
            let [ours, theirs] = Window64::pair().unwrap();
            carries.adds(connection, &Plain::new(ours));
            let (mut reads, mut writes): (ReadHalf<_>, WriteHalf<_>) = stream::halves(theirs);
            reads.set_timeout(Some(Duration::ZERO));
            writes.set_timeout(Some(Duration::ZERO));
            (reads, writes)
        };
        let (small, large) = (program(1), program(2));
        (carries, small, large)
    });
    let ((_r, mut writes), (_r2, mut writes_large)) = (small, large);
    let ((mut reads, _w), (mut reads_large, _w2)) = (small_far, large_far);
    let (is_over, read, begun) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let now = move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    thread::scope(|threads| {
        let receives = threads.spawn(|| -> Result<()> {
            bind_to_core(None, there)?;
            let (mut piece, mut rest, mut at) = (vec![0; SMALL], vec![0; SMALL], 0);
            while !is_over.load(Ordering::Relaxed) {
                far.turn()?;
                match reads.read(&mut piece[at..SMALL]) {
                    Ok(count) => at += count,
                    Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                    Err(why) => return Err(why.into()),
                }
                if at == SMALL {
                    at = 0;
                    read.store(now(), Ordering::Release);
                }
                // What programs do is not to take the proxy's time while a small message is on its way.
                if has_large && read.load(Ordering::Relaxed) != 0 {
                    let _ = reads_large.read(&mut rest);
                }
            }
            Ok(())
        });
        let mut sends = || -> Result<Samples> {
            bind_to_core(None, here)?;
            let (message, large) = (vec![7; SMALL], vec![9; LARGE]);
            let mut samples = Samples::default();
            for number in 0..count {
                // As long with the large one as without: what else the machine does delays one message each time, so that it delays as many of
                // both. Not always at the same place in a turn of the large one, whose ring is full at the end.
                let apart = now() + APART_NS + 100 * (number as u64 % 13);
                while now() < apart {
                    while has_large && writes_large.write(&large).is_ok() {}
                    near.turn()?;
                }
                read.store(0, Ordering::Release);
                let at = now();
                writes.write_all(&message)?;
                let until = begun.elapsed() + Duration::from_secs(10);
                let has_come = loop {
                    match read.load(Ordering::Acquire) {
                        0 if begun.elapsed() < until => _ = near.turn()?,
                        0 => bail!("a small message has not come within ten seconds"),
                        at => break at,
                    };
                };
                samples.add(has_come.saturating_sub(at));
            }
            Ok(samples)
        };
        let samples = sends();
        is_over.store(true, Ordering::Relaxed);
        receives.join().expect("it does not panic")?;
        samples
    })
}

/// Nanoseconds that a slice takes: those of a stream of them.
fn slice_ns(cores: [usize; 2], slices: Slices) -> Result<f64> {
    let link = Link::new()?;
    let mut near = Carries::new(opened(&link.path(), true)?, true, slices)?;
    let mut far = Carries::new(opened(&link.path(), false)?, false, slices)?;
    let ([ours, theirs], [ours_far, theirs_far]) = (Window64::pair()?, Window64::pair()?);
    near.adds(1, &Plain::new(ours));
    far.adds(1, &Plain::new(ours_far));
    let ((_r, mut writes), (mut reads, _w)) = (stream::halves(theirs), stream::halves(theirs_far));
    writes.set_timeout(Some(Duration::ZERO));
    reads.set_timeout(Some(Duration::ZERO));
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let receives = threads.spawn(|| -> Result<()> {
            bind_to_core(None, cores[1])?;
            let mut piece = vec![0; LARGE];
            while !is_over.load(Ordering::Relaxed) {
                far.turn()?;
                let _ = reads.read(&mut piece[..slices.bytes]);
            }
            Ok(())
        });
        let mut sends = || -> Result<f64> {
            bind_to_core(None, cores[0])?;
            let (large, begun) = (vec![9; LARGE], Instant::now());
            while begun.elapsed() < Duration::from_millis(300) {
                let _ = writes.write(&large);
                near.turn()?;
            }
            Ok(begun.elapsed().as_nanos() as f64 / (near.tx.carried() as f64 / slices.bytes as f64))
        };
        let result = sends();
        is_over.store(true, Ordering::Relaxed);
        receives.join().expect("it does not panic")?;
        result
    })
}

/// Rounds, and of each the round trips.
pub(crate) fn measure(
    report: &mut Report,
    cores: [usize; 2],
    (rounds, count): (usize, usize),
    tcp: &Trips,
) -> Result<()> {
    let mut proxied = Trips::default();
    for round in 1..=rounds {
        proxied.add(&proxy_trips(cores, count / 2)?);
        println!(
            "round {round} of {rounds}: 8 bytes there and back through proxies {:.1} us",
            proxied.medians_ns[round - 1] / 1e3
        );
    }
    let median = Statistic::P50;
    let figure = Figure::time("rtt8_proxy_vs_tcp", median, &proxied.all).against("blocking TCP", median, &tcp.all);
    report.add(figure.ratio_of_pairs(pairs(&proxied.medians_ns, &tcp.medians_ns)).goal(Goal::AtMost(1.0 / 3.0)));
    let slices = Slices::default();
    let whole = Slices { bytes: LARGE, ..slices };
    let mut grows: [Vec<f64>; 4] = Default::default();
    for round in 1..=rounds {
        let slice = slice_ns(cores, slices)?;
        let times = |slices, has_large| -> Result<[f64; 2]> {
            let times = small_times(cores, slices, has_large, count / 4)?;
            Ok([0.5, 0.99].map(|at| times.quantile(at) as f64))
        };
        let [alone, beside] = [times(slices, false)?, times(slices, true)?];
        let [alone_whole, beside_whole] = [times(whole, false)?, times(whole, true)?];
        for at in 0..2 {
            grows[at].push(beside[at] - alone[at] - slice);
            grows[2 + at].push(beside_whole[at] - alone_whole[at]);
        }
        println!(
            "round {round} of {rounds}: 2 KiB through proxies {:.2} us, p99 {:.2}; beside 64 KiB {:.2}, p99 {:.2}, where a slice takes {:.2}; without slices {:.2}, p99 {:.2}",
            alone[0] / 1e3,
            alone[1] / 1e3,
            beside[0] / 1e3,
            beside[1] / 1e3,
            slice / 1e3,
            beside_whole[0] / 1e3,
            beside_whole[1] / 1e3,
        );
    }
    let us = |of: &[f64]| {
        let mut of: Vec<_> = of.iter().map(|ns| ns / 1e3).collect();
        of.sort_by(f64::total_cmp);
        of
    };
    let figure = |name: &str, of| Figure { unit: "us".into(), ..Figure::rate(name, &us(of)) };
    report.add(figure("isolation_us", &grows[1]).goal(Goal::AtMost(0.6)));
    report.add(figure("isolation_p50_us", &grows[0]));
    report.add(figure("isolation_without_slices_us", &grows[3]));
    report.add(figure("isolation_without_slices_p50_us", &grows[2]));
    Ok(())
}
