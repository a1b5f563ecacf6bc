// SPDX-License-Identifier: Apache-2.0
//! Asks again and again whether it may act, and says so when the answer changes, after more than a second
//! without a look (on any clock), and whenever a line comes in: what `make clocks` runs in its guest.
//! `lease_probe SOCKET < questions`.

use fide_client::{Client, ConnectOptions, Event, Live};
use fide_sys::clock::Clocks;
use std::io::BufRead;
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// A look this late is the first after the machine stood still.
const STILL_NS: u64 = 1_500_000_000;

fn say(what: &str, live: &Live) {
    // The answer first, as a program would ask.
    let left = live.lease_remaining();
    let now = Clocks::read(true);
    println!(
        "PROBE {what} left_us={} mono_ms={} raw_ms={} boot_ms={} tsc={}",
        left.map_or(u128::MAX, |left| left.as_micros()),
        now.mono_ns / 1_000_000,
        now.raw_ns / 1_000_000,
        now.boot_ns / 1_000_000,
        now.tsc
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("lease_probe SOCKET")?.into();
    let mut client = Client::connect(ConnectOptions { path: Some(path), ..Default::default() })?;
    let live = client.live();
    let asked = live.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            say(&format!("asked {}", line.trim()), &asked);
        }
    });
    let mut fenced = true;
    let mut last = Clocks::read(false);
    loop {
        let now = Clocks::read(false);
        if now.boot_ns - last.boot_ns > STILL_NS || now.raw_ns - last.raw_ns > STILL_NS {
            say("woke", &live);
        }
        last = now;
        if live.fenced() != fenced {
            fenced = !fenced;
            say(if fenced { "fenced" } else { "acts" }, &live);
        }
        while let Some(event) = client.poll_event()? {
            match event {
                Event::Rejoined { incarnation } => client.rejoined_acknowledge(incarnation)?,
                Event::ObserverStalled { .. } => say("stall", &live),
                _ => {}
            }
        }
        std::thread::sleep(LOOK);
    }
}
