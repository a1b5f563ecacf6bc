// SPDX-License-Identifier: Apache-2.0
//! The alive table: one agent's knowledge, in memory that its clients read without a system call.
//!
//! One writer (the agent), any number of readers. It holds the lease as a point in time, so that the
//! clients of an agent that was killed are fenced when it passes, without anybody's help.

use fide_shm::region::{ReadRegion, Region, RegionError, Shared};
use fide_shm::seqlock::SeqLock;
use fide_sys::clock::{self, Clocks, Lease};
use fide_types::{HOST_SLOT, HostId, MAX_HOSTS, MAX_NAME, MAX_PLANES, MAX_PROCESSES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of an alive table ("FiDeTAB1").
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"FiDeTAB1");
/// Version of its layout.
pub const TABLE_VERSION: u32 = 3;
/// A lease that never runs out (`trust = "network"`).
pub const LEASE_FOREVER_NS: u64 = clock::FOREVER_NS;

const RECORD_WORDS: usize = 15;

/// States of a host or process in the table, as bytes: those of [`fide_types::ProcessState::to_bytes`], and
/// one for subjects that were never heard of.
pub mod state {
    use fide_types::ProcessState;

    /// Never heard of (all zero).
    pub const UNKNOWN: u8 = 0;
    /// Alive.
    pub const ALIVE: u8 = ProcessState::Alive.to_bytes().0;
    /// Process: exited by itself (`code` is the exit code).
    pub const EXITED: u8 = ProcessState::Exited(0).to_bytes().0;
    /// Process: killed by a signal (`code` is the signal).
    pub const KILLED: u8 = ProcessState::Killed(0).to_bytes().0;
    /// Said goodbye; not a failure.
    pub const LEFT: u8 = ProcessState::Left.to_bytes().0;
    /// Process: alive for the kernel, but its beats stopped.
    pub const STALLED: u8 = ProcessState::Stalled.to_bytes().0;
    /// The host fell silent (on the host and on each of its processes).
    pub const HOST_SILENT: u8 = ProcessState::HostSilent.to_bytes().0;
}

/// A name in the table: UTF-8, padded with zeros.
pub type NameBytes = [u8; MAX_NAME + 1];

/// `name` as it is stored in records; bytes beyond [`MAX_NAME`] are cut off.
pub fn name_bytes(name: &str) -> NameBytes {
    let mut bytes = [0; MAX_NAME + 1];
    let len = name.floor_char_boundary(MAX_NAME);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

/// The text of a name, up to the first zero; empty if it is not UTF-8.
pub fn name_str(bytes: &NameBytes) -> &str {
    let len = bytes.iter().position(|b| *b == 0).unwrap_or(MAX_NAME).min(MAX_NAME);
    std::str::from_utf8(&bytes[..len]).unwrap_or("")
}

/// The agent's knowledge of a host. Times are this host's CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostRecord {
    /// One of [`state`].
    pub state: u8,
    /// Bit p set: plane p was heard within the timeout.
    pub planes_up: u8,
    /// 1: it has reported lately that it hears this host's present incarnation, and so may come to declare
    /// it dead.
    pub hears_us: u8,
    /// Zero.
    pub reserved: u8,
    /// Incarnation of its agent; 0 before the first heartbeat.
    pub incarnation: u32,
    /// When the last heartbeat came, on any plane.
    pub last_rx_ns: u64,
    /// Its sequence number.
    pub last_seq: u64,
    /// Silence after which it is suspected.
    pub timeout_ns: u64,
    /// When the last heartbeat came on each plane.
    pub plane_rx_ns: [u64; MAX_PLANES],
    /// When `state` last changed.
    pub changed_ns: u64,
    /// Host name.
    pub name: NameBytes,
    /// Zero.
    pub reserved2: [u64; 4],
}

/// The agent's knowledge of a process. Times are this host's CLOCK_MONOTONIC unless noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProcessRecord {
    /// One of [`state`].
    pub state: u8,
    /// Why it is dead: a [`fide_types::Reason`] as its `to_bytes` writes it, 0 if it is not.
    pub reason: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// Incarnation of the process.
    pub incarnation: u32,
    /// Exit code or signal, by state.
    pub code: i32,
    /// Last piggyback sequence number delivered or assigned; 0 none.
    pub pb_seq: u32,
    /// When it was last mentioned in a heartbeat.
    pub last_rx_ns: u64,
    /// Own host only: when its beat counter last moved; 0 if it does not beat.
    pub last_beat_ns: u64,
    /// When `state` last changed.
    pub changed_ns: u64,
    /// The subject's own clock at its exit; 0 unknown.
    pub at_ns: u64,
    /// Process name.
    pub name: NameBytes,
    /// Zero.
    pub reserved2: [u64; 5],
}

impl HostRecord {
    /// The name as text.
    pub fn name(&self) -> &str {
        name_str(&self.name)
    }
}

impl ProcessRecord {
    /// The name as text.
    pub fn name(&self) -> &str {
        name_str(&self.name)
    }
}

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    /// Host id in the low 16 bits, number of hosts in the high ones.
    identity: AtomicU32,
    incarnation: AtomicU32,
    fenced: AtomicU32,
    /// Inode of the agent's time namespace.
    time_namespace: AtomicU32,
    /// When the lease ends on CLOCK_MONOTONIC; only shown, not acted upon.
    lease_until_ns: AtomicU64,
    agent_tick_ns: AtomicU64,
    generation: AtomicU64,
    started_ns: AtomicU64,
    name: [AtomicU64; (MAX_NAME + 1) / 8],
    view: SeqLock<7>,
    lease: LeaseWords,
    reserved: [AtomicU64; 4],
}

/// The view cannot be read: the agent died in the middle of writing it, or writes without pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the view is half written: the agent may have died while it wrote it; start the agent again")]
pub struct ViewUnreadable;

/// The agreed view that this host holds (policy majority).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ViewRecord {
    /// Highest incarnation among the founders; with `number` the view's id, ordered in this order. Both 0: no
    /// view.
    pub generation: u32,
    /// 1 when founded, +1 with each agreed change.
    pub number: u32,
    /// Bit id-1: a member.
    pub members: u64,
    /// This host's CLOCK_MONOTONIC from which no host still acts by an older view.
    pub settled_ns: u64,
}

/// A [`Lease`]. The writer takes `until` back before it changes the fields that an older `until` was given
/// with; readers read `until` last.
#[repr(C)]
struct LeaseWords {
    until_raw_ns: AtomicU64,
    asleep_ns: AtomicU64,
    tsc_from: AtomicU64,
    tsc_until: AtomicU64,
}

impl LeaseWords {
    fn store(&self, lease: &Lease) {
        let before = self.load();
        if lease.until_raw_ns < before.until_raw_ns {
            self.until_raw_ns.store(lease.until_raw_ns, Ordering::Release);
        }
        if lease.asleep_ns != before.asleep_ns || (lease.tsc_until == 0) != (before.tsc_until == 0) {
            self.until_raw_ns.store(0, Ordering::Release);
        }
        self.asleep_ns.store(lease.asleep_ns, Ordering::Release);
        self.tsc_from.store(lease.tsc_from, Ordering::Release);
        self.tsc_until.store(lease.tsc_until, Ordering::Release);
        self.until_raw_ns.store(lease.until_raw_ns, Ordering::Release);
    }

    fn load(&self) -> Lease {
        let asleep_ns = self.asleep_ns.load(Ordering::Acquire);
        let tsc_from = self.tsc_from.load(Ordering::Acquire);
        let tsc_until = self.tsc_until.load(Ordering::Acquire);
        Lease { until_raw_ns: self.until_raw_ns.load(Ordering::Acquire), asleep_ns, tsc_from, tsc_until }
    }
}

/// The memory itself. Users go through [`AliveTable`] and [`TableReader`].
#[repr(C, align(64))]
struct Layout {
    header: Header,
    hosts: [SeqLock<RECORD_WORDS>; MAX_HOSTS],
    processes: [[SeqLock<RECORD_WORDS>; MAX_PROCESSES]; MAX_HOSTS],
}

// SAFETY: atomics and arrays of atomics only; alignment 64.
unsafe impl Shared for Layout {}

const HEADER_BYTES: usize = 256;

const _: () = {
    assert!(size_of::<Header>() == HEADER_BYTES);
    assert!(size_of::<SeqLock<RECORD_WORDS>>() == 128);
    assert!(size_of::<HostRecord>() == RECORD_WORDS * 8);
    assert!(size_of::<ProcessRecord>() == RECORD_WORDS * 8);
    assert!(std::mem::offset_of!(Layout, hosts) == HEADER_BYTES);
    assert!(std::mem::offset_of!(Layout, processes) == HEADER_BYTES + MAX_HOSTS * 128);
    assert!(size_of::<Layout>() == HEADER_BYTES + MAX_HOSTS * 128 + MAX_HOSTS * MAX_PROCESSES * 128);
};

impl Layout {
    fn host(&self, host: HostId) -> Option<&SeqLock<RECORD_WORDS>> {
        self.hosts.get(usize::from(host).checked_sub(1)?)
    }

    fn process(&self, host: HostId, slot: u8) -> Option<&SeqLock<RECORD_WORDS>> {
        self.processes.get(usize::from(host).checked_sub(1)?)?.get(usize::from(slot))
    }

    fn validate(&self) -> Result<(), RegionError> {
        let magic = self.header.magic.load(Ordering::Acquire);
        if magic != TABLE_MAGIC {
            return Err(RegionError::Magic { what: "an alive table", actual: magic, expected: TABLE_MAGIC });
        }
        let version = self.header.version.load(Ordering::Relaxed);
        if version != TABLE_VERSION {
            return Err(RegionError::Version { what: "alive table", actual: version, expected: TABLE_VERSION });
        }
        Ok(())
    }

    fn read_host(&self, host: HostId) -> Option<HostRecord> {
        Some(zerocopy::transmute!(self.host(host)?.read()?))
    }

    fn read_process(&self, host: HostId, slot: u8) -> Option<ProcessRecord> {
        Some(zerocopy::transmute!(self.process(host, slot)?.read()?))
    }
}

/// The agent's end: the only writer.
#[derive(Debug)]
pub struct AliveTable {
    region: Region<Layout>,
}

impl AliveTable {
    /// A new table of the agent `host_id` (of `hosts`), with a lease that has run out already: fenced until
    /// proven heard.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(host_id: u16, hosts: u16, incarnation: u32, name: &str, now_ns: u64) -> Result<Self, RegionError> {
        let table = Self { region: Region::create("fide-alive-table")? };
        let header = &table.region.get().header;
        header.version.store(TABLE_VERSION, Ordering::Relaxed);
        header.size.store(size_of::<Layout>() as u32, Ordering::Relaxed);
        header.identity.store(u32::from(host_id) | u32::from(hosts) << 16, Ordering::Relaxed);
        header.incarnation.store(incarnation, Ordering::Relaxed);
        header.started_ns.store(now_ns, Ordering::Relaxed);
        header.time_namespace.store(clock::time_namespace(), Ordering::Relaxed);
        let words: [u64; 4] = zerocopy::transmute!(name_bytes(name));
        for (slot, word) in header.name.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        header.magic.store(TABLE_MAGIC, Ordering::Release);
        Ok(table)
    }

    /// Continues the table of the agent before this one, from its writable descriptor. The old agent must
    /// have stopped writing.
    ///
    /// # Errors
    /// As [`TableReader::map`].
    pub fn take_over(fd: OwnedFd) -> Result<Self, RegionError> {
        let table = Self { region: Region::map(fd)? };
        table.region.get().validate()?;
        Ok(table)
    }

    /// A descriptor for clients, which cannot be mapped for writing.
    ///
    /// # Errors
    /// As [`Region::read_only_fd`].
    pub fn read_only_fd(&self) -> Result<OwnedFd, RegionError> {
        self.region.read_only_fd()
    }

    /// The agent has a new incarnation (it found itself excluded and came back).
    pub fn set_incarnation(&self, incarnation: u32) {
        self.region.get().header.incarnation.store(incarnation, Ordering::Release);
        self.changed();
    }

    /// This host may act for as long as `lease` allows, which ends at `until_ns` of CLOCK_MONOTONIC
    /// ([`LEASE_FOREVER_NS`]: without end). A few stores; for every turn of the loop.
    pub fn set_lease(&self, lease: &Lease, until_ns: u64) {
        self.region.get().header.lease.store(lease);
        self.region.get().header.lease_until_ns.store(until_ns, Ordering::Release);
    }

    /// As [`AliveTable::set_lease`], for a lease that ends at `until_ns` of CLOCK_MONOTONIC at that clock's
    /// present rate, without the processor's counter as a witness.
    pub fn set_lease_until(&self, until_ns: u64) {
        let now = Clocks::read(false);
        let lease = match until_ns {
            LEASE_FOREVER_NS => Lease::FOREVER,
            _ if until_ns <= now.mono_ns => Lease::default(),
            _ => Lease {
                until_raw_ns: now.raw_ns + (until_ns - now.mono_ns),
                asleep_ns: now.asleep_ns(),
                ..Lease::default()
            },
        };
        self.set_lease(&lease, until_ns);
    }

    /// The agent is fenced (or not), whatever the lease.
    pub fn set_fenced(&self, fenced: bool) {
        self.region.get().header.fenced.store(fenced.into(), Ordering::Release);
        self.changed();
    }

    /// The view that this host holds now. Written before anybody is notified of a verdict that follows from
    /// it.
    pub fn set_view(&self, view: &ViewRecord) {
        let id = u64::from(view.generation) << 32 | u64::from(view.number);
        self.region.get().header.view.write(&[id, view.members, view.settled_ns, 0, 0, 0, 0]);
        self.changed();
    }

    /// Generation and number of the view that was written last; zeros for none.
    pub fn view_id(&self) -> (u32, u32) {
        let id = self.region.get().header.view.read().map_or(0, |[id, ..]| id);
        ((id >> 32) as u32, id as u32)
    }

    /// The agent's loop ran at `now_ns`.
    pub fn tick(&self, now_ns: u64) {
        self.region.get().header.agent_tick_ns.store(now_ns, Ordering::Release);
    }

    /// Replaces a host's record; `false` if `host` is not 1..=[`MAX_HOSTS`]. Does not move the generation:
    /// most writes are of arrival times (see [`AliveTable::changed`]).
    pub fn write_host(&self, host: HostId, record: &HostRecord) -> bool {
        let Some(lock) = self.region.get().host(host) else { return false };
        lock.write(&zerocopy::transmute!(*record));
        true
    }

    /// Replaces a process's record; `false` if there is no such host or slot.
    pub fn write_process(&self, host: HostId, slot: u8, record: &ProcessRecord) -> bool {
        let Some(lock) = self.region.get().process(host, slot) else { return false };
        lock.write(&zerocopy::transmute!(*record));
        true
    }

    /// Shows pollers of [`TableReader::generation`] that a state changed.
    pub fn changed(&self) {
        let generation = &self.region.get().header.generation;
        generation.store(generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// A host's record (`None`: no such host, or a write was cut short by a crash).
    pub fn host(&self, host: HostId) -> Option<HostRecord> {
        self.region.get().read_host(host)
    }

    /// As [`AliveTable::host`], for a process.
    pub fn process(&self, host: HostId, slot: u8) -> Option<ProcessRecord> {
        self.region.get().read_process(host, slot)
    }
}

impl AsFd for AliveTable {
    /// The writable descriptor, only for the next agent.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

/// A client's end. Every call is a few loads from memory, without a lock or system call.
#[derive(Debug)]
pub struct TableReader {
    region: ReadRegion<Layout>,
}

impl TableReader {
    /// Maps the table read-only.
    ///
    /// # Errors
    /// [`RegionError`]: what it is instead of an alive table of this version.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        let reader = Self { region: ReadRegion::map(fd)? };
        reader.layout().validate()?;
        Ok(reader)
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `TableReader` only loads: through methods of `Layout` that read, and from its header's
        // words.
        unsafe { self.region.get() }
    }

    fn header(&self) -> &Header {
        &self.layout().header
    }

    /// Id of the own host.
    pub fn host_id(&self) -> u16 {
        (self.header().identity.load(Ordering::Relaxed) & 0xffff) as u16
    }

    /// Number of hosts of the cluster; their ids are 1..=hosts.
    pub fn hosts(&self) -> u16 {
        (self.header().identity.load(Ordering::Relaxed) >> 16) as u16
    }

    /// Incarnation of the own agent.
    pub fn incarnation(&self) -> u32 {
        self.header().incarnation.load(Ordering::Acquire)
    }

    /// Name of the own host.
    pub fn host_name(&self) -> String {
        let words: [u64; 4] = std::array::from_fn(|i| self.header().name[i].load(Ordering::Relaxed));
        let bytes: NameBytes = zerocopy::transmute!(words);
        name_str(&bytes).to_owned()
    }

    /// Inode of the agent's time namespace, 0 if it is not known. [`clock::time_namespace`] of a client
    /// must be the same; otherwise its clocks differ.
    pub fn time_namespace(&self) -> u32 {
        self.header().time_namespace.load(Ordering::Relaxed)
    }

    /// Where on CLOCK_MONOTONIC the lease ends, or ended, as the agent saw it; [`LEASE_FOREVER_NS`] without
    /// a limit. Only to be shown, or to decide when to look again: [`TableReader::lease_left_ns`] decides
    /// whether a program may act.
    pub fn lease_until_ns(&self) -> u64 {
        self.header().lease_until_ns.load(Ordering::Acquire)
    }

    /// This host's lease for a program that acts as `incarnation`: none if this host has another
    /// incarnation by now, or if its agent says that it must not act. One incarnation's lease is never
    /// taken for another's: the lease is read first, and the agent writes a new incarnation before its
    /// first lease. Judge it by clocks that are read afterwards ([`Lease::left_ns`]).
    pub fn lease_of(&self, incarnation: u32) -> Lease {
        let lease = self.header().lease.load();
        let fenced = self.header().fenced.load(Ordering::Acquire) != 0;
        if fenced || self.incarnation() != incarnation { Lease::default() } else { lease }
    }

    /// How long such a program may still act: 0 when it is fenced, because its agent says so, because the
    /// lease has passed on one of its clocks, or because the clocks show that this machine stood still;
    /// [`LEASE_FOREVER_NS`] without a limit. No system call.
    pub fn lease_left_ns(&self, incarnation: u32) -> u64 {
        self.lease_of(incarnation).left_now_ns()
    }

    /// The view that this host holds; none under policy network. A lease that is read afterwards belongs to
    /// this view, or to a newer one.
    ///
    /// # Errors
    /// [`ViewUnreadable`]: there may be a view, and it is not known which.
    pub fn view(&self) -> Result<Option<ViewRecord>, ViewUnreadable> {
        let [id, members, settled_ns, ..] = self.header().view.read().ok_or(ViewUnreadable)?;
        let view = ViewRecord { generation: (id >> 32) as u32, number: id as u32, members, settled_ns };
        Ok((id != 0).then_some(view))
    }

    /// When the agent's loop last ran.
    pub fn agent_tick_ns(&self) -> u64 {
        self.header().agent_tick_ns.load(Ordering::Acquire)
    }

    /// Changes whenever a state changed: "anything new?" in one load.
    pub fn generation(&self) -> u64 {
        self.header().generation.load(Ordering::Acquire)
    }

    /// A host's record; `None` if there is no such host, or the agent died in the middle of writing it.
    pub fn host(&self, host: HostId) -> Option<HostRecord> {
        self.layout().read_host(host)
    }

    /// A process's record; `None` as in [`TableReader::host`].
    pub fn process(&self, host: HostId, slot: u8) -> Option<ProcessRecord> {
        self.layout().read_process(host, slot)
    }

    /// The state of a process, or of the host itself with [`HOST_SLOT`]; a process of a silent host is
    /// silent.
    pub fn state(&self, host: HostId, slot: u8) -> Option<u8> {
        let of_host = self.host(host)?.state;
        if slot == HOST_SLOT {
            return Some(of_host);
        }
        let of_process = self.process(host, slot)?.state;
        let host_gone = of_host == state::HOST_SILENT;
        Some(if host_gone && matches!(of_process, state::ALIVE | state::STALLED) { of_host } else { of_process })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_read_what_the_agent_writes() {
        let table = AliveTable::create(2, 3, 77, "beta", 5).unwrap();
        let reader = TableReader::map(table.read_only_fd().unwrap().as_fd()).unwrap();
        assert_eq!((reader.host_id(), reader.hosts(), reader.incarnation()), (2, 3, 77));
        assert_eq!(reader.host_name(), "beta");
        let host = HostRecord { state: state::ALIVE, last_seq: 9, name: name_bytes("gamma"), ..Default::default() };
        let process = ProcessRecord { state: state::ALIVE, code: -1, name: name_bytes("db"), ..Default::default() };
        assert!(table.write_host(3, &host) && table.write_process(3, 63, &process));
        assert_eq!(reader.host(3), Some(host));
        assert_eq!(reader.process(3, 63).unwrap().name(), "db");
        assert_eq!(reader.state(3, 63), Some(state::ALIVE));
        table.write_host(3, &HostRecord { state: state::HOST_SILENT, ..host });
        assert_eq!(reader.state(3, 63), Some(state::HOST_SILENT));
        assert_eq!(reader.state(3, HOST_SLOT), Some(state::HOST_SILENT));
        let generation = reader.generation();
        table.changed();
        assert_ne!(reader.generation(), generation);
    }

    #[test]
    fn out_of_range_is_none_not_a_panic() {
        let table = AliveTable::create(1, 1, 1, "a", 0).unwrap();
        assert!(!table.write_host(0, &HostRecord::default()) && !table.write_host(65, &HostRecord::default()));
        assert!(!table.write_process(1, 64, &ProcessRecord::default()));
        assert_eq!(table.host(0), None);
        assert_eq!(table.process(65, 0), None);
    }

    #[test]
    fn new_table_and_passed_lease_are_fenced() {
        let table = AliveTable::create(1, 1, 1, "a", 0).unwrap();
        let reader = TableReader::map(table.as_fd()).unwrap();
        assert_eq!(reader.lease_left_ns(1), 0);
        let hour_ns = 3_600_000_000_000;
        table.set_lease_until(clock::mono_ns() + hour_ns);
        assert!((1..=hour_ns).contains(&reader.lease_left_ns(1)));
        table.set_lease_until(clock::mono_ns());
        assert_eq!(reader.lease_left_ns(1), 0);
        table.set_lease_until(LEASE_FOREVER_NS);
        assert_eq!(reader.lease_left_ns(1), LEASE_FOREVER_NS);
        table.set_fenced(true);
        assert_eq!(reader.lease_left_ns(1), 0);
    }

    #[test]
    fn lease_of_one_wake_is_never_read_with_another() {
        let words = LeaseWords { until_raw_ns: 0.into(), asleep_ns: 0.into(), tsc_from: 0.into(), tsc_until: 0.into() };
        let before = Lease { until_raw_ns: 900, asleep_ns: 5, tsc_from: 1, tsc_until: 2000 };
        words.store(&before);
        assert_eq!(words.load(), before);
        // After a suspension: a reader of the new distance finds no older lease beside it.
        words.store(&Lease { until_raw_ns: 0, asleep_ns: 70, ..before });
        assert_eq!(words.load().until_raw_ns, 0);
        let after = Lease { until_raw_ns: 1900, asleep_ns: 70, tsc_from: 0, tsc_until: 0 };
        words.store(&after);
        assert_eq!(words.load(), after);
    }

    #[test]
    fn takeover_continues_and_foreign_memory_is_refused() {
        let table = AliveTable::create(1, 2, 1, "a", 0).unwrap();
        table.set_lease_until(5);
        let next = AliveTable::take_over(table.as_fd().try_clone_to_owned().unwrap()).unwrap();
        next.set_lease_until(6);
        let reader = TableReader::map(table.read_only_fd().unwrap().as_fd()).unwrap();
        assert_eq!(reader.lease_until_ns(), 6);
        table.region.get().header.version.store(9, Ordering::Relaxed);
        let error = TableReader::map(table.as_fd()).unwrap_err().to_string();
        assert!(error.contains("layout version 9") && error.contains("knows 3"), "{error}");
        table.region.get().header.magic.store(9, Ordering::Relaxed);
        assert!(matches!(TableReader::map(table.as_fd()), Err(RegionError::Magic { actual: 9, .. })));
    }

    #[test]
    fn lease_belongs_to_one_incarnation() {
        let table = AliveTable::create(1, 2, 7, "a", 0).unwrap();
        let reader = TableReader::map(table.read_only_fd().unwrap().as_fd()).unwrap();
        let may = |incarnation| reader.lease_left_ns(incarnation) != 0;
        assert!(!may(7));
        table.set_lease_until(LEASE_FOREVER_NS);
        assert!(may(7) && !may(6));
        table.set_incarnation(8);
        assert!(!may(7) && may(8));
        table.set_fenced(true);
        assert!(!may(8));
    }

    #[test]
    fn view_is_read_as_it_was_written() {
        let table = AliveTable::create(1, 2, 7, "a", 0).unwrap();
        let reader = TableReader::map(table.read_only_fd().unwrap().as_fd()).unwrap();
        assert_eq!(reader.view(), Ok(None));
        let view = ViewRecord { generation: u32::MAX, number: 3, members: 0b101, settled_ns: 9 };
        table.set_view(&view);
        assert_eq!(reader.view(), Ok(Some(view)));
    }

    #[test]
    fn view_whose_write_was_cut_short_is_not_taken_for_none() {
        let table = AliveTable::create(1, 2, 7, "a", 0).unwrap();
        let reader = TableReader::map(table.read_only_fd().unwrap().as_fd()).unwrap();
        table.region.get().header.view.cut_short();
        assert_eq!(reader.view(), Err(ViewUnreadable));
        let view = ViewRecord { generation: 1, number: 3, members: 0b101, settled_ns: 9 };
        table.set_view(&view);
        assert_eq!(reader.view(), Ok(Some(view)), "the next agent writes it whole");
    }

    #[test]
    fn names_are_cut_at_a_character() {
        let name = "ä".repeat(20);
        assert_eq!(name_str(&name_bytes(&name)), "ä".repeat(15));
        assert_eq!(name_str(&name_bytes("x")), "x");
        assert_eq!(name_str(&[0xff; 32]), "");
    }
}
