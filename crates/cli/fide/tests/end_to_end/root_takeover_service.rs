// SPDX-License-Identifier: Apache-2.0
//! A takeover as systemd sees it: which process it believes, under `NotifyAccess=main`, and the order of notifications.

use std::{
    fs,
    io::IoSliceMut,
    mem::MaybeUninit,
    os::unix::net::UnixDatagram,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, end_within, retry_until};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(20);
/// An agent that is believed feeds its watchdog within this time.
const WATCHDOG_US: u32 = 400_000;

/// The service manager, with the behaviour that `systemd.service(5)` describes for `NotifyAccess=main`.
struct Manager {
    socket: UnixDatagram,
    main: u32,
    /// Sender, text, and whether it was believed.
    heard: Vec<(u32, String, bool)>,
}

impl Manager {
    fn hear(&mut self) {
        loop {
            let mut bytes = [0; 512];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let Ok(message) = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::DONTWAIT) else { return };
            let sender = control.drain().find_map(|part| match part {
                RecvAncillaryMessage::ScmCredentials(who) => Some(who.pid.as_raw_nonzero().get().cast_unsigned()),
                _ => None,
            });
            let sender = sender.expect("the kernel says who sent it");
            let text = String::from_utf8_lossy(&bytes[..message.bytes]).into_owned();
            let believed = sender == self.main;
            let main = text.lines().find_map(|line| line.strip_prefix("MAINPID=")?.parse().ok());
            if let (true, Some(main)) = (believed, main) {
                self.main = main;
            }
            self.heard.push((sender, text, believed));
        }
    }

    /// Waits until the present main process has sent `wanted`.
    fn until(&mut self, wanted: &str) {
        let begun = Instant::now();
        loop {
            self.hear();
            if self.heard.iter().any(|(sender, text, _)| *sender == self.main && text.contains(wanted)) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{} did not say {wanted}: {:?}", self.main, self.heard);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Started as from a shell: it knows nothing of the service.
fn successor(bed: &Testbed, agents: &Agents) -> Child {
    let dir = agents.dir(1);
    let log = fs::File::options().append(true).create(true).open(dir.join("successor.log")).expect("log");
    let mut command = bed.host(1).command(env!("CARGO_BIN_EXE_fide"));
    command.args(["agent", "--takeover", "--host", bed.host(1).name()]);
    for (option, file) in [("--config", "fide.toml"), ("--runtime-dir", ""), ("--state-dir", "state")] {
        command.arg(option).arg(dir.join(file));
    }
    command.env_remove("NOTIFY_SOCKET").stderr(Stdio::from(log)).spawn().expect("a successor")
}

#[test]
fn root_systemd_follows_a_takeover() {
    if let Err(why) = fide_testbed::supported() {
        println!("skipped: {why}");
        return;
    }
    let bed = Testbed::build(Spec::hosts(1)).expect("testbed");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    sockopt::set_socket_passcred(&socket, true).expect("set");
    let env = [("NOTIFY_SOCKET", path.display().to_string()), ("WATCHDOG_USEC", WATCHDOG_US.to_string())];
    let spec = AgentsSpec {
        program: vec![env!("CARGO_BIN_EXE_fide").into()],
        env: env.map(|(key, value)| (key.to_owned(), value)).into(),
        ..AgentsSpec::default()
    };
    let mut agents = Agents::start(&bed, spec).expect("agents");
    let mut manager = Manager { socket, main: agents.pid(1).expect("an agent"), heard: Vec::new() };
    manager.until("WATCHDOG=1");
    let mut successors: Vec<Child> = Vec::new();
    for round in 0..3 {
        let before = manager.main;
        successors.push(successor(&bed, &agents));
        let log = || fs::read_to_string(agents.dir(1).join("successor.log")).unwrap_or_default();
        retry_until("the word of the old agent", LIMIT, || {
            manager.hear();
            if manager.main == before { Err(format!("round {round}: {:?} {}", manager.heard, log())) } else { Ok(()) }
        })
        .expect("it says who comes after it");
        assert_eq!(manager.main, successors[round].id(), "{:?}", manager.heard);
        // The manager believes it as soon as it sends anything, and it continues to feed the watchdog.
        manager.until("READY=1");
        manager.until("WATCHDOG=1");
        // The old one sends nothing more, and its end affects nothing.
        let ended = match round {
            0 => agents.await_end(1, LIMIT).expect("it ends"),
            _ => end_within(&mut successors[round - 1], LIMIT).expect("it ends"),
        };
        assert!(ended.success(), "{ended}");
        assert!(agents.socket(1).exists());
        assert!(agents.ask(1, "status", json!({})).is_ok());
    }
    assert!(manager.heard.iter().all(|(.., believed)| *believed), "{:?}", manager.heard);
    assert!(!manager.heard.iter().any(|(_, text, _)| text.contains("STOPPING")), "{:?}", manager.heard);
    for child in &mut successors {
        let _ = child.kill();
        child.wait().expect("ended");
    }
}
