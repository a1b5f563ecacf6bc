// SPDX-License-Identifier: Apache-2.0
//! A program that keeps the lock which the kernel has for each socket: whoever asks the kernel about this socket waits.

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    thread,
    time::Duration,
};

use fide_rack::meet::{
    ask::{Asks, Told},
    monitor::Monitor,
};
use fide_sys::tcp::keeps_syn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// `UFFDIO_API` and `UFFDIO_REGISTER` of `<linux/userfaultfd.h>`, and what they are given.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFD_API: u64 = 0xaa;
const MODE_MISSING: u64 = 1;

/// A page that nobody gives to those who read it, until this is dropped.
struct Page {
    _faults: OwnedFd,
    at: usize,
}

const PAGE: usize = 4096;

impl Page {
    /// None: the kernel does not let this user have one.
    fn new() -> Option<Self> {
        // SAFETY: takes numbers, and returns a descriptor or -1.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let faults = i32::try_from(faults).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: it is new.
        let faults = unsafe { OwnedFd::from_raw_fd(faults) };
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.addr();
        let mut api = [UFFD_API, 0, 0];
        let mut register = [at as u64, PAGE as u64, MODE_MISSING, 0];
        // SAFETY: both are as long as the kernel wants them.
        let is_done = unsafe {
            libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) == 0
                && libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) == 0
        };
        is_done.then_some(Self { _faults: faults, at })
    }
}

/// Sends the page, and so keeps the lock of the socket until the page is there.
fn sticks(socket: &TcpStream, page: &Page) -> thread::JoinHandle<()> {
    let (socket, at) = (socket.try_clone().unwrap(), page.at);
    let (tells, told) = std::sync::mpsc::channel();
    let sends = thread::spawn(move || {
        // SAFETY: takes a number.
        tells.send(unsafe { libc::gettid() }).unwrap();
        // SAFETY: the kernel reads it, or says that it cannot.
        unsafe { libc::send(socket.as_raw_fd(), std::ptr::without_provenance(at), PAGE, libc::MSG_NOSIGNAL) };
    });
    let thread = told.recv().unwrap();
    // It sleeps in the kernel.
    while !std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"))
        .is_ok_and(|call| call.starts_with("44 "))
    {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(20));
    sends
}

/// The next answer, if one comes: each wait is short, should this process be stopped for a while.
fn told(asks: &Asks) -> Option<Told> {
    let slice = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let mut fds = [PollFd::new(asks, PollFlags::IN)];
    (0..1000).any(|_| poll(&mut fds, Some(&slice)).unwrap() > 0).then(|| asks.told().unwrap().unwrap())
}

fn connection(listener: &TcpListener) -> [TcpStream; 2] {
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [here, listener.accept().unwrap().0]
}

/// A client of a server does so, and asks. What the server asks about other connections is answered.
#[test]
fn program_that_keeps_the_lock_of_its_socket_holds_nobody_up() {
    let Some(page) = Page::new() else {
        return eprintln!("not tested: this user may not use userfaultfd");
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rack.sock");
    let monitor = Monitor::start(&path).unwrap();
    let [hostile, server, client] = [(); 3].map(|()| Asks::connect(&path).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    keeps_syn(&listener).unwrap();
    let [stuck, accepted] = connection(&listener);
    hostile.ask(&stuck).unwrap();
    while monitor.waiting() == 0 {
        thread::yield_now();
    }
    let sends = sticks(&stuck, &page);
    let asked_stuck = server.ask(&accepted).unwrap();
    let [here, there] = connection(&listener);
    let (asked_here, asked_there) = (client.ask(&here).unwrap(), server.ask(&there).unwrap());
    let answers = [told(&client), told(&server)];
    let is_paired = |told: &Option<Told>, asked| matches!(told, Some(Told::Paired { id, .. }) if *id == asked);
    assert!(is_paired(&answers[0], asked_here) && is_paired(&answers[1], asked_there), "{answers:?}");
    // And it takes its question about that connection back.
    server.cancel(asked_stuck).unwrap();
    let waiting = || monitor.waiting();
    assert!((0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        waiting() == 1
    }));
    drop(page);
    sends.join().unwrap();
}
