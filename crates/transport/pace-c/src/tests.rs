// SPDX-License-Identifier: Apache-2.0
//! Wrong arguments have an error each, and change nothing; what two threads do at once is survived.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    ptr::{null, null_mut},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use crate::*;

const LIMIT_US: i64 = 60_000_000;

fn said() -> String {
    // SAFETY: a text that lives until the next failing call.
    unsafe { CStr::from_ptr(fide_pace_last_error()) }.to_str().unwrap().to_owned()
}

fn key(kind: FidePaceKey) -> CString {
    let mut text: [c_char; FIDE_PACE_KEY_BYTES] = [0; FIDE_PACE_KEY_BYTES];
    // SAFETY: so many bytes are writable.
    assert_eq!(unsafe { fide_pace_key_new(kind as u32, text.as_mut_ptr(), text.len()) }, 0, "{}", said());
    // SAFETY: a text with its end.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_owned()
}

fn server(key: &CStr) -> (u64, CString) {
    let mut endpoint = 0;
    // SAFETY: texts, and a place for the handle.
    let code = unsafe { fide_pace_server(c"127.0.0.1:0".as_ptr(), key.as_ptr(), null(), &mut endpoint) };
    assert_eq!(code, 0, "{}", said());
    let mut text: [c_char; FIDE_PACE_ADDRESS_BYTES] = [0; FIDE_PACE_ADDRESS_BYTES];
    // SAFETY: so many bytes are writable.
    assert_eq!(unsafe { fide_pace_local_address(endpoint, text.as_mut_ptr(), text.len()) }, 0);
    // SAFETY: a text with its end.
    (endpoint, unsafe { CStr::from_ptr(text.as_ptr()) }.to_owned())
}

/// Handles of a client's connection, and of the server's, with those of their endpoints.
fn pair() -> ([u64; 2], [u64; 2]) {
    let key = key(FidePaceKey::Secret);
    let (server, address) = server(&key);
    let (mut client, mut here, mut there) = (0, 0, 0);
    // SAFETY: texts, and places for handles.
    unsafe {
        assert_eq!(fide_pace_client(&mut client), 0, "{}", said());
        assert_eq!(fide_pace_connect(client, address.as_ptr(), key.as_ptr(), null(), &mut here), 0, "{}", said());
        assert_eq!(fide_pace_accept(server, LIMIT_US, &mut there), 0, "{}", said());
    }
    ([here, there], [client, server])
}

fn send(connection: u64, bytes: &[u8], deadline_us: i64) -> i32 {
    // SAFETY: so many bytes are readable.
    unsafe { fide_pace_send(connection, bytes.as_ptr().cast(), bytes.len(), deadline_us) }
}

fn recv(connection: u64, into: &mut [u8], timeout_us: i64) -> i64 {
    // SAFETY: so many bytes are writable.
    unsafe { fide_pace_recv(connection, into.as_mut_ptr().cast(), into.len(), timeout_us, null_mut()) }
}

fn close(connection: u64) -> i32 {
    // SAFETY: no reason.
    unsafe { fide_pace_close(connection, null()) }
}

#[test]
fn handles_that_are_none_are_errors_everywhere() {
    let ([here, there], [client, server]) = pair();
    assert_eq!(close(there), 0);
    for (wrong, why) in [(0, "no handle"), (u64::MAX, "no handle"), (server, "an endpoint"), (there, "closed already")]
    {
        let mut view: FidePaceView = zeroed();
        view.size = size_of::<FidePaceView>();
        let mut counts: FidePaceCounts = zeroed();
        counts.size = size_of::<FidePaceCounts>();
        // SAFETY: places for what is told.
        let codes = unsafe {
            [
                send(wrong, b"x", 0).into(),
                fide_pace_try_send(wrong, b"x".as_ptr().cast(), 1, 0).into(),
                recv(wrong, &mut [0; 9], 0),
                fide_pace_get_view(wrong, &mut view).into(),
                fide_pace_get_incoming_view(wrong, &mut view).into(),
                fide_pace_get_counts(wrong, &mut counts).into(),
                fide_pace_bottleneck_pace_ns(wrong),
                fide_pace_expected_delay_ns(wrong),
                fide_pace_next_send_in_ns(wrong),
                fide_pace_expected_send_in_ns(wrong),
                fide_pace_next_recv_in_ns(wrong),
                fide_pace_on_change(wrong, None, null_mut()).into(),
                fide_pace_finish(wrong, 0).into(),
                close(wrong).into(),
            ]
        };
        assert_eq!(codes, [-i64::from(libc::EBADF); 14], "{wrong}");
        let text = said();
        assert!(text.contains(&format!("{wrong} is {why}")) && text.contains("fide_pace_connect"), "{text}");
    }
    let mut out = 9;
    // SAFETY: a place for the handle.
    assert_eq!(unsafe { fide_pace_accept(here, 0, &mut out) }, -libc::EBADF);
    assert!(out == 0 && said().contains("is a connection; pass an endpoint"), "{}", said());
    assert_eq!([close(here), fide_pace_endpoint_close(client), fide_pace_endpoint_close(server)], [0; 3]);
    assert_eq!(fide_pace_endpoint_close(server), -libc::EBADF);
}

fn zeroed<T: Copy>() -> T {
    // SAFETY: structs of the C ABI, of which C programs make zeroed ones.
    unsafe { std::mem::zeroed() }
}

#[test]
fn arguments_that_cannot_be_are_named() {
    let secret = key(FidePaceKey::Secret);
    let private = key(FidePaceKey::Private);
    let mut out = 9;
    let mut config: FidePaceConfig = zeroed();
    let mut server = |address: Option<&CStr>, key: Option<&CStr>, config: *const FidePaceConfig| {
        let text = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
        // SAFETY: texts or NULL, a configuration with its size, a place for the handle.
        let code = unsafe { fide_pace_server(text(address), text(key), config, &mut out) };
        assert_eq!((code, out), (-libc::EINVAL, 0));
        said()
    };
    assert!(server(None, Some(&secret), null()).contains("address is NULL"));
    assert!(server(Some(c"127.0.0.1:0"), None, null()).contains("key is NULL"));
    assert!(server(Some(c"7000"), Some(&secret), null()).contains("HOST:PORT"));
    assert!(server(Some(c"127.0.0.1:0"), Some(c"secret"), null()).contains("fide pace key"));
    assert!(server(Some(c"127.0.0.1:0"), Some(c"\xff"), null()).contains("UTF-8"));
    assert!(server(Some(c"127.0.0.1:0"), Some(&secret), &config).contains("sizeof(fide_pace_config)"));
    config.size = size_of::<FidePaceConfig>();
    for loss in [1.0, -0.5, f64::NAN] {
        config.loss = loss;
        assert!(server(Some(c"127.0.0.1:0"), Some(&secret), &config).contains("loss is"));
    }
    (config.loss, config.congestion) = (0.0, 7);
    assert!(server(Some(c"127.0.0.1:0"), Some(&secret), &config).contains("fide_pace_congestion"));
    (config.congestion, config.even_ways) = (0, 2);
    assert!(server(Some(c"127.0.0.1:0"), Some(&secret), &config).contains("even_ways is 2"));
    (config.even_ways, config.idle_us) = (0, 999_999);
    assert!(server(Some(c"127.0.0.1:0"), Some(&secret), &config).contains("at least 1000000"));
    let mut text: [c_char; FIDE_PACE_KEY_BYTES] = [0; FIDE_PACE_KEY_BYTES];
    // SAFETY: as many bytes as are said are writable.
    unsafe {
        assert_eq!(fide_pace_client(null_mut()), -libc::EINVAL);
        assert_eq!(fide_pace_key_new(7, text.as_mut_ptr(), text.len()), -libc::EINVAL);
        assert_eq!(fide_pace_key_new(0, null_mut(), 0), -libc::EINVAL);
        assert_eq!(fide_pace_key_new(0, text.as_mut_ptr(), 10), -libc::ENOSPC);
        assert_eq!(fide_pace_key_for_clients(private.as_ptr(), text.as_mut_ptr(), text.len()), 0);
        let public = CStr::from_ptr(text.as_ptr()).to_str().unwrap();
        assert!(public.starts_with("fide-pace-public:"), "{public}");
    }
}

#[test]
fn message_for_which_there_is_no_room_is_kept() {
    let ([here, there], endpoints) = pair();
    assert_eq!(send(here, b"some bytes", LIMIT_US), 0, "{}", said());
    let mut told: FidePaceMessage = zeroed();
    told.size = size_of::<FidePaceMessage>();
    let mut room = [0; 16];
    // SAFETY: as many bytes as are said are writable.
    let code = unsafe { fide_pace_recv(there, room.as_mut_ptr().cast(), 4, LIMIT_US, &mut told) };
    assert_eq!((code, told.len), (-i64::from(libc::EMSGSIZE), 10), "{}", said());
    assert_eq!((recv(there, &mut room, 0), &room[..10]), (10, &b"some bytes"[..]));
    assert_eq!(recv(there, &mut room, 1000), -i64::from(libc::EAGAIN));
    assert!(said().contains("no message has come within 1000 us"), "{}", said());
    assert_eq!(send(here, b"x", -1), -libc::ETIME);
    assert!(said().contains("in the past"), "{}", said());
    let long = vec![0; (4 << 20) + 1];
    assert_eq!(send(here, &long, 0), -libc::EMSGSIZE);
    // SAFETY: no bytes are read.
    assert_eq!(unsafe { fide_pace_send(here, null(), 3, 0) }, -libc::EINVAL);
    assert_eq!([close(here), close(there)], [0; 2]);
    assert_eq!(endpoints.map(|endpoint| fide_pace_endpoint_close(endpoint)), [0; 2]);
}

/// Takes one message, and no other, until it is killed; started by the test below.
#[test]
#[ignore = "a process of another test"]
fn child() {
    let key = CString::new(std::env::var("FIDE_PACE_KEY").unwrap()).unwrap();
    let (server, address) = server(&key);
    println!("\nat {}", address.to_str().unwrap());
    let mut there = 0;
    // SAFETY: a place for the handle.
    assert_eq!(unsafe { fide_pace_accept(server, LIMIT_US, &mut there) }, 0, "{}", said());
    assert_eq!(recv(there, &mut [0; 9], LIMIT_US), 3, "{}", said());
    println!("has one");
    // Its parent kills it; nobody waits longer.
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn peer_that_is_killed_ends_what_waits() {
    let key = key(FidePaceKey::Secret);
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", "tests::child", "--ignored", "--nocapture"]).env("FIDE_PACE_KEY", key.to_str().unwrap());
    let mut peer = peer.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(peer.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| CString::new(line.strip_prefix("at ")?).ok()).expect("an address");
    let (mut client, mut here) = (0, 0);
    let mut config: FidePaceConfig = zeroed();
    (config.size, config.deadline_us, config.idle_us) = (size_of::<FidePaceConfig>(), 600_000_000, 1_000_000);
    // SAFETY: texts, a configuration with its size, and places for handles.
    unsafe {
        assert_eq!(fide_pace_client(&mut client), 0, "{}", said());
        assert_eq!(fide_pace_connect(client, address.as_ptr(), key.as_ptr(), &config, &mut here), 0, "{}", said());
    }
    assert_eq!(send(here, b"one", 0), 0, "{}", said());
    assert!(lines.any(|line| line == "has one"));
    peer.kill().unwrap();
    peer.wait().unwrap();
    let waits = thread::spawn(move || (recv(here, &mut [0; 9], -1), said()));
    let code = std::iter::repeat_with(|| send(here, b"more", 0)).find(|code| *code < 0);
    assert_eq!(code, Some(-libc::ETIMEDOUT), "{}", said());
    assert!(said().contains("the other end was not heard any more"), "{}", said());
    let (code, why) = waits.join().unwrap();
    assert_eq!(code, -i64::from(libc::ETIMEDOUT), "{why}");
    assert_eq!([close(here), fide_pace_endpoint_close(client)], [0; 2]);
}

/// The receiver is the slowest step, and asks itself.
#[test]
fn receiver_is_told_the_bottleneck_of_what_it_receives() {
    let ([here, there], endpoints) = pair();
    let sends = thread::spawn(move || while send(here, b"more", LIMIT_US) == 0 {});
    let mut view: FidePaceView = zeroed();
    view.size = size_of::<FidePaceView>();
    // A busy machine may need more of them than one at rest.
    let is_known = (0..5000).any(|_| {
        assert_eq!(recv(there, &mut [0; 9], LIMIT_US), 4, "{}", said());
        thread::sleep(Duration::from_millis(2));
        // SAFETY: a view with its size.
        assert_eq!(unsafe { fide_pace_get_incoming_view(there, &mut view) }, 0, "{}", said());
        view.bottleneck == FidePaceStep::Deliver as i32 && view.bottleneck_pace_ns > 1_000_000 && view.one_way_ns >= 0
    });
    assert!(is_known && view.total_ns > 0, "{view:?}");
    // It is one clock.
    assert!(view.clock_ahead_us.unsigned_abs() <= view.clock_uncertainty_us, "{view:?}");
    // A program that was compiled before there were clocks in a view.
    let (mut old, clock) = (view, view.clock_uncertainty_us);
    old.size = std::mem::offset_of!(FidePaceView, total_ns);
    old.clock_uncertainty_us = clock + 1;
    // SAFETY: a view with its size.
    assert_eq!(unsafe { fide_pace_get_view(there, &mut old) }, 0, "{}", said());
    assert_eq!(old.clock_uncertainty_us, clock + 1, "it is written beyond its size");
    assert_eq!(close(there), 0);
    sends.join().unwrap();
    assert_eq!(close(here), 0);
    assert_eq!(endpoints.map(|endpoint| fide_pace_endpoint_close(endpoint)), [0; 2]);
}

unsafe extern "C" fn tell(context: *mut c_void, view: *const FidePaceView) {
    // SAFETY: the test's own sender, and a view that lives through the call.
    let (tells, view) = unsafe { (&*context.cast::<Sender<i32>>(), &*view) };
    tells.send(view.bottleneck).unwrap_or_default();
}

#[test]
fn connection_that_is_closed_ends_waits_and_callbacks() {
    let ([here, there], endpoints) = pair();
    let (tells, told) = channel::<i32>();
    let context = Box::into_raw(Box::new(tells));
    // SAFETY: the context lives until the connection is closed.
    assert_eq!(unsafe { fide_pace_on_change(here, Some(tell), context.cast()) }, 0, "{}", said());
    let waits = thread::spawn(move || (recv(here, &mut [0; 9], -1), said()));
    while told.try_recv().is_err() {
        assert_eq!(send(here, b"more", 0), 0, "{}", said());
        thread::sleep(Duration::from_millis(1));
    }
    // By now the other thread waits.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(close(here), 0);
    // SAFETY: nobody calls back any more.
    drop(unsafe { Box::from_raw(context) });
    let (code, why) = waits.join().unwrap();
    // The second one, if the thread came too late to wait.
    assert!([libc::ESHUTDOWN, libc::EBADF].map(|errno| -i64::from(errno)).contains(&code), "{code}: {why}");
    let over = std::iter::repeat_with(|| recv(there, &mut [0; 9], LIMIT_US)).find(|code| *code < 0);
    assert_eq!(over, Some(-i64::from(libc::EPIPE)), "{}", said());
    assert_eq!(close(there), 0);
    assert_eq!(endpoints.map(|endpoint| fide_pace_endpoint_close(endpoint)), [0; 2]);
}

/// What [`close_and_tell`] gets.
struct Closes {
    connection: u64,
    tells: Sender<i32>,
}

unsafe extern "C" fn close_and_tell(context: *mut c_void, _: *const FidePaceView) {
    // SAFETY: the test's own, which is never freed.
    let closes = unsafe { &*context.cast::<Closes>() };
    closes.tells.send(close(closes.connection)).unwrap_or_default();
}

#[test]
fn callback_may_close_its_own_connection() {
    let ([here, there], endpoints) = pair();
    let (tells, told) = channel::<i32>();
    // Nobody says when such a callback has returned.
    let closes = Box::into_raw(Box::new(Closes { connection: here, tells }));
    // SAFETY: the context is never freed.
    assert_eq!(unsafe { fide_pace_on_change(here, Some(close_and_tell), closes.cast()) }, 0, "{}", said());
    let code = loop {
        if let Ok(code) = told.try_recv() {
            break code;
        }
        send(here, b"more", 0);
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!((code, close(here)), (0, -libc::EBADF));
    assert_eq!(close(there), 0);
    assert_eq!(endpoints.map(|endpoint| fide_pace_endpoint_close(endpoint)), [0; 2]);
}
