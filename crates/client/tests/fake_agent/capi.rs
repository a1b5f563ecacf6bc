// SPDX-License-Identifier: Apache-2.0
//! The C ABI, called as C calls it.

use crate::fake::*;
use fide_client::{LEASE_FOREVER_NS, Reason, capi::*};
use fide_shm::event::{EventRecord, kind};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    ptr::{null, null_mut},
    sync::mpsc::{Receiver, Sender, channel},
};

type Log = Sender<String>;

fn say(user: *mut c_void, text: String) {
    // SAFETY: the tests pass a Log that outlives the handle.
    let _ = unsafe { &*user.cast::<Log>() }.send(text);
}

fn text(text: *const c_char) -> String {
    // SAFETY: upcalls and fide_last_error give NUL-terminated strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn last_error() -> String {
    text(fide_last_error())
}

unsafe extern "C" fn on_failure(user: *mut c_void, verdict: *const FideVerdict) {
    // SAFETY: valid during the upcall.
    let v = unsafe { &*verdict };
    say(user, format!("failure {} {} {:?} {} {}", v.monitor, text(v.target), v.reason, v.code, v.incarnation));
}

unsafe extern "C" fn on_up(user: *mut c_void, verdict: *const FideVerdict) {
    // SAFETY: valid during the upcall.
    say(user, format!("up {}", unsafe { &*verdict }.incarnation));
}

unsafe extern "C" fn on_change(user: *mut c_void, verdict: *const FideVerdict) {
    // SAFETY: valid during the upcall.
    say(user, format!("change {:?}", unsafe { &*verdict }.reason));
}

unsafe extern "C" fn on_piggyback(user: *mut c_void, message: *const FideMessage) {
    // SAFETY: valid during the upcall.
    let bytes = unsafe { std::slice::from_raw_parts((*message).data.cast::<u8>(), (*message).len) };
    say(user, format!("piggyback {}", String::from_utf8_lossy(bytes)));
}

unsafe extern "C" fn on_timeout(user: *mut c_void, monitor: c_int, timeout_us: u32) {
    say(user, format!("timeout {monitor} {timeout_us}"));
}

unsafe extern "C" fn on_monitor_req(user: *mut c_void, process: c_int, watcher: *const c_char, host: u16, pb: u32) {
    say(user, format!("monitored {process} by {} on {host}, {pb}", text(watcher)));
}

unsafe extern "C" fn on_pbsize(user: *mut c_void, process: c_int, pbsize: u32) {
    say(user, format!("pbsize {process} {pbsize}"));
}

unsafe extern "C" fn on_notice(user: *mut c_void, notice: *const FideNotice) {
    // SAFETY: valid during the upcall.
    let n = unsafe { &*notice };
    say(user, format!("notice {:?} {}", n.kind, n.value));
}

fn all_upcalls() -> FideUpcalls {
    FideUpcalls {
        size: size_of::<FideUpcalls>(),
        on_failure: Some(on_failure),
        on_piggyback_rcv: Some(on_piggyback),
        on_timeout_changed: Some(on_timeout),
        on_monitor_req: Some(on_monitor_req),
        on_pbsize_changed: Some(on_pbsize),
        on_up: Some(on_up),
        on_change: Some(on_change),
        on_notice: Some(on_notice),
    }
}

fn open(agent: &FakeAgent) -> (Peer, *mut Fide) {
    let socket = CString::new(agent.path().as_os_str().as_bytes()).unwrap();
    let options = FideOptions {
        size: size_of::<FideOptions>(),
        socket: socket.as_ptr(),
        program: null(),
        spin_ns: 1000,
        call_timeout_ms: 0,
    };
    let mut fide = null_mut();
    // SAFETY: valid options and a place for the handle.
    let ((peer, _), code) = beside(|| agent.greet("one"), || unsafe { fide_open(&options, &mut fide) });
    assert_eq!(code, 0, "{}", last_error());
    (peer, fide)
}

/// An agent, its end of the connection, and a handle that joined (1) and monitors (2), with a log of its upcalls.
struct Set {
    agent: FakeAgent,
    _peer: Peer,
    fide: *mut Fide,
    _log: Box<Log>,
    heard: Receiver<String>,
}

impl Set {
    fn new() -> Self {
        let agent = FakeAgent::new();
        let (peer, fide) = open(&agent);
        let (log, heard) = channel();
        let log = Box::new(log);
        // SAFETY: a live handle, valid strings and structs; the log outlives the handle.
        unsafe {
            let user = (&raw const *log).cast_mut().cast();
            assert_eq!(fide_set_upcalls(fide, &all_upcalls(), user), 0);
            assert_eq!(beside(|| peer.joins(4), || fide_join(fide, c"me".as_ptr(), 0)).1, 1);
            let mut granted = FideResources::default();
            let wanted = FideResources { timeout_us: 500, pbsize: 10 };
            let monitor = || fide_monitor(fide, c"db@beta".as_ptr(), &wanted, &mut granted);
            assert_eq!(beside(|| peer.monitors(7), monitor).1, 2);
            assert_eq!(granted.timeout_us, 900);
        }
        Self { agent, _peer: peer, fide, _log: log, heard }
    }

    fn tell_everything(&mut self) {
        let of = |kind| EventRecord { kind, ..up(7, 1) };
        self.agent.tell(up(7, 1), b"db@beta");
        self.agent.tell(EventRecord { seq: 1, ..of(kind::PIGGYBACK) }, b"hello");
        self.agent.tell(EventRecord { code: 700, ..of(kind::TIMEOUT_CHANGED) }, b"");
        self.agent.tell(EventRecord { code: 64, ..of(kind::MONITOR_REQ) }, b"you@gamma");
        self.agent.tell(EventRecord { code: 32, ..of(kind::PBSIZE_CHANGED) }, b"");
        self.agent.tell(of(kind::VERDICT).with_reason(Reason::Stalled), b"");
        self.agent.tell(EventRecord::of_host(kind::FENCED, 1), b"");
        self.agent.tell(killed(0, 1), b"");
    }
}

const EVERYTHING: [&str; 8] = [
    "up 1",
    "piggyback hello",
    "timeout 2 700",
    "monitored 1 by you@gamma on 2, 64",
    "pbsize 1 32",
    "change Stalled",
    "notice Fenced 0",
    "failure 2 db@beta Killed 9 1",
];

#[test]
fn dispatch_calls_every_upcall_of_listing_1() {
    let mut set = Set::new();
    set.tell_everything();
    // SAFETY: a live handle, closed once.
    unsafe {
        let mut count = 0;
        while count < EVERYTHING.len() as c_int {
            let some = fide_dispatch(set.fide, 20_000);
            assert!(some > 0, "{}", last_error());
            count += some;
        }
        assert_eq!(set.heard.try_iter().collect::<Vec<_>>(), EVERYTHING);
        assert_eq!(fide_dispatch(set.fide, 0), 0);
        assert_eq!(fide_peer_state(set.fide, 2), FideState::Dead as c_int);
        assert!(fide_fd(set.fide) >= 0);
        fide_close(set.fide);
    }
}

#[test]
fn the_dispatcher_thread_does_it_alone_and_stops() {
    let mut set = Set::new();
    // SAFETY: a live handle, closed once.
    unsafe {
        assert_eq!(fide_stop(set.fide), 0);
        assert_eq!(fide_start(set.fide), 0);
        assert_eq!(fide_start(set.fide), -libc::EALREADY);
        set.tell_everything();
        for expected in EVERYTHING {
            assert_eq!(set.heard.recv().unwrap(), expected);
        }
        assert_eq!(fide_stop(set.fide), 0);
        assert_eq!(fide_start(set.fide), 0);
        fide_close(set.fide);
    }
}

#[test]
fn fences_and_beats_need_no_dispatching() {
    let set = Set::new();
    // SAFETY: a live handle, closed once.
    unsafe {
        assert_eq!(fide_is_fenced(set.fide), 1);
        assert_eq!(fide_lease_remaining_ns(set.fide), 0);
        set.agent.table.set_lease_until(LEASE_FOREVER_NS);
        assert_eq!(fide_is_fenced(set.fide), 0);
        assert_eq!(fide_lease_remaining_ns(set.fide), i64::MAX);
        assert_eq!(fide_beat(set.fide), 0);
        assert_eq!(set.agent.session.beat(), 1);
        assert_eq!(fide_host_id(set.fide), 1);
        assert_eq!(fide_host_state(set.fide, 2), FideState::Unknown as c_int);
        fide_close(set.fide);
    }
}

#[test]
fn misuse_gives_codes_and_says_what_would_be_right() {
    let set = Set::new();
    // SAFETY: what is wrong here is checked by the library; nothing invalid is dereferenced.
    unsafe {
        assert_eq!(fide_open(null(), null_mut()), -libc::EINVAL);
        assert_eq!(fide_join(null_mut(), c"me".as_ptr(), 0), -libc::EINVAL);
        assert!(last_error().contains("fide_open"), "{}", last_error());
        assert!(fide_is_fenced(null()) < 0, "not 0: whoever asks nobody must not act");
        assert_eq!(fide_join(set.fide, null(), 0), -libc::EINVAL);
        assert_eq!(fide_join(set.fide, c"no spaces".as_ptr(), 0), -libc::EINVAL);
        assert!(last_error().contains("A-Z"), "{}", last_error());
        assert_eq!(fide_monitor(set.fide, c"beta".as_ptr(), null(), null_mut()), -libc::EINVAL);
        assert!(last_error().contains("name@host"), "{}", last_error());
        assert_eq!(fide_quit(set.fide, 99), -libc::ENOENT);
        assert_eq!(fide_unmonitor(set.fide, -1), -libc::EINVAL);
        assert_eq!(fide_piggyback(set.fide, [0u8; 101].as_ptr().cast(), 101), -libc::EMSGSIZE);
        assert_eq!(fide_piggyback(set.fide, null(), 1), -libc::EINVAL);
        assert_eq!(fide_piggyback(set.fide, null(), 0), 0);
        assert_eq!(fide_piggyback_as(set.fide, 1, c"x".as_ptr().cast(), 1), 0);
        assert_eq!(fide_piggyback_as(set.fide, 2, c"x".as_ptr().cast(), 1), -libc::ENOENT);
        let unsized_upcalls = FideUpcalls { size: 0, ..FideUpcalls::default() };
        assert_eq!(fide_set_upcalls(set.fide, &unsized_upcalls, null_mut()), -libc::EINVAL);
        assert!(last_error().contains("sizeof(fide_upcalls)"), "{}", last_error());
        fide_close(set.fide);
        fide_close(null_mut());
    }
}
