// SPDX-License-Identifier: Apache-2.0
use std::{
    fs::{self, File},
    io::{ErrorKind, Read},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use rustix::{
    io::{FdFlags, fcntl_getfd},
    net::{SocketAddrUnix, bind, listen, socket_with},
    pipe::{PipeFlags, pipe_with},
};

use super::*;

/// Bytes of the longest message of these tests.
const LONGEST: usize = 64;
/// Longer than anything takes here on a busy machine.
const LIMIT: Wait = Wait::For(Duration::from_secs(20));

fn next(socket: &OwnedFd, fds_max: usize) -> Result<(Vec<u8>, Vec<OwnedFd>), ReceiveError> {
    let mut buffer = [0; LONGEST];
    match receive(socket, &mut buffer, fds_max, Wait::No)? {
        Received::Message(len, fds) => Ok((buffer[..len].to_vec(), fds)),
        other => panic!("{other:?}"),
    }
}

/// The end of a pipe whose other end is at its end once all copies of the first one are closed.
fn probe() -> (File, OwnedFd) {
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    (reads.into(), writes)
}

/// Fails if a copy of the pipe's other end has leaked: there could be more to read.
fn assert_closed(mut probe: File) {
    assert_eq!(probe.read(&mut [0]).unwrap(), 0);
}

/// An empty message, which [`send`] refuses.
fn send_empty(socket: &OwnedFd, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[io::IoSlice::new(&[])], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("its.sock");
    (directory, path)
}

fn listener(path: &Path) -> Listener {
    Listener::bind(path, 8, Descriptors::Taken).unwrap()
}

#[test]
fn messages_arrive_whole_and_in_order() {
    let (one, other) = pair().unwrap();
    assert!(matches!(receive(&other, &mut [0; 8], 0, Wait::No), Ok(Received::Nothing)));
    send(&one, b"a", &[]).unwrap();
    send(&one, &[7; LONGEST], &[]).unwrap();
    assert_eq!(next(&other, 0).unwrap().0, b"a");
    assert_eq!(next(&other, 0).unwrap().0, [7; LONGEST]);
}

#[test]
fn descriptors_arrive_close_on_exec_and_owned() {
    let (one, other) = pair().unwrap();
    let (probe, writes) = probe();
    send(&one, b"both", &[writes.as_fd(), writes.as_fd()]).unwrap();
    drop(writes);
    let (bytes, fds) = next(&other, 2).unwrap();
    assert_eq!((bytes.as_slice(), fds.len()), (&b"both"[..], 2));
    for fd in &fds {
        assert!(fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(rustix::io::write(fd, b"x"), Ok(1));
    }
    drop(fds);
    let mut probe = probe;
    assert_eq!(probe.read(&mut [0; 8]).unwrap(), 2);
    assert_closed(probe);
}

#[test]
fn as_many_descriptors_as_the_kernel_takes_arrive() {
    let (one, other) = pair().unwrap();
    let all = [one.as_fd(); FDS_MAX];
    send(&one, b"all", &all).unwrap();
    assert_eq!(next(&other, FDS_MAX).unwrap().1.len(), FDS_MAX);
    let why = send(&one, b"more", &[one.as_fd(); FDS_MAX + 1]).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::InvalidInput);
    assert_eq!(why.to_string(), "254 descriptors for one message, which takes 253 at most");
}

/// The kernel rounds the room for descriptors up, so that each number of them is tried.
#[test]
fn more_descriptors_than_allowed_are_refused_and_closed() {
    for max in 0..6 {
        for sent in 1..9 {
            let (one, other) = pair().unwrap();
            let (probe, writes) = probe();
            send(&one, b"some", &vec![writes.as_fd(); sent]).unwrap();
            send(&one, b"next", &[]).unwrap();
            drop(writes);
            match next(&other, max) {
                Ok((_, fds)) => assert!(fds.len() == sent && sent <= max),
                Err(why) => {
                    assert!(sent > max && why == ReceiveError::TooMany { max }, "{sent} of {max}: {why:?}");
                }
            }
            assert_closed(probe);
            assert_eq!(next(&other, max).unwrap().0, b"next", "the connection goes on");
        }
    }
    let text = |max| ReceiveError::TooMany { max }.to_string();
    assert_eq!(text(0), "a message with descriptors, where none may come");
    assert_eq!(text(5), "a message with more than 5 descriptors");
}

#[test]
fn too_long_message_leaves_its_first_bytes_and_no_descriptor() {
    let (one, other) = pair().unwrap();
    let (probe, writes) = probe();
    send(&one, b"too long", &[writes.as_fd()]).unwrap();
    send(&one, b"next", &[]).unwrap();
    drop(writes);
    let mut buffer = [0; 4];
    let why = receive(&other, &mut buffer, 1, Wait::No).unwrap_err();
    assert_eq!((why, &buffer), (ReceiveError::TooLong { max: 4 }, b"too "));
    assert_eq!(io::Error::from(why).kind(), ErrorKind::InvalidData);
    assert_closed(probe);
    assert_eq!(next(&other, 1).unwrap().0, b"next", "the connection goes on");
}

#[test]
fn empty_messages_and_closed_connections_are_the_end() {
    let (one, other) = pair().unwrap();
    let (probe, writes) = probe();
    assert_eq!(send(&one, b"", &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    send_empty(&one, &[]);
    send_empty(&one, &[writes.as_fd()]);
    drop(writes);
    for _ in 0..2 {
        assert!(matches!(receive(&other, &mut [0; 8], 1, Wait::No), Ok(Received::End)));
    }
    assert_closed(probe);
    assert!(matches!(receive(&other, &mut [0; 8], 1, Wait::No), Ok(Received::Nothing)));
    drop(one);
    for wait in [Wait::No, LIMIT, Wait::Forever] {
        assert!(matches!(receive(&other, &mut [0; 8], 1, wait), Ok(Received::End)));
    }
    assert_eq!(send(&other, b"gone", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn messages_of_an_end_that_closed_without_reading_arrive() {
    let (one, other) = pair().unwrap();
    send(&one, b"unread", &[]).unwrap();
    send(&other, b"last words", &[other.as_fd()]).unwrap();
    drop(other);
    assert_eq!(has_descriptors(&one).unwrap(), Some(true));
    assert_eq!(next(&one, 1).unwrap().0, b"last words");
    assert!(matches!(receive(&one, &mut [0; 8], 1, Wait::No), Ok(Received::End)));
    let (one, other) = pair().unwrap();
    send(&one, b"unread", &[]).unwrap();
    send(&other, b"last words", &[]).unwrap();
    drop(other);
    assert_eq!(next(&one, 1).unwrap().0, b"last words");
}

#[test]
fn descriptors_are_seen_before_they_are_taken() {
    let (one, other) = pair().unwrap();
    assert_eq!(has_descriptors(&other).unwrap(), None);
    send(&one, b"plain", &[]).unwrap();
    assert_eq!(has_descriptors(&other).unwrap(), Some(false));
    assert_eq!(next(&other, 0).unwrap().0, b"plain");
    let (probe, writes) = probe();
    send(&one, b"with", &[writes.as_fd()]).unwrap();
    drop(writes);
    for _ in 0..2 {
        assert_eq!(has_descriptors(&other).unwrap(), Some(true));
    }
    assert_eq!(next(&other, 1).unwrap().1.len(), 1);
    assert_closed(probe);
}

#[test]
fn who_does_not_read_holds_no_sender_up() {
    let (one, _other) = pair().unwrap();
    let mut sent = (0..100_000).map(|_| send(&one, &[7; LONGEST], &[]));
    assert_eq!(sent.find_map(Result::err).unwrap().kind(), ErrorKind::WouldBlock);
}

#[test]
fn waits_end_with_a_message_or_their_time() {
    let (one, other) = pair().unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(1)] {
        assert!(matches!(receive(&other, &mut [0; 8], 0, Wait::For(limit)), Ok(Received::Nothing)));
    }
    for wait in [LIMIT, Wait::For(Duration::MAX), Wait::Forever] {
        thread::scope(|scope| {
            let waits = scope.spawn(|| receive(&other, &mut [0; 8], 0, wait));
            send(&one, b"here", &[]).unwrap();
            assert!(matches!(waits.join().unwrap(), Ok(Received::Message(4, _))), "{wait:?}");
        });
    }
}

#[test]
fn both_ends_know_each_other() {
    let (_directory, path) = place();
    let listener = listener(&path);
    assert!(listener.accept(Wait::No).unwrap().is_none());
    assert!(listener.accept(Wait::For(Duration::from_millis(1))).unwrap().is_none());
    let client = connect(&path, Duration::ZERO).unwrap();
    let server = listener.accept(Wait::Forever).unwrap().unwrap();
    for socket in [&client, &server] {
        assert!(fcntl_getfd(socket).unwrap().contains(FdFlags::CLOEXEC));
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(peer(socket).unwrap(), Peer { pid: std::process::id(), uid, gid });
        assert!(groups(socket).contains(&gid));
        assert!(peer_lives(socket));
    }
    assert!(peer(File::open("/proc/self/stat").unwrap()).is_err());
    send(&client, b"hello", &[client.as_fd()]).unwrap();
    let (bytes, fds) = next(&server, 1).unwrap();
    assert_eq!((bytes.as_slice(), fds.len()), (&b"hello"[..], 1));
}

#[test]
fn closed_listener_ends_its_waits_and_refuses_clients() {
    let (_directory, path) = place();
    let listener = listener(&path);
    thread::scope(|scope| {
        let waits = scope.spawn(|| listener.accept(Wait::Forever));
        listener.close();
        assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
    });
    assert_eq!(connect(&path, Duration::ZERO).unwrap_err(), Errno::CONNREFUSED);
}

#[test]
fn descriptors_are_refused_where_the_kernel_can() {
    let (_directory, path) = place();
    let listener = Listener::bind(&path, 8, Descriptors::Refused).unwrap();
    let client = connect(&path, Duration::ZERO).unwrap();
    let server = listener.accept(LIMIT).unwrap().unwrap();
    assert_eq!(send(&client, b"with", &[client.as_fd()]).is_err(), !listener.takes_descriptors());
    // In the other direction they arrive.
    send(&server, b"with", &[server.as_fd()]).unwrap();
    assert_eq!(next(&client, 1).unwrap().1.len(), 1);
}

#[test]
fn only_the_socket_of_a_program_that_ended_is_replaced() {
    let (_directory, path) = place();
    let mut first = listener(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    let again = || Listener::bind(&path, 8, Descriptors::Taken);
    assert!(matches!(again(), Err(ListenError::Running(at)) if at == path));
    // As one that was killed leaves it.
    first.hand_over();
    drop(first);
    assert!(path.exists());
    drop(again().unwrap());
    assert!(!path.exists());
    // Of another type.
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(again(), Err(ListenError::Io { .. })));
    drop(other);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "a file of somebody").unwrap();
    let why = again().unwrap_err().to_string();
    assert!(why.ends_with("its.sock: a file that is no socket is there; remove it, or name another path"), "{why}");
    assert_eq!(fs::read(&path).unwrap(), b"a file of somebody");
}

#[test]
fn ending_listener_removes_only_its_own_file() {
    let (_directory, path) = place();
    let is_there = || connect(&path, Duration::ZERO).is_ok();
    let first = listener(&path);
    fs::remove_file(&path).unwrap();
    let second = listener(&path);
    drop(first);
    assert!(is_there(), "the second one's");
    let copy = second.as_fd().try_clone_to_owned().unwrap();
    let third = Listener::take_over(copy, &path, Descriptors::Taken);
    fs::remove_file(&path).unwrap();
    let _fourth = listener(&path);
    drop((second, third));
    assert!(is_there(), "the fourth one's");
}

#[test]
fn paths_that_no_socket_can_have_are_refused() {
    let (directory, path) = place();
    let long = directory.path().join("x".repeat(108));
    let why = Listener::bind(&long, 8, Descriptors::Taken).unwrap_err().to_string();
    assert!(why.ends_with(": its path is longer than the 107 bytes that a socket can have"), "{why}");
    assert_eq!(connect(&long, Duration::ZERO).unwrap_err(), Errno::NAMETOOLONG);
    assert_eq!(connect(&path, Duration::ZERO).unwrap_err(), Errno::NOENT);
    let nowhere = directory.path().join("no").join("its.sock");
    let why = Listener::bind(&nowhere, 8, Descriptors::Taken).unwrap_err();
    assert!(matches!(why, ListenError::Io { path, why } if path == nowhere && why.kind() == ErrorKind::NotFound));
}

/// A listener with a full backlog, and those that wait there.
fn crowded(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    (listener, std::iter::from_fn(|| connect(path, Duration::ZERO).ok()).collect())
}

#[test]
fn listener_with_a_full_backlog_is_not_replaced() {
    let (_directory, path) = place();
    let (_listener, crowd) = crowded(&path);
    assert!(!crowd.is_empty());
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(matches!(Listener::bind(&path, 8, Descriptors::Taken), Err(ListenError::Running(_))));
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
}

#[test]
fn connecting_waits_for_a_place_in_the_backlog() {
    let (_directory, path) = place();
    let (listener, crowd) = crowded(&path);
    let path = path.as_path();
    assert_eq!(connect(path, Duration::ZERO).map(drop), Err(Errno::AGAIN));
    assert_eq!(connect(path, Duration::from_millis(1)).map(drop), Err(Errno::AGAIN));
    let connected = thread::scope(|scope| {
        let (send, thread) = mpsc::channel();
        let waiting = scope.spawn(move || {
            send.send(rustix::thread::gettid()).unwrap();
            connect(path, Duration::from_secs(20))
        });
        let stat = format!("/proc/self/task/{}/stat", thread.recv().unwrap().as_raw_nonzero());
        while !waiting.is_finished() && !fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S ")) {
            thread::yield_now();
        }
        // Now one place is free.
        rustix::net::accept(&listener).unwrap();
        waiting.join().unwrap()
    });
    drop(crowd);
    assert!(connected.is_ok(), "{connected:?}");
}
