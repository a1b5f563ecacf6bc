// SPDX-License-Identifier: Apache-2.0
//! A setting that can be changed, and how its values are read, written and compared.

use std::{
    fmt,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    machine::{Coalesce, Machine, Qdisc},
    parse::{Cpus, chosen},
    roots::exact,
};

/// The form in which a file gives its value: for a `3`, the kernel returns `00000003`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A word or number.
    Text,
    /// `always [madvise] never`; only the word in brackets is written.
    Choice,
    /// A mask of CPUs.
    Mask,
    /// A list of CPUs.
    List,
}

/// One setting that can be changed. Its values are text, which is kept byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A file of the kernel.
    File { path: PathBuf, form: Form },
    /// Interrupt coalescing of an interface.
    Coalesce(String),
    /// Root queueing discipline of an interface.
    Qdisc(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Coalesce(interface) => write!(f, "coalescing of {interface}"),
            Self::Qdisc(interface) => write!(f, "qdisc of {interface}"),
        }
    }
}

fn to_json<T: Serialize>(value: &T) -> io::Result<String> {
    serde_json::to_string(value).map_err(io::Error::from)
}

impl Target {
    /// The value now.
    ///
    /// # Errors
    /// The kernel's; also if the value is not text, because it could not be restored.
    pub fn read(&self, machine: &dyn Machine) -> io::Result<String> {
        match self {
            Self::File { path, .. } => {
                let value = exact(path).map_err(|unread| unread.source)?;
                if value.contains('\u{fffd}') {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it holds no text"));
                }
                Ok(value)
            }
            Self::Coalesce(interface) => to_json(&machine.coalesce(interface)?),
            Self::Qdisc(interface) => to_json(&machine.qdisc(interface)?),
        }
    }

    /// Sets a value that [`Target::read`] returned or a plan made.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, machine: &dyn Machine, value: &str) -> io::Result<()> {
        match self {
            Self::File { path, form: Form::Choice } => write(path, chosen(value)),
            Self::File { path, .. } => write(path, value),
            Self::Coalesce(interface) => machine.set_coalesce(interface, &serde_json::from_str::<Coalesce>(value)?),
            Self::Qdisc(interface) => {
                let qdisc: Qdisc = serde_json::from_str(value)?;
                machine.set_qdisc(interface, (!qdisc.by_default).then_some(&qdisc.kind))
            }
        }
    }

    /// Whether two values mean the same.
    #[must_use]
    pub fn same(&self, one: &str, other: &str) -> bool {
        let equal = |parse: fn(&str) -> _| matches!((parse(one), parse(other)), (Ok(one), Ok(other)) if one == other);
        match self {
            _ if one == other => true,
            Self::File { form: Form::Text, .. } => one.trim() == other.trim(),
            Self::File { form: Form::Choice, .. } => chosen(one) == chosen(other),
            Self::File { form: Form::Mask, .. } => equal(Cpus::from_mask),
            Self::File { form: Form::List, .. } => equal(Cpus::from_list),
            Self::Coalesce(_) | Self::Qdisc(_) => false,
        }
    }

    /// The value for people.
    #[must_use]
    pub fn show(&self, value: &str) -> String {
        match self {
            Self::File { form: Form::Choice, .. } => chosen(value).to_owned(),
            Self::File { .. } => match value.trim() {
                "" => "nothing".to_owned(),
                value => value.to_owned(),
            },
            Self::Coalesce(_) => {
                serde_json::from_str::<Coalesce>(value).map_or_else(|_| value.into(), |c| c.to_string())
            }
            Self::Qdisc(_) => serde_json::from_str::<Qdisc>(value).map_or_else(|_| value.into(), |q| q.to_string()),
        }
    }

    /// A value to set on the way back to `before`, so that the effect is restored and not only the value: an
    /// interrupt stays where it is when its mask grows, so it would not return to its core.
    #[must_use]
    pub fn way_back(&self, before: &str) -> Option<String> {
        let Self::File { path, form: Form::Mask } = self else { return None };
        if path.file_name()? != "smp_affinity" {
            return None;
        }
        let effective = exact(&path.with_file_name("effective_affinity")).ok()?;
        let (cpus, before) = (Cpus::from_mask(&effective).ok()?, Cpus::from_mask(before).ok()?);
        (!cpus.is_empty() && cpus != before && cpus.and(&before) == cpus).then_some(effective)
    }
}

/// Writes the value in one write, as the kernel's files require. A missing file is not created.
fn write(path: &Path, value: &str) -> io::Result<()> {
    // Writing no bytes changes nothing.
    let value = if value.is_empty() { "\n" } else { value };
    File::options().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}
