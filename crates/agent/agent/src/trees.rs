// SPDX-License-Identifier: Apache-2.0
//! Planned trees: this host's side of the controller (FiDe §3.3).
//!
//! Three threads beside the agent's own, none of which anything waits for: one keeps the lane of this host's heartbeats
//! and follows what the controller tells; one tells it which trees of others are missed here; one keeps the lanes of
//! programs. What a plane's packets are
//! sent to is changed by the control thread, at the controller's word, and written down: an agent that starts while no
//! controller answers sends on the trees it had. A controller that is down stops nobody.

mod lanes;
mod memory;
mod poll;
mod report;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use fide_agent_api::protocol::Refusal;
use fide_controller_api::{
    client::{CallError, Caller, Ordered},
    tls::{self, ClientTls, Files},
};
use fide_net::link::Sender;
use fide_wire::MAX_PLANES;
use rustix::event::EventfdFlags;

use crate::{
    command::{Command, Reply, quiet, ring},
    config::{Config, Controller},
    privileges,
};
pub use lanes::{Ask, Input};
pub use memory::{Kept, Tree};

pub use crate::tree_report::{Report, Seen};

/// Name of the lane that carries a host's heartbeats.
pub const LANE: &str = "heartbeat";
/// Notices of exits sent between two heartbeats, for which the lane of the heartbeats has room.
pub const NOTICES_PER_HEARTBEAT: usize = 1;
/// Ethernet, preamble, gap, IPv4 and UDP around a packet, bytes.
const AROUND_PACKET: usize = 66;
/// Bytes beside a heartbeat's that its lane is asked for.
const NOTICES_ROOM: usize = NOTICES_PER_HEARTBEAT * (fide_wire::NOTICE_LEN + AROUND_PACKET);
/// Orders on their way to the control thread; the thread that gives them waits for each.
const ORDERS: usize = 4;
/// Reports on their way to the controller: every tree of every host, lost and found once. More are dropped: what is
/// still missed then is told by the next event of its kind.
const REPORTS: usize = 4 * fide_wire::MAX_HOSTS;

/// What the lanes' thread is told before it has taken it in: programs' requests ([`crate::control`] bounds them) and what the
/// controller tells.
const INPUTS: usize = 1024;

/// What the control thread is to do.
#[derive(Debug)]
pub enum Order {
    /// Heartbeats have at most so many bytes from now on: what their lane was granted.
    Payload { bytes: usize },
    /// Have the loop carry out a command; what it answers.
    Call { command: Command, done: SyncSender<Reply> },
    /// Answer a program's request about a lane.
    Answer { ticket: u64, answer: Result<serde_json::Value, Refusal> },
    /// Send a plane's packets to this group; then say so.
    Aim { plane: u8, tree: Tree, done: SyncSender<()> },
    /// There is no second tree, and the controller's policy is to stop then.
    Stop { why: String },
}

/// The control thread's end.
#[derive(Debug)]
pub struct Trees {
    orders: Receiver<Order>,
    wake: Arc<OwnedFd>,
    reports: SyncSender<Report>,
    lanes: SyncSender<Input>,
    kept: Kept,
    path: PathBuf,
}

/// What both threads know.
#[derive(Debug, Default)]
struct Known {
    lanes: HashMap<Source, Told>,
}

/// A sending host, and the label of its lane; `None` for its heartbeats.
type Source = (u16, Option<u8>);

/// What was told last of a lane that is received here.
#[derive(Clone, Copy, Debug)]
struct Told {
    lane: u64,
    /// Generation of each tree that it has.
    generations: [Option<u32>; MAX_PLANES],
}

/// What a thread needs to talk to the controller.
struct Talk {
    caller: Caller,
    /// One order of requests for both threads.
    ordered: Arc<Mutex<Ordered>>,
    known: Arc<Mutex<Known>>,
    config: Arc<Config>,
    me: u16,
    /// Names of the planes' interfaces.
    interfaces: Vec<String>,
    /// The smallest heartbeat that does, bytes.
    payload_min: usize,
}

/// Why there are no trees.
#[derive(Debug, thiserror::Error)]
pub enum TreesError {
    #[error("[controller] credentials: {0}")]
    Credentials(tls::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{path}: {why}; remove it, and the trees come from the controller again")]
    Kept { path: PathBuf, why: String },
}

impl From<tls::Error> for TreesError {
    fn from(why: tls::Error) -> Self {
        Self::Credentials(why)
    }
}

impl Trees {
    /// Whether the files are right that [`Trees::start`] reads.
    ///
    /// # Errors
    /// [`TreesError`].
    pub fn check(config: &Config, controller: &Controller) -> Result<(), TreesError> {
        Kept::load(&config.state_dir.join(memory::FILE))?;
        ClientTls::load(Files::of_member(&controller.credentials))?;
        Ok(())
    }

    /// Reads what was kept, and starts both threads.
    ///
    /// `senders` has one for each plane, to be multiplied; `payload_min` is the smallest heartbeat that does, bytes.
    ///
    /// # Errors
    /// [`TreesError`].
    pub fn start(
        config: &Config,
        controller: &Controller,
        me: u16,
        incarnation: u32,
        interfaces: &[String],
        senders: Vec<Sender>,
        payload_min: usize,
    ) -> Result<Self, TreesError> {
        let path = config.state_dir.join(memory::FILE);
        let kept = Kept::load(&path)?;
        let tls = Arc::new(ClientTls::load(Files::of_member(&controller.credentials))?);
        let ordered = Arc::new(Mutex::new(Ordered::new(incarnation)));
        let known = Arc::new(Mutex::new(Known::default()));
        let shared = Arc::new(config.clone());
        let talk = || -> Result<Talk, TreesError> {
            Ok(Talk {
                caller: Caller::new(controller.addresses.clone(), tls.clone())?,
                ordered: ordered.clone(),
                known: known.clone(),
                config: shared.clone(),
                me,
                interfaces: interfaces.to_vec(),
                payload_min,
            })
        };
        let (send, orders) = sync_channel(ORDERS);
        let (reports, missed) = sync_channel(REPORTS);
        let wake = Arc::new(
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
        );
        let (lanes, inputs) = sync_channel(INPUTS);
        let keeper = lanes::Lanes::new(talk()?, send.clone(), wake.clone(), senders);
        let poll = poll::Poll::new(talk()?, send, wake.clone(), lanes.clone(), kept.clone(), tls.clone());
        let report = talk()?;
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let unprivileged = move || {
                let _ = privileges::drop_excess();
                run();
            };
            thread::Builder::new().name(name.to_owned()).spawn(unprivileged)
        };
        spawn("fide-lanes", Box::new(move || keeper.run(&inputs)))?;
        spawn("fide-trees", Box::new(move || poll.run()))?;
        spawn("fide-reports", Box::new(move || report::run(report, &missed)))?;
        Ok(Self { orders, wake, reports, lanes, kept, path })
    }

    /// Readable when there is an order.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Orders that have come.
    pub fn take(&self) -> impl Iterator<Item = Order> + '_ {
        quiet(&self.wake);
        self.orders.try_iter()
    }

    /// A plane sends to this tree now: kept for the next start.
    pub fn keep(&mut self, plane: u8, tree: Tree) {
        self.kept.set(plane, tree);
        if let Err(error) = self.kept.save(&self.path) {
            tracing::warn!("the next start will not know the trees: {}: {error}", self.path.display());
        }
    }

    /// Trees in use.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Has the lanes' thread do something; never waits. What it cannot take now is given back.
    ///
    /// # Errors
    /// The input.
    pub fn ask(&self, input: Input) -> Result<(), Input> {
        self.lanes.try_send(input).map_err(|error| match error {
            TrySendError::Full(input) | TrySendError::Disconnected(input) => input,
        })
    }

    /// Tells the controller; never waits.
    pub fn report(&self, report: Report) {
        if let Err(TrySendError::Full(_)) = self.reports.try_send(report) {
            tracing::warn!("{REPORTS} reports wait for the controller; one of host {} is dropped", report.host);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an order and wakes the control thread; false if it is gone.
fn order(orders: &SyncSender<Order>, wake: &OwnedFd, order: Order) -> bool {
    let sent = orders.send(order).is_ok();
    ring(wake);
    sent
}

/// Has the loop carry out a command; `None` if the agent is ending.
fn call(orders: &SyncSender<Order>, wake: &OwnedFd, command: Command) -> Option<Reply> {
    let (done, carried_out) = sync_channel(1);
    if !order(orders, wake, Order::Call { command, done }) {
        return None;
    }
    carried_out.recv().ok()
}

/// Whether a group is one of trees.
fn is_tree_group(group: Ipv4Addr) -> bool {
    let (first, last) = fide_wire::TREE_GROUPS;
    (first..=last).contains(&group)
}
