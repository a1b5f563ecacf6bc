// SPDX-License-Identifier: Apache-2.0
//! The member of the group as a program: one thread that feeds [`fide_group::Member`], applies its decisions,
//! and answers clients.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::net::{SocketAddr, UnixDatagram},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use fide_agreement::{Hsuc, Huc, Start};
use fide_client::{ConnectOptions, now_ns};
use fide_group::{Config, Entry, Key, Member, Standing, entries, hsuc, huc};

use crate::{
    lines::{Answer, Ask, DATAGRAM_MAX, Reported, Stands, to_bytes},
    register::{Change, Id, Op, Registers},
};

/// Most datagrams of clients that are taken in one turn.
const ASKED_PER_TURN: usize = 64;
/// Changes that wait for their decision; further ones are refused.
const WAITING_MAX: usize = 4096;
/// Time between two messages of a program that waits to be a member.
const SAY_NS: u64 = 1_000_000_000;
/// The program ends by itself after this time.
const LIFE_NS: u64 = 600_000_000_000;

/// The protocol of the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Protocol {
    Hsuc,
    Huc,
}

impl Protocol {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hsuc => "hsuc",
            Self::Huc => "huc",
        }
    }
}

/// Bytes of decisions after which a durable member stores its state.
const COMPACT_BYTES: u64 = 64 << 10;

/// A fault in the member itself, which the judge has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Planted {
    /// Every member answers reads from its state, whether it may or not.
    StaleRead,
    /// A write is answered when it is proposed, before it is decided.
    EarlyAnswer,
}

impl Planted {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StaleRead => "stale-read",
            Self::EarlyAnswer => "early-answer",
        }
    }
}

/// One member. It ends when its host is excluded.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Args {
    #[arg(long)]
    group: String,
    /// Names, with commas between them.
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<String>,
    /// Socket of this host's agent.
    #[arg(long)]
    agent: PathBuf,
    /// Socket for clients.
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    state_dir: PathBuf,
    #[arg(long)]
    key_file: PathBuf,
    #[arg(long, value_enum)]
    protocol: Protocol,
    #[arg(long, value_enum)]
    planted: Option<Planted>,
    /// Decisions are stored.
    #[arg(long)]
    durable: bool,
}

struct Server<P: Start> {
    member: Member<P>,
    socket: UnixDatagram,
    planted: Option<Planted>,
    /// Any member proposes; otherwise only the leader does.
    all_propose: bool,
    registers: Registers,
    /// Changes that were proposed here, and their clients.
    waiting: BTreeMap<Id, SocketAddr>,
    is_member: bool,
    answered: bool,
}

fn say(reported: &Reported) {
    let mut line = serde_json::to_vec(reported).expect("numbers and words");
    line.push(b'\n');
    // The program that started this one is gone.
    let _ = io::stdout().write_all(&line);
}

impl<P: Start> Server<P> {
    fn open(args: &Args, setting: P::Setting, all_propose: bool) -> anyhow::Result<Self> {
        let key = fs::read_to_string(&args.key_file)
            .with_context(|| format!("reading {}", args.key_file.display()))?
            .parse::<Key>()?;
        let hosts: Vec<&str> = args.hosts.iter().map(String::as_str).collect();
        let mut config = Config::new(&args.group, &hosts, key, &args.state_dir, setting);
        if args.durable {
            // So small that each run stores states.
            config = Config { compact_bytes: COMPACT_BYTES, ..config.durable() };
        }
        let options = ConnectOptions { path: Some(args.agent.clone()), ..ConnectOptions::default() };
        let member = Member::open(config, options)?;
        // A socket of an earlier member.
        let _ = fs::remove_file(&args.socket);
        let socket = UnixDatagram::bind(&args.socket).with_context(|| format!("binding {}", args.socket.display()))?;
        socket.set_nonblocking(true)?;
        member.watch(&socket)?;
        Ok(Self {
            member,
            socket,
            planted: args.planted,
            all_propose,
            registers: Registers::default(),
            waiting: BTreeMap::new(),
            is_member: false,
            answered: false,
        })
    }

    fn answer(socket: &UnixDatagram, to: &SocketAddr, answer: &Answer) {
        // A client that misses the answer tries again.
        let _ = socket.send_to_addr(&to_bytes(answer), to);
    }

    /// Applies decisions.
    fn apply(&mut self) {
        if let Some((_, bytes)) = self.member.poll_install() {
            self.registers = Registers::from_bytes(&bytes).unwrap_or_default();
        }
        while let Some(decision) = self.member.poll_decision() {
            for entry in entries(decision.value) {
                let Entry::Value(bytes) = entry else { continue };
                let Ok(change) = postcard::from_bytes::<Change>(bytes) else { continue };
                let found = self.registers.apply(change);
                if let (Some(found), Some(to)) = (found, self.waiting.remove(&change.id)) {
                    Self::answer(&self.socket, &to, &Answer::Found { id: change.id, found: Some(found) });
                }
            }
        }
        if self.member.wants_state() {
            let _ = self.member.give_state(self.registers.to_bytes());
        }
        if self.member.wants_base() {
            self.member.store_base(self.registers.to_bytes());
        }
    }

    fn stand(&mut self) -> anyhow::Result<()> {
        match self.member.standing() {
            Standing::Member if !self.is_member => {
                self.is_member = true;
                say(&Reported::Ready { ns: now_ns() });
            }
            Standing::Joining if self.is_member => {
                self.is_member = false;
                say(&Reported::Out { ns: now_ns() });
            }
            Standing::Excluded | Standing::Removed | Standing::Left => bail!("the group goes on without this host"),
            _ => {}
        }
        let answers = self.member.may_answer();
        if answers && !self.answered {
            say(&Reported::Leads { ns: now_ns() });
        }
        self.answered = answers;
        Ok(())
    }

    /// Takes requests of clients.
    fn serve(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; DATAGRAM_MAX];
        for _ in 0..ASKED_PER_TURN {
            let (len, from) = match self.socket.recv_from(&mut bytes) {
                Ok(datagram) => datagram,
                Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(why) => return Err(why).context("taking a client's datagram"),
            };
            match postcard::from_bytes(&bytes[..len]) {
                Ok(Ask::Op { id, op }) => self.ask(id, op, from),
                Ok(Ask::Probe { number }) => {
                    let stands = self.stands();
                    Self::answer(&self.socket, &from, &Answer::Probe { number, stands });
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn stands(&self) -> Stands {
        Stands {
            is_member: self.member.standing() == Standing::Member,
            members: self.member.view().map_or(0, |view| view.members().len() as u16),
            may_answer: self.member.may_answer(),
            position: self.member.position(),
            applied: self.registers.applied,
            hash: self.registers.hash,
        }
    }

    fn ask(&mut self, id: Id, op: Op, from: SocketAddr) {
        let leader = self.member.leader().unwrap_or(0);
        let answer = match op {
            Op::Read { key } => {
                let may = self.member.may_answer() || self.planted == Some(Planted::StaleRead);
                self.registers.read(key).filter(|_| may).map(Some)
            }
            _ => match self.registers.answered(id) {
                Some(found) => Some(Some(found)),
                None if self.propose(Change { id, op }) => {
                    if self.planted != Some(Planted::EarlyAnswer) || matches!(op, Op::Cas { .. }) {
                        self.waiting.insert(id, from);
                        return;
                    }
                    Some(None)
                }
                None => None,
            },
        };
        let answer = match answer {
            Some(found) => Answer::Found { id, found },
            None => Answer::NotHere { id, leader },
        };
        Self::answer(&self.socket, &from, &answer);
    }

    /// False if the change was refused, and will never be decided because of this attempt.
    fn propose(&mut self, change: Change) -> bool {
        (self.all_propose || self.member.leads())
            && self.waiting.len() < WAITING_MAX
            && self.member.propose(&to_bytes(&change)).is_ok()
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let end_ns = now_ns() + LIFE_NS;
        let mut said_ns = now_ns();
        while now_ns() < end_ns {
            if now_ns() > said_ns + SAY_NS
                && let Some(what) = self.member.waits_for().map(|what| format!("no member yet: {what}")).or_else(|| {
                    // It is a member all the same.
                    self.member.unstored().map(str::to_owned)
                })
            {
                said_ns = now_ns();
                eprintln!("{what}");
            }
            self.member.wait(Some(Duration::from_millis(50)))?;
            self.apply();
            self.stand()?;
            if self.member.take_watched() {
                self.serve()?;
            }
        }
        Ok(())
    }
}

/// Runs a member, as a program.
///
/// # Errors
/// It cannot begin or continue; the error says why.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    // Without this feature of the kernel, the program runs a little later.
    let _ = fide_client::wake_eagerly();
    let args = Args::try_parse_from(args)?;
    match args.protocol {
        Protocol::Hsuc => Server::<Hsuc>::open(&args, hsuc(8), false)?.run(),
        Protocol::Huc => Server::<Huc>::open(&args, huc(), true)?.run(),
    }
}
