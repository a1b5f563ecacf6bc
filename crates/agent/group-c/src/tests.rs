// SPDX-License-Identifier: Apache-2.0
//! Wrong arguments have an error each, and change nothing; entries are taken one by one.

#[allow(dead_code, reason = "the client's own tests use the rest of it")]
#[path = "../../client/tests/fake_agent/fake.rs"]
mod fake;

use std::{
    ffi::{CStr, CString, c_char, c_int},
    net::UdpSocket,
    os::fd::AsRawFd,
    ptr::{null, null_mut},
    thread,
};

use fake::{FakeAgent, beside};
use fide_client::{capi::*, protocol::HostInfo};
use fide_group::batch;

use crate::{handle::Taken, handle::Took, *};

fn said() -> String {
    // SAFETY: a text that lives until the next failing call.
    unsafe { CStr::from_ptr(fide_last_error()) }.to_str().unwrap().to_owned()
}

/// Options whose texts live as long as they do.
struct Options {
    given: FideGroupOptions,
    hosts: Vec<*const c_char>,
    texts: Vec<CString>,
    dir: tempfile::TempDir,
}

impl Options {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Self { given: zeroed(), hosts: Vec::new(), texts: Vec::new(), dir };
        options.given.size = size_of::<FideGroupOptions>();
        options.given.group = options.text("lines");
        options.given.key = options.text("00112233445566778899aabbccddeeff");
        let (state_dir, socket) = (options.dir.path().join("state"), options.dir.path().join("no.sock"));
        options.given.state_dir = options.text(state_dir.to_str().unwrap());
        options.given.socket = options.text(socket.to_str().unwrap());
        options.set_hosts(&["alpha", "beta"]);
        options
    }

    fn text(&mut self, text: &str) -> *const c_char {
        self.texts.push(CString::new(text).unwrap());
        self.texts.last().unwrap().as_ptr()
    }

    fn set_hosts(&mut self, names: &[&str]) {
        self.hosts = names.iter().map(|name| self.text(name)).collect();
        (self.given.hosts, self.given.hosts_len) = (self.hosts.as_ptr(), self.hosts.len());
    }

    fn open(&self) -> (c_int, *mut FideGroup) {
        let mut group = std::ptr::dangling_mut();
        // SAFETY: all texts live.
        let code = unsafe { fide_group_open(&self.given, &mut group) };
        (code, group)
    }
}

fn zeroed<T: Copy>() -> T {
    // SAFETY: structs of the C ABI, of which C programs make zeroed ones; enums are not read.
    unsafe { std::mem::zeroed() }
}

/// What opening says of one change.
fn refusal(change: impl FnOnce(&mut Options)) -> (c_int, String) {
    let mut options = Options::new();
    change(&mut options);
    let (code, group) = options.open();
    assert!(group.is_null(), "a failed call leaves NULL");
    assert!(!options.dir.path().join("state").exists(), "nothing was stored");
    (-code, said())
}

#[test]
fn wrong_options_are_named() {
    let checks = |change: fn(&mut Options), code: c_int, words: &str| {
        let (found, said) = refusal(change);
        assert!(found == code && said.contains(words), "{found}: {said}; wanted {code}: {words}");
    };
    checks(|_| {}, libc::ENOENT, "no.sock");
    checks(|options| options.given.size = 4, libc::EINVAL, "fide_group_options.size is 4");
    // A caller that was compiled with fewer fields.
    checks(|options| options.given.size = 16, libc::EINVAL, "hosts_len is 0");
    checks(|options| options.given.group = null(), libc::EINVAL, "group is NULL");
    checks(|options| options.given.group = options.text("../lines"), libc::EINVAL, "../lines");
    checks(|options| options.given.key = null(), libc::EINVAL, "key is NULL");
    checks(|options| options.given.key = options.text("0123"), libc::EINVAL, "key: ");
    checks(|options| options.given.key = options.text(&"x".repeat(32)), libc::EINVAL, "key: ");
    checks(|options| options.given.state_dir = null(), libc::EINVAL, "state_dir is NULL");
    checks(|options| options.given.state_dir = options.text(""), libc::EINVAL, "state_dir is empty");
    checks(|options| options.given.hosts = null(), libc::EINVAL, "hosts is NULL");
    checks(|options| options.given.hosts_len = 0, libc::EINVAL, "hosts_len is 0");
    checks(|options| options.given.hosts_len = 65, libc::EINVAL, "hosts_len is 65");
    checks(
        |options| {
            options.hosts[1] = null();
            options.given.hosts = options.hosts.as_ptr();
        },
        libc::EINVAL,
        "a name in hosts is NULL",
    );
    checks(|options| options.given.port = 65_536, libc::EINVAL, "port is 65536");
    checks(|options| options.given.protocol = 2, libc::EINVAL, "protocol is 2");
    let not_utf8 = CString::new([b'a', 0xff]).unwrap();
    for field in ["group", "key", "state_dir", "socket", "program"] {
        let (code, said) = refusal(|options| {
            let given = &mut options.given;
            let place = match field {
                "group" => &mut given.group,
                "key" => &mut given.key,
                "state_dir" => &mut given.state_dir,
                "socket" => &mut given.socket,
                _ => &mut given.program,
            };
            *place = not_utf8.as_ptr();
        });
        assert_eq!((code, said), (libc::EINVAL, format!("{field} is not UTF-8")));
    }
    // SAFETY: NULL is checked.
    unsafe {
        let mut group = null_mut();
        assert_eq!(fide_group_open(null(), &mut group), -libc::EINVAL);
        assert!(said().starts_with("options is NULL"));
        assert_eq!(fide_group_open(&Options::new().given, null_mut()), -libc::EINVAL);
        assert!(said().starts_with("out is NULL"));
    }
}

#[test]
fn no_handle_is_an_error_everywhere() {
    let mut position = 0;
    // SAFETY: NULL is checked before anything else.
    let codes = unsafe {
        fide_group_close(null_mut());
        assert!(fide_group_host_name(null(), 1).is_null() && said().contains("fide_group_t pointer is NULL"));
        assert!(fide_group_waits_for(null_mut()).is_null() && fide_group_unstored(null_mut()).is_null());
        [
            fide_group_fd(null()).into(),
            fide_group_watch(null_mut(), 0).into(),
            fide_group_wait(null_mut(), 0).into(),
            fide_group_propose(null_mut(), null(), 0).into(),
            fide_group_propose_payload(null_mut(), null(), 0, null_mut()).into(),
            fide_group_poll_refused(null_mut(), null_mut()).into(),
            fide_group_poll_decision(null_mut(), null_mut()).into(),
            fide_group_position(null()),
            fide_group_may_answer(null()).into(),
            fide_group_may_be_decided(null(), &mut position).into(),
            fide_group_wants_state(null()).into(),
            fide_group_give_state(null_mut(), null(), 0).into(),
            fide_group_poll_install(null_mut(), null_mut()).into(),
            fide_group_offered_state(null(), null_mut()).into(),
            fide_group_state_dropped(null_mut()).into(),
            fide_group_decline_offer(null_mut()).into(),
            fide_group_installed_at(null_mut(), 1).into(),
            fide_group_standing(null()).into(),
            fide_group_leads(null()).into(),
            fide_group_leader(null()).into(),
            fide_group_host_id(null()).into(),
            fide_group_members(null(), null_mut()).into(),
            fide_group_has_others(null()).into(),
            fide_group_was_member(null()).into(),
            fide_group_remove(null_mut(), 1).into(),
            fide_group_hand_over(null_mut(), 1).into(),
            fide_group_wants_base(null()).into(),
            fide_group_store_base(null_mut(), null(), 0).into(),
            fide_group_may_act(null(), null_mut()).into(),
            fide_group_death_ns(null()),
            fide_group_counters_of(null(), null_mut()).into(),
        ]
    };
    assert_eq!(codes, [i64::from(-libc::EINVAL); 31]);
}

/// A member at a played agent. The second host is never up, so that it waits to found the group.
fn with_member(change: impl FnOnce(&mut Options), test: impl FnOnce(*mut FideGroup)) {
    let mut agent = FakeAgent::new();
    let host = |name: &str, last| HostInfo { name: name.to_owned(), addresses: vec![[127, 0, 0, last].into()] };
    agent.members = vec![host("alpha", 1), host("beta", 2)];
    let mut options = Options::new();
    options.given.socket = options.text(agent.path().to_str().unwrap());
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    options.given.port = free.local_addr().unwrap().port().into();
    drop(free);
    change(&mut options);
    let greeted = || {
        let (peer, _) = agent.greet("one");
        peer.joins(0);
        peer.monitors(1);
        peer
    };
    let (_peer, (code, group)) = beside(greeted, || options.open());
    assert_eq!(code, 0, "{}", said());
    test(group);
    // SAFETY: it is open, and nobody else uses it.
    unsafe { fide_group_close(group) };
}

fn refuses(code: impl Into<i64>, wanted: c_int, words: &str) {
    let code = code.into();
    assert!(code == i64::from(-wanted) && said().contains(words), "{code}: {}; wanted {wanted}: {words}", said());
}

#[test]
fn wrong_arguments_of_a_member_are_named() {
    with_member(
        |_| {},
        // SAFETY: the handle is open; all that is wrong is checked.
        |group| unsafe {
            let long = vec![0_u8; FIDE_GROUP_VALUE_MAX + 1];
            refuses(fide_group_propose(group, null(), 3), libc::EINVAL, "data is NULL");
            refuses(fide_group_propose(group, long.as_ptr().cast(), usize::MAX), libc::EINVAL, "negative number");
            refuses(fide_group_propose(group, long.as_ptr().cast(), 1), libc::ESTALE, "");
            refuses(fide_group_propose_payload(group, null(), 3, null_mut()), libc::EINVAL, "data is NULL");
            refuses(fide_group_give_state(group, null(), 3), libc::EINVAL, "data is NULL");
            refuses(fide_group_watch(group, -1), libc::EBADF, "fd is -1");
            refuses(fide_group_watch(group, 1 << 20), libc::EBADF, "fd is 1048576");
            let file = tempfile::tempfile().unwrap();
            refuses(fide_group_watch(group, file.as_raw_fd()), libc::EPERM, "cannot be watched");
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            assert_eq!(fide_group_watch(group, socket.as_raw_fd()), 0);
            refuses(fide_group_watch(group, socket.as_raw_fd()), libc::EEXIST, "cannot be watched");
            refuses(fide_group_may_be_decided(group, null_mut()), libc::EINVAL, "position is NULL");
            refuses(fide_group_poll_decision(group, null_mut()), libc::EINVAL, "fide_group_decision pointer is NULL");
            refuses(fide_group_poll_decision(group, &mut zeroed_decision()), libc::EINVAL, "decision.size is 0");
            refuses(fide_group_poll_install(group, &mut zeroed()), libc::EINVAL, "fide_group_state.size is 0");
            refuses(fide_group_offered_state(group, null_mut()), libc::EINVAL, "fide_group_state pointer is NULL");
            refuses(fide_group_members(group, &mut zeroed()), libc::EINVAL, "fide_group_view.size is 0");
            refuses(fide_group_counters_of(group, null_mut()), libc::EINVAL, "fide_group_counters pointer is NULL");
            refuses(fide_group_may_act(group, null_mut()), libc::EINVAL, "permit is NULL");
            refuses(fide_group_installed_at(group, 7), libc::EINVAL, "no state is offered at position 7");
            for host in [-1, 0, 3, 65_537] {
                refuses(fide_group_remove(group, host), libc::ENOENT, "hosts are 1 to 2");
                assert!(fide_group_host_name(group, host).is_null());
            }
            refuses(fide_group_remove(group, 2), libc::ESTALE, "");
        },
    );
}

fn zeroed_decision() -> FideGroupDecision {
    FideGroupDecision {
        size: 0,
        position: 0,
        data: null(),
        len: 0,
        entry: FideGroupEntry::View,
        view_number: 0,
        view_members: 0,
        identity: FideGroupIdentity::NONE,
    }
}

#[test]
fn a_member_that_waits_says_for_what() {
    with_member(
        |_| {},
        // SAFETY: the handle is open.
        |group| unsafe {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            assert_eq!(fide_group_watch(group, socket.as_raw_fd()), 0);
            assert_eq!(fide_group_wait(group, 0), 0);
            socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
            assert_eq!((0..1000).map(|_| fide_group_wait(group, 1)).find(|code| *code != 0), Some(1));
            assert!(fide_group_fd(group) > 2);
            assert_eq!(fide_group_standing(group), FideStanding::Joining as c_int);
            let waits = CStr::from_ptr(fide_group_waits_for(group)).to_str().unwrap();
            assert!(waits.contains("no process lines@beta is known to run"), "{waits}");
            assert!(fide_group_unstored(group).is_null());
            assert_eq!(CStr::from_ptr(fide_group_host_name(group, 2)), c"beta");
            assert_eq!((fide_group_host_id(group), fide_group_leader(group)), (1, 0));
            assert_eq!((fide_group_leads(group), fide_group_may_answer(group)), (0, 0));
            assert_eq!((fide_group_wants_state(group), fide_group_was_member(group)), (0, 0));
            assert_eq!((fide_group_position(group), fide_group_death_ns(group)), (0, 0));
            let mut decision = FideGroupDecision { size: size_of::<FideGroupDecision>(), ..zeroed_decision() };
            assert_eq!(fide_group_poll_decision(group, &mut decision), 0);
            let mut view = FideGroupView { size: size_of::<FideGroupView>(), ..zeroed() };
            assert_eq!(fide_group_members(group, &mut view), 0);
            // A caller that was compiled with fewer counters: the rest is not its own.
            let mut counters = FideGroupCounters { size: 16, trains_sent: 77, packets_refused: 77, ..zeroed() };
            assert_eq!(fide_group_counters_of(group, &mut counters), 0);
            assert_eq!((counters.packets_refused, counters.trains_sent), (0, 77));
        },
    );
}

#[test]
fn bounds_beyond_all_memory_are_refused() {
    let mut agent = FakeAgent::new();
    agent.members = vec![HostInfo { name: "alpha".to_owned(), addresses: vec![[127, 0, 0, 1].into()] }];
    let refused = |change: &dyn Fn(&mut Options), words: &str| {
        let mut options = Options::new();
        options.given.socket = options.text(agent.path().to_str().unwrap());
        options.set_hosts(&["alpha"]);
        change(&mut options);
        let (_peer, (code, _)) = beside(|| agent.greet("one"), || options.open());
        refuses(code, libc::EINVAL, words);
    };
    refused(&|options| options.given.payload_max_bytes = u64::MAX, "payload");
    refused(&|options| options.given.tail_max_bytes = u64::MAX, "tail_max");
    refused(&|options| options.given.window = u32::MAX, "a window of 4294967295");
    refused(&|options| options.set_hosts(&["alpha", "alpha"]), "twice");
}

#[test]
fn second_thread_is_refused_and_so_is_every_call_after_a_panic() {
    with_member(
        |_| {},
        |group| {
            let address = group as usize;
            // SAFETY: the handle is open.
            let entered = unsafe { FideGroup::enter(group) }.ok().unwrap();
            let other = thread::spawn(move || {
                // SAFETY: the handle outlives this thread.
                let code = unsafe { fide_group_leads(address as *const FideGroup) };
                (code, said())
            });
            let (code, said_there) = other.join().unwrap();
            assert!(code == -libc::EDEADLK && said_there.contains("one thread at a time"), "{code}: {said_there}");
            drop(entered);
            // SAFETY: the handle is open.
            assert_eq!(unsafe { fide_group_leads(group) }, 0);
            let code: c_int = fide_client::capi::boundary::guard(|| {
                // SAFETY: as above.
                let _entered = unsafe { FideGroup::enter(group) }?;
                panic!("on purpose");
            });
            assert_eq!(code, -libc::ENOTRECOVERABLE);
            // SAFETY: as above.
            refuses(unsafe { fide_group_leads(group) }, libc::ENOTRECOVERABLE, "start it again");
        },
    );
}

#[test]
fn entries_of_a_decision_are_taken_one_by_one() {
    let mut value = Vec::new();
    for (kind, bytes) in [(0, &b"a"[..]), (9, b"unknown"), (0, b""), (1, &[7; 40])] {
        assert!(batch::push_tagged(&mut value, Some(kind), bytes, 1000));
    }
    let mut taken = Taken::default();
    assert!(taken.is_whole() && taken.next().is_none());
    taken.begin(5, &value);
    let mut lengths = Vec::new();
    while !taken.is_whole() {
        match taken.next().unwrap() {
            Took::Value(_, len) => lengths.push(len),
            Took::Payload(identity) => lengths.push(identity.hash[0].into()),
            Took::View(_) => panic!("there is none"),
        }
        taken.advance();
    }
    assert_eq!((lengths, taken.position()), (vec![1, 0, 7], 5));
    taken.begin(6, &value);
    taken.drop_rest();
    assert!(taken.is_whole());
    // Where a new leader closed a gap.
    taken.begin(7, b"");
    assert!(taken.is_whole());
}
