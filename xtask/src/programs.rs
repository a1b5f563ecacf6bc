// SPDX-License-Identifier: Apache-2.0
//! Runs test programs beside each other.
//!
//! Cargo runs one test program after the other, although most tests wait most of the time. Here cargo builds them
//! only: in place of each program it starts its runner, which is [`note_down`]. The runner writes down what cargo
//! would have started, and starts nothing. [`Jobs::run`] then starts the programs.

use crate::run::{self, Step, target_dir};
use crate::summary::{self, Total};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
    mpsc::{RecvTimeoutError, channel},
};
use std::thread;
use std::time::{Duration, Instant};

/// The verb of [`note_down`].
pub(crate) const NOTE_DOWN: &str = "note-test-program";
/// How often it is looked whether a program that prints nothing has ended. Descendants may keep its output open.
const POLL: Duration = Duration::from_millis(200);

/// So many failed tests run again, alone. More are no accident.
const AGAIN_MAX: usize = 5;

/// Variables that cargo sets for each test program differently begin with these. Others are this program's too.
const OF_PROGRAM: [&str; 4] = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_EXE_", "LD_LIBRARY_PATH"];

/// A test program, and what cargo tells it by its directory and its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    path: PathBuf,
    dir: PathBuf,
    env: Vec<(OsString, OsString)>,
}

impl Program {
    /// The program's name, without the number that cargo appends.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        name.rsplit_once('-').map_or(&*name, |(name, _)| name).to_owned()
    }

    /// The directory of its package.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Fields end with a zero byte; a program ends with an empty field.
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut field = |parts: &[&OsStr]| {
            parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
            out.push(0);
        };
        field(&[self.path.as_os_str()]);
        field(&[self.dir.as_os_str()]);
        for (name, value) in &self.env {
            field(&[name, OsStr::new("="), value]);
        }
        field(&[]);
        out
    }

    fn read_all(text: &[u8]) -> Vec<Program> {
        let mut fields = text.split(|byte| *byte == 0).map(|field| OsString::from_vec(field.to_vec()));
        let mut programs = Vec::new();
        while let (Some(path), Some(dir)) = (fields.next().filter(|path| !path.is_empty()), fields.next()) {
            let env = fields.by_ref().take_while(|field| !field.is_empty()).filter_map(|field| {
                let at = field.as_bytes().iter().position(|byte| *byte == b'=')?;
                let (name, value) = field.as_bytes().split_at(at);
                Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value[1..].to_vec())))
            });
            programs.push(Program { env: env.collect(), path: path.into(), dir: dir.into() });
        }
        programs
    }
}

/// Where [`note_down`] writes.
fn noted() -> PathBuf {
    target_dir().join("test-programs")
}

/// Cargo runs this in place of each test program.
pub(crate) fn note_down(args: &[String]) -> Result<(), String> {
    let [file, program, ..] = args else { return Err("which file, which test program?".into()) };
    let dir = std::env::current_dir().map_err(|e| format!("the current directory: {e}"))?;
    let env = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        OF_PROGRAM.iter().any(|begin| name.starts_with(begin))
    });
    let program = Program { path: dir.join(program), dir, env: env.collect() };
    let shown = |e| format!("{file}: {e}");
    let mut file = fs::OpenOptions::new().create(true).append(true).open(file).map_err(shown)?;
    file.write_all(&program.write()).map_err(|e| format!("the list of test programs: {e}"))
}

/// Builds the test programs of a selection of packages, and the programs that they start.
pub(crate) fn build(selection: &[&str], what: &str) -> Result<Vec<Program>, String> {
    let file = noted();
    let _ = fs::remove_file(&file);
    let this = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    let runner = format!("target.'cfg(all())'.runner = [{this:?}, {NOTE_DOWN:?}, {file:?}]");
    Step::cargo(&["test"]).args(selection).args(&["--lib", "--bins", "--tests", "--config", &runner]).run(what)?;
    let text = fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let _ = fs::remove_file(&file);
    Ok(Program::read_all(&text))
}

/// What a program does most, which decides what it may run beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It waits most of the time and measures nothing: beside one more of its kind.
    Waits,
    /// It waits and measures nothing, but runs whole clusters, whose timeouts a busy machine does not keep: beside nothing but
    /// [`Kind::Computes`].
    Clusters,
    /// It measures, or changes settings of the machine: beside nothing but [`Kind::Computes`].
    Measures,
    /// It computes, in the processor time that all others leave.
    Computes,
}

/// One run of a program.
pub(crate) struct Job {
    pub(crate) what: String,
    pub(crate) program: Program,
    pub(crate) args: Vec<String>,
    pub(crate) kind: Kind,
}

/// A program that is not a test. Its directory is the workspace's, its environment this program's.
pub(crate) fn program(path: PathBuf) -> Program {
    Program { path, dir: run::root_dir(), env: Vec::new() }
}

type Queue = Mutex<VecDeque<Job>>;

/// Programs to run, those of each kind in the order in which they were added.
#[derive(Default)]
pub(crate) struct Jobs {
    waiting: Queue,
    clusters: Queue,
    measuring: Queue,
    computing: Queue,
    /// Nobody needs the processor more than the jobs that compute.
    is_late: AtomicBool,
    /// The processes of the jobs that compute.
    processes: Mutex<Vec<u32>>,
    ended: Mutex<Ended>,
}

#[derive(Default)]
struct Ended {
    total: Total,
    /// Programs that failed without a failed test.
    broken: Vec<String>,
    failures: Vec<Failure>,
}

/// A failed test.
#[derive(Debug)]
struct Failure {
    what: String,
    program: Program,
    test: String,
    /// What it printed.
    said: String,
}

/// What [`Jobs::run`] found, for a last line that names it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// Tests that failed, also alone if they ran again.
    pub(crate) failed: Vec<String>,
    /// Tests that failed and then passed, alone. Each is a test to be mended.
    pub(crate) unsteady: Vec<String>,
}

impl Jobs {
    pub(crate) fn add(&mut self, job: Job) {
        let queue = match job.kind {
            Kind::Waits => &mut self.waiting,
            Kind::Clusters => &mut self.clusters,
            Kind::Measures => &mut self.measuring,
            Kind::Computes => &mut self.computing,
        };
        queue.get_mut().expect("no job panics").push_back(job);
    }

    /// Runs all of them, adds their summaries up, and calls `late` once only jobs that compute are left. Failed
    /// tests are counted, said again in the end, and are not an error. An error is a program that failed without a failed test.
    ///
    /// A few failed tests run again, alone: a test may fail since the machine stood still for longer than it can
    /// bear, which one that is wrong does not explain. What passes then counts as passed, and is named.
    pub(crate) fn run(self, total: &mut Total, late: impl FnOnce()) -> Result<Named, String> {
        thread::scope(|scope| {
            scope.spawn(|| self.work(&self.computing));
            thread::scope(|scope| {
                scope.spawn(|| self.work(&self.waiting));
                self.work(&self.waiting);
            });
            self.work(&self.clusters);
            self.work(&self.measuring);
            self.is_late.store(true, Ordering::SeqCst);
            self.processes.lock().expect("no job panics").iter().for_each(|process| run::hurry(*process));
            late();
            self.work(&self.computing);
        });
        let (failures, mut named) = (std::mem::take(&mut self.lock().failures), Named::default());
        let again = failures.len() <= AGAIN_MAX;
        for failure in failures {
            let name = format!("{} ({})", failure.test, failure.what);
            println!("\n== failed\n{}: {}", failure.what, failure.said);
            if again && self.passes_alone(failure) {
                println!("== unsteady: it failed, and passed alone\n{name}");
                named.unsteady.push(name);
            } else {
                named.failed.push(name);
            }
        }
        let mut ended = self.ended.into_inner().expect("no job panics");
        ended.total.recover(named.unsteady.len() as u64);
        total.add_all(&ended.total);
        if ended.broken.is_empty() { Ok(named) } else { Err(ended.broken.join("; ")) }
    }

    fn lock(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().expect("no job panics")
    }

    fn passes_alone(&self, failure: Failure) -> bool {
        let args = vec![failure.test, "--exact".to_owned()];
        let job = Job { what: failure.what, program: failure.program, args, kind: Kind::Measures };
        let Ok((output, ran, status)) = self.run_one(&job) else { return false };
        println!("== alone: {} {}\n{output}", job.program.path.display(), job.args.join(" "));
        // Of a test that runs itself as a child there are two summaries.
        status.is_ok() && ran.failed == 0 && ran.passed > 0
    }

    fn work(&self, queue: &Queue) {
        loop {
            // The lock is released before the job runs.
            let Some(job) = queue.lock().expect("no job panics").pop_front() else { return };
            let begun = Instant::now();
            let outcome = self.run_one(&job);
            run::note(&job.what, begun);
            let (output, ran, status) = match outcome {
                Ok(ended) => ended,
                Err(why) => (String::new(), Total::default(), Err(why)),
            };
            let mut ended = self.lock();
            if status.is_err() || ran != Total::default() || job.args.is_empty() {
                println!("== {}: {} {}\n{output}", job.what, job.program.path.display(), job.args.join(" "));
            }
            ended.total.add_all(&ran);
            ended.failures.extend(summary::failures(&output).into_iter().map(|(test, said)| Failure {
                what: job.what.clone(),
                program: job.program.clone(),
                test,
                said,
            }));
            if let Err(why) = status
                && ran.failed == 0
            {
                ended.broken.push(format!("{}: {why}", job.what));
            }
        }
    }

    /// Its output, its summary, and how it ended.
    fn run_one(&self, job: &Job) -> Result<(String, Total, Result<(), String>), String> {
        let computes = job.kind == Kind::Computes;
        let mut command = if computes && !self.is_late.load(Ordering::SeqCst) {
            let [first, rest @ ..] = run::idle() else { return Err("no program for idle priority".into()) };
            let mut command = Command::new(first);
            command.args(rest).arg(&job.program.path);
            command
        } else {
            Command::new(&job.program.path)
        };
        let shown = |e| format!("{}: {e}", job.program.path.display());
        let (reader, writer) = std::io::pipe().map_err(shown)?;
        command.args(&job.args).current_dir(&job.program.dir).envs(job.program.env.iter().cloned());
        command.stdout(writer.try_clone().map_err(shown)?).stderr(writer);
        let mut child = command.spawn().map_err(shown)?;
        // With its ends of the pipe.
        drop(command);
        if computes {
            let mut processes = self.processes.lock().expect("no job panics");
            processes.push(child.id());
            if self.is_late.load(Ordering::SeqCst) {
                run::hurry(child.id());
            }
        }
        let lines = lines(reader);
        let (mut output, mut total, mut last) = (String::new(), Total::default(), Instant::now());
        let status = loop {
            match lines.recv_timeout(POLL) {
                Ok(line) => {
                    total.add(&line);
                    output.push_str(&line);
                    output.push('\n');
                    last = Instant::now();
                }
                Err(RecvTimeoutError::Disconnected) => break child.wait(),
                Err(RecvTimeoutError::Timeout) => match child.try_wait() {
                    Ok(Some(status)) => break Ok(status),
                    Ok(None) if last.elapsed() > run::SILENCE_MAX => {
                        output.push_str(&format!("it has said nothing for {:?} and is ended\n", run::SILENCE_MAX));
                        let _ = child.kill();
                        last = Instant::now();
                    }
                    Ok(None) => {}
                    Err(why) => break Err(why),
                },
            }
        };
        self.processes.lock().expect("no job panics").retain(|process| *process != child.id());
        let status = status.map_err(shown)?;
        Ok((output, total, if status.success() { Ok(()) } else { Err(status.to_string()) }))
    }
}

fn lines(from: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<String> {
    let (to, lines) = channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
        lines.try_for_each(|line| to.send(String::from_utf8_lossy(&line).into_owned()))
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(what: &str, script: &str, kind: Kind) -> Job {
        let args = vec!["-c".to_owned(), script.to_owned()];
        Job { what: what.to_owned(), program: program("/bin/sh".into()), args, kind }
    }

    #[test]
    fn programs_are_written_down_and_read_back() {
        let of = |name: &str| Program {
            path: format!("/t/debug/deps/{name}-1f2e").into(),
            dir: "/w/crates/a".into(),
            env: vec![("A".into(), "b=c".into()), ("EMPTY".into(), OsString::new())],
        };
        let programs = [of("end_to_end"), of("sim")];
        let text = programs.iter().flat_map(Program::write).collect::<Vec<u8>>();
        assert_eq!(Program::read_all(&text), programs);
        assert_eq!(programs[0].name(), "end_to_end");
        assert!(Program::read_all(b"").is_empty());
    }

    #[test]
    fn summaries_add_up_and_a_program_that_breaks_is_an_error() {
        let passes = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'";
        let fails = "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out'; exit 101";
        let (mut jobs, mut total, mut is_late) = (Jobs::default(), Total::default(), false);
        for kind in [Kind::Waits, Kind::Clusters, Kind::Measures, Kind::Computes] {
            jobs.add(job("passes", passes, kind));
        }
        jobs.add(job("fails", fails, Kind::Waits));
        let named = jobs.run(&mut total, || is_late = true).expect("failed tests are counted");
        assert_eq!((total.passed, total.failed, is_late), (13, 2, true));
        assert_eq!(named, Named::default());

        let mut jobs = Jobs::default();
        jobs.add(job("crashes", "kill -SEGV $$", Kind::Waits));
        jobs.add(job("passes", passes, Kind::Waits));
        let why = jobs.run(&mut total, || {}).expect_err("a crash");
        assert!(why.starts_with("crashes: signal: 11"), "{why}");
        assert_eq!(total.passed, 16);
    }

    /// A program of two tests, of which `always` fails, and `once` too unless it is alone.
    #[test]
    fn failed_tests_run_again_alone_and_are_named() {
        let path = target_dir().join(format!("xtask-tests-{}", std::process::id()));
        let script = r#"#!/bin/sh
summary() { echo "test result: $1. $2 passed; $3 failed; 0 ignored; 0 measured; 0 filtered out"; }
case "$1" in
    once) summary ok 1 0; exit 0 ;;
    always) summary FAILED 0 1; exit 101 ;;
esac
printf 'failures:\n\n---- once stdout ----\nslow\n\n---- always stdout ----\nwrong\n\n\nfailures:\n    once\n    always\n\n'
summary FAILED 7 2
exit 101
"#;
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (mut jobs, mut total) = (Jobs::default(), Total::default());
        jobs.add(Job { what: "tests".into(), program: program(path.clone()), args: Vec::new(), kind: Kind::Waits });
        let named = jobs.run(&mut total, || {}).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(named, Named { failed: vec!["always (tests)".into()], unsteady: vec!["once (tests)".into()] });
        assert_eq!((total.passed, total.failed), (8, 1));
    }

    /// The pipe stays open in a descendant.
    #[test]
    fn a_program_that_leaves_a_daemon_has_ended() {
        let begun = Instant::now();
        let (output, ..) = Jobs::default().run_one(&job("leaves", "sleep 600 & echo $!", Kind::Waits)).expect("it ran");
        assert!(begun.elapsed() < Duration::from_secs(300), "it waited for the daemon");
        Command::new("kill").arg(output.trim()).status().expect("killed");
    }
}
