// SPDX-License-Identifier: Apache-2.0
//! The other end, as a process of its own on a core of its own.

use std::{
    hint::black_box,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fide_rack::{
    shm::ShmWindow,
    stream,
    window::{WORD, Window},
};
use fide_testbed::{end_within, sys::bind_to_core};
use serde::{Deserialize, Serialize};

use crate::proxied::Proxy;

/// A mebibyte for each direction.
pub(crate) type Memory = ShmWindow<{ (1 << 20) / 8 }>;

/// Of the floor: this word there, and this one back.
pub(crate) const WORD_AT: usize = 0;
/// A peer that has not ended so long after its connection has failed.
const LIMIT: Duration = Duration::from_secs(20);

/// What a peer does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Sends back what comes.
    Echo,
    /// The same of a word.
    Floor,
    TcpEcho,
    BusyTcpEcho,
    /// Reads so many bytes at a time.
    Sink(usize),
    TcpSink(usize),
    /// Carries what a program writes to another host, and back.
    Proxy(Proxy),
    /// Sums up the words that come, of so many bytes that it reads at a time.
    Sum(usize),
    /// Sums them up where they lie.
    BorrowedSum,
}

#[derive(Debug, Serialize, Deserialize)]
struct Spec {
    role: Role,
    to: Option<SocketAddr>,
    core: usize,
}

/// A process that is killed if nobody has seen its end.
pub(crate) struct Peer(Child);

impl Peer {
    pub(crate) fn start(core: usize, role: Role, to: Option<SocketAddr>, memory: Option<OwnedFd>) -> Result<Self> {
        let program = std::env::current_exe().context("where this program is")?;
        let mut command = Command::new(program);
        command.arg("peer").arg(serde_json::to_string(&Spec { role, to, core })?);
        // The memory is its standard input.
        command.stdin(memory.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::null());
        Ok(Self(command.spawn().context("starting the other end")?))
    }

    pub(crate) fn with_memory(core: usize, role: Role) -> Result<(Self, Memory)> {
        let ([here, _], memory) = Memory::pair_and_descriptor()?;
        Ok((Self::start(core, role, None, Some(memory))?, here))
    }

    pub(crate) fn connecting(core: usize, role: Role, to: SocketAddr) -> Result<Self> {
        Self::start(core, role, Some(to), None)
    }

    /// What its threads have computed.
    pub(crate) fn computed_ns(&self) -> Result<u64> {
        let path = format!("/proc/{}/schedstat", self.0.id());
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        text.split(' ').next().and_then(|word| word.parse().ok()).with_context(|| format!("{path}: {text:?}"))
    }

    pub(crate) fn end(mut self) -> Result<()> {
        let status = end_within(&mut self.0, LIMIT)?;
        ensure!(status.success(), "the other end has ended with {status}");
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket that does not block, whose user looks again and again.
pub(crate) struct Busy<'a>(pub(crate) &'a TcpStream);

fn again(mut act: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match act() {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            result => return result,
        }
    }
}

impl Read for Busy<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        again(|| self.0.read(into))
    }
}

impl Write for Busy<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn echo(reads: &mut impl Read, writes: &mut impl Write) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match reads.read(&mut buffer)? {
            0 => return Ok(()),
            count => writes.write_all(&buffer[..count])?,
        }
    }
}

fn sink(reads: &mut impl Read, bytes: usize) -> Result<()> {
    let mut buffer = vec![0; bytes];
    loop {
        match reads.read_exact(&mut buffer) {
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
    }
}

/// Words as they are made, and read.
fn sum(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<WORD>().0.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

fn sums(mut reads: impl Read, bytes: usize) -> Result<()> {
    let mut buffer = vec![0; bytes];
    loop {
        match reads.read(&mut buffer)? {
            0 => return Ok(()),
            count => _ = black_box(sum(&buffer[..count])),
        }
    }
}

fn sums_borrowed(mut reads: stream::ReadHalf<Memory>) -> Result<()> {
    loop {
        let borrowed = reads.borrow()?;
        if borrowed.is_empty() {
            return Ok(());
        }
        black_box(borrowed.words().fold(0, u64::wrapping_add));
    }
}

/// The process.
///
/// # Errors
/// The sockets', the memory's, or a role that is none.
pub(crate) fn run(spec: &str) -> Result<()> {
    let spec: Spec = serde_json::from_str(spec).with_context(|| format!("what the other end is to do: {spec:?}"))?;
    bind_to_core(None, spec.core)?;
    let memory = || -> Result<Memory> { Ok(Memory::open(io::stdin(), false)?) };
    let tcp = || -> Result<TcpStream> {
        let stream = TcpStream::connect(spec.to.context("an address")?)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    match spec.role {
        Role::Echo => {
            let (mut reads, mut writes) = stream::halves(memory()?);
            echo(&mut reads, &mut writes)
        }
        Role::Floor => {
            let (window, mut last) = (memory()?, 0);
            while last != u64::MAX {
                let word = window.poll(WORD_AT);
                if word != last {
                    last = word;
                    window.publish(WORD_AT, word);
                }
                std::hint::spin_loop();
            }
            Ok(())
        }
        Role::TcpEcho => {
            let stream = tcp()?;
            echo(&mut &stream, &mut &stream)
        }
        Role::BusyTcpEcho => {
            let stream = tcp()?;
            stream.set_nonblocking(true)?;
            echo(&mut Busy(&stream), &mut Busy(&stream))
        }
        Role::Sink(bytes) => {
            let (mut reads, _writes) = stream::halves(memory()?);
            sink(&mut reads, bytes)
        }
        Role::TcpSink(bytes) => sink(&mut tcp()?, bytes),
        Role::Proxy(proxy) => proxy.run(),
        Role::Sum(bytes) => sums(stream::halves(memory()?).0, bytes),
        Role::BorrowedSum => sums_borrowed(stream::halves(memory()?).0),
    }
}
