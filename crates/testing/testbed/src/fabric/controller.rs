// SPDX-License-Identifier: Apache-2.0
//! `fide controller run` in a fabric's controller namespace, with certificates for every host and one operator.

use super::{CableFigures, ControllerFile, Fabric};
use crate::{Error, Result, find_binary, retry_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The address at which a fabric's controller listens.
pub const CONTROLLER_ADDRESS: &str = "10.71.0.254:7420";
/// The operator that has a certificate.
const OPERATOR: &str = "op";
/// Time limit until a started controller accepts connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time limit until a stopped controller has ended.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How to run a controller.
#[derive(Debug, Clone, Default)]
pub struct ControllerSpec {
    /// The `fide` program; `None`: the one found beside the running program.
    pub program: Option<PathBuf>,
    /// Figures of the cables.
    pub figures: CableFigures,
    /// Further sections of the network's file, as they are.
    pub network_extra: String,
    /// Further lines of `[controller]`, as they are.
    pub extra: String,
    /// Environment.
    pub env: Vec<(String, String)>,
}

/// A controller of a fabric; killed when dropped, before its fabric.
#[derive(Debug)]
pub struct Controller {
    program: PathBuf,
    env: Vec<(String, String)>,
    dir: PathBuf,
    restoring: bool,
    child: Option<Child>,
}

impl Controller {
    /// Makes certificates and files under the fabric's scratch directory, starts the controller, and waits
    /// until it accepts connections.
    ///
    /// # Errors
    /// [`Error::Spec`] without a management network; [`Error::Tool`] with what the program said.
    pub fn start(fabric: &Fabric, spec: ControllerSpec) -> Result<Controller> {
        if fabric.controller().is_none() {
            return Err(Error::Spec("a controller needs a management network; build the fabric `.managed()`".into()));
        }
        let program = spec.program.map_or_else(|| find_binary("fide"), Ok)?;
        let dir = fabric.scratch().join("controller");
        fs::create_dir_all(&dir).map_err(|e| Error::io(format!("making {}", dir.display()), e))?;
        let mut controller = Controller { program, env: spec.env, dir, restoring: false, child: None };
        let address = CONTROLLER_ADDRESS.split(':').next().unwrap_or_default();
        let pki = controller.pki();
        controller.fide(["init".as_ref(), pki.as_os_str(), "--address".as_ref(), address.as_ref()])?;
        let hosts = fabric.hosts().iter().map(|host| ("host", host.name()));
        for (role, name) in hosts.chain([("operator", OPERATOR)]) {
            controller.fide(["issue".as_ref(), pki.as_os_str(), role.as_ref(), name.as_ref()])?;
        }
        let topology = controller.dir.join("network.toml");
        let file = fabric.controller_file(&ControllerFile {
            listen: CONTROLLER_ADDRESS,
            credentials: &pki.join("issued/controller.c1"),
            revoked: &pki.join("revoked"),
            store: &controller.dir.join("controller.redb"),
            topology: &topology,
            extra: &spec.extra,
        });
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|e| Error::io(format!("writing {}", path.display()), e))
        };
        write(&topology, &(fabric.spec().network_file(&spec.figures) + &spec.network_extra))?;
        write(&controller.config(), &file)?;
        controller.run(fabric)?;
        Ok(controller)
    }

    /// Starts it again after [`Controller::kill`] or [`Controller::stop`], with the same files.
    pub fn run(&mut self, fabric: &Fabric) -> Result<()> {
        self.kill();
        let node = fabric.controller().ok_or_else(|| Error::Spec("there is no management network".into()))?;
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.map_err(|e| Error::io(format!("opening {}", self.log().display()), e))?;
        let mut command = node.command(&self.program);
        command.args(["controller", "run", "--config"]).arg(self.config()).envs(self.env.iter().cloned());
        command.args(self.restoring.then_some("--restore-switches"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().map_err(|e| Error::io(format!("starting {}", self.program.display()), e))?);
        let address = self.address();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                self.child = None;
                return Err(self.ended(status));
            }
            if node.run_in(|| TcpStream::connect(address))?.is_ok() {
                return Ok(());
            }
            if begun.elapsed() >= START_LIMIT {
                let after_ms = u64::try_from(START_LIMIT.as_millis()).unwrap_or(u64::MAX);
                return Err(Error::NotReady { what: "the controller".into(), after_ms, why: self.log_tail() });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sets whether the next [`Controller::run`] restores the switches at its end.
    pub fn restoring(&mut self, restoring: bool) {
        self.restoring = restoring;
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it by SIGTERM and waits; its exit code must be 0.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|e| Error::io("stopping the controller", e))?;
        }
        let ended = retry_until("the controller to end", STOP_LIMIT, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it runs".to_owned()),
            Err(e) => Err(e.to_string()),
        });
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.ended(status)),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e)
            }
        }
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Where hosts reach it, from their namespaces.
    pub fn address(&self) -> SocketAddr {
        CONTROLLER_ADDRESS.parse().expect("an address")
    }

    /// Certificate and key of a host, by name; a directory.
    pub fn host_credentials(&self, host: &str) -> PathBuf {
        self.pki().join("issued").join(format!("host.{host}"))
    }

    /// Certificate and key of the operator; a directory.
    pub fn operator_credentials(&self) -> PathBuf {
        self.pki().join("issued").join(format!("operator.{OPERATOR}"))
    }

    /// Directory of the authority.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// The controller's file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("controller.toml")
    }

    /// Its log file.
    pub fn log(&self) -> PathBuf {
        self.dir.join("controller.log")
    }

    /// The end of the log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn fide(&self, words: [&std::ffi::OsStr; 4]) -> Result<()> {
        let output = Command::new(&self.program).arg("controller").args(words).output();
        let output = output.map_err(|e| Error::io(format!("starting {}", self.program.display()), e))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Tool {
            tool: format!("fide controller {words:?}"),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            input: String::new(),
        })
    }

    fn ended(&self, status: std::process::ExitStatus) -> Error {
        let tool = "fide controller run".into();
        Error::Tool { tool, status: status.to_string(), stderr: self.log_tail(), input: String::new() }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}
