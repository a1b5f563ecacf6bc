// SPDX-License-Identifier: Apache-2.0
//! Plans the changes for the network.

use super::{Change, Form, Planned, Planner, Target};
use crate::{
    doctor::{JIFFY_NS_USUAL, budget_wanted_us, has_priorities, queues},
    machine::{Coalesce, Qdisc},
    parse::Cpus,
};

impl Planner<'_> {
    pub(super) fn netdev_budget(&mut self) -> Planned {
        let path = self.host.roots.proc.join("sys/net/core/netdev_budget_usecs");
        if !path.exists() {
            self.left("netdev-budget", "only the first network namespace has it");
            return Ok(());
        }
        let now = crate::roots::read(&path)?;
        let us: u64 = now.parse().map_err(|_| format!("netdev_budget_usecs {now:?} is no number"))?;
        let wanted = budget_wanted_us(self.host.machine.tick_ns().unwrap_or(JIFFY_NS_USUAL));
        if us > wanted {
            let why = format!(
                "a softirq that drains a flood holds its core so long; {wanted} us is the shortest that can be set \
                 without harm"
            );
            self.file("netdev-budget", path, Form::Text, &wanted.to_string(), &why)?;
        }
        Ok(())
    }

    pub(super) fn interfaces(&mut self) -> Planned {
        for interface in self.host.interfaces.clone() {
            self.coalescing(&interface);
            if let Err(why) = self.steering(&interface) {
                self.left("queue-steering", format!("{interface}: {why}"));
            }
            self.qdisc(&interface);
        }
        Ok(())
    }

    fn coalescing(&mut self, interface: &str) {
        let target = Target::Coalesce(interface.to_owned());
        match self.host.machine.coalesce(interface) {
            Ok(coalesce) if coalesce.off() => {}
            Ok(coalesce) => {
                let json = |coalesce: &Coalesce| serde_json::to_string(coalesce).unwrap_or_default();
                let to = coalesce.turned_off().iter().map(json).collect();
                let why = "the card holds packets back; more interrupts, on the other cores, is the price";
                self.plan.changes.push(Change::new("coalescing", target, &json(&coalesce), to, why));
            }
            Err(error) => self.left("coalescing", format!("{interface}: {error}")),
        }
    }

    fn steering(&mut self, interface: &str) -> Planned {
        let core = self.host.core;
        for (path, cpus) in queues(self.host, interface, "rps_cpus")? {
            if cpus.holds(core) {
                let path = self.host.roots.sys.join(path);
                let why = "packets of others are processed on the loop's core";
                self.file("queue-steering", path, Form::Mask, &cpus.without(core).mask(), why)?;
            }
        }
        let send = queues(self.host, interface, "xps_cpus")?;
        let count = send.len();
        if count < 2 || self.others.is_empty() {
            return Ok(());
        }
        for (index, (path, cpus)) in send.into_iter().enumerate() {
            let path = self.host.roots.sys.join(path);
            if index + 1 == count {
                let own: Cpus = [core].into_iter().collect();
                let why = "a send queue of the loop's own: heartbeats do not wait behind bulk traffic";
                self.file("queue-steering", path, Form::Mask, &own.mask(), why)?;
            } else {
                let rest = cpus.and(&self.others);
                let rest = if rest.is_empty() { self.others.clone() } else { rest };
                self.file("queue-steering", path, Form::Mask, &rest.mask(), "leaves the last queue to the loop")?;
            }
        }
        Ok(())
    }

    fn qdisc(&mut self, interface: &str) {
        let qdisc = match self.host.machine.qdisc(interface) {
            Ok(qdisc) => qdisc,
            Err(error) => return self.left("qdisc", format!("{interface}: {error}")),
        };
        if has_priorities(&qdisc.kind) {
            return;
        }
        if qdisc.kind == "mq" || !qdisc.by_default {
            return self.left("qdisc", format!("{interface}: {qdisc} is not replaced; see `fide doctor`"));
        }
        let json = |qdisc: &Qdisc| serde_json::to_string(qdisc).unwrap_or_default();
        let wanted = Qdisc { kind: "pfifo_fast".to_owned(), by_default: false };
        let why = "priority 7, which the agent's sockets have, overtakes bulk traffic";
        let target = Target::Qdisc(interface.to_owned());
        self.plan.changes.push(Change::new("qdisc", target, &json(&qdisc), vec![json(&wanted)], why));
    }
}
