// SPDX-License-Identifier: Apache-2.0
//! One run, from its plan to its verdict.

use std::{
    collections::VecDeque,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde::Serialize;

use crate::{
    CLIENTS,
    faults::Done,
    judge::{self, Verdict},
    lines::Tally,
    member::{Planted, Protocol},
    plan::{Else, Fault, Plan, Step, What},
    world::World,
};

pub use crate::world::Programs;

/// How many programs of clients there are, and movers in each.
const CLIENT_PROGRAMS: u32 = 2;
const MOVERS: u32 = 3;
const KEYS: u8 = 5;
/// Most thread numbers of one program.
const THREADS: u32 = 100;
/// Longest pause between two operations of a mover, and of a poller.
const PAUSE_US: u64 = 5_000;
const POLL_US: u64 = 2_000;
/// How long clients run before the first fault.
const QUIET: Duration = Duration::from_millis(300);
/// Clients that were told to end do so within this.
const END_LIMIT: Duration = Duration::from_secs(15);
/// Members that have delivered the same decisions have the same state within this.
const ALIKE_LIMIT: Duration = Duration::from_secs(5);

/// Options of runs.
#[derive(Debug, Clone)]
pub struct Options {
    pub programs: Programs,
    pub planted: Option<Planted>,
    /// Kernel and file system of hosts that are emulated machines, see [`crate::guest`].
    pub guest: Option<PathBuf>,
    /// All members must be back this soon after the last fault, or the run fails.
    pub recovery_limit: Duration,
    /// If members were back later than this, the run fails too, after it was finished.
    pub recovery_goal: Duration,
    /// Files of a failed run go to a directory in this one.
    pub out: PathBuf,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    pub seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<&'static str>,
    pub hosts: usize,
    pub has_guest: bool,
    pub is_durable: bool,
    pub protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planted: Option<&'static str>,
    pub faults: usize,
    /// Agents, among those, that were killed and restarted.
    pub restarts: usize,
    /// Stops of the guest and slews of its clock, among those.
    pub guest_stops: usize,
    /// Stops of a guest that led, and of which another host had taken over when it continued.
    pub guest_overtaken: usize,
    pub guest_slews: usize,
    pub faults_left_out: usize,
    pub operations: u64,
    /// Operations that were never answered.
    pub open: u64,
    /// Reads that members refused to answer.
    pub refused: u64,
    /// Time from the end of the last fault until all members are in one view and one of them answers.
    pub recovery_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// All problems of the run.
    pub problems: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
    #[serde(skip)]
    pub diary: Vec<String>,
}

impl Outcome {
    fn new(plan: &Plan, options: &Options) -> Self {
        Self {
            seed: plan.seed,
            scenario: plan.name,
            hosts: plan.hosts,
            has_guest: plan.has_guest,
            is_durable: plan.is_durable,
            protocol: plan.protocol.name(),
            planted: options.planted.map(Planted::name),
            faults: 0,
            restarts: 0,
            guest_stops: 0,
            guest_overtaken: 0,
            guest_slews: 0,
            faults_left_out: 0,
            operations: 0,
            open: 0,
            refused: 0,
            recovery_ms: None,
            verdict: None,
            problems: Vec::new(),
            kept: None,
            diary: Vec::new(),
        }
    }

    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }

    #[must_use]
    pub fn is_illegal(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.verdict == "illegal")
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn replay(&self) -> String {
        let Self { seed, protocol, .. } = self;
        let scenario =
            self.scenario.map(|name| format!(" --scenario {name} --protocol {protocol}")).unwrap_or_default();
        let planted = self.planted.map(|name| format!(" --planted {name}")).unwrap_or_default();
        let durable = if self.is_durable && self.scenario.is_none() { " --durable" } else { "" };
        let verb = if self.has_guest { "histories-guest" } else { "histories" };
        format!("make {verb} ARGS=\"--seed {seed} --runs 1{scenario}{durable}{planted}\"")
    }
}

/// Programs of clients, which record their histories.
struct Clients {
    children: Vec<Child>,
    files: Vec<PathBuf>,
}

impl Clients {
    fn start(world: &World, plan: &Plan, options: &Options) -> anyhow::Result<Self> {
        let dir = world.bed.scratch().join("clients");
        fs::create_dir(&dir)?;
        let sockets: Vec<String> = (1..=world.hosts()).map(|host| world.socket(host).display().to_string()).collect();
        let patience = world.pace.patience;
        let mut clients = Self { children: Vec::new(), files: Vec::new() };
        for number in 0..CLIENT_PROGRAMS {
            let file = dir.join(format!("history-{number}.jsonl"));
            let mut command = Command::new(&options.programs.histories);
            command
                .arg(CLIENTS)
                .args(["--members", &sockets.join(",")])
                .args(["--first", &(number * THREADS).to_string(), "--movers", &MOVERS.to_string()])
                .args(["--keys", &KEYS.to_string(), "--seed", &plan.seed.to_string()])
                .args(["--pause-us", &(PAUSE_US * patience).to_string()])
                .args(["--poll-us", &(POLL_US * patience).to_string(), "--patience", &patience.to_string()])
                .arg("--dir")
                .arg(&dir)
                .arg("--out")
                .arg(&file)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            if number == 0 {
                command.arg("--pollers");
            }
            if plan.protocol == Protocol::Huc {
                command.arg("--all-propose");
            }
            clients.children.push(command.spawn().context("starting clients")?);
            clients.files.push(file);
        }
        Ok(clients)
    }

    /// Ends them, and sums up their counts.
    fn end(&mut self, world: &mut World) -> anyhow::Result<Tally> {
        self.children.iter_mut().for_each(|child| drop(child.stdin.take()));
        let until = Instant::now() + END_LIMIT;
        let mut sum = Tally::default();
        for child in &mut self.children {
            while child.try_wait()?.is_none() {
                if Instant::now() > until {
                    bail!("clients did not end within {END_LIMIT:?}");
                }
                world.turn()?;
            }
            let mut text = String::new();
            child.stdout.take().context("clients' output is piped")?.read_to_string(&mut text)?;
            let tally: Tally = serde_json::from_str(text.trim()).with_context(|| format!("clients said {text:?}"))?;
            sum.operations += tally.operations;
            sum.open += tally.open;
            sum.refused += tally.refused;
            sum.last_reads_missing += tally.last_reads_missing;
        }
        Ok(sum)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a plan. All problems are in the outcome, including that the run was not possible.
#[must_use]
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let mut outcome = Outcome::new(plan, options);
    let mut world = match World::start(plan, options.planted, &options.programs, options.guest.as_deref()) {
        Ok(world) => world,
        Err(why) => {
            outcome.problems.push(format!("the run did not start: {why:#}"));
            return outcome;
        }
    };
    let mut files = Vec::new();
    if let Err(why) = steps(plan, options, &mut world, &mut outcome, &mut files) {
        outcome.problems.push(format!("the run was not finished: {why:#}"));
    }
    outcome.diary = std::mem::take(&mut world.diary);
    if !outcome.is_ok()
        && let Err(why) = keep(plan, options, &mut world, &mut outcome, &files)
    {
        outcome.problems.push(format!("it could not be kept: {why:#}"));
    }
    outcome
}

fn steps(
    plan: &Plan,
    options: &Options,
    world: &mut World,
    outcome: &mut Outcome,
    files: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let mut clients = Clients::start(world, plan, options)?;
    files.clone_from(&clients.files);
    wait(world, QUIET)?;
    let over = faults(plan, world, outcome)?;
    outcome.recovery_ms = recovery(world, over, options.recovery_limit)?;
    if outcome.recovery_ms.is_none() {
        let limit = options.recovery_limit;
        outcome.problems.push(format!("not all members were back after {limit:?}:\n{}", world.standing()));
    }
    let goal_ms = options.recovery_goal.as_secs_f64() * 1e3;
    if let Some(later_ms) = outcome.recovery_ms.filter(|ms| *ms > goal_ms) {
        outcome.problems.push(format!("all members were back after {later_ms:.0} ms, {goal_ms:.0} are allowed"));
    }
    if plan.has_guest && outcome.faults_left_out > 0 {
        outcome.problems.push(format!("{} faults of the schedule did not come", outcome.faults_left_out));
    }
    outcome.problems.extend(world.guest_problem());
    let tally = clients.end(world)?;
    (outcome.operations, outcome.open, outcome.refused) = (tally.operations, tally.open, tally.refused);
    if outcome.recovery_ms.is_some() {
        if tally.last_reads_missing > 0 {
            outcome.problems.push(format!("{} registers could not be read at the end", tally.last_reads_missing));
        }
        alike(world, outcome)?;
    }
    // Before the directory with the histories is removed.
    let draw = directory(plan, options)?.join("register");
    let verdict = judge::judge(&options.programs.judge, &clients.files, &draw)?;
    if verdict.verdict != "ok" {
        let oldest = verdict.oldest.as_ref().map_or(String::new(), |stale| {
            format!(
                "; {} answers were stale, by up to {:.1} ms, that of h{}",
                verdict.stale,
                stale.age_ns as f64 / 1e6,
                stale.host
            )
        });
        let drawn: Vec<String> = verdict.drawn.iter().map(|path| path.display().to_string()).collect();
        outcome.problems.push(format!("porcupine: {}{oldest}; {}", verdict.verdict, drawn.join(", ")));
    }
    outcome.verdict = Some(verdict);
    Ok(())
}

/// Time from `over` until everything was whole, and stayed whole.
fn recovery(world: &mut World, over: Instant, limit: Duration) -> anyhow::Result<Option<f64>> {
    let stable = world.pace.stable;
    let mut whole_since = None;
    while over.elapsed() < limit + stable {
        world.turn()?;
        if !world.is_whole() {
            whole_since = None;
            continue;
        }
        let since = *whole_since.get_or_insert_with(Instant::now);
        if since.elapsed() > stable {
            return Ok(Some((since - over).as_secs_f64() * 1e3));
        }
    }
    Ok(None)
}

fn wait(world: &mut World, time: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        world.turn()?;
    }
    Ok(())
}

/// Injects all faults of the plan, and ends them. Returns when the last one ended.
fn faults(plan: &Plan, world: &mut World, outcome: &mut Outcome) -> anyhow::Result<Instant> {
    let begun = Instant::now();
    let mut steps = plan.steps.iter().peekable();
    // Waiting faults come one after the other.
    let mut waiting: VecDeque<Step> = VecDeque::new();
    let mut under_way: Vec<(Instant, Done)> = Vec::new();
    let mut over = begun;
    while steps.peek().is_some() || !waiting.is_empty() || !under_way.is_empty() {
        world.turn()?;
        let now = Instant::now();
        while let Some(at) = under_way.iter().position(|(end, _)| now >= *end) {
            let (_, done) = under_way.swap_remove(at);
            if done.stops_leader() {
                if world.leader == world.hosts() {
                    outcome
                        .problems
                        .push("the guest led, was stopped and went on, and nobody had taken over".to_owned());
                }
                outcome.guest_overtaken += usize::from(world.leader != world.hosts());
            }
            world.end(&done)?;
            over = Instant::now();
        }
        let mut due = Vec::new();
        if let Some(first) = waiting.front().copied() {
            let last = begun + Duration::from_millis(first.at_ms) + world.pace.waits;
            if now >= last || world.admits(&first) {
                due.extend(waiting.pop_front().map(|step| Step { otherwise: Else::LeftOut, ..step }));
            }
        }
        while let Some(step) = steps.next_if(|step| now >= begun + Duration::from_millis(step.at_ms)) {
            if step.otherwise == Else::Waits {
                waiting.push_back(*step);
            } else {
                due.push(*step);
            }
        }
        for step in due {
            if world.admits(&step) {
                let done = world.begin(step.fault)?;
                outcome.faults += 1;
                outcome.restarts +=
                    usize::from(matches!(step.fault, Fault::Kill { what: What::Agent | What::Both, .. }));
                outcome.guest_stops += usize::from(matches!(step.fault, Fault::Freeze { .. }));
                outcome.guest_slews += usize::from(matches!(step.fault, Fault::Slew { .. }));
                under_way.push((Instant::now() + Duration::from_millis(step.fault.ms()), done));
            } else {
                world.leave_out(step.fault);
                outcome.faults_left_out += 1;
            }
        }
    }
    Ok(over)
}

/// Waits until all members have the same state.
fn alike(world: &mut World, outcome: &mut Outcome) -> anyhow::Result<()> {
    let until = Instant::now() + ALIKE_LIMIT;
    loop {
        world.turn()?;
        let states: Vec<_> = (1..=world.hosts()).map(|host| world.probe(host)).collect();
        let state = |at: usize| states[at].map(|stands| (stands.applied, stands.hash));
        if state(0).is_some() && (1..states.len()).all(|at| state(at) == state(0)) {
            return Ok(());
        }
        if Instant::now() > until {
            outcome.problems.push(format!("the members' states differ: {states:?}"));
            return Ok(());
        }
    }
}

fn directory(plan: &Plan, options: &Options) -> anyhow::Result<PathBuf> {
    let protocol = plan.protocol.name();
    let name = plan.name.map_or(String::new(), |name| format!("{name}-{protocol}-"));
    let dir = options.out.join(format!("{name}{}", plan.seed));
    // Left by an earlier run.
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    Ok(dir)
}

/// Keeps everything that is needed to understand a failure.
fn keep(
    plan: &Plan,
    options: &Options,
    world: &mut World,
    outcome: &mut Outcome,
    files: &[PathBuf],
) -> anyhow::Result<()> {
    let drawn = outcome.verdict.as_ref().and_then(|verdict| verdict.drawn.first()?.parent().map(Path::to_owned));
    let dir = match drawn {
        Some(dir) => dir,
        None => directory(plan, options)?,
    };
    world.keep_logs(&dir)?;
    for file in files.iter().filter(|file| file.exists()) {
        fs::copy(file, dir.join(file.file_name().context("a history has a name")?))?;
    }
    let text = format!("{}\n\n{}\n\n{}\n", outcome.replay(), outcome.diary.join("\n"), outcome.problems.join("\n"));
    fs::write(dir.join("diary.txt"), text)?;
    outcome.kept = Some(dir);
    Ok(())
}
