// SPDX-License-Identifier: Apache-2.0
//! A short time slice for the thread that waits.

use rustix::io::Errno;

/// The shortest slice the kernel grants (Linux 6.12: 0.1 ms).
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of `sched_setattr(2)`, first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks the scheduler to run the calling thread soon after it is woken. The thread gets short slices, and
/// so may take the core from a thread in the middle of a long one, such as the very process whose 512 MiB
/// are being freed. Needs no privilege; a thread that computes for long is switched a few more times. For
/// the thread that calls [`crate::Client::wait_event`].
///
/// # Errors
/// The kernel's: `EINVAL` before Linux 6.12, where the slice cannot be chosen, and for a thread that is not
/// of the ordinary policy. Nothing is changed then.
pub fn wake_eagerly() -> Result<(), Errno> {
    // SAFETY: sched_getscheduler(2) and getpriority(2) read the calling thread's attributes.
    let (policy, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_OTHER {
        return Err(Errno::INVAL);
    }
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime_ns: SLICE_NS,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: `attr` is readable for the size it names; thread 0 is the calling one.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_thread_may_ask_and_keeps_its_policy() {
        std::thread::spawn(|| {
            let asked = wake_eagerly();
            assert!(matches!(asked, Ok(()) | Err(Errno::INVAL)), "{asked:?}");
            // SAFETY: reads the calling thread's policy.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER);
        })
        .join()
        .expect("no panic");
    }
}
