// SPDX-License-Identifier: Apache-2.0
//! Logs of `fide jitter ping`, read.

use std::{fs::File, io::BufReader, path::Path};

use fide_jitter_analysis::{Ending, Log, read_log};

use crate::{
    exit::{Failure, USAGE},
    say::say,
};

/// Reads a log. What is missing of it is said on standard error, and among the conditions for whoever reads the report.
pub fn open(path: &Path) -> Result<Log, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::new(USAGE, anyhow::anyhow!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
    let mut log = read_log(BufReader::new(file)).map_err(|error| named(&error))?;
    if let Ending::CutOff { .. } = log.ending {
        say!("fide: {}: {}", path.display(), log.ending);
        let conditions = &mut log.info.isolation;
        conditions.insert("log".to_owned(), log.ending.to_string());
        // Nobody to blame is another thing.
        if let Some(culprits) = conditions.get_mut("culprits").filter(|_| log.events.is_empty()) {
            *culprits = format!("{culprits}, but the log was cut off before them");
        }
    }
    Ok(log)
}
