// SPDX-License-Identifier: Apache-2.0
//! `fide pace send`: standard input as messages.

use std::{
    io::{self, BufRead, BufReader, Read},
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::anyhow;
use fide_pace_socket::{Closed, Connection, SendError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{Out, Way, end_on_signal, lost};
use crate::exit::{Done, Failure, UNHEALTHY};

/// Longest message.
const SIZE_MAX: i64 = 1 << 20;
/// After the deadline of the last message: until it is known to have arrived, or to have expired.
const LINGER: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Where `fide pace recv` waits, as HOST:PORT
    to: String,
    #[command(flatten)]
    way: Way,
    /// Each line is a message; without this, whatever was read at once
    #[arg(long)]
    lines: bool,
    /// Longest message, in bytes: longer input is cut
    #[arg(long, value_name = "BYTES", default_value_t = 1100, value_parser = clap::value_parser!(u32).range(1..=SIZE_MAX))]
    size: u32,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let connection = Arc::new(arguments.way.connect(&arguments.to, 1)?);
    end_on_signal(&connection);
    let ended = bell_of(&connection).map_err(|why| anyhow!("no watch on the connection: {why}"))?;
    let mut input = BufReader::new(Input { ended: &ended });
    let mut is_cut = false;
    let mut message = vec![0; arguments.size as usize];
    let failed = loop {
        let len = if arguments.lines { line(&mut input, &mut message, &mut is_cut) } else { input.read(&mut message) };
        match len {
            Ok(0) => break None,
            // An empty line is a message, too.
            Ok(len) => {
                if let Err(why) = connection.send(&message[..len - usize::from(arguments.lines)]) {
                    break Some(why);
                }
            }
            // Over: it is seen below.
            Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => break None,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(Failure::new(UNHEALTHY, anyhow!("standard input could not be read: {why}"))),
        }
    };
    let within = arguments.way.deadline + LINGER;
    let is_finished = connection.finish(within);
    // By the other end, or by a signal.
    let over = || connection.is_over().then(|| SendError::Closed(ended_by(&connection)));
    let failed = failed.or_else(over);
    let closed = match &failed {
        Some(SendError::Closed(why)) => Some(why.clone()),
        _ => None,
    };
    arguments.way.report(&connection, closed.as_ref(), Out::Standard)?;
    connection.close("");
    if let Some(why) = failed {
        return Err(lost(&connection, why));
    }
    if !is_finished {
        let why = anyhow!("what became of the last messages was not known {} s after them", within.as_secs_f64());
        return Err(Failure::new(UNHEALTHY, why));
    }
    Ok(ExitCode::SUCCESS)
}

fn ended_by(connection: &Connection) -> Closed {
    connection.recv().map_or_else(|over| over.0, |_| Closed::Here)
}

/// Can be read once a connection is over.
fn bell_of(connection: &Arc<Connection>) -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
    let (rings, connection) = (bell.try_clone()?, Arc::clone(connection));
    thread::Builder::new().name("watch".to_owned()).spawn(move || {
        // The other end has nothing to say.
        while let Ok(message) = connection.recv() {
            connection.recycle(message);
        }
        let _ = rustix::io::write(&rings, &1_u64.to_ne_bytes());
    })?;
    Ok(bell)
}

/// Standard input; an error as soon as the connection is over, also while nothing comes.
struct Input<'a> {
    ended: &'a OwnedFd,
}

impl Read for Input<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let input = io::stdin();
        let mut fds = [PollFd::new(self.ended, PollFlags::IN), PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
        poll(&mut fds, None)?;
        if !fds[0].revents().is_empty() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(rustix::io::read(input.as_fd(), into)?)
    }
}

/// Reads one line, or as much of it as there is room for; its length and one. 0 at the end. `is_cut`: the last one may not have ended,
/// as there was no room for more.
fn line(input: &mut impl BufRead, into: &mut [u8], is_cut: &mut bool) -> io::Result<usize> {
    let mut len = 0;
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(if len > 0 { len + 1 } else { 0 });
        }
        if std::mem::take(is_cut) && buffer[0] == b'\n' {
            // Its end comes now.
            input.consume(1);
            continue;
        }
        let room = into.len() - len;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let count = end.unwrap_or(buffer.len()).min(room);
        into[len..len + count].copy_from_slice(&buffer[..count]);
        len += count;
        let is_over = end == Some(count);
        input.consume(count + usize::from(is_over));
        if is_over || len == into.len() {
            *is_cut = !is_over;
            return Ok(len + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::line;

    fn lines(mut input: impl std::io::BufRead) -> Vec<String> {
        let (mut into, mut is_cut, mut read) = ([0; 4], false, Vec::new());
        loop {
            let len = line(&mut input, &mut into, &mut is_cut).unwrap();
            if len == 0 {
                return read;
            }
            read.push(String::from_utf8_lossy(&into[..len - 1]).into_owned());
        }
    }

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_are_cut() {
        assert_eq!(lines(&b"one\n\nlonger\nlast"[..]), ["one", "", "long", "er", "last"]);
    }

    #[test]
    fn line_whose_end_comes_later_is_one_message() {
        for capacity in 1..8 {
            let input = std::io::BufReader::with_capacity(capacity, &b"four\nmore\n\n\nlong line\n"[..]);
            assert_eq!(lines(input), ["four", "more", "", "", "long", " lin", "e"], "{capacity} bytes at a time");
        }
    }
}
