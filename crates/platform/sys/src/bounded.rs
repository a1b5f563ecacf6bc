// SPDX-License-Identifier: Apache-2.0
//! Reads files that a user named. A file without an end (a device, a pipe) is refused, not read until memory is gone.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    path::Path,
};

/// The bytes of a file that has at most `max`.
///
/// # Errors
/// The kernel's; `InvalidData` for a longer file.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let why = format!("the file is too long: it has more than {max} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// The text of a file that has at most `max` bytes.
///
/// # Errors
/// Those of [`read`]; `InvalidData` if it is no UTF-8.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("no text (UTF-8) from byte {at} on"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_up_to_its_bound_and_no_further() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, "123").expect("written");
        assert_eq!(read_text(&path, 3).expect("read"), "123");
        for (path, max) in [(path.as_path(), 2), (Path::new("/dev/zero"), 1 << 20)] {
            let error = read(path, max).expect_err("too long");
            assert_eq!(error.to_string(), format!("the file is too long: it has more than {max} bytes"));
        }
        std::fs::write(&path, [b'a', 0xff]).expect("written");
        assert!(read_text(&path, 2).expect_err("no text").to_string().ends_with("from byte 1 on"));
    }
}
