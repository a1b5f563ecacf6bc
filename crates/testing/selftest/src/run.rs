// SPDX-License-Identifier: Apache-2.0
//! One measurement between two hosts of a testbed on this machine, with something planted on a core of it.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use anyhow::{Context, anyhow};
use fide_jitter_analysis::Schedule;
use fide_latency_probe::{
    PORT,
    ping::{Plan, Progress},
    pong,
    port::{self, Method},
    session::{self, Measurement, Options, PONG, SameMachine},
    setting::{self, Wanted},
};
use fide_sys::interface;
use fide_testbed::Testbed;

/// Cores of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    pub a: usize,
    pub b: usize,
}

impl Cores {
    /// Two that this process may use.
    ///
    /// # Errors
    /// If there is only one.
    pub fn here() -> anyhow::Result<Self> {
        match fide_testbed::sys::usable_cores()[..] {
            [a, .., b] => Ok(Self { a, b }),
            _ => Err(anyhow!("a measurement between two ends on this machine needs two cores")),
        }
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    pub method: Method,
    pub schedule: Schedule,
    pub period_ns: u64,
    pub packets: u64,
    pub record: bool,
}

/// Measures from host 1 to host 2 of the testbed.
///
/// # Errors
/// What keeps it from being measured.
pub fn measure(bed: &Testbed, cores: Cores, how: How) -> anyhow::Result<Measurement> {
    let address = |host: usize| -> Ipv4Addr { bed.host(host).address(0) };
    let stop = AtomicBool::new(false);
    let fifo = Wanted::default().fifo.filter(|_| !how.method.polls());
    let wanted = |core| Wanted { core: Some(core), fifo, ..Wanted::default() };
    std::thread::scope(|scope| {
        let (ready, is_ready) = mpsc::sync_channel(1);
        let stop = &stop;
        let pong = scope.spawn(move || {
            bed.host(2).run_in(|| -> anyhow::Result<()> {
                // The recorder knows it by its name.
                let name = std::ffi::CString::new(PONG).expect("no zero in it");
                // SAFETY: a string that ends with a zero, which is copied.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                let _setting = setting::take(&wanted(cores.b));
                let interface = interface::by_address(address(2))?;
                let mut port = port::open(how.method, &interface, Some(address(1)), PORT)?;
                let _ = ready.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
                pong::answer(port.as_mut(), 1, stop).map(drop).context("the answering end")
            })?
        });
        let measured = is_ready.recv().context("no answering end").and_then(|thread| {
            bed.host(1).run_in(|| -> anyhow::Result<Measurement> {
                let options = Options {
                    method: how.method,
                    interface: interface::by_address(address(1))?,
                    peer: address(2),
                    port: PORT,
                    plan: Plan {
                        packets: how.packets,
                        period_ns: how.period_ns,
                        packet_bytes: fide_latency_probe::PACKET_BYTES,
                        schedule: how.schedule,
                        run: fide_sys::clock::mono_ns(),
                        spin: false,
                    },
                    wanted: wanted(cores.a),
                    host_a: bed.host(1).name().to_owned(),
                    host_b: bed.host(2).name().to_owned(),
                    same_machine: Some(SameMachine { core: Some(cores.b), thread: Some(thread) }),
                    record: how.record,
                };
                Ok(session::measure(&options, &Arc::new(Progress::default()))?)
            })?
        });
        stop.store(true, Ordering::Relaxed);
        let answered = pong.join().map_err(|_| anyhow!("the answering end panicked"))?;
        // Why the other end failed is why this one did.
        answered.and(measured)
    })
}
