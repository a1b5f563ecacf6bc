// SPDX-License-Identifier: Apache-2.0
//! An agent made of a socket and memory, played by the test itself.

use fide_agent_api::event::{EVENT_MAX, EventRecord, LaneTerms, kind};
use fide_agent_api::session::{AgentSession, LANE_MESSAGE_MAX, SESSION_BYTES};
use fide_agent_api::table::AliveTable;
use fide_client::{
    Client, ConnectOptions, Reason,
    protocol::{
        EventsVia, HelloOk, HostInfo, JoinOk, LaneOk, MonitorOk, Op, PROTOCOL_VERSION, PeerState, Reply, Request,
    },
};
use fide_sys::seqpacket;
use rustix::{
    event::EventfdFlags,
    fd::{AsFd, BorrowedFd, OwnedFd},
    net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType},
};
use std::{path::PathBuf, time::Duration};
use zerocopy::IntoBytes;

pub(crate) struct FakeAgent {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) table: AliveTable,
    pub(crate) session: AgentSession,
    pub(crate) eventfd: OwnedFd,
    /// Rung by clients when they have left a message for a lane.
    pub(crate) doorbell: OwnedFd,
    /// The hosts of the cluster, as an agent names them to members of groups.
    pub(crate) members: Vec<HostInfo>,
}

impl FakeAgent {
    pub(crate) fn new() -> Self {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut agent = Self {
            dir: tempfile::tempdir().unwrap(),
            listener: None,
            table: AliveTable::create(1, 2, 5, "alpha", 0).unwrap(),
            session: AgentSession::create().unwrap(),
            eventfd,
            doorbell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            members: Vec::new(),
        };
        agent.listen();
        agent
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub(crate) fn listen(&mut self) {
        let _ = std::fs::remove_file(self.path());
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        rustix::net::listen(&socket, 4).unwrap();
        self.listener = Some(socket);
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions { path: Some(self.path()), program: "test".into(), ..Default::default() }
    }

    pub(crate) fn accept(&self) -> Peer {
        Peer(rustix::net::accept(self.listener.as_ref().unwrap()).unwrap())
    }

    pub(crate) fn hello(&self, token: &str) -> HelloOk {
        HelloOk {
            protocol: PROTOCOL_VERSION,
            agent_version: "fake".into(),
            host: "alpha".into(),
            host_id: 1,
            incarnation: 5,
            session: token.into(),
            events: EventsVia::Shm,
            heartbeat_us: 300,
            trust: "lease".into(),
            members: self.members.clone(),
        }
    }

    /// Accepts a client and greets it with this session token. Returns the token that it asked to continue.
    pub(crate) fn greet(&self, token: &str) -> (Peer, Option<String>) {
        let peer = self.accept();
        let request = peer.request();
        let Op::Hello { protocol: PROTOCOL_VERSION, session, .. } = request.op else { panic!("{request:?}") };
        self.answer_hello(&peer, request.id, token);
        (peer, session)
    }

    pub(crate) fn answer_hello(&self, peer: &Peer, id: u64, token: &str) {
        let table = self.table.read_only_fd().unwrap();
        let fds = [table.as_fd(), self.session.as_fd(), self.eventfd.as_fd()];
        peer.send_with(&Reply::ok(id, &self.hello(token)).to_bytes(), &fds);
    }

    /// The oldest message for a lane: handle, service, bytes.
    pub(crate) fn next_lane_message(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        let mut buffer = [0; LANE_MESSAGE_MAX];
        let message = self.session.pop_lane(&mut buffer).unwrap()?;
        Some((message.handle, message.service, message.bytes.to_vec()))
    }

    /// How often the doorbell rang since the last call.
    pub(crate) fn rings(&self) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.doorbell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// A message of host 2, packet 77, tree 1.
    pub(crate) fn tell_message(&mut self, service: u8, bytes: &[u8]) {
        let of_host = EventRecord::of_host(kind::LANE_MESSAGE, 2);
        self.tell(EventRecord { slot: service, incarnation: 6, seq: 77, rx_ns: 88, plane: 1, ..of_host }, bytes);
    }

    /// Half of the lane is gone, and its bounds.
    pub(crate) fn tell_changed(&mut self, handle: u8, reason: u8) {
        let terms = LaneTerms {
            packet_max_bytes: 150,
            message_max_bytes: 80,
            period_ns: 2_000_000,
            grace_ns: 50_000_000,
            reason,
            ..LaneTerms::default()
        };
        self.tell(
            EventRecord { kind: kind::LANE_CHANGED, code: handle.into(), ..Default::default() },
            terms.as_bytes(),
        );
    }

    pub(crate) fn tell_terminated(&mut self, handle: u8, grace: Duration, why: &str) {
        let (rx_ns, at_ns) = (fide_client::now_ns(), grace.as_nanos() as u64);
        let record =
            EventRecord { kind: kind::LANE_TERMINATED, code: handle.into(), rx_ns, at_ns, ..Default::default() };
        self.tell(record, why.as_bytes());
    }

    /// Sends an event, and makes nonsense of all that this changes in the session, including the ring's
    /// position.
    pub(crate) fn break_inbox(&mut self) {
        let look = |session: &AgentSession| {
            let mut bytes = vec![0; SESSION_BYTES];
            assert_eq!(rustix::io::pread(session.as_fd(), &mut bytes, 0).unwrap(), SESSION_BYTES);
            bytes
        };
        let before = look(&self.session);
        let mut out = [0; EVENT_MAX];
        let record = EventRecord::of_host(kind::FENCED, 1);
        self.session.push_inbox(record.encode(b"", &mut out).unwrap()).unwrap();
        let after = look(&self.session);
        for (at, (before, after)) in before.chunks(8).zip(after.chunks(8)).enumerate() {
            if before != after {
                assert_eq!(rustix::io::pwrite(self.session.as_fd(), &[0xff; 8], at as u64 * 8), Ok(8));
            }
        }
        rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()).unwrap();
    }

    pub(crate) fn tell(&mut self, record: EventRecord, data: &[u8]) {
        let mut out = [0; EVENT_MAX];
        self.session.push_inbox(record.encode(data, &mut out).unwrap()).unwrap();
        rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()).unwrap();
    }
}

pub(crate) struct Peer(pub(crate) OwnedFd);

impl Peer {
    pub(crate) fn request(&self) -> Request {
        let mut buffer = vec![0; 65_536];
        let (len, _) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty()).unwrap();
        Request::parse(&buffer[..len]).unwrap()
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        self.send_with(bytes, &[]);
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        seqpacket::send(&self.0, bytes, fds).unwrap();
    }

    /// Grants a lane, with the doorbell.
    pub(crate) fn lane_ok(&self, agent: &FakeAgent, id: u64, granted: &LaneOk) {
        self.send_with(&Reply::ok(id, granted).to_bytes(), &[agent.doorbell.as_fd()]);
    }

    /// Grants the next lane request. Returns its name.
    pub(crate) fn opens_lane(&self, agent: &FakeAgent, handle: u8) -> String {
        let request = self.request();
        let Op::OpenLane { name, .. } = request.op else { panic!("{request:?}") };
        self.lane_ok(agent, request.id, &lane_ok(handle));
        name
    }

    pub(crate) fn ok(&self, id: u64, result: &impl serde::Serialize) {
        self.send(&Reply::ok(id, result).to_bytes());
    }

    pub(crate) fn joins(&self, slot: u8) {
        let request = self.request();
        assert!(matches!(request.op, Op::Join { .. }), "{request:?}");
        self.ok(request.id, &joined(slot));
    }

    pub(crate) fn monitors(&self, watch: u32) {
        let request = self.request();
        assert!(matches!(request.op, Op::Monitor { .. }), "{request:?}");
        let state = PeerState::Unknown;
        self.ok(
            request.id,
            &MonitorOk { watch, host_id: 2, timeout_us: 900, pbsize: 0, state, slot: 0, incarnation: 0 },
        );
    }
}

pub(crate) fn joined(slot: u8) -> JoinOk {
    JoinOk { slot, incarnation: 3, pbsize: 100 }
}

pub(crate) fn lane_ok(handle: u8) -> LaneOk {
    LaneOk {
        handle,
        lane: 12,
        packet_max_bytes: 150,
        message_max_bytes: 100,
        period_ns: 1_000_000,
        bounded: true,
        latency_min_ns: 5_000,
        jitter_max_ns: 7_000,
        trees: 2,
    }
}

/// Runs the agent's part on a thread beside the client's.
pub(crate) fn beside<A: Send, C>(agent: impl FnOnce() -> A + Send, client: impl FnOnce() -> C) -> (A, C) {
    std::thread::scope(|scope| {
        let agent = scope.spawn(agent);
        let done = client();
        (agent.join().unwrap(), done)
    })
}

pub(crate) fn connected(agent: &FakeAgent) -> (Peer, Client) {
    let ((peer, asked), client) = beside(|| agent.greet("one"), || Client::connect(agent.options()).unwrap());
    assert_eq!(asked, None);
    (peer, client)
}

pub(crate) fn up(watch: u32, incarnation: u32) -> EventRecord {
    EventRecord { kind: kind::UP, watch, host: 2, slot: 4, incarnation, ..Default::default() }
}

pub(crate) fn killed(watch: u32, incarnation: u32) -> EventRecord {
    EventRecord { kind: kind::VERDICT, ..up(watch, incarnation) }.with_reason(Reason::Killed(9))
}
