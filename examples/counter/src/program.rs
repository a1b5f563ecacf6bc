// SPDX-License-Identifier: Apache-2.0
//! The replica: one thread that feeds a member, applies its decisions, and obeys the orders on its standard
//! input.

use std::{
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use fide_client::now_ns;
use fide_group::{
    Config, ConnectOptions, Entry, Hsuc, Huc, Identity, Key, Member, Standing, Start, batch, entries, hsuc, huc,
    wake_eagerly,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{
    lines::{Add, Order, Reported},
    load::Load,
    state::{CLIENTS_MAX, State, VALUE_MIN, Value},
};

/// Longest line of orders.
const LINE_MAX: usize = 1 << 20;
/// Time between two messages of a replica that waits to be a member.
const SAY_NS: u64 = 2_000_000_000;
/// From so many clients on, HUC sends values ahead as payloads of many: fewer clients fit into a heartbeat.
const BUNDLES: usize = 10;
/// The replica ends by itself after this time.
const LIFE_NS: u64 = 3_600_000_000_000;

/// The protocol of the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Protocol {
    #[default]
    Hsuc,
    Huc,
}

impl Protocol {
    /// The protocol as an argument.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hsuc => "hsuc",
            Self::Huc => "huc",
        }
    }
}

/// One replica of a counter. Orders come as lines of JSON; it ends when its standard input does.
#[derive(Debug, Parser)]
#[command(name = "fide-counter", no_binary_name = true)]
struct Args {
    #[arg(long)]
    group: String,
    /// Names, with commas between them.
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<String>,
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    state_dir: PathBuf,
    #[arg(long)]
    key_file: PathBuf,
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    /// Instances under way in HSUC.
    #[arg(long, default_value_t = 32)]
    window: u64,
    /// Time between two resends of unanswered messages; by default the member's own.
    #[arg(long)]
    resend_ms: Option<u64>,
}

struct Replica<P: Start> {
    member: Member<P>,
    /// From so many clients on, values go as payloads.
    bundles: Option<usize>,
    /// Payloads that the present decision names.
    named: Vec<Identity>,
    state: State,
    load: Option<Load>,
    /// A load that waits until the replica leads.
    standby: Option<(String, u32, u32)>,
    /// Requests of clients outside that wait for room.
    adds: Vec<Add>,
    counted: Vec<Add>,
    input: Vec<u8>,
    leader: u16,
    /// When the replica learned that it leads, until it has reported that it speaks for all.
    knew_ns: Option<u64>,
    /// The replica has reported that it leads, and no decision of its clients has come since.
    first: bool,
    is_member: bool,
    /// Number of the view that was reported last.
    view: u32,
    leaves: bool,
    runs: u64,
}

fn say(reported: &Reported) {
    let mut line = serde_json::to_vec(reported).expect("numbers and words");
    line.push(b'\n');
    // If the program that started this one is gone, its input ends too.
    let _ = io::stdout().write_all(&line);
}

/// Applies one value of the log. True if it belongs to this replica's own load.
fn apply(state: &mut State, load: &mut Option<Load>, counted: &mut Vec<Add>, bytes: &[u8], now: u64) -> bool {
    state.apply(bytes);
    match (Value::read(bytes), load) {
        (Some(Value { run: 0, add }), _) => {
            counted.push(add);
            false
        }
        (Some(value), Some(load)) => load.delivered(&value, now),
        _ => false,
    }
}

impl<P: Start> Replica<P> {
    fn open(args: &Args, setting: P::Setting, bundles: Option<usize>) -> anyhow::Result<Self> {
        let key = std::fs::read_to_string(&args.key_file)
            .with_context(|| format!("reading {}", args.key_file.display()))?
            .parse::<Key>()?;
        let hosts: Vec<&str> = args.hosts.iter().map(String::as_str).collect();
        let mut config = Config::new(&args.group, &hosts, key, &args.state_dir, setting);
        config.resend = args.resend_ms.map_or(config.resend, Duration::from_millis);
        let options = ConnectOptions { path: Some(args.socket.clone()), ..ConnectOptions::default() };
        let member = Member::open(config, options)?;
        let stdin = io::stdin();
        fcntl_setfl(&stdin, fcntl_getfl(&stdin)? | OFlags::NONBLOCK)?;
        member.watch(&stdin)?;
        Ok(Self {
            member,
            bundles,
            named: Vec::new(),
            state: State::default(),
            load: None,
            standby: None,
            adds: Vec::new(),
            counted: Vec::new(),
            input: Vec::new(),
            leader: 0,
            knew_ns: None,
            first: false,
            is_member: false,
            view: 0,
            leaves: false,
            runs: now_ns() | 1,
        })
    }

    /// Applies delivered decisions.
    fn apply(&mut self) -> anyhow::Result<()> {
        let now = now_ns();
        if let Some((_, bytes)) = self.member.poll_install() {
            self.state = State::read(&bytes).context("the state that another member has sent is none")?;
        }
        let mut own = false;
        while let Some(decision) = self.member.poll_decision() {
            for entry in entries(decision.value) {
                match entry {
                    Entry::Value(bytes) => own |= apply(&mut self.state, &mut self.load, &mut self.counted, bytes, now),
                    Entry::Payload(identity) => self.named.push(identity),
                    Entry::View(_) => {}
                }
            }
            // After the values, on all members alike.
            for identity in self.named.drain(..) {
                let payload = self
                    .member
                    .payload(&identity)
                    .with_context(|| format!("{identity} was decided and is not here"))?;
                for bytes in batch::values(payload) {
                    own |= apply(&mut self.state, &mut self.load, &mut self.counted, bytes, now);
                }
            }
        }
        if own && std::mem::take(&mut self.first) {
            say(&Reported::First { node: self.member.host(), ns: now_ns() });
        }
        if self.member.wants_state() {
            // The state is too long for now: a joining member asks again.
            let _ = self.member.give_state(self.state.write());
        }
        if !self.counted.is_empty() {
            let counted = std::mem::take(&mut self.counted);
            if self.member.leads() {
                self.first = false;
                say(&Reported::Counted {
                    node: self.member.host(),
                    counted,
                    counter: self.state.counter,
                    ns: now_ns(),
                });
            }
        }
        Ok(())
    }

    /// Reports the leader, and acts on it. False once the replica was removed from the group.
    fn lead(&mut self) -> anyhow::Result<bool> {
        let node = self.member.host();
        match self.member.standing() {
            Standing::Leaving if !self.leaves => {
                self.leaves = true;
                say(&Reported::Leaving { node });
            }
            Standing::Removed => {
                say(&Reported::Removed { node });
                return Ok(false);
            }
            Standing::Member if !self.is_member => {
                self.is_member = true;
                say(&Reported::Ready { node, ns: now_ns() });
            }
            // The host was excluded: the replica keeps its state, and asks to be let in.
            Standing::Joining => (self.is_member, self.view, self.leaves) = (false, 0, false),
            Standing::Excluded | Standing::Left => bail!("the group goes on without this host"),
            Standing::Lacking => {
                bail!("a decision names a payload that is not here; start this replica again, and it joins")
            }
            _ => {}
        }
        if let Some(view) = self.member.view().filter(|view| self.is_member && view.number() != self.view) {
            self.view = view.number();
            let hosts = view.members().iter().map(|member| member.host).collect();
            say(&Reported::View { node, number: self.view, hosts });
        }
        let leader = self.member.leader().unwrap_or(0);
        if leader != self.leader {
            self.leader = leader;
            let ns = now_ns();
            say(&Reported::Leader { node, id: leader, ns, died_ns: self.member.death_ns() });
            self.knew_ns = (leader == node).then_some(ns);
        }
        if let Some(knew_ns) = self.knew_ns.filter(|_| self.member.may_answer()) {
            self.knew_ns = None;
            self.first = true;
            say(&Reported::Leads { node, died_ns: self.member.death_ns(), knew_ns, ns: now_ns() });
            if let Some((name, clients, value_bytes)) = self.standby.take() {
                self.begin(name, clients, value_bytes, None);
            }
        }
        Ok(true)
    }

    fn begin(&mut self, run: String, clients: u32, value_bytes: u32, seconds: Option<f64>) {
        self.runs += 1;
        match Load::new(run.clone(), self.runs, clients, value_bytes, seconds, now_ns()) {
            Ok(load) => self.load = Some(load),
            Err(why) => say(&Reported::Refused { run, leader: self.leader, why }),
        }
    }

    fn work(&mut self) {
        if self.load.is_some() {
            let now = now_ns();
            if let Some(load) = &mut self.load
                && self.member.leads()
            {
                match self.bundles {
                    Some(bundles) => load.propose_bundles(&mut self.member, now, bundles),
                    None => load.propose(&mut self.member, now),
                }
            }
            if let Some(load) = self.load.take_if(|load| load.is_over(now)) {
                say(&load.result());
            }
        }
        let mut value = [0; VALUE_MIN];
        let mut taken = 0;
        for add in &self.adds {
            Value { run: 0, add: *add }.write(&mut value);
            if self.member.propose(&value).is_err() {
                break;
            }
            taken += 1;
        }
        self.adds.drain(..taken);
        if !self.member.leads() {
            // Their clients send them to the next leader.
            self.adds.clear();
        }
    }

    /// False at the end of the input.
    fn obey(&mut self) -> anyhow::Result<bool> {
        let mut buffer = [0; 64 << 10];
        match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno).context("reading orders"),
        }
        if self.input.len() > LINE_MAX {
            bail!("a line of orders is at most {LINE_MAX} bytes");
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let order = serde_json::from_slice(&line);
            self.order(order.with_context(|| format!("an order: {}", String::from_utf8_lossy(&line)))?);
        }
        Ok(true)
    }

    fn order(&mut self, order: Order) {
        let node = self.member.host();
        match order {
            Order::Run { run, clients, value_bytes, seconds } => {
                if self.member.leads() {
                    self.begin(run, clients, value_bytes, Some(seconds));
                } else {
                    say(&Reported::Refused { run, leader: self.leader, why: "it does not lead".to_owned() });
                }
            }
            Order::Takeover { takeover, clients, value_bytes } => {
                self.standby = Some((takeover, clients, value_bytes));
                if self.member.may_answer()
                    && let Some((name, clients, value_bytes)) = self.standby.take()
                {
                    self.begin(name, clients, value_bytes, None);
                }
            }
            Order::Enough { .. } => {
                if let Some(load) = &mut self.load {
                    load.end(now_ns());
                }
            }
            Order::Add { add } => self.adds.extend(add.iter().filter(|add| add.client < CLIENTS_MAX)),
            Order::Remove { remove } => {
                if let Err(why) = self.member.remove(remove) {
                    let (run, why) = ("remove".to_owned(), why.to_string());
                    say(&Reported::Refused { run, leader: self.leader, why });
                }
            }
            Order::State { .. } => {
                let State { applied, hash, counter, .. } = self.state;
                say(&Reported::State { node, applied, hash: format!("{hash:016x}"), counter });
            }
        }
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let end_ns = now_ns() + LIFE_NS;
        let mut said_ns = now_ns();
        while now_ns() < end_ns {
            if now_ns() > said_ns + SAY_NS
                && let Some(what) = self.member.waits_for().map(|what| format!("no member yet: {what}")).or_else(|| {
                    // The replica is a member all the same.
                    self.member.unstored().map(str::to_owned)
                })
            {
                said_ns = now_ns();
                eprintln!("{what}");
            }
            self.member.wait(Some(Duration::from_millis(100)))?;
            self.apply()?;
            if !self.lead()? {
                break;
            }
            if self.member.take_watched() && !self.obey()? {
                break;
            }
            self.work();
        }
        Ok(())
    }
}

/// Runs a replica, as a program.
///
/// # Errors
/// It cannot begin or continue; the error says why.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    // Without this feature of the kernel, the replica runs a little later.
    let _ = wake_eagerly();
    let args = Args::try_parse_from(args)?;
    match args.protocol {
        Protocol::Hsuc => Replica::<Hsuc>::open(&args, hsuc(args.window), None)?.run(),
        Protocol::Huc => Replica::<Huc>::open(&args, huc(), Some(BUNDLES))?.run(),
    }
}
