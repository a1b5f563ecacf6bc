// SPDX-License-Identifier: Apache-2.0
//! What a monitor tells those who look: at a socket beside its own, with `.view` after its name.
//!
//! Who connects is sent a [`Greeting`], and then a [`Shown`] in pieces, until the connection ends. Users see their own programs; root and the
//! monitor's user see all.

use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::anyhow;
use fide_rack::meet::{
    Refused,
    monitor::{Monitor, StartError, Users},
    seen::{Counts, Left, Pair, Program, View, Waits, Why},
};
use fide_sys::{
    seqpacket::{Descriptors, Listener, Received, Wait, connect, peer, receive, send},
    tcp::TcpEnd,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::geteuid,
};
use serde::{Deserialize, Serialize};

use super::{kernel, place::Missing};
use crate::exit::{Failure, UNHEALTHY, code_of_socket};

/// Those who are told at once. A further one sees the end of its connection.
const READERS_MAX: usize = 16;
/// A reader that takes longer is left.
const READER_WITHIN: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 32;
/// What is over is looked for no more often.
const FORGETS_AGAIN: Duration = Duration::from_millis(500);
/// Bytes of one message.
const PIECE_BYTES: usize = 16 << 10;
/// Bytes of a view that are read at most.
const VIEW_BYTES_MAX: usize = 16 << 20;
/// After an error of accept.
const ACCEPTS_AGAIN: Duration = Duration::from_millis(50);
/// Of what is sent here.
const FORMAT: u32 = 2;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) format: u32,
    /// Whether it brings connections of this user together.
    pub(super) serves: bool,
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Addresses of the hosts that it has links to.
    #[serde(default)]
    pub(super) peers: Vec<String>,
}

/// A process that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Who {
    pub(super) pid: u32,
    pub(super) uid: u32,
}

impl Who {
    /// A program of another host.
    pub(super) const ELSEWHERE: Self = Self { pid: Program::ELSEWHERE.pid, uid: Program::ELSEWHERE.uid };
}

/// One end of a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) netns: u64,
    pub(super) local: std::net::SocketAddr,
    pub(super) peer: std::net::SocketAddr,
}

/// Both ends were sent memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Paired {
    pub(super) end: End,
    pub(super) client: Who,
    pub(super) server: Who,
    pub(super) is_client_first: bool,
    pub(super) memory: u64,
    pub(super) age_ms: u64,
}

impl Paired {
    /// The end that this host has; of two, the client's.
    pub(super) fn own(&self) -> End {
        let End { netns, local, peer } = self.end.clone();
        if self.client == Who::ELSEWHERE { End { netns, local: peer, peer: local } } else { self.end.clone() }
    }

    /// It goes to another host.
    pub(super) fn is_over_link(&self) -> bool {
        [self.client, self.server].contains(&Who::ELSEWHERE)
    }
}

/// A link to another host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) is_up: bool,
    /// Why it does not stand.
    pub(super) why: Option<String>,
    /// How often it has risen.
    pub(super) rises: u64,
    /// Ends of this host that wait for others.
    pub(super) waiting: usize,
    pub(super) partitions: Vec<Partition>,
}

/// Since the link stands.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Partition {
    pub(super) connections: usize,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

/// One end that stays with TCP, or waits (`why` is "waits").
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Single {
    pub(super) end: Option<End>,
    pub(super) program: Who,
    pub(super) why: String,
    pub(super) age_ms: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) asked: u64,
    pub(super) paired: u64,
    pub(super) refused: HashMap<String, u64>,
    pub(super) taken_back: u64,
    pub(super) sent_away: u64,
    pub(super) forgotten: u64,
    /// Now.
    pub(super) programs: u64,
    pub(super) waiting: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Shown {
    /// Whether those of all users are in it.
    pub(super) is_of_all: bool,
    pub(super) up_ms: u64,
    pub(super) counts: Counted,
    pub(super) programs: Vec<Who>,
    pub(super) paired: Vec<Paired>,
    pub(super) single: Vec<Single>,
    pub(super) links: Vec<Link>,
}

pub(super) const WAITS: &str = "waits";
pub(super) const TAKEN_BACK: &str = "taken_back";

/// The socket beside a monitor's.
fn beside(path: &Path) -> PathBuf {
    [path.as_os_str(), ".view".as_ref()].into_iter().collect::<OsString>().into()
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn end(TcpEnd { netns, local, peer }: TcpEnd) -> End {
    End { netns, local, peer }
}

fn who(Program { pid, uid }: Program) -> Who {
    Who { pid, uid }
}

pub(super) fn counts(of: &Counts) -> Counted {
    let refused = Refused::ALL.iter().zip(of.refused).map(|(why, count)| (why.name().to_owned(), count)).collect();
    Counted {
        asked: of.asked,
        paired: of.paired,
        refused,
        taken_back: of.taken_back,
        sent_away: of.sent_away,
        forgotten: of.forgotten,
        programs: 0,
        waiting: 0,
    }
}

/// As one user may see it. None: all.
fn shown(view: &View, up_ms: u64, only: Option<u32>) -> Shown {
    let is_seen = |program: &Program| only.is_none_or(|uid| program.uid == uid);
    let paired = |pair: &Pair| Paired {
        end: end(pair.end),
        client: who(pair.client),
        server: who(pair.server),
        is_client_first: pair.is_client_first,
        memory: pair.memory,
        age_ms: millis(pair.at),
    };
    let left = |left: &Left| Single {
        end: left.end.map(end),
        program: who(left.program),
        why: match left.why {
            Why::Refused(why) => why.name(),
            Why::TakenBack => TAKEN_BACK,
        }
        .to_owned(),
        age_ms: millis(left.at),
    };
    let waits = |waits: &Waits| Single {
        end: Some(end(waits.end)),
        program: who(waits.program),
        why: WAITS.to_owned(),
        age_ms: millis(waits.since),
    };
    let link = |link: &fide_rack::proxy::View| Link {
        name: link.name.clone(),
        is_up: link.is_up,
        why: link.why.clone(),
        rises: link.rises,
        waiting: link.waiting,
        partitions: link
            .partitions
            .iter()
            .map(|of| Partition {
                connections: of.connections,
                sent_bytes: of.sent_bytes,
                received_bytes: of.received_bytes,
            })
            .collect(),
    };
    let has_seen = |pair: &&Pair| is_seen(&pair.client) || is_seen(&pair.server);
    let single = view.left.iter().filter(|left| is_seen(&left.program)).map(left);
    Shown {
        is_of_all: only.is_none(),
        up_ms,
        counts: Counted {
            programs: view.programs.len() as u64,
            waiting: view.waits.len() as u64,
            ..counts(&view.counts)
        },
        programs: view.programs.iter().filter(|program| is_seen(program)).copied().map(who).collect(),
        paired: view.pairs.iter().filter(has_seen).map(paired).collect(),
        single: single.chain(view.waits.iter().filter(|waits| is_seen(&waits.program)).map(waits)).collect(),
        links: view.links.iter().map(link).collect(),
    }
}

/// What is shown, and to whom.
pub(super) struct Served {
    pub(super) path: PathBuf,
    pub(super) users: Users,
    pub(super) monitor: Arc<Monitor>,
}

/// Serves until it is dropped.
pub(super) struct Views {
    listener: Arc<Listener>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Views {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.listener.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Shows a monitor beside its socket.
///
/// # Errors
/// As [`Monitor::start`].
pub(super) fn serve(served: Served) -> Result<Views, StartError> {
    let path = beside(&served.path);
    let listener = Arc::new(Listener::bind(&path, BACKLOG, Descriptors::Refused)?);
    let is_over = Arc::new(AtomicBool::new(false));
    let (of_thread, over) = (Arc::clone(&listener), Arc::clone(&is_over));
    let thread = thread::Builder::new().name("rack-views".into()).spawn(move || accepts(&of_thread, &over, &served));
    let thread = thread.map_err(|why| StartError::Io { path, why })?;
    Ok(Views { listener, is_over, thread: Some(thread) })
}

fn accepts(listener: &Listener, is_over: &AtomicBool, served: &Served) {
    let (since, readers) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut forgets_at = since;
    let me = geteuid().as_raw();
    while !is_over.load(Ordering::Relaxed) {
        let socket = match listener.accept(Wait::Forever) {
            Ok(Some(socket)) => socket,
            Ok(None) => continue,
            Err(_) if is_over.load(Ordering::Relaxed) => return,
            Err(_) => {
                thread::sleep(ACCEPTS_AGAIN);
                continue;
            }
        };
        let Ok(uid) = peer(&socket).map(|peer| peer.uid) else { continue };
        if readers.fetch_add(1, Ordering::Relaxed) >= READERS_MAX {
            readers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let peers = served.monitor.peers().iter().map(ToString::to_string).collect();
        let greeting =
            Greeting { format: FORMAT, serves: served.users.has(uid), pid: std::process::id(), uid: me, peers };
        // However many look.
        if Instant::now() >= forgets_at {
            forget(&served.monitor);
            forgets_at = Instant::now() + FORGETS_AGAIN;
        }
        let (view, up_ms) = (served.monitor.view(), millis(since));
        let of_thread = Arc::clone(&readers);
        let tell = move || {
            let only = Some(uid).filter(|uid| *uid != 0 && *uid != me);
            let _ = tells(&socket, &greeting, &shown(&view, up_ms, only));
            of_thread.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("rack-view".into()).spawn(tell).is_err() {
            readers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn tells(socket: &OwnedFd, greeting: &Greeting, shown: &Shown) -> io::Result<()> {
    let until = Instant::now() + READER_WITHIN;
    let (greeting, shown) = (serde_json::to_vec(greeting)?, serde_json::to_vec(shown)?);
    for piece in std::iter::once(&greeting[..]).chain(shown.chunks(PIECE_BYTES)) {
        while let Err(why) = send(socket, piece, &[]) {
            if why.kind() != io::ErrorKind::WouldBlock {
                return Err(why);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)], Some(&left))?;
        }
    }
    Ok(())
}

/// Which connections stand, by namespace, as far as that can be known: through the processes that are there.
pub(super) struct Standing(HashMap<u64, HashMap<(std::net::SocketAddr, std::net::SocketAddr), bool>>);

impl Standing {
    /// By a process of each namespace.
    pub(super) fn of(processes: impl Iterator<Item = (u64, u32)>) -> Self {
        let mut all = HashMap::new();
        for (netns, pid) in processes.filter(|(_, pid)| *pid != 0) {
            if let std::collections::hash_map::Entry::Vacant(empty) = all.entry(netns)
                && let Some(sockets) = kernel::sockets(pid)
            {
                let ends = sockets.iter().map(|socket| ((socket.local, socket.peer), socket.is_established()));
                empty.insert(ends.collect());
            }
        }
        Self(all)
    }

    /// None: it is not known.
    pub(super) fn has(&self, of: &End) -> Option<bool> {
        let ends = self.0.get(&of.netns)?;
        // Its other end may be open still.
        Some([(of.local, of.peer), (of.peer, of.local)].iter().any(|end| ends.get(end) == Some(&true)))
    }
}

/// Forgets what is over.
pub(super) fn forget(monitor: &Monitor) {
    let view = monitor.view();
    if view.pairs.is_empty() && view.left.is_empty() {
        return;
    }
    // The number of a process that has ended may be another one's.
    let lives = |program: &Program| view.programs.contains(program);
    let of_pairs =
        view.pairs.iter().flat_map(|pair| [pair.client, pair.server].map(|program| (pair.end.netns, program)));
    let of_left = view.left.iter().filter_map(|left| Some((left.end?.netns, left.program)));
    let all = of_pairs.chain(of_left).filter(|(_, program)| lives(program));
    let standing = Standing::of(all.map(|(netns, program)| (netns, program.pid)));
    let is_over = |of: TcpEnd, programs: &[Program]| match standing.has(&end(of)) {
        Some(stands) => !stands,
        None => !programs.iter().any(lives),
    };
    monitor.forget(
        |pair| is_over(pair.own(), &[pair.client, pair.server]),
        |left| left.end.is_some_and(|end| is_over(end, &[left.program])),
    );
}

/// Why a monitor shows nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ViewError {
    #[error("{0}")]
    Missing(Missing),
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("the monitor at {0} is busy with others who look, or has ended: try again")]
    Ended(PathBuf),
    #[error(
        "the monitor at {path} shows format {found}, and this is format {FORMAT}: use the `fide` that came with it"
    )]
    Format { path: PathBuf, found: String },
}

/// Connected, and greeted.
fn connected(path: &Path) -> Result<(OwnedFd, Greeting), ViewError> {
    let beside = beside(path);
    let missing = |errno| ViewError::Missing(Missing { path: path.to_owned(), errno });
    let socket = connect(&beside, READER_WITHIN).map_err(missing)?;
    let piece = next(&socket, &beside)?.ok_or_else(|| ViewError::Ended(path.to_owned()))?;
    let format = |found: String| ViewError::Format { path: path.to_owned(), found };
    let greeting: Greeting = serde_json::from_slice(&piece).map_err(|_| format("unknown".to_owned()))?;
    if greeting.format != FORMAT {
        return Err(format(greeting.format.to_string()));
    }
    Ok((socket, greeting))
}

fn next(socket: &OwnedFd, path: &Path) -> Result<Option<Vec<u8>>, ViewError> {
    let mut piece = vec![0; PIECE_BYTES];
    match receive(socket, &mut piece, 0, Wait::For(READER_WITHIN)) {
        Ok(Received::Message(len, _)) => {
            piece.truncate(len);
            Ok(Some(piece))
        }
        Ok(Received::End | Received::Nothing) => Ok(None),
        Err(why) => Err(ViewError::Io { path: path.to_owned(), why: why.into() }),
    }
}

/// Whether a monitor serves this user.
///
/// # Errors
/// [`ViewError`].
pub(super) fn greeting(path: &Path) -> Result<Greeting, ViewError> {
    connected(path).map(|(_, greeting)| greeting)
}

/// What a monitor shows.
///
/// # Errors
/// [`ViewError`].
pub(super) fn ask(path: &Path) -> Result<(Greeting, Shown), ViewError> {
    let (socket, greeting) = connected(path)?;
    let mut text = Vec::new();
    while let Some(piece) = next(&socket, path)? {
        text.extend(piece);
        if text.len() > VIEW_BYTES_MAX {
            break;
        }
    }
    // It has left this reader, say.
    let shown = serde_json::from_slice(&text).map_err(|_| ViewError::Ended(path.to_owned()))?;
    Ok((greeting, shown))
}

/// What the first monitor shows that answers.
///
/// # Errors
/// None does: why.
pub(super) fn first(candidates: &[PathBuf]) -> Result<(PathBuf, Greeting, Shown), Failure> {
    let mut failed: Vec<String> = Vec::new();
    let mut code = UNHEALTHY;
    for path in candidates {
        match ask(path) {
            Ok((greeting, shown)) => return Ok((path.clone(), greeting, shown)),
            Err(why) => {
                if let ViewError::Missing(missing) = &why {
                    code = code_of_socket(missing.errno);
                }
                failed.push(why.to_string());
            }
        }
    }
    Err(Failure::new(code, anyhow!("{}; `fide rack monitor` starts one", failed.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pid: u32, uid: u32) -> Program {
        Program { pid, uid }
    }

    #[test]
    fn users_see_their_own_programs_alone() {
        let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let end = TcpEnd { netns: 1, local: at(1), peer: at(2) };
        let pair = |client, server| Pair { end, client, server, is_client_first: true, memory: 7, at: Instant::now() };
        let (mine, theirs) = (program(1, 1000), program(2, 2000));
        let left = |program| Left { program, end: None, why: Why::TakenBack, at: Instant::now() };
        let view = View {
            counts: Counts { asked: 9, ..Counts::default() },
            programs: vec![mine, theirs],
            pairs: vec![pair(mine, theirs), pair(theirs, theirs)],
            left: vec![left(mine), left(theirs)],
            links: Vec::new(),
            waits: vec![Waits { program: theirs, end, since: Instant::now() }],
        };
        let all = shown(&view, 5, None);
        assert_eq!((all.is_of_all, all.programs.len(), all.paired.len(), all.single.len()), (true, 2, 2, 3));
        let own = shown(&view, 5, Some(1000));
        assert_eq!((own.is_of_all, own.programs.len(), own.paired.len(), own.single.len()), (false, 1, 1, 1));
        assert_eq!((own.counts.asked, own.counts.waiting, own.counts.programs), (9, 1, 2));
        let read: Shown = serde_json::from_slice(&serde_json::to_vec(&all).unwrap()).unwrap();
        assert_eq!((read.paired[0].client, read.single[2].why.as_str()), (Who { pid: 1, uid: 1000 }, WAITS));
    }

    #[test]
    fn large_view_arrives_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monitor.sock");
        let listener = Listener::bind(&beside(&path), 1, Descriptors::Refused).unwrap();
        let programs: Vec<Program> = (0..40_000).map(|pid| program(pid, 1)).collect();
        let view = View { programs, ..View::default() };
        let sends = thread::spawn(move || {
            let socket = listener.accept(Wait::Forever).unwrap().unwrap();
            let greeting = Greeting { format: FORMAT, serves: true, pid: 1, uid: 2, peers: vec!["10.0.0.2/32".into()] };
            tells(&socket, &greeting, &shown(&view, 1, None)).unwrap();
        });
        let (greeting, shown) = ask(&path).unwrap();
        sends.join().unwrap();
        assert!(greeting.serves && greeting.peers == ["10.0.0.2/32"] && shown.programs.len() == 40_000);
        assert!(matches!(ask(&dir.path().join("none")), Err(ViewError::Missing(_))));
    }
}
