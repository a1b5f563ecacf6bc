// SPDX-License-Identifier: Apache-2.0
//! Agents of both guests, whose heartbeats go over the network and through the device. Each plane is taken away while the other one goes on.

use super::guests::{DEVICE, Guests};
use crate::Outcome;
use std::time::Instant;

/// A machine that has much else to do lets a guest stand still for seconds.
const TOML: &str = concat!(
    r#"[cluster]\nkey_file = "key"\ntrust = "network"\npolicy = "network"\nheartbeat_us = 10000\ntimeout_us = 20000000\n"#,
    r#"[agent]\nreceive = "udp"\nexit_watch = "pidfd"\n[[plane]]\n[[plane]]\nwindows = "windows"\n"#,
    r#"[[member]]\nname = "h1"\naddresses = ["10.9.0.1"]\n[[member]]\nname = "h2"\naddresses = ["10.9.0.2"]\n"#
);

pub(super) fn test(guests: &mut Guests, until: Instant) -> Outcome {
    guests.zero_memory()?;
    for host in [1, 2] {
        let files = format!(
            "mkdir -p /run/fide/windows && cd /run/fide && printf '{TOML}' > fide.toml && \
             printf 000102030405060708090a0b0c0d0e0f > key && chmod 400 key && ln -s {DEVICE}/resource2 windows/h1+h2"
        );
        guests.host(host).run(&files, until)?;
        let start = format!(
            "fide agent --config /run/fide/fide.toml --host h{host} --runtime-dir /run/fide --state-dir /run/fide --force-timeout \
             2> /run/agent.log & agent=$!"
        );
        guests.host(host).order(&format!("sh {start}"))?;
    }
    for host in [1, 2] {
        says(guests, host, &format!("@h{} is up", 3 - host), until)?;
    }
    // The network is cut, and then the memory at one end.
    guests.host(2).run("ip link set eth0 down", until)?;
    says(guests, 1, "plane 0 from h2 is silent", until)?;
    guests.host(2).run("ip link set eth0 up", until)?;
    says(guests, 1, "plane 0 from h2 is heard again", until)?;
    guests.cut(1)?;
    for host in [1, 2] {
        says(guests, host, &format!("plane 1 from h{} is silent", 3 - host), until)?;
    }
    guests.restore(1)?;
    // The agent has given up the right to do so.
    guests.host(1).run(&format!("until echo 1 > {DEVICE}/enable; do sleep 0.1; done"), until)?;
    says(guests, 1, "the window to h2 is there again", until)?;
    for host in [1, 2] {
        says(guests, host, &format!("plane 1 from h{} is heard again", 3 - host), until)?;
        let said = guests.host(host).run_reading("grep -c '@h. is silent' /run/agent.log", until)?;
        if !said.iter().any(|line| line == "0") {
            return Err(format!("host {host} has declared the other one dead, though a plane stood: {said:?}"));
        }
    }
    // What is said last comes through memory alone.
    guests.host(2).run("ip link set eth0 down", until)?;
    let silences = "until [ $(grep -c 'plane 0 from h2 is silent' /run/agent.log) -ge 2 ]; do sleep 0.1; done";
    guests.host(1).run(silences, until)?;
    guests.host(2).run("kill $agent; wait $agent; ip link set eth0 up", until)?;
    says(guests, 1, "@h2 left", until)?;
    guests.host(1).run("kill $agent; wait $agent", until)?;
    println!(
        "link-rack: the agents of both hosts went on over one plane while the other one was taken away, and the leave of one came through memory"
    );
    Ok(())
}

/// Waits until a host's agent has said something.
fn says(guests: &mut Guests, host: usize, what: &str, until: Instant) -> Outcome {
    guests.host(host).run(&format!("until grep -q '{what}' /run/agent.log; do sleep 0.1; done"), until)
}
