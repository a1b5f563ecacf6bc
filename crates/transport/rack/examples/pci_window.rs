// SPDX-License-Identifier: Apache-2.0
//! One end of a window between two hosts, for those who want to know whether theirs carries bytes: run it at both.
//!
//! ```text
//! pci_window carry FILE first|second MIB    bytes both ways at a time, in streams; the memory has to be zeros before
//! pci_window turns FILE first|second STOP   blocks in turn, whatever happens to the device, until the file STOP exists
//! ```
//!
//! It says what came that was not written, and exits with 1 if anything did.

use std::{
    env,
    io::{Read, Write},
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use fide_rack::{
    pci::{PciWindow, Side},
    stream::halves,
    window::{WORD, Window},
};

/// Bytes of a block that is written in one turn.
const BLOCK: usize = 4096;
/// Between two tries to open the window, and between two questions whether it is current.
const BETWEEN: Duration = Duration::from_millis(5);
/// An end that waits for longer than this for a turn has lost its other end.
const SILENCE_MAX: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = match args[..] {
        ["carry", path, side, mib] => side_of(side).and_then(|side| carry(path, side, mib)),
        ["turns", path, side, stop] => side_of(side).and_then(|side| turns(path, side, stop)),
        _ => {
            Err("usage: pci_window carry FILE first|second MIB, or pci_window turns FILE first|second STOP".to_owned())
        }
    };
    match said {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn side_of(name: &str) -> Result<Side, String> {
    match name {
        "first" => Ok(Side::First),
        "second" => Ok(Side::Second),
        _ => Err(format!("{name}: the sides are `first` and `second`")),
    }
}

/// Any word, the same for the same numbers.
fn mixed(seed: u64, number: u64) -> u64 {
    let word = (seed << 40 ^ number).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word ^ word >> 29).wrapping_mul(0x94D0_49BB_1331_11EB) ^ word >> 31
}

/// The bytes of a stream or a block from a word on.
fn bytes(seed: u64, from: u64, into: &mut [u8]) {
    for (number, word) in (from..).zip(into.chunks_mut(WORD)) {
        word.copy_from_slice(&mixed(seed, number).to_ne_bytes()[..word.len()]);
    }
}

fn carry(path: &str, side: Side, mib: &str) -> Result<String, String> {
    let count = mib.parse::<u64>().map_err(|why| format!("{mib}: {why}"))? << 20;
    let window = PciWindow::open(path, side).map_err(|why| why.to_string())?;
    let len = window.len();
    let (mut reads, mut writes) = halves(window);
    let (out, back) = if side == Side::First { (1, 2) } else { (2, 1) };
    let begun = Instant::now();
    let sends = thread::spawn(move || {
        let mut piece = vec![0; 3 * BLOCK];
        let mut sent = 0;
        while sent < count {
            let now = &mut piece[..usize::try_from(count - sent).map_or(3 * BLOCK, |left| left.min(3 * BLOCK))];
            bytes(out, sent / WORD as u64, now);
            writes.write_all(now)?;
            sent += now.len() as u64;
        }
        Ok::<_, std::io::Error>(writes)
    });
    let (mut piece, mut expected) = (vec![0; BLOCK], vec![0; BLOCK]);
    for got in (0..count).step_by(BLOCK) {
        reads.read_exact(&mut piece).map_err(|why| format!("after {got} bytes: {why}"))?;
        bytes(back, got / WORD as u64, &mut expected);
        if piece != expected {
            return Err(format!("wrong bytes after {got}"));
        }
    }
    let writes = sends.join().map_err(|_| "the writer panicked")?.map_err(|why| format!("write: {why}"))?;
    drop(writes);
    match reads.read(&mut piece) {
        Ok(0) => {}
        other => return Err(format!("after the last byte: {other:?}")),
    }
    let ms = begun.elapsed().as_millis();
    Ok(format!("carried {count} bytes each way in {ms} ms through parts of {len} bytes, none of them wrong"))
}

/// How often what was seen of the device going away.
#[derive(Default)]
struct Seen {
    cuts: u64,
    /// Of those, the ones that no access had found.
    by_file: u64,
    opened: u64,
    turns: u64,
    wrong: u64,
}

impl Seen {
    fn line(&self) -> String {
        let Self { cuts, by_file, opened, turns, wrong } = self;
        let by_signal = cuts.saturating_sub(*by_file);
        format!("{opened} turns {turns} cuts {cuts} by_signal {by_signal} by_file {by_file} wrong {wrong}")
    }
}

fn is_current(window: &PciWindow, seen: &mut Seen) -> bool {
    let was_cut = window.is_cut();
    let is_current = window.is_current();
    seen.by_file += u64::from(!is_current && !was_cut);
    is_current
}

/// Each end writes the block of a turn when it has seen that the other one has the one before.
fn turns(path: &str, side: Side, stop: &str) -> Result<String, String> {
    let (out, back) = if side == Side::First { (1, 2) } else { (2, 1) };
    let mut seen = Seen::default();
    // The last turn that this end has written, and the last one that it has of the other end.
    let (mut written, mut got) = (1_u64, 0_u64);
    let (mut block, mut expected) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut last = Instant::now();
    while !Path::new(stop).exists() {
        let Ok(window) = PciWindow::open(path, side) else {
            thread::sleep(BETWEEN);
            continue;
        };
        seen.opened += 1;
        println!("OPENED {}", seen.line());
        let mut asked = Instant::now();
        // What was under way may have gone nowhere.
        let mut is_new = true;
        loop {
            if is_new {
                bytes(out << 8, written * BLOCK as u64, &mut block);
                window.write(2 * WORD, &block);
                window.publish(WORD, got);
                window.publish(0, written);
                is_new = false;
            }
            let (turn, has) = (window.poll(0), window.poll(WORD));
            if turn == got + 1 {
                window.read(2 * WORD, &mut block);
                bytes(back << 8, turn * BLOCK as u64, &mut expected);
                // The other end has written no further: it waits for this end's word.
                if !window.is_cut() && is_current(&window, &mut seen) {
                    if block == expected {
                        got = turn;
                        window.publish(WORD, got);
                        seen.turns += 1;
                        last = Instant::now();
                    } else {
                        seen.wrong += 1;
                    }
                }
            }
            if has == written && got >= written && !window.is_cut() {
                written += 1;
                is_new = true;
            }
            let is_over = || asked.elapsed() > BETWEEN;
            if window.is_cut() || is_over() && !is_current(&window, &mut seen) {
                seen.cuts += 1;
                break;
            }
            if is_over() {
                asked = Instant::now();
                if Path::new(stop).exists() {
                    break;
                }
                if last.elapsed() > SILENCE_MAX {
                    return Err(format!("no turn for {SILENCE_MAX:?}: {}", seen.line()));
                }
            }
        }
    }
    if seen.wrong == 0 {
        Ok(format!("ended, opened {}", seen.line()))
    } else {
        Err(format!("ended, opened {}", seen.line()))
    }
}
