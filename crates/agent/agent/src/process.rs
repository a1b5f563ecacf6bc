// SPDX-License-Identifier: Apache-2.0
//! Local processes by pid and start time, which together never name two processes.

use fide_types::ProcessState;
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags},
};

/// An exit status that is not known.
pub const STATUS_UNKNOWN: i32 = ProcessState::STATUS_UNKNOWN;

/// A process that was alive when it was opened. Its pidfd keeps the pid from meaning another process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_ticks: u64,
    uid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens a live process.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process any more.
    pub fn open(pid: u32) -> io::Result<Self> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = rustix::process::pidfd_open(id, PidfdFlags::empty())?;
        let stat = Stat::read(pid).ok_or_else(gone)?;
        let uid = Users::of(pid).ok_or_else(gone)?.effective;
        let process = Self { pid, start_ticks: stat.start_ticks, uid, pidfd };
        // The data read belongs to the opened process only if that one is still there.
        if process.has_exited() { Err(gone()) } else { Ok(process) }
    }

    /// A process that the agent before had opened.
    #[must_use]
    pub fn take_over(pid: u32, start_ticks: u64, uid: u32, pidfd: OwnedFd) -> Self {
        Self { pid, start_ticks, uid, pidfd }
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start after boot, in ticks of 10 ms.
    #[must_use]
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Effective user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether its last thread has left.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// How it ended, as wait(2) reports it; [`STATUS_UNKNOWN`] if the kernel does not show it to strangers.
    #[must_use]
    pub fn exit_status(&self) -> i32 {
        // The stat of a zombie that is not reaped yet has the status; after that the pidfd has it (Linux
        // 6.15).
        match Stat::read(self.pid) {
            Some(stat) if stat.start_ticks == self.start_ticks && stat.state == b'Z' => stat.exit_code,
            _ => self.reaped_status().unwrap_or(STATUS_UNKNOWN),
        }
    }

    fn reaped_status(&self) -> Option<i32> {
        // include/uapi/linux/pidfd.h: struct pidfd_info of 64 bytes, exit_code the last of its 32-bit fields.
        #[repr(C)]
        #[derive(Default)]
        struct Info {
            mask: u64,
            cgroupid: u64,
            ids: [u32; 11],
            exit_code: i32,
        }
        const INFO_EXIT: u64 = 1 << 3;
        const GET_INFO: libc::c_ulong = 0xc040_ff0b; // _IOWR(0xff, 11, struct pidfd_info)
        const _: () = assert!(size_of::<Info>() == 64);
        let mut info = Info { mask: INFO_EXIT, ..Info::default() };
        // SAFETY: `info` is writable for the 64 bytes that the request's number names.
        let result = unsafe { libc::ioctl(self.pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
        (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for Process {
    /// The pidfd: readable once the process has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

struct Stat {
    state: u8,
    start_ticks: u64,
    exit_code: i32,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// proc(5): fields 3 (state), 22 (starttime) and 52 (exit_code). The name in field 2 may hold
    /// anything, so that only its last parenthesis ends it.
    fn parse(text: &[u8]) -> Option<Self> {
        let after = text.iter().rposition(|byte| *byte == b')')? + 2;
        let fields: Vec<&str> = str::from_utf8(text.get(after..)?).ok()?.split_ascii_whitespace().collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            start_ticks: fields.get(22 - 3)?.parse().ok()?,
            exit_code: fields.get(52 - 3)?.parse().ok()?,
        })
    }
}

/// A process' users. A daemon of root that acts for a user has that user's effective id for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Users {
    pub real: u32,
    pub effective: u32,
    pub saved: u32,
}

impl Users {
    /// proc(5): real, effective, saved and file system id.
    fn parse(status: &str) -> Option<Self> {
        let mut ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace();
        let mut next = || ids.next()?.parse().ok();
        Some(Self { real: next()?, effective: next()?, saved: next()? })
    }

    /// The ids of a live process.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    /// Whether it is only this user's, and can become another's only by executing a setuid program (sudo,
    /// su). Its registration then stays this user's, until root ends it.
    #[must_use]
    pub fn are_all(self, uid: u32) -> bool {
        [self.real, self.effective, self.saved] == [uid; 3]
    }
}

impl std::fmt::Display for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut ids = vec![self.real, self.effective, self.saved];
        ids.sort_unstable();
        ids.dedup();
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        write!(f, "{} {}", if ids.len() == 1 { "user" } else { "users" }, ids.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn parentheses_in_a_process_name_are_skipped() {
        let mut text = b"42 (a) R ( b) Z".to_vec();
        for field in 4..=52 {
            text.extend_from_slice(format!(" {field}").as_bytes());
        }
        let stat = Stat::parse(&text).expect("parsed");
        assert_eq!((stat.state, stat.start_ticks, stat.exit_code), (b'Z', 22, 52));
        assert!(Stat::parse(b"42 (a").is_none() && Stat::parse(b"").is_none());
    }

    #[test]
    fn exit_of_an_open_process_is_seen() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let process = Process::open(child.id()).expect("alive");
        assert!(!process.has_exited() && process.start_ticks() > 0);
        child.kill().expect("killed");
        while !process.has_exited() {
            std::thread::yield_now();
        }
        assert_eq!(ProcessState::from_wait_status(process.exit_status()), ProcessState::Killed(9), "as a zombie");
        child.wait().expect("reaped");
        let after = ProcessState::from_wait_status(process.exit_status());
        assert!(matches!(after, ProcessState::Killed(9) | ProcessState::Exited(STATUS_UNKNOWN)), "{after:?}");
    }

    #[test]
    fn pid_that_has_gone_is_esrch() {
        let mut child = Command::new("true").spawn().expect("true");
        child.wait().expect("reaped");
        assert_eq!(Process::open(child.id()).expect_err("gone").raw_os_error(), Some(libc::ESRCH));
        assert!(Process::open(0).is_err() && Process::open(u32::MAX).is_err());
    }

    #[test]
    fn process_belongs_to_a_user_once_all_its_ids_do() {
        let users = |ids: &str| Users::parse(&format!("Name:\tsmbd\nUid:\t{ids}\nGid:\t0\t0\t0\t0\n")).expect("read");
        for others in ["0\t7\t7\t7", "7\t0\t7\t7", "7\t7\t0\t7"] {
            assert!(!users(others).are_all(7));
            assert_eq!(users(others).to_string(), "users 0 and 7");
        }
        assert!(users("7\t7\t7\t7").are_all(7));
        assert_eq!(users("7\t7\t7\t7").to_string(), "user 7");
        assert!(Users::parse("Uid:\t7\t7").is_none() && Users::parse("").is_none());
    }
}
