// SPDX-License-Identifier: Apache-2.0
//! `fide tune`.

use std::{io::ErrorKind, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use fide_host_tuning::{
    boot,
    doctor::{self, Host},
    tune::{
        Options, Outcome, Plan, Restored, TuneError, Undone, apply,
        journal::{Journal, JournalError, Lock},
        plan, undo,
    },
};
use serde_json::{Value, json};

use crate::{
    exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, UNSUPPORTED, USAGE},
    host::HostArguments,
    say::show,
};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub(crate) struct Arguments {
    /// Print what would be changed
    #[arg(long, group = "what")]
    plan: bool,
    /// Change it; each old value is stored first
    #[arg(long, group = "what")]
    apply: bool,
    /// Restore the values from before the first --apply; values that others have changed since are left alone
    #[arg(long, group = "what")]
    undo: bool,
    /// Print the settings that only a boot can change, or write them to --boot-dir; they are never applied
    #[arg(long, group = "what")]
    boot: bool,
    /// Also restore values that others have changed since
    #[arg(long, requires = "undo")]
    force: bool,
    #[command(flatten)]
    host: HostArguments,
    /// A condition of `fide doctor` to leave alone; may be given several times
    #[arg(long, value_name = "ID")]
    skip: Vec<String>,
    /// Take the core away from the host's control groups too (version 2)
    #[arg(long)]
    cpusets: bool,
    /// Where the old values are kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fide")]
    state_dir: PathBuf,
    /// Where files for the next boot are written
    #[arg(long, value_name = "DIR", requires = "boot")]
    boot_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Conditions that only a plan has.
const ONLY_PLANNED: [&str; 1] = ["cpusets"];

pub(crate) fn run(arguments: &Arguments) -> Done {
    let known = || doctor::ids().chain(ONLY_PLANNED);
    if let Some(id) = arguments.skip.iter().find(|id| !known().any(|known| known == **id)) {
        let known = known().collect::<Vec<_>>().join(", ");
        return Err(Failure::new(USAGE, anyhow!("no condition is called {id}; there are {known}")));
    }
    let (host, _) = arguments.host.host()?;
    match (arguments.undo, arguments.boot) {
        (true, _) => run_undo(arguments, &host),
        (_, true) => run_boot(arguments, &host),
        _ => {
            let options = Options { skip: arguments.skip.clone(), cpusets: arguments.cpusets };
            run_plan(arguments, &host, &plan(&host, &options))
        }
    }
}

fn boot_id(host: &Host<'_>) -> Result<String, Failure> {
    host.roots.boot_id().map_err(|unread| failure(JournalError::BootId(unread).into()))
}

fn failure(error: TuneError) -> Failure {
    let code = match &error {
        TuneError::Journal(JournalError::Io { why, .. }) if why.kind() == ErrorKind::PermissionDenied => NOT_PERMITTED,
        TuneError::Journal(JournalError::BootId(_)) => UNSUPPORTED,
        TuneError::Journal(_) => UNHEALTHY,
    };
    Failure::new(code, anyhow!("{error}"))
}

fn run_plan(arguments: &Arguments, host: &Host<'_>, plan: &Plan) -> Done {
    let mut outcomes = Vec::new();
    if arguments.apply && !plan.changes.is_empty() {
        let boot_id = boot_id(host)?;
        let lock = Lock::take(&arguments.state_dir).map_err(|error| failure(error.into()))?;
        let mut journal = Journal::open(&lock, &boot_id, host.core).map_err(|error| failure(error.into()))?;
        outcomes = apply(host, plan, &mut journal).map_err(failure)?;
    }
    let refused = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Refused(_) | Outcome::Otherwise(_)));
    let refused = refused.count();
    if arguments.json {
        let change = |(index, change): (usize, &fide_host_tuning::tune::Change)| {
            json!({
                "id": change.id, "target": change.target.to_string(), "from": change.from, "to": change.shown_to(),
                "why": change.why, "outcome": outcomes.get(index),
            })
        };
        let changes: Vec<Value> = plan.changes.iter().enumerate().map(change).collect();
        show!("{:#}", json!({ "version": 1, "core": host.core, "changes": changes, "left": plan.left }))?;
    } else {
        for (index, change) in plan.changes.iter().enumerate() {
            let outcome = outcomes.get(index).map(|outcome| format!(": {outcome}")).unwrap_or_default();
            show!("{}\n    {} -> {}{outcome}\n    {}", change.target, change.from, change.shown_to(), change.why)?;
        }
        if !plan.left.is_empty() {
            show!("left as it is:")?;
        }
        for left in &plan.left {
            show!("    {}: {}", left.id, left.why)?;
        }
        match (plan.changes.len(), arguments.apply) {
            (0, _) => show!("core {}: there is nothing to change at run time", host.core)?,
            (count, false) => show!("core {}: {count} changes; --apply makes them, --undo restores", host.core)?,
            (count, true) => {
                show!("core {}: {count} changes, {refused} refused; `fide tune --undo` restores", host.core)?;
            }
        }
    }
    // Some interrupts cannot be moved on nearly every host.
    let unexpected = plan.changes.iter().zip(&outcomes).any(|(change, outcome)| match outcome {
        Outcome::Refused(_) => change.id != "irq-affinity",
        Outcome::Otherwise(_) => true,
        Outcome::Applied | Outcome::Already => false,
    });
    Ok(ExitCode::from(if unexpected { UNHEALTHY } else { 0 }))
}

fn run_undo(arguments: &Arguments, host: &Host<'_>) -> Done {
    let journal = arguments.state_dir.join(fide_host_tuning::tune::journal::FILE);
    // Avoids making a directory only to find nothing in it.
    let undone = if journal.exists() {
        let lock = Lock::take(&arguments.state_dir).map_err(|error| failure(error.into()))?;
        undo(host.machine, &lock, &boot_id(host)?, arguments.force).map_err(failure)?
    } else {
        Undone::default()
    };
    if arguments.json {
        show!("{:#}", json!({ "version": 1, "complete": undone.complete(), "undone": undone }))?;
    } else {
        undo_text(&undone, &journal.display().to_string())?;
    }
    Ok(ExitCode::from(if undone.complete() { 0 } else { UNHEALTHY }))
}

fn undo_text(undone: &Undone, journal: &str) -> Result<(), Failure> {
    for (line, why) in &undone.damaged {
        show!("{journal}, line {line}: {why}; the others were used")?;
    }
    if undone.void {
        show!("{journal} is from before the last boot, which has restored everything by itself: the file was removed")?;
        return Ok(());
    }
    for (_, target, was, restored) in &undone.restored {
        match restored {
            Restored::Restored => show!("{target}: {was} again")?,
            Restored::Already => show!("{target}: was {was} already")?,
            Restored::Gone => show!("{target}: is not there any more")?,
            Restored::LeftAlone { found, set } => show!(
                "{target}: LEFT ALONE: it is {found} now, not {set} as fide set it; it was {was}; --force overwrites"
            )?,
            Restored::Failed(why) => show!("{target}: NOT RESTORED to {was}: {why}")?,
        }
    }
    if !undone.journal {
        show!("nothing to undo: there is no {journal}")?;
    } else if !undone.complete() {
        show!("not everything is restored; {journal} keeps the old values")?;
    }
    Ok(())
}

fn run_boot(arguments: &Arguments, host: &Host<'_>) -> Done {
    let boot = boot::boot(host).map_err(|error| Failure::new(UNHEALTHY, anyhow!("{error}")))?;
    if arguments.json {
        show!("{:#}", json!({ "version": 1, "core": host.core, "boot": boot }))?;
    }
    if let Some(dir) = &arguments.boot_dir {
        let paths = boot::write(&boot, dir)
            .map_err(|(path, error)| anyhow::Error::from(error).context(path.display().to_string()))?;
        if !arguments.json {
            for path in &paths {
                show!("{}", path.display())?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.json {
        for parameter in &boot.parameters {
            let now = if parameter.now { "; in force" } else { "" };
            show!("{:<38} {}{now}", parameter.text, parameter.why)?;
        }
        for (name, text) in &boot.files {
            show!("\n==> {name} <==\n{text}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
