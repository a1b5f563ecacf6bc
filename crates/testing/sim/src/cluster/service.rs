// SPDX-License-Identifier: Apache-2.0
//! A program under `fide run` that must run once in the cluster, and `fide watch` on the host that takes its place: the README's recipe.
//!
//! The keeper stops its program while its host is fenced, as `fide run --on-fence pause` does, and looks as often as that does. The
//! program acts whenever it is not stopped, and asks nobody.

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
/// Longest and shortest wait between two looks at the lease.
const LOOK_MAX_NS: u64 = 50 * MS;
const LOOK_MIN_NS: u64 = MS / 2;
/// While fenced.
const LOOK_FENCED_NS: u64 = 2 * MS;

/// The program under a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// It waits for the keeper to have joined.
    Gated,
    Runs,
    Stopped,
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Takes over once the master on that host has failed, which is that process: a watch that begins is told of the end of the last
    /// process of that name that is known, which may be one before it.
    Standby { of: u16, process: u32 },
    /// The so manyth.
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
    /// What it was told, to be checked.
    pub(super) told: Vec<Event>,
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
        Self { pid, client, role, looked_ns: 0, paused_until_ns: 0, turn_ns: now_ns, told: Vec::new() }
    }

    pub(super) fn copy(&self, copies: &mut Copies) -> Self {
        Self { pid: copies.pid(self.pid), client: self.client.copy(copies), told: self.told.clone(), ..*self }
    }

    /// One look; true if the master that it stands by for has failed.
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
                // Others were told that it is dead, and one of them may have taken its place.
                if planted::is(Planted::RunGoesOn) {
                    self.client.acknowledge();
                } else {
                    *program = Program::Killed;
                }
            }
            self.told.push(event);
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

    /// When it looks again if nothing comes, own clock.
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
