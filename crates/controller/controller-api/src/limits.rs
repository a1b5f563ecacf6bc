// SPDX-License-Identifier: Apache-2.0
//! Bounds that a client meets at a controller, and the error beyond each.

/// Open connections of one client. One more is answered `too_many_connections` and closed.
pub const CONNECTIONS_PER_PEER: usize = 16;
/// Bytes of a request's body. A longer one is `body_too_large`.
pub const BODY_MAX: usize = 64 * 1024;
/// Requests per second of one client, and how many it may save up. Above: `too_many_requests` with
/// `Retry-After`.
pub const REQUESTS_PER_S: u64 = 50;
pub const REQUESTS_BURST: u64 = 100;
/// Long polls of one client at a time. One more is `too_many_polls`.
pub const POLLS_PER_PEER: usize = 4;
/// The longest `wait_ms` of a poll. A longer one is refused.
pub const POLL_WAIT_MAX_MS: u64 = 60_000;
/// Reports in one [`crate::lane::Reports`]. A longer list is `bad_request`.
pub const REPORTS_MAX: usize = 1024;
/// Lanes that programs of one host hold at once, those that end included. One more is `full`.
pub const LANES_PER_HOST: usize = 64;
