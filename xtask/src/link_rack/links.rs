// SPDX-License-Identifier: Apache-2.0
//! A link between the monitors of both guests: programs that know nothing of it, and a client that checks each byte while the
//! link is cut again and again.

use super::guests::{DEVICE, Guests};
use super::{CUTS, SIDES, figure};
use crate::Outcome;
use std::time::{Duration, Instant};

/// Connections of the client that checks.
const CONNECTIONS: u32 = 4;
const SERVER: &str =
    "fide rack run --require -- redis-server --bind 10.9.0.2 --protected-mode no --save '' > /run/redis.log 2>&1 &";
const BENCH: &str = "redis-benchmark -h 10.9.0.2 -n 2000 -c 10 -t set,get --csv";

pub(super) fn test(guests: &mut Guests, until: Instant) -> Outcome {
    begins(guests, until)?;
    carries(guests, until)?;
    is_cut(guests, until)
}

/// A monitor at each host, and a server at the second one.
fn begins(guests: &mut Guests, until: Instant) -> Outcome {
    guests.zero_memory()?;
    for host in [1, 2] {
        let (side, other) = (SIDES[host - 1], 3 - host);
        // A machine that has much else to do lets a guest stand still for seconds.
        let link = format!("{DEVICE}/resource2_wc,side={side},peer=10.9.0.{other},lost-after=30s");
        guests.host(host).order(&format!("sh fide rack monitor --link {link} > /run/monitor.log 2>&1 &"))?;
    }
    for host in [1, 2] {
        stands(guests, host, (1, 0), until)?;
    }
    guests.host(2).order(&format!("sh {SERVER}"))?;
    guests.host(1).run("until redis-cli -h 10.9.0.2 ping 2> /dev/null; do sleep 0.1; done", until)
}

/// Waits until the link has risen so often, and carries so many connections. How often it has.
fn stands(guests: &mut Guests, host: usize, (rises, connections): (u64, u32), until: Instant) -> Result<u64, String> {
    let said = guests.host(host).run_reading(&format!("stands {rises} {connections}"), until)?;
    let rises = said.iter().rev().find_map(|line| figure(line, "STANDS"));
    rises.ok_or_else(|| format!("host {host} does not say how often the link has risen: {said:?}"))
}

/// Runs a command at the first host, under `fide rack run`: what it says, and how many of its connections went over.
fn runs(guests: &mut Guests, command: &str, until: Instant) -> Result<(Vec<String>, u64), String> {
    let accelerated =
        format!("rm -f /run/stats; fide rack run --require --stats=/run/stats -- {command}; cat /run/stats");
    let said = guests.host(1).run_reading(&accelerated, until)?;
    let attached = said.iter().rev().find_map(|line| figure(line, "attached"));
    attached.map(|attached| (said.clone(), attached)).ok_or_else(|| format!("{command} said {said:?}"))
}

/// A benchmark over TCP, and over the link. That the emulated processors are no slower over the link is not asked for.
fn carries(guests: &mut Guests, until: Instant) -> Outcome {
    let rate = |said: &[String]| {
        said.iter().rev().find_map(|line| line.strip_prefix("\"GET\",\"")?.split('"').next()?.parse::<f64>().ok())
    };
    let over_tcp = rate(&guests.host(1).run_reading(BENCH, until)?).unwrap_or_default();
    let (said, attached) = runs(guests, BENCH, until)?;
    let Some(over_link) = rate(&said).filter(|_| attached > 0) else {
        return Err(format!("{attached} connections went over the link: {said:?}"));
    };
    println!(
        "link-rack: {attached} connections of redis-benchmark over the link: {over_link} GET a second, and {over_tcp} over TCP"
    );
    Ok(())
}

/// The device comes and goes at one host or the other, while clients write and read back.
fn is_cut(guests: &mut Guests, until: Instant) -> Outcome {
    let begun = Instant::now();
    guests.host(1).order(&format!(
        "sh fide rack run --require --stats=/run/stats.check -- redis_check 10.9.0.2:6379 {CONNECTIONS} /run/stop.check & check=$!"
    ))?;
    let mut rises = [1, 1];
    for cut in 0..CUTS {
        for host in [1, 2] {
            rises[host - 1] = stands(guests, host, (rises[host - 1], CONNECTIONS), until)?;
        }
        if cut == 0 {
            let said = guests.host(1).run_reading("fide rack top --once --json", until)?;
            let over = said.iter().map(|line| line.matches("\"over\":\"link\"").count()).sum::<usize>();
            println!("link-rack: fide rack top shows {over} connections over the link");
            if over < CONNECTIONS as usize {
                return Err(format!("fewer than {CONNECTIONS}: {said:?}"));
            }
        }
        // At different places of what is carried.
        std::thread::sleep(Duration::from_millis(cut % 10 * 20));
        let host = 1 + usize::try_from(cut).unwrap_or(0) % 2;
        guests.cut(host)?;
        guests.restore(host)?;
        rises = rises.map(|rises| rises + 1);
    }
    for host in [1, 2] {
        stands(guests, host, (rises[host - 1], 0), until)?;
    }
    let said = guests.host(1).run_reading("touch /run/stop.check; wait $check; cat /run/stats.check", until)?;
    let ended = said.iter().rev().find(|line| line.starts_with("ended, ")).cloned().unwrap_or_default();
    let of = |name| figure(&ended, name).ok_or_else(|| format!("the client said {said:?}"));
    let (wrong, broken) = (of("wrong")?, of("broken")?);
    println!(
        "link-rack: link_cuts {CUTS} link_cuts_wrong_bytes {wrong} reconnects {broken}, in {} s; the client {ended}",
        begun.elapsed().as_secs()
    );
    match (wrong, broken) {
        (0, CUTS..) => Ok(()),
        (0, _) => Err(format!("{CUTS} cuts broke only {broken} connections")),
        _ => Err("the client read what nobody had written".into()),
    }
}
