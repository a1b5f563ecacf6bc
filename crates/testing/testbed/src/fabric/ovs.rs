// SPDX-License-Identifier: Apache-2.0
//! One Open vSwitch: a database process and a switch process in the switch's namespace, with their state in
//! the scratch directory.

use crate::node::Node;
use crate::tools::retry_until;
use crate::{Error, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Time limit until a started process listens, and until the switch has its ports.
const START_LIMIT: Duration = Duration::from_secs(20);
const PROGRAMS: [&str; 5] = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"];

/// Whether Open vSwitch is installed here; the error says in one line what is missing.
pub fn ovs_supported() -> Result<()> {
    for program in PROGRAMS {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() || !Path::new(SCHEMA).is_file() {
            return Err(missing(program));
        }
    }
    Ok(())
}

fn missing(program: &str) -> Error {
    Error::MissingProgram {
        name: program.into(),
        looked: format!("PATH, {SCHEMA}"),
        hint: "install Debian's openvswitch-switch (its service need not run)".into(),
    }
}

/// Bridge `br0` with the datapath in user space. Killed when dropped; the reaper kills it too.
#[derive(Debug)]
pub(super) struct Ovs {
    node: Node,
    dir: PathBuf,
    processes: Vec<Child>,
}

impl Ovs {
    /// Starts the switch. Without a controller and without flows it forwards nothing (`fail_mode=secure`).
    pub(super) fn start(node: &Node, dir: &Path, ports: &[String]) -> Result<Ovs> {
        ovs_supported()?;
        fs::create_dir_all(dir).map_err(|e| Error::io(format!("making {}", dir.display()), e))?;
        let mut ovs = Ovs { node: node.clone(), dir: dir.to_path_buf(), processes: Vec::new() };
        ovs.run("ovsdb-tool", &["create", &ovs.path("conf.db"), SCHEMA])?;
        let remote = format!("punix:{}", ovs.path("db.sock"));
        ovs.daemon("ovsdb-server", &[&ovs.path("conf.db"), &format!("--remote={remote}")])?;
        let socket = dir.join("db.sock");
        retry_until("ovsdb-server", START_LIMIT, || {
            socket.exists().then_some(()).ok_or_else(|| format!("no {}", socket.display()))
        })?;
        ovs.vsctl(&["--no-wait", "init"])?;
        ovs.daemon("ovs-vswitchd", &[&format!("unix:{}", ovs.path("db.sock"))])?;
        let mut words = vec!["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure"];
        words.push("protocols=OpenFlow13");
        for port in ports {
            words.extend(["--", "add-port", "br0", port]);
        }
        // This returns once the switch process has applied it.
        ovs.vsctl(&words)?;
        Ok(ovs)
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    /// The target that `ovs-ofctl` talks to.
    pub(super) fn target(&self) -> String {
        format!("unix:{}", self.path("br0.mgmt"))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.node.command(program);
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &self.dir);
        }
        command.stdin(Stdio::null()).current_dir("/");
        command
    }

    fn daemon(&mut self, program: &str, args: &[&str]) -> Result<()> {
        let log = format!("--log-file={}", self.path(&format!("{program}.log")));
        let control = format!("--unixctl={}", self.path(&format!("{program}.ctl")));
        let child = self
            .command(program)
            .args(args)
            .args([&log, &control, "-vconsole:off", "--no-chdir"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| start_error(program, e))?;
        self.processes.push(child);
        Ok(())
    }

    fn vsctl(&self, args: &[&str]) -> Result<()> {
        let (db, timeout) = (format!("--db=unix:{}", self.path("db.sock")), START_LIMIT.as_secs().to_string());
        let mut words = vec![db.as_str(), "--timeout", &timeout];
        words.extend(args);
        self.run("ovs-vsctl", &words)
    }

    /// Stops or allows what a port receives and sends; its carrier stays as it is.
    pub(super) fn silence(&self, port: &str, silent: bool) -> Result<()> {
        let words = if silent { ["no-receive", "no-forward"] } else { ["receive", "forward"] };
        for word in words {
            self.run("ovs-ofctl", &["-O", "OpenFlow13", "mod-port", &self.target(), port, word])?;
        }
        // Cached decisions apply until the switch has revalidated them.
        self.run("ovs-appctl", &["-t", &self.path("ovs-vswitchd.ctl"), "revalidator/wait"])
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        let out = self.command(program).args(args).output().map_err(|e| start_error(program, e))?;
        if out.status.success() {
            return Ok(());
        }
        Err(Error::Tool {
            tool: format!("{program} {}", args.join(" ")),
            status: out.status.to_string(),
            stderr: String::from_utf8_lossy(&out.stderr).trim().to_string(),
            input: String::new(),
        })
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start_error(program: &str, e: std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::NotFound => missing(program),
        _ => Error::io(format!("starting `{program}`"), e),
    }
}
