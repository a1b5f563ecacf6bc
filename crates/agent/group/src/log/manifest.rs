// SPDX-License-Identifier: Apache-2.0
//! What a log begins with: `manifest.toml`, replaced as a whole.

use std::{fs, io, path::Path};

use fide_agreement::{View, ViewMember};
use serde::{Deserialize, Serialize};

use super::{LogError, record::Membership};
use crate::files;

pub(super) const NAME: &str = "manifest.toml";
/// Before the checksum of everything before it.
const SUM: &str = "# crc32c ";
/// Of this layout of a log.
const FORMAT: u32 = 1;

/// The user's state with which the log begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Base {
    pub(super) position: u64,
    /// The name of the file.
    pub(super) file: String,
    pub(super) bytes: u64,
    /// CRC-32C of the file.
    pub(super) crc32c: u32,
    /// What belongs to the state and is not in that file, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) beside: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    incarnation: u32,
    ballot: u32,
    view: u32,
    /// Each member's host and incarnation, in the view's order.
    members: Vec<(u16, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    /// The number of the group, in hexadecimal digits.
    group: String,
    /// The first incarnation of which everything is here.
    pub(super) first: u32,
    /// The first segment that counts.
    pub(super) segments_from: u64,
    /// The user's state at the beginning of that segment belongs to `member`.
    pub(super) is_whole: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<Base>,
    /// The last membership before that segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    member: Option<Member>,
}

/// What every format has.
#[derive(Debug, Deserialize)]
struct OnlyFormat {
    format: u32,
}

impl Manifest {
    pub(super) fn new(group: u64, first: u32) -> Self {
        Self {
            format: FORMAT,
            group: format!("{group:016x}"),
            first,
            segments_from: 1,
            is_whole: true,
            base: None,
            member: None,
        }
    }

    /// None if there is no such file.
    pub(super) fn read(dir: &Path, group: u64) -> Result<Option<Self>, LogError> {
        let path = dir.join(NAME);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(LogError::Io { path, why }),
        };
        let sum =
            text.rsplit_once(SUM).and_then(|(content, sum)| Some((content, u32::from_str_radix(sum.trim(), 16).ok()?)));
        if sum.is_none_or(|(content, sum)| crc32c::crc32c(content.as_bytes()) != sum) {
            return Err(LogError::Manifest { path, why: "its checksum does not fit".to_owned() });
        }
        // First, as another format may have other fields.
        if let Some(format) =
            toml::from_str::<OnlyFormat>(&text).ok().map(|only| only.format).filter(|format| *format != FORMAT)
        {
            let why = format!("its format is {format}, this program knows {FORMAT}; start the version that wrote it");
            return Err(LogError::Manifest { path, why });
        }
        let content: Result<Self, _> = toml::from_str(&text);
        let manifest =
            content.map_err(|why| LogError::Manifest { path: path.clone(), why: why.message().to_owned() })?;
        if manifest.group != format!("{group:016x}") {
            return Err(LogError::OtherGroup { path });
        }
        manifest.membership(&path)?;
        Ok(Some(manifest))
    }

    pub(super) fn membership(&self, path: &Path) -> Result<Option<Membership>, LogError> {
        let Some(member) = &self.member else { return Ok(None) };
        let members: Vec<ViewMember> =
            member.members.iter().map(|&(host, incarnation)| ViewMember { host, incarnation }).collect();
        let view = View::new(member.view, &members);
        let view = view.map_err(|why| LogError::Manifest { path: path.to_owned(), why: why.to_string() })?;
        Ok(Some(Membership { incarnation: member.incarnation, ballot: member.ballot, view }))
    }

    pub(super) fn set_membership(&mut self, membership: Option<&Membership>) {
        self.member = membership.map(|Membership { incarnation, ballot, view }| Member {
            incarnation: *incarnation,
            ballot: *ballot,
            view: view.number(),
            members: view.members().iter().map(|member| (member.host, member.incarnation)).collect(),
        });
    }

    /// Stored when this returns, in place of the one before.
    pub(super) fn store(&self, dir: &Path) -> Result<(), LogError> {
        let mut text = toml::to_string(self).expect("numbers and names");
        let sum = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("{SUM}{sum:08x}\n"));
        let path = dir.join(NAME);
        files::replace(&path, &path.with_extension("new"), text.as_bytes()).map_err(|why| LogError::Io { path, why })
    }
}
