// SPDX-License-Identifier: Apache-2.0
//! A loaded receive program without a network.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

use fide_shm::bpf_ring::BpfRing;
use fide_wire::{Ack, Builder, Key, PAYLOAD_MAX, ProcessState, Roster, seal};
use libbpf_rs::libbpf_sys;
use zerocopy::FromBytes;

use crate::intf::{ADMIT_MONITOR, Admit, CLIENT_RING_BYTES, Slot, WAKE_RING_BYTES, Wake};
use crate::{BpfError, Receive, Settings};
use fide_types::{HostId, MAX_PLANES};

pub(super) const XDP_DROP: u32 = 1;
pub(super) const XDP_PASS: u32 = 2;
pub(super) const PORT: u16 = 7411;
pub(super) const KEY: Key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
/// The id of the host whose program is tested.
pub(super) const ME: u16 = 3;
pub(super) const MEMBERS: u16 = 5;
/// The one admitted incarnation of every peer.
pub(super) const INCARNATION: u32 = 7;
/// Interface of frames that a test run hands in: loopback.
const LOOPBACK: u32 = 1;
/// Bound of every wait.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// Why the programs cannot be loaded here, if they cannot.
pub(super) fn unsupported() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("BPF needs root".to_owned());
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("this kernel has no BTF".to_owned());
    }
    None
}

/// `None`, with the reason printed, where BPF is not to be had. A program that the kernel's verifier refuses is a
/// failed test, not a skipped one.
pub(super) fn loaded<T>(what: Result<T, BpfError>) -> Option<T> {
    match (what, unsupported()) {
        (Ok(loaded), _) => Some(loaded),
        (Err(BpfError::Load { reason, .. }), _) if reason.contains("ermission") || reason.contains("not permitted") => {
            println!("skipped: {reason}");
            None
        }
        (Err(error), None) => panic!("{error}"),
        (Err(_), Some(why)) => {
            println!("skipped: {why}");
            None
        }
    }
}

pub(super) struct Rig {
    pub(super) receive: Receive,
    wake: BpfRing,
}

impl Rig {
    pub(super) fn new() -> Option<Self> {
        Self::with([LOOPBACK; MAX_PLANES], KEY)
    }

    pub(super) fn with(ifindex: [u32; MAX_PLANES], key: Key) -> Option<Self> {
        Self::set(ifindex, key, false)
    }

    /// One that hands damaged packets of lanes on.
    pub(super) fn salvaging() -> Option<Self> {
        Self::set([LOOPBACK; MAX_PLANES], KEY, true)
    }

    fn set(ifindex: [u32; MAX_PLANES], key: Key, salvage: bool) -> Option<Self> {
        let settings =
            Settings { me: ME, members: MEMBERS, port: PORT, ifindex, any_plane: false, salvage, key: key.0 };
        let receive = loaded(Receive::load(&settings, None))?;
        let wake = BpfRing::map(receive.wake_fd(), WAKE_RING_BYTES).expect("wake ring");
        for host in (1..=MEMBERS).filter(|host| *host != ME) {
            receive.admit(host, Admit { incarnation: INCARNATION, flags: 0, timeout_ns: 0 });
        }
        Some(Self { receive, wake })
    }

    /// `host` is monitored with this timeout.
    pub(super) fn monitor(&self, host: HostId, timeout: Duration) {
        let timeout_ns = u64::try_from(timeout.as_nanos()).expect("short");
        self.receive.admit(host, Admit { incarnation: INCARNATION, flags: ADMIT_MONITOR, timeout_ns });
    }

    pub(super) fn run(&self, payload: &[u8]) -> u32 {
        run(self.receive.program(), &frame(payload))
    }

    pub(super) fn run_frame(&self, frame: &[u8]) -> u32 {
        run(self.receive.program(), frame)
    }

    /// What the agent was woken with since the last call.
    pub(super) fn wakes(&mut self) -> Vec<(Wake, Vec<u8>)> {
        let mut records = Vec::new();
        self.wake
            .drain(usize::MAX, |bytes| {
                let (wake, payload) = Wake::read_from_prefix(bytes).expect("a whole header");
                records.push((wake, payload[..wake.len as usize].to_vec()));
            })
            .expect("ring");
        records
    }

    /// The next wake, waiting for it.
    pub(super) fn wait(&mut self) -> Wake {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some((wake, _)) = self.wakes().first() {
                return *wake;
            }
            assert!(Instant::now() < until, "nothing woke the agent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn slot(&self, host: HostId, plane: usize) -> Slot {
        self.receive.slot(host, plane).expect("nobody writes now")
    }

    /// Every slot, to see that nothing changed.
    pub(super) fn slots(&self) -> String {
        (1..=MEMBERS)
            .flat_map(|h| (0..MAX_PLANES).map(move |p| (h, p)))
            .fold(String::new(), |text, (h, p)| text + &format!("{:?}\n", self.slot(h, p)))
    }
}

/// A client's ring; its mapping keeps it after its descriptor is closed.
pub(super) struct ClientRing {
    ring: BpfRing,
}

impl ClientRing {
    pub(super) fn open(rig: &Rig, client: u8) -> Self {
        let fd = rig.receive.client_rings().expect("rings").open(client).expect("a ring");
        let ring = BpfRing::map(fd.as_fd(), CLIENT_RING_BYTES).expect("mapped");
        Self { ring }
    }

    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        self.ring.drain(usize::MAX, |bytes| records.push(bytes.to_vec())).expect("ring");
        records
    }
}

/// Hands one frame to the program.
pub(super) fn run(program: BorrowedFd<'_>, frame: &[u8]) -> u32 {
    // SAFETY: zeroes are a valid value; frame and options outlive the call, which only reads the frame.
    unsafe {
        let mut options: libbpf_sys::bpf_test_run_opts = std::mem::zeroed();
        options.sz = size_of_val(&options) as u64;
        options.data_in = frame.as_ptr().cast();
        options.data_size_in = u32::try_from(frame.len()).expect("a frame");
        options.repeat = 1;
        let result = libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options);
        assert_eq!(result, 0, "a frame of {} bytes could not be handed in", frame.len());
        options.retval
    }
}

/// Ethernet, IPv4 and UDP around a payload.
pub(super) fn frame(payload: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(8 + payload.len()).expect("small");
    let mut frame = vec![0u8; 42];
    frame[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(20 + udp_len).to_be_bytes());
    frame[22] = 1;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 70, 1, 1]);
    frame[30..34].copy_from_slice(&[239, 70, 0, 1]);
    frame[34..36].copy_from_slice(&PORT.to_be_bytes());
    frame[36..38].copy_from_slice(&PORT.to_be_bytes());
    frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// What a heartbeat says.
#[derive(Clone, Copy)]
pub(super) struct Beat {
    pub(super) sender: u16,
    pub(super) incarnation: u32,
    pub(super) seq: u64,
    pub(super) plane: u8,
    pub(super) key: Key,
}

impl Beat {
    pub(super) fn of(sender: u16, seq: u64) -> Self {
        Self { sender, incarnation: INCARNATION, seq, plane: 0, key: KEY }
    }

    pub(super) fn on(self, plane: u8) -> Self {
        Self { plane, ..self }
    }

    pub(super) fn incarnation(self, incarnation: u32) -> Self {
        Self { incarnation, ..self }
    }

    pub(super) fn key(self, key: Key) -> Self {
        Self { key, ..self }
    }

    /// With an acknowledgement of each other member that names its addressee, and what `more` adds.
    pub(super) fn with(self, more: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
        let mut payload = vec![0; PAYLOAD_MAX];
        let mut builder = Builder::heartbeat(&mut payload, self.sender, self.incarnation, self.seq).expect("room");
        for of in (1..=MEMBERS).filter(|of| *of != self.sender) {
            let ack = Ack { incarnation: 100 + u32::from(of), seq_low: 1000 * u32::from(of) };
            builder.push_ack(ack).expect("room");
        }
        more(&mut builder);
        let len = builder.finish();
        payload.truncate(len);
        // Not `seal`: tests also say planes that do not exist.
        payload[fide_wire::PLANE_OFFSET] = self.plane;
        let tag = fide_wire::tag(&self.key, &payload);
        payload[16..24].copy_from_slice(&tag.to_le_bytes());
        payload
    }

    pub(super) fn plain(self) -> Vec<u8> {
        self.with(|_| {})
    }
}

/// The notice that the process in `slot` of `sender`, in its incarnation `process`, was killed.
pub(super) fn notice(sender: u16, slot: u8, process: u32, pb_seq: u32, plane: u8) -> Vec<u8> {
    notice_of(
        sender,
        plane,
        &Roster { slot, state: ProcessState::Killed(9), name: None, incarnation: process, pb_seq, at_ns: 123_456_789 },
    )
}

pub(super) fn notice_of(sender: u16, plane: u8, roster: &Roster) -> Vec<u8> {
    let mut payload = vec![0; fide_wire::NOTICE_LEN];
    Builder::notice(&mut payload, sender, INCARNATION, 42, roster).expect("room");
    seal(&mut payload, plane, &KEY);
    payload
}
