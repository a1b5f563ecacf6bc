// SPDX-License-Identifier: Apache-2.0
//! The emulated machine: its lines, its monitor, its second serial line; and what it boots.

use crate::rdma::image::{copy, download, inside, libraries, pack, stage_modules};
use crate::run::{Step, target_dir};
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Lines that nobody has read yet.
const LINES: usize = 4096;
/// Events of the monitor that nobody has asked for; the oldest is forgotten.
const EVENTS: usize = 64;
/// The monitor says something within this time, or is not asked any more.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What to boot.
pub(crate) struct Boot<'a> {
    /// Before each of its lines, when they are shown.
    pub(crate) name: &'a str,
    pub(crate) kernel: &'a Path,
    pub(crate) initial: &'a Path,
    /// Its lines that have this are not shown.
    pub(crate) hidden: &'a str,
    /// For its two sockets.
    pub(crate) dir: &'a Path,
    /// Of the emulator, after those that all machines have.
    pub(crate) arguments: &'a [String],
    /// Of the kernel, after those that all machines have.
    pub(crate) append: &'a str,
}

/// What is in the initial file system of guests, besides busybox and the libraries of all programs.
pub(crate) struct Initial<'a> {
    /// Files of the release build, without their debug information: in `/bin`.
    pub(crate) programs: &'a [&'a str],
    /// Files of this host, and where they are in the guests'.
    pub(crate) tools: &'a [(PathBuf, String)],
    /// Of the kernel.
    pub(crate) modules: &'a [&'a str],
    /// The text of the first program.
    pub(crate) init: &'a str,
}

impl Initial<'_> {
    /// Makes it in a directory. Returns the kernel, which is that of `make rdma`, and the file of the initial file system.
    pub(crate) fn make(&self, dir: &Path) -> Result<(PathBuf, PathBuf), String> {
        let target = target_dir();
        let store = target.join("rdma");
        let unpacked = store.join("debian");
        let version = download(&store, &unpacked)?;
        let busybox = unpacked.join("bin/busybox");
        let root = dir.join("root");
        let _ = fs::remove_dir_all(&root);
        copy(&busybox, &root.join("bin/busybox"))?;
        let mut needed: Vec<PathBuf> = self.tools.iter().map(|(tool, _)| tool.clone()).collect();
        for name in self.programs {
            let program = target.join("release").join(name);
            let to = root.join("bin").join(program.file_name().unwrap_or_default());
            Step::new("strip")
                .args(&["-o", &to.to_string_lossy(), &program.to_string_lossy()])
                .run("program of the guests")?;
            needed.push(program);
        }
        for (tool, to) in self.tools {
            copy(tool, &root.join(to))?;
        }
        for program in needed {
            for library in libraries(&program)? {
                copy(&library, &inside(&root, &library))?;
            }
        }
        stage_modules(&root, &unpacked, &version, self.modules)?;
        let init = root.join("init");
        fs::write(&init, self.init).map_err(|e| format!("{}: {e}", init.display()))?;
        Step::new("chmod").args(&["755", &init.to_string_lossy()]).run("first program of the guests")?;
        let initial = dir.join("initial.cpio");
        pack(&busybox, &root, &initial)?;
        Ok((unpacked.join("boot").join(format!("vmlinuz-{version}")), initial))
    }
}

pub(crate) struct Machine {
    emulator: Child,
    lines: Receiver<String>,
    monitor: BufReader<UnixStream>,
    events: VecDeque<String>,
    orders: UnixStream,
    commands: u32,
}

impl Machine {
    pub(crate) fn start(boot: &Boot<'_>) -> Result<Self, String> {
        let socket = |kind: &str| -> PathBuf {
            boot.dir.join(format!("{}-{kind}-{}", boot.name.replace(' ', "-"), std::process::id()))
        };
        let (monitor, orders) = (socket("monitor"), socket("orders"));
        for path in [&monitor, &orders] {
            let _ = std::fs::remove_file(path);
        }
        // The emulator ends with this process, however this process ends.
        let mut emulator = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-serial", "stdio", "-smp", "2", "-m", "512"])
            .args(["-chardev", &format!("socket,id=orders,path={},server=on,wait=off", orders.display())])
            .args(["-device", "isa-serial,chardev=orders"])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
            .args(boot.arguments)
            .arg("-kernel")
            .arg(boot.kernel)
            .arg("-initrd")
            .arg(boot.initial)
            .args(["-append", &format!("console=ttyS0 panic=-1 quiet {}", boot.append)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("qemu-system-x86_64 did not start: {e}"))?;
        let (to, lines) = sync_channel(LINES);
        if let Some(out) = emulator.stdout.take() {
            let (name, hidden) = (boot.name.to_owned(), boot.hidden.to_owned());
            // Ends with the emulator.
            std::thread::spawn(move || {
                for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if !line.contains(&hidden) {
                        println!("{name}: {line}");
                    }
                    let _ = to.try_send(line);
                }
            });
        }
        let connected = connect(&monitor).and_then(|monitor| Ok((monitor, connect(&orders)?)));
        for path in [&monitor, &orders] {
            let _ = std::fs::remove_file(path);
        }
        match connected {
            Ok((monitor, orders)) => {
                let _ = monitor.set_read_timeout(Some(SILENCE_MAX));
                let monitor = BufReader::new(monitor);
                let mut machine = Self { emulator, lines, monitor, events: VecDeque::new(), orders, commands: 0 };
                machine.answer()?;
                machine.monitor("qmp_capabilities")?;
                Ok(machine)
            }
            Err(why) => {
                let _ = emulator.kill();
                let _ = emulator.wait();
                Err(why)
            }
        }
    }

    /// Reads one line of JSON from the monitor.
    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.monitor.read_line(&mut line).map_err(|e| format!("the emulator's monitor: {e}"))? {
            0 => Err("the emulator has ended".into()),
            _ => Ok(line),
        }
    }

    /// Makes the monitor execute one command.
    pub(crate) fn monitor(&mut self, what: &str) -> Result<(), String> {
        self.monitor_with(what, "")
    }

    /// Makes the monitor execute one command with arguments, the members of a JSON object.
    pub(crate) fn monitor_with(&mut self, what: &str, arguments: &str) -> Result<(), String> {
        let order = format!("{{\"execute\": \"{what}\", \"arguments\": {{{arguments}}}}}\n");
        self.monitor.get_mut().write_all(order.as_bytes()).map_err(|e| format!("the emulator's monitor: {e}"))?;
        loop {
            let line = self.answer()?;
            if line.is_empty() || line.contains("\"error\"") {
                return Err(format!("the emulator's monitor refused {what}: {line}"));
            }
            if line.contains("\"return\"") {
                return Ok(());
            }
            self.events.push_back(line);
            while self.events.len() > EVENTS {
                self.events.pop_front();
            }
        }
    }

    /// Waits for an event of the monitor whose line has all of some texts, if it has not come since it was asked for last.
    pub(crate) fn event(&mut self, texts: &[&str]) -> Result<(), String> {
        let is_it = |line: &String| texts.iter().all(|text| line.contains(text));
        if let Some(at) = self.events.iter().position(is_it) {
            self.events.drain(..=at);
            return Ok(());
        }
        while !is_it(&self.answer()?) {}
        Ok(())
    }

    /// Stops the emulator's process, or lets it go on: to the guest it looks as if its host had no time for
    /// it.
    pub(crate) fn signal(&self, name: &str) -> Result<(), String> {
        let pid = self.emulator.id().to_string();
        let status =
            Command::new("kill").args([&format!("-{name}"), &pid]).status().map_err(|e| format!("kill: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("kill -{name} {pid}: {status}")) }
    }

    pub(crate) fn order(&mut self, order: &str) -> Result<(), String> {
        self.orders.write_all(format!("{order}\n").as_bytes()).map_err(|e| format!("the guest's second line: {e}"))
    }

    /// Runs a command in the guest and waits for its end.
    pub(crate) fn run(&mut self, command: &str, until: Instant) -> Result<(), String> {
        self.run_reading(command, until).map(drop)
    }

    /// As [`Machine::run`]; returns the lines that came meanwhile.
    pub(crate) fn run_reading(&mut self, command: &str, until: Instant) -> Result<Vec<String>, String> {
        self.commands += 1;
        let done = format!("ORDER DONE {}.", self.commands);
        self.order(&format!("sh {command}; echo {done}"))?;
        self.wait(&done, until)
    }

    /// Runs a command and waits until the guest has printed `what` since the order, before or after the
    /// command's end is reported.
    pub(crate) fn run_until(&mut self, command: &str, what: &str, until: Instant) -> Result<(), String> {
        let said = self.run_reading(command, until)?;
        if said.iter().any(|line| line.contains(what)) { Ok(()) } else { self.wait(what, until).map(drop) }
    }

    /// Waits for a line that contains `what`. Returns all lines up to it; it is the last of them.
    pub(crate) fn wait(&mut self, what: &str, until: Instant) -> Result<Vec<String>, String> {
        let mut seen = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|_| format!("the guest did not say {what:?} in time"))?;
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains(what)) {
                return Ok(seen);
            }
        }
    }

    /// Lines that came and were not read.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

fn connect(path: &Path) -> Result<UnixStream, String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > until => return Err(format!("{}: {e}", path.display())),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
