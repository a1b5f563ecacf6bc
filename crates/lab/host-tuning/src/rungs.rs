// SPDX-License-Identifier: Apache-2.0
//! The rung of each ladder that an agent would use on this host.
//!
//! The probe does what the agent does at its start, as far as that disturbs nobody: it loads the programs,
//! attaches the exit hook for a moment, opens sockets, and isolates a thread as the loop does. All of that is
//! undone at the end. XDP is not attached, because that would stop some cards for a moment; the driver's own
//! statement counts instead.

use std::thread;

use fide_bpf::{ExitWatch, Receive, Settings, XdpFacts};
use fide_net::isolation::{Measure, isolate};
use fide_net::link::{Destination, Sender};
use fide_sys::interface::Interface;
use serde::Serialize;

use crate::doctor::Host;

/// The rung that one ladder would use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rung {
    /// `receive`, `send`, `exit_watch`, and so on, as in `fide status`.
    pub ladder: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub used: String,
    /// Why no better rung is used; absent on the best rung.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
}

impl Rung {
    fn new(ladder: &'static str, used: impl Into<String>, fell_back: Option<String>) -> Self {
        Self { ladder, interface: None, used: used.into(), fell_back }
    }

    fn on(mut self, interface: &Interface) -> Self {
        self.interface = Some(interface.name.clone());
        self
    }
}

/// A plane as the agent would open it.
#[derive(Clone, Debug)]
pub struct Plane {
    pub interface: Interface,
    /// Where its packets go.
    pub destination: Destination,
}

/// UDP port of a probe, which neither sends nor receives.
const PORT: u16 = fide_types::bounds::DEFAULT_PORT;

/// Finds all rungs, in the order of the agent's report.
#[must_use]
pub fn probe(host: &Host<'_>, planes: &[Plane]) -> Vec<Rung> {
    fide_bpf::hush();
    let settings = Settings {
        me: 1,
        members: 1,
        port: PORT,
        ifindex: [0; fide_types::MAX_PLANES],
        any_plane: false,
        salvage: false,
        key: [0; 16],
    };
    let receive = Receive::load(&settings, None).map_err(|error| error.to_string());
    let mut rungs = receiving(host, planes, receive.as_ref().err());
    let xdp = receive.is_ok() && rungs.iter().any(|rung| rung.used.starts_with("xdp"));
    for plane in planes {
        let rung = match Sender::open(&plane.interface, &plane.destination, PORT) {
            Ok((sender, why)) => Rung::new("send", sender.rung(), why),
            Err(error) => Rung::new("send", "none", Some(error.to_string())),
        };
        rungs.push(rung.on(&plane.interface));
    }
    rungs.push(match &receive {
        Err(why) => Rung::new("exit_watch", "pidfd", Some(why.clone())),
        // include/linux/proc_ns.h: PROC_PID_INIT_INO.
        Ok(_) if !std::fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]") => {
            Rung::new("exit_watch", "pidfd", Some("in a pid namespace the hook sees other process ids".to_owned()))
        }
        Ok(receive) => match ExitWatch::attach(receive.wake_fd(), receive.stats_fd(), None) {
            Ok(_) => Rung::new("exit_watch", "sched_process_exit", None),
            Err(error) => Rung::new("exit_watch", "pidfd", Some(error.to_string())),
        },
    });
    rungs.push(match &receive {
        Ok(_) => Rung::new("events", "bpf ring", None),
        Err(why) => Rung::new("events", "shared memory and timer", Some(why.clone())),
    });
    rungs.push(match xdp {
        true => Rung::new("timer", "bpf timer", None),
        false => Rung::new("timer", "the loop's own", Some("heartbeats do not come through XDP".to_owned())),
    });
    rungs.extend(of_loop(host.core));
    rungs
}

/// All planes use the same rung, because the agent attaches them in one mode.
fn receiving(host: &Host<'_>, planes: &[Plane], no_bpf: Option<&String>) -> Vec<Rung> {
    let native = |plane: &Plane| match host.machine.xdp(&plane.interface.name) {
        Ok(facts) if facts.features & XdpFacts::BASIC != 0 => Ok(()),
        Ok(_) => Err(format!("the driver of {} does not say that it runs XDP", plane.interface.name)),
        Err(error) => Err(format!("{}: {error}", plane.interface.name)),
    };
    let (used, why) = match (no_bpf, planes.iter().find(|plane| plane.interface.loopback)) {
        (Some(why), _) => ("udp", Some(why.clone())),
        (None, Some(_)) => ("udp", Some("a plane is on loopback".to_owned())),
        (None, None) => match planes.iter().try_for_each(native) {
            Ok(()) => ("xdp native", None),
            Err(why) => ("xdp generic", Some(why)),
        },
    };
    planes.iter().map(|plane| Rung::new("receive", used, why.clone()).on(&plane.interface)).collect()
}

fn of_loop(core: usize) -> Vec<Rung> {
    let probe = thread::Builder::new().name("fide-rungs".to_owned()).spawn(move || isolate(core).measures().clone());
    let Ok(measures) = probe.map(thread::JoinHandle::join) else {
        return vec![Rung::new("core", "none", Some("no thread could be had".to_owned()))];
    };
    // SAFETY: no memory is handed over. Only locked pages outlive the thread.
    unsafe { libc::munlockall() };
    let Ok(measures) = measures else { return Vec::new() };
    let rung = |ladder, measure: &Measure| match measure {
        Measure::Held(text) => Rung::new(ladder, text.clone(), None),
        Measure::Missing(text) => Rung::new(ladder, "none", Some(text.clone())),
    };
    vec![
        rung("core", &measures.core),
        rung("priority", &measures.priority),
        rung("memory", &measures.memory),
        rung("c_states", &measures.c_states),
        rung("isolated", &measures.isolated),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Copy, roots::Roots};

    #[test]
    fn every_ladder_has_a_rung_and_each_lower_one_a_reason() {
        let _alone = crate::ALONE.lock();
        let core = fide_net::isolation::default_core();
        let host = Host { roots: Roots::default(), machine: &Copy, core, interfaces: Vec::new(), drift_ppm: 200 };
        let plane = Plane {
            interface: fide_sys::interface::by_address(std::net::Ipv4Addr::LOCALHOST).expect("loopback"),
            destination: Destination::Peers(vec![std::net::Ipv4Addr::LOCALHOST]),
        };
        let rungs = probe(&host, &[plane]);
        let ladders: Vec<_> = rungs.iter().map(|rung| rung.ladder).collect();
        assert_eq!(
            ladders,
            ["receive", "send", "exit_watch", "events", "timer", "core", "priority", "memory", "c_states", "isolated"]
        );
        assert_eq!((rungs[0].used.as_str(), rungs[1].used.as_str()), ("udp", "udp"), "loopback is no plane for more");
        for rung in rungs.iter().filter(|rung| rung.used == "none") {
            assert!(rung.fell_back.is_some(), "{rung:?}");
        }
    }
}
