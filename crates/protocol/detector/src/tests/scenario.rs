// SPDX-License-Identifier: Apache-2.0
//! Runs `scenarios/*.txt`: blocks of commands, `----`, the trace they must give, an empty line.
//! `FIDE_REWRITE=1` writes the traces anew. Commands:
//!
//! ```text
//! cluster N [policy=majority|network] [trust=lease|network] [timeout=5ms[,60ms,...]] [planes=2] [urgent=0] [promise=4] [observers=K] [witness=h3] [watch=h1>h2,...]
//! net [latency=50us] [jitter=0us] [loss=0] [dup=0]      (loss and dup per mille)
//! recall h3 [timeout=5ms]                               (a witness that has crashed)
//! advance 10ms | start h1 | crash h1 | restart h1 [timeout=5ms] | pause h1 50ms | leave h1 | stay       (stay: no restart when excluded)
//! record | replay h2 h1                                 (what was recorded of h2 goes to h1, over and over)
//! cut h1 [h2] [plane 0] | deafen h1 h3 | heal           (deafen: h1 does not hear h3)
//! join h1 NAME | exit h1 NAME CODE | kill h1 NAME SIGNAL | quit h1 NAME | stall h1 NAME | recover h1 NAME
//! piggyback h1 NAME SIZE [xCOUNT] | monitor h1 NAME@h2 [pbsize=N] [timeout=5ms] | timeout h1 h2 8ms
//! show h1                                               (what it knows)
//! ```

use super::world::World;
use crate::config::tests::cluster;
use crate::*;
use fide_types::host_index;
use fide_wire::MAX_PROCESSES;
use std::fmt::Write;

fn span(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len()));
    let scale = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => panic!("{text}: give a time in us, ms or s"),
    };
    number.parse::<u64>().unwrap() * scale
}

fn host(text: &str) -> usize {
    text.strip_prefix('h').and_then(|n| n.parse::<usize>().ok()).expect("a host is h1, h2, ...") - 1
}

fn option<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
}

fn make(words: &[&str]) -> World {
    let n: u16 = words[1].parse().unwrap();
    let observers: u16 = option(words, "observers").map_or(0, |k| k.parse().unwrap());
    let configs = (1..=n)
        .map(|me| {
            let mut c = cluster(n);
            c.me = me;
            // One for all, or one for each host in turn; the last is that of all who follow.
            let timeouts: Vec<u64> = option(words, "timeout").unwrap_or("5ms").split(',').map(span).collect();
            c.timeout_ns = timeouts[host_index(me).min(timeouts.len() - 1)];
            c.planes = option(words, "planes").map_or(2, |p| p.parse().unwrap());
            c.policy = if option(words, "policy") == Some("network") { Policy::Network } else { Policy::Majority };
            c.trust = if option(words, "trust") == Some("network") { Trust::Network } else { Trust::Lease };
            for member in c.members.iter_mut().rev().take(usize::from(observers)) {
                member.role = Role::Observer;
            }
            if let Some(witness) = option(words, "witness") {
                c.members[host(witness)].role = Role::Witness;
            }
            if let Some(watch) = option(words, "watch") {
                for (who, whom) in watch.split(',').map(|w| w.split_once('>').unwrap()) {
                    let monitors = &mut c.members[host(who)].monitors;
                    *monitors = whom.split('+').map(|h| host(h) as u16 + 1).collect();
                }
            }
            c
        })
        .collect();
    let mut world = World::new(configs, 1);
    world.strict = option(words, "trust") != Some("network");
    for node in 0..usize::from(n) {
        world.nodes[node].promise_factor =
            option(words, "promise").map_or(world.nodes[node].promise_factor, |most| most.parse().unwrap());
        world.nodes[node].urgent_max = option(words, "urgent").map_or(0, |most| most.parse().unwrap());
        world.start(node);
    }
    world
}

fn slot_of(world: &World, node: usize, name: &str) -> u8 {
    let d = world.nodes[node].detector.as_ref().expect("the host is down");
    d.find(node as u16 + 1, &name.parse().unwrap()).expect("no such process")
}

fn command(world: &mut World, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let node = words.get(1).filter(|w| w.starts_with('h')).map_or(0, |w| host(w));
    let now = world.local_ns(node);
    match words[0] {
        "net" => {
            world.latency_ns = option(&words, "latency").map_or(50_000, span);
            world.jitter_ns = option(&words, "jitter").map_or(0, span);
            world.loss = option(&words, "loss").map_or(0, |v| v.parse().unwrap());
            world.duplicate = option(&words, "dup").map_or(0, |v| v.parse().unwrap());
        }
        "advance" => world.run(span(words[1])),
        "start" | "restart" => {
            if let Some(timeout) = option(&words, "timeout") {
                world.nodes[node].config.timeout_ns = span(timeout);
            }
            world.start(node);
        }
        "crash" => world.crash(node),
        "recall" => {
            if let Some(timeout) = option(&words, "timeout") {
                world.nodes[node].config.timeout_ns = span(timeout);
            }
            world.recall(node);
        }
        "pause" => world.nodes[node].paused_until_ns = world.now_ns + span(words[2]),
        "record" => world.record(),
        "replay" => world.replay(node, host(words[2])),
        "stay" => world.auto_restart = false,
        "heal" => world.cuts.clear(),
        "deafen" => world.cuts.extend((0..2).map(|plane| (host(words[2]), node, plane))),
        "cut" => {
            let only = line.split_once("plane ").map(|(_, p)| p.trim().parse::<u8>().unwrap());
            let other = words.get(2).filter(|w| w.starts_with('h')).map(|w| host(w));
            for plane in (0..2).filter(|p| only.is_none_or(|o| o == *p)) {
                match other {
                    Some(other) => world.cuts.extend([(node, other, plane), (other, node, plane)]),
                    None => world.isolate(node, plane, true),
                }
            }
        }
        "leave" => world.nodes[node].detector.as_mut().unwrap().leave(now),
        "piggyback" => {
            let slot = slot_of(world, node, words[2]);
            let count = words.get(4).map_or(1, |c| c.trim_start_matches('x').parse().unwrap());
            for _ in 0..count {
                if let Err(error) = world.piggyback(node, slot, words[3].parse().unwrap()) {
                    world.trace.push(format!("h{} declined: {error}", node + 1));
                }
            }
        }
        "join" => {
            let result = world.nodes[node].detector.as_mut().unwrap().join(now, words[2].parse().unwrap());
            if let Err(error) = result {
                world.trace.push(format!("h{} refused: {error}", node + 1));
            }
        }
        "exit" | "kill" | "quit" | "stall" | "recover" => {
            let slot = slot_of(world, node, words[2]);
            let number = words.get(3).map_or(0, |n| n.parse().unwrap());
            let state = match words[0] {
                "exit" => ProcessState::Exited(number),
                "kill" => ProcessState::Killed(number),
                "quit" => ProcessState::Left,
                "stall" => ProcessState::Stalled,
                _ => ProcessState::Alive,
            };
            let result = world.nodes[node].detector.as_mut().unwrap().process_changed(now, slot, state, now);
            if let Err(error) = result {
                world.trace.push(format!("h{} refused: {error}", node + 1));
            }
        }
        "monitor" => {
            let (name, at) = words[2].split_once('@').unwrap();
            let process = (!name.is_empty()).then(|| name.parse().unwrap());
            let target = Target { host: at.trim_start_matches('h').parse().unwrap(), process };
            let wanted = Wanted {
                timeout_ns: option(&words, "timeout").map_or(0, span),
                pbsize: option(&words, "pbsize").map_or(0, |v| v.parse().unwrap()),
            };
            let detector = world.nodes[node].detector.as_mut().unwrap();
            let said = match detector.monitor(target, wanted, 0xff) {
                Ok(granted) => format!("granted {}us {} bytes", granted.timeout_ns / 1000, granted.pbsize),
                Err(error) => format!("refused: {error}"),
            };
            world.trace.push(format!("h{} {said}", node + 1));
        }
        "timeout" => {
            let peer = host(words[2]) as u16 + 1;
            if let Err(error) = world.nodes[node].detector.as_mut().unwrap().set_timeout(now, peer, span(words[3])) {
                world.trace.push(format!("h{} refused: {error}", node + 1));
            }
        }
        "show" => {
            let line = show(world, node);
            world.trace.push(line);
        }
        other => panic!("no such command: {other}"),
    }
}

fn show(world: &World, node: usize) -> String {
    let Some(d) = &world.nodes[node].detector else { return format!("h{}: down", node + 1) };
    let mut out = format!("h{}#{}", node + 1, d.config().incarnation);
    let view = d.view();
    if !view.id.is_none() {
        write!(out, " view {}.{}", view.id.generation, view.id.number).unwrap();
    }
    if d.is_fenced(world.local_ns(node)) {
        out += " fenced";
    }
    for (id, p) in (1..=world.nodes.len() as u16).filter_map(|id| Some((id, d.peer(id)?))) {
        let alive = (0..MAX_PROCESSES as u8).filter(|s| d.process(id, *s).is_some_and(|p| !p.state.is_final())).count();
        write!(out, " | h{id}#{} {:?} {alive} processes", p.incarnation, p.state).unwrap();
        if p.suspected {
            out += " suspected";
        }
    }
    out
}

pub(super) fn run(text: &str) -> String {
    let mut out = String::new();
    let mut world: Option<World> = None;
    let mut expecting = false;
    for line in text.lines() {
        if expecting {
            expecting = !line.is_empty();
            if !expecting {
                out += "\n";
            }
            continue;
        }
        out += line;
        out += "\n";
        if line == "----" {
            expecting = true;
            if let Some(world) = &mut world {
                for line in world.trace.drain(..) {
                    out += line.trim();
                    out += "\n";
                }
            }
        } else if line.starts_with("cluster") {
            world = Some(make(&line.split_whitespace().collect::<Vec<_>>()));
        } else if !line.is_empty() && !line.starts_with('#') {
            command(world.as_mut().expect("start with: cluster N"), line);
        }
    }
    out
}

#[test]
fn scenarios() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the scenarios are gone");
    let mut wrong = Vec::new();
    for file in files {
        let expected = std::fs::read_to_string(&file).unwrap();
        let got = run(&expected);
        if got != expected {
            if std::env::var("FIDE_REWRITE").is_ok() {
                std::fs::write(&file, got).unwrap();
            } else {
                let different = got.lines().zip(expected.lines()).find(|(a, b)| a != b);
                wrong.push(format!("{}: now / before {different:#?}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "run with FIDE_REWRITE=1 and read the difference:\n{}", wrong.join("\n"));
}
