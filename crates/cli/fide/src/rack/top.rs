// SPDX-License-Identifier: Apache-2.0
//! `fide rack top`: which programs' connections go over memory, which do not, and why.

mod text;

use std::{
    collections::{HashMap, HashSet},
    io::{IsTerminal, stdout},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use fide_rack::meet::Refused;
use serde_json::{Value, json};

use super::{
    kernel,
    place::candidates,
    view::{self, End, Greeting, Paired, Shown, Single, Standing, TAKEN_BACK, WAITS, Who},
};
use crate::{
    exit::Done,
    live::{drawn, interval},
    say::show,
};

/// A question that waits longer is taken back as its program uses the connection next.
const WAITS_MS: u64 = 10_000;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The monitor's socket; by default as `fide rack run` looks for it
    #[arg(long, value_name = "PATH")]
    monitor: Option<PathBuf>,
    /// Time between two views
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Print one view, and end
    #[arg(long)]
    once: bool,
    /// Only connections of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// A line for each connection, instead of one for each pair of programs
    #[arg(long)]
    connections: bool,
    /// Print one JSON object for each view
    #[arg(long)]
    json: bool,
}

/// What carries a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Over {
    Memory,
    /// To another host, over the memory that both see.
    Link,
    /// Both ends have been given memory; this user may not see whether they have taken it.
    Given,
    Tcp,
}

impl Over {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Link => "link",
            Self::Given => "memory?",
            Self::Tcp => "TCP",
        }
    }
}

/// A connection that stands, as far as is known.
#[derive(Debug, Clone)]
struct Line {
    /// Of a connection that stays with TCP, the program that has asked.
    client: Who,
    server: Option<Who>,
    end: Option<End>,
    over: Over,
    why: String,
    age_ms: u64,
    /// The number of its memory, and the bytes that it has carried to the server, and to the client, as far as this user may see them.
    memory: Option<u64>,
    carried: Option<[u64; 2]>,
}

/// What there was at a time.
struct Screen {
    path: PathBuf,
    greeting: Greeting,
    shown: Shown,
    lines: Vec<Line>,
    names: HashMap<u32, String>,
    at: Instant,
}

/// Why a connection stays with TCP, for people.
fn reason(single: &Single) -> String {
    match single.why.as_str() {
        WAITS if single.age_ms < WAITS_MS => "the other end has not asked yet".to_owned(),
        WAITS => "the other end has not asked: its program is not under `fide rack run`, or was before the monitor"
            .to_owned(),
        TAKEN_BACK => {
            "its program has taken the question back: the other end did not ask within ten seconds, or the connection has \
                       met what is not followed"
                .to_owned()
        }
        why => match Refused::ALL.iter().find(|refused| refused.name() == why) {
            Some(refused) => format!("refused: {refused}"),
            None => format!("refused: {why}"),
        },
    }
}

/// Where each process has which memory. None: this user may not look there.
type Mapped = HashMap<u32, Option<HashMap<u64, u64>>>;

/// What carries a pair's connection, by what its programs have mapped.
fn over(pair: &Paired, mapped: &Mapped, names: &HashMap<u32, String>) -> (Over, String) {
    let has = |who: Who| mapped.get(&who.pid)?.as_ref().map(|memories| memories.contains_key(&pair.memory));
    for who in [pair.client, pair.server] {
        if has(who) == Some(false) {
            let name = names.get(&who.pid).map_or("", String::as_str);
            return (Over::Tcp, format!("{name} ({}) has not taken the memory, or not yet", who.pid));
        }
    }
    if pair.is_over_link() && [pair.client, pair.server].into_iter().any(|who| has(who) == Some(true)) {
        return (Over::Link, String::new());
    }
    match (has(pair.client), has(pair.server)) {
        (Some(_), Some(_)) => (Over::Memory, String::new()),
        _ => (Over::Given, "given memory; whether another user's program has taken it is not to be seen".to_owned()),
    }
}

/// Bytes to the server, and to the client.
fn carried(pair: &Paired, mapped: &Mapped) -> Option<[u64; 2]> {
    let by = |who: Who| kernel::carried(who.pid, *mapped.get(&who.pid)?.as_ref()?.get(&pair.memory)?);
    let [first, second] = by(pair.client).or_else(|| by(pair.server))?;
    Some(if pair.is_client_first { [first, second] } else { [second, first] })
}

impl Screen {
    fn take(arguments: &Arguments) -> Result<Self, crate::exit::Failure> {
        let (path, greeting, shown) = view::first(&candidates(arguments.monitor.as_deref()))?;
        Ok(Self::of(path, greeting, shown, arguments.pid))
    }

    fn of(path: PathBuf, greeting: Greeting, shown: Shown, only: Option<u32>) -> Self {
        let is_asked = |who: &Who| only.is_none_or(|pid| who.pid == pid);
        let live: HashSet<Who> = shown.programs.iter().copied().collect();
        let paired: Vec<&Paired> =
            shown.paired.iter().filter(|pair| is_asked(&pair.client) || is_asked(&pair.server)).collect();
        let single: Vec<&Single> = shown.single.iter().filter(|single| is_asked(&single.program)).collect();
        let of_pairs = paired.iter().flat_map(|pair| [pair.client, pair.server].map(|who| (pair.end.netns, who)));
        let of_single = single.iter().filter_map(|single| Some((single.end.as_ref()?.netns, single.program)));
        // The number of a process that has ended may be another one's.
        let all = of_pairs.chain(of_single).filter(|(_, who)| live.contains(who)).map(|(netns, who)| (netns, who.pid));
        let standing = Standing::of(all);
        // If that is not known: as long as one of its programs is there.
        let stands =
            |end: &End, of: &[Who]| standing.has(end).unwrap_or_else(|| of.iter().any(|who| live.contains(who)));
        let pids = paired.iter().flat_map(|pair| [pair.client.pid, pair.server.pid]);
        let pids: HashSet<u32> = pids.chain(single.iter().map(|single| single.program.pid)).collect();
        let names = pids.iter().filter_map(|pid| Some((*pid, kernel::name(*pid)?))).collect();
        let memories = |pid: &u32| kernel::mapped(*pid).ok().map(|mapped| mapped.memories);
        let mapped: Mapped = pids.iter().map(|pid| (*pid, memories(pid))).collect();
        let mut lines: Vec<Line> = Vec::new();
        for pair in paired.into_iter().filter(|pair| stands(&pair.own(), &[pair.client, pair.server])) {
            let (over, why) = over(pair, &mapped, &names);
            let (client, server, end) = (pair.client, Some(pair.server), Some(pair.end.clone()));
            let (memory, carried) = (Some(pair.memory), carried(pair, &mapped));
            lines.push(Line { client, server, end, over, why, age_ms: pair.age_ms, memory, carried });
        }
        for single in
            single.into_iter().filter(|single| single.end.as_ref().is_some_and(|end| stands(end, &[single.program])))
        {
            let (client, end) = (single.program, single.end.clone());
            let why = reason(single);
            let (over, age_ms) = (Over::Tcp, single.age_ms);
            lines.push(Line { client, server: None, end, over, why, age_ms, memory: None, carried: None });
        }
        Self { path, greeting, shown, lines, names, at: Instant::now() }
    }

    fn name(&self, who: Who) -> String {
        if who == Who::ELSEWHERE {
            return "another host".to_owned();
        }
        let name = self.names.get(&who.pid).map_or("?", String::as_str);
        format!("{name} ({})", who.pid)
    }

    /// How often a second the monitor has brought two ends together since the view before.
    fn paired_per_s(&self, before: Option<&Self>) -> Option<f64> {
        let before = before.filter(|before| before.greeting.pid == self.greeting.pid)?;
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let paired = self.shown.counts.paired.saturating_sub(before.shown.counts.paired);
        (seconds > 0.0).then(|| paired as f64 / seconds)
    }

    /// Bytes a second since the view before, to the server and to the client.
    fn per_s(&self, line: &Line, before: Option<&Self>) -> Option<[f64; 2]> {
        let before = before?;
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let former = before.lines.iter().find(|former| line.memory.is_some() && former.memory == line.memory)?;
        let ([there, back], [there_before, back_before]) = (line.carried?, former.carried?);
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        (seconds > 0.0).then(|| [per_s(there, there_before), per_s(back, back_before)])
    }

    fn object(&self, before: Option<&Self>) -> Value {
        let who = |of: Who| match of {
            Who::ELSEWHERE => json!({ "elsewhere": true }),
            _ => json!({ "pid": of.pid, "uid": of.uid, "program": self.names.get(&of.pid) }),
        };
        let line = |line: &Line| {
            json!({
                "client": who(line.client),
                "server": line.server.map(who),
                "local": line.end.as_ref().map(|end| end.local),
                "peer": line.end.as_ref().map(|end| end.peer),
                "over": match line.over {
                    Over::Memory => "memory",
                    Over::Link => "link",
                    Over::Given => "given",
                    Over::Tcp => "tcp",
                },
                "why": Some(&line.why).filter(|why| !why.is_empty()),
                "age_ms": line.age_ms,
                "carried_bytes": line.carried.map(|[there, back]| json!({ "to_server": there, "to_client": back })),
                "carried_bytes_per_s": self
                    .per_s(line, before)
                    .map(|[there, back]| json!({ "to_server": there, "to_client": back })),
            })
        };
        json!({
            "monitor": { "socket": self.path, "pid": self.greeting.pid, "uid": self.greeting.uid, "up_ms": self.shown.up_ms },
            "of_all_users": self.shown.is_of_all,
            "counts": self.shown.counts,
            "paired_per_s": self.paired_per_s(before),
            "links": self.shown.links,
            "connections": self.lines.iter().map(line).collect::<Vec<_>>(),
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let mut bar = None;
    let mut before: Option<Screen> = None;
    let mut next = Instant::now();
    loop {
        let screen = Screen::take(arguments)?;
        if arguments.json {
            show!("{}", screen.object(before.as_ref()))?;
        } else {
            let text = text::text(&screen, before.as_ref(), arguments.connections);
            match (arguments.once, stdout().is_terminal()) {
                (false, true) => bar.get_or_insert_with(drawn).set_message(text),
                _ => show!("{text}")?,
            }
        }
        if arguments.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(screen);
        next += arguments.every;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(pid: u32) -> Who {
        Who { pid, uid: 1 }
    }

    #[test]
    fn memory_counts_once_both_programs_have_taken_it() {
        let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let end = End { netns: 1, local: at(1), peer: at(2) };
        let pair = Paired { end, client: who(1), server: who(2), is_client_first: true, memory: 7, age_ms: 0 };
        let names = HashMap::from([(2, "redis".to_owned())]);
        let taken = |server: Option<&[u64]>| {
            let server = server.map(|memories| memories.iter().map(|number| (*number, 0)).collect());
            over(&pair, &HashMap::from([(1, Some(HashMap::from([(7, 0), (8, 0)]))), (2, server)]), &names)
        };
        assert_eq!(taken(Some(&[7])), (Over::Memory, String::new()));
        assert_eq!(taken(Some(&[8])).0, Over::Tcp);
        assert!(taken(Some(&[8])).1.starts_with("redis (2) has not taken"));
        assert_eq!(taken(None).0, Over::Given);
    }

    #[test]
    fn reasons_are_said_in_words() {
        let of = |why: &str, age_ms| reason(&Single { end: None, program: who(1), why: why.to_owned(), age_ms });
        assert!(of(WAITS, 1).ends_with("yet") && of(WAITS, WAITS_MS).contains("fide rack run"));
        assert!(of("unproven", 0).contains("TCP_SAVE_SYN") && of("of a later release", 0).contains("later release"));
    }
}
