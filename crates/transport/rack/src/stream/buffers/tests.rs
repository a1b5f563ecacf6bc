// SPDX-License-Identifier: Apache-2.0

use std::{
    io::{self, ErrorKind, Read, Write},
    thread,
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    shm::ShmWindow,
    stream::{BEFORE, halves},
    window::copied::Copied,
};

const WORDS: usize = 128;
const MOST: usize = (WORDS * WORD - BEFORE) / 2 - 2 * WORD;

type Ours = ShmWindow<WORDS>;

/// Both halves of the one direction that is looked at, and the windows' other ones, which stay open.
fn one_way() -> (WriteHalf<Ours>, ReadHalf<Ours>, impl Sized) {
    one_way_through(|window| window)
}

fn one_way_through<W: Window>(window: fn(Ours) -> W) -> (WriteHalf<W>, ReadHalf<W>, impl Sized) {
    let [(reads, mut here), (mut there, writes)] = ShmWindow::pair().unwrap().map(window).map(halves);
    // Nothing comes while a single thread waits.
    here.set_timeout(Some(Duration::ZERO));
    there.set_timeout(Some(Duration::ZERO));
    (here, there, (reads, writes))
}

#[derive(Debug, Clone)]
enum Writes {
    /// Of origin.
    Slice(usize),
    /// A buffer of so many bytes: words in the order of the numbers, and of so many it is sent.
    Words(usize, Vec<usize>, usize),
    /// So many words are made, into a buffer of so many bytes, from one on.
    Made(usize, usize, usize),
    /// It is appended to in such pieces.
    Appends(usize, Vec<usize>),
    /// So much is put by what is given the place.
    Fill(usize, usize),
    /// It is written, and dropped.
    Drops(usize),
}

#[derive(Debug, Clone)]
enum Reads {
    Slice(usize),
    /// Words, and what is left of the last.
    Words,
    /// From some byte on, and released as far as there.
    Part(usize),
    /// It is looked at, and all is left.
    Nothing,
}

fn writes() -> impl Strategy<Value = Writes> {
    prop_oneof![
        (0..2 * MOST).prop_map(Writes::Slice),
        (1..=MOST, prop::collection::vec(0..MOST, 0..20), 0..=MOST)
            .prop_map(|(len, at, sent)| Writes::Words(len, at, sent)),
        (WORD..=MOST, 0..MOST, 0..MOST / WORD).prop_map(|(len, at, count)| Writes::Made(len, at, count)),
        (1..=MOST, prop::collection::vec(0..30_usize, 1..40)).prop_map(|(len, pieces)| Writes::Appends(len, pieces)),
        (1..2 * MOST, 0..=MOST).prop_map(|(most, has)| Writes::Fill(most, has)),
        (1..=MOST).prop_map(Writes::Drops),
    ]
}

fn reads() -> impl Strategy<Value = Reads> {
    prop_oneof![
        (1..MOST).prop_map(Reads::Slice),
        Just(Reads::Words),
        (0..MOST).prop_map(Reads::Part),
        Just(Reads::Nothing),
    ]
}

/// The byte of the stream that has a number.
fn byte(number: usize) -> u8 {
    (number.wrapping_mul(0x9E37_79B9) >> 11) as u8
}

fn made(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(byte).collect()
}

/// Writes in one of the modes what follows so many bytes; how many more.
fn write_by<W: Window>(half: &mut WriteHalf<W>, by: &Writes, sent: usize) -> io::Result<usize> {
    match by {
        Writes::Slice(len) => half.write(&made(sent, *len)),
        Writes::Words(len, order, count) => {
            let mut lent = half.lend(*len)?;
            // Anything, in any order, and in the end what is sent.
            for at in order {
                if (at + WORD).next_multiple_of(WORD) <= *len {
                    lent.put_u64(at / WORD * WORD, u64::MAX);
                }
            }
            for at in (0..*len).step_by(WORD).rev() {
                lent.put(at, &made(sent + at, WORD.min(len - at)));
            }
            lent.send(*count.min(len));
            Ok(*count.min(len))
        }
        Writes::Made(len, at, count) => {
            let mut lent = half.lend(*len)?;
            let (at, mut made_words) = (at % (len + 1) / WORD * WORD, 0);
            let word = |from: usize| u64::from_ne_bytes(made(sent + from, WORD).try_into().unwrap());
            let words = (at..).step_by(WORD).take(*count).inspect(|_| made_words += 1).map(word);
            let put = lent.put_words(at, words);
            assert_eq!(
                (put, made_words),
                ((*count).min((len - at) / WORD), put),
                "none is made for which there is no room"
            );
            for at in (0..at).step_by(WORD) {
                lent.put_u64(at, word(at));
            }
            lent.send(at + put * WORD);
            Ok(at + put * WORD)
        }
        Writes::Appends(len, pieces) => {
            let mut lent = half.lend(*len)?;
            for piece in pieces {
                let (before, room) = (lent.appended(), lent.len() - lent.appended());
                assert_eq!(lent.write(&made(sent + before, *piece))?, room.min(*piece));
            }
            let count = lent.appended();
            lent.send(count);
            Ok(count)
        }
        Writes::Fill(most, has) => half.fill(*most, &mut |place, len| {
            assert!(len <= *most);
            for (at, byte) in made(sent, len.min(*has)).into_iter().enumerate() {
                // SAFETY: within the place, which nobody else writes.
                unsafe { place.add(at).write(byte) };
            }
            Ok(len.min(*has))
        }),
        Writes::Drops(len) => {
            half.lend(*len)?.put(0, &vec![0xee; *len]);
            Ok(0)
        }
    }
}

/// Reads in one of the modes.
fn read_by<W: Window>(half: &mut ReadHalf<W>, by: &Reads, got: &mut Vec<u8>) -> io::Result<usize> {
    if let Reads::Slice(len) = by {
        let mut piece = vec![0; *len];
        let count = half.read(&mut piece)?;
        got.extend_from_slice(&piece[..count]);
        return Ok(count);
    }
    let borrowed = half.borrow()?;
    let len = borrowed.len();
    match by {
        Reads::Words => {
            got.extend(borrowed.words().flat_map(u64::to_ne_bytes));
            let whole = len / WORD * WORD;
            let mut rest = [0; WORD];
            borrowed.copy_to(whole, &mut rest[..len - whole]);
            got.extend_from_slice(&rest[..len - whole]);
            Ok(len)
        }
        Reads::Part(at) => {
            let at = *at.min(&len);
            let mut piece = vec![0; at];
            borrowed.copy_to(0, &mut piece);
            for from in 0..at.saturating_sub(WORD) {
                assert_eq!(borrowed.read_u64(from).to_ne_bytes(), piece[from..][..WORD]);
            }
            got.extend_from_slice(&piece);
            borrowed.release(at);
            Ok(at)
        }
        _ => {
            borrowed.release(0);
            Ok(0)
        }
    }
}

/// None: it would have to wait.
fn now(result: io::Result<usize>) -> Option<usize> {
    match result {
        Err(why) if why.kind() == ErrorKind::WouldBlock => None,
        result => Some(result.unwrap()),
    }
}

type Steps = Vec<(Writes, Vec<Reads>)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((writes(), prop::collection::vec(reads(), 0..4)), 1..100)
}

fn take_turns<W: Window>(
    (mut here, mut there, _others): (WriteHalf<W>, ReadHalf<W>, impl Sized),
    steps: &Steps,
) -> Result<(), TestCaseError> {
    let (mut sent, mut got) = (0, Vec::new());
    for (writes, reads) in steps {
        sent += now(write_by(&mut here, writes, sent)).unwrap_or(0);
        for by in reads {
            let before = got.len();
            let count = now(read_by(&mut there, by, &mut got));
            prop_assert_eq!(count.unwrap_or(0), got.len() - before);
            prop_assert!(count.is_some() || before == sent, "{} of {}", before, sent);
        }
    }
    drop(here);
    while now(read_by(&mut there, &Reads::Words, &mut got)).unwrap() > 0 {}
    prop_assert!(got == made(0, sent), "{} of {}, or others", got.len(), sent);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// In whatever modes each end takes its turns.
    #[test]
    fn modes_may_take_turns(steps in steps()) {
        take_turns(one_way(), &steps)?;
    }

    #[test]
    fn modes_may_take_turns_through_a_window_without_addresses(steps in steps()) {
        take_turns(one_way_through(Copied), &steps)?;
    }

    /// What the other end writes while a message is borrowed changes its bytes at most: neither its length, nor where the next one lies.
    #[test]
    fn a_borrowed_message_keeps_its_length(
        len in 1..=MOST, writes in prop::collection::vec((BEFORE / WORD..WORDS, any::<u64>()), 0..50), count in 0..=MOST,
    ) {
        let [hostile, window] = ShmWindow::<WORDS>::pair().unwrap();
        let mut sender = crate::ring::Sender::new(&hostile, crate::stream::place(&hostile));
        sender.send(&hostile, &made(0, len)).unwrap();
        let (mut there, _) = halves(window);
        let borrowed = there.borrow().unwrap();
        for (word, value) in writes {
            hostile.publish(word * WORD, value);
        }
        prop_assert!(borrowed.len() == len && borrowed.words().count() == len / WORD);
        borrowed.copy_to(0, &mut vec![0; len]);
        match count {
            0 => drop(borrowed),
            count => borrowed.release(count.min(len)),
        }
        let read = there.receiver.numbers();
        let taken = if count == 0 || count >= len { [(WORD + len.next_multiple_of(WORD)) as u64, 0] } else { [0, count as u64] };
        prop_assert_eq!(read, taken);
        // Whatever is there now.
        there.set_timeout(Some(Duration::ZERO));
        let _ = there.borrow().map(|borrowed| assert!(borrowed.len() <= MOST));
    }
}

#[test]
fn end_of_the_stream_is_borrowed_as_empty() {
    let (mut here, mut there, _others) = one_way();
    assert_eq!(there.borrow().unwrap_err().kind(), ErrorKind::WouldBlock);
    here.write_all(b"last").unwrap();
    drop(here);
    assert_eq!(there.borrow().unwrap().len(), 4);
    assert!(there.borrow().unwrap().is_empty());
    assert!(there.borrow().unwrap().words().next().is_none(), "and again");
}

#[test]
fn a_buffer_that_is_too_long_is_refused() {
    let (mut here, _there, _others) = one_way();
    assert_eq!(here.lends_at_most(), MOST);
    assert!(here.lend(MOST).is_ok());
    let why = here.lend(MOST + 1).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::InvalidInput);
    assert!(why.to_string().contains("send it in parts"), "{why}");
}

/// Nobody waits for room that a reader has promised never to make.
#[test]
fn end_of_the_reader_ends_a_wait_for_a_buffer() {
    for fills in [false, true] {
        let (mut here, there, _others) = one_way();
        while here.write_all(&[7; 64]).is_ok() {}
        here.set_timeout(None);
        let waits = thread::spawn(move || match fills {
            true => here.fill(MOST, &mut |_, _| unreachable!("there is no room")).unwrap_err().kind(),
            false => here.lend(MOST).unwrap_err().kind(),
        });
        thread::sleep(Duration::from_millis(20));
        drop(there);
        assert_eq!(waits.join().unwrap(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn empty_and_broken_messages_are_errors() {
    for header in [1, u64::MAX] {
        let [hostile, window] = ShmWindow::<WORDS>::pair().unwrap();
        let (mut there, _) = halves(window);
        hostile.publish(BEFORE, header);
        assert_eq!(there.borrow().unwrap_err().kind(), ErrorKind::InvalidData, "{header:#x}");
    }
}

/// What a filler claims beyond its place is not sent.
#[test]
fn a_fill_that_claims_too_much_sends_its_place() {
    let (mut here, mut there, _others) = one_way();
    assert_eq!(here.fill(8, &mut |_, _| Ok(usize::MAX)).unwrap(), 8);
    assert_eq!(there.borrow().unwrap().len(), 8);
    assert_eq!(here.fill(8, &mut |_, _| Err(ErrorKind::NotFound.into())).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(here.fill(8, &mut |_, _| Ok(0)).unwrap(), 0);
    assert_eq!(there.borrow().unwrap_err().kind(), ErrorKind::WouldBlock, "nothing was sent");
}

/// Two threads, which wait for each other.
#[test]
fn threads_lend_and_borrow() {
    const COUNT: usize = 20_000;
    let (mut here, mut there, _others) = one_way();
    here.set_timeout(None);
    there.set_timeout(None);
    let sends = thread::spawn(move || {
        for number in 0..COUNT {
            let words = 1 + number % (MOST / WORD);
            let mut lent = here.lend(words * WORD).unwrap();
            for word in 0..words {
                lent.put_u64(word * WORD, (number + word) as u64);
            }
            lent.send(words * WORD);
        }
    });
    for number in 0..COUNT {
        let borrowed = there.borrow().unwrap();
        assert_eq!(borrowed.len() / WORD, 1 + number % (MOST / WORD));
        assert!(borrowed.words().eq((number as u64..).take(borrowed.len() / WORD)), "message {number}");
    }
    assert!(there.borrow().unwrap().is_empty());
    sends.join().unwrap();
}

#[test]
fn bytes_of_a_file_are_read_into_the_ring() {
    let (mut here, mut there, _others) = one_way();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&made(0, 3 * MOST)).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let mut got = Vec::new();
    loop {
        let count = here.fill_from(&file, MOST - 1).unwrap();
        if count == 0 {
            break;
        }
        assert_eq!(read_by(&mut there, &Reads::Part(MOST), &mut got).unwrap(), count);
    }
    assert!(got == made(0, 3 * MOST), "{}", got.len());
    let folder = std::fs::File::open("/").unwrap();
    assert_eq!(here.fill_from(&folder, 9).unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(there.borrow().unwrap_err().kind(), ErrorKind::WouldBlock, "nothing was sent");
}
