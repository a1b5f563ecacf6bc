// SPDX-License-Identifier: Apache-2.0
//! A recorder sends samples to a plotter on the same host, in the three modes of `fide_rack::stream::buffers`:
//! `cargo run --example modes`.

use std::{
    fs::File,
    io::{self, Read, Write},
    thread,
};

use fide_rack::{
    shm::ShmWindow,
    stream::{ReadHalf, WriteHalf, halves},
    window::WORD,
};

/// 64 KiB for each direction.
type Memory = ShmWindow<{ (64 << 10) / WORD }>;

/// Of a block.
const SAMPLES: u64 = 256;
const BLOCKS: u64 = 100;

fn sample(number: u64) -> u64 {
    number * number
}

/// What an unmodified program does: it has a buffer, and the library copies it.
fn origin(out: &mut WriteHalf<Memory>) -> io::Result<()> {
    for block in 0..BLOCKS {
        let numbers = block * SAMPLES..(block + 1) * SAMPLES;
        let bytes: Vec<u8> = numbers.flat_map(|number| sample(number).to_ne_bytes()).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// The buffer is lent: samples are written where the plotter will find them.
fn shm(out: &mut WriteHalf<Memory>) -> io::Result<()> {
    for block in 0..BLOCKS {
        let mut lent = out.lend(SAMPLES as usize * WORD)?;
        lent.put_words(0, (block * SAMPLES..).map(sample));
        lent.send(SAMPLES as usize * WORD);
    }
    Ok(())
}

/// Samples that lie in a file: the kernel reads them to where the plotter will find them.
fn direct(out: &mut WriteHalf<Memory>, file: &File) -> io::Result<()> {
    while out.fill_from(file, 32 << 10)? > 0 {}
    Ok(())
}

/// The plotter: it sums up what it borrows, and copies nothing. How many samples, and their sum.
fn plot(mut from: ReadHalf<Memory>) -> io::Result<(u64, u64)> {
    let (mut count, mut sum) = (0, 0_u64);
    loop {
        let borrowed = from.borrow()?;
        if borrowed.is_empty() {
            return Ok((count, sum));
        }
        let words = borrowed.len() / WORD;
        sum = borrowed.words().fold(sum, u64::wrapping_add);
        count += words as u64;
        if words > 0 {
            borrowed.release(words * WORD);
            continue;
        }
        // A piece of the stream may end within a sample.
        borrowed.release(0);
        let mut word = [0; WORD];
        from.read_exact(&mut word)?;
        (count, sum) = (count + 1, sum.wrapping_add(u64::from_ne_bytes(word)));
    }
}

fn through(send: impl FnOnce(&mut WriteHalf<Memory>) -> io::Result<()> + Send) -> io::Result<(u64, u64)> {
    let [(_, mut out), (from, _)] = Memory::pair().map_err(io::Error::other)?.map(halves);
    thread::scope(|threads| {
        let plots = threads.spawn(|| plot(from));
        send(&mut out)?;
        // The plotter sees the end.
        drop(out);
        plots.join().unwrap_or_else(|_| Err(io::Error::other("the plotter has panicked")))
    })
}

/// Each mode's samples and their sum.
///
/// # Errors
/// Those of the memory and of the file.
pub(crate) fn sums() -> io::Result<[(&'static str, (u64, u64)); 3]> {
    let mut file = tempfile::NamedTempFile::new()?;
    for number in 0..BLOCKS * SAMPLES {
        file.write_all(&sample(number).to_ne_bytes())?;
    }
    let file = file.reopen()?;
    Ok([("origin", through(origin)?), ("shm", through(shm)?), ("direct", through(|out| direct(out, &file))?)])
}

fn main() -> io::Result<()> {
    for (mode, (count, sum)) in sums()? {
        println!("{mode}: {count} samples, {sum} in all");
    }
    Ok(())
}
