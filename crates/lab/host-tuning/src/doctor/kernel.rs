// SPDX-License-Identifier: Apache-2.0
//! Restrictions of the kernel, and the cost of its security measures.

use super::{By, Effect, Finding, Group, Host, Judged, Kind, Roots};
use crate::{condition::How, parse::chosen};

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Kernel, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "under confidentiality BPF programs may not read the kernel: exits are seen by pidfd, 174 us (p50) \
                   instead of 55",
            change: "lockdown=integrity or none, and what sets it (Secure Boot)",
            ..kind("lockdown", "kernel lockdown", "none or integrity", How::Boot)
        },
        By::Host(lockdown),
    ),
    (
        Kind {
            cost: "buffers and caches are flushed at each switch between tasks or into the kernel: hundreds of \
                   nanoseconds to some microseconds, then cold caches. The others cost much the same each time, which \
                   is no jitter",
            change: "mitigations=off, only if every program on this host is trusted",
            ..kind("mitigations", "mitigations that flush", "none that is not needed", How::Boot)
        },
        By::Host(mitigations),
    ),
];

fn lockdown(host: &Host<'_>) -> Judged {
    match host.roots.sys("kernel/security/lockdown") {
        Ok(list) => Ok(Finding::good_if(chosen(&list) != "confidentiality", chosen(&list))),
        // securityfs is a separate mount, so an empty directory proves nothing.
        Err(unread) if unread.missing() => {
            let wanted = host.boot_parameter("lockdown")?;
            let modules = host.roots.sys("kernel/security/lsm").unwrap_or_default();
            Ok(match wanted {
                Some(mode) => Finding::good_if(mode != "confidentiality", format!("{mode}, says the command line")),
                None if !modules.is_empty() && !modules.contains("lockdown") => {
                    Finding::not_applicable("this kernel has none")
                }
                None => Finding::unknown(format!("{unread} (securityfs)")),
            })
        }
        Err(unread) => Err(unread.into()),
    }
}

fn mitigations(host: &Host<'_>) -> Judged {
    let dir = host.roots.sys.join("devices/system/cpu/vulnerabilities");
    let (mut flushing, mut count) = (Vec::new(), 0);
    for name in Roots::list(&dir)? {
        let state = host.roots.sys(format!("devices/system/cpu/vulnerabilities/{name}"))?;
        count += usize::from(state.starts_with("Mitigation"));
        if state.contains("Clear CPU buffers") || state.contains("cache flushes") || state.contains("IBPB: always-on") {
            flushing.push(name);
        }
    }
    let chosen = host.boot_parameter("mitigations")?.map_or_else(String::new, |mode| format!("; mitigations={mode}"));
    Ok(match flushing.is_empty() {
        true => Finding::new(Effect::Good, format!("none of {count} in force{chosen}")),
        false => Finding::new(
            Effect::Bad,
            format!("{} of {count} in force: {}{chosen}", flushing.len(), flushing.join(", ")),
        ),
    })
}
