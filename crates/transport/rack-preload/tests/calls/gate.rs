// SPDX-License-Identifier: Apache-2.0
//! Stands between a program and the monitor, and keeps what the monitor says until it is to come.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use fide_rack::meet::{
    ask::CONNECT_WAIT,
    wire::{self, FDS_MAX, Received},
};
use fide_sys::seqpacket::{self, Descriptors, Listener, Wait};
use rustix::net::{Shutdown, shutdown};

/// Both ends of one connection are told.
const ENDS: usize = 2;
/// How long the monitor's answers are waited for.
const ANSWERS: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    is_open: bool,
    kept: Vec<(Arc<OwnedFd>, Received)>,
    sockets: Vec<Arc<OwnedFd>>,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

pub(crate) struct Gate {
    state: Shared,
    listener: Arc<Listener>,
    accepts: Option<thread::JoinHandle<()>>,
}

fn send(to: &OwnedFd, message: &Received) -> io::Result<()> {
    let fds: Vec<_> = message.fds.iter().map(std::os::fd::AsFd::as_fd).collect();
    seqpacket::send(to, message.bytes(), &fds)
}

/// Until one of both ends.
fn hands_on(from: &OwnedFd, mut to: impl FnMut(Received) -> io::Result<()>) {
    while let Ok(Some(message)) = wire::receive(from, FDS_MAX) {
        if to(message).is_err() {
            break;
        }
    }
}

fn serves(program: OwnedFd, monitor: &Path, state: &Shared) {
    let Ok(monitor) = seqpacket::connect(monitor, CONNECT_WAIT) else { return };
    let [program, monitor] = [program, monitor].map(Arc::new);
    state.0.lock().unwrap().sockets.extend([&program, &monitor].map(Arc::clone));
    let [of_program, of_monitor] = [&program, &monitor].map(Arc::clone);
    thread::spawn(move || {
        hands_on(&of_program, |message| send(&of_monitor, &message));
        let _ = shutdown(&of_monitor, Shutdown::Both);
    });
    let state = Arc::clone(state);
    thread::spawn(move || {
        hands_on(&monitor, |message| {
            let mut now = state.0.lock().unwrap();
            if now.is_open {
                return send(&program, &message);
            }
            now.kept.push((Arc::clone(&program), message));
            state.1.notify_all();
            Ok(())
        });
        let _ = shutdown(&program, Shutdown::Both);
    });
}

impl Gate {
    /// It listens at `path` as the monitor does at its own.
    pub(crate) fn new(path: &Path, monitor: PathBuf) -> Self {
        let listener = Arc::new(Listener::bind(path, 8, Descriptors::Taken).unwrap());
        let state = Shared::default();
        let (accepted, of) = (Arc::clone(&listener), Arc::clone(&state));
        let accepts = thread::spawn(move || {
            while let Ok(Some(program)) = accepted.accept(Wait::Forever) {
                serves(program, &monitor, &of);
            }
        });
        Self { state, listener, accepts: Some(accepts) }
    }

    /// What was kept comes now, and all else at once.
    pub(crate) fn opens(&self) {
        let state = self.state.0.lock().unwrap();
        let is_early = |state: &mut State| state.kept.len() < ENDS;
        let (mut state, _) = self.state.1.wait_timeout_while(state, ANSWERS, is_early).unwrap();
        state.is_open = true;
        for (program, message) in std::mem::take(&mut state.kept) {
            let _ = send(&program, &message);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.listener.close();
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        for socket in std::mem::take(&mut self.state.0.lock().unwrap().sockets) {
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }
}
