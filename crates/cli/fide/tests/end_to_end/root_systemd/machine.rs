// SPDX-License-Identifier: Apache-2.0
//! systemd as the first process of namespaces of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use fide_testbed::retry_until;

/// Bound of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const SYSTEMD: &str = "/lib/systemd/systemd";
const UNIT: &str = "fide-agent.service";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/root_systemd/machine.sh");
const RACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/fide-rack.service");
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/fide-agent.service");

/// Dropped, or when the test dies of anything: its processes are killed.
pub(crate) struct Machine {
    unshare: Child,
    /// systemd, as this host knows it.
    pid: u32,
    group: PathBuf,
    _dir: tempfile::TempDir,
}

/// Why this host cannot run such a machine.
fn missing() -> Option<String> {
    if let Err(why) = fide_testbed::supported() {
        return Some(why.to_string());
    }
    if !Path::new(SYSTEMD).exists() {
        return Some(format!("there is no {SYSTEMD} (Debian: systemd)"));
    }
    let is_there = |name: &str| Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok();
    if let Some(program) = ["unshare", "nsenter", "setpriv"].into_iter().find(|name| !is_there(name)) {
        return Some(format!("there is no {program} (Debian: util-linux)"));
    }
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    ["overlay", "cgroup2"]
        .into_iter()
        .find(|kind| !kinds.split_whitespace().any(|word| word == *kind))
        .map(|kind| format!("this kernel has no {kind}"))
}

/// Where control groups of version 2 are mounted.
fn cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut found = mounts.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup2"));
    found.next().and_then(|line| line.split(' ').nth(1)).map(PathBuf::from)
}

impl Machine {
    /// `None`, with the reason printed, if this host cannot run one.
    pub(crate) fn boot() -> Option<Self> {
        if let Some(why) = missing() {
            println!("skipped: {why}");
            return None;
        }
        let group = cgroup2().map(|root| root.join(format!("fide-systemd-{}", std::process::id())));
        let Some(group) = group.filter(|group| fs::create_dir(group).is_ok()) else {
            println!("skipped: no control group of version 2 can be made here");
            return None;
        };
        let dir = tempfile::tempdir().expect("a directory");
        // The kernel kills the machine when this thread ends.
        let begin = r#"echo 0 > "$0/cgroup.procs"; exec setpriv --pdeathsig KILL \
            unshare --mount --pid --fork --kill-child --ipc --uts --net --cgroup sh "$@""#;
        let unshare = Command::new("sh")
            .args(["-c", begin])
            .arg(&group)
            .arg(SCRIPT)
            .arg(dir.path())
            .args([env!("CARGO_BIN_EXE_fide"), PACKAGING, RACK])
            .arg(std::env::current_exe().expect("this test").with_file_name("libfide_rack_preload.so"))
            .stdin(Stdio::null())
            .spawn()
            .expect("a shell");
        let mut machine = Self { pid: 0, unshare, group, _dir: dir };
        let mut ended = None;
        let booted = retry_until("systemd", LIMIT, || {
            ended = machine.unshare.try_wait().ok().flatten();
            if ended.is_some() {
                return Ok(());
            }
            machine.pid = machine.first_child().ok_or("no first process yet")?;
            let name = fs::read_to_string(format!("/proc/{}/comm", machine.pid)).map_err(|e| e.to_string())?;
            // systemd answers, whatever its state.
            let state = machine.run(&["systemctl", "is-system-running"]);
            let said = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            match (name.trim(), said.as_str()) {
                ("systemd", "running" | "starting" | "degraded") => Ok(()),
                (name, _) => Err(format!("{name}: {said} {}", String::from_utf8_lossy(&state.stderr))),
            }
        });
        assert!(ended.is_none(), "the machine ended with {ended:?}, see above");
        booted.expect("it boots");
        Some(machine)
    }

    fn first_child(&self) -> Option<u32> {
        let of = self.unshare.id();
        let mut all =
            fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let parent = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat[stat.rfind(')')? + 2..].split(' ').nth(1)?.parse::<u32>().ok()
        };
        all.find(|pid| parent(*pid) == Some(of))
    }

    fn enter(&self, command: &[&str]) -> Command {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.pid.to_string(), "--all", "env", "-i", "PATH=/usr/bin:/usr/sbin"]).args(command);
        enter
    }

    pub(crate) fn run(&self, command: &[&str]) -> Output {
        self.enter(command).output().expect("nsenter")
    }

    pub(crate) fn systemctl(&self, verb: &str) -> bool {
        self.run(&["systemctl", verb, UNIT]).status.success()
    }

    /// A property of the service.
    pub(crate) fn show(&self, property: &str) -> String {
        let out = self.run(&["systemctl", "show", "--value", "--property", property, UNIT]);
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    pub(crate) fn restarts(&self) -> u32 {
        self.show("NRestarts").parse().expect("a number")
    }

    /// Waits until the service is active with such a main process, and its agent answers.
    pub(crate) fn main_pid(&self, what: &str, wanted: impl Fn(u32) -> bool) -> u32 {
        let found = retry_until(what, LIMIT, || {
            let (state, pid) = (self.show("ActiveState"), self.show("MainPID"));
            let status = self.run(&["fide", "status"]);
            match pid.parse() {
                Ok(pid) if pid != 0 && state == "active" && status.status.success() && wanted(pid) => Ok(pid),
                _ => Err(format!("{state}, main process {pid}, {}", String::from_utf8_lossy(&status.stderr))),
            }
        });
        found.unwrap_or_else(|why| panic!("{why}: {}", self.log()))
    }

    /// Processes of the service's control group.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let out = self.run(&["cat", &format!("/sys/fs/cgroup/fide.slice/{UNIT}/cgroup.procs")]);
        String::from_utf8_lossy(&out.stdout).lines().map(|line| line.parse().expect("a pid")).collect()
    }

    pub(crate) fn incarnation(&self) -> String {
        let out = self.run(&["fide", "status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        status["incarnation"].to_string()
    }

    /// Takes over as from a shell: outside of the service's control group, and without its environment. The
    /// shell stays, since systemd takes a process whose parent it cannot see for its own child.
    pub(crate) fn take_over(&self) -> Child {
        let agent = "FIDE_FAULTS=1 fide agent --config /etc/fide/fide.toml --takeover >> /var/log/agent.log 2>&1; true";
        self.enter(&["sh", "-c", agent]).spawn().expect("nsenter")
    }

    pub(crate) fn signal(&self, pid: u32, name: &str) {
        assert!(self.run(&["kill", "-s", name, &pid.to_string()]).status.success());
    }

    /// Plants a fault that agents of debug builds have.
    pub(crate) fn plant(&self, fault: &str) {
        assert!(self.run(&["sh", "-c", &format!("echo {fault} > /var/lib/fide/fault")]).status.success());
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.run(&["tail", "-n", "40", "/var/log/agent.log"]).stdout).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // This ends the first process, and with it all others.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let gone = retry_until("the machine's control groups", LIMIT, || remove(&self.group));
        if let Err(why) = gone {
            eprintln!("{why}");
        }
    }
}

/// Removes a control group and its nested groups.
fn remove(group: &Path) -> Result<(), String> {
    let Ok(entries) = fs::read_dir(group) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove(&entry.path())?;
    }
    fs::remove_dir(group).map_err(|e| format!("{}: {e}", group.display()))
}
