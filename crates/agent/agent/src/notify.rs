// SPDX-License-Identifier: Apache-2.0
//! systemd's `Type=notify`, its watchdog, and the service's main process.
//!
//! systemd believes only the main process (`NotifyAccess=main`). At a takeover that is the old agent, so it
//! names its successor, before the new agent learns that it may begin:
//!
//! ```text
//! new                              old                               systemd
//! ── taken ───────────────────────► its loop stops
//!                                   ── MAINPID=new ─────────────────► believes the old one
//! ◄────────────────────────── done ─  ends                            its end is that of any process
//! ── READY=1, WATCHDOG=1 … ────────────────────────────────────────► believes the new one
//! ```

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// The service manager, as it introduced itself to the first agent of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// `NOTIFY_SOCKET`.
    socket: String,
    /// `WATCHDOG_USEC`.
    watchdog_us: Option<u64>,
}

impl Manager {
    /// From the environment that the service manager has set.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        Self::read(|name| env::var(name).ok(), process::id())
    }

    fn read(of: impl Fn(&str) -> Option<String>, me: u32) -> Option<Self> {
        let socket = of("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())?;
        // Inherited from a service, but meant for another process.
        let others = of("WATCHDOG_PID").is_some_and(|pid| pid.parse() != Ok(me));
        let watchdog_us = if others { None } else { of("WATCHDOG_USEC") };
        let watchdog_us = watchdog_us.and_then(|us| us.parse().ok()).filter(|us| *us > 0);
        Some(Self { socket, watchdog_us })
    }

    /// Sends one datagram; never waits for a manager that does not read.
    fn say(&self, state: &str) -> io::Result<()> {
        let address = match self.socket.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&self.socket)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address).map(drop)
    }
}

/// Notifies the service manager; does nothing without one.
#[derive(Debug)]
pub struct Notify {
    manager: Option<Manager>,
    last: Instant,
}

impl Notify {
    #[must_use]
    pub fn new(manager: Option<Manager>) -> Self {
        Self { manager, last: Instant::now() }
    }

    /// The manager, for the agent that takes over.
    #[must_use]
    pub fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// The agent serves.
    pub fn ready(&self) {
        self.say("READY=1\n");
    }

    /// The agent leaves.
    pub fn stopping(&self) {
        self.say("STOPPING=1\n");
    }

    /// From now on another process is the service's main process.
    pub fn handed_over(&self, pid: u32) {
        self.say(&format!("MAINPID={pid}\n"));
    }

    /// The loop has turned since the last call.
    pub fn alive(&mut self) {
        let Some(limit_us) = self.manager.as_ref().and_then(|manager| manager.watchdog_us) else { return };
        // Half the time it allows, as sd_watchdog_enabled(3) recommends.
        if self.last.elapsed() >= Duration::from_micros(limit_us / 2) {
            self.last = Instant::now();
            self.say("WATCHDOG=1\n");
        }
    }

    fn say(&self, state: &str) {
        let Some(manager) = &self.manager else { return };
        if let Err(error) = manager.say(state) {
            tracing::warn!("the service manager could not be notified of {}: {error}", state.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_read_as_the_service_manager_means_it() {
        let read = |vars: &[(&str, &str)]| {
            let of = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Manager::read(of, 7)
        };
        let manager = |watchdog_us| Some(Manager { socket: "/run/n".into(), watchdog_us });
        let socket = ("NOTIFY_SOCKET", "/run/n");
        let limit = ("WATCHDOG_USEC", "5000");
        assert_eq!(read(&[limit]), None);
        assert_eq!(read(&[("NOTIFY_SOCKET", "")]), None);
        assert_eq!(read(&[socket]), manager(None));
        assert_eq!(read(&[socket, limit]), manager(Some(5000)));
        assert_eq!(read(&[socket, limit, ("WATCHDOG_PID", "7")]), manager(Some(5000)));
        assert_eq!(read(&[socket, limit, ("WATCHDOG_PID", "8")]), manager(None));
        assert_eq!(read(&[socket, ("WATCHDOG_USEC", "0")]), manager(None));
    }

    #[test]
    fn manager_is_notified_in_order_at_a_path_and_by_name() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("notify");
        let name = format!("fide-notify-{}", process::id());
        let named = SocketAddr::from_abstract_name(&name).expect("a name");
        for (manager, socket) in [
            (UnixDatagram::bind(&path).expect("bound"), path.display().to_string()),
            (UnixDatagram::bind_addr(&named).expect("bound"), format!("@{name}")),
        ] {
            let mut notify = Notify::new(Some(Manager { socket, watchdog_us: Some(1) }));
            notify.ready();
            notify.alive();
            notify.handed_over(42);
            notify.stopping();
            for wanted in ["READY=1\n", "WATCHDOG=1\n", "MAINPID=42\n", "STOPPING=1\n"] {
                let mut message = [0; 64];
                let len = manager.recv(&mut message).expect("a message");
                assert_eq!(std::str::from_utf8(&message[..len]), Ok(wanted));
            }
        }
    }

    #[test]
    fn missing_manager_is_harmless() {
        let mut notify = Notify::new(Some(Manager { socket: "/nowhere/notify".into(), watchdog_us: Some(1) }));
        notify.ready();
        notify.alive();
        Notify::new(None).ready();
    }
}
