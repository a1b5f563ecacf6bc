// SPDX-License-Identifier: Apache-2.0
//! `fide pace send`: standard input as messages.

use std::{
    io::{self, BufRead, Read},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use fide_pace_socket::SendError;

use super::{Way, end_on_signal};
use crate::exit::{Done, Failure, UNHEALTHY};

/// Longest message.
const SIZE_MAX: i64 = 1 << 20;
/// After the last message: until it has arrived, or expired.
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
    let mut input = io::stdin().lock();
    let mut message = vec![0; arguments.size as usize];
    let failed = loop {
        let len = if arguments.lines { line(&mut input, &mut message) } else { input.read(&mut message) };
        match len {
            Ok(0) => break None,
            // An empty line is a message, too.
            Ok(len) => {
                if let Err(why) = connection.send(&message[..len - usize::from(arguments.lines)]) {
                    break Some(why);
                }
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(Failure::new(UNHEALTHY, anyhow!("standard input could not be read: {why}"))),
        }
    };
    connection.finish(LINGER);
    let closed = match &failed {
        Some(SendError::Closed(why)) => Some(why.clone()),
        _ => None,
    };
    arguments.way.report(&connection, closed.as_ref())?;
    connection.close("");
    failed.map_or(Ok(ExitCode::SUCCESS), |why| Err(anyhow::Error::from(why).into()))
}

/// Reads one line, or as much of it as there is room for; its length and one. 0 at the end.
fn line(input: &mut impl BufRead, into: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(if len > 0 { len + 1 } else { 0 });
        }
        let room = into.len() - len;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let count = end.unwrap_or(buffer.len()).min(room);
        into[len..len + count].copy_from_slice(&buffer[..count]);
        len += count;
        let is_over = end == Some(count);
        input.consume(count + usize::from(is_over));
        if is_over || len == into.len() {
            return Ok(len + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_are_cut() {
        let mut input = &b"one\n\nlonger\nlast"[..];
        let mut into = [0; 4];
        let mut read = Vec::new();
        loop {
            let len = line(&mut input, &mut into).unwrap();
            if len == 0 {
                break;
            }
            read.push(String::from_utf8_lossy(&into[..len - 1]).into_owned());
        }
        assert_eq!(read, ["one", "", "long", "er", "last"]);
    }
}
