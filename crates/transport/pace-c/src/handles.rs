// SPDX-License-Identifier: Apache-2.0
//! Endpoints and connections by number. A number is never used twice, so that one that was closed, or is none, is an error
//! in every call, and never memory that is somebody else's. A call that runs keeps its endpoint or connection until it ends.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use fide_c_abi::Failure;
use fide_pace_socket::{Connection, Endpoint, Message};

/// A connection, and what its functions remember.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) connection: Connection,
    /// A message for which there was no room where it was to go.
    kept: Mutex<Option<Message>>,
    /// Threads that call back.
    watches: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Clone)]
enum Thing {
    Endpoint(Arc<Endpoint>),
    Connection(Arc<Open>),
}

static NEXT: AtomicU64 = AtomicU64::new(1);
static THINGS: OnceLock<RwLock<HashMap<u64, Thing>>> = OnceLock::new();

fn things() -> &'static RwLock<HashMap<u64, Thing>> {
    THINGS.get_or_init(RwLock::default)
}

fn add(thing: Thing) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    things().write().unwrap_or_else(PoisonError::into_inner).insert(number, thing);
    number
}

fn get(number: u64) -> Option<Thing> {
    things().read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// An error that names what a number is.
fn wrong(number: u64, wanted: &str, from: &str, found: Option<&Thing>) -> Failure {
    let what = match found {
        Some(Thing::Endpoint(_)) => "an endpoint",
        Some(Thing::Connection(_)) => "a connection",
        None if number > 0 && number < NEXT.load(Ordering::Relaxed) => "closed already",
        None => "no handle",
    };
    Failure(-libc::EBADF, format!("{number} is {what}; pass {wanted} that {from} gave"))
}

fn no_endpoint(number: u64, found: Option<&Thing>) -> Failure {
    wrong(number, "an endpoint", "fide_pace_client or fide_pace_server", found)
}

fn no_connection(number: u64, found: Option<&Thing>) -> Failure {
    wrong(number, "a connection", "fide_pace_connect or fide_pace_accept", found)
}

pub(crate) fn add_endpoint(endpoint: Endpoint) -> u64 {
    add(Thing::Endpoint(Arc::new(endpoint)))
}

pub(crate) fn add_connection(connection: Connection) -> u64 {
    add(Thing::Connection(Arc::new(Open { connection, kept: Mutex::default(), watches: Mutex::default() })))
}

pub(crate) fn endpoint(number: u64) -> Result<Arc<Endpoint>, Failure> {
    match get(number) {
        Some(Thing::Endpoint(endpoint)) => Ok(endpoint),
        other => Err(no_endpoint(number, other.as_ref())),
    }
}

pub(crate) fn connection(number: u64) -> Result<Arc<Open>, Failure> {
    match get(number) {
        Some(Thing::Connection(open)) => Ok(open),
        other => Err(no_connection(number, other.as_ref())),
    }
}

fn remove(number: u64, is: impl Fn(&Thing) -> bool) -> Option<Thing> {
    let mut things = things().write().unwrap_or_else(PoisonError::into_inner);
    things.get(&number).is_some_and(is).then(|| things.remove(&number)).flatten()
}

pub(crate) fn take_endpoint(number: u64) -> Result<Arc<Endpoint>, Failure> {
    match remove(number, |thing| matches!(thing, Thing::Endpoint(_))) {
        Some(Thing::Endpoint(endpoint)) => Ok(endpoint),
        _ => Err(no_endpoint(number, get(number).as_ref())),
    }
}

pub(crate) fn take_connection(number: u64) -> Result<Arc<Open>, Failure> {
    match remove(number, |thing| matches!(thing, Thing::Connection(_))) {
        Some(Thing::Connection(open)) => Ok(open),
        _ => Err(no_connection(number, get(number).as_ref())),
    }
}

impl Open {
    pub(crate) fn kept(&self) -> MutexGuard<'_, Option<Message>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watches(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_watch(&self, watch: JoinHandle<()>) {
        self.watches().push(watch);
    }

    /// Waits until no callback runs any more, but for the one that this is called from.
    pub(crate) fn end_watches(&self) {
        let watches = std::mem::take(&mut *self.watches());
        let others = watches.into_iter().filter(|watch| watch.thread().id() != thread::current().id());
        others.for_each(|watch| drop(watch.join()));
    }
}
