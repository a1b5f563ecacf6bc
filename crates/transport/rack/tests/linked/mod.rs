// SPDX-License-Identifier: Apache-2.0
//! Two hosts in one process: the proxies of a link with one partition, turned by hand, and connections of their programs.
#![allow(dead_code, reason = "not every test uses all")]

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use fide_rack::{
    end::End,
    link::{App, Cut, Layout, Slices, Turn, rx::Rx, tx::Tx},
    shm::ShmWindow,
    window::WORD,
};
use rustix::net::{SendFlags, send};

/// Of a program's window.
pub(crate) const WORDS: usize = 1 << 12;
/// Of the link's.
pub(crate) const LINK_WORDS: usize = 1 << 16;
/// With room for two partitions.
pub(crate) type Link = Arc<ShmWindow<{ 2 * LINK_WORDS }>>;

const RESETS: u32 = 1;
const IS_CARRIED: u32 = 2;
const IS_GONE: u32 = 4;
const KNOWS: u32 = 8;

/// A program as its proxy has it.
#[derive(Debug)]
pub(crate) struct Has {
    window: ShmWindow<WORDS>,
    socket: Option<TcpStream>,
    state: AtomicU32,
    pub(crate) wakes: AtomicU32,
}

#[derive(Debug, Clone)]
pub(crate) struct Program(pub(crate) Arc<Has>);

impl Program {
    pub(crate) fn new(window: ShmWindow<WORDS>, socket: Option<TcpStream>) -> Self {
        Self(Arc::new(Has { window, socket, state: AtomicU32::new(0), wakes: AtomicU32::new(0) }))
    }

    fn is(&self, bit: u32) -> bool {
        self.0.state.load(SeqCst) & bit != 0
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.is(RESETS)
    }

    pub(crate) fn has_carried(&self) -> bool {
        self.is(IS_CARRIED)
    }

    pub(crate) fn dies(&self) {
        self.0.state.fetch_or(IS_GONE, SeqCst);
    }
}

impl App for Program {
    type Window = ShmWindow<WORDS>;

    fn window(&self) -> &Self::Window {
        &self.0.window
    }

    fn is_woken_over_tcp(&self) -> bool {
        self.0.socket.is_some()
    }

    fn wakes(&self) {
        self.0.wakes.fetch_add(1, SeqCst);
        if let Some(socket) = &self.0.socket {
            let _ = send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    fn resets(&self) {
        self.0.state.fetch_or(RESETS, SeqCst);
    }

    fn is_gone(&self) -> bool {
        self.is(IS_GONE)
    }

    fn opens(&self) {
        fide_rack::carry::reads_ring(self.window());
    }

    fn knows_over_tcp(&self) {
        self.0.state.fetch_or(KNOWS, SeqCst);
    }

    fn is_known_over_tcp(&self) -> bool {
        self.is(KNOWS)
    }

    fn is_carried(&self) {
        self.0.state.fetch_or(IS_CARRIED, SeqCst);
    }

    fn is_over(&self) -> bool {
        self.is(RESETS | IS_CARRIED)
    }
}

/// One host's proxy.
pub(crate) struct Proxy {
    pub(crate) link: Link,
    pub(crate) tx: Tx<Program>,
    pub(crate) rx: Rx<Program>,
}

impl Proxy {
    pub(crate) fn turn(&mut self) -> Result<Turn, Cut> {
        let sent = self.tx.turn(&*self.link, |_, _| {})?;
        Ok(self.rx.turn(&*self.link, &mut ())?.and(sent))
    }

    pub(crate) fn adds(&mut self, connection: u32, program: &Program) {
        self.tx.adds(connection, program.clone());
        self.rx.adds(connection, program.clone());
    }
}

pub(crate) fn proxies(slices: Slices) -> [Proxy; 2] {
    let partition = Layout::new(LINK_WORDS * WORD, 1).unwrap().partition(0);
    let mut keys = [5, 6];
    ShmWindow::pair().unwrap().map(|link| {
        let proxy = Proxy {
            tx: Tx::new(&link, partition, 0, keys, slices),
            rx: Rx::new(&link, partition, 0, keys),
            link: Arc::new(link),
        };
        keys.reverse();
        proxy
    })
}

/// Of each host, two partitions of one link.
pub(crate) fn partitions() -> [Vec<Proxy>; 2] {
    let layout = Layout::new(2 * LINK_WORDS * WORD, 2).unwrap();
    let ends = ShmWindow::<{ 2 * LINK_WORDS }>::pair().unwrap().map(std::sync::Arc::new);
    let mut keys = [5, 6];
    ends.map(|link| {
        let both = (0..2).map(|number| {
            let place = layout.partition(number);
            let link = Arc::clone(&link);
            let number = u32::try_from(number).unwrap();
            let slices = Slices { bytes: 3000, ahead: 2 };
            let (tx, rx) = (Tx::new(&*link, place, number, keys, slices), Rx::new(&*link, place, number, keys));
            Proxy { link, tx, rx }
        });
        let both = both.collect();
        keys.reverse();
        both
    })
}

/// One that calls the crate: its window.
pub(crate) fn program() -> (ShmWindow<WORDS>, Program) {
    let [ours, theirs] = ShmWindow::pair().unwrap();
    (theirs, Program::new(ours, None))
}

/// A connection of programs that call the crate: their windows.
pub(crate) fn stream(proxies: &mut [Proxy; 2], connection: u32) -> ([ShmWindow<WORDS>; 2], [Program; 2]) {
    let both = proxies.each_mut().map(|proxy| {
        let [ours, theirs] = ShmWindow::pair().unwrap();
        let program = Program::new(ours, None);
        proxy.adds(connection, &program);
        (theirs, program)
    });
    let [(here, first), (there, second)] = both;
    ([here, there], [first, second])
}

/// One that stands over TCP, and is to go over: its ends, and the windows that they may be given.
pub(crate) struct Between {
    pub(crate) ends: [End<ShmWindow<WORDS>>; 2],
    pub(crate) sockets: [TcpStream; 2],
    pub(crate) windows: [Option<ShmWindow<WORDS>>; 2],
    pub(crate) programs: [Program; 2],
}

pub(crate) fn between() -> Between {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let sockets = [socket, listener.accept().unwrap().0];
    let both = sockets.each_ref().map(|socket| {
        socket.set_nodelay(true).unwrap();
        let [ours, theirs] = ShmWindow::pair().unwrap();
        fide_rack::link::is_of_link(&ours);
        (Some(theirs.silent()), Program::new(ours.silent(), Some(socket.try_clone().unwrap())))
    });
    let [(here, first), (there, second)] = both;
    let ends = [End::new().unwrap(), End::new().unwrap()];
    Between { ends, sockets, windows: [here, there], programs: [first, second] }
}
