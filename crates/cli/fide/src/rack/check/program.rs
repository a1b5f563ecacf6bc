// SPDX-License-Identifier: Apache-2.0
//! A program, by its files: the script, its interpreter, and the libraries that it needs.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use serde_json::{Value, json};

use super::{
    Finding,
    elf::{Elf, read_up_to},
    listed, needed, shown,
};
use crate::exit::{Failure, NOT_PERMITTED, USAGE};

/// Bytes of a script that the kernel looks at.
const HEAD_BYTES: usize = 256;
/// Scripts whose interpreter is a script: the kernel follows as many.
const SCRIPTS_MAX: usize = 5;
/// The extended attribute that gives a program capabilities.
const CAPABILITIES: &str = "security.capability";
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Functions of the C library that read or write sockets without the library seeing it, or that it leaves alone, and what becomes of
/// connections that meet them.
const UNSEEN: &[(&[&str], &str)] = &[
    // The library follows it on that machine.
    #[cfg(not(target_arch = "x86_64"))]
    (&["dprintf", "__dprintf_chk"], "must not write to a connection: its bytes are not seen"),
    (
        &["aio_read", "aio_write", "aio_read64", "aio_write64", "lio_listio", "lio_listio64"],
        "must not be used with a connection: its bytes are not seen",
    ),
];

/// What is known of a program before it is started.
pub(in super::super) struct Judged {
    /// Scripts, and at last the program that the kernel loads.
    pub(in super::super) files: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
    pub(in super::super) findings: Vec<Finding>,
}

/// The file that a shell would start.
///
/// # Errors
/// There is none.
fn find(command: &OsStr) -> Result<PathBuf, Failure> {
    if command.as_bytes().contains(&b'/') {
        return Ok(command.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let may_run = |file: &PathBuf| file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok();
    env::split_paths(&path).map(|dir| dir.join(command)).find(may_run).ok_or_else(|| {
        let name = command.display();
        Failure::new(USAGE, anyhow!("{name}: no program of this name is in PATH; name its file, such as ./{name}"))
    })
}

/// Whether there is a file that a shell would start.
pub(in super::super) fn is_there(command: &OsStr) -> bool {
    find(command).is_ok_and(|path| path.exists())
}

/// The first line of a script after `#!`: the interpreter, and the one word or words after it. None: it is no script.
fn interpreter(path: &Path) -> io::Result<Option<(PathBuf, String)>> {
    let mut head = [0; HEAD_BYTES];
    let len = read_up_to(&mut File::open(path)?, &mut head)?;
    let Some(line) = head[..len].strip_prefix(b"#!") else { return Ok(None) };
    let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next().unwrap_or_default()).into_owned();
    let line = line.trim();
    let (program, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    Ok(Some((program.into(), rest.trim().to_owned())))
}

/// The program that env(1) starts with these words, and whether it leaves the environment as it is.
fn by_env(words: &str) -> (Option<&str>, bool) {
    let mut keeps = true;
    let mut words = words.split_whitespace().map(|word| word.strip_prefix("-S").unwrap_or(word));
    let program = words.find(|word| match *word {
        "-i" | "-" | "--ignore-environment" => {
            keeps = false;
            false
        }
        word => !word.is_empty() && !word.starts_with('-') && !word.contains('='),
    });
    (program, keeps)
}

impl Judged {
    /// Looks at a program and what it needs. Nothing of it is run.
    ///
    /// # Errors
    /// It is not there, may not be read, or is no program.
    pub(in super::super) fn of(command: &OsString) -> Result<Self, Failure> {
        let path = find(command)?;
        let mut judged = Self { files: vec![path.clone()], libraries: Vec::new(), findings: Vec::new() };
        let unread = |path: &Path, why: &io::Error| match why.kind() {
            io::ErrorKind::PermissionDenied => Failure::new(
                NOT_PERMITTED,
                anyhow!("{}: {why}: a program is judged by its file, which this user may not read", path.display()),
            ),
            _ => Failure::file(path, why),
        };
        let is_file = |path: &Path| fs::metadata(path).map(|about| about.is_file());
        let mut at = path;
        loop {
            if !is_file(&at).map_err(|why| unread(&at, &why))? {
                return Err(Failure::new(USAGE, anyhow!("{}: this is no file of a program", at.display())));
            }
            if let Some(elf) = Elf::read(&at).map_err(|why| unread(&at, &why))? {
                judged.elf(&at, &elf);
                return Ok(judged);
            }
            let Some((program, words)) = interpreter(&at).map_err(|why| unread(&at, &why))? else {
                let why = "this is neither a program (ELF) nor a script that begins with #!";
                return Err(Failure::new(USAGE, anyhow!("{}: {why}", at.display())));
            };
            let is_env = program.file_name().is_some_and(|name| name == "env");
            at = match by_env(&words) {
                (Some(name), keeps) if is_env => {
                    if !keeps {
                        let why = format!("{} has env clear the environment, and LD_PRELOAD with it", at.display());
                        judged.findings.push(Finding::blocks("environment", why));
                    }
                    find(OsStr::new(name))?
                }
                _ => program,
            };
            if judged.files.len() > SCRIPTS_MAX {
                return Err(Failure::new(
                    USAGE,
                    anyhow!("{}: {SCRIPTS_MAX} scripts are each other's interpreters", at.display()),
                ));
            }
            judged.files.push(at.clone());
        }
    }

    /// The same for a file that is no script: that of a process.
    pub(super) fn of_file(path: &Path) -> io::Result<Self> {
        let mut judged = Self { files: vec![path.to_owned()], libraries: Vec::new(), findings: Vec::new() };
        if let Some(elf) = Elf::read(path)? {
            judged.elf(path, &elf);
        }
        Ok(judged)
    }

    fn blocks(&mut self, code: &'static str, text: String) {
        self.findings.push(Finding::blocks(code, text));
    }

    fn elf(&mut self, path: &Path, elf: &Elf) {
        let name = path.display();
        if !elf.is_ours {
            let (theirs, ours) = (&elf.machine, env::consts::ARCH);
            return self.blocks("architecture", format!("{name} is for {theirs}, and the library for {ours} alone"));
        }
        self.rights(path);
        match elf.linker.as_deref() {
            None => self.blocks("static", format!("{name} is static: nothing is preloaded into it")),
            Some(linker) if !is_glibc(linker) => {
                let whose = if shown(linker).contains("musl") { "musl" } else { "another C library than glibc" };
                self.blocks(
                    "c_library",
                    format!("{name} is for {whose} ({}), into which the library must not be loaded", linker.display()),
                );
            }
            Some(_) => {}
        }
        if elf.is_go {
            self.blocks("go", format!("{name} is of Go, which makes its system calls without the C library"));
        }
        if self.findings.iter().any(|finding| ["static", "c_library"].contains(&finding.code)) {
            return;
        }
        let (libraries, missing) = needed::all(path, elf);
        let all = std::iter::once((path, elf)).chain(libraries.iter().map(|found| (found.path.as_path(), &found.elf)));
        let all: Vec<_> = all.filter(|(path, _)| !is_of_glibc(path)).collect();
        self.findings.extend(unseen(&all));
        if libraries.len() >= needed::LIBRARIES_MAX {
            let text = format!("only the first {} libraries were looked at", needed::LIBRARIES_MAX);
            self.findings.push(Finding::limits("libraries", text));
        }
        if !missing.is_empty() {
            let text = format!("not found, and so not looked at: {}", missing.join(", "));
            self.findings.push(Finding::limits("libraries", text));
        }
        self.libraries = libraries.into_iter().map(|found| found.path).collect();
    }

    /// Programs that the kernel gives more rights than their caller has: nothing is preloaded into them.
    fn rights(&mut self, path: &Path) {
        let Ok(about) = fs::metadata(path) else { return };
        let (me, name) = (rustix::process::geteuid().as_raw(), path.display());
        let (my_group, is_root) = (rustix::process::getegid().as_raw(), me == 0);
        let mut note = |has_more: bool, code, what: String| {
            self.findings.push(match has_more {
                true => Finding::blocks(code, format!("{name} {what}: the dynamic linker preloads nothing into it")),
                false => Finding::limits(code, format!("{name} {what}: it is accelerated for this user alone")),
            });
        };
        if about.mode() & SETUID != 0 {
            note(about.uid() != me, "setuid", format!("is setuid, for user {}", about.uid()));
        }
        if about.mode() & SETGID != 0 {
            note(about.gid() != my_group, "setgid", format!("is setgid, for group {}", about.gid()));
        }
        if rustix::fs::getxattr(path, CAPABILITIES, &mut [0_u8; 64][..]).is_ok_and(|len| len > 0) {
            note(!is_root, "capabilities", "has capabilities of its file".to_owned());
        }
    }

    pub(in super::super) fn is_accelerated(&self) -> bool {
        !self.findings.iter().any(|finding| finding.blocks)
    }

    /// The reasons against it, in one line.
    pub(in super::super) fn against(&self) -> String {
        let against = self.findings.iter().filter(|finding| finding.blocks).map(|finding| finding.text.as_str());
        against.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn text(&self) -> String {
        let files = self.files.iter().map(|path| shown(path)).collect::<Vec<_>>().join(" → ");
        let verdict = if self.is_accelerated() { "accelerated" } else { "not accelerated" };
        format!("{files}: {verdict}{}", listed(&self.findings))
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "accelerated": self.is_accelerated(),
            "files": self.files.iter().map(|path| shown(path)).collect::<Vec<_>>(),
            "libraries": self.libraries.iter().map(|path| shown(path)).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(Finding::object).collect::<Vec<_>>(),
        })
    }
}

/// Whether this is glibc's dynamic linker.
fn is_glibc(linker: &Path) -> bool {
    linker.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

/// Libraries of the C library itself: what they take from each other is theirs.
fn is_of_glibc(path: &Path) -> bool {
    const NAMES: [&str; 9] = [
        "ld-linux",
        "libc.so",
        "libpthread.so",
        "libm.so",
        "libdl.so",
        "librt.so",
        "libresolv.so",
        "libnsl.so",
        "libanl.so",
    ];
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    NAMES.iter().any(|of| name.starts_with(of))
}

/// What files take from others that the library does not see.
fn unseen(files: &[(&Path, &Elf)]) -> Vec<Finding> {
    let takes = |is: &dyn Fn(&str) -> bool| {
        let found = files.iter().filter_map(|(path, elf)| Some((elf.imports.iter().find(|import| is(import))?, path)));
        let (names, files): (Vec<_>, Vec<_>) = found.map(|(name, path)| (name.as_str(), shown(path))).unzip();
        names.first().map(|name| format!("`{name}` (in {})", files.join(", ")))
    };
    let rings = takes(&|name| name.starts_with("io_uring_"));
    let rings = rings.map(|takes| {
        let text =
            format!("{takes}: once it makes a ring, its connections stay with TCP, unless `--io-uring` says otherwise");
        Finding::limits("io_uring", text)
    });
    let limits = UNSEEN.iter().filter_map(|(functions, text)| {
        let takes = takes(&|name| functions.contains(&name))?;
        Some(Finding::limits("calls", format!("{takes}: {text}")))
    });
    rings.into_iter().chain(limits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_env_starts_is_found_among_its_words() {
        assert_eq!(by_env("python3"), (Some("python3"), true));
        assert_eq!(by_env("-S python3 -u"), (Some("python3"), true));
        assert_eq!(by_env("-Spython3 -u"), (Some("python3"), true));
        assert_eq!(by_env("-S A=1 B=2 perl -w"), (Some("perl"), true));
        assert_eq!(by_env("-S -i sh"), (Some("sh"), false));
        assert_eq!(by_env(""), (None, true));
    }

    #[test]
    fn scripts_say_who_runs_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        for (text, says) in [
            ("#!/bin/sh\necho", Some(("/bin/sh", ""))),
            ("#! /usr/bin/env  -S python3 -u \nx", Some(("/usr/bin/env", "-S python3 -u"))),
            ("#!", Some(("", ""))),
            ("echo", None),
            ("", None),
        ] {
            fs::write(&path, text).unwrap();
            let found = interpreter(&path).unwrap();
            let found = found.as_ref().map(|(program, rest)| (program.to_str().unwrap(), rest.as_str()));
            assert_eq!(found, says, "{text}");
        }
    }

    #[test]
    fn io_uring_and_asynchronous_io_are_noted() {
        let elf =
            Elf { imports: vec!["splice".into(), "aio_read".into(), "io_uring_queue_init".into()], ..Elf::default() };
        let files = ["/usr/bin/p", "/usr/lib/libuv.so.1"].map(|path| (Path::new(path), &elf));
        let found = unseen(&files);
        let codes: Vec<_> = found.iter().map(|finding| (finding.code, finding.blocks)).collect();
        assert_eq!(codes, [("io_uring", false), ("calls", false)]);
        assert!(found[0].text.starts_with("`io_uring_queue_init` (in /usr/bin/p, /usr/lib/libuv.so.1)"), "{found:?}");
        assert!(is_of_glibc(Path::new("/lib/libc.so.6")) && !is_of_glibc(Path::new("/lib/libcrypt.so.1")));
        assert!(is_glibc(Path::new("/lib64/ld-linux-x86-64.so.2")) && !is_glibc(Path::new("/lib/ld-musl-x86_64.so.1")));
    }
}
