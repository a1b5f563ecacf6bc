// SPDX-License-Identifier: Apache-2.0
//! The end of a bench that takes messages: it says how long each was on its way.

use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use fide_pace_socket::{Connection, Offset, now_ns};

use super::{
    super::Way,
    exchange::{Exchange, Percentiles, Probe, Tally, answer},
};
use crate::{exit::Done, say::say};

/// Benches at a time; a further one is told so, and ended.
const BENCHES_MAX: usize = 16;
/// Delivery times of a run that are kept, for its percentiles: those of the first messages.
const TIMES_MAX: usize = 1 << 22;
/// An answer is worth so long to wait for.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Times of messages that came, in microseconds.
#[derive(Debug, Default)]
struct Times {
    delivered: u64,
    missing: u64,
    delivery_us: Vec<u32>,
    between_us: Vec<u32>,
    uncertainty_us: u64,
    /// When the first of them was made, and when the last one came, by this clock.
    span_us: Option<(u64, u64)>,
}

impl Times {
    fn note(&mut self, delivery_us: u32, between_us: Option<u32>, missing: u64, uncertainty_us: u64) {
        self.delivered += 1;
        self.missing += missing;
        self.uncertainty_us = self.uncertainty_us.max(uncertainty_us);
        if self.delivery_us.len() < TIMES_MAX {
            self.delivery_us.push(delivery_us);
            self.between_us.extend(between_us);
        }
    }

    fn tally(&mut self) -> Tally {
        Tally {
            delivered: self.delivered,
            missing: self.missing,
            late: 0,
            delivery: Percentiles::of(&mut self.delivery_us),
            between: Percentiles::of(&mut self.between_us),
            uncertainty_us: self.uncertainty_us,
            whole_us: self.span_us.map_or(0, |(first_us, last_us)| last_us.saturating_sub(first_us)),
        }
    }
}

/// One run as it is taken.
#[derive(Debug, Default)]
struct Taken {
    whole: Times,
    part: Times,
    /// The number after that of the last probe, and when that came.
    last: Option<(u64, u64)>,
}

/// By how much this clock is ahead of the sender's: as the sender has it, or as this end has the reverse, whichever is surer.
fn better(of_sender: Offset, of_this: Option<Offset>) -> Offset {
    match of_this {
        Some(Offset { us, uncertainty_us }) if uncertainty_us < of_sender.uncertainty_us => {
            Offset { us: us.saturating_neg(), uncertainty_us }
        }
        _ => of_sender,
    }
}

/// From when a message was made, by its sender's clock, until it came, by this one, which is so much ahead. Of both clocks the
/// lowest 32 bits count. A message that seems to have come before it was made has taken less than the clocks are sure of.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the lowest bits, and their difference")]
fn on_the_way_us(made_us: u64, came_us: u64, ahead_us: i64) -> u32 {
    let made_here_us = made_us.wrapping_add_signed(ahead_us);
    let us = came_us.wrapping_sub(made_here_us) as u32 as i32;
    u32::try_from(us).unwrap_or(0)
}

impl Taken {
    /// A probe has come.
    fn note(&mut self, connection: &Connection, probe: &Probe) {
        let (number, came_us) = (probe.number, now_ns() / 1000);
        let clock = better(probe.clock, connection.peer_clock());
        let bounded = |us: u64| u32::try_from(us).unwrap_or(u32::MAX);
        let delivery_us = on_the_way_us(probe.made_us, came_us, clock.us);
        let (next, last_us) = self.last.unwrap_or((0, 0));
        let missing = number.saturating_sub(next);
        let between_us = (missing == 0 && number > 0).then(|| bounded(came_us.saturating_sub(last_us)));
        for times in [&mut self.whole, &mut self.part] {
            times.note(delivery_us, between_us, missing, clock.uncertainty_us);
            let made_us = came_us.saturating_sub(delivery_us.into());
            times.span_us.get_or_insert((made_us, came_us)).1 = came_us;
        }
        self.last = Some((number.saturating_add(1), came_us));
    }

    fn answer(&mut self, connection: &Connection, number: u32, of_all: bool) {
        let tally = if of_all {
            Tally { late: connection.counts().received.late, ..self.whole.tally() }
        } else {
            std::mem::take(&mut self.part).tally()
        };
        // What is lost is asked for again.
        let _ = connection.try_send(&answer(number, &tally), Some(ANSWER_WITHIN));
    }
}

pub(super) fn run(at: &str, way: &Way, once: bool) -> Done {
    let endpoint = way.server(at, 1)?;
    if let Ok(address) = endpoint.local_address() {
        say!("fide: waiting at {address}");
    }
    let open: Arc<Mutex<Vec<Weak<Connection>>>> = Arc::default();
    end_all_on_signal(&open);
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let connection = Arc::new(endpoint.accept().map_err(anyhow::Error::from)?);
        {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|known| known.strong_count() > 0);
            open.push(Arc::downgrade(&connection));
        }
        if once {
            take(&connection);
            return Ok(ExitCode::SUCCESS);
        }
        if count.fetch_add(1, Ordering::Relaxed) >= BENCHES_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            connection.close("other benches run here: try again later");
            continue;
        }
        let of_thread = (Arc::clone(&connection), Arc::clone(&count));
        let started = thread::Builder::new().name("bench".to_owned()).spawn(move || {
            take(&of_thread.0);
            of_thread.1.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(why) = started {
            count.fetch_sub(1, Ordering::Relaxed);
            connection.close(&format!("no thread for a bench: {why}"));
        }
    }
}

/// Until the other end has closed the connection.
fn take(connection: &Connection) {
    let peer = connection.peer().map_or("an unknown address".to_owned(), |peer| peer.to_string());
    say!("fide: a bench from {peer} has begun");
    let mut taken = Taken::default();
    let why = loop {
        match connection.recv() {
            Ok(message) => {
                let mut work = Duration::ZERO;
                match Exchange::read(&message.bytes) {
                    Some(Exchange::Probe(probe)) => {
                        taken.note(connection, &probe);
                        work = probe.work();
                    }
                    Some(Exchange::Ask { number, of_all }) => taken.answer(connection, number, of_all),
                    Some(Exchange::Answer { .. }) | None => {
                        connection.close("this is `fide pace bench --accept`: send to it with `fide pace bench`");
                    }
                }
                connection.recycle(message);
                if work > Duration::ZERO {
                    thread::sleep(work);
                }
            }
            Err(why) => break why,
        }
    };
    say!("fide: the bench from {peer} has ended after {} messages: {why}", taken.whole.delivered);
}

/// Tells all other ends, and ends this program.
fn end_all_on_signal(open: &Arc<Mutex<Vec<Weak<Connection>>>>) {
    let open = Arc::clone(open);
    let _ = ctrlc::set_handler(move || {
        let open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter_map(Weak::upgrade).for_each(|connection| connection.close("ended by a signal"));
        std::process::exit(0);
    });
}

#[cfg(test)]
mod tests {
    use super::{Offset, Times, better, on_the_way_us};

    #[test]
    fn lowest_bits_of_two_clocks_say_how_long_a_message_was_on_its_way() {
        assert_eq!(on_the_way_us(1000, 6000, 4000), 1000);
        assert_eq!(on_the_way_us(6000, 1000, -5500), 500);
        let days = 3 << 32;
        assert_eq!(on_the_way_us(days + 7, 50, 13), 30, "a clock of which multiples of 2^32 are not known");
        assert_eq!(on_the_way_us(u64::from(u32::MAX), 20, 1), 20);
        assert_eq!(on_the_way_us(1000, 1000, 5), 0, "less than the clocks are sure of");
    }

    #[test]
    fn surer_clock_counts() {
        let of = |us, uncertainty_us| Offset { us, uncertainty_us };
        assert_eq!(better(of(5, 100), None), of(5, 100));
        assert_eq!(better(of(5, 100), Some(of(-7, 99))), of(7, 99));
        assert_eq!(better(of(5, 100), Some(of(-7, 101))), of(5, 100));
    }

    #[test]
    fn times_beyond_the_bound_are_counted_and_not_kept() {
        let mut times = Times { delivery_us: vec![7; super::TIMES_MAX], ..Times::default() };
        times.note(100, Some(5), 2, 30);
        assert_eq!((times.delivered, times.missing, times.delivery_us.len()), (1, 2, super::TIMES_MAX));
        let tally = times.tally();
        assert_eq!((tally.delivery.longest_us, tally.uncertainty_us, tally.whole_us), (7, 30, 0));
    }
}
