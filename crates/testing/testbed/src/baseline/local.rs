// SPDX-License-Identifier: Apache-2.0
//! TCP FIN and pidfd: ordinary threads that block until the kernel wakes them.

use crate::node::Host;
use crate::{Error, Result};
use fide_sys::clock::mono_ns;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A notice that has not come yet.
#[derive(Debug)]
pub struct Notice(Receiver<u64>);

impl Notice {
    /// Waits for the notice, at most `limit_ns`. Returns its CLOCK_MONOTONIC time in ns.
    pub fn wait(&self, limit_ns: u64) -> Option<u64> {
        self.0.recv_timeout(Duration::from_nanos(limit_ns)).ok()
    }
}

fn on_thread(name: &str, body: impl FnOnce(Sender<u64>) + Send + 'static) -> Result<Notice> {
    let (tx, rx) = channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || body(tx))
        .map_err(|e| Error::io(format!("starting thread {name}"), e))?;
    Ok(Notice(rx))
}

/// The watcher's end of TCP connections to victims.
#[derive(Debug)]
pub struct TcpFin {
    listener: TcpListener,
    address: SocketAddr,
}

impl TcpFin {
    /// Listens on a host, at a port of the kernel's choice.
    pub fn listen(watcher: &Host, plane: usize) -> Result<Self> {
        let at = (watcher.address(plane), 0);
        let (listener, address) = watcher
            .run_in(|| {
                let l = TcpListener::bind(at)?;
                let a = l.local_addr()?;
                Ok((l, a))
            })?
            .map_err(|e: std::io::Error| Error::io(format!("listening at {at:?}"), e))?;
        Ok(TcpFin { listener, address })
    }

    /// Listens outside of any testbed, at a port of the kernel's choice.
    pub fn listen_here(address: std::net::Ipv4Addr) -> Result<Self> {
        let listening = TcpListener::bind((address, 0)).and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) = listening.map_err(|e| Error::io(format!("listening at {address}"), e))?;
        Ok(TcpFin { listener, address })
    }

    /// Where victims connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the connection of a victim that has one by now, and waits for its end (FIN or RST) on a thread.
    pub fn watch(&self) -> Result<Notice> {
        self.watch_prepared(|| {})
    }

    /// The same, on a thread that runs `prepare` first.
    pub fn watch_prepared(&self, prepare: impl FnOnce() + Send + 'static) -> Result<Notice> {
        let (mut stream, _) = self.listener.accept().map_err(|e| Error::io("accepting a victim's connection", e))?;
        on_thread("tcp-fin", move |tx| {
            prepare();
            let mut byte = [0u8; 1];
            while matches!(stream.read(&mut byte), Ok(n) if n > 0) {}
            let _ = tx.send(mono_ns());
        })
    }
}

/// Waits for the exit of a process of this machine on a thread, by pidfd and epoll.
pub fn watch_pidfd(pid: u32) -> Result<Notice> {
    let what = || format!("watching process {pid}");
    let raw = Pid::from_raw(pid as i32).ok_or_else(|| Error::Spec("process 0 cannot be watched".into()))?;
    let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|e| Error::io(what(), e))?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::io(what(), e))?;
    epoll::add(&set, &pidfd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(|e| Error::io(what(), e))?;
    on_thread("pidfd", move |tx| {
        let _open = pidfd;
        let mut events = Vec::with_capacity(1);
        loop {
            match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => break,
                Err(_) => return,
            }
        }
        let _ = tx.send(mono_ns());
    })
}
