// SPDX-License-Identifier: Apache-2.0
//! The modes of a stream beside each other (NTSocks §4.5): a writer makes words, or has them in a file, and a reader sums them up.
//!
//! | mode | writer | reader |
//! |---|---|---|
//! | `made*`, origin | makes words in a buffer, and writes it | reads into a buffer, and sums that up |
//! | `made*`, shm | makes them in a buffer that is lent | sums up what it borrows |
//! | `file*`, origin | reads the file into a buffer, and writes it | as above |
//! | `file*`, direct | has the kernel read it into the other end's part | sums up what it borrows |

use std::{
    fs::File,
    io::{Read, Seek, Write},
    time::{Duration, Instant},
};

use anyhow::Result;
use fide_rack::{
    stream::{WriteHalf, halves},
    window::WORD,
};
use fide_testbed::figures::{Figure, Report};

use crate::{
    pairs,
    peer::{Memory, Peer, Role},
};

/// Of a message, and what they are called.
const MESSAGES: [(usize, &str); 2] = [(2 << 10, "2k"), (64 << 10, "64k")];
/// Of a message that is lent or filled: as a stream cuts a write, so that the reader begins meanwhile.
const PIECE: usize = 16 << 10;
/// Bytes of the file, which is read again and again.
const FILE: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
enum Mode {
    MadeOrigin,
    MadeShm,
    FileOrigin,
    FileDirect,
}

/// What a writer has beside its half.
struct Source {
    buffer: Vec<u8>,
    file: File,
    made: u64,
}

impl Source {
    fn new(bytes: usize) -> Result<Self> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&vec![7; FILE])?;
        Ok(Self { buffer: vec![0; bytes], file, made: 0 })
    }

    /// The next words that are made, of so many bytes.
    fn words(&mut self, bytes: usize) -> impl Iterator<Item = u64> + use<> {
        let first = self.made;
        self.made += (bytes / WORD) as u64;
        (first..self.made).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// One message; how many bytes.
    fn send(&mut self, mode: Mode, to: &mut WriteHalf<Memory>) -> Result<usize> {
        let bytes = self.buffer.len();
        match mode {
            Mode::MadeOrigin => {
                let words = self.words(bytes);
                for (place, word) in self.buffer.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
                    *place = word.to_ne_bytes();
                }
                to.write_all(&self.buffer)?;
                Ok(bytes)
            }
            Mode::MadeShm => {
                let mut left = bytes;
                while left > 0 {
                    let piece = left.min(PIECE);
                    let mut lent = to.lend(piece)?;
                    lent.put_words(0, self.words(piece));
                    lent.send(piece);
                    left -= piece;
                }
                Ok(bytes)
            }
            Mode::FileOrigin => {
                let count = self.file.read(&mut self.buffer)?;
                to.write_all(&self.buffer[..count])?;
                Ok(self.again_after(count)?)
            }
            Mode::FileDirect => {
                let count = to.fill_from(&self.file, bytes.min(PIECE))?;
                Ok(self.again_after(count)?)
            }
        }
    }

    fn again_after(&mut self, count: usize) -> std::io::Result<usize> {
        if count == 0 {
            self.file.rewind()?;
        }
        Ok(count)
    }
}

/// Gbit/s.
fn rate(there: usize, mode: Mode, bytes: usize, whole: Duration) -> Result<f64> {
    let role = match mode {
        Mode::MadeOrigin | Mode::FileOrigin => Role::Sum(bytes),
        Mode::MadeShm | Mode::FileDirect => Role::BorrowedSum,
    };
    let (peer, window) = Peer::with_memory(there, role)?;
    let (reads, mut writes) = halves(window);
    let mut source = Source::new(bytes)?;
    let (begun, mut written) = (Instant::now(), 0);
    while begun.elapsed() < whole {
        written += source.send(mode, &mut writes)?;
    }
    let rate = written as f64 * 8.0 / begun.elapsed().as_nanos() as f64;
    drop((reads, writes));
    peer.end()?;
    Ok(rate)
}

/// # Errors
/// Those of the memory, of the file and of the other end.
pub(crate) fn measure(report: &mut Report, there: usize, rounds: usize, whole: Duration) -> Result<()> {
    for (bytes, size) in MESSAGES {
        let [mut made, mut shm, mut file, mut direct] = [(); 4].map(|()| Vec::new());
        for round in 1..=rounds {
            for (mode, rates) in [
                (Mode::MadeOrigin, &mut made),
                (Mode::MadeShm, &mut shm),
                (Mode::FileOrigin, &mut file),
                (Mode::FileDirect, &mut direct),
            ] {
                rates.push(rate(there, mode, bytes, whole)?);
            }
            let last = |rates: &[f64]| rates[round - 1];
            println!(
                "round {round} of {rounds}: messages of {size}, made {:.1} and in place {:.1} Gbit/s, of a file {:.1} and directly {:.1}",
                last(&made),
                last(&shm),
                last(&file),
                last(&direct)
            );
        }
        for (name, ours, origin) in [
            (format!("made{size}_shm_vs_origin"), &shm, &made),
            (format!("file{size}_direct_vs_origin"), &direct, &file),
        ] {
            let of = |name: &str, rates: &[f64]| Figure { unit: "Gbit/s".into(), ..Figure::rate(name, rates) };
            let figure = of(&name, ours).beside("origin", &of("origin", origin));
            report.add(figure.ratio_of_pairs(pairs(ours, origin)));
        }
    }
    Ok(())
}
