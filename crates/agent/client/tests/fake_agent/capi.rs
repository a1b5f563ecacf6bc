// SPDX-License-Identifier: Apache-2.0
//! The C ABI, called as C calls it.

use crate::fake::*;
use fide_agent_api::event::{EventRecord, kind, lane_reason};
use fide_client::{
    LEASE_FOREVER_NS, Reason,
    capi::*,
    protocol::{Empty, LaneOk, Op},
};
use fide_types::HostId;
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    ptr::{null, null_mut},
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
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

unsafe extern "C" fn on_monitor_req(user: *mut c_void, process: c_int, watcher: *const c_char, host: HostId, pb: u32) {
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

unsafe extern "C" fn on_lane_message(user: *mut c_void, message: *const FideLaneMessage) {
    // SAFETY: valid during the upcall.
    let m = unsafe { &*message };
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(m.data.cast::<u8>(), m.len) };
    let text = String::from_utf8_lossy(bytes);
    say(user, format!("lane {} {} {} {} {} {} {text}", m.host_id, m.incarnation, m.service, m.seq, m.rx_ns, m.plane));
}

unsafe extern "C" fn on_bandwidth_changed(
    user: *mut c_void,
    lane: c_int,
    resources: *const FideLaneResources,
    reason: FideLaneReason,
    grace_ns: u64,
) {
    // SAFETY: valid during the upcall.
    let r = unsafe { &*resources };
    say(user, format!("changed {lane} {reason:?} {grace_ns} {} {} {}", r.period_ns, r.min_latency_ns, r.max_jitter_ns));
}

unsafe extern "C" fn on_bandwidth_terminated(
    user: *mut c_void,
    lane: c_int,
    name: *const c_char,
    why: *const c_char,
    grace_ns: u64,
) {
    say(user, format!("terminated {lane} {} {} {grace_ns}", text(name), text(why)));
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
        on_lane_message: Some(on_lane_message),
        on_bandwidth_changed: Some(on_bandwidth_changed),
        on_bandwidth_terminated: Some(on_bandwidth_terminated),
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

/// An agent, its end of the connection, and a handle that joined (1) and monitors (2), with a log of its
/// upcalls.
struct Set {
    agent: FakeAgent,
    peer: Peer,
    fide: *mut Fide,
    log: Box<Log>,
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
        Self { agent, peer, fide, log, heard }
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
fn dispatcher_thread_dispatches_and_stops() {
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
fn dispatcher_thread_reports_that_it_cannot_go_on() {
    let mut set = Set::new();
    // Whether it is seen before its thread ends that there is no lease depends on when the thread runs.
    let heard = |set: &Set| loop {
        match set.heard.recv().unwrap() {
            said if said == "notice Fenced 0" => {}
            said => break said,
        }
    };
    // SAFETY: a live handle, closed once.
    unsafe {
        assert_eq!(fide_start(set.fide), 0);
        set.agent.tell(up(7, 1), b"db@beta");
        assert_eq!(heard(&set), "up 1");
        set.agent.break_inbox();
        assert_eq!(heard(&set), "notice DispatchEnded 0");
        assert!(fide_dispatch(set.fide, 0) < 0);
        assert!(last_error().contains("ring"), "{}", last_error());
        set.agent.table.set_lease_until(LEASE_FOREVER_NS);
        assert_eq!(fide_is_fenced(set.fide), 0, "whether to act is known still");
        // Another thread may be started in place of the one that ended; it says the same.
        while fide_start(set.fide) == -libc::EALREADY {
            std::thread::yield_now();
        }
        assert_eq!(heard(&set), "notice DispatchEnded 0");
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
        let mut permit = FidePermit { size: size_of::<FidePermit>(), ..std::mem::zeroed() };
        assert_eq!(fide_may_act(set.fide, &raw mut permit), 1);
        assert_eq!((permit.incarnation, permit.host_id, permit.until_ns, permit.token[0]), (5, 1, u64::MAX, 0));
        let view = fide_agent_api::table::ViewRecord { generation: 1, number: 2, members: 0b11, settled_ns: 0 };
        set.agent.table.set_view(&view);
        assert_eq!(fide_may_act(set.fide, &raw mut permit), 1);
        assert_eq!((permit.view_number, permit.view_members, permit.lowest), (2, 0b11, 1));
        assert_eq!(std::ffi::CStr::from_ptr(permit.token.as_ptr()).to_str(), Ok("000000010000000200000005"));
        let before = permit.now_ns;
        set.agent.table.set_incarnation(6);
        assert_eq!((fide_is_fenced(set.fide), fide_may_act(set.fide, &raw mut permit)), (1, 0));
        assert_eq!(permit.now_ns, before, "not touched");
        assert_eq!(fide_rejoined_acknowledge(set.fide, 6), -libc::ESTALE, "not reported yet");
        permit.size = 4;
        assert_eq!(fide_may_act(set.fide, &raw mut permit), -libc::EINVAL);
        assert_eq!(fide_may_act(set.fide, std::ptr::null_mut()), -libc::EINVAL);
        assert_eq!(fide_beat(set.fide), 0);
        assert_eq!(set.agent.session.beat(), 1);
        assert_eq!(fide_host_id(set.fide), 1);
        assert_eq!(fide_host_state(set.fide, 2), FideState::Unknown as c_int);
        fide_close(set.fide);
    }
}

#[test]
fn misuse_gives_codes_and_remedies() {
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

/// A request for a lane to beta, all other fields as a C program leaves them.
fn lane_request(name: *const c_char, receivers: &[*const c_char]) -> FideLaneRequest {
    // SAFETY: zero is valid for all of its fields.
    let zero: FideLaneRequest = unsafe { std::mem::zeroed() };
    FideLaneRequest {
        size: size_of::<FideLaneRequest>(),
        name,
        receivers: receivers.as_ptr(),
        receivers_len: receivers.len(),
        message_max_bytes: 100,
        period_ns: 1_000_000,
        ..zero
    }
}

#[test]
fn lanes_of_the_listing_of_x_lane() {
    let mut set = Set::new();
    let (agent, peer, fide) = (&set.agent, &set.peer, set.fide);
    let receivers = [c"beta".as_ptr()];
    let request = lane_request(c"work".as_ptr(), &receivers);
    // SAFETY: zero is valid for all of its fields.
    let mut granted: FideLaneResources = unsafe { std::mem::zeroed() };
    // SAFETY: a live handle, valid structs and strings.
    let lane = beside(|| peer.opens_lane(agent, 3), || unsafe { fide_lane_open(fide, &request, &mut granted) });
    assert_eq!(lane, ("work".to_owned(), 1));
    let expected = FideLaneResources {
        period_ns: 1_000_000,
        min_latency_ns: 5_000,
        max_jitter_ns: 7_000,
        packet_max_bytes: 150,
        message_max_bytes: 100,
        bounded: 1,
        trees: 2,
    };
    assert_eq!(granted, expected);
    let serve = || {
        let request = peer.request();
        let Op::ChangeLane { handle: 3, asked } = &request.op else { panic!("{request:?}") };
        assert_eq!((asked.priority, asked.redundancy, asked.latency_max_ns), (0, Some(1), Some(9)));
        peer.lane_ok(agent, request.id, &LaneOk { bounded: false, trees: 1, ..lane_ok(3) });
    };
    let heartbeats = FideSubLane::Heartbeats as u32;
    let other = FideLaneRequest { name: null(), sub_lane: heartbeats, redundancy: 1, latency_max_ns: 9, ..request };
    // SAFETY: a live handle, valid structs and strings.
    let changed = beside(serve, || unsafe { fide_lane_change(fide, 1, &other, &mut granted) }).1;
    assert_eq!(changed, 0);
    let (min_latency_ns, max_jitter_ns) = (FIDE_UNBOUNDED, FIDE_UNBOUNDED);
    assert_eq!(granted, FideLaneResources { min_latency_ns, max_jitter_ns, bounded: 0, trees: 1, ..expected });
    let done = |op: Op| {
        let request = peer.request();
        assert_eq!(request.op, op);
        peer.ok(request.id, &Empty {});
    };
    // SAFETY: a live handle; the bytes are readable.
    unsafe {
        beside(|| done(Op::Listen { service: 9 }), || assert_eq!(fide_listen(fide, 9), 0));
        assert_eq!(fide_lane_send(fide, 1, 9, c"hello".as_ptr().cast(), 5), 0);
    }
    assert_eq!(set.agent.next_lane_message(), Some((3, 9, b"hello".to_vec())));
    set.agent.tell_message(9, b"good day");
    set.agent.tell_changed(3, lane_reason::BW_UNUSED);
    set.agent.tell_terminated(3, Duration::from_secs(3600), "it was not used");
    let peer = &set.peer;
    let done = |op: Op| {
        let request = peer.request();
        assert_eq!(request.op, op);
        peer.ok(request.id, &Empty {});
    };
    // SAFETY: a live handle, closed once.
    unsafe {
        let mut count = 0;
        while count < 3 {
            let some = fide_dispatch(fide, 20_000);
            assert!(some > 0, "{}", last_error());
            count += some;
        }
        let expected = [
            "lane 2 6 9 77 88 1 good day",
            "changed 1 BwUnused 50000000 2000000 -1 -1",
            "terminated 1 work it was not used 3600000000000",
        ];
        assert_eq!(set.heard.try_iter().collect::<Vec<_>>(), expected);
        beside(|| done(Op::Unlisten { service: 9 }), || assert_eq!(fide_unlisten(fide, 9), 0));
        beside(|| done(Op::CloseLane { handle: 3 }), || assert_eq!(fide_lane_close(fide, 1), 0));
        assert_eq!(fide_lane_close(fide, 1), -libc::ENOENT);
        fide_close(fide);
    }
}

#[test]
fn older_upcall_tables_end_before_lanes() {
    let mut set = Set::new();
    // What an earlier header called fide_upcalls: behind it lies something else.
    let table = FideUpcalls { size: std::mem::offset_of!(FideUpcalls, on_lane_message), ..all_upcalls() };
    // SAFETY: a live handle, closed once; the log outlives it.
    unsafe {
        let user = (&raw const *set.log).cast_mut().cast();
        assert_eq!(fide_set_upcalls(set.fide, &table, user), 0);
        let listens = || {
            let request = set.peer.request();
            set.peer.ok(request.id, &Empty {});
        };
        beside(listens, || assert_eq!(fide_listen(set.fide, 9), 0));
        set.agent.tell_message(9, b"unheard");
        set.agent.tell(up(7, 1), b"db@beta");
        while set.heard.try_recv().as_deref() != Ok("up 1") {
            assert!(fide_dispatch(set.fide, 20_000) > 0, "{}", last_error());
        }
        fide_close(set.fide);
    }
}

#[test]
fn misuse_of_lanes_gives_codes_and_remedies() {
    let set = Set::new();
    let receivers = [c"beta".as_ptr(), null()];
    let good = lane_request(c"work".as_ptr(), &receivers[..1]);
    // SAFETY: what is wrong here is checked by the library; nothing invalid is dereferenced.
    unsafe {
        let open = |request: &FideLaneRequest| fide_lane_open(set.fide, request, null_mut());
        assert_eq!(fide_lane_open(null_mut(), &good, null_mut()), -libc::EINVAL);
        assert_eq!(fide_lane_open(set.fide, null(), null_mut()), -libc::EINVAL);
        assert_eq!(open(&FideLaneRequest { size: 0, ..good }), -libc::EINVAL);
        assert!(last_error().contains("sizeof(fide_lane_request)"), "{}", last_error());
        assert_eq!(open(&FideLaneRequest { name: null(), ..good }), -libc::EINVAL);
        assert_eq!(open(&FideLaneRequest { name: c"no spaces".as_ptr(), ..good }), -libc::EINVAL);
        assert_eq!(open(&FideLaneRequest { receivers: null(), ..good }), -libc::EINVAL);
        assert_eq!(open(&FideLaneRequest { receivers_len: 65, ..good }), -libc::EINVAL);
        assert!(last_error().contains("64 hosts"), "{}", last_error());
        assert_eq!(open(&lane_request(c"work".as_ptr(), &receivers)), -libc::EINVAL);
        assert!(last_error().contains("a receiver is NULL"), "{}", last_error());
        assert_eq!(open(&FideLaneRequest { sub_lane: 2, ..good }), -libc::EINVAL);
        assert!(last_error().contains("fide_sub_lane"), "{}", last_error());
        assert_eq!(open(&FideLaneRequest { redundancy: 256, ..good }), -libc::EINVAL);
        assert_eq!(fide_lane_change(set.fide, 1, &good, null_mut()), -libc::ENOENT);
        assert_eq!(fide_lane_change(set.fide, -1, &good, null_mut()), -libc::EINVAL);
        assert_eq!(fide_lane_send(set.fide, 1, 1, null(), 0), -libc::ENOENT);
        beside(|| set.peer.opens_lane(&set.agent, 3), || assert_eq!(fide_lane_open(set.fide, &good, null_mut()), 1));
        assert_eq!(fide_lane_send(set.fide, 1, 0, null(), 0), -libc::EINVAL);
        assert_eq!(fide_lane_send(set.fide, 1, 1, null(), 1), -libc::EINVAL);
        assert_eq!(fide_lane_send(set.fide, 1, 1, [0u8; 101].as_ptr().cast(), 101), -libc::EMSGSIZE);
        assert_eq!(fide_lane_send(set.fide, 1, 1, null(), 0), 0);
        assert_eq!(fide_listen(null_mut(), 1), -libc::EINVAL);
        fide_close(set.fide);
    }
}
