// SPDX-License-Identifier: Apache-2.0
//! Three agents on loopback, for users without privileges.

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_agent_api::protocol::Op;
use fide_testbed::{Scratch, baseline::TcpFin};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;

use super::{cluster::await_formed, deaths::Scene};
use fide_cli::call::ask;

const HOSTS: usize = 3;
const PORT: u16 = 7477;
/// How long a started agent may take to answer.
const START_LIMIT: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(10);
/// How many lines of a log are shown after an error.
const LOG_TAIL_LINES: usize = 20;

/// The agents. They end with this process, and their directory is removed.
pub(super) struct Agents {
    children: Vec<Child>,
    scratch: Scratch,
}

impl Agents {
    pub(super) fn start() -> anyhow::Result<Self> {
        let scratch = Scratch::new()?;
        let mut key = [0u8; 16];
        getrandom(&mut key, GetRandomFlags::empty()).context("a random key")?;
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        write(scratch.path().join("cluster.key"), 0o400, &key)?;
        let config = scratch.path().join("fide.toml");
        write(config.clone(), 0o600, &configuration())?;
        let fide = fide_testbed::find_binary("fide")?;
        let mut agents = Self { children: Vec::new(), scratch };
        for host in 1..=HOSTS {
            let dir = agents.dir(host);
            fs::create_dir_all(dir.join("state")).with_context(|| format!("making {}", dir.display()))?;
            let log = File::create(dir.join("agent.log")).context("making a log")?;
            let mut command = Command::new(&fide);
            command
                .arg("agent")
                .arg("--config")
                .arg(&config)
                .args(["--host", &format!("h{host}")])
                .arg("--runtime-dir")
                .arg(&dir)
                .arg("--state-dir")
                .arg(dir.join("state"))
                .stdin(Stdio::null())
                .stdout(log.try_clone().context("a log's second descriptor")?)
                .stderr(log)
                .process_group(0);
            // SAFETY: between fork and exec only prctl(2), which is safe there.
            unsafe {
                command.pre_exec(|| {
                    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                    Ok(())
                });
            }
            agents.children.push(command.spawn().context("starting an agent")?);
        }
        for host in 1..=HOSTS {
            agents.await_answer(host)?;
        }
        await_formed(|host| agents.status(host).map_err(|error| format!("{error:#}")))
            .with_context(|| format!("the agent of h1 said:\n{}", agents.log_tail(1)))?;
        Ok(agents)
    }

    fn dir(&self, host: usize) -> PathBuf {
        self.scratch.path().join(format!("h{host}"))
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.dir(host).join("agent.sock")
    }

    fn log_tail(&self, host: usize) -> String {
        let log = fs::read_to_string(self.dir(host).join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn await_answer(&mut self, host: usize) -> anyhow::Result<()> {
        let until = Instant::now() + START_LIMIT;
        loop {
            if self.status(host).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.children[host - 1].try_wait().context("looking at an agent")? {
                bail!("the agent of h{host} ended with {status}; its log ends with:\n{}", self.log_tail(host));
            }
            if Instant::now() >= until {
                bail!("the agent of h{host} does not answer; its log ends with:\n{}", self.log_tail(host));
            }
            std::thread::sleep(LOOK);
        }
    }

    pub(super) fn status(&self, host: usize) -> anyhow::Result<Value> {
        ask(&self.socket(host), Op::Status {}).map_err(|failure| failure.error)
    }

    /// Processes die on h1 and are watched from h2.
    pub(super) fn scene(&self) -> anyhow::Result<Scene<'static>> {
        let tcp = TcpFin::listen_here(Ipv4Addr::new(127, 77, 0, 2))?;
        Scene::new(None, "h1", &self.socket(1), &self.socket(2), tcp)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The agent may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn configuration() -> String {
    let members: String = (1..=HOSTS)
        .map(|host| format!("[[member]]\nname = \"h{host}\"\naddresses = [\"127.77.1.{host}\", \"127.77.2.{host}\"]\n"))
        .collect();
    format!(
        "[cluster]\nname = \"loopback\"\nkey_file = \"cluster.key\"\nport = {PORT}\n[[plane]]\n[[plane]]\n{members}\
         [agent]\nreceive = \"udp\"\nexit_watch = \"pidfd\"\n"
    )
}

fn write(path: PathBuf, mode: u32, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("writing {}", path.display()))
}
