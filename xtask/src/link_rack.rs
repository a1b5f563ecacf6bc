// SPDX-License-Identifier: Apache-2.0
//! Tests windows and links of rack sockets, and agents' planes of memory, between two hosts: two guests that see one memory through a PCI
//! device each, as `ivshmem-plain` gives it, which is taken away and given back while it is used.
//!
//! Nothing is timed: an emulated processor says nothing about real times. That figures are printed is to show that there was
//! something to lose.

mod agents;
mod guests;
mod links;

use crate::run::Step;
use crate::{Outcome, setup};
use guests::{DEVICE, Guests};
use std::time::{Duration, Instant};

/// Limit for everything after the build, which takes about four minutes, and longer on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(1200);
/// MiB that a window carries, each way at a time.
const CARRIED_MIB: u32 = 16;
/// How often the device is taken away from one of the hosts.
const CUTS: u64 = 100;
/// How often a driver takes the memory of the device.
const TAKEN: u64 = 5;
const SIDES: [&str; 2] = ["first", "second"];

pub(crate) fn test() -> Outcome {
    for packages in [setup::BUILD, setup::EMULATOR, setup::REDIS] {
        if !setup::prepare(packages, "links of rack sockets cannot be tested") {
            return Err("packages are missing, see above".into());
        }
    }
    Step::cargo(&["build", "--release", "-p", "fide", "-p", "fide-rack-preload", "-p", "fide-rack"])
        .args(&["--lib", "--bin", "fide", "--example", "pci_window", "--example", "redis_check"])
        .run("build")?;
    let until = Instant::now() + LIMIT;
    let mut guests = Guests::start(until)?;
    for file in ["resource2", "resource2_wc"] {
        window_carries(&mut guests, file, until)?;
    }
    window_is_cut(&mut guests, until)?;
    agents::test(&mut guests, until)?;
    links::test(&mut guests, until)
}

/// Streams both ways through the window.
fn window_carries(guests: &mut Guests, file: &str, until: Instant) -> Outcome {
    guests.zero_memory()?;
    for host in [2, 1] {
        let order = format!("sh pci_window carry {DEVICE}/{file} {} {CARRIED_MIB} &", SIDES[host - 1]);
        guests.host(host).order(&order)?;
    }
    for host in [1, 2] {
        let said = guests.host(host).wait("carried ", until)?;
        let said = said.last().map_or("", String::as_str);
        if !said.ends_with("none of them wrong") {
            return Err(format!("a window through {file}: host {host}: {said}"));
        }
        println!("link-rack: {file}: host {host} {said}");
    }
    Ok(())
}

/// The device comes and goes, at one host or the other, and a driver takes its memory, while both ends use the window.
fn window_is_cut(guests: &mut Guests, until: Instant) -> Outcome {
    guests.zero_memory()?;
    let begun = Instant::now();
    for host in [1, 2] {
        let order = format!("sh pci_window turns {DEVICE}/resource2_wc {} /run/stop &", SIDES[host - 1]);
        guests.host(host).order(&order)?;
        guests.host(host).wait("OPENED 1 ", until)?;
    }
    let mut opened = [1, 1];
    for cut in 0..CUTS + TAKEN {
        // A driver only at host 1.
        let host = if cut < CUTS { 1 + usize::try_from(cut).unwrap_or(0) % 2 } else { 1 };
        if cut < CUTS {
            guests.cut(host)?;
            guests.restore(host)?;
        } else {
            let driver = "/sys/bus/pci/drivers/8139cp";
            guests
                .host(host)
                .order(&format!("sh echo 1af4 1110 > {driver}/new_id; echo 1af4 1110 > {driver}/remove_id"))?;
        }
        opened[host - 1] += 1;
        guests.host(host).wait(&format!("OPENED {} ", opened[host - 1]), until)?;
        // Of both ends.
        std::thread::sleep(Duration::from_millis(cut % 10 * 10));
    }
    let (mut turns, mut signals) = (0, 0);
    for host in [1, 2] {
        guests.host(host).order("sh touch /run/stop")?;
        let said = guests.host(host).wait("ended, ", until)?;
        let said = said.last().cloned().unwrap_or_default();
        if figure(&said, "wrong") != Some(0) || figure(&said, "cuts").is_none_or(|cuts| cuts < CUTS / 2) {
            return Err(format!("a window that is cut: host {host}: {said}"));
        }
        turns += figure(&said, "turns").unwrap_or(0);
        signals += figure(&said, "by_signal").unwrap_or(0);
    }
    println!(
        "link-rack: the device was taken away {CUTS} times, and its memory by a driver {TAKEN} times ({signals} found by SIGBUS), in {} s; {turns} blocks came, none of them wrong",
        begun.elapsed().as_secs(),
    );
    // After each cut both ends went on.
    if turns < 2 * CUTS { Err(format!("only {turns} blocks came")) } else { Ok(()) }
}

/// The number after a word of a line.
fn figure(line: &str, name: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_line_are_read() {
        let line = "ended, opened 4 turns 12 cuts 3 by_signal 1 by_file 2 wrong 0";
        assert_eq!(
            ["turns", "cuts", "wrong", "right"].map(|name| figure(line, name)),
            [Some(12), Some(3), Some(0), None]
        );
    }
}
