// SPDX-License-Identifier: Apache-2.0
//! Threads of endpoints end. Alone in its process, so that none of another test are counted.

use std::{thread, time::Duration};

use fide_pace_socket::{Closed, Config, Endpoint, ServerKey};

#[test]
fn endpoint_and_its_thread_end() {
    for _ in 0..10 {
        let key = ServerKey::Secret([7; 32]);
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), Config::default()).unwrap();
        let here = Endpoint::client()
            .unwrap()
            .connect(server.local_address().unwrap(), &key.for_clients(), Config::default())
            .unwrap();
        let there = server.accept().unwrap();
        here.send(b"one").unwrap();
        there.recv().unwrap();
        there.close("enough");
        assert_eq!(here.recv().unwrap_err().0, Closed::There("enough".to_owned()));
    }
    // A thread tells its peers for a while that a connection is over.
    for _ in 0..1000 {
        if threads() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} threads are left", threads());
}

/// Threads of endpoints.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    names.filter(|name| name.trim() == "fide-pace").count()
}
