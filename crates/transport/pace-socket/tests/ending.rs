// SPDX-License-Identifier: Apache-2.0
//! Ends of connections and of endpoints.

mod common;

use std::time::Duration;

use common::{config, pair};

#[test]
fn finish_may_wait_without_an_end() {
    let (here, _there, _relay) = pair(config(60_000), Box::new(|_, _| true));
    here.try_send(b"one", None).unwrap();
    assert!(here.finish(Duration::MAX));
}
