// SPDX-License-Identifier: Apache-2.0
//! Clients as a program: closed loops, each in a thread, that record when they sent a request and when the
//! answer came.
//!
//! There are two kinds. A *mover* reads, writes and swaps at the host that it takes for the leader, and tries
//! again until it has an answer. A *poller* reads at one host only, whatever it learns of leaders: a former
//! leader would answer it.

use std::{
    fs,
    io::{self, BufWriter, Read, Write},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Context;
use clap::Parser;
use fide_client::now_ns;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    lines::{Answer, Ask, DATAGRAM_MAX, Record, Tally, to_bytes},
    register::{Id, Op},
};

const MS_NS: u64 = 1_000_000;
/// How long a mover waits for one answer; then it tries the next host.
const ATTEMPT_NS: u64 = 30 * MS_NS;
/// How long a poller waits for one answer; then its read stays open, and it sends a new one.
const POLL_NS: u64 = 20 * MS_NS;
/// Time between two attempts of a refused operation.
const REFUSED: Duration = Duration::from_millis(2);
/// An operation is given up after this long, and stays open.
const GIVE_UP_NS: u64 = 2_000 * MS_NS;
/// One in so many operations is given up after its first attempt: it may be decided long after.
const IMPATIENT: u32 = 40;
/// All last reads are given up after this long.
const LAST_READ_NS: u64 = 5_000 * MS_NS;
/// Ids of clients that one thread may use up: each open operation takes one.
const IDS: u32 = 1 << 16;

/// Clients of a group.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Args {
    /// Sockets of the members, in order of their hosts.
    #[arg(long, value_delimiter = ',')]
    members: Vec<PathBuf>,
    /// Directory for the clients' own sockets.
    #[arg(long)]
    dir: PathBuf,
    /// Number of the first thread of this program; threads of all such programs have different numbers.
    #[arg(long)]
    first: u32,
    #[arg(long)]
    movers: u32,
    /// One poller for each host.
    #[arg(long)]
    pollers: bool,
    #[arg(long)]
    keys: u8,
    #[arg(long)]
    seed: u64,
    /// Any member takes changes, not the leader alone.
    #[arg(long)]
    all_propose: bool,
    /// Multiplies how long an answer is waited for.
    #[arg(long, default_value_t = 1)]
    patience: u64,
    /// Longest pause of a mover between two operations, microseconds.
    #[arg(long)]
    pause_us: u64,
    /// The same of a poller.
    #[arg(long)]
    poll_us: u64,
    /// The history, in lines.
    #[arg(long)]
    out: PathBuf,
}

/// Set when the program's input ends: no further operations begin.
static STOP: AtomicBool = AtomicBool::new(false);

struct Asked {
    found: Option<u64>,
    host: u16,
    returned: u64,
}

struct Client<'a> {
    args: &'a Args,
    socket: UnixDatagram,
    random: ChaCha8Rng,
    thread: u32,
    /// The present client and operation.
    id: Id,
    /// By key: the last value seen.
    seen: Vec<u64>,
    written: u64,
    /// Index of the member that is tried first.
    target: usize,
    records: Vec<Record>,
    refused: u64,
}

enum Reply {
    Found(Option<u64>),
    NotHere(u16),
    /// No answer in time.
    Silence,
    /// Not sent: the member has ended, or is stopped with a full queue.
    Unsent,
}

impl<'a> Client<'a> {
    fn new(args: &'a Args, thread: u32) -> anyhow::Result<Self> {
        let path = args.dir.join(format!("c{thread}"));
        let socket = UnixDatagram::bind(&path).with_context(|| format!("binding {}", path.display()))?;
        let random = ChaCha8Rng::seed_from_u64(args.seed ^ (u64::from(thread) << 32));
        Ok(Self {
            args,
            socket,
            random,
            thread,
            id: Id { client: thread * IDS, count: 0 },
            seen: vec![0; usize::from(args.keys)],
            written: 0,
            target: 0,
            records: Vec::new(),
            refused: 0,
        })
    }

    /// One attempt at one member.
    fn attempt(&self, member: usize, op: Op, until_ns: u64) -> Reply {
        let ask = to_bytes(&Ask::Op { id: self.id, op });
        if self.socket.set_nonblocking(true).is_err() || self.socket.send_to(&ask, &self.args.members[member]).is_err()
        {
            std::thread::sleep(REFUSED);
            return Reply::Unsent;
        }
        let mut bytes = [0; DATAGRAM_MAX];
        loop {
            let now = now_ns();
            if now >= until_ns {
                return Reply::Silence;
            }
            let left = Duration::from_nanos((until_ns - now).max(1000));
            if self.socket.set_nonblocking(false).is_err() || self.socket.set_read_timeout(Some(left)).is_err() {
                return Reply::Silence;
            }
            let Ok(len) = self.socket.recv(&mut bytes) else { continue };
            match postcard::from_bytes(&bytes[..len]) {
                Ok(Answer::Found { id, found }) if id == self.id => return Reply::Found(found),
                Ok(Answer::NotHere { id, leader }) if id == self.id => return Reply::NotHere(leader),
                // An answer to an operation that was given up, or that was sent to two members.
                _ => {}
            }
        }
    }

    fn member_of(&self, host: u16) -> Option<usize> {
        usize::from(host).checked_sub(1).filter(|at| *at < self.args.members.len())
    }

    /// Tries until there is an answer, or until `limit_ns` is over.
    fn insist(&mut self, op: Op, limit_ns: u64) -> Option<Asked> {
        let end_ns = now_ns() + limit_ns;
        while now_ns() < end_ns {
            match self.attempt(self.target, op, end_ns.min(now_ns() + ATTEMPT_NS * self.args.patience)) {
                Reply::Found(found) => {
                    return Some(Asked { found, host: self.target as u16 + 1, returned: now_ns() });
                }
                Reply::NotHere(leader) => {
                    match self.member_of(leader).filter(|at| *at != self.target) {
                        Some(at) => self.target = at,
                        None => std::thread::sleep(REFUSED),
                    }
                    // Two members that name each other as leader are not tried for ever.
                    if self.random.random_ratio(1, 8) {
                        self.target = self.random.random_range(0..self.args.members.len());
                    }
                }
                Reply::Silence | Reply::Unsent => self.target = (self.target + 1) % self.args.members.len(),
            }
        }
        None
    }

    fn note(&mut self, op: Op, call: u64, asked: Option<&Asked>) {
        let mut record = Record::new(self.id.client, op, call);
        match asked {
            Some(asked) => {
                (record.returned, record.found, record.host) = (Some(asked.returned), asked.found, asked.host);
            }
            // The operation may still be answered, so the thread continues as another client.
            None => self.id = Id { client: self.id.client + 1, count: 0 },
        }
        self.records.push(record);
    }

    fn pick(&mut self) -> Op {
        let key = self.random.random_range(0..self.args.keys);
        // No value is written twice.
        let mut value = || {
            self.written += 1;
            (u64::from(self.thread) + 1) << 32 | self.written
        };
        match self.random.random_range(0..100) {
            0..40 => Op::Read { key },
            40..75 => Op::Write { key, value: value() },
            _ => Op::Cas { key, old: self.seen[usize::from(key)], value: value() },
        }
    }

    fn learn(&mut self, op: Op, found: Option<u64>) {
        let seen = &mut self.seen[usize::from(op.key())];
        *seen = match op {
            Op::Write { value, .. } => value,
            Op::Cas { old, value, .. } if Some(old) == found => value,
            _ => found.unwrap_or(*seen),
        };
    }

    fn pause(&mut self, longest_us: u64) {
        std::thread::sleep(Duration::from_micros(self.random.random_range(0..=longest_us)));
    }

    fn one(&mut self, op: Op, limit_ns: u64) -> bool {
        self.id.count += 1;
        let call = now_ns();
        let asked = self.insist(op, limit_ns);
        self.note(op, call, asked.as_ref());
        if let Some(asked) = &asked {
            self.learn(op, asked.found);
        }
        asked.is_some()
    }

    fn move_about(&mut self) {
        while !STOP.load(Ordering::Relaxed) {
            let op = self.pick();
            if self.args.all_propose && self.random.random_ratio(1, 3) {
                self.target = self.random.random_range(0..self.args.members.len());
            }
            let limit_ns =
                self.args.patience * if self.random.random_ratio(1, IMPATIENT) { ATTEMPT_NS } else { GIVE_UP_NS };
            self.one(op, limit_ns);
            self.pause(self.args.pause_us);
        }
    }

    /// Reads each register once more; returns how many reads were not answered.
    fn read_all(&mut self) -> u64 {
        let end_ns = now_ns() + LAST_READ_NS * self.args.patience;
        let left_ns = || end_ns.saturating_sub(now_ns()).max(ATTEMPT_NS);
        (0..self.args.keys).filter(|key| !self.one(Op::Read { key: *key }, left_ns())).count() as u64
    }

    fn poll(&mut self, member: usize) {
        while !STOP.load(Ordering::Relaxed) {
            let op = Op::Read { key: self.random.random_range(0..self.args.keys) };
            self.id.count += 1;
            let call = now_ns();
            match self.attempt(member, op, call + POLL_NS * self.args.patience) {
                Reply::Found(found) => {
                    let asked = Asked { found, host: member as u16 + 1, returned: now_ns() };
                    self.note(op, call, Some(&asked));
                }
                Reply::NotHere(_) => self.refused += 1,
                Reply::Silence => self.note(op, call, None),
                Reply::Unsent => {}
            }
            self.pause(self.args.poll_us);
        }
    }
}

fn write(path: &Path, records: &[Record]) -> anyhow::Result<()> {
    let mut file = BufWriter::new(fs::File::create(path)?);
    for record in records {
        serde_json::to_writer(&mut file, record)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    Ok(())
}

/// Runs clients, as a program, until its input ends. Prints [`Tally`].
///
/// # Errors
/// It cannot begin, or cannot write its history.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    let args = Args::try_parse_from(args)?;
    let mut threads: Vec<(Client<'_>, Option<usize>)> = Vec::new();
    for at in 0..args.movers {
        threads.push((Client::new(&args, args.first + at)?, None));
    }
    if args.pollers {
        for member in 0..args.members.len() {
            threads.push((Client::new(&args, args.first + args.movers + member as u32)?, Some(member)));
        }
    }
    let mut tally = Tally::default();
    let mut records = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = threads
            .into_iter()
            .enumerate()
            .map(|(at, (mut client, polls))| {
                scope.spawn(move || {
                    let mut missing = 0;
                    match polls {
                        Some(member) => client.poll(member),
                        None => {
                            client.move_about();
                            if at == 0 {
                                missing = client.read_all();
                            }
                        }
                    }
                    (client.records, client.refused, missing)
                })
            })
            .collect();
        // Until the program that started this one closes it, or ends.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Ordering::Relaxed);
        for thread in threads {
            let (mut all, refused, missing) = thread.join().expect("a client's thread ends");
            records.append(&mut all);
            tally.refused += refused;
            tally.last_reads_missing += missing;
        }
    });
    records.sort_by_key(|record| record.call);
    tally.operations = records.len() as u64;
    tally.open = records.iter().filter(|record| record.returned.is_none()).count() as u64;
    write(&args.out, &records)?;
    println!("{}", serde_json::to_string(&tally)?);
    Ok(())
}
