// SPDX-License-Identifier: Apache-2.0
//! `fide jitter pong`.

use std::{
    net::Ipv4Addr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fide_latency_probe::{
    PORT,
    pong::{self, Answered, Reflector},
    port::{self, Method},
    setting,
};
use fide_sys::interface;

use super::{Conditions, path::failure};
use crate::exit::{Done, Failure, UNHEALTHY, USAGE};
use crate::say::say;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address of this host on the network that is measured
    #[arg(long, value_name = "ADDRESS")]
    from: Ipv4Addr,
    /// Address of the host that sends; needed where answers cannot be addressed otherwise (xdp-slot)
    #[arg(long, value_name = "ADDRESS")]
    to: Option<Ipv4Addr>,
    /// How packets are received and answered: udp, udp-poll, af-packet, xdp-slot, af-xdp, af-xdp-zc,
    /// xdp-reflect, rdma-ud
    #[arg(long, default_value = "udp")]
    method: Method,
    /// UDP port, the same at both ends
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// How long to answer; by default until interrupted
    #[arg(long)]
    seconds: Option<u64>,
    /// xdp-reflect: attach behind the driver, for drivers that drop packets which are sent back inside them
    /// (veth)
    #[arg(long)]
    generic: bool,
    #[command(flatten)]
    conditions: Conditions,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let interface = interface::by_address(arguments.from)?;
    if arguments.method == Method::Slot && arguments.to.is_none() {
        let why = anyhow::anyhow!("xdp-slot passes on headers only: give the host to answer with --to");
        return Err(Failure::new(USAGE, why));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    ctrlc::set_handler(move || stopping.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(UNHEALTHY, error))?;
    let incarnation = (fide_latency_probe::random().map_err(|error| Failure::new(UNHEALTHY, error))? as u32).max(1);
    let deadline = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let over = |stop: &AtomicBool| stop.load(Ordering::Relaxed) || deadline.is_some_and(|at| Instant::now() >= at);

    let answered = if arguments.method == Method::Reflect {
        let reflector =
            Reflector::attach(&interface, arguments.port, incarnation, arguments.generic).map_err(failure)?;
        ready(&reflector.name(), arguments);
        while !over(&stop) {
            std::thread::sleep(Duration::from_millis(50));
        }
        reflector.answered()
    } else {
        // With RDMA, a port that has a peer asks it for its queue pair. This side only answers, and learns
        // from each packet where to.
        let to = arguments.to.filter(|_| arguments.method != Method::RdmaUd);
        let (wanted, until) = (arguments.conditions.wanted(arguments.method.polls()), stop.clone());
        let mut opened =
            port::open_on(wanted.pages, arguments.method, &interface, to, arguments.port).map_err(failure)?;
        ready(&opened.name(), arguments);
        let thread = std::thread::Builder::new().name("fide-pong".to_owned()).spawn(move || {
            let _setting = setting::take(&wanted);
            pong::answer(opened.as_mut(), incarnation, &until)
        });
        let thread = thread.map_err(|error| Failure::new(UNHEALTHY, error))?;
        while !over(&stop) && !thread.is_finished() {
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
        match thread.join() {
            Ok(done) => done.map_err(|error| Failure::new(UNHEALTHY, error))?,
            Err(_) => return Err(Failure::new(UNHEALTHY, anyhow::anyhow!("the answering thread panicked"))),
        }
    };
    let Answered { pings, ignored, failed } = answered;
    say!("answered {pings} pings; {ignored} packets were not pings; {failed} answers could not be sent");
    Ok(ExitCode::SUCCESS)
}

fn ready(name: &str, arguments: &Arguments) {
    say!("answering on {} port {} ({name})", arguments.from, arguments.port);
}
