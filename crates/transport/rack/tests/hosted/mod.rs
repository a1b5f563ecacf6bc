// SPDX-License-Identifier: Apache-2.0
//! Two hosts, each with its monitor, and a link between them: a file of shared memory, as a PCI device gives it.
#![allow(dead_code, reason = "not every test uses all")]

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use fide_rack::{
    end::End,
    link::Slices,
    meet::{
        WORDS,
        ask::{Asks, Told},
        monitor::Monitor,
    },
    pci::{PciWindow, Side},
    proxy::Settings,
    shm::ShmWindow,
    window::Bell,
};
use fide_sys::tcp::keeps_syn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const LEN: u64 = 4 << 20;

pub(crate) fn key() -> u64 {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_ne_bytes(bytes)
}

pub(crate) struct Host {
    pub(crate) monitor: Option<Monitor>,
    pub(crate) path: PathBuf,
}

pub(crate) struct Rack {
    pub(crate) hosts: [Host; 2],
    pub(crate) memory: PathBuf,
    _directory: tempfile::TempDir,
}

pub(crate) fn settings(networks: &str, partitions: usize, has_two_threads: bool) -> Settings {
    Settings {
        name: "link".into(),
        networks: vec![networks.parse().unwrap()],
        partitions,
        has_two_threads,
        is_busy: false,
        slices: Slices::default(),
        lost_after: Duration::from_secs(2),
    }
}

pub(crate) fn monitor(path: &Path, memory: &Path, side: Side, settings: Settings) -> Monitor {
    let monitor = Monitor::start(path).unwrap();
    let memory = memory.to_owned();
    let opens = move || PciWindow::open(&memory, side).map_err(io::Error::other);
    monitor.links(settings, opens, key).unwrap();
    monitor
}

pub(crate) fn until<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(is) = is() {
            return is;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn rack_of(networks: &str, partitions: usize, has_two_threads: bool) -> Rack {
    let directory = tempfile::Builder::new().prefix("rack").tempdir_in("/dev/shm").unwrap();
    let memory = directory.path().join("memory");
    File::create_new(&memory).unwrap().set_len(LEN).unwrap();
    let hosts = [("a", Side::First), ("b", Side::Second)].map(|(name, side)| {
        let path = directory.path().join(name);
        let mut settings = settings(networks, partitions, has_two_threads);
        settings.name = name.into();
        Host { monitor: Some(monitor(&path, &memory, side, settings)), path }
    });
    Rack { hosts, memory, _directory: directory }
}

pub(crate) fn rack() -> Rack {
    let rack = rack_of("127.0.0.0/8", 1, false);
    rack.stands();
    rack
}

impl Host {
    pub(crate) fn monitor(&self) -> &Monitor {
        self.monitor.as_ref().unwrap()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.monitor().view().links[0].is_up
    }
}

impl Rack {
    pub(crate) fn stands(&self) {
        until("the link stands", || self.hosts.iter().all(Host::is_up).then_some(()));
    }

    pub(crate) fn connections(&self) -> usize {
        self.hosts
            .iter()
            .flat_map(|host| host.monitor().view().links[0].partitions.clone())
            .map(|of| of.connections)
            .sum()
    }

    /// A connection, its client at the first host.
    pub(crate) fn connection(&self) -> [Program; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        keeps_syn(&listener).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap().0;
        [Program::new(&self.hosts[0], here), Program::new(&self.hosts[1], there)]
    }

    /// One that goes over the link.
    pub(crate) fn carried(&self) -> [Program; 2] {
        let mut programs = self.connection();
        // The client is given memory once the server has taken its own.
        programs.iter_mut().rev().for_each(Program::attaches);
        programs
    }
}

/// With one connection.
pub(crate) struct Program {
    pub(crate) asks: Asks,
    pub(crate) asked: u32,
    pub(crate) end: End<ShmWindow<WORDS>>,
    pub(crate) socket: TcpStream,
}

impl Program {
    pub(crate) fn new(host: &Host, socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        let asks = Asks::connect(&host.path).unwrap();
        let asked = asks.ask(&socket).unwrap();
        Self { asks, asked, end: End::new().unwrap(), socket }
    }

    pub(crate) fn attaches(&mut self) {
        let within = Timespec { tv_sec: LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&self.asks, PollFlags::IN)], Some(&within)), Ok(1), "no answer");
        let told = self.asks.told().unwrap();
        let Some(Told::Paired { id, window }) = told else { panic!("{told:?}") };
        assert!(id == self.asked && self.end.attach(window.silent()).unwrap());
    }

    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let limit = Instant::now() + LIMIT;
        loop {
            if let Some(count) = self.end.read(&self.socket, into, false)? {
                return Ok(count);
            }
            if !self.end.wait(&self.socket, Bell::Message, Some(limit))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    pub(crate) fn reads(&self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut at = 0;
        while at < count {
            at += match self.read(&mut bytes[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => count,
            };
        }
        Ok(bytes)
    }

    pub(crate) fn writes(&self, bytes: &[u8]) -> io::Result<()> {
        let limit = Instant::now() + LIMIT;
        let mut at = 0;
        while at < bytes.len() {
            match self.end.write(&self.socket, &bytes[at..])? {
                Some(count) => at += count,
                None if self.end.wait(&self.socket, Bell::Room, Some(limit))? => {}
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn closes(self) -> Asks {
        self.end.close(&self.socket);
        self.asks
    }
}

pub(crate) fn bytes(count: usize, seed: u64) -> Vec<u8> {
    (0..count as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
