// SPDX-License-Identifier: Apache-2.0
//! What a key of a configuration file means, for `explain-config`.

use serde::Serialize;

/// One key of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// As it is written in the file: `[cluster]`, `[[member]]`.
    pub table: &'static str,
    pub key: &'static str,
    /// Its TOML type, with the unit of numbers, or the values that there are.
    pub kind: &'static str,
    pub default: Default,
    pub says: &'static str,
}

/// What counts where a file leaves a key out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Default {
    /// The file is refused.
    Required,
    /// This value, as TOML.
    Value(&'static str),
    /// No value: what happens then.
    Otherwise(&'static str),
}

/// A [`Key`], for tables of them.
#[must_use]
pub const fn key(
    table: &'static str,
    key: &'static str,
    kind: &'static str,
    default: Default,
    says: &'static str,
) -> Key {
    Key { table, key, kind, default, says }
}
