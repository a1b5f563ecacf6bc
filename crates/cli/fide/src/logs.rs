// SPDX-License-Identifier: Apache-2.0
//! Reads logs of `fide jitter ping`.

use std::{fs::File, io::BufReader, path::Path};

use fide_jitter_analysis::{Ending, Log, read_log};

use crate::{
    exit::{Failure, USAGE},
    say::say,
};

/// Reads a log. If a part of the log is missing, a message on standard error says so, and so does an entry
/// among the conditions, for the readers of the report.
pub fn open(path: &Path) -> Result<Log, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::new(USAGE, anyhow::anyhow!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
    let mut log = read_log(BufReader::new(file)).map_err(|error| named(&error))?;
    if let Ending::CutOff { .. } = log.ending {
        say!("fide: {}: {}", path.display(), log.ending);
        let conditions = &mut log.info.isolation;
        conditions.insert("log".to_owned(), log.ending.to_string());
        // Without this note it would look as if no culprit had been found.
        if let Some(culprits) = conditions.get_mut("culprits").filter(|_| log.events.is_empty()) {
            *culprits = format!("{culprits}, but the log was cut off before them");
        }
    }
    Ok(log)
}
