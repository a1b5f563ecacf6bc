// SPDX-License-Identifier: Apache-2.0
//! Traffic and work that load the network and the cores, each with a bound in time and count.

use crate::net::BULK_PORT;
use crate::node::Host;
use crate::sys::bind_to_core;
use crate::{Error, Result};
use fide_sys::clock::mono_ns;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that a flood or a hog may be asked to run.
pub const LOAD_MAX_NS: u64 = 120_000_000_000;
/// Most packets of one flood.
pub const MAX_FLOOD_PACKETS: u64 = 10_000_000;
/// Most hogs of one load.
const MAX_HOGS: usize = 64;
const FLOOD_PAYLOAD: usize = 1400;
/// Headers of UDP, IPv4 and Ethernet, so that a rate counts bytes on the wire.
const FLOOD_OVERHEAD: usize = 8 + 20 + 14;
const FLOOD_STEP_NS: u64 = 1_000_000;

/// Best-effort traffic to send.
#[derive(Debug, Clone, Copy)]
pub struct FloodSpec {
    /// Sending host, from 1.
    pub from: usize,
    /// Receiving host, from 1.
    pub to: usize,
    /// Plane, from 0.
    pub plane: usize,
    /// Rate on the wire, Mbit/s.
    pub rate_mbit: u32,
    /// Stop after this time at the latest; at most [`LOAD_MAX_NS`].
    pub duration_ns: u64,
    /// Stop after this many packets at the latest; at most [`MAX_FLOOD_PACKETS`].
    pub max_packets: u64,
}

/// What a flood sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FloodReport {
    /// Packets accepted by the kernel.
    pub packets: u64,
    /// Sends refused (full queues).
    pub refused: u64,
}

/// A running flood. It stops at its bounds, by [`Flood::stop`], or when it is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<FloodReport>>,
    /// Bound but never read, so that the receiver answers nothing.
    _sink: UdpSocket,
}

impl Flood {
    pub(crate) fn start(from: &Host, to: &Host, spec: FloodSpec) -> Result<Self> {
        if spec.from == spec.to {
            return Err(Error::Spec("a flood from a host to itself crosses no plane".into()));
        }
        if spec.duration_ns > LOAD_MAX_NS || spec.max_packets > MAX_FLOOD_PACKETS {
            return Err(Error::Spec(format!(
                "a flood of {} ns and {} packets; at most {LOAD_MAX_NS} ns and {MAX_FLOOD_PACKETS} packets are allowed",
                spec.duration_ns, spec.max_packets
            )));
        }
        if spec.rate_mbit == 0 {
            return Err(Error::Spec("a flood of 0 Mbit/s; give 1 or more".into()));
        }
        let target = (to.address(spec.plane), BULK_PORT);
        let sink = to
            .run_in(|| UdpSocket::bind(target))?
            .map_err(|e| Error::io(format!("binding the flood's sink at {target:?}"), e))?;
        let source = (from.address(spec.plane), 0);
        let socket = from
            .run_in(|| {
                let s = UdpSocket::bind(source)?;
                s.connect(target)?;
                s.set_nonblocking(true)?;
                Ok(s)
            })?
            .map_err(|e: std::io::Error| Error::io(format!("opening the flood's source at {source:?}"), e))?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("fide-flood".into())
            .spawn(move || send_flood(&socket, spec, &flag))
            .map_err(|e| Error::io("starting the flood's thread", e))?;
        Ok(Flood { stop, thread: Some(thread), _sink: sink })
    }

    /// Stops it. Returns what it sent.
    pub fn stop(mut self) -> FloodReport {
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits until it reaches one of its bounds.
    pub fn wait(mut self) -> FloodReport {
        self.join()
    }

    fn join(&mut self) -> FloodReport {
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.join();
    }
}

/// Once a step, sends as much as the rate allows for that time. It does not catch up for more than one step:
/// a late thread sends less.
fn send_flood(socket: &UdpSocket, spec: FloodSpec, stop: &AtomicBool) -> FloodReport {
    let packet = [0u8; FLOOD_PAYLOAD];
    let packet_bits = ((FLOOD_PAYLOAD + FLOOD_OVERHEAD) * 8) as u64;
    let per_step = (u64::from(spec.rate_mbit) * FLOOD_STEP_NS / 1000 / packet_bits).max(1);
    let step_ns = per_step * packet_bits * 1000 / u64::from(spec.rate_mbit);
    let mut report = FloodReport::default();
    let start = mono_ns();
    let mut next = start;
    loop {
        let now = mono_ns();
        if stop.load(Ordering::Relaxed) || now - start >= spec.duration_ns {
            return report;
        }
        if now < next {
            std::thread::sleep(Duration::from_nanos(next - now));
            continue;
        }
        next = (next + step_ns).max(now);
        for _ in 0..per_step {
            if report.packets + report.refused >= spec.max_packets {
                return report;
            }
            match socket.send(&packet) {
                Ok(_) => report.packets += 1,
                Err(_) => report.refused += 1,
            }
        }
    }
}

/// Threads that keep cores busy, for a bounded time.
#[derive(Debug)]
pub struct CpuLoad {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl CpuLoad {
    /// Starts `per_core` busy threads pinned to each of `cores`, for `duration_ns` (at most [`LOAD_MAX_NS`]).
    pub fn start(cores: &[usize], per_core: usize, duration_ns: u64) -> Result<Self> {
        if duration_ns > LOAD_MAX_NS || cores.len() * per_core > MAX_HOGS {
            return Err(Error::Spec(format!(
                "{} hogs for {duration_ns} ns; at most {MAX_HOGS} for {LOAD_MAX_NS} ns are allowed",
                cores.len() * per_core
            )));
        }
        let mut load =
            CpuLoad { stop: Arc::new(AtomicBool::new(false)), turns: Arc::new(AtomicU64::new(0)), threads: Vec::new() };
        let until = mono_ns() + duration_ns;
        for core in cores.iter().flat_map(|c| std::iter::repeat_n(*c, per_core)) {
            let (stop, turns) = (load.stop.clone(), load.turns.clone());
            let thread = std::thread::Builder::new()
                .name(format!("fide-hog-{core}"))
                .spawn(move || {
                    // If this process may not use the core, the thread runs on any core that it gets.
                    let _ = bind_to_core(None, core);
                    while !stop.load(Ordering::Relaxed) && mono_ns() < until {
                        for i in 0..10_000u32 {
                            std::hint::black_box(i);
                        }
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                })
                .map_err(|e| Error::io("starting a hog", e))?;
            load.threads.push(thread);
        }
        Ok(load)
    }

    /// Rounds of work done so far, to see that the threads do run.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Stops the threads.
    pub fn stop(self) {}
}

impl Drop for CpuLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_beyond_its_bounds_is_refused() {
        let long = CpuLoad::start(&[0], 1, LOAD_MAX_NS + 1).unwrap_err();
        assert!(long.to_string().contains("at most 64"), "{long}");
        assert!(CpuLoad::start(&[0, 1], 33, 1).is_err());
    }

    #[test]
    fn a_load_works_and_stops_by_itself() {
        // Long enough to get a core on a busy machine.
        let load = CpuLoad::start(&[0], 1, 500_000_000).unwrap();
        while !load.threads.iter().all(JoinHandle::is_finished) {
            std::thread::yield_now();
        }
        assert!(load.turns() > 0);
        load.stop();
    }
}
