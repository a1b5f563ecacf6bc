// SPDX-License-Identifier: Apache-2.0
//! An election by etcd.
//!
//! The leader's key is created in a transaction that holds only if there is none, and is attached to a
//! lease of `ttl_s`; its create revision is the epoch. etcd counts the lease from when it handled the last
//! renewal, which is after the renewal was sent. So until `sent + ttl - margin` on the leader's clock
//! nobody else can have the key, provided that this clock is not slower than etcd's by more than the margin
//! in one ttl. The clock runs on while the host is suspended.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Authority, Candidate, Leadership};
use crate::clock::Now;
use crate::etcd::{Client, Error, Transaction};
use crate::store;

/// The shortest lease: with a shorter one etcd's own elections would make leaders come and go.
pub const TTL_MIN_S: u64 = 2;
/// Renewals within one lease; a candidate checks as often whether the key is free.
const RENEWALS: u32 = 6;
/// The part of a lease in which this controller stops leading although the lease may still run.
const MARGIN_PARTS: u64 = 4;

/// How to be elected.
#[derive(Debug, Clone)]
pub struct ElectedOptions {
    /// The same as the store's.
    pub prefix: String,
    pub candidate: Candidate,
    /// Seconds of a lease: how long a crash of the leader goes unnoticed. At least [`TTL_MIN_S`].
    pub ttl_s: u64,
}

/// A candidate, whose thread campaigns, renews, and notices a loss. When dropped, it gives the leadership
/// back.
#[derive(Debug)]
pub struct Elected {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    place: Place,
    stop: bool,
}

#[derive(Debug, Clone)]
enum Place {
    Standby { leader: Option<Candidate>, trouble: Option<String> },
    Leader { epoch: u64, lease: u64, until_ns: u64, trouble: Option<String>, deposed: bool },
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Elected {
    /// Begins to campaign. Returns at once; see [`Leadership::authority`].
    pub fn start(client: Client, options: ElectedOptions) -> std::io::Result<Elected> {
        let state = Mutex::new(State { place: Place::Standby { leader: None, trouble: None }, stop: false });
        let shared = Arc::new(Shared { state, wake: Condvar::new() });
        let ttl_s = options.ttl_s.max(TTL_MIN_S);
        let campaign = Campaign {
            key: store::leader_key(options.prefix.trim_end_matches('/')),
            client,
            candidate: options.candidate,
            ttl_s,
            shared: shared.clone(),
        };
        let thread = std::thread::Builder::new().name("fide-leader".into()).spawn(move || campaign.run())?;
        Ok(Elected { shared, thread: Some(thread) })
    }
}

impl Leadership for Elected {
    fn authority(&self) -> Authority {
        match self.shared.lock().place.clone() {
            Place::Standby { leader, trouble } => Authority::Standby { leader, trouble },
            Place::Leader { deposed: true, .. } => Authority::Standby { leader: None, trouble: None },
            Place::Leader { epoch, until_ns, .. } if Now::read().boot_ns < until_ns => Authority::Leader { epoch },
            Place::Leader { epoch, trouble, .. } => {
                let why = trouble.unwrap_or_else(|| "this controller was stopped for longer than its lease".into());
                Authority::ReadOnly { epoch, why }
            }
        }
    }

    fn deposed(&self) {
        if let Place::Leader { deposed, .. } = &mut self.shared.lock().place {
            *deposed = true;
        }
        self.shared.wake.notify_all();
    }
}

impl Drop for Elected {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Campaign {
    key: String,
    client: Client,
    candidate: Candidate,
    ttl_s: u64,
    shared: Arc<Shared>,
}

impl Campaign {
    fn run(&self) {
        let pause = Duration::from_secs(self.ttl_s) / RENEWALS;
        loop {
            let place = self.shared.lock().place.clone();
            let next = match place {
                Place::Standby { leader, .. } => self.campaign(leader),
                Place::Leader { lease, deposed: true, .. } => {
                    let _ = self.client.revoke(lease);
                    Place::Standby { leader: None, trouble: None }
                }
                Place::Leader { epoch, lease, until_ns, .. } => self.renew(epoch, lease, until_ns),
            };
            let mut state = self.shared.lock();
            // Deposed during the call: that stands.
            if !matches!(state.place, Place::Leader { deposed: true, .. }) || matches!(next, Place::Standby { .. }) {
                state.place = next;
            }
            if !state.stop {
                state = self.shared.wake.wait_timeout(state, pause).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            }
            if state.stop {
                let place = std::mem::replace(&mut state.place, Place::Standby { leader: None, trouble: None });
                drop(state);
                if let Place::Leader { lease, .. } = place {
                    // So that candidates need not wait for the lease to run out.
                    let _ = self.client.revoke(lease);
                }
                return;
            }
        }
    }

    fn until_ns(sent: Now, ttl_s: u64) -> u64 {
        let ttl_ns = ttl_s.saturating_mul(1_000_000_000);
        sent.boot_ns.saturating_add(ttl_ns - ttl_ns / MARGIN_PARTS)
    }

    /// Finds out which controller leads; if none does, tries to.
    fn campaign(&self, before: Option<Candidate>) -> Place {
        match self.try_to_lead() {
            Ok(place) => {
                match &place {
                    Place::Leader { epoch, .. } => tracing::info!(epoch, "leads"),
                    Place::Standby { leader, .. } if *leader != before => tracing::info!(?leader, "stands by"),
                    Place::Standby { .. } => {}
                }
                place
            }
            Err(why) => {
                tracing::warn!("cannot campaign: {why}");
                Place::Standby { leader: None, trouble: Some(why.to_string()) }
            }
        }
    }

    fn try_to_lead(&self) -> Result<Place, Error> {
        let candidate = |value: &[u8]| serde_json::from_slice::<Candidate>(value).ok();
        if let Some(pair) = self.client.get(&self.key)? {
            return Ok(Place::Standby { leader: candidate(&pair.value), trouble: None });
        }
        let sent = Now::read();
        let (lease, ttl_s) = self.client.grant(self.ttl_s)?;
        let me = serde_json::to_vec(&self.candidate).unwrap_or_default();
        let transaction =
            Transaction::default().if_created(&self.key, 0).put(&self.key, &me, lease).else_get(&self.key);
        // Without an answer this controller may have the key unknowingly; it ends with the lease.
        let outcome = self.client.transact(&transaction).inspect_err(|_| {
            let _ = self.client.revoke(lease);
        })?;
        if outcome.succeeded {
            let until_ns = Self::until_ns(sent, ttl_s);
            return Ok(Place::Leader { epoch: outcome.revision, lease, until_ns, trouble: None, deposed: false });
        }
        let _ = self.client.revoke(lease);
        Ok(Place::Standby { leader: outcome.read.first().and_then(|pair| candidate(&pair.value)), trouble: None })
    }

    fn renew(&self, epoch: u64, lease: u64, until_ns: u64) -> Place {
        let sent = Now::read();
        match self.client.keep_alive(lease) {
            Ok(0) => {
                tracing::warn!(epoch, "leads no more: the lease ended");
                Place::Standby { leader: None, trouble: None }
            }
            Ok(ttl_s) => {
                let until_ns = until_ns.max(Self::until_ns(sent, ttl_s));
                Place::Leader { epoch, lease, until_ns, trouble: None, deposed: false }
            }
            Err(why) => {
                tracing::warn!(epoch, "cannot renew the lease: {why}");
                Place::Leader { epoch, lease, until_ns, trouble: Some(why.to_string()), deposed: false }
            }
        }
    }
}
