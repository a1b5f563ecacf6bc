// SPDX-License-Identifier: Apache-2.0
//! Replies that were taken from elsewhere.

use crate::redis::Ctx;

/// Replies with the value in `bytes`, which is whole. Redis counts the elements of lists, so they are written one after
/// the other, however deep they are.
pub(super) fn write(ctx: Ctx, bytes: &[u8]) {
    let mut at = 0;
    while let Some(value) = bytes.get(at..).filter(|value| !value.is_empty()) {
        let end = value.windows(2).position(|end| end == b"\r\n").unwrap_or(value.len());
        let line = value.get(1..end).unwrap_or_default();
        let number = std::str::from_utf8(line).ok().and_then(|line| line.parse::<i64>().ok()).unwrap_or(0);
        let text = || String::from_utf8_lossy(line);
        at += end + 2;
        match (value[0], usize::try_from(number)) {
            (b'+', _) => ctx.status(&text()),
            (b'-', _) => ctx.error(&text()),
            (b':', _) => ctx.integer(number),
            (b'$', Ok(len)) => {
                let content = bytes.get(at..).and_then(|rest| rest.get(..len)).unwrap_or_default();
                at += len + 2;
                ctx.string(content)
            }
            (b'$', Err(_)) => ctx.null(),
            (b'*', Ok(len)) => ctx.array(len),
            (b'*', Err(_)) => ctx.null_array(),
            _ => ctx.error("ERR the leader's answer cannot be read"),
        };
    }
}

/// Whether a client has begun a transaction, by its line of `CLIENT LIST`. Where that does not say so, it may have.
pub(super) fn is_in_transaction(client: &[u8]) -> bool {
    let mut fields = client.split(|byte| *byte == b' ');
    fields.find_map(|field| field.strip_prefix(b"multi=")) != Some(b"-1")
}
