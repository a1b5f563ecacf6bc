// SPDX-License-Identifier: Apache-2.0
//! Programs on every host that watch every other host, and the times at which each was notified.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context;
use fide_client::{Client, ConnectOptions, Event, Live, Verdict, Wanted, now_ns};

/// How often a waiting program checks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// One event, with the CLOCK_MONOTONIC time at which the waiting call returned.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) at_ns: u64,
    /// Host of the program that was notified.
    pub(super) host: usize,
    pub(super) event: Event,
}

impl Heard {
    /// The verdict, if this event says that a host is dead.
    pub(super) fn death(&self) -> Option<&Verdict> {
        match &self.event {
            Event::Verdict(verdict) if verdict.reason.is_final() => Some(verdict),
            _ => None,
        }
    }

    /// The event as text, if it is the death of a host.
    pub(super) fn death_text(&self) -> Option<String> {
        let Verdict { reason, target, .. } = self.death()?;
        Some(format!("h{} was notified: {reason:?} of {target}", self.host))
    }

    /// The incarnation, if this event says that `host` is up.
    pub(super) fn up(&self, host: usize) -> Option<u32> {
        match &self.event {
            Event::Up { target, evidence, .. } if is_host(target, host) => Some(evidence.incarnation),
            _ => None,
        }
    }
}

/// Whether a target such as "@h3" is this host.
pub(super) fn is_host(target: &str, host: usize) -> bool {
    target.strip_prefix("@h").is_some_and(|number| number.parse() == Ok(host))
}

/// The programs.
pub(super) struct Ears {
    heard: Receiver<Heard>,
    log: Vec<Heard>,
    /// By host, from 1.
    lives: Vec<Live>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Ears {
    /// One program on each host, at `sockets`; each watches all of `hosts` but its own.
    pub(super) fn start(sockets: &[PathBuf], hosts: &[usize]) -> anyhow::Result<Self> {
        let (tell, heard) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut ears = Self { heard, log: Vec::new(), lives: Vec::new(), stop, threads: Vec::new() };
        for (host, socket) in (1..).zip(sockets) {
            let mut client = connect(socket)?;
            for other in hosts.iter().filter(|other| **other != host) {
                client.monitor(&format!("@h{other}"), Wanted::default())?;
            }
            ears.lives.push(client.live());
            let (tell, stop) = (tell.clone(), ears.stop.clone());
            let thread = std::thread::Builder::new()
                .name(format!("program-h{host}"))
                .spawn(move || listen(&mut client, host, &tell, &stop))
                .context("starting a program's thread")?;
            ears.threads.push(thread);
        }
        Ok(ears)
    }

    /// The right to act, as a program on `host` sees it.
    pub(super) fn live(&self, host: usize) -> &Live {
        &self.lives[host - 1]
    }

    fn drain(&mut self) {
        self.log.extend(self.heard.try_iter());
    }

    /// All events from `since_ns` on.
    pub(super) fn since(&mut self, since_ns: u64) -> impl Iterator<Item = &Heard> {
        self.drain();
        self.log.iter().filter(move |heard| heard.at_ns >= since_ns)
    }

    /// Waits for the first event from `since_ns` on that `wanted` accepts, at most `limit`.
    pub(super) fn wait<T>(
        &mut self,
        since_ns: u64,
        limit: Duration,
        wanted: impl Fn(&Heard) -> Option<T>,
    ) -> Option<(u64, T)> {
        let until = Instant::now() + limit;
        let mut seen = 0;
        loop {
            self.drain();
            let found = self.log[seen..]
                .iter()
                .filter(|heard| heard.at_ns >= since_ns)
                .find_map(|heard| Some((heard.at_ns, wanted(heard)?)));
            if found.is_some() {
                return found;
            }
            seen = self.log.len();
            let left = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(heard) => self.log.push(heard),
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

pub(super) fn connect(socket: &std::path::Path) -> anyhow::Result<Client> {
    let options = ConnectOptions {
        path: Some(socket.to_owned()),
        program: "fide-lab demo".to_owned(),
        ..ConnectOptions::default()
    };
    Client::connect(options).with_context(|| format!("connecting to {}", socket.display()))
}

fn listen(client: &mut Client, host: usize, tell: &Sender<Heard>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match client.wait_event(Some(LOOK)) {
            Ok(Some(event)) => {
                let at_ns = now_ns();
                if tell.send(Heard { at_ns, host, event }).is_err() {
                    return;
                }
            }
            Ok(None) => {}
            // The missing events then fail an expectation.
            Err(error) => {
                fide_cli::say::say!("the program on h{host} receives no more events: {error}");
                return;
            }
        }
    }
}
