// SPDX-License-Identifier: Apache-2.0
//! One thread that watches every carrier and reports changes at once.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use fide_switch::{CarrierChange, Watch};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::TELL_PAUSE;
use super::mailbox::Mailbox;
use crate::core::Event;
use crate::shell::{EventSender, Refused};

/// Posts that may wait for the thread; a worker with one more waits.
const POSTS_MAX: usize = 64;

/// A message from a worker.
pub(super) enum Post {
    /// A switch is open: its changes from now on, and the state of its ports after the watch began.
    Open { switch: String, watch: Box<Watch>, ports: BTreeMap<String, bool>, mailbox: Arc<Mailbox> },
    /// Report all known carriers of a switch again: the decider may be new.
    Again { switch: String },
}

/// The thread; it ends when this is dropped.
pub(super) struct Carriers {
    posts: Option<SyncSender<Post>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Carriers {
    pub(super) fn start(event_sender: EventSender<Event>) -> std::io::Result<Carriers> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (posts, inbox) = sync_channel(POSTS_MAX);
        let thread = Thread {
            event_sender,
            inbox,
            wake: wake.clone(),
            watched: BTreeMap::new(),
            known: BTreeMap::new(),
            unreported: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new().name("fide-carriers".into()).spawn(move || thread.run())?;
        Ok(Carriers { posts: Some(posts), wake, thread: Some(thread) })
    }

    pub(super) fn post(&self, post: Post) {
        // The thread ends only when this is dropped.
        if let Some(posts) = &self.posts {
            let _ = posts.send(post);
        }
        self.ring();
    }

    fn ring(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Carriers {
    fn drop(&mut self) {
        self.posts = None;
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Thread {
    event_sender: EventSender<Event>,
    inbox: Receiver<Post>,
    wake: Arc<OwnedFd>,
    watched: BTreeMap<String, (Box<Watch>, Arc<Mailbox>)>,
    /// Ports of each switch, as last seen.
    known: BTreeMap<String, BTreeMap<String, bool>>,
    /// Changes that the shell was too busy for: only the newest of each port, so that the ports bound them.
    unreported: BTreeMap<(String, String), bool>,
}

impl Thread {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
            loop {
                match self.inbox.try_recv() {
                    Ok(post) => self.take(post),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            for switch in ready {
                self.hear(&switch);
            }
            self.send_events();
        }
    }

    /// Switches with changes; none after a post, or when only the pause is over.
    fn wait(&self) -> Vec<String> {
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.watched.values().map(|(watch, _)| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
        let pause = Timespec { tv_sec: 0, tv_nsec: TELL_PAUSE.subsec_nanos().into() };
        let limit = (!self.unreported.is_empty()).then_some(&pause);
        if poll(&mut fds, limit).is_err() {
            // Interrupted.
            return Vec::new();
        }
        let events = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        self.watched.keys().zip(events).filter(|(_, event)| *event).map(|(switch, _)| switch.clone()).collect()
    }

    fn take(&mut self, post: Post) {
        match post {
            Post::Open { switch, watch, ports, mailbox } => {
                self.watched.insert(switch.clone(), (watch, mailbox));
                self.known.insert(switch.clone(), ports);
                self.again(&switch);
            }
            Post::Again { switch } => self.again(&switch),
        }
    }

    fn again(&mut self, switch: &str) {
        for (port, up) in self.known.get(switch).into_iter().flatten() {
            self.unreported.insert((switch.to_owned(), port.clone()), *up);
        }
    }

    fn hear(&mut self, switch: &str) {
        let Some((watch, _)) = self.watched.get_mut(switch) else { return };
        match watch.changes() {
            Ok(changes) => {
                for CarrierChange { port, carrier } in changes {
                    tracing::debug!("{switch}: port {port} {} its carrier", if carrier { "has" } else { "lost" });
                    self.known.entry(switch.to_owned()).or_default().insert(port.clone(), carrier);
                    self.unreported.insert((switch.to_owned(), port), carrier);
                }
            }
            Err(error) => {
                tracing::warn!("{switch}: its carriers are watched anew, because of: {error}");
                if let Some((_, mailbox)) = self.watched.remove(switch) {
                    mailbox.rewatch();
                }
            }
        }
    }

    fn send_events(&mut self) {
        while let Some(((switch, port), up)) = self.unreported.pop_first() {
            let event = Event::Carrier { switch: switch.clone(), port: port.clone(), up };
            match self.event_sender.send(event) {
                Ok(()) => {}
                Err(Refused::Busy) => {
                    self.unreported.insert((switch, port), up);
                    return;
                }
                // The shell is gone.
                Err(_) => self.unreported.clear(),
            }
        }
    }
}
