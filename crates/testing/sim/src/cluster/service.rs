// SPDX-License-Identifier: Apache-2.0
//! A program under `fide run` that must run once in the cluster, and `fide watch` on the host that takes
//! over: the README's recipe.
//!
//! The keeper stops its program while its host is fenced, as `fide run --on-fence pause` does, and looks as
//! often. The program acts whenever it is not stopped, and asks no agent.

use fide_client::{Event, Verdict};
use fide_sys::clock::Clocks;
use fide_types::planted::{self, Planted};

use super::{
    agent::Agent,
    client::{Client, Wants},
    plan::MS,
    session::Copies,
};

const NAME: &str = "master";
/// Longest and shortest time between two looks at the lease.
const LOOK_MAX_NS: u64 = 50 * MS;
const LOOK_MIN_NS: u64 = MS / 2;
/// Time between two looks while fenced.
const LOOK_FENCED_NS: u64 = 2 * MS;

/// The program under a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// The program waits until the keeper has joined.
    Gated,
    Runs,
    Stopped,
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Takes over once the master on that host has failed, which is that process: a new watch is first
    /// notified of the end of the last known process of the name, and that may be an earlier one.
    Standby { of: u16, process: u32 },
    /// The master with this number.
    Master { epoch: u64, program: Program },
}

pub(super) struct Service {
    pub(super) pid: u32,
    pub(super) client: Client,
    pub(super) role: Role,
    /// When the keeper looked last, true time.
    pub(super) looked_ns: u64,
    pub(super) paused_until_ns: u64,
    pub(super) turn_ns: u64,
    /// Events that the service was notified of, to be checked.
    pub(super) events: Vec<Event>,
}

impl Service {
    pub(super) fn standby(pid: u32, (of, process): (u16, u32), now_ns: u64) -> Self {
        let wants = vec![Wants::Monitor(of, Some(NAME.to_owned()))];
        Self::new(pid, Role::Standby { of, process }, wants, now_ns)
    }

    pub(super) fn master(pid: u32, epoch: u64, now_ns: u64) -> Self {
        let wants = vec![Wants::Join(NAME.to_owned())];
        Self::new(pid, Role::Master { epoch, program: Program::Gated }, wants, now_ns)
    }

    fn new(pid: u32, role: Role, wants: Vec<Wants>, now_ns: u64) -> Self {
        let client = Client::new(pid, wants);
        Self { pid, client, role, looked_ns: 0, paused_until_ns: 0, turn_ns: now_ns, events: Vec::new() }
    }

    pub(super) fn copy(&self, copies: &mut Copies) -> Self {
        Self { pid: copies.pid(self.pid), client: self.client.copy(copies), events: self.events.clone(), ..*self }
    }

    /// One look. True if the master that this service stands by for has failed.
    pub(super) fn turn(&mut self, now_ns: u64, now: &Clocks, mut agent: Option<&mut Agent>) -> bool {
        let local_ns = now.raw_ns;
        if !self.client.open(local_ns, agent.as_deref_mut()) {
            return false;
        }
        let mut failed = false;
        while let Some(event) = self.client.poll_event(local_ns, agent.as_deref_mut()) {
            if let (Event::Verdict(Verdict { reason, evidence, .. }), Role::Standby { process, .. }) =
                (&event, self.role)
            {
                failed |= reason.is_failure() && evidence.incarnation >= process;
            }
            if let (Event::Rejoined { .. }, Role::Master { program, .. }) = (&event, &mut self.role) {
                // Others were notified that the program is dead, and another master may have taken over.
                if planted::is(Planted::RunGoesOn) {
                    self.client.acknowledge();
                } else {
                    *program = Program::Killed;
                }
            }
            self.events.push(event);
        }
        self.looked_ns = now_ns;
        let fenced = !self.client.lease(now).holds();
        if let Role::Master { program, .. } = &mut self.role {
            *program = match (*program, fenced) {
                (Program::Killed, _) => Program::Killed,
                (_, true) => Program::Stopped,
                (_, false) => Program::Runs,
            };
        }
        failed
    }

    /// When the keeper looks again if no event comes, on its own clock.
    pub(super) fn due_ns(&self, now: &Clocks) -> u64 {
        let local_ns = now.raw_ns;
        if !self.client.is_open() {
            return self.client.timer_ns;
        }
        let lease = self.client.lease(now);
        let look_ns = match (self.role, lease.holds()) {
            (Role::Standby { .. }, _) => LOOK_MAX_NS,
            (_, false) => LOOK_FENCED_NS,
            (_, true) => lease.until_ns.saturating_sub(local_ns).clamp(LOOK_MIN_NS, LOOK_MAX_NS),
        };
        (local_ns + look_ns).min(self.client.timer_ns)
    }

    /// The keeper ends with its program.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.role, Role::Master { program: Program::Killed, .. })
    }

    pub(super) fn acts(&self) -> bool {
        matches!(self.role, Role::Master { program: Program::Runs, .. })
    }
}
