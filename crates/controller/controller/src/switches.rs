// SPDX-License-Identifier: Apache-2.0
//! The acting side: one thread for each switch, and one for all carriers.
//!
//! ```text
//!  shell ── act(order) ──► Mailbox, merged ──► worker: wanted rules ──► Driver ──► switch
//!    ▲                     never waits            │ install; audit and repair      │ Watch
//!    └───── EventSender ◄── Applied, Drift ───────┘      ▲ opens, hands over       ▼
//!    └───── EventSender ◄── Carrier ─────────────────────┴────────────────── carriers
//! ```
//!
//! An order for a busy switch is merged with the waiting ones. The mailbox holds the newest state of each
//! group, one entry for each group. So it is bounded by the number of groups ([`GROUPS_MAX`]), and nothing
//! is lost, however far a switch lags behind. All entries then become one installation.
//!
//! A refusal by a switch is reported once, and retried until it ends; so is a switch that cannot be opened.
//! A controller that does not lead touches no switch. When the controller ends, the rules stay, so that a
//! controller that is down stops nobody.

mod carriers;
mod mailbox;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fide_switch::{Driver, DriverError, Lanes};

use crate::core::{Event, SwitchOrder};
use crate::leader::Leadership;
use crate::shell::EventSender;
use carriers::Carriers;
use mailbox::Mailbox;

/// Groups that a switch may have; an order for one more is reported as refused.
pub const GROUPS_MAX: usize = 1 << 20;
/// Pause after a refusal, until the next try.
pub const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How often a switch is compared with its wanted state.
pub const AUDIT_PERIOD: Duration = Duration::from_secs(5);
/// Pause before an event is sent again to a busy shell.
pub const TELL_PAUSE: Duration = Duration::from_millis(1);
/// Events of a switch that may wait for the shell; at this bound the switch gets no new work until they are
/// sent.
pub const EVENTS_MAX: usize = 64;
/// Differences of one audit that are reported one by one; the rest only as a number.
pub const DRIFTS_MAX: usize = 16;

/// Opens a driver, several times if necessary.
pub type Opener = Box<dyn FnMut() -> Result<Box<dyn Driver>, DriverError> + Send>;

/// One switch.
pub struct SwitchSpec {
    /// Its name in the topology.
    pub name: String,
    pub open: Opener,
    pub lanes: Lanes,
    /// The ports at which the topology's cables end. A port that the switch does not have is reported
    /// without carrier.
    pub ports: BTreeSet<String>,
}

/// Pauses and periods; the constants of this module except in tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub retry: Duration,
    pub audit: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { retry: RETRY_PAUSE, audit: AUDIT_PERIOD }
    }
}

/// All switches, before their threads are started.
pub struct Switches {
    specs: Vec<(SwitchSpec, Arc<Mailbox>)>,
}

/// The threads. When dropped, they end, and rules stay.
pub struct Running {
    mailboxes: Vec<Arc<Mailbox>>,
    workers: Vec<JoinHandle<()>>,
    // Ends after the workers, which pass their watches to it.
    _carriers: Arc<Carriers>,
}

impl Switches {
    #[must_use]
    pub fn new(specs: Vec<SwitchSpec>) -> Switches {
        Switches { specs: specs.into_iter().map(|spec| (spec, Arc::new(Mailbox::default()))).collect() }
    }

    /// The function that the shell calls with each effect. It never waits.
    pub fn act(&self) -> impl FnMut(SwitchOrder) + Send + 'static {
        let mailboxes: BTreeMap<String, Arc<Mailbox>> =
            self.specs.iter().map(|(spec, mailbox)| (spec.name.clone(), mailbox.clone())).collect();
        move |order: SwitchOrder| match mailboxes.get(&order.switch) {
            Some(mailbox) => mailbox.put(order),
            None => tracing::error!("there is no switch {}; an order to it is lost", order.switch),
        }
    }

    /// Starts the threads. They touch a switch only while this controller leads, according to `leadership`.
    ///
    /// # Errors
    /// If no more threads or descriptors can be had.
    pub fn start(
        self,
        event_sender: EventSender<Event>,
        leadership: Arc<dyn Leadership + Send + Sync>,
        pace: Pace,
    ) -> std::io::Result<Running> {
        let carriers = Arc::new(Carriers::start(event_sender.clone())?);
        let mut running = Running { mailboxes: Vec::new(), workers: Vec::new(), _carriers: carriers.clone() };
        for (spec, mailbox) in self.specs {
            running.mailboxes.push(mailbox.clone());
            let worker =
                worker::Worker::new(spec, mailbox, event_sender.clone(), leadership.clone(), carriers.clone(), pace);
            // A thread's name has at most 15 letters.
            let name: String = "sw-".chars().chain(worker.name().chars()).take(15).collect();
            running.workers.push(std::thread::Builder::new().name(name).spawn(move || worker.run())?);
        }
        Ok(running)
    }
}

impl Running {
    /// Ends the threads. With `restore`, each switch gets back the state from before it was prepared,
    /// without any group.
    pub fn stop(mut self, restore: bool) {
        self.end(restore);
    }

    fn end(&mut self, restore: bool) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop(restore));
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("the thread of a switch has failed");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(false);
    }
}
