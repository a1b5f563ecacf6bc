// SPDX-License-Identifier: Apache-2.0
//! A monitor, and programs that ask it, with the kernel's sockets: also those that lie, vanish, or send garbage.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{fs::FileExt, net::UnixListener},
    },
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fide_rack::{
    meet::{
        Refused, WAITING_MAX, WAITING_OF_USER_MAX, WORDS,
        ask::{Asks, Told},
        monitor::{Access, Bounds, CLIENTS_MAX, CLIENTS_OF_USER_MAX, KNOWN_MAX, Monitor, StartError, Users},
        seen::{Program, Why},
        wire::{Request, VERSION},
    },
    shm::{ShmWindow, words_at},
    stream::halves,
};
use fide_sys::{seqpacket::send, tcp::keeps_syn};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

const LIMIT: Duration = Duration::from_secs(20);

/// A monitor in a directory of its own.
struct Host {
    monitor: Monitor,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn host() -> Host {
    host_for(Users::All)
}

fn host_for(access: impl Into<Access>) -> Host {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rack.sock");
    Host { monitor: Monitor::start_for(&path, access).unwrap(), path, _directory: directory }
}

impl Host {
    fn asks(&self) -> Asks {
        Asks::connect(&self.path).unwrap()
    }

    /// Waits until the monitor has seen to it.
    fn until(&self, what: &str, is: impl Fn(&Monitor) -> bool) {
        let until = Instant::now() + LIMIT;
        while !is(&self.monitor) {
            assert!(Instant::now() < until, "{what}: {:?}", self.monitor);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn listens() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    keeps_syn(&listener).unwrap();
    listener
}

fn connection() -> [TcpStream; 2] {
    let listener = listens();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [here, listener.accept().unwrap().0]
}

fn paired(asks: &Asks, asked: u32) -> ShmWindow<WORDS> {
    match asks.told().unwrap() {
        Some(Told::Paired { id, window }) if id == asked => window,
        told => panic!("{told:?}"),
    }
}

fn refused(asks: &Asks, asked: u32) -> Refused {
    match asks.told().unwrap() {
        Some(Told::Refused { id, why }) if id == asked => why,
        told => panic!("{told:?}"),
    }
}

#[test]
fn both_ends_of_a_connection_share_memory() {
    let host = host();
    let (server, client) = (host.asks(), host.asks());
    for _ in 0..3 {
        let [here, there] = connection();
        let asked_there = server.ask(&there).unwrap();
        let asked_here = client.ask(&here).unwrap();
        let windows = [paired(&client, asked_here), paired(&server, asked_there)];
        let [(mut reads_here, mut writes_here), (mut reads_there, mut writes_there)] = windows.map(halves);
        let echo = thread::spawn(move || {
            let mut bytes = [0; 5];
            reads_there.read_exact(&mut bytes).unwrap();
            writes_there.write_all(&bytes).unwrap();
        });
        writes_here.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        reads_here.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        echo.join().unwrap();
        // Over TCP nothing has come, and the connection still stands.
        assert_eq!(
            here.set_nonblocking(true).and_then(|()| (&here).read(&mut bytes)).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    }
    assert_eq!(host.monitor.waiting(), 0);
}

#[test]
fn end_without_another_one_waits_and_takes_its_question_back() {
    let host = host();
    let asks = host.asks();
    let [here, mut there] = connection();
    let asked = asks.ask(&here).unwrap();
    host.until("a question", |monitor| monitor.waiting() == 1);
    asks.cancel(asked).unwrap();
    host.until("no question", |monitor| monitor.waiting() == 0);
    drop(here);
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 0, "the monitor does not keep it");
}

/// A server accepts, asks and forks; then it closes the socket, and its child asks: before the answer, or after it.
#[test]
fn child_of_a_server_gets_what_its_parent_did_not_take() {
    let host = host();
    let (server, client) = (host.asks(), host.asks());
    for is_answered in [false, true] {
        let [here, there] = connection();
        let asked = server.ask(&there).unwrap();
        let of_client = || paired(&client, client.ask(&here).unwrap());
        let before = if is_answered {
            let window = of_client();
            drop(paired(&server, asked));
            Some(window)
        } else {
            host.until("a question", |monitor| monitor.waiting() == 1);
            server.cancel(asked).unwrap();
            host.until("none", |monitor| monitor.waiting() == 0);
            None
        };
        let child = host.asks();
        let asked = child.ask(there.try_clone().unwrap()).unwrap();
        if !is_answered {
            host.until("its question", |monitor| monitor.waiting() == 1);
        }
        let of_client = before.unwrap_or_else(of_client);
        let ((mut reads, _), (_, mut writes)) = (halves(of_client), halves(paired(&child, asked)));
        writes.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        reads.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }
}

/// The server takes its question back as its child asks: what the kernel tells once is not lost in between.
#[test]
fn child_that_asks_as_its_parent_takes_back_is_paired() {
    let host = host();
    let (mut server, child, client) = (host.asks(), host.asks(), host.asks());
    for turn in 0..1500 {
        // One whose thread is slow would have as many to close as it may.
        if turn % 50 == 0 {
            server = host.asks();
        }
        let [here, there] = connection();
        let asked = server.ask(&there).unwrap();
        host.until("a question", |monitor| monitor.waiting() == 1);
        let of_child = there.try_clone().unwrap();
        let asked_by_child = thread::scope(|scope| {
            scope.spawn(|| {
                (0..turn % 7 * 100).for_each(|_| std::hint::spin_loop());
                server.cancel(asked).unwrap();
            });
            child.ask(&of_child).unwrap()
        });
        let asked_here = client.ask(&here).unwrap();
        let _windows = [paired(&child, asked_by_child), paired(&client, asked_here)];
        // Its parent may be told something, too: it has come too late.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&now)).unwrap() > 0 {
            drop(server.told().unwrap());
        }
    }
}

/// The same socket, with another other end: it gets no memory of before.
#[test]
fn socket_that_is_connected_anew_is_another_end() {
    let host = host();
    let (client, server) = (host.asks(), host.asks());
    let [here, there] = connection();
    let (asked, asked_there) = (client.ask(&here).unwrap(), server.ask(&there).unwrap());
    drop((paired(&client, asked), paired(&server, asked_there)));
    rustix::net::connect_unspec(&here).unwrap();
    let listener = listens();
    rustix::net::connect(&here, &listener.local_addr().unwrap()).unwrap();
    let asked = client.ask(&here).unwrap();
    host.until("a question", |monitor| monitor.waiting() == 1);
    let there = listener.accept().unwrap().0;
    let asked_there = server.ask(&there).unwrap();
    let ((mut reads, _), (_, mut writes)) = (halves(paired(&client, asked)), halves(paired(&server, asked_there)));
    writes.write_all(b"hello").unwrap();
    let mut bytes = [0; 5];
    reads.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
}

#[test]
fn question_of_a_child_takes_the_place_of_its_parents() {
    let host = host();
    let (server, child, client) = (host.asks(), host.asks(), host.asks());
    let [here, there] = connection();
    let asked = server.ask(&there).unwrap();
    host.until("a question", |monitor| monitor.waiting() == 1);
    let asked_by_child = child.ask(&there).unwrap();
    assert_eq!(refused(&server, asked), Refused::Twice);
    let asked_here = client.ask(&here).unwrap();
    let _windows = [paired(&child, asked_by_child), paired(&client, asked_here)];
}

#[test]
fn program_that_ends_leaves_nothing() {
    let host = host();
    let asks = host.asks();
    let connections: Vec<_> = (0..50).map(|_| connection()).collect();
    for [here, _] in &connections {
        asks.ask(here).unwrap();
    }
    host.until("questions", |monitor| monitor.waiting() == 50);
    let (here, there): (Vec<_>, Vec<_>) = connections.into_iter().map(|[here, there]| (here, there)).unzip();
    drop((asks, here));
    host.until("nothing", |monitor| monitor.waiting() == 0 && monitor.clients() == 0);
    for mut there in there {
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
    }
}

/// A socket that lingers for a minute, with bytes that its other end does not take: to close it last would take that long.
#[test]
fn socket_that_lingers_holds_nobody_up() {
    let host = host();
    let asks = host.asks();
    let [mut here, there] = connection();
    sockopt::set_socket_linger(&here, Some(Duration::from_secs(60))).unwrap();
    here.set_nonblocking(true).unwrap();
    while here.write(&[0; 65_536]).is_ok() {}
    asks.ask(&here).unwrap();
    host.until("a question", |monitor| monitor.waiting() == 1);
    // The monitor has it last.
    thread::scope(|scope| {
        scope.spawn(|| drop(here));
        drop(asks);
        host.until("nothing", |monitor| monitor.waiting() == 0 && monitor.clients() == 0);
    });
    drop(there);
}

/// Somebody asks, and lets the connection end; then others have the same addresses.
#[test]
fn addresses_that_others_have_now_are_not_paired_with_who_had_them() {
    let host = host();
    let (former, server, client) = (host.asks(), host.asks(), host.asks());
    let listener = listens();
    let to = listener.local_addr().unwrap();
    let from = |at: SocketAddr| {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        rustix::net::connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    };
    let first = from((Ipv4Addr::LOCALHOST, 0).into());
    let at = first.local_addr().unwrap();
    let asked_first = former.ask(&first).unwrap();
    host.until("a question", |monitor| monitor.waiting() == 1);
    // A reset.
    let (accepted, _) = listener.accept().unwrap();
    sockopt::set_socket_linger(&accepted, Some(Duration::ZERO)).unwrap();
    drop(accepted);
    assert!((&first).read(&mut [0]).is_err());
    let second = from(at);
    let (accepted, _) = listener.accept().unwrap();
    let asked_there = server.ask(&accepted).unwrap();
    assert_eq!(refused(&former, asked_first), Refused::Socket);
    let asked_second = client.ask(&second).unwrap();
    let windows = [paired(&client, asked_second), paired(&server, asked_there)];
    drop((windows, first));
}

/// A server whose kernel has kept no first segment, as with one that was accepted before.
#[test]
fn ends_without_proof_are_refused() {
    let host = host();
    let (server, client) = (host.asks(), host.asks());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let there = listener.accept().unwrap().0;
    let (asked_there, asked_here) = (server.ask(&there).unwrap(), client.ask(&here).unwrap());
    assert_eq!(refused(&server, asked_there), Refused::Unproven);
    assert_eq!(refused(&client, asked_here), Refused::Unproven);
    assert_eq!(host.monitor.waiting(), 0);
}

#[test]
fn connections_of_other_networks_are_refused() {
    for (networks, is_served) in [("10.0.0.0/8 127.0.0.1", true), ("127.0.0.2 ::1", false), ("", false)] {
        let networks = networks.split_whitespace().map(|network| network.parse().unwrap()).collect();
        let host = host_for(Access { users: Users::All, networks: Some(networks) });
        let (server, client) = (host.asks(), host.asks());
        let [here, there] = connection();
        let (asked_there, asked_here) = (server.ask(&there).unwrap(), client.ask(&here).unwrap());
        if is_served {
            drop((paired(&server, asked_there), paired(&client, asked_here)));
        } else {
            assert_eq!(refused(&server, asked_there), Refused::Network);
            assert_eq!(refused(&client, asked_here), Refused::Network);
        }
    }
    // One of whose addresses only one is served.
    let host = host_for(Access { users: Users::All, networks: Some(vec!["127.0.0.1".parse().unwrap()]) });
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_ne!(here.local_addr().unwrap().ip(), here.peer_addr().unwrap().ip());
    let asks = host.asks();
    let asked = asks.ask(&here).unwrap();
    assert_eq!(refused(&asks, asked), Refused::Network);
}

#[test]
fn what_is_no_socket_of_a_connection_is_refused() {
    let host = host();
    let asks = host.asks();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let unix = UnixListener::bind(host.path.with_extension("other")).unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    let [here, there] = connection();
    drop(there);
    let descriptors: [BorrowedFd<'_>; 4] = [listener.as_fd(), unix.as_fd(), file.as_fd(), here.as_fd()];
    for descriptor in descriptors {
        let asked = asks.ask(descriptor).unwrap();
        assert_eq!(refused(&asks, asked), Refused::Socket);
    }
    // None at all.
    send(&asks, &Request::Ask { id: 77 }.write(), &[]).unwrap();
    assert_eq!(refused(&asks, 77), Refused::Socket);
    // And one that asks twice.
    let [here, _there] = connection();
    let first = asks.ask(&here).unwrap();
    let second = asks.ask(&here).unwrap();
    assert_eq!(refused(&asks, second), Refused::Twice);
    asks.cancel(first).unwrap();
    host.until("nothing", |monitor| monitor.waiting() == 0);
}

#[test]
fn who_sends_garbage_is_sent_away_alone() {
    let host = host();
    let asks = host.asks();
    let garbage: [&[u8]; 5] =
        [&[0], &[VERSION, 9, 0, 0, 0, 1], &[VERSION + 1, 1, 0, 0, 0, 1], &[VERSION, 1], &[1; 5000]];
    for bytes in garbage {
        let bad = host.asks();
        send(&bad, bytes, &[]).unwrap();
        assert!(bad.told().unwrap().is_none(), "{bytes:?}");
    }
    // A question about two sockets.
    let bad = host.asks();
    send(&bad, &Request::Ask { id: 1 }.write(), &[bad.as_fd(), bad.as_fd()]).unwrap();
    assert!(bad.told().unwrap().is_none());
    drop(bad);
    host.until("one program", |monitor| monitor.clients() == 1);
    let [here, there] = connection();
    let asked = [asks.ask(&here).unwrap(), asks.ask(&there).unwrap()];
    let _windows = asked.map(|_| asks.told().unwrap().unwrap());
}

/// It asks, and reads none of the answers.
#[test]
fn who_does_not_read_holds_nobody_up() {
    let host = host();
    let (slow, asks) = (host.asks(), host.asks());
    let file = fs::File::open("/dev/null").unwrap();
    // More than a socket holds; the monitor takes them all.
    for _ in 0..2000 {
        while slow.ask(&file).is_err() {
            thread::yield_now();
        }
    }
    let [here, there] = connection();
    let (here, there) = (asks.ask(&here).unwrap(), asks.ask(&there).unwrap());
    let mut told = Vec::new();
    for _ in 0..2 {
        match asks.told().unwrap() {
            Some(Told::Paired { id, .. }) => told.push(id),
            other => panic!("{other:?}"),
        }
    }
    told.sort_unstable();
    assert_eq!(told, [here, there]);
}

/// Where the monitor of the test below listens, in a process of its own that may have few files open.
const FEW_FILES_AT: &str = "FIDE_RACK_TEST_FEW_FILES_AT";
const FEW_FILES: u64 = 256;

#[test]
#[ignore = "run by the next one"]
fn monitor_with_few_files() {
    let Some(path) = std::env::var_os(FEW_FILES_AT) else { return };
    let few = rustix::process::Rlimit { current: Some(FEW_FILES), maximum: Some(FEW_FILES) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let _monitor = Monitor::start(path.as_ref()).unwrap();
    // Until its parent ends it, or is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

/// One user's programs ask as much as they may, and more. Those of others connect, and are answered: here they are of the same user, which
/// has half of what there is.
#[test]
fn monitor_with_few_files_has_some_for_everybody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rack.sock");
    let mut monitor = Command::new(std::env::current_exe().unwrap())
        .args(["monitor_with_few_files", "--exact", "--ignored"])
        .env(FEW_FILES_AT, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + LIMIT;
    let asks = loop {
        match Asks::connect(&path) {
            Ok(asks) => break asks,
            Err(why) => assert!(Instant::now() < until, "{why}"),
        }
        thread::sleep(Duration::from_millis(1));
    };
    let bounds = Bounds::of(Some(FEW_FILES));
    // They are taken first, and see to it that none is left in the way of those who ask.
    let mut others: Vec<Asks> = (0..FEW_FILES).map_while(|_| Asks::connect(&path).ok()).collect();
    let listener = listens();
    let connections: Vec<_> = (0..FEW_FILES)
        .map(|_| (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0))
        .collect();
    for (number, (socket, _)) in connections.iter().enumerate() {
        let asked = asks.ask(socket).unwrap();
        if number >= bounds.waiting_of_user {
            assert_eq!(refused(&asks, asked), Refused::Full, "question {number}");
        }
    }
    // Others are sent away at once, or served: nobody waits for a descriptor.
    assert_eq!(others.len(), usize::try_from(FEW_FILES).unwrap());
    let sent_away = |other: &mut Asks| {
        (0..10).any(|_| {
            let slice = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let mut fds = [rustix::event::PollFd::new(other, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&slice)).unwrap() > 0
        })
    };
    others.retain_mut(|other| !sent_away(other));
    assert_eq!(others.len() + 1, bounds.clients_of_user);
    let asked = others[0].ask(&connections[0].1).unwrap();
    paired(&others[0], asked);
    drop(monitor.stdin.take());
    assert!(monitor.wait().unwrap().success());
}

#[test]
fn monitor_that_may_have_many_files_keeps_all_that_it_may() {
    for many in [None, Some(131_072), Some(u64::MAX)] {
        let Bounds { clients, clients_of_user, waiting, waiting_of_user, known } = Bounds::of(many);
        assert_eq!(known, KNOWN_MAX);
        assert_eq!([clients, clients_of_user], [CLIENTS_MAX, CLIENTS_OF_USER_MAX]);
        assert_eq!([waiting, waiting_of_user], [WAITING_MAX, WAITING_OF_USER_MAX]);
    }
    for few in 96..131_072_u64 {
        let Bounds { clients, waiting, known, .. } = Bounds::of(Some(few));
        // Of a program its connection, its bell, what it has sent and what it is sent; twice as many questions; the memory of each that is known.
        assert!((4 * clients + 2 * waiting + known) as u64 <= few - 16, "{few}");
    }
}

#[test]
fn one_user_has_so_many_programs() {
    // Both ends of each are in this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).unwrap();
    let host = host();
    let most = Bounds::of(limit.maximum).clients_of_user;
    let all: Vec<Asks> = (0..most).map(|_| host.asks()).collect();
    host.until("all", |monitor| monitor.clients() == most);
    assert!(host.asks().told().unwrap().is_none(), "one more is sent away");
    drop(all);
    host.until("none", |monitor| monitor.clients() == 0);
    let [here, _there] = connection();
    host.asks().ask(&here).unwrap();
}

#[test]
fn one_monitor_runs_at_a_path_and_takes_the_place_of_one_that_has_ended() {
    let host = host();
    assert!(matches!(Monitor::start(&host.path), Err(StartError::Running(_))));
    let asks = host.asks();
    let Host { monitor, path, _directory } = host;
    drop(monitor);
    assert!(asks.told().unwrap().is_none(), "its programs see its end");
    assert!(!path.exists());
    // As one that was killed leaves it.
    drop(UnixListener::bind(&path).unwrap());
    let monitor = Monitor::start(&path).unwrap();
    Asks::connect(&path).unwrap();
    drop(monitor);
    fs::write(&path, "a file of somebody").unwrap();
    assert!(matches!(Monitor::start(&path), Err(StartError::Io { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"a file of somebody");
}

/// What it tells those who look: who waits, who was paired, and who stays with TCP and why.
#[test]
fn monitor_says_what_became_of_questions() {
    let host = host();
    let (server, client) = (host.asks(), host.asks());
    let us = Program { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
    let [here, there] = connection();
    let asked_there = server.ask(&there).unwrap();
    host.until("a question", |monitor| monitor.waiting() == 1);
    let view = host.monitor.view();
    let ends = |of: &TcpStream| (of.local_addr().unwrap(), of.peer_addr().unwrap());
    assert_eq!((view.waits[0].program, (view.waits[0].end.local, view.waits[0].end.peer)), (us, ends(&there)));
    let asked_here = client.ask(&here).unwrap();
    let windows = [paired(&client, asked_here), paired(&server, asked_there)];
    host.until("a pair", |monitor| monitor.view().counts.paired == 1);
    let view = host.monitor.view();
    let pair = view.pairs[0];
    assert!(view.waits.is_empty() && view.programs == [us; 2] && !pair.is_client_first);
    assert_eq!((pair.client, pair.server, (pair.end.local, pair.end.peer)), (us, us, ends(&here)));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains(&format!(" {} ", pair.memory)));
    assert_eq!(mapped.filter(|line| line.contains("fide-rack")).count(), windows.len(), "{maps}");
    // One stays with TCP by itself, one is refused.
    let [mine, _other] = connection();
    let asked = client.ask(&mine).unwrap();
    client.cancel(asked).unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    let asked = client.ask(&file).unwrap();
    assert_eq!(refused(&client, asked), Refused::Socket);
    let view = host.monitor.view();
    let left: Vec<_> = view.left.iter().map(|left| (left.end.map(|end| (end.local, end.peer)), left.why)).collect();
    assert_eq!(left, [(Some(ends(&mine)), Why::TakenBack), (None, Why::Refused(Refused::Socket))]);
    assert_eq!((view.counts.asked, view.counts.taken_back, view.counts.refused[2]), (4, 1, 1));
    host.monitor.forget(|pair| pair.memory == view.pairs[0].memory, |left| left.why == Why::TakenBack);
    let view = host.monitor.view();
    assert!(view.pairs.is_empty() && view.left.len() == 1);
}

/// From outside: where this process has it mapped.
#[test]
fn memory_says_how_much_was_read() {
    const SENT: u64 = 1 << 20;
    let host = host();
    let (server, client) = (host.asks(), host.asks());
    let [here, there] = connection();
    let asked_there = server.ask(&there).unwrap();
    // Each has a thread of its own.
    host.until("the first question", |monitor| monitor.waiting() == 1);
    let asked_here = client.ask(&here).unwrap();
    let ((_, mut writes), (mut reads, _)) = (halves(paired(&client, asked_here)), halves(paired(&server, asked_there)));
    let sends = thread::spawn(move || {
        writes.write_all(&vec![7; usize::try_from(SENT).unwrap()]).unwrap();
        writes
    });
    let mut left = SENT;
    let mut bytes = vec![0; 4096];
    while left > 0 {
        left -= reads.read(&mut bytes).unwrap() as u64;
    }
    let _writes = sends.join().unwrap();
    let memory = host.monitor.view().pairs[0].memory;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains(&format!(" {memory} "))).unwrap();
    let at = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let file = fs::File::open("/proc/self/mem").unwrap();
    let told = words_at::<WORDS>().map(|offset| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at + offset as u64).unwrap();
        u64::from_ne_bytes(word)
    });
    // The server asked first.
    assert_eq!(told[0], 0);
    assert!(told[1] > SENT - (WORDS as u64 * 8) && told[1] < SENT + SENT / 8, "{told:?}");
}

#[test]
fn programs_of_others_are_sent_away() {
    let host = host_for(Users::These(vec![12_345]));
    assert!(Users::These(vec![12_345]).has(12_345) && Users::All.has(7) && !Users::These(vec![12_345]).has(7));
    // The monitor's own user, as this test is.
    let [here, there] = connection();
    let asks = host.asks();
    let asked = [asks.ask(&here).unwrap(), asks.ask(&there).unwrap()];
    let _windows = asked.map(|_| asks.told().unwrap().unwrap());
}
