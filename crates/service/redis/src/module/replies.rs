// SPDX-License-Identifier: Apache-2.0
//! Replies that were taken from elsewhere.

use crate::{redis::Ctx, resp::Value};

/// Replies with the value at the beginning of `bytes`, which is whole, and says how long it is.
pub(super) fn write(ctx: Ctx, bytes: &[u8]) -> usize {
    let end = bytes.windows(2).position(|end| end == b"\r\n").unwrap_or(bytes.len());
    let line = String::from_utf8_lossy(bytes.get(1..end).unwrap_or_default()).into_owned();
    let number = line.parse::<i64>().unwrap_or(0);
    let mut at = end + 2;
    match bytes.first() {
        Some(b'+') => ctx.status(&line),
        Some(b'-') => ctx.error(&line),
        Some(b':') => ctx.integer(number),
        Some(b'$') => match usize::try_from(number) {
            Ok(len) => {
                let content = bytes.get(at..at + len).unwrap_or_default();
                at += len + 2;
                ctx.value(&Value::Leaf(content.to_vec()))
            }
            Err(_) => ctx.null(),
        },
        Some(b'*') => match usize::try_from(number) {
            Ok(len) => {
                ctx.array(len);
                for _ in 0..len {
                    at += write(ctx, bytes.get(at..).unwrap_or_default());
                }
                0
            }
            Err(_) => ctx.null_array(),
        },
        _ => ctx.error("ERR the leader's answer cannot be read"),
    };
    at
}

/// Whether a client has begun a transaction, by its line of `CLIENT LIST`. Where that does not say so, it may have.
pub(super) fn is_in_transaction(client: &[u8]) -> bool {
    let mut fields = client.split(|byte| *byte == b' ');
    fields.find_map(|field| field.strip_prefix(b"multi=")) != Some(b"-1")
}
