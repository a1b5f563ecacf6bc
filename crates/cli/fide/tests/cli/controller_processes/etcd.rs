// SPDX-License-Identifier: Apache-2.0
//! A real etcd on loopback.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fide_controller::etcd::{Client, Config};
use fide_testbed::retry_until;

use super::common::{LIMIT, Running, free};

pub(crate) struct Etcd {
    program: PathBuf,
    data: tempfile::TempDir,
    client: String,
    peer: String,
    pub(crate) running: Option<Running>,
}

impl Etcd {
    /// `None`, with the reason printed, if there is no etcd.
    pub(crate) fn start() -> Option<Etcd> {
        let in_path = std::env::var_os("PATH").into_iter().flat_map(|p| std::env::split_paths(&p).collect::<Vec<_>>());
        let named = std::env::var_os("FIDE_ETCD").map(PathBuf::from);
        let Some(program) = named.or_else(|| in_path.map(|dir| dir.join("etcd")).find(|path| path.is_file())) else {
            println!("skipped: no etcd in PATH or FIDE_ETCD (apt-get install etcd-server)");
            return None;
        };
        let [client, peer] = [free(), free()].map(|address| format!("http://{address}"));
        let data = tempfile::tempdir().expect("a directory");
        let mut etcd = Etcd { program, data, client, peer, running: None };
        etcd.run();
        Some(etcd)
    }

    /// The section of a controller's file.
    pub(crate) fn section(&self) -> String {
        format!("[etcd]\nendpoints = [\"{}\"]\nttl_s = 2\ntimeout_ms = 500", self.client)
    }

    /// The address of etcd.
    pub(crate) fn address(&self) -> SocketAddr {
        self.client.trim_start_matches("http://").parse().expect("an address")
    }

    /// Starts etcd (again) with its data, and waits until it answers.
    pub(crate) fn run(&mut self) {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .arg("--data-dir")
            .arg(self.data.path())
            .args(["--listen-client-urls", &self.client, "--advertise-client-urls", &self.client])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", &format!("default={}", self.peer)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.running = Some(Running(command.spawn().expect("etcd")));
        let config = Config { endpoints: vec![self.client.clone()], tls: None, timeout: Duration::from_millis(500) };
        let client = Client::new(&config).expect("a client");
        retry_until("etcd", LIMIT, || client.get("/").map_err(|error| error.to_string())).expect("etcd");
    }
}
