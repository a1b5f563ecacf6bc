// SPDX-License-Identifier: Apache-2.0
//! An agent on loopback, and connections to it that send anything.

use std::{
    fs,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    },
};
use serde_json::{Value, json};

/// Longer than any answer takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Longest message, bytes.
const MESSAGE_MAX: usize = 64 << 10;
/// Users without privileges.
pub(crate) const USER: u32 = 61_001;
pub(crate) const OTHER_USER: u32 = 61_002;

/// One agent, alone in its cluster.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) dir: tempfile::TempDir,
    /// The agent runs in a network namespace, which ends with it.
    apart: bool,
}

/// An interface for a receive program: loopback takes none.
const APART: &str = "ip link set lo up && ip link add p0 type veth peer name p1 && ip addr add 10.70.1.1/24 dev p0 \
                     && ip link set p0 up && ip link set p1 up && exec \"$@\"";

impl Agent {
    /// An agent with UDP and pidfds, on loopback.
    pub(crate) fn start(port: u16) -> Self {
        Self::configured(port, "")
    }

    /// The same, with more in its configuration.
    pub(crate) fn configured(port: u16, more: &str) -> Self {
        Self::begin(port, more, false)
    }

    /// An agent with XDP and the exit hook, so that sessions are memory and rings of BPF. Root only.
    pub(crate) fn start_by_bpf(port: u16) -> Self {
        Self::begin(port, "", true)
    }

    fn begin(port: u16, more: &str, apart: bool) -> Self {
        let (receive, exit_watch, address) =
            if apart { ("xdp", "bpf", "10.70.1.1") } else { ("udp", "pidfd", "127.70.1.1") };
        let dir = tempfile::tempdir().expect("a directory");
        // Other users have to reach the socket.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("cluster.key"), "000102030405060708090a0b0c0d0e0f").expect("written");
        fs::set_permissions(path("cluster.key"), fs::Permissions::from_mode(0o400)).expect("mode");
        let toml = format!(
            "[cluster]\nkey_file = \"cluster.key\"\nheartbeat_us = 2000\ntimeout_us = 1000000\nport = {port}\n\
             [agent]\nreceive = \"{receive}\"\nexit_watch = \"{exit_watch}\"\ncalibrate_ms = 10\n[[plane]]\n\
             [[member]]\nname = \"h1\"\naddresses = [\"{address}\"]\n{more}"
        );
        fs::write(path("fide.toml"), toml).expect("written");
        let agent = Self { child: Self::spawn(dir.path(), apart), dir, apart };
        agent.await_socket();
        agent
    }

    pub(crate) fn spawn(dir: &Path, apart: bool) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log"));
        let mut command = if apart {
            let mut command = Command::new("unshare");
            command.args(["--net", "sh", "-c", APART, "sh", env!("CARGO_BIN_EXE_fide")]);
            command
        } else {
            Command::new(env!("CARGO_BIN_EXE_fide"))
        };
        command
            .args(["agent", "--host", "h1", "--force-timeout", "--config"])
            .arg(dir.join("fide.toml"))
            .arg("--runtime-dir")
            .arg(dir)
            .arg("--state-dir")
            .arg(dir.join("state"))
            .stdout(Stdio::null())
            .stderr(log.expect("log"))
            .spawn()
            .expect("started")
    }

    fn await_socket(&self) {
        let until = Instant::now() + LIMIT;
        while Raw::try_connect(&self.socket()).is_err() {
            assert!(Instant::now() < until, "no agent: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the agent with SIGKILL, and starts another one.
    pub(crate) fn kill_and_start(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
        self.child = Self::spawn(self.dir.path(), self.apart);
        self.await_socket();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn connect(&self) -> Raw {
        Raw::try_connect(&self.socket()).expect("connected")
    }

    /// Asserts that the agent answers, that its loop runs, and that a process' end is notified.
    pub(crate) fn serves(&self) {
        let turns = |status: &Value| status["counters"]["turns"].as_u64();
        let mut raw = self.connect();
        let before = raw.ok(json!({ "op": "status" }));
        std::thread::sleep(Duration::from_millis(20));
        let after = raw.ok(json!({ "op": "status" }));
        assert!(turns(&after) > turns(&before), "the loop turns: {before} {after}");
        assert_eq!(after["fenced"], json!(false), "{after}");
        let (_, fds) = raw.hello();
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let name = format!("seen-{}", child.id());
        raw.ok(json!({ "op": "join", "name": name, "pid": child.id() }));
        raw.ok(json!({ "op": "monitor", "target": format!("{name}@h1") }));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        readable(fds[2].as_fd(), LIMIT);
        let until = Instant::now() + LIMIT;
        loop {
            let ended = raw.ok(json!({ "op": "status" }));
            if ended["processes"].as_array().is_some_and(|all| all.iter().all(|one| one["name"] != json!(name))) {
                return;
            }
            assert!(Instant::now() < until, "the end of {name} was not seen: {ended}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let timeout = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
    rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// The outcome of a message.
#[derive(Debug)]
pub(crate) enum Got {
    Answer(Value, Vec<OwnedFd>),
    /// The agent closed the connection.
    Closed,
    /// No answer within the limit.
    Nothing,
}

/// A connection that follows no protocol.
pub(crate) struct Raw {
    pub(crate) fd: OwnedFd,
    next: u64,
}

impl Raw {
    pub(crate) fn try_connect(path: &Path) -> rustix::io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self { fd, next: 0 })
    }

    /// Sends these bytes with these descriptors; never waits.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
    }

    pub(crate) fn receive(&self, limit: Duration) -> Got {
        if !readable(self.fd.as_fd(), limit) {
            return Got::Nothing;
        }
        let mut buffer = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let Ok(message) = rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)
        else {
            return Got::Closed;
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        match serde_json::from_slice(&buffer[..message.bytes]) {
            Ok(answer) => Got::Answer(answer, fds),
            Err(_) if message.bytes == 0 => Got::Closed,
            Err(error) => panic!("the agent's answer is no JSON: {error}"),
        }
    }

    /// Sends a request and returns its answer.
    pub(crate) fn ask(&mut self, mut request: Value) -> Got {
        self.next += 1;
        request["id"] = json!(self.next);
        if self.send(request.to_string().as_bytes(), &[]).is_err() {
            return self.receive(Duration::ZERO);
        }
        loop {
            match self.receive(LIMIT) {
                Got::Answer(answer, _) if answer["id"] != request["id"] && answer["id"] != json!(0) => {}
                other => return other,
            }
        }
    }

    /// The answer to a request that must succeed.
    pub(crate) fn ok(&mut self, request: Value) -> Value {
        match self.ask(request.clone()) {
            Got::Answer(answer, _) if answer.get("ok").is_some() => answer["ok"].clone(),
            other => panic!("{request}: {other:?}"),
        }
    }

    /// The refusal of a request that must be refused.
    pub(crate) fn refused(&mut self, request: Value) -> Value {
        match self.ask(request.clone()) {
            Got::Answer(answer, _) if answer.get("error").is_some() => answer["error"].clone(),
            other => panic!("{request}: {other:?}"),
        }
    }

    /// A session: alive table, region, events.
    pub(crate) fn hello(&mut self) -> (Value, Vec<OwnedFd>) {
        match self.ask(json!({ "op": "hello", "protocol": 2, "program": "hostile" })) {
            Got::Answer(answer, fds) if answer.get("ok").is_some() => (answer["ok"].clone(), fds),
            other => panic!("hello: {other:?}"),
        }
    }
}

/// Runs `act` as another user; `None` if that is not allowed.
pub(crate) fn as_user<T: Send + 'static>(uid: u32, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return None;
    }
    let thread = std::thread::spawn(move || {
        // SAFETY: numbers only; called by number, they change this thread alone, which ends with `act`.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()),
                libc::syscall(libc::SYS_setresgid, uid, uid, uid),
                libc::syscall(libc::SYS_setresuid, uid, uid, uid),
            ]
        };
        assert_eq!(results, [0; 3], "{}", std::io::Error::last_os_error());
        act()
    });
    Some(thread.join().expect("as another user"))
}
