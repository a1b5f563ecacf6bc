// SPDX-License-Identifier: Apache-2.0
//! `fide run` and `fide guard`: registers unchanged programs, and stops them while this host may not act.
//!
//! | what happens | what becomes of the program |
//! |---|---|
//! | the lease is about to end | stopped, a margin before ([`fence`]) |
//! | the host is heard again in the same incarnation | goes on |
//! | the host is another incarnation: others were notified that the program is dead | killed, or left stopped |
//! | `fide run` ends by itself, or is killed | killed: by the kernel (PDEATHSIG) and, with all that it started, by [`warden`] |

mod child;
mod commands;
mod fence;
mod followed;
mod gate;
mod group;
mod job;
mod network;
mod outside;
mod signals;
mod stopper;
mod warden;

use std::{
    ffi::OsString,
    io,
    net::IpAddr,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::{Child, Command, ExitCode, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use fide_agent_api::protocol::check_name;
use fide_client::{Client, ConnectOptions, Event};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::{
    ask::SocketArguments,
    exit::{Done, Failure, OUT_OF_REACH, UNHEALTHY, UNSUPPORTED, USAGE},
    say::{say, tell},
};
pub(crate) use child::begin_deaf;
use commands::Commands;
use fence::Keeper;
use followed::{Ended, Followed, Stop};
pub(crate) use gate::{GATE, gate};
use gate::{as_environment, spawn_at_gate};
use group::{Group, Places};
use job::Suspensions;
use network::{Address, Network};
use signals::Signals;
use stopper::{Stopper, is_out_of_reach};
pub(crate) use warden::{WARDEN, warden};

/// What becomes of the program while this host may not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFence {
    /// Stop it, and let it go on when the fence ends
    Pause,
    /// Kill it (SIGKILL): for programs that must not go on with their former state
    Kill,
    /// Leave it alone, even when the host was excluded: the program asks the client library itself. A program
    /// that begins while this host is fenced finds no FIDE_TOKEN, FIDE_INCARNATION and FIDE_HOST_ID
    Ignore,
}

/// What becomes of the program when others were notified that it is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExclusion {
    /// Kill it (SIGKILL), and, if it has a control group, also every process that it started
    Kill,
    /// Leave it stopped, for inspection
    Stop,
}

#[derive(clap::Args)]
struct FenceArguments {
    /// What becomes of the program while this host is fenced
    #[arg(long, value_enum, default_value_t = OnFence::Pause)]
    on_fence: OnFence,
    /// What becomes of the program when the host was excluded, or its agent started anew: others were
    /// notified that the program is dead, and may run another in its place
    #[arg(long, value_enum, default_value_t = OnExclusion::Kill)]
    on_exclusion: OnExclusion,
    /// How long before the end of the lease the program is stopped, in microseconds; at most a quarter of the
    /// lease
    #[arg(long, value_name = "US", default_value_t = 1000)]
    fence_margin_us: u32,
    /// Run CMD in the shell after the program was stopped, goes on, or was found excluded; FIDE_FENCE is
    /// `stopped`, `continued` or `excluded`. A command that still runs for an earlier state is killed first,
    /// so the last one to run is the one for the last state. After the end of the program, the command has a
    /// minute, or until SIGTERM. Processes that it leaves running must stay in the control group of `fide
    /// run`
    #[arg(long, value_name = "CMD")]
    fence_command: Option<OsString>,
    /// Take this address off the interface DEV when the program is stopped, and put it back when it goes on.
    /// After an exclusion, or when `fide run` ends while the address is off, it stays off: it belongs to the
    /// host that acts now. May be given several times. Give the full length (/32, /128): the kernel removes
    /// the secondary addresses of a subnet together with the first. It also removes routes with that source
    /// address (`src`), which are not put back: let --fence-command do so. Needs CAP_NET_ADMIN
    #[arg(long, value_name = "ADDR/LEN@DEV")]
    fence_address: Vec<Address>,
    /// Reset the program's TCP connections when it is stopped: data that it has written but that was not sent
    /// is dropped, and its peers see the reset. Listening sockets stay. Needs CAP_NET_ADMIN and a kernel with
    /// CONFIG_INET_DIAG_DESTROY, and CAP_SYS_PTRACE for a program that runs as another user or is not
    /// dumpable
    #[arg(long)]
    fence_sockets: bool,
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
    command: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("program").required(true)))]
pub(crate) struct GuardArguments {
    /// Name under which others watch it: NAME@HOST
    #[arg(long)]
    name: String,
    /// Process id of the running program
    #[arg(long, group = "program")]
    pid: Option<u32>,
    /// systemd unit whose main process to guard
    #[arg(long, group = "program")]
    unit: Option<String>,
    #[command(flatten)]
    socket: SocketArguments,
    #[command(flatten)]
    fence: FenceArguments,
    /// Return at once; the process stays under watch until it ends, and no fence is imposed on it. When this
    /// host's agent starts anew, or the host was excluded, others are notified that the process is dead
    /// although it runs on, and nothing puts it under watch again
    #[arg(long)]
    detach: bool,
}

/// How often to check whether the program may begin.
const LOOK_BEGIN: Duration = Duration::from_millis(2);

fn connect(socket: &SocketArguments, program: &str) -> Result<Client, Failure> {
    Ok(Client::connect(ConnectOptions { path: Some(socket.path()), program: program.into(), ..Default::default() })?)
}

pub(crate) fn run(arguments: RunArguments) -> Done {
    check_name(&arguments.name).map_err(fide_client::Error::from)?;
    child::dump_no_core();
    // Blocked before the client exists: no thread that handles signals in another way may see its
    // descriptors.
    let signals = Signals::block()?;
    let suspensions = Suspensions::block()?;
    let network = arguments.fence.network()?;
    let mut client = connect(&arguments.socket, "fide run")?;
    arguments.fence.spare_the_agents(&client)?;
    outside::adopt_orphans()?;
    let (mut child, go) = spawn_at_gate(&arguments.command)?;
    // Declared before `followed`, so that it is dropped last, and removes what `followed` could not remove.
    let mut warden = None;
    let begun = begin(&arguments, &mut client, &signals, &child, Before { go, suspensions, network }, &mut warden);
    let ended = begun.and_then(|followed| match followed {
        Some(mut followed) => {
            let ended = followed.follow(&mut client, &signals);
            if ended.is_ok() {
                followed.finish(&signals);
            }
            ended
        }
        None => Ok(Ended::Process),
    });
    let status = match &ended {
        Ok(Ended::OutOfReach) => None,
        Ok(_) => Some(child.wait()?),
        // No process would stop the program any more.
        Err(_) => end_child(&mut child)?,
    };
    drop(warden);
    if status.is_none() {
        say!("fide: the program (process {}) is left running, and not fenced any more: end it", child.id());
    }
    ended?;
    let Some(status) = status else { return Ok(ExitCode::from(OUT_OF_REACH)) };
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Kills the program and waits for its end. `None`: we may not kill it, and it continues.
fn end_child(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    match child.kill() {
        Err(error) if is_out_of_reach(&error) => Ok(None),
        _ => child.wait().map(Some),
    }
}

/// What is prepared before the program starts.
struct Before {
    go: OwnedFd,
    suspensions: Suspensions,
    network: Network,
}

/// Registers the program, waits until it may act, and lets it begin. `None`: it was asked to end before.
fn begin<'a>(
    arguments: &'a RunArguments,
    client: &mut Client,
    signals: &Signals,
    child: &Child,
    Before { go, suspensions, network }: Before,
    warden: &mut Option<warden::Warden>,
) -> Result<Option<Followed<'a>>, Failure> {
    let places = Places::of(child.id())?;
    places.sweep();
    if places.dirs().next().is_some() {
        let started = warden::Warden::start(places.dirs());
        *warden = Some(started.context("the warden, which kills what the program started when `fide run` dies")?);
    }
    let ear = warden.as_ref().map(warden::Warden::ear).unwrap_or_default();
    let stopper = Arc::new(Stopper::around(&places, child.id(), pidfd(child.id())?, ear));
    // Registered before its first instruction, so that no end can be missed. If this fails it never begins:
    // the gate is closed.
    client.join_pid(&arguments.name, child.id(), Duration::ZERO)?;
    let keeper = match arguments.fence.on_fence {
        OnFence::Ignore => None,
        OnFence::Pause | OnFence::Kill => {
            if !stopper.has_own_group() {
                say!("fide: the program is fenced by {}", stopper.rung());
            }
            let Some(()) = await_lease(client, signals, &suspensions)? else { return Ok(None) };
            Some(arguments.fence.keeper(client, &stopper, network)?)
        }
    };
    let word = as_environment(client.may_act().as_ref());
    match rustix::io::write(&go, word.as_bytes()) {
        // If the gate has no reader any more, the program was killed before it began; that is followed like
        // any other end.
        Ok(_) | Err(rustix::io::Errno::PIPE) => drop(go),
        Err(errno) => return Err(anyhow!("the program could not be let go: {errno}").into()),
    }
    Ok(Some(arguments.fence.followed(stopper, keeper, suspensions, Stop::PassOn)))
}

/// Waits until this host may act. `None`: the program is to end before it began.
fn await_lease(client: &mut Client, signals: &Signals, suspensions: &Suspensions) -> Result<Option<()>, Failure> {
    let mut said = false;
    while client.may_act().is_none() {
        if !std::mem::replace(&mut said, true) {
            say!("fide: this host is fenced; the program begins when it is heard");
        }
        // SIGHUP ends it too: there is no program yet that could reload its configuration. No other signal
        // would find a handler.
        if let Some(received) = signals.take()
            && (received.asks_to_end() || received.signal == Signal::HUP)
        {
            return Ok(None);
        }
        // There is nothing to fence yet.
        if suspensions.take() && !job::is_orphaned() {
            job::stop_this();
        }
        while let Some(event) = client.poll_event()? {
            match event {
                // The program has not begun, so it holds no earlier state.
                Event::Rejoined { incarnation } => client.rejoined_acknowledge(incarnation)?,
                // A new agent refuses the registration: no watcher would be notified of the program's end,
                // and another process may have the name.
                Event::Dropped { what, refusal } => {
                    return Err(anyhow!("{what} is not under watch any more, so it does not begin: {refusal}").into());
                }
                _ => {}
            }
        }
        std::thread::sleep(LOOK_BEGIN);
    }
    Ok(Some(()))
}

pub(crate) fn guard(arguments: &GuardArguments) -> Done {
    check_name(&arguments.name).map_err(fide_client::Error::from)?;
    let pid = match (&arguments.unit, arguments.pid) {
        (Some(unit), _) => main_pid(unit)?,
        (None, Some(pid)) => pid,
        (None, None) => return Err(Failure::new(USAGE, anyhow!("give --pid or --unit"))),
    };
    let fences = !arguments.detach && arguments.fence.on_fence != OnFence::Ignore;
    can_be_guarded(pid, fences).map_err(|why| Failure::new(USAGE, why))?;
    child::dump_no_core();
    let signals = Signals::block()?;
    let suspensions = Suspensions::block()?;
    // Opened before the process joins: afterwards, another process might have its number.
    let held = pidfd(pid);
    let group = match &arguments.unit {
        Some(unit) => Group::of_unit(pid, group_of(unit).as_deref()),
        None => Err(io::Error::other("a process of a group that is not its own")),
    };
    if fences
        && let (Some(unit), Ok(group)) = (&arguments.unit, &group)
        && group.holds_this()
    {
        return Err(Failure::new(
            USAGE,
            anyhow!(
                "`fide guard` runs within unit {unit} ({}): it would freeze itself with it, and nobody would let it go on. Run it as a unit of its own (`systemd-run fide guard …`), or start the program by `fide run`",
                group.name()
            ),
        ));
    }
    let network = arguments.fence.network()?;
    let mut client = connect(&arguments.socket, "fide guard")?;
    arguments.fence.spare_the_agents(&client)?;
    let joined = client.join_pid(&arguments.name, pid, Duration::ZERO)?;
    tell!("{}@{} is process {pid}, under watch until it ends", arguments.name, client.agent().host);
    if arguments.detach {
        return Ok(ExitCode::SUCCESS);
    }
    let stopper = Arc::new(Stopper::of(pid, held?, group));
    let keeper = if fences {
        tell!("fenced by {}", stopper.rung());
        Some(arguments.fence.keeper(&client, &stopper, network)?)
    } else {
        None
    };
    let mut followed = arguments.fence.followed(stopper, keeper, suspensions, Stop::LetGo);
    let ended = followed.follow(&mut client, &signals)?;
    let remedy = followed.is_stopped().then(|| followed.stopper.remedy());
    followed.finish(&signals);
    if ended == Ended::OutOfReach {
        return Ok(ExitCode::from(OUT_OF_REACH));
    }
    if ended == Ended::LetGo {
        // The process continues; only its registration ends, unless another guard has it by now, which was
        // printed before.
        match client.quit(joined.id) {
            Ok(()) | Err(fide_client::Error::Unregistered(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(remedy) = remedy {
            let name = &arguments.name;
            tell!("{name} stays stopped: this host is fenced. `{remedy}` lets it go on without a watch");
            if !arguments.fence.fence_address.is_empty() {
                tell!("its addresses stay off this host: they belong to whoever acts now");
            }
        } else {
            tell!("{} goes on without a watch", arguments.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The flag of a thread of the kernel, which has no program (`PF_KTHREAD`, stable since Linux 2.6.17).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Refuses processes that this one could not continue again, or cannot stop, and processes without a program. The
/// process that started this one is accepted: a shell script guards itself by `fide guard --pid $$ &`.
fn can_be_guarded(pid: u32, fences: bool) -> Result<(), anyhow::Error> {
    if pid == 0 {
        return Err(anyhow!("--pid 0: 0 is no process id; give that of the running program"));
    }
    if let Some(process) = process_of(pid).filter(|process| *process != pid) {
        return Err(anyhow!(
            "--pid {pid}: that is a thread of process {process}; give the process id, --pid {process}"
        ));
    }
    if std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_kernel_thread(&stat)) {
        return Err(anyhow!(
            "--pid {pid}: that is a thread of the kernel, which nothing stops; give the process id of the running program"
        ));
    }
    if pid == std::process::id() {
        return Err(anyhow!("--pid {pid}: that is `fide guard` itself; give the process id of the running program"));
    }
    if fences && pid == 1 {
        return Err(anyhow!(
            "--pid 1: the kernel lets nothing stop the first process of a host or container, so that it cannot be fenced. Guard the program \
             that it started, or watch it without a fence (--detach)"
        ));
    }
    if fences && tracer() == Some(pid) {
        return Err(anyhow!(
            "--pid {pid}: it traces `fide guard` (as strace and gdb do): while it is stopped, nobody could let it go on"
        ));
    }
    Ok(())
}

/// The process that the thread with this id belongs to. A process's first thread has the id of the process.
/// None: there is no such thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Looks at the content of `/proc/PID/stat`. The name in it stands in parentheses, and may have any
/// characters.
fn is_kernel_thread(stat: &str) -> bool {
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// The process that traces this one.
fn tracer() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

fn pidfd(pid: u32) -> Result<OwnedFd, Failure> {
    let id = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Failure::new(USAGE, anyhow!("{pid} is no process id")))?;
    pidfd_open(id, PidfdFlags::empty()).map_err(|errno| io::Error::from(errno).into())
}

impl FenceArguments {
    /// The network part of the fence; refused if this host cannot do it.
    fn network(&self) -> Result<Network, Failure> {
        let extends = self.fence_sockets || !self.fence_address.is_empty() || self.fence_command.is_some();
        if self.on_fence == OnFence::Ignore && extends {
            let why = anyhow!(
                "--on-fence ignore fences nothing: leave --fence-address, --fence-sockets and --fence-command away, or give another"
            );
            return Err(Failure::new(USAGE, why));
        }
        Network::new(&self.fence_address, self.fence_sockets)
    }

    /// The addresses at which the agent is heard must stay: without them the fence would never lift.
    fn spare_the_agents(&self, client: &Client) -> Result<(), Failure> {
        let agent = client.agent();
        let own = agent.members.iter().filter(|member| member.name == agent.host).flat_map(|member| &member.addresses);
        let own: Vec<IpAddr> = own.map(|address| IpAddr::V4(*address)).collect();
        match self.fence_address.iter().find(|address| own.contains(&address.ip())) {
            Some(address) => Err(Failure::new(
                USAGE,
                anyhow!(
                    "--fence-address {address}: it is {}'s own address in the cluster; without it no host would hear this one again. \
                     Give the program an address of its own",
                    agent.host
                ),
            )),
            None => Ok(()),
        }
    }

    fn keeper(&self, client: &Client, stopper: &Arc<Stopper>, network: Network) -> Result<Keeper, Failure> {
        let margin_ns = u64::from(self.fence_margin_us) * 1000;
        let kills = self.on_fence == OnFence::Kill;
        Ok(Keeper::begin(client.live(), Arc::clone(stopper), network, margin_ns, kills)?)
    }

    fn followed(
        &self,
        stopper: Arc<Stopper>,
        keeper: Option<Keeper>,
        suspensions: Suspensions,
        stop: Stop,
    ) -> Followed<'_> {
        Followed {
            keeper,
            commands: Commands::new(self.fence_command.as_deref(), Arc::downgrade(&stopper)),
            stopper,
            arguments: self,
            suspensions,
            stop,
            excluded: false,
            asked_to_end: false,
            said_stopped: false,
            said_out_of_reach: false,
            said_left: false,
            looked: Instant::now(),
        }
    }
}

/// The control group of a unit, which may contain the main process' own group. `None` if systemd reports
/// none.
fn group_of(unit: &str) -> Option<String> {
    let shown =
        Command::new("systemctl").args(["show", "--property=ControlGroup", "--value", "--", unit]).output().ok()?;
    let text = String::from_utf8_lossy(&shown.stdout).trim().to_owned();
    text.starts_with('/').then_some(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_thread_is_known_by_its_flags_whatever_its_name_is() {
        assert!(is_kernel_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0"));
        assert!(!is_kernel_thread("7 (a) S 0 0 0 0 -1 2129984) R 1 7 7 0 -1 4194304 0 0"));
        assert!(!is_kernel_thread("7 (sh) S 1 7") && !is_kernel_thread(""));
    }
}
