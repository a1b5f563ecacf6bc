// SPDX-License-Identifier: Apache-2.0
//! Stock redis-servers on the hosts of a testbed, in a group or not. Clients reach them at Unix sockets, from any
//! namespace.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use fide_sys::clock::mono_ns;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Agents, Error, Host, Result, retry_until};

/// The port of each server, in its own namespace.
pub const REDIS_PORT: u16 = 6379;
/// A server answers within this after its start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// A server ends within this.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How a server is part of a group.
#[derive(Debug, Clone)]
pub struct RedisGroup {
    /// `fide_redis.so`.
    pub module: PathBuf,
    /// `hsuc` or `huc`.
    pub protocol: String,
    /// Names of the group's hosts.
    pub hosts: Vec<String>,
    /// Further arguments of the module.
    pub arguments: Vec<String>,
}

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct RedisSpec {
    /// None: that of Debian's redis-tools, which installs no service.
    pub program: Option<PathBuf>,
    /// None: a server of its own.
    pub group: Option<RedisGroup>,
    /// Further arguments.
    pub arguments: Vec<String>,
}

/// A running server, killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    dir: PathBuf,
}

impl RedisServer {
    /// The server of Debian's redis-tools, if it is called redis-server.
    pub const DEBIANS: &str = "/usr/bin/redis-check-rdb";

    /// Starts a server in a host's namespace, with its files in a directory of that host.
    ///
    /// # Errors
    /// It does not start; its log is part of the error.
    pub fn start(host: &Host, agents: &Agents, spec: &RedisSpec) -> Result<Self> {
        let dir = agents.dir(host.index()).join("redis");
        fs::create_dir_all(&dir).map_err(|why| Error::io(format!("making {}", dir.display()), why))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("redis.log"))
            .map_err(|why| Error::io("the log of redis-server", why))?;
        let errors = log.try_clone().map_err(|why| Error::io("the log of redis-server", why))?;
        let _ = fs::remove_file(dir.join("redis.sock"));
        let program = match &spec.program {
            Some(program) => program.clone(),
            None => server_program(&dir)?,
        };
        let mut command = host.command(&program);
        command
            .args(["--port", &REDIS_PORT.to_string(), "--bind", "0.0.0.0", "--protected-mode", "no"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocketperm", "700"])
            .arg("--unixsocket")
            .arg(dir.join("redis.sock"))
            .arg("--dir")
            .arg(&dir)
            .args(&spec.arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        if let Some(group) = &spec.group {
            command
                .arg("--loadmodule")
                .arg(&group.module)
                .arg("cluster")
                .arg(agents.dir(host.index()).join("fide.toml"))
                .args(["protocol", &group.protocol, "hosts", &group.hosts.join(",")])
                .arg("key")
                .arg(agents.key_file())
                .arg("socket")
                .arg(agents.socket(host.index()))
                .arg("state-dir")
                .arg(dir.join("group"))
                .args(&group.arguments);
        }
        let child = command.spawn().map_err(|why| Error::io("starting redis-server", why))?;
        let mut server = Self { child, dir };
        let ready = retry_until("redis-server", START_LIMIT, || {
            match server.child.try_wait() {
                // Nothing more will come.
                Ok(Some(status)) => Ok(Err(format!("it has ended: {status}"))),
                _ => server.command(&["PING"]).map(|_| Ok(())),
            }
        });
        let ready = ready.map_err(|why| why.to_string()).and_then(|ended| ended);
        ready.map_err(|why| {
            Error::io(
                format!("redis-server on {}: {}", host.name(), server.log()),
                std::io::Error::other(why.to_string()),
            )
        })?;
        Ok(server)
    }

    /// Where clients connect.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    /// Its own directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("redis.log")).unwrap_or_default()
    }

    /// Executes a command on a connection of its own, and returns the reply as Redis writes it.
    ///
    /// # Errors
    /// No connection, or no whole reply within two seconds.
    pub fn command(&self, args: &[&str]) -> std::result::Result<String, String> {
        let limit = Duration::from_secs(2);
        let ask = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(limit))?;
            let mut request = format!("*{}\r\n", args.len());
            for arg in args {
                request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
            }
            // QUIT ends the connection, and with it the reply.
            request.push_str("*1\r\n$4\r\nQUIT\r\n");
            stream.write_all(request.as_bytes())?;
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply)?;
            let reply = String::from_utf8_lossy(&reply).into_owned();
            reply
                .strip_suffix("+OK\r\n")
                .map(str::to_owned)
                .ok_or_else(|| std::io::Error::other(format!("a reply without an end: {reply:?}")))
        };
        ask().map_err(|why| why.to_string())
    }

    fn signal(&self, signal: Signal) -> u64 {
        let at_ns = mono_ns();
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
        at_ns
    }

    /// SIGKILL. Returns the CLOCK_MONOTONIC time just before.
    pub fn kill(&mut self) -> u64 {
        let at_ns = self.signal(Signal::KILL);
        let _ = self.child.wait();
        at_ns
    }

    /// SIGSTOP.
    pub fn pause(&self) -> u64 {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> u64 {
        self.signal(Signal::CONT)
    }

    /// Whether it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

/// Debian's redis-check-rdb is the server, if it is called so.
fn server_program(dir: &Path) -> Result<PathBuf> {
    let link = dir.join("redis-server");
    if !link.exists() {
        std::os::unix::fs::symlink(RedisServer::DEBIANS, &link)
            .map_err(|why| Error::io(format!("making {}", link.display()), why))?;
    }
    if !link.exists() {
        return Err(Error::MissingProgram {
            name: RedisServer::DEBIANS.into(),
            looked: "/usr/bin".into(),
            hint: "install Debian's redis-tools; `make setup` does".into(),
        });
    }
    Ok(link)
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let until = Instant::now() + END_LIMIT;
        while self.child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
