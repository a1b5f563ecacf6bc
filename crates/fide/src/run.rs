// SPDX-License-Identifier: Apache-2.0
//! `fide run` and `fide guard`: unchanged programs under watch.

use std::{
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use fide_agent::signals::{Signal as Asked, Signals};
use fide_client::{Client, ConnectOptions, Event};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{
    ask::SocketArguments,
    exit::{Done, Failure, UNHEALTHY, UNSUPPORTED, USAGE},
};

/// What becomes of the program while this host may not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFence {
    /// Stop it (SIGSTOP), and let it go on when the fence lifts
    Pause,
    /// Kill it (SIGKILL): for programs that must not go on with what they knew
    Kill,
    /// Leave it alone: it asks the client library itself
    Ignore,
}

#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// Name under which others watch it: NAME@HOST
    #[arg(long)]
    name: String,
    #[command(flatten)]
    socket: SocketArguments,
    /// What becomes of it while this host is fenced
    #[arg(long, value_enum, default_value_t = OnFence::Pause)]
    on_fence: OnFence,
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
    /// What becomes of it while this host is fenced
    #[arg(long, value_enum, default_value_t = OnFence::Pause)]
    on_fence: OnFence,
    /// Return at once; the process stays under watch until it ends, and no fence is imposed on it
    #[arg(long)]
    detach: bool,
}

/// Argument of this program that starts another one when it is told to; see [`gate`].
pub(crate) const GATE: &str = "__gate";
/// Longest wait between two looks at the lease, which can run out with no event when the agent was killed.
const LOOK_MAX_NS: u64 = 50_000_000;
/// Shortest, so that a lease about to run out does not cost a core.
const LOOK_MIN_NS: u64 = 500_000;
/// While fenced, how often to look whether it lifted.
const LOOK_FENCED_NS: u64 = 2_000_000;

fn connect(socket: &SocketArguments, program: &str) -> Result<Client, Failure> {
    Ok(Client::connect(ConnectOptions { path: Some(socket.path()), program: program.into(), ..Default::default() })?)
}

pub(crate) fn run(arguments: RunArguments) -> Done {
    // Before the client: its descriptors are not to be seen by a thread that takes signals otherwise.
    let signals = Signals::block()?;
    let mut client = connect(&arguments.socket, "fide run")?;
    let (mut child, go) = spawn_at_gate(&arguments.command)?;
    // Under watch before its first instruction: no end of it can be missed.
    if let Err(error) = client.join_pid(&arguments.name, child.id(), Duration::ZERO) {
        // It never began: the gate opens for nobody now.
        drop(go);
        let _ = child.wait();
        return Err(error.into());
    }
    rustix::io::write(&go, b"g").context("the program could not be let go")?;
    drop(go);
    follow(&mut client, child.id(), arguments.on_fence, &signals, Stop::PassOn)?;
    let status = child.wait()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

pub(crate) fn guard(arguments: &GuardArguments) -> Done {
    let pid = match (&arguments.unit, arguments.pid) {
        (Some(unit), _) => main_pid(unit)?,
        (None, Some(pid)) => pid,
        (None, None) => return Err(Failure::new(USAGE, anyhow!("give --pid or --unit"))),
    };
    let signals = Signals::block()?;
    let mut client = connect(&arguments.socket, "fide guard")?;
    let joined = client.join_pid(&arguments.name, pid, Duration::ZERO)?;
    println!("{}@{} is process {pid}, under watch until it ends", arguments.name, client.agent().host);
    if arguments.detach {
        return Ok(ExitCode::SUCCESS);
    }
    if follow(&mut client, pid, arguments.on_fence, &signals, Stop::LetGo)? == Ended::LetGo {
        // It goes on; only its watch ends.
        client.quit(joined.id)?;
        println!("{} goes on without a watch", arguments.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the program stopped in front of its first instruction, until a byte is written to the pipe.
fn spawn_at_gate(command: &[String]) -> Result<(Child, OwnedFd), Failure> {
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let this = std::env::current_exe()?;
    let mut gated = Command::new(this);
    gated.arg(GATE).arg(wait.as_raw_fd().to_string()).args(command);
    let wait_fd = wait.as_raw_fd();
    // SAFETY: between fork and exec only fcntl(2) and calls on a local signal set, which are safe there.
    unsafe {
        gated.pre_exec(move || {
            if libc::fcntl(wait_fd, libc::F_SETFD, 0) != 0 {
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

/// What the child of [`spawn_at_gate`] does: waits for the byte, then becomes the program. Its process id and start
/// time stay what they were.
pub(crate) fn gate(arguments: &[String]) -> ExitCode {
    let [fd, program, rest @ ..] = arguments else { return ExitCode::from(USAGE) };
    let Ok(fd) = fd.parse::<i32>() else { return ExitCode::from(USAGE) };
    // SAFETY: the parent left us this descriptor and nothing else here owns it.
    let wait = unsafe { OwnedFd::from_raw_fd(fd) };
    if !matches!(rustix::io::read(&wait, &mut [0u8; 1]), Ok(1)) {
        return ExitCode::from(UNHEALTHY);
    }
    drop(wait);
    let error = Command::new(program).args(rest).exec();
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

/// Keeps the program in step with the fence until it ends.
fn follow(client: &mut Client, pid: u32, on_fence: OnFence, signals: &Signals, stop: Stop) -> Result<Ended, Failure> {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("{pid} is no process id"))?;
    let Ok(pidfd) = pidfd_open(id, PidfdFlags::empty()) else { return Ok(Ended::Process) };
    let mut fenced = false;
    loop {
        let left_ns = client.table().lease_until_ns().saturating_sub(fide_client::now_ns());
        let wait_ns = if fenced { LOOK_FENCED_NS } else { left_ns.clamp(LOOK_MIN_NS, LOOK_MAX_NS) };
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait_ns).unwrap_or(i64::MAX) };
        let mut fds = [
            PollFd::new(&pidfd, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(Ended::Process);
        }
        match (signals.take(), stop) {
            (Some(Asked::Stop), Stop::LetGo) => {
                if fenced && on_fence == OnFence::Pause {
                    send(&pidfd, Signal::CONT)?;
                }
                return Ok(Ended::LetGo);
            }
            (Some(Asked::Stop), Stop::PassOn) => send(&pidfd, Signal::TERM)?,
            (Some(Asked::Reload), Stop::PassOn) => send(&pidfd, Signal::HUP)?,
            (Some(Asked::Reload), Stop::LetGo) | (None, _) => {}
        }
        while let Some(event) = client.poll_event()? {
            report(&event);
        }
        if client.fenced() != fenced {
            fenced = !fenced;
            impose(&pidfd, on_fence, fenced)?;
        }
    }
}

/// A fence falls or lifts.
fn impose(pidfd: &OwnedFd, on_fence: OnFence, fenced: bool) -> Result<(), Failure> {
    match (on_fence, fenced) {
        (OnFence::Ignore, _) | (OnFence::Kill, false) => Ok(()),
        (OnFence::Pause, true) => {
            eprintln!("fide: this host is fenced; the program is stopped until it is heard again");
            send(pidfd, Signal::STOP)
        }
        (OnFence::Pause, false) => {
            eprintln!("fide: this host is heard again; the program goes on");
            send(pidfd, Signal::CONT)
        }
        (OnFence::Kill, true) => {
            eprintln!("fide: this host is fenced; the program is killed");
            send(pidfd, Signal::KILL)
        }
    }
}

fn send(pidfd: &OwnedFd, signal: Signal) -> Result<(), Failure> {
    match pidfd_send_signal(pidfd, signal) {
        // It has just ended, which the next look finds.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// What the operator of the program should know.
fn report(event: &Event) {
    match event {
        Event::Detached { why } => eprintln!("fide: the agent went away ({why}); looking for it"),
        Event::Reattached { .. } => eprintln!("fide: the agent is back"),
        Event::Rejoined { incarnation } => {
            eprintln!("fide: this host had been excluded and is back as incarnation {incarnation}");
        }
        Event::Dropped { what, refusal } => eprintln!("fide: {what} is not under watch any more: {refusal}"),
        _ => {}
    }
}
