// SPDX-License-Identifier: Apache-2.0
//! Files of topologies and requests, whatever is in them: read, or refused with the place or the thing that is wrong.

use fide_planner::{
    Planner,
    file::{FILE_MAX_BYTES, FileError, parse},
};
use proptest::prelude::*;

const FILES: [&str; 3] = [
    include_str!("../../../../examples/plan/pair.toml"),
    include_str!("../../../../examples/plan/leaf-spine.toml"),
    include_str!("../../../../examples/fat-tree-k8.toml"),
];

/// An error says where or what; a file that is read can be planned with.
fn read(text: &str) -> Result<(), TestCaseError> {
    match parse(text) {
        Err(FileError::Toml(said)) => {
            // What is missing from a table has a place, what is missing from the whole file none.
            prop_assert!(said.contains("line ") && said.contains("column "), "{}", said);
        }
        Err(error) => {
            let said = error.to_string();
            prop_assert!(said.len() > 15 && said.len() < 600, "{}", said);
        }
        Ok(file) => {
            let _ = file.rates.check();
            if let Ok(mut planner) = Planner::new(file.topology, file.limits) {
                for request in file.requests.into_iter().take(3) {
                    if let Err(refusal) = planner.request(request) {
                        prop_assert!(refusal.to_string().len() > 10);
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_examples_are_read_and_held() {
    for text in FILES {
        let file = parse(text).unwrap();
        file.rates.check().unwrap();
        let mut planner = Planner::new(file.topology, file.limits).unwrap();
        for request in file.requests {
            let name = request.name.clone();
            planner.request(request).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        }
    }
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let error = parse(&" ".repeat(FILE_MAX_BYTES + 1)).unwrap_err();
    assert_eq!(error, FileError::TooLong(FILE_MAX_BYTES + 1));
}

/// What numbers become.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("nan".to_owned()),
        Just("inf".to_owned()),
        Just("1e308".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("true".to_owned()),
        Just("\"\"".to_owned()),
        Just("[]".to_owned()),
        any::<u8>().prop_map(|n| n.to_string()),
        any::<u32>().prop_map(|n| n.to_string()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_refused_or_read(text in any::<String>()) {
        read(&text)?;
    }

    #[test]
    fn anything_that_looks_like_a_file_is_refused_or_read(
        lines in prop::collection::vec(
            "(\\[\\[?(host|switch|cable|request|limits|topology|rates|cables|x)\\]?\\]|\
              (name|a|b|k|tier|groups|hosts|spines|homing|sender|generator) = (\"(h[12]|fat_tree|leaf_spine|)\"|[0-9]{1,2}|-1|1.5))",
            0..14,
        ),
    ) {
        read(&lines.join("\n"))?;
    }

    #[test]
    fn a_file_with_bytes_changed_is_refused_or_read(
        which in 0..2_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..8),
    ) {
        let mut bytes = FILES[which].as_bytes().to_vec();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte & 0x7f,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte & 0x7f),
            }
        }
        read(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn a_file_with_lines_gone_or_twice_is_refused_or_read(
        which in 0..2_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..5),
    ) {
        let mut lines: Vec<&str> = FILES[which].lines().collect();
        for (at, to, gone) in changes {
            let at = at.index(lines.len());
            let line = lines[at];
            if gone {
                lines.remove(at);
            } else {
                lines.insert(to.index(lines.len()), line);
            }
        }
        read(&lines.join("\n"))?;
    }

    #[test]
    fn a_file_with_other_values_is_refused_or_read(
        which in 0..2_usize,
        at in any::<prop::sample::Index>(),
        value in number(),
    ) {
        let lines: Vec<&str> = FILES[which].lines().collect();
        let keys: Vec<usize> = (0..lines.len()).filter(|n| lines[*n].contains(" = ")).collect();
        let chosen = keys[at.index(keys.len())];
        let changed = lines.iter().enumerate().map(|(n, line)| match line.split_once(" = ") {
            Some((key, _)) if n == chosen => format!("{key} = {value}"),
            _ => (*line).to_owned(),
        });
        read(&changed.collect::<Vec<_>>().join("\n"))?;
    }
}
