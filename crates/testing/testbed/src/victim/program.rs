// SPDX-License-Identifier: Apache-2.0
//! The program `fide-victim`.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

const USAGE: &str = "usage: fide-victim [--resident-mib N] [--threads N] [--tcp ADDR:PORT] [--exit-code N]

Holds N MiB of touched memory and a TCP connection, prints `ready`, and lives until something kills it or its standard
input ends. SIGUSR1: it commits a SIGSEGV. SIGUSR2: it exits with the code (default 0).";
const MAX_RESIDENT_MIB: usize = 16 * 1024;
const MAX_THREADS: usize = 256;

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    resident_mib: usize,
    threads: usize,
    tcp: Option<SocketAddr>,
    exit_code: u8,
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} wants a value"))?;
        let bad = |wanted: &str| format!("{flag} wants {wanted}, not `{value}`");
        match flag.as_str() {
            "--resident-mib" => {
                options.resident_mib = value
                    .parse()
                    .ok()
                    .filter(|n| *n <= MAX_RESIDENT_MIB)
                    .ok_or_else(|| bad(&format!("0 to {MAX_RESIDENT_MIB} MiB")))?;
            }
            "--threads" => {
                options.threads = value
                    .parse()
                    .ok()
                    .filter(|n| *n <= MAX_THREADS)
                    .ok_or_else(|| bad(&format!("0 to {MAX_THREADS} threads")))?;
            }
            "--tcp" => options.tcp = Some(value.parse().map_err(|_| bad("an ADDR:PORT"))?),
            "--exit-code" => options.exit_code = value.parse().map_err(|_| bad("0 to 255"))?,
            _ => return Err(format!("there is no {flag}")),
        }
    }
    Ok(options)
}

/// The whole program: `args` without its name.
pub fn run(args: &[String]) -> ExitCode {
    let options = match parse(args) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("fide-victim: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let Err(e) = live(&options);
    eprintln!("fide-victim: {e}");
    ExitCode::FAILURE
}

fn live(options: &Options) -> std::io::Result<Infallible> {
    // A core dump would delay the death that is to be measured.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none)?;
    let signals = blocked_signals()?;
    touch_memory(options.resident_mib)?;
    let _connection = options.tcp.map(TcpStream::connect).transpose()?;
    for _ in 0..options.threads {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    }
    println!("ready");
    std::io::stdout().flush()?;
    // One thread does all the waiting: a second one would have to be woken and to die too before the process
    // is dead.
    let stdin = std::io::stdin();
    loop {
        let mut ready = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        poll(&mut ready, None)?;
        if ready[0].revents().contains(PollFlags::IN) {
            match next_signal(&signals)? {
                libc::SIGUSR1 => commit_segv(),
                // Nothing is closed here: the kernel does that when the process is dead.
                libc::SIGUSR2 => std::process::exit(options.exit_code.into()),
                _ => {}
            }
        } else if stdin.lock().read(&mut [0; 64])? == 0 {
            // The pipe ends when the program that started this one is gone.
            std::process::exit(0);
        }
    }
}

/// A descriptor from which SIGUSR1 and SIGUSR2 are read. They are blocked from now on, also in threads that
/// start later.
fn blocked_signals() -> std::io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain memory that sigemptyset fills before anything reads it; the calls only touch the set
    // and this thread's mask; the descriptor is ours alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigaddset(&mut set, libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The number of the next signal.
fn next_signal(signals: &OwnedFd) -> std::io::Result<i32> {
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(signals, &mut record)?;
    // `ssi_signo` is its first field.
    Ok(i32::from_ne_bytes([record[0], record[1], record[2], record[3]]))
}

fn commit_segv() {
    // SAFETY: raise has no preconditions; SIGSEGV's default action ends the process, as a bad access would.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
}

fn touch_memory(mib: usize) -> std::io::Result<()> {
    if mib == 0 {
        return Ok(());
    }
    let bytes = mib << 20;
    // SAFETY: a fresh private mapping at an address of the kernel's choice, never unmapped.
    let memory = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?.cast::<u8>()
    };
    // Pages are touched in random order, as in a heap that has been in use for long. On a freshly booted
    // machine, memory that is touched in order is contiguous, and is freed in half the time that a Redis of
    // that size takes.
    let page_bytes = rustix::param::page_size();
    let mut pages: Vec<usize> = (0..bytes / page_bytes).collect();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for last in (1..pages.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        pages.swap(last, (random % (last as u64 + 1)) as usize);
    }
    for page in pages {
        // SAFETY: inside the mapping, which nobody else knows of.
        unsafe { memory.add(page * page_bytes).write_volatile(1) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let args: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&args)
    }

    #[test]
    fn options_are_read() {
        let all = parsed("--resident-mib 64 --threads 2 --tcp 10.70.1.1:90 --exit-code 7").unwrap();
        assert_eq!((all.resident_mib, all.threads, all.exit_code), (64, 2, 7));
        assert_eq!(all.tcp, Some("10.70.1.1:90".parse().unwrap()));
        assert_eq!(parsed(""), Ok(Options::default()));
    }

    #[test]
    fn bad_options_have_a_hint() {
        assert!(parsed("--resident-mib 99999").unwrap_err().contains("16384"));
        assert!(parsed("--tcp here").unwrap_err().contains("ADDR:PORT"));
        assert!(parsed("--exit-code").unwrap_err().contains("wants a value"));
        assert!(parsed("--size 1").unwrap_err().contains("no --size"));
    }
}
