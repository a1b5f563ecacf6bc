// SPDX-License-Identifier: Apache-2.0
//! Best-effort traffic on every link at once.
//!
//! Each end sends frames to an address that nobody has. The frames pass the queue of their own port, cross
//! one link, and are dropped where they arrive, because switches flood nothing. So every link is loaded on
//! its own, and each frame is handled once.

use super::Fabric;
use crate::load::{LOAD_MAX_NS, MAX_FLOOD_PACKETS};
use crate::sys::packet_socket;
use crate::{Error, Result};
use fide_sys::clock::mono_ns;
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A full frame without its checksum.
const FRAME_LEN: usize = 1514;
/// IEEE 802 local experimental: no protocol above looks into it.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// A locally administered address that nobody has.
const NOBODY: [u8; 6] = [0x02, 0xf1, 0xde, 0xff, 0xff, 0xff];
/// Pause between two rounds over all links: short enough for a queue never to run dry at 10 Mbit/s with its burst.
const STEP_NS: u64 = 2_000_000;

/// Traffic to send into every link from both ends.
#[derive(Debug, Clone, Copy)]
pub struct LinkFloodSpec {
    /// Rate of each direction on the wire, Mbit/s. More than a link's own rate fills its queue.
    pub rate_mbit: u32,
    /// Stop after this time at the latest; at most [`LOAD_MAX_NS`].
    pub duration_ns: u64,
    /// Stop after this many frames in all at the latest; at most [`MAX_FLOOD_PACKETS`].
    pub max_packets: u64,
}

/// What a flood sent, over all links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkFloodReport {
    /// Frames that the kernel accepted.
    pub packets: u64,
    /// Frames refused (full queues, links without carrier).
    pub refused: u64,
}

/// A running flood. It stops at its bounds, by [`LinkFlood::stop`], or when it is dropped.
#[derive(Debug)]
pub struct LinkFlood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<LinkFloodReport>>,
}

impl Fabric {
    /// Starts best-effort traffic on every link in both directions: one thread, full frames. It stops by itself.
    pub fn flood_links(&self, spec: LinkFloodSpec) -> Result<LinkFlood> {
        if spec.duration_ns > LOAD_MAX_NS || spec.max_packets > MAX_FLOOD_PACKETS || spec.rate_mbit == 0 {
            return Err(Error::Spec(format!(
                "a flood of {} Mbit/s, {} ns and {} frames; at least 1 Mbit/s and at most {LOAD_MAX_NS} ns and \
                 {MAX_FLOOD_PACKETS} frames are allowed",
                spec.rate_mbit, spec.duration_ns, spec.max_packets
            )));
        }
        let mut sockets = Vec::new();
        for end in self.spec.links.iter().flat_map(|l| [&l.a, &l.b]) {
            sockets.push(self.node(&end.node)?.run_in(|| packet_socket(&end.port))??);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("fide-link-flood".into())
            .spawn(move || run(&sockets, spec, &flag))
            .map_err(|e| Error::io("starting the flood's thread", e))?;
        Ok(LinkFlood { stop, thread: Some(thread) })
    }
}

impl LinkFlood {
    /// Stops it. Returns what it sent.
    pub fn stop(mut self) -> LinkFloodReport {
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits until it reaches one of its bounds.
    pub fn wait(mut self) -> LinkFloodReport {
        self.join()
    }

    fn join(&mut self) -> LinkFloodReport {
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

impl Drop for LinkFlood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.join();
    }
}

/// Every step sends into each link as much as the rate allows for the time since the last step; a late step
/// catches up for no more than two steps.
fn run(sockets: &[OwnedFd], spec: LinkFloodSpec, stop: &AtomicBool) -> LinkFloodReport {
    let mut frame = [0u8; FRAME_LEN];
    frame[..6].copy_from_slice(&NOBODY);
    frame[6..12].copy_from_slice(&NOBODY);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    let frame_bits = (FRAME_LEN * 8) as u64;
    let mut report = LinkFloodReport::default();
    let start = mono_ns();
    let (mut last, mut credit_bits) = (start, frame_bits);
    while !stop.load(Ordering::Relaxed) {
        let now = mono_ns();
        if now - start >= spec.duration_ns {
            break;
        }
        credit_bits += (now - last).min(2 * STEP_NS) * u64::from(spec.rate_mbit) / 1000;
        last = now;
        for _ in 0..credit_bits / frame_bits {
            for socket in sockets {
                if report.packets + report.refused >= spec.max_packets {
                    return report;
                }
                match send(socket, &frame, SendFlags::DONTWAIT) {
                    Ok(_) => report.packets += 1,
                    Err(_) => report.refused += 1,
                }
            }
        }
        credit_bits %= frame_bits;
        std::thread::sleep(Duration::from_nanos(STEP_NS));
    }
    report
}
