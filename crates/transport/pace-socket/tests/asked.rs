// SPDX-License-Identifier: Apache-2.0
//! What an application learns that asks, and those who wait for something that does not come.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use fide_pace_socket::{
    AcceptError, ClientKey, Closed, Config, ConnectError, Connection, Endpoint, ServerKey, Step, View,
};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const KEY: ServerKey = ServerKey::Secret([7; 32]);

fn config() -> Config {
    Config { deadline_ns: 2_000_000_000, queue_max: 100, ..Config::default() }
}

fn pair() -> (Connection, Connection) {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), KEY, config()).unwrap();
    let address = server.local_address().unwrap();
    let accepts = thread::spawn(move || server.accept_timeout(LIMIT).unwrap().expect("a client"));
    let here = Endpoint::client().unwrap().connect(address, &KEY.for_clients(), config()).unwrap();
    (here, accepts.join().unwrap())
}

#[test]
fn changes_of_the_bottleneck_are_called_back_until_the_connection_is_dropped() {
    let (here, there) = pair();
    let (tells, told) = channel();
    here.on_change(move |view| tells.send(view.bottleneck).unwrap_or_default()).unwrap();
    let mut changes = here.changes();
    let takes = thread::spawn(move || {
        while let Ok(message) = there.recv() {
            there.recycle(message);
            thread::sleep(Duration::from_millis(2));
        }
    });
    for _ in 0..100 {
        here.send(&[0; 1000]).unwrap();
    }
    let first = told.recv_timeout(LIMIT).expect("a change").expect("of a bottleneck");
    let (_, pace_ns) = changes.wait_timeout(LIMIT).unwrap().expect("a change").bottleneck.expect("of a bottleneck");
    println!("{first:?} first, {pace_ns} ns last, {:?} now", here.view());
    assert!(here.expected_delay().is_none_or(|delay| delay > Duration::ZERO));
    drop(here);
    let over = std::iter::repeat_with(|| changes.wait()).find_map(Result::err);
    assert_eq!(over.expect("it ends").0, Closed::Here);
    // The callback, and what it holds, is dropped with the thread that called it.
    let ended = std::iter::repeat_with(|| told.recv_timeout(LIMIT)).find_map(Result::err);
    assert_eq!(ended, Some(RecvTimeoutError::Disconnected));
    takes.join().unwrap();
}

/// The receiver is the slowest step, and asks itself.
#[test]
fn receiver_is_told_the_bottleneck_of_what_it_receives() {
    let (here, there) = pair();
    let sends = thread::spawn(move || {
        while here.send(&[0; 1000]).is_ok() {}
        here
    });
    // A busy machine may need more of them than one at rest.
    let views = (0..5000).map(|_| {
        there.recv_timeout(LIMIT).unwrap().expect("a message");
        thread::sleep(Duration::from_millis(2));
        there.incoming_view().expect("it stands")
    });
    let is_known = |view: &View| {
        let is_slowest = view.bottleneck.is_some_and(|(step, ns)| step == Step::Deliver && ns >= 1_000_000);
        is_slowest && view.paces.get(Step::Send) > 0 && view.one_way_ns.is_some()
    };
    let view = views.into_iter().find(is_known).expect("the bottleneck is found");
    let (clock, peer_clock) = (view.peer_clock.expect("it is known"), there.peer_clock().expect("it is known"));
    // It is one clock.
    assert!(clock.us.unsigned_abs() <= clock.uncertainty_us, "{clock:?}");
    assert!(peer_clock.us.unsigned_abs() <= peer_clock.uncertainty_us, "{peer_clock:?}");
    let (_, deliver_ns) = view.bottleneck.expect("it is known");
    assert!(view.total_ns.is_some() && view.delay_ns >= view.one_way_ns.expect("it is known"), "{view:?}");
    println!("{deliver_ns} ns of work, {view:?}");
    drop(there);
    let here = sends.join().unwrap();
    assert!(here.incoming_view().is_none_or(|view| view.waiting_there == 0));
}

#[test]
fn periodic_messages_are_foretold_at_both_ends() {
    let (here, there) = pair();
    assert_eq!((here.expected_send_in(), there.next_recv_in()), (None, None), "nothing is known");
    // A busy machine may need more of them than one at rest.
    for _ in 0..2000 {
        here.try_send(b"tick", None).unwrap();
        thread::sleep(Duration::from_millis(5));
        while there.try_recv().unwrap().is_some() {}
        let (sends, receives) = (here.view().unwrap().send_period_ns, there.view().unwrap().receive_period_ns);
        if let (Some(sends), Some(receives), Some(next)) = (sends, receives, there.next_recv_in()) {
            println!("every {sends} and {receives} ns, next in {next:?}");
            assert!(sends >= 5_000_000, "the thread slept at least so long");
            return;
        }
    }
    panic!("no period was found");
}

/// Its sleeps are none of its own work, or it would seem to be the slowest step itself.
#[test]
fn sender_that_sleeps_by_itself_sees_that_its_receiver_is_slow() {
    let (here, there) = pair();
    let takes = thread::spawn(move || {
        while let Ok(message) = there.recv() {
            there.recycle(message);
            thread::sleep(Duration::from_millis(20));
        }
    });
    let mut paces = Vec::new();
    // Fast, until it is known.
    for _ in 0..100_000 {
        // Until feedback comes.
        let waits = std::iter::repeat_with(|| here.next_send_in().unwrap_or(Duration::from_millis(1)));
        waits.take_while(|wait| !wait.is_zero()).for_each(thread::sleep);
        here.try_send(&[0; 1000], None).unwrap();
        let view = here.view().unwrap();
        paces.push((view.paces.get(Step::Send), view.paces.get(Step::Deliver)));
        if paces.len() > 30 && paces.last().is_some_and(|(send, deliver)| send * 2 < *deliver) {
            drop(here);
            takes.join().unwrap();
            return;
        }
    }
    panic!("{:?}", &paces[paces.len() - 30..]);
}

#[test]
fn those_who_wait_at_an_endpoint_that_is_closed_are_told() {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), KEY, config()).unwrap();
    assert!(server.accept_timeout(Duration::from_millis(1)).unwrap().is_none());
    let server = std::sync::Arc::new(server);
    let waits = {
        let server = std::sync::Arc::clone(&server);
        thread::spawn(move || server.accept().unwrap_err())
    };
    server.close();
    assert_eq!(waits.join().unwrap(), AcceptError::Closed);
    let why = server.connect("127.0.0.1:9".parse().unwrap(), &ClientKey::Secret([7; 32]), config()).unwrap_err();
    assert!(matches!(why, ConnectError::Closed), "{why}");
}
