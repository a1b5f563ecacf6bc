// SPDX-License-Identifier: Apache-2.0
//! Bytes in order, both ways, as a TCP connection carries them: a ring for each direction of a window.
//!
//! | word of each part | what the other end has written there |
//! |---|---|
//! | 0 | how far it has read ([`crate::ring`]) |
//! | 1 | not 0: it writes no more |
//! | 2 | not 0: it reads no more |
//!
//! Large writes are cut into slices, so that the reader begins while the writer goes on.
//!
//! Bytes may also be made and used where they lie: [`buffers`].

pub mod buffers;

use std::{io, sync::Arc, time::Duration};

use crate::{
    ring::{Broken, Place, Receiver, SendError, Sender},
    wait::Patience,
    window::{Bell, WORD, Window},
};

const TOLD_AT: usize = 0;
pub(crate) const WRITES_NO_MORE_AT: usize = WORD;
pub(crate) const READS_NO_MORE_AT: usize = 2 * WORD;
/// Bytes before the ring: a cache line or two.
const BEFORE: usize = 128;
/// Bytes of the longest slice.
pub(crate) const SLICE: usize = 16 << 10;

/// The end that reads. Dropped, the other end's writes fail.
#[derive(Debug)]
pub struct ReadHalf<W: Window> {
    window: Arc<W>,
    receiver: Receiver,
    patience: Patience,
    timeout: Option<Duration>,
}

/// The end that writes. Dropped, the other end reads what was written, and then the end.
#[derive(Debug)]
pub struct WriteHalf<W: Window> {
    window: Arc<W>,
    sender: Sender,
    patience: Patience,
    timeout: Option<Duration>,
}

/// Both halves of one end of a window, all of which is 0.
///
/// # Panics
/// If the window is too short for a ring.
pub fn halves<W: Window>(window: W) -> (ReadHalf<W>, WriteHalf<W>) {
    let place = place(&window);
    let window = Arc::new(window);
    let read = ReadHalf {
        receiver: Receiver::new(&*window, place),
        window: Arc::clone(&window),
        patience: Patience::default(),
        timeout: None,
    };
    let write =
        WriteHalf { sender: Sender::new(&*window, place), window, patience: Patience::default(), timeout: None };
    (read, write)
}

/// Where the rings of a window lie.
///
/// # Panics
/// If it is too short for one.
pub(crate) fn place(window: &impl Window) -> Place {
    Place { told_at: TOLD_AT, at: BEFORE, len: window.len() - BEFORE }
}

pub(crate) fn broken(why: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn empty() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an empty message, which no writer sends")
}

fn timed_out() -> io::Error {
    // As a socket with SO_RCVTIMEO has it.
    io::Error::from(io::ErrorKind::WouldBlock)
}

impl<W: Window> ReadHalf<W> {
    /// Reads wait no longer than this; none: as long as it takes, also if the other end's program has died.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Until there is something to read, or the end.
    fn waits(&mut self) -> io::Result<()> {
        let Self { window, receiver, patience, timeout } = self;
        match patience.wait(&**window, Bell::Message, *timeout, || has_something(receiver, &**window)) {
            true => Ok(()),
            false => Err(timed_out()),
        }
    }
}

/// Whether there is something to read, or the end.
pub(crate) fn has_something(receiver: &Receiver, window: &impl Window) -> bool {
    receiver.has_something(window) || window.poll(WRITES_NO_MORE_AT) != 0
}

/// Reads what is there, as far as there is room: how many bytes, 0 at the end, or none if nothing is there. `is_ended`: the other end is
/// known to write no more. `leaves`: it is only looked at.
///
/// # Errors
/// `InvalidData`: the other end breaks the rules of the window.
pub(crate) fn try_read(
    receiver: &mut Receiver,
    window: &impl Window,
    is_ended: bool,
    into: &mut [u8],
    leaves: bool,
) -> io::Result<Option<usize>> {
    // Before the ring is looked at: what was written before the end is there then.
    let is_over = is_ended || window.poll(WRITES_NO_MORE_AT) != 0;
    let mut count = 0;
    if leaves {
        // It is something, and nothing to look at: who waits for that would look for ever.
        if receiver.has_empty(window) {
            return Err(empty());
        }
        count = receiver.peek(window, into).map_err(broken)?;
    }
    while !leaves && count < into.len() {
        match receiver.read_some(window, &mut into[count..]) {
            Ok(Some(0)) if count == 0 => return Err(empty()),
            Err(why) if count == 0 => return Err(broken(why)),
            Ok(Some(more @ 1..)) => count += more,
            _ => break,
        }
    }
    Ok((count > 0 || is_over).then_some(count))
}

impl<W: Window> io::Read for ReadHalf<W> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(count) = try_read(&mut self.receiver, &*self.window, false, into, false)? {
                return Ok(count);
            }
            self.waits()?;
        }
    }
}

impl<W: Window> Drop for ReadHalf<W> {
    fn drop(&mut self) {
        self.window.publish(READS_NO_MORE_AT, 1);
        self.window.ring(Bell::Room);
    }
}

impl<W: Window> WriteHalf<W> {
    /// Writes wait for room no longer than this; none: as long as it takes, also if the other end's program has died.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Until there is room, for as many bytes as somebody looks for, or the other end reads no more.
    fn waits(&mut self, mut has_room: impl FnMut(&mut Sender, &W) -> bool) -> io::Result<()> {
        let Self { window, sender, patience, timeout } = self;
        let is_there = || has_room(sender, window) || window.poll(READS_NO_MORE_AT) != 0;
        match patience.wait(&**window, Bell::Room, *timeout, is_there) {
            true => Ok(()),
            false => Err(timed_out()),
        }
    }

    /// Tries until there is room, and the other end reads.
    fn goes_on<T>(
        &mut self,
        has_room: impl Fn(&mut Sender, &W) -> bool,
        mut tries: impl FnMut(&mut Sender, &W) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        loop {
            if self.window.poll(READS_NO_MORE_AT) != 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if let Some(done) = tries(&mut self.sender, &self.window)? {
                return Ok(done);
            }
            self.waits(&has_room)?;
        }
    }
}

/// Of a try that has to wait for room: none.
fn sent<T>(result: Result<T, SendError>) -> io::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(SendError::Full) => Ok(None),
        Err(SendError::Broken(why)) => Err(broken(why)),
        Err(why @ SendError::TooLong { .. }) => Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
    }
}

impl<W: Window> io::Write for WriteHalf<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let slice = &bytes[..bytes.len().min(SLICE).min(self.sender.most())];
        if slice.is_empty() {
            return Ok(0);
        }
        let has_room = |sender: &mut Sender, window: &W| sender.has_room(window, slice.len());
        self.goes_on(has_room, |sender, window| sent(sender.send(window, slice)))?;
        Ok(slice.len())
    }

    /// What was written is there for the other end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Window> Drop for WriteHalf<W> {
    fn drop(&mut self) {
        self.window.publish(WRITES_NO_MORE_AT, 1);
        self.window.ring(Bell::Message);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        thread,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::shm::ShmWindow;

    const WORDS: usize = 512;

    type Half = (ReadHalf<ShmWindow<WORDS>>, WriteHalf<ShmWindow<WORDS>>);

    fn connection() -> [Half; 2] {
        ShmWindow::<WORDS>::pair().unwrap().map(halves)
    }

    fn bytes(count: usize, seed: u8) -> Vec<u8> {
        (0..count).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Whatever the lengths of writes and reads.
        #[test]
        fn both_ways_carry_all_bytes(
            writes in prop::collection::vec(0..9000_usize, 1..20), read in 1..5000_usize, seed in any::<u8>(),
        ) {
            let [(mut here_reads, mut here_writes), (mut there_reads, mut there_writes)] = connection();
            let all = bytes(writes.iter().sum(), seed);
            let (sent, writes_there) = (all.clone(), writes.clone());
            let echo = thread::spawn(move || {
                let mut buffer = vec![0; read];
                loop {
                    let count = there_reads.read(&mut buffer).unwrap();
                    if count == 0 {
                        return;
                    }
                    there_writes.write_all(&buffer[..count]).unwrap();
                }
            });
            let send = thread::spawn(move || {
                let mut rest = &sent[..];
                for len in writes_there {
                    let (now, later) = rest.split_at(len);
                    here_writes.write_all(now).unwrap();
                    rest = later;
                }
            });
            let mut got = Vec::new();
            here_reads.read_to_end(&mut got).unwrap();
            prop_assert!(got == all, "{} of {} bytes, or others", got.len(), all.len());
            send.join().unwrap();
            echo.join().unwrap();
        }
    }

    #[test]
    fn end_of_the_writer_is_read_after_all_it_wrote() {
        let [(_here_reads, mut here_writes), (mut there_reads, _there_writes)] = connection();
        here_writes.write_all(b"the last words").unwrap();
        drop(here_writes);
        let mut got = String::new();
        there_reads.read_to_string(&mut got).unwrap();
        assert_eq!(got, "the last words");
        assert_eq!(there_reads.read(&mut [0; 8]).unwrap(), 0, "and again");
    }

    #[test]
    fn end_of_the_reader_ends_a_write_that_waits() {
        let [(_here_reads, mut here_writes), (there_reads, _there_writes)] = connection();
        let writes = thread::spawn(move || here_writes.write_all(&[7; 1 << 20]).unwrap_err().kind());
        thread::sleep(Duration::from_millis(20));
        drop(there_reads);
        assert_eq!(writes.join().unwrap(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn waits_end_in_time() {
        let [(mut here_reads, mut here_writes), (mut there_reads, mut there_writes)] = connection();
        here_reads.set_timeout(Some(Duration::from_millis(5)));
        here_writes.set_timeout(Some(Duration::from_millis(5)));
        assert_eq!(here_reads.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(here_writes.write_all(&[7; 1 << 20]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // One that no clock holds does not end.
        here_reads.set_timeout(Some(Duration::MAX));
        let reads = thread::spawn(move || here_reads.read(&mut [0; 8]));
        thread::sleep(Duration::from_millis(5));
        there_writes.write_all(b"late").unwrap();
        assert_eq!(reads.join().unwrap().unwrap(), 4);
        assert!(there_reads.read(&mut [0; 8]).is_ok());
    }

    #[test]
    fn empty_message_is_an_error() {
        let [here, there] = ShmWindow::<WORDS>::pair().unwrap();
        let (mut reads, _writes) = halves(here);
        there.publish(BEFORE, 1);
        assert_eq!(reads.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn garbage_of_the_other_end_is_an_error() {
        let windows = ShmWindow::<WORDS>::pair().unwrap();
        let [here, there] = windows;
        let (mut reads, _writes) = halves(here);
        there.publish(BEFORE, u64::MAX);
        let why = reads.read(&mut [0; 8]).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::InvalidData);
        assert!(why.to_string().contains("a message has at most"), "{why}");
    }
}
