// SPDX-License-Identifier: Apache-2.0
//! `fide run` and `fide guard`: unchanged programs under watch, stopped while this host may not act.
//!
//! | what happens | what becomes of the program |
//! |---|---|
//! | the lease is about to end | stopped, a margin before ([`fence`]) |
//! | the host is heard again in the same incarnation | goes on |
//! | the host is another incarnation: others were told that the program is dead | killed, or left stopped |
//! | `fide run` ends by itself, or is killed | killed: by the kernel (PDEATHSIG) and, with all that it started, by [`warden`] |

mod fence;
mod stopper;
mod warden;

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use fide_agent::signals::{Signal as Asked, Signals};
use fide_client::{Client, ConnectOptions, Event, Permit};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};

use crate::{
    ask::SocketArguments,
    exit::{Done, Failure, UNHEALTHY, UNSUPPORTED, USAGE},
};
use fence::Keeper;
use stopper::Stopper;
pub(crate) use warden::{WARDEN, warden};

/// What becomes of the program while this host may not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFence {
    /// Stop it, and let it go on when the fence lifts
    Pause,
    /// Kill it (SIGKILL): for programs that must not go on with what they knew
    Kill,
    /// Leave it alone, also when the host was excluded: it asks the client library itself
    Ignore,
}

/// What becomes of the program when others were told that it is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExclusion {
    /// Kill it (SIGKILL), with all that it started where it has a control group
    Kill,
    /// Leave it stopped, to be looked at
    Stop,
}

#[derive(clap::Args)]
struct FenceArguments {
    /// What becomes of it while this host is fenced
    #[arg(long, value_enum, default_value_t = OnFence::Pause)]
    on_fence: OnFence,
    /// What becomes of it when the host was excluded, or its agent started anew: others were told that it is dead, and may run
    /// another in its place
    #[arg(long, value_enum, default_value_t = OnExclusion::Kill)]
    on_exclusion: OnExclusion,
    /// How long before the end of the lease it is stopped, in microseconds; at most a quarter of the lease
    #[arg(long, value_name = "US", default_value_t = 1000)]
    fence_margin_us: u32,
    /// Run CMD by the shell after it was stopped, goes on, or was found excluded; FIDE_FENCE is `stopped`, `continued` or
    /// `excluded`. To take addresses off this host, for example
    #[arg(long, value_name = "CMD")]
    fence_command: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// Name under which others watch it: NAME@HOST
    #[arg(long)]
    name: String,
    #[command(flatten)]
    socket: SocketArguments,
    #[command(flatten)]
    fence: FenceArguments,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct GuardArguments {
    /// Name under which others watch it: NAME@HOST
    #[arg(long)]
    name: String,
    /// Process id of the running program
    #[arg(long, required_unless_present = "unit", conflicts_with = "unit")]
    pid: Option<u32>,
    /// systemd unit whose main process is meant
    #[arg(long)]
    unit: Option<String>,
    #[command(flatten)]
    socket: SocketArguments,
    #[command(flatten)]
    fence: FenceArguments,
    /// Return at once; the process stays under watch until it ends, and no fence is imposed on it
    #[arg(long)]
    detach: bool,
}

/// Argument of this program that starts another one when it is told to; see [`gate`].
pub(crate) const GATE: &str = "__gate";
/// How often to look whether the program may begin.
const LOOK_BEGIN: Duration = Duration::from_millis(2);
/// How often to look whether the fence's thread still lives.
const LOOK_KEEPER: Duration = Duration::from_millis(500);

fn connect(socket: &SocketArguments, program: &str) -> Result<Client, Failure> {
    Ok(Client::connect(ConnectOptions { path: Some(socket.path()), program: program.into(), ..Default::default() })?)
}

pub(crate) fn run(arguments: RunArguments) -> Done {
    // Before the client: its descriptors are not to be seen by a thread that takes signals otherwise.
    let signals = Signals::block()?;
    let mut client = connect(&arguments.socket, "fide run")?;
    let (mut child, go) = spawn_at_gate(&arguments.command)?;
    let begun = begin(&arguments, &mut client, &signals, &child, go);
    let ended = begun.and_then(|followed| match followed {
        Some(mut followed) => followed.follow(&mut client, &signals),
        None => Ok(Ended::Process),
    });
    if ended.is_err() {
        // Nobody would stop it any more.
        let _ = child.kill();
    }
    let status = child.wait()?;
    ended?;
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Puts the program under watch, waits until it may act, and lets it go. None: it was asked to end before.
fn begin<'a>(
    arguments: &'a RunArguments,
    client: &mut Client,
    signals: &Signals,
    child: &Child,
    go: OwnedFd,
) -> Result<Option<Followed<'a>>, Failure> {
    let stopper = Arc::new(Stopper::around(child.id(), pidfd(child.id())?));
    let warden = stopper.own_dir().map(warden::Warden::start).transpose();
    let warden = warden.context("the warden, which kills what the program started when `fide run` dies")?;
    // Under watch before its first instruction: no end of it can be missed. It never begins if this fails: the gate is closed.
    client.join_pid(&arguments.name, child.id(), Duration::ZERO)?;
    let keeper = match arguments.fence.on_fence {
        OnFence::Ignore => None,
        OnFence::Pause | OnFence::Kill => {
            if stopper.own_dir().is_none() {
                eprintln!("fide: the program is fenced by {}", stopper.rung());
            }
            let Some(()) = await_lease(client, signals)? else { return Ok(None) };
            Some(arguments.fence.keeper(client, &stopper)?)
        }
    };
    let word = as_environment(client.may_act().as_ref());
    match rustix::io::write(&go, word.as_bytes()) {
        // Without a reader it was killed before it began, which is followed like any other end.
        Ok(_) | Err(rustix::io::Errno::PIPE) => drop(go),
        Err(errno) => return Err(anyhow!("the program could not be let go: {errno}").into()),
    }
    Ok(Some(Followed {
        stopper,
        keeper,
        arguments: &arguments.fence,
        stop: Stop::PassOn,
        excluded: false,
        _warden: warden,
    }))
}

/// Waits until this host may act. None: the program is to end before it began.
fn await_lease(client: &mut Client, signals: &Signals) -> Result<Option<()>, Failure> {
    let mut said = false;
    while client.may_act().is_none() {
        if !std::mem::replace(&mut said, true) {
            eprintln!("fide: this host is fenced; the program begins when it is heard");
        }
        if signals.take() == Some(Asked::Stop) {
            return Ok(None);
        }
        while let Some(event) = client.poll_event()? {
            if let Event::Rejoined { incarnation } = event {
                // It has not begun: there is nothing that it could go on with.
                client.rejoined_acknowledge(incarnation)?;
            }
        }
        std::thread::sleep(LOOK_BEGIN);
    }
    Ok(Some(()))
}

pub(crate) fn guard(arguments: &GuardArguments) -> Done {
    let pid = match (&arguments.unit, arguments.pid) {
        (Some(unit), _) => main_pid(unit)?,
        (None, Some(pid)) => pid,
        (None, None) => return Err(Failure::new(USAGE, anyhow!("give --pid or --unit"))),
    };
    let signals = Signals::block()?;
    let mut client = connect(&arguments.socket, "fide guard")?;
    // Before it is joined, or its number might be another's by then.
    let held = pidfd(pid);
    let joined = client.join_pid(&arguments.name, pid, Duration::ZERO)?;
    println!("{}@{} is process {pid}, under watch until it ends", arguments.name, client.agent().host);
    if arguments.detach {
        return Ok(ExitCode::SUCCESS);
    }
    let pidfd = held?;
    let stopper = Arc::new(Stopper::of(pidfd, arguments.unit.is_some().then_some(pid)));
    let keeper = match arguments.fence.on_fence {
        OnFence::Ignore => None,
        OnFence::Pause | OnFence::Kill => {
            println!("fenced by {}", stopper.rung());
            Some(arguments.fence.keeper(&client, &stopper)?)
        }
    };
    let mut followed =
        Followed { stopper, keeper, arguments: &arguments.fence, stop: Stop::LetGo, excluded: false, _warden: None };
    if followed.follow(&mut client, &signals)? == Ended::LetGo {
        let stopped = followed.is_stopped();
        drop(followed);
        // It goes on; only its watch ends.
        client.quit(joined.id)?;
        if stopped {
            println!(
                "{} stays stopped: this host is fenced. `kill -CONT {pid}` lets it go on without a watch",
                arguments.name
            );
        } else {
            println!("{} goes on without a watch", arguments.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn pidfd(pid: u32) -> Result<OwnedFd, Failure> {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("{pid} is no process id"))?;
    pidfd_open(id, PidfdFlags::empty()).map_err(|errno| io::Error::from(errno).into())
}

impl FenceArguments {
    fn keeper(&self, client: &Client, stopper: &Arc<Stopper>) -> Result<Keeper, Failure> {
        let margin_ns = u64::from(self.fence_margin_us) * 1000;
        Ok(Keeper::begin(client.live(), Arc::clone(stopper), margin_ns, self.on_fence == OnFence::Kill)?)
    }

    /// Runs the operator's command; it is waited for.
    fn command(&self, what: &str) {
        let Some(command) = &self.fence_command else { return };
        match Command::new("sh").args(["-c", command]).env("FIDE_FENCE", what).status() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("fide: --fence-command {command:?} ended with {status}"),
            Err(error) => eprintln!("fide: --fence-command {command:?} could not be run: {error}"),
        }
    }
}

/// What the program finds in its environment, a line for each variable: under what it may act as it begins.
fn as_environment(permit: Option<&Permit>) -> String {
    let mut lines = String::new();
    if let Some(permit) = permit {
        lines.push_str(&format!("FIDE_HOST_ID={}\nFIDE_INCARNATION={}\n", permit.host_id, permit.incarnation));
        if let Some(token) = permit.token() {
            lines.push_str(&format!("FIDE_TOKEN={token}\n"));
        }
    }
    lines.push_str("go\n");
    lines
}

/// Starts the program stopped in front of its first instruction, until the pipe has said with which variables to go.
fn spawn_at_gate(command: &[String]) -> Result<(Child, OwnedFd), Failure> {
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let this = std::env::current_exe()?;
    let mut gated = Command::new(this);
    gated.arg(GATE).arg(wait.as_raw_fd().to_string()).args(command);
    // Another's, if this runs within a program of `fide run`.
    for name in ["FIDE_TOKEN", "FIDE_INCARNATION", "FIDE_HOST_ID"] {
        gated.env_remove(name);
    }
    let wait_fd = wait.as_raw_fd();
    // SAFETY: between fork and exec only fcntl(2), prctl(2) and calls on a local signal set, which are safe there.
    unsafe {
        gated.pre_exec(move || {
            if libc::fcntl(wait_fd, libc::F_SETFD, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            // It does not outlive the one who stops it. (If that is dead already, the gate stays closed.)
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Signals are blocked here to be passed on; the program must not begin with that.
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        });
    }
    Ok((gated.spawn()?, go))
}

/// What the child of [`spawn_at_gate`] does: waits for the word, then becomes the program. Its process id and start
/// time stay what they were.
pub(crate) fn gate(arguments: &[String]) -> ExitCode {
    let [fd, program, rest @ ..] = arguments else { return ExitCode::from(USAGE) };
    let Ok(fd) = fd.parse::<i32>() else { return ExitCode::from(USAGE) };
    // SAFETY: the parent left us this descriptor and nothing else here owns it.
    let wait = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut told = String::new();
    if io::Read::read_to_string(&mut std::fs::File::from(wait), &mut told).is_err() || !told.ends_with("go\n") {
        return ExitCode::from(UNHEALTHY);
    }
    let variables = told.lines().filter_map(|line| line.split_once('='));
    let error = Command::new(program).args(rest).envs(variables).exec();
    eprintln!("fide run: {program}: {error}");
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn main_pid(unit: &str) -> Result<u32, Failure> {
    let shown = Command::new("systemctl").args(["show", "--property=MainPID", "--value", "--", unit]).output();
    let shown = shown.map_err(|error| {
        Failure::new(UNSUPPORTED, anyhow!("systemctl: {error}; without systemd give the process id with --pid"))
    })?;
    let text = String::from_utf8_lossy(&shown.stdout);
    match text.trim().parse() {
        Ok(pid) if pid != 0 => Ok(pid),
        _ => Err(Failure::new(
            UNHEALTHY,
            anyhow!(
                "unit {unit} has no main process; start it first. {}",
                String::from_utf8_lossy(&shown.stderr).trim()
            ),
        )),
    }
}

/// What SIGTERM means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It is meant for the program.
    PassOn,
    /// Leave the program alone.
    LetGo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Process,
    LetGo,
}

/// A program under watch.
struct Followed<'a> {
    stopper: Arc<Stopper>,
    /// None: the program asks the client library itself.
    keeper: Option<Keeper>,
    arguments: &'a FenceArguments,
    stop: Stop,
    /// Others were told that it is dead.
    excluded: bool,
    _warden: Option<warden::Warden>,
}

impl Followed<'_> {
    fn is_stopped(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::stopped)
    }

    /// Waits until the program ends, and says what happens to it.
    fn follow(&mut self, client: &mut Client, signals: &Signals) -> Result<Ended, Failure> {
        // It may have been stopped since it began.
        let mut stopped = false;
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_KEEPER.subsec_nanos()) };
        loop {
            let pidfd = self.stopper.pidfd().as_fd();
            let mut fds = vec![
                PollFd::from_borrowed_fd(pidfd, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
                PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN),
            ];
            fds.extend(self.keeper.as_ref().map(|keeper| PollFd::from_borrowed_fd(keeper.as_fd(), PollFlags::IN)));
            match poll(&mut fds, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            if !fds[0].revents().is_empty() {
                return Ok(Ended::Process);
            }
            match (signals.take(), self.stop) {
                (Some(Asked::Stop), Stop::LetGo) => return Ok(Ended::LetGo),
                (Some(Asked::Stop), Stop::PassOn) => self.stopper.signal(Signal::TERM)?,
                (Some(Asked::Reload), Stop::PassOn) => self.stopper.signal(Signal::HUP)?,
                (Some(Asked::Reload), Stop::LetGo) | (None, _) => {}
            }
            if let Some(keeper) = &mut self.keeper {
                keeper.quiet();
                if keeper.is_over() {
                    keeper.end()?;
                    return Err(anyhow!("the fence's thread has ended").into());
                }
            }
            if self.is_stopped() != stopped {
                stopped = !stopped;
                self.changed(stopped)?;
            }
            while let Some(event) = client.poll_event()? {
                report(&event);
                if let Event::Rejoined { incarnation } = event {
                    self.rejoined(incarnation)?;
                }
            }
        }
    }

    /// It was stopped, or goes on.
    fn changed(&self, stopped: bool) -> Result<(), Failure> {
        match (self.arguments.on_fence, stopped) {
            (OnFence::Ignore, _) => return Ok(()),
            (OnFence::Kill, true) => eprintln!("fide: this host is fenced; the program is killed"),
            (_, true) => eprintln!("fide: this host is fenced; the program is stopped until it is heard again"),
            (_, false) => eprintln!("fide: this host is heard again; the program goes on"),
        }
        self.arguments.command(if stopped { "stopped" } else { "continued" });
        Ok(())
    }

    /// Others hold the program for dead, and may have replaced it. The lease of this new incarnation is not the program's: it is
    /// never acknowledged, so the program stays stopped.
    fn rejoined(&mut self, incarnation: u32) -> Result<(), Failure> {
        if self.keeper.is_none() || std::mem::replace(&mut self.excluded, true) {
            return Ok(());
        }
        match self.arguments.on_exclusion {
            OnExclusion::Kill => {
                eprintln!(
                    "fide: this host is incarnation {incarnation} now: others were told that the program is dead, and may run \
                     another in its place; it is killed"
                );
                self.stopper.kill()?;
            }
            OnExclusion::Stop => eprintln!(
                "fide: this host is incarnation {incarnation} now: others were told that the program is dead, and may run another \
                 in its place; it stays stopped, and is never let go on. End it, and start it anew"
            ),
        }
        self.arguments.command("excluded");
        Ok(())
    }
}

/// What the operator of the program should know.
fn report(event: &Event) {
    match event {
        Event::Detached { why } => eprintln!("fide: the agent went away ({why}); looking for it"),
        Event::Reattached { .. } => eprintln!("fide: the agent is back"),
        Event::Dropped { what, refusal } => eprintln!("fide: {what} is not under watch any more: {refusal}"),
        _ => {}
    }
}
