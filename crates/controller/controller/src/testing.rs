// SPDX-License-Identifier: Apache-2.0
//! For tests: a real etcd, children that are killed, waiting with a bound.

mod adder;

pub(crate) use adder::{ADD, Adder, ODD, TOTAL, watcher};

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::etcd::{Client, Config, TlsFiles};
use crate::pki;

/// Nothing a test waits for takes longer on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `probe` until it gives something.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Opens a file that was just closed here. Another test may start a child meanwhile, which has all our files,
/// and so their locks, for a moment.
pub(crate) fn reopen(path: &std::path::Path) -> crate::store::Redb {
    eventually("the file is free", || match crate::store::Redb::open(path) {
        Err(crate::store::Error::InUse { .. }) => None,
        other => Some(other.unwrap()),
    })
}

/// A child of this test; killed when dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, signal).unwrap();
        }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// This test program again, to run only `test`, which finds `value` in the environment variable [`CHILD`].
/// Its output on standard error comes line by line.
pub(crate) fn respawn(test: &str, value: &str) -> (Killed, Lines) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(CHILD, value)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (tell, lines) = channel();
    let output = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
    (Killed(child), Lines(lines))
}

pub(crate) const CHILD: &str = "FIDE_TEST_CHILD";

/// In a test that is only a child: what its parent wants, or nothing if it is run by itself.
pub(crate) fn as_child() -> Option<String> {
    let value = std::env::var(CHILD).ok()?;
    // It must not outlive a parent that is killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    Some(value)
}

/// As a child: says a line, whole even if it is killed meanwhile.
pub(crate) fn say(line: String) {
    use std::io::Write;
    std::io::stderr().write_all((line + "\n").as_bytes()).unwrap();
}

pub(crate) struct Lines(Receiver<String>);

impl Lines {
    /// The next line, waiting for it; `None` after the last.
    pub(crate) fn next(&self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("in vain: a line from the child"),
        }
    }

    /// The first line that begins with `prefix`; what follows it.
    pub(crate) fn find(&self, prefix: &str) -> String {
        let mut seen = Vec::new();
        while let Some(line) = self.next() {
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.trim().to_owned();
            }
            seen.push(line);
        }
        panic!("the child ended without `{prefix}`, it said: {seen:#?}");
    }
}

/// A real etcd on loopback; its data goes with it.
pub(crate) struct EtcdServer {
    program: PathBuf,
    /// Directories of [`crate::pki`], of the server and of its clients, for https.
    tls: Option<[PathBuf; 2]>,
    data: tempfile::TempDir,
    ports: [u16; 2],
    child: Option<Killed>,
}

impl EtcdServer {
    /// `None`, with the reason printed, where there is no etcd.
    pub(crate) fn start() -> Option<EtcdServer> {
        EtcdServer::start_with(None)
    }

    pub(crate) fn start_with(tls: Option<[PathBuf; 2]>) -> Option<EtcdServer> {
        let in_path = std::env::var_os("PATH").into_iter().flat_map(|p| std::env::split_paths(&p).collect::<Vec<_>>());
        let named = std::env::var_os("FIDE_ETCD").map(PathBuf::from);
        let Some(program) = named.or_else(|| in_path.map(|dir| dir.join("etcd")).find(|path| path.is_file())) else {
            eprintln!("skipped: no etcd in PATH or FIDE_ETCD (apt-get install etcd-server)");
            return None;
        };
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = [free(), free()].map(|socket| socket.local_addr().unwrap().port());
        let mut server = EtcdServer { program, tls, data: tempfile::tempdir().unwrap(), ports, child: None };
        server.run();
        Some(server)
    }

    pub(crate) fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports[0])
    }

    pub(crate) fn config(&self) -> Config {
        let tls = self.tls.as_ref().map(|[_, member]| TlsFiles {
            authorities: member.join(pki::CA_FILE),
            client: Some((member.join(pki::CERTIFICATE_FILE), member.join(pki::KEY_FILE))),
        });
        Config { endpoints: vec![self.endpoint()], tls, timeout: Duration::from_millis(500) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.config()).unwrap()
    }

    /// Starts it (again) with the data there is, and waits until it answers.
    pub(crate) fn run(&mut self) {
        let (client_url, peer_url) = (self.endpoint(), format!("http://127.0.0.1:{}", self.ports[1]));
        // It is not to outlive a test that is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .arg("--data-dir")
            .arg(self.data.path())
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some([member, _]) = &self.tls {
            command.arg("--client-cert-auth").arg("--cert-file").arg(member.join(pki::CERTIFICATE_FILE));
            command
                .arg("--key-file")
                .arg(member.join(pki::KEY_FILE))
                .arg("--trusted-ca-file")
                .arg(member.join(pki::CA_FILE));
        }
        self.child = Some(Killed(command.spawn().unwrap()));
        let client = self.client();
        eventually("etcd answers", || client.get("/").ok());
    }

    pub(crate) fn kill(&mut self) {
        self.child = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.child.as_ref().unwrap().signal(signal);
    }
}

pub(crate) fn client(endpoint: &str) -> Client {
    let config = Config { endpoints: vec![endpoint.into()], tls: None, timeout: Duration::from_millis(500) };
    Client::new(&config).unwrap()
}
