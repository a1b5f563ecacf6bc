// SPDX-License-Identifier: Apache-2.0
//! Loader of the receive program and the agent's side of its maps.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    sync::atomic::{Ordering, fence},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapType, libbpf_sys,
    skel::{OpenSkel, SkelBuilder},
};

use crate::BpfError;
use crate::intf::{
    Admit, CLIENT_RING_BYTES, Config, Gaps, Key, NOTIFY_CLIENT, NOTIFY_WATCH, Notify, Slot, Stats, Watch,
};
use crate::map::MappedArray;
use crate::skel::heartbeat::HeartbeatSkelBuilder;
use crate::xdp::{self, XdpMode};
use fide_types::{HostId, MAX_CLIENTS, MAX_HOSTS, MAX_PLANES, MAX_PROCESSES, ProcessRef, host_index};

/// Attempts at one slot before a reader gives up for this round. The writer holds a slot for less
/// than a microsecond; a reader that meets 64 writes in a row is reading a flood.
const SLOT_READS_MAX: usize = 64;

/// What the receive program must know before the first packet.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This host's id, 1..=members.
    pub me: u16,
    /// Configured members, this host included.
    pub members: u16,
    /// UDP port of the cluster.
    pub port: u16,
    /// Interface of each plane; 0 where a plane is not received here.
    pub ifindex: [u32; MAX_PLANES],
    /// Planes are trees: each may come over any of the interfaces.
    pub any_plane: bool,
    /// Lanes' packets whose tag does not fit are handed on, for their chunks that are whole.
    pub salvage: bool,
    /// Current key.
    pub key: [u8; 16],
}

/// The result of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// The record is in the ring of every client that waits for it.
    Yes,
    /// The clients had been notified of this incarnation's verdict before.
    Before,
    /// At least one ring was full; `Receive::take_undelivered` says whose.
    RingFull,
    /// No such ring or watch.
    Nobody,
}

/// Descriptors that a new agent takes over: maps keep their contents, XDP links stay attached and
/// get the new program, so that no packet falls in between.
pub struct ReceiveFds {
    pub config: OwnedFd,
    pub admits: OwnedFd,
    pub slots: OwnedFd,
    pub watches: OwnedFd,
    pub gaps: OwnedFd,
    pub stats: OwnedFd,
    pub peers: OwnedFd,
    pub outbox: OwnedFd,
    pub wake: OwnedFd,
    pub client_rings: OwnedFd,
    /// One per attached plane, in plane order.
    pub links: Vec<OwnedFd>,
}

/// The loaded receive program. Dropping it detaches XDP.
pub struct Receive {
    config: MappedArray<Config>,
    admits: MappedArray<Admit>,
    slots: MappedArray<Slot>,
    watches: MappedArray<Watch>,
    gaps: MappedArray<Gaps>,
    stats: MappedArray<Stats>,
    outbox: MappedArray<Notify>,
    peers: OwnedFd,
    wake: OwnedFd,
    client_rings: MapHandle,
    program: OwnedFd,
    notify: OwnedFd,
    links: Vec<OwnedFd>,
}

impl Receive {
    /// Loads the program, with fresh maps or with those of a running agent.
    ///
    /// # Errors
    /// [`BpfError::Load`] without BPF or the privilege; [`BpfError::Layout`] if inherited maps are
    /// of another version.
    pub fn load(settings: &Settings, inherited: Option<ReceiveFds>) -> Result<Self, BpfError> {
        let fail = |error: libbpf_rs::Error| BpfError::load("receive", &error);
        let mut storage = MaybeUninit::uninit();
        let mut open = HeartbeatSkelBuilder::default().open(&mut storage).map_err(fail)?;
        if let Some(fds) = &inherited {
            let maps = &mut open.maps;
            for (map, fd) in [
                (&mut maps.config, &fds.config),
                (&mut maps.admits, &fds.admits),
                (&mut maps.slots, &fds.slots),
                (&mut maps.watches, &fds.watches),
                (&mut maps.gaps, &fds.gaps),
                (&mut maps.stats, &fds.stats),
                (&mut maps.peers, &fds.peers),
                (&mut maps.outbox, &fds.outbox),
                (&mut maps.wake, &fds.wake),
                (&mut maps.client_rings, &fds.client_rings),
            ] {
                map.reuse_fd(fd.as_fd()).map_err(fail)?;
            }
        }
        let skel = open.load().map_err(fail)?;
        let own = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|why| BpfError::Map { what: "a descriptor could not be kept", why })
        };
        let maps = &skel.maps;
        let mut receive = Self {
            config: MappedArray::map(own(maps.config.as_fd())?, 1, "config")?,
            admits: MappedArray::map(own(maps.admits.as_fd())?, MAX_HOSTS, "admits")?,
            slots: MappedArray::map(own(maps.slots.as_fd())?, MAX_HOSTS * MAX_PLANES, "slots")?,
            watches: MappedArray::map(own(maps.watches.as_fd())?, MAX_HOSTS * MAX_PROCESSES, "watches")?,
            gaps: MappedArray::map(own(maps.gaps.as_fd())?, MAX_HOSTS, "gaps")?,
            stats: MappedArray::map(own(maps.stats.as_fd())?, 1, "stats")?,
            outbox: MappedArray::map(own(maps.outbox.as_fd())?, 1, "outbox")?,
            peers: own(maps.peers.as_fd())?,
            wake: own(maps.wake.as_fd())?,
            client_rings: MapHandle::try_from(&maps.client_rings).map_err(fail)?,
            program: own(skel.progs.heartbeat_receive.as_fd())?,
            notify: own(skel.progs.notify.as_fd())?,
            links: Vec::new(),
        };
        match inherited {
            Some(fds) => {
                receive.take_links(fds.links)?;
                receive.next_generation();
            }
            None => receive.config.write(
                0,
                Config {
                    me: settings.me,
                    members: settings.members,
                    port: settings.port,
                    generation: 1,
                    ifindex: settings.ifindex,
                    any_plane: u32::from(settings.any_plane),
                    salvage: u32::from(settings.salvage),
                    keys: [key(&settings.key), Key::default()],
                    plain: [Key::default(); 2],
                },
            ),
        }
        Ok(receive)
    }

    /// From now on timers call back into this program, not into that of the agent before.
    fn next_generation(&self) {
        let config = self.config.at(0);
        // SAFETY: a field of the mapped configuration, which only one agent at a time writes.
        unsafe {
            let generation = &raw mut (*config).generation;
            generation.write_volatile(generation.read_volatile().wrapping_add(1).max(1));
        }
    }

    fn take_links(&mut self, links: Vec<OwnedFd>) -> Result<(), BpfError> {
        for link in &links {
            // SAFETY: two live descriptors; no options.
            let result =
                unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), self.program.as_raw_fd(), ptr::null()) };
            if result != 0 {
                return Err(BpfError::Map {
                    what: "the running agent's XDP link did not take the new program",
                    why: io::Error::from_raw_os_error(-result),
                });
            }
        }
        self.links = links;
        Ok(())
    }

    /// Attaches the program to an interface.
    ///
    /// # Errors
    /// [`BpfError::Attach`], so that the caller can try the next rung.
    pub fn attach(&mut self, ifindex: u32, mode: XdpMode) -> Result<(), BpfError> {
        self.links.push(xdp::attach(self.program.as_fd(), ifindex, mode)?);
        Ok(())
    }

    /// The program itself, for tests that hand it frames.
    #[cfg(test)]
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Interfaces the program is attached to.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Detaches the program from every interface.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// The ring that wakes the agent, [`crate::intf::WAKE_RING_BYTES`] long.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The counters' map, shared with the exit watch.
    #[must_use]
    pub fn stats_fd(&self) -> BorrowedFd<'_> {
        self.stats.fd()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.read(0)
    }

    /// Copies the gaps between the heartbeats of `host` (id), while the program goes on counting: what
    /// belongs together may be one heartbeat apart.
    pub fn read_gaps(&self, host: HostId, into: &mut Gaps) {
        let gaps = self.gaps.at(host_index(host));
        // SAFETY: fields of a mapped value, aligned, 64 bits each but for the incarnation.
        unsafe {
            for (field, into) in [
                (&raw mut (*gaps).last_ns, &mut into.last_ns),
                (&raw mut (*gaps).longest_ns, &mut into.longest_ns),
                (&raw mut (*gaps).longest_at_ns, &mut into.longest_at_ns),
                (&raw mut (*gaps).sum_ns, &mut into.sum_ns),
            ] {
                *into = self.gaps.atomic(field).load(Ordering::Relaxed);
            }
            into.incarnation = (&raw const (*gaps).incarnation).read_volatile();
            let counts = (&raw mut (*gaps).counts).cast::<u64>();
            for (at, into) in into.counts.iter_mut().enumerate() {
                *into = self.gaps.atomic(counts.add(at)).load(Ordering::Relaxed);
            }
        }
    }

    /// Says which incarnation of `host` (id) is heard and whether its silence matters.
    pub fn admit(&self, host: HostId, admit: Admit) {
        self.admits.write(host_index(host), admit);
    }

    /// What was last admitted for `host`.
    #[must_use]
    pub fn admitted(&self, host: HostId) -> Admit {
        self.admits.read(host_index(host))
    }

    /// The newest heartbeat of `host` on `plane`; `None` if it was being written at each of
    /// [`SLOT_READS_MAX`] attempts (the caller comes by again at its next turn).
    #[must_use]
    pub fn slot(&self, host: HostId, plane: usize) -> Option<Slot> {
        let slot = self.slots.at(host_index(host) * MAX_PLANES + plane);
        for _ in 0..SLOT_READS_MAX {
            // SAFETY: `slot` is mapped; the sequence number is read before and after the values.
            let (before, value, after) = unsafe {
                let before = (&raw const (*slot).lock).read_volatile();
                fence(Ordering::Acquire);
                let value = slot.read_volatile();
                fence(Ordering::Acquire);
                (before, value, (&raw const (*slot).lock).read_volatile())
            };
            if before == after && before.is_multiple_of(2) {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        None
    }

    fn watch_index(subject: ProcessRef) -> usize {
        host_index(subject.host) * MAX_PROCESSES + usize::from(subject.slot)
    }

    /// Begins the watch of one incarnation of a process by `clients` (bit c: client c).
    pub fn begin_watch(&self, subject: ProcessRef, incarnation: u32, clients: u64, piggyback_seq: u32) {
        let watch = self.watches.at(Self::watch_index(subject));
        // SAFETY: fields of a mapped entry, aligned as the C struct is; `claim` goes last, so that
        // the program sees the new incarnation only with all that belongs to it.
        unsafe {
            (&raw mut (*watch).piggyback_seq).write_volatile(piggyback_seq);
            self.watches.atomic(&raw mut (*watch).undelivered).store(0, Ordering::SeqCst);
            self.watches.atomic(&raw mut (*watch).clients).store(clients, Ordering::SeqCst);
            self.watches.atomic(&raw mut (*watch).claim).store(u64::from(incarnation) << 32, Ordering::SeqCst);
        }
    }

    /// Says up to which piggyback the clients of a process have been served.
    pub fn watch_piggyback(&self, subject: ProcessRef, piggyback_seq: u32) {
        let watch = self.watches.at(Self::watch_index(subject));
        // SAFETY: field of a mapped entry.
        unsafe { (&raw mut (*watch).piggyback_seq).write_volatile(piggyback_seq) };
    }

    /// Adds `client` to the clients notified of the process' death, or removes it. Returns whether the clients had been
    /// notified of the present incarnation's verdict already: the caller then notifies a newcomer itself.
    pub fn watch_client(&self, subject: ProcessRef, client: u8, on: bool) -> bool {
        let watch = self.watches.at(Self::watch_index(subject));
        let bit = 1u64 << client;
        // SAFETY: aligned 64-bit fields of a mapped entry.
        unsafe {
            let clients = self.watches.atomic(&raw mut (*watch).clients);
            if on {
                clients.fetch_or(bit, Ordering::SeqCst);
            } else {
                clients.fetch_and(!bit, Ordering::SeqCst);
                self.watches.atomic(&raw mut (*watch).undelivered).fetch_and(!bit, Ordering::SeqCst);
            }
            self.watches.atomic(&raw mut (*watch).claim).load(Ordering::SeqCst) & 1 == 1
        }
    }

    /// Clients whose ring was full when the verdict on the process was due; they count as notified after this call.
    #[must_use]
    pub fn take_undelivered(&self, subject: ProcessRef) -> u64 {
        let watch = self.watches.at(Self::watch_index(subject));
        // SAFETY: aligned 64-bit field of a mapped entry.
        let undelivered = unsafe { self.watches.atomic(&raw mut (*watch).undelivered) };
        // Nearly always there is none, and a look takes the line from nobody.
        if undelivered.load(Ordering::SeqCst) == 0 { 0 } else { undelivered.swap(0, Ordering::SeqCst) }
    }

    /// Puts clients back that [`Receive::take_undelivered`] took and that could not be served.
    pub fn mark_undelivered(&self, subject: ProcessRef, clients: u64) {
        let watch = self.watches.at(Self::watch_index(subject));
        // SAFETY: aligned 64-bit field of a mapped entry.
        unsafe { self.watches.atomic(&raw mut (*watch).undelivered).fetch_or(clients, Ordering::SeqCst) };
    }

    /// A handle with which another thread opens and closes rings for clients.
    ///
    /// # Errors
    /// [`BpfError::Map`] without a descriptor left.
    pub fn client_rings(&self) -> Result<ClientRings, BpfError> {
        MapHandle::try_from(&self.client_rings).map(ClientRings).map_err(|error| BpfError::Map {
            what: "the clients' rings could not be shared",
            why: io::Error::other(error),
        })
    }

    /// Puts one record into one client's ring.
    pub fn notify_client(&mut self, client: u8, record: &[u8]) -> Notified {
        self.run_notify(NOTIFY_CLIENT, u32::from(client), record)
    }

    /// Puts a verdict (an event header) into the rings of all clients of a watch, unless that
    /// incarnation's clients were notified before.
    pub fn notify_watch(&mut self, subject: ProcessRef, record: &[u8]) -> Notified {
        let index = u32::try_from(Self::watch_index(subject)).expect("small");
        self.run_notify(NOTIFY_WATCH, index, record)
    }

    fn run_notify(&mut self, op: u32, subject: u32, record: &[u8]) -> Notified {
        let outbox = self.outbox.at(0);
        let len = record.len().min(crate::intf::EVENT_MAX);
        // SAFETY: `outbox` is mapped, `len` bytes fit its `event`, and `&mut self` makes us the only
        // user of it until the program has run.
        unsafe {
            (&raw mut (*outbox).op).write_volatile(op);
            (&raw mut (*outbox).subject).write_volatile(subject);
            (&raw mut (*outbox).len).write_volatile(u32::try_from(len).expect("small"));
            ptr::copy_nonoverlapping(record.as_ptr(), (&raw mut (*outbox).event).cast::<u8>(), len);
        }
        fence(Ordering::SeqCst);
        // SAFETY: zeroes are a valid value; the options outlive the call.
        let (result, retval) = unsafe {
            let mut options: libbpf_sys::bpf_test_run_opts = std::mem::zeroed();
            options.sz = size_of_val(&options) as u64;
            let result = libbpf_sys::bpf_prog_test_run_opts(self.notify.as_raw_fd(), &raw mut options);
            (result, options.retval)
        };
        match (result, retval) {
            (0, 0) => Notified::Yes,
            (0, 1) => Notified::Before,
            (0, 2) => Notified::RingFull,
            _ => Notified::Nobody,
        }
    }

    /// Accepts `new` beside or instead of the key in `position` (0 or 1); `None` forgets it.
    pub fn set_key(&self, position: usize, new: Option<&[u8; 16]>) {
        // SAFETY: a place in the mapped configuration; the index is checked.
        self.put_key(unsafe { &raw mut (*self.config.at(0)).keys[position] }, new);
    }

    /// The same for packets that say what a host takes the cluster to be.
    ///
    /// # Panics
    /// If `position` is not 0 or 1.
    pub fn set_plain_key(&self, position: usize, new: Option<&[u8; 16]>) {
        // SAFETY: a place in the mapped configuration; the index is checked.
        self.put_key(unsafe { &raw mut (*self.config.at(0)).plain[position] }, new);
    }

    fn put_key(&self, slot: *mut Key, new: Option<&[u8; 16]>) {
        // SAFETY: fields of the mapped configuration. `valid` goes first when a key is cleared and
        // last when it is set, so that the program never uses half a key.
        unsafe {
            (&raw mut (*slot).valid).write_volatile(0);
            fence(Ordering::SeqCst);
            if let Some(bytes) = new {
                let key = key(bytes);
                (&raw mut (*slot).k0).write_volatile(key.k0);
                (&raw mut (*slot).k1).write_volatile(key.k1);
                fence(Ordering::SeqCst);
                (&raw mut (*slot).valid).write_volatile(1);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Descriptors for a new agent, in the order of [`ReceiveFds`]; links last.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![
            self.config.fd(),
            self.admits.fd(),
            self.slots.fd(),
            self.watches.fd(),
            self.gaps.fd(),
            self.stats.fd(),
            self.peers.as_fd(),
            self.outbox.fd(),
            self.wake.as_fd(),
            self.client_rings.as_fd(),
        ];
        fds.extend(self.links.iter().map(AsFd::as_fd));
        fds
    }
}

/// Opens and closes rings for clients. Each waits some milliseconds for the kernel, until no program uses the
/// ring that was in the place before: nothing for a thread that has to be on time.
pub struct ClientRings(MapHandle);

impl ClientRings {
    /// So many bytes of zeroes that this process and a client can map, and that stay where they are: no page
    /// of it is ever taken away, whatever the client does.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel has no memory for it, or cannot have it mapped (before Linux 5.5).
    pub fn memory(bytes: usize) -> Result<OwnedFd, BpfError> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let fail = |why| BpfError::Map { what: "memory for a client could not be made", why };
        let bytes = u32::try_from(bytes).map_err(|error| fail(io::Error::other(error)))?;
        let map = MapHandle::create(MapType::Array, Some("fide_session"), 4, bytes, 1, &options)
            .map_err(|error| fail(io::Error::other(error)))?;
        map.as_fd().try_clone_to_owned().map_err(fail)
    }

    /// Makes a ring for `client` and returns the descriptor that the client maps and polls.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel has no memory for it.
    pub fn open(&self, client: u8) -> Result<OwnedFd, BpfError> {
        assert!(usize::from(client) < MAX_CLIENTS);
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
            ..Default::default()
        };
        let fail = |what| move |error| BpfError::Map { what, why: io::Error::other(error) };
        let ring = MapHandle::create(MapType::RingBuf, Some("fide_client"), 0, 0, CLIENT_RING_BYTES, &options)
            .map_err(fail("a client's ring could not be made"))?;
        let fd = ring.as_fd().as_raw_fd();
        self.0
            .update(&u32::from(client).to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .map_err(fail("a client's ring could not be installed"))?;
        ring.as_fd()
            .try_clone_to_owned()
            .map_err(|why| BpfError::Map { what: "a client's ring could not be kept", why })
    }
}

impl ClientRings {
    /// Takes the ring of `client` away; what is in it stays readable for whoever holds it. No program writes
    /// to it any more when this returns.
    pub fn close(&self, client: u8) {
        // ENOENT is the only failure, for a place that is empty.
        let _ = self.0.delete(&u32::from(client).to_ne_bytes());
    }

    /// Another handle.
    ///
    /// # Errors
    /// [`BpfError::Map`] without a descriptor left.
    pub fn another(&self) -> Result<Self, BpfError> {
        MapHandle::try_from(&self.0).map(Self).map_err(|error| BpfError::Map {
            what: "the clients' rings could not be shared",
            why: io::Error::other(error),
        })
    }
}

impl ReceiveFds {
    /// Maps among them, before the links.
    pub const MAPS: usize = 10;

    /// The inverse of [`Receive::fds`]; `None` if there are too few.
    #[must_use]
    pub fn from_fds(fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        Some(Self {
            config: fds.next()?,
            admits: fds.next()?,
            slots: fds.next()?,
            watches: fds.next()?,
            gaps: fds.next()?,
            stats: fds.next()?,
            peers: fds.next()?,
            outbox: fds.next()?,
            wake: fds.next()?,
            client_rings: fds.next()?,
            links: fds.collect(),
        })
    }
}

fn key(bytes: &[u8; 16]) -> Key {
    let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    Key { k0: half(0), k1: half(8), valid: 1, reserved: 0 }
}
