// SPDX-License-Identifier: Apache-2.0
//! The clock that leases are counted on (docs/internals/clocks.md). These two conditions add no jitter: they
//! say whether leases can be relied on.

use super::{By, Effect, Finding, Group, Host, Judged, Kind};
use crate::{condition::How, parse};

const OFF_STEP_PPM: u64 = 100;

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Kernel, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "a lease counted on a slow clock outlasts the wait of a host whose clock is fast: both act",
            change: "drift_ppm in [cluster]: twice what the worst host is off by; or another time source",
            ..kind("clock-rate", "rate of the raw clock", "off by at most {off} ppm, half of drift_ppm", How::Operator)
        },
        By::Host(rate),
    ),
    (
        Kind {
            cost: "a hypervisor that stops a guest and puts its clocks back (live migration, a resumed snapshot) leaves programs \
                   believing in the rest of their lease, at most one timeout, while others go on",
            change: "no live migration of members, or the agent stopped meanwhile; a fencing token where writes arrive",
            ..kind("clock-stop", "clocks that stop with the machine", "none: no hypervisor", How::NotHere)
        },
        By::Host(stop),
    ),
];

fn rate(host: &Host<'_>) -> Judged {
    let rate = host.machine.clock_rate()?;
    let off_max_ppm = host.off_max_ppm();
    // Reported in steps, because the value is never the same twice.
    let least = rate.off_ppm / OFF_STEP_PPM * OFF_STEP_PPM;
    Ok(match rate.off_ppm {
        0 if !rate.synchronized => Finding::not_applicable("nobody compares it with other clocks (no NTP)"),
        off if off <= off_max_ppm => {
            Finding::new(Effect::Good, format!("NTP corrects it by at most {off_max_ppm} ppm"))
        }
        _ => Finding::new(Effect::Bad, format!("NTP corrects it by {} ppm or more", least.max(off_max_ppm + 1))),
    })
}

fn stop(host: &Host<'_>) -> Judged {
    let cpu = host.roots.proc("cpuinfo")?;
    let guest = parse::is_guest(&cpu) || host.roots.sys("hypervisor/type").is_ok();
    let source = host.roots.sys("devices/system/clocksource/clocksource0/current_clocksource")?;
    if !guest {
        return Ok(Finding::new(Effect::Good, "this machine is no guest"));
    }
    let available = host.roots.sys("devices/system/clocksource/clocksource0/available_clocksource").unwrap_or_default();
    let seen = match source.as_str() {
        "tsc" => "a stop is seen if the hypervisor lets the processor's counter run",
        _ if available.split_whitespace().any(|name| name == "tsc") => {
            "a stop is seen by the processor's counter, if the hypervisor lets that run"
        }
        _ => "no clock shows a stop",
    };
    Ok(Finding::new(Effect::Bad, format!("a guest on {source}: {seen}")))
}
