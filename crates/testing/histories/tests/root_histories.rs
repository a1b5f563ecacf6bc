// SPDX-License-Identifier: Apache-2.0
//! Histories of real members under faults are linearizable, and histories of faulty members are not.

use std::{path::PathBuf, time::Duration};

use fide_histories::{
    judge,
    member::{Planted, Protocol},
    plan::{Plan, scenarios},
    run::{Options, Outcome, Programs, run},
};

/// Far longer than needed: a shared machine is no reason to fail.
const RECOVERY_LIMIT: Duration = Duration::from_secs(20);

fn options(planted: Option<Planted>) -> Option<Options> {
    if let Err(why) = fide_testbed::supported() {
        println!("skipped: {why}");
        return None;
    }
    let judge = match fide_testbed::find_binary(judge::PROGRAM) {
        Ok(judge) => judge,
        Err(why) => {
            println!("skipped: {why}; `make test` builds it, where Go is");
            return None;
        }
    };
    let agent = fide_testbed::find_binary("fide").expect("`cargo build --bins`");
    let programs = Programs { agent, histories: env!("CARGO_BIN_EXE_histories").into(), judge };
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("histories");
    Some(Options { programs, planted, guest: None, recovery_limit: RECOVERY_LIMIT, recovery_goal: RECOVERY_LIMIT, out })
}

fn named(name: &str, protocol: Protocol) -> Plan {
    let scenario = scenarios().iter().find(|scenario| scenario.name == name).expect("a scenario");
    scenario.plan(1, protocol)
}

fn said(outcome: &Outcome) -> String {
    let Outcome { diary, problems, .. } = outcome;
    format!("{}\n{}\n{}", outcome.replay(), diary.join("\n"), problems.join("\n"))
}

fn holds(plans: &[Plan]) {
    let Some(options) = options(None) else { return };
    for plan in plans {
        let outcome = run(plan, &options);
        assert!(outcome.is_ok(), "{}", said(&outcome));
        assert!(outcome.operations > 100, "{}", said(&outcome));
    }
}

fn is_found(planted: Planted, plan: &Plan) {
    let Some(options) = options(Some(planted)) else { return };
    let outcome = run(plan, &options);
    assert!(outcome.is_illegal(), "{}", said(&outcome));
    let verdict = outcome.verdict.as_ref().expect("a verdict");
    assert!(!verdict.drawn.is_empty() && verdict.drawn.iter().all(|path| path.exists()), "{verdict:?}");
    assert!(outcome.kept.as_ref().is_some_and(|dir| dir.join("history-0.jsonl").exists()), "{}", said(&outcome));
}

#[test]
fn root_planted_stale_read_is_found() {
    is_found(Planted::StaleRead, &named("leader-cut", Protocol::Hsuc));
}

#[test]
fn root_planted_early_answer_is_found() {
    is_found(Planted::EarlyAnswer, &named("leaders-killed", Protocol::Huc));
}

#[test]
fn root_killed_leaders_lose_nothing() {
    holds(&[named("leaders-killed", Protocol::Hsuc), named("leaders-killed", Protocol::Huc)]);
}

#[test]
fn root_nothing_is_lost_while_no_majority_hears_itself() {
    holds(&[named("majority-cut", Protocol::Hsuc)]);
}

/// A restarted agent has a lease before its host's member knows that the host was excluded.
#[test]
fn root_restarted_agent_revives_no_old_leader() {
    holds(&[named("agent-restart", Protocol::Hsuc), named("agent-restart-3", Protocol::Huc)]);
}

/// The member restarts before the host is let in.
#[test]
fn root_unheard_host_comes_back() {
    holds(&[named("parted", Protocol::Hsuc)]);
}

/// Two faults at a time. `make histories` runs more of them.
#[test]
fn root_histories_by_seed_are_linearizable() {
    holds(&(1..=4).map(Plan::of).collect::<Vec<_>>());
}

#[test]
fn root_pause_of_all_hosts_loses_nothing() {
    holds(&[named("all-paused", Protocol::Huc)]);
}

/// Also while the group had gone on without its leader.
#[test]
fn root_nothing_is_lost_when_all_processes_end() {
    holds(&[
        named("power-cut", Protocol::Hsuc),
        named("power-cut-3", Protocol::Huc),
        Plan::durable(1),
        Plan::durable(2),
    ]);
}
