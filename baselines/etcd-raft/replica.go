// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

const (
	// The log is cut when this many entries or bytes came since the last cut, and then holds what came since the one
	// before: at most two such spans are in memory, and who lags by less than one needs no snapshot. (etcd keeps 5000.)
	cutEntries = 8 << 10
	cutBytes   = 8 << 20

	// All by measurement: larger messages are no faster and keep a follower waiting for their ends; the others only have
	// to be more than what closed-loop clients have outstanding.
	maxSizePerMsg    = 64 << 10
	maxInflightMsgs  = 1024
	maxInflightBytes = 8 << 20

	// All nodes begin with a log that was cut here, so that the membership takes no entries.
	firstIndex, firstTerm = 1, 1
)

// state is what the log's values make: their number, and a hash that depends on their order.
type state struct {
	applied, hash uint64
}

// Words of a value by twos, both halves of their product. As examples/counter has it.
func (s *state) apply(value []byte) {
	const odd = 0x9e3779b97f4a7c15
	sum, place := uint64(len(value)), uint64(odd)
	add := func(low, high uint64) {
		h, l := bits.Mul64(low^place, high^bits.RotateLeft64(place, 32))
		sum += h ^ l
		place += odd
	}
	for ; len(value) >= 16; value = value[16:] {
		add(binary.LittleEndian.Uint64(value), binary.LittleEndian.Uint64(value[8:]))
	}
	for _, b := range value {
		add(uint64(b), 0)
	}
	s.hash = bits.RotateLeft64((s.hash^sum)*odd, 29)
	s.applied++
}

const stateBytes = 16

func (s state) marshal() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, s.applied), s.hash)
}

func unmarshalState(b []byte) (state, error) {
	if len(b) == 0 {
		return state{}, nil
	}
	if len(b) != stateBytes {
		return state{}, fmt.Errorf("a snapshot of %d bytes, not %d", len(b), stateBytes)
	}
	return state{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}, nil
}

type leadership struct{ leader, term uint64 }

// host is what a replica is run by.
type host interface {
	// send takes a message along to its peer; false if that is out of reach. The message is not kept.
	send(m *pb.Message) bool
	// applied gets the entries that were applied, in the log's order, including entries without a value.
	applied(entries []pb.Entry)
	// led gets the new leader.
	led(l leadership)
}

// replica is one member of the group: the library's state machine, the log in memory, and the values applied. Its
// methods are called by one goroutine; it knows neither sockets nor clocks.
type replica struct {
	id      uint64
	raw     *raft.RawNode
	storage *raft.MemoryStorage
	host    host
	state   state

	leader, term uint64
	reported     leadership

	voters       pb.ConfState
	appliedIndex uint64
	// What came since the last cut, and where that was.
	entries, bytes int
	lastCut        uint64
}

func newReplica(id uint64, voters []uint64, electionTicks int, h host, logger raft.Logger) (*replica, error) {
	conf := pb.ConfState{Voters: voters}
	storage := raft.NewMemoryStorage()
	begin := pb.Snapshot{Metadata: pb.SnapshotMetadata{Index: firstIndex, Term: firstTerm, ConfState: conf}}
	if err := storage.ApplySnapshot(begin); err != nil {
		return nil, err
	}
	if err := storage.SetHardState(pb.HardState{Term: firstTerm, Commit: firstIndex}); err != nil {
		return nil, err
	}
	raw, err := raft.NewRawNode(&raft.Config{
		ID:                        id,
		ElectionTick:              electionTicks,
		HeartbeatTick:             1,
		Storage:                   storage,
		Applied:                   firstIndex,
		MaxSizePerMsg:             maxSizePerMsg,
		MaxCommittedSizePerReady:  math.MaxUint64,
		MaxInflightMsgs:           maxInflightMsgs,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		Logger:                    logger,
	})
	if err != nil {
		return nil, err
	}
	return &replica{
		id: id, raw: raw, storage: storage, host: h, voters: conf,
		term: firstTerm, appliedIndex: firstIndex, lastCut: firstIndex,
	}, nil
}

func (r *replica) leads() bool { return r.leader == r.id }

// propose takes entries whose Data alone is set; they are the log's from now on. It fails at who does not lead.
func (r *replica) propose(entries []pb.Entry) error {
	return r.raw.Step(pb.Message{Type: pb.MsgProp, From: r.id, Entries: entries})
}

// turn does all that the library has ready, and hands its messages to the host. What the host proposes while values are
// applied is for the next turn.
func (r *replica) turn() error {
	for r.raw.HasReady() {
		rd := r.raw.Ready()
		if !raft.IsEmptySnap(rd.Snapshot) {
			if err := r.restore(rd.Snapshot); err != nil {
				return err
			}
		}
		if !raft.IsEmptyHardState(rd.HardState) {
			r.term = rd.HardState.Term
			if err := r.storage.SetHardState(rd.HardState); err != nil {
				return err
			}
		}
		if rd.SoftState != nil {
			r.leader = rd.SoftState.Lead
		}
		if now := (leadership{r.leader, r.term}); now.leader != raft.None && now != r.reported {
			r.reported = now
			r.host.led(now)
		}
		if err := r.storage.Append(rd.Entries); err != nil {
			return err
		}
		r.send(rd.Messages)
		if len(rd.CommittedEntries) > 0 {
			r.applyAll(rd.CommittedEntries)
		}
		r.raw.Advance(rd)
		if err := r.cut(); err != nil {
			return err
		}
	}
	return nil
}

// send leaves out acknowledgements that a later one of the same batch covers, as etcd does.
func (r *replica) send(messages []pb.Message) {
	var last *pb.Message
	for i := len(messages) - 1; i >= 0; i-- {
		m := &messages[i]
		switch {
		case m.Type != pb.MsgAppResp || m.Reject:
		case last != nil && last.To == m.To && last.Term == m.Term && last.Index >= m.Index:
			m.To = raft.None
		default:
			last = m
		}
	}
	for i := range messages {
		m := &messages[i]
		if m.To == raft.None {
			continue
		}
		sent := r.host.send(m)
		if m.Type == pb.MsgSnap {
			status := raft.SnapshotFinish
			if !sent {
				status = raft.SnapshotFailure
			}
			r.raw.ReportSnapshot(m.To, status)
		}
		if !sent {
			r.raw.ReportUnreachable(m.To)
		}
	}
}

func (r *replica) applyAll(entries []pb.Entry) {
	for i := range entries {
		e := &entries[i]
		r.bytes += len(e.Data)
		if holdsValue(e) {
			r.state.apply(e.Data)
		}
	}
	r.entries += len(entries)
	r.appliedIndex = entries[len(entries)-1].Index
	r.host.applied(entries)
}

// holdsValue is false for a new leader's first entry. The membership never changes, so that there are no other kinds.
func holdsValue(e *pb.Entry) bool { return e.Type == pb.EntryNormal && len(e.Data) > 0 }

func (r *replica) restore(snapshot pb.Snapshot) error {
	s, err := unmarshalState(snapshot.Data)
	if err != nil {
		return err
	}
	if err := r.storage.ApplySnapshot(snapshot); err != nil {
		return err
	}
	r.state = s
	r.appliedIndex = snapshot.Metadata.Index
	r.lastCut, r.entries, r.bytes = r.appliedIndex, 0, 0
	return nil
}

// cut bounds the log in memory.
func (r *replica) cut() error {
	if r.entries < cutEntries && r.bytes < cutBytes {
		return nil
	}
	if _, err := r.storage.CreateSnapshot(r.appliedIndex, &r.voters, r.state.marshal()); err != nil {
		return err
	}
	if err := r.storage.Compact(r.lastCut); err != nil && err != raft.ErrCompacted {
		return err
	}
	r.lastCut, r.entries, r.bytes = r.appliedIndex, 0, 0
	return nil
}
