// SPDX-License-Identifier: Apache-2.0
//! Planned trees: this host's side of the controller (FiDe §3.3).
//!
//! Three threads run beside the agent's own, and nothing waits for them. One keeps the lane of this host's
//! heartbeats and follows the controller's events; one reports to the controller which trees of other hosts
//! are missed here; one keeps the lanes of programs. When the controller orders it, the control thread
//! changes the group that a plane's packets go to, and stores it: an agent that starts while no controller
//! answers sends on the trees that it had before. A controller that is down stops nobody.

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
use fide_types::HostId;
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
/// Notices of exits between two heartbeats that the lane of the heartbeats has room for.
pub const NOTICES_PER_HEARTBEAT: usize = 1;
/// Bytes of Ethernet, preamble, gap, IPv4 and UDP around a packet.
const AROUND_PACKET: usize = 66;
/// Bytes that the heartbeats' lane is asked for beyond a heartbeat.
const NOTICES_ROOM: usize = NOTICES_PER_HEARTBEAT * (fide_wire::NOTICE_LEN + AROUND_PACKET);
/// Orders that may wait for the control thread; the thread that gives one waits for it.
const ORDERS: usize = 4;
/// Reports that may wait for the controller: every tree of every host, lost and restored once. Further ones
/// are dropped; a tree that is still missed then is reported with its next event.
const REPORTS: usize = 4 * fide_wire::MAX_HOSTS;

/// Inputs that may wait for the lanes' thread: programs' requests ([`crate::control`] bounds them) and the
/// controller's events.
const INPUTS: usize = 1024;

/// An order for the control thread.
#[derive(Debug)]
pub enum Order {
    /// From now on a heartbeat has at most this many bytes: the size that its lane was granted.
    Payload { bytes: usize },
    /// Have the loop carry out a command, and pass its reply on.
    Call { command: Command, done: SyncSender<Reply> },
    /// Answer a program's request about a lane.
    Answer { ticket: u64, answer: Result<serde_json::Value, Refusal> },
    /// Send a plane's packets to this group, then confirm it.
    Aim { plane: u8, tree: Tree, done: SyncSender<()> },
    /// There is no second tree, and the controller's policy for that is to stop.
    Stop { why: String },
}

/// The control thread's end of the channels.
#[derive(Debug)]
pub struct Trees {
    orders: Receiver<Order>,
    wake: Arc<OwnedFd>,
    reports: SyncSender<Report>,
    lanes: SyncSender<Input>,
    kept: Kept,
    path: PathBuf,
}

/// Knowledge that the threads share.
#[derive(Debug, Default)]
struct Known {
    lanes: HashMap<Source, Announced>,
}

/// A sending host, and the label of its lane; `None` for its heartbeats.
type Source = (u16, Option<u8>);

/// The trees that the controller last announced of a lane that is received here.
#[derive(Clone, Copy, Debug)]
struct Announced {
    lane: u64,
    /// The generation of each of its trees.
    generations: [Option<u32>; MAX_PLANES],
}

/// A thread's means to talk to the controller.
struct Talk {
    caller: Caller,
    /// Puts the requests of all threads into one order.
    ordered: Arc<Mutex<Ordered>>,
    known: Arc<Mutex<Known>>,
    config: Arc<Config>,
    me: HostId,
    /// Names of the planes' interfaces.
    interfaces: Vec<String>,
    /// The smallest usable heartbeat, bytes.
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
    /// Whether the files that [`Trees::start`] reads are valid.
    ///
    /// # Errors
    /// [`TreesError`].
    pub fn check(config: &Config, controller: &Controller) -> Result<(), TreesError> {
        Kept::load(&config.state_dir.join(memory::FILE))?;
        ClientTls::load(Files::of_member(&controller.credentials))?;
        Ok(())
    }

    /// Reads the stored trees, and starts the threads.
    ///
    /// `senders` has one sender for each plane, to make more from; `payload_min` is the smallest usable
    /// heartbeat, bytes.
    ///
    /// # Errors
    /// [`TreesError`].
    pub fn start(
        config: &Config,
        controller: &Controller,
        me: HostId,
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

    /// Orders that have arrived.
    pub fn take(&self) -> impl Iterator<Item = Order> + '_ {
        quiet(&self.wake);
        self.orders.try_iter()
    }

    /// A plane sends to this tree now: stores it for the next start.
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

    /// Hands the lanes' thread an input, without waiting.
    ///
    /// # Errors
    /// The input, if the thread cannot take it now.
    pub fn ask(&self, input: Input) -> Result<(), Input> {
        self.lanes.try_send(input).map_err(|error| match error {
            TrySendError::Full(input) | TrySendError::Disconnected(input) => input,
        })
    }

    /// Reports to the controller, without waiting.
    pub fn report(&self, report: Report) {
        if let Err(TrySendError::Full(_)) = self.reports.try_send(report) {
            tracing::warn!("{REPORTS} reports wait for the controller; one of host {} is dropped", report.host);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an order and wakes the control thread; false if that has ended.
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

/// Whether a group belongs to the trees.
fn is_tree_group(group: Ipv4Addr) -> bool {
    let (first, last) = fide_wire::TREE_GROUPS;
    (first..=last).contains(&group)
}
