// SPDX-License-Identifier: Apache-2.0
//! Who waits is woken by what it waits for, and by nothing else.

mod common;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::{config, connect, loses_long_ones, pair, server};
use fide_pace_socket::Endpoint;

/// For what takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// The first message is lost for good, and the second waits for it until shortly before it expires.
#[test]
fn message_that_time_releases_wakes_its_receiver() {
    let state = Arc::new(AtomicU32::new(0));
    let (here, there, _relay) = pair(config(100), loses_long_ones(Arc::clone(&state), false));
    let (says, hears) = mpsc::channel();
    thread::spawn(move || {
        while let Ok(message) = there.recv() {
            let _ = says.send(message.bytes.len());
        }
    });
    // There is a millisecond to take it, which a busy machine may miss now and then.
    let came = (0..50).any(|_| {
        state.store(1, Ordering::Relaxed);
        here.try_send(&[1; 1100], None).unwrap();
        here.try_send(&[2; 750], None).unwrap();
        let came = hears.recv_timeout(Duration::from_millis(500)) == Ok(750);
        state.store(0, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(300));
        while hears.try_recv().is_ok() {}
        came
    });
    assert!(came, "none of 50 messages came");
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task of an executor that has ended: nobody but the wakers has it.
struct Task(Mutex<Option<Boxed>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// Whether a call of the endpoint returns.
fn is_free(endpoint: &Arc<Endpoint>) -> bool {
    let (says, hears) = mpsc::channel();
    let asked = Arc::clone(endpoint);
    thread::spawn(move || says.send(asked.dropped()));
    hears.recv_timeout(LIMIT).is_ok()
}

/// A waker that is the last to have a task drops it, and the task has a connection.
#[test]
fn waker_may_drop_a_connection() {
    let (server, client) = (Arc::new(server(1000)), Endpoint::client().unwrap());
    let here = connect(&client, &server, 1000);
    let there = server.accept().unwrap();
    let (says, hears) = mpsc::channel::<()>();
    let task = Arc::new(Task(Mutex::new(Some(Box::pin(async move {
        let _at_its_end = says;
        let _ = there.recv_async().await;
        drop(there);
    }) as Boxed))));
    let waker = Arc::clone(&task).into();
    let is_pending =
        task.0.lock().unwrap().as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
    assert!(is_pending);
    drop((waker, task));
    here.send(b"wakes").unwrap();
    // Dropped with the task, or never.
    let is_dropped = hears.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Disconnected);
    let is_free = is_free(&server);
    if !is_dropped || !is_free {
        // Its own end would wait for the same lock.
        std::mem::forget((server, here, client));
    }
    assert!(is_dropped && is_free, "the task was dropped: {is_dropped}; the endpoint answers: {is_free}");
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of this test");
    }
}

#[test]
fn waker_that_panics_does_not_end_the_endpoint() {
    let (server, client) = (server(5000), Endpoint::client().unwrap());
    let here = connect(&client, &server, 5000);
    let there = server.accept().unwrap();
    let waker = Waker::from(Arc::new(Panics));
    assert!(Box::pin(there.recv_async()).as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    here.send(b"panics").unwrap();
    assert_eq!(there.recv_timeout(LIMIT).unwrap().unwrap().bytes, b"panics");
    here.send(b"goes on").unwrap();
    assert_eq!(there.recv_timeout(LIMIT).unwrap().map(|message| message.bytes), Some(b"goes on".to_vec()));
}

/// How often a thread has gone to sleep.
fn sleeps(thread: rustix::thread::Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn thread_that_waits_for_one_connection_is_not_woken_by_another() {
    let (server, client) = (server(5000), Endpoint::client().unwrap());
    let [(busy, takes), (quiet, waits)] = [(); 2].map(|()| (connect(&client, &server, 5000), server.accept().unwrap()));
    let (says, hears) = mpsc::channel();
    let waiting = thread::spawn(move || {
        says.send(rustix::thread::gettid()).unwrap();
        waits.recv()
    });
    let thread = hears.recv().unwrap();
    while sleeps(thread) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let before = sleeps(thread);
    for _ in 0..300 {
        busy.send(b"for another").unwrap();
        takes.recv().unwrap();
    }
    let times = sleeps(thread) - before;
    quiet.close("enough");
    assert!(waiting.join().unwrap().is_err());
    assert!(times < 30, "it was woken {times} times by 300 messages of another connection");
}

/// The other end's application takes two seconds for a message, so that `send` sleeps as long.
#[test]
fn close_ends_a_send_that_sleeps() {
    let (here, there, _relay) = pair(config(60_000), Box::new(|_, _| true));
    let here = Arc::new(here);
    thread::spawn(move || {
        while there.recv().is_ok() {
            thread::sleep(Duration::from_secs(2));
        }
    });
    let sends = Arc::clone(&here);
    let sender = thread::spawn(move || while sends.send(b"message").is_ok() {});
    let since = Instant::now();
    let left = loop {
        let left = here.next_send_in().unwrap_or_default();
        if left > Duration::from_millis(1500) {
            break left;
        }
        assert!(since.elapsed() < LIMIT, "the sender is never slowed: {left:?}");
        thread::sleep(Duration::from_millis(1));
    };
    let until = Instant::now() + left;
    here.close("enough");
    sender.join().unwrap();
    assert!(Instant::now() < until, "`send` slept on after `close`");
}
