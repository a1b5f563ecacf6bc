// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"log"
	"math/rand/v2"
	"reflect"
	"testing"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

func quiet() raft.Logger { return &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)} }

// net passes messages between replicas, by hand, without time.
type net struct {
	t        *testing.T
	replicas map[uint64]*replica
	// Nobody hears of it.
	cut     uint64
	waiting []pb.Message
	values  map[uint64][]string
}

// port is one replica's side of a net.
type port struct {
	*net
	id uint64
}

func (p port) send(m *pb.Message) bool {
	if p.cut == m.To || p.cut == p.id {
		return false
	}
	// What is on its way may not change with what its sender keeps.
	b, err := m.Marshal()
	if err != nil {
		p.t.Fatal(err)
	}
	sent, err := unmarshal(b)
	if err != nil {
		p.t.Fatal(err)
	}
	p.waiting = append(p.waiting, sent)
	return true
}

func (p port) led(leadership) {}

func (p port) applied(entries []pb.Entry) {
	for i := range entries {
		if holdsValue(&entries[i]) {
			p.values[p.id] = append(p.values[p.id], string(entries[i].Data))
		}
	}
}

func newNet(t *testing.T, n uint64) *net {
	w := &net{t: t, replicas: map[uint64]*replica{}, values: map[uint64][]string{}}
	var voters []uint64
	for id := uint64(1); id <= n; id++ {
		voters = append(voters, id)
	}
	for _, id := range voters {
		r, err := newReplica(id, voters, 10, port{w, id}, quiet())
		if err != nil {
			t.Fatal(err)
		}
		w.replicas[id] = r
	}
	return w
}

// settle passes messages until there are none.
func (w *net) settle() {
	w.t.Helper()
	for {
		for _, r := range w.replicas {
			if err := r.turn(); err != nil {
				w.t.Fatal(err)
			}
		}
		if len(w.waiting) == 0 {
			return
		}
		now := w.waiting
		w.waiting = nil
		for _, m := range now {
			if m.To != w.cut && m.From != w.cut {
				_ = w.replicas[m.To].raw.Step(m)
			}
		}
	}
}

func (w *net) tick(times int) {
	for range times {
		for _, r := range w.replicas {
			r.raw.Tick()
		}
		w.settle()
	}
}

func (w *net) propose(id uint64, from, to int) error {
	entries := make([]pb.Entry, to-from)
	for i := range entries {
		entries[i].Data = binary.LittleEndian.AppendUint64(nil, uint64(from+i))
	}
	err := w.replicas[id].propose(entries)
	w.settle()
	return err
}

func (w *net) lead(id uint64) {
	w.t.Helper()
	if err := w.replicas[id].raw.Campaign(); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	if !w.replicas[id].leads() {
		w.t.Fatalf("node %d does not lead", id)
	}
}

func TestValuesAreAppliedOnceAndInOrder(t *testing.T) {
	w := newNet(t, 3)
	w.lead(1)
	for i := range 100 {
		if err := w.propose(1, i*7, i*7+7); err != nil {
			t.Fatal(err)
		}
	}
	w.tick(1)
	for id, r := range w.replicas {
		if r.state != w.replicas[1].state || r.state.applied != 700 {
			t.Errorf("node %d has %+v", id, r.state)
		}
		for i, v := range w.values[id] {
			if binary.LittleEndian.Uint64([]byte(v)) != uint64(i) {
				t.Fatalf("node %d applied %x at %d", id, v, i)
			}
		}
	}
}

func TestWhoDoesNotLeadRefuses(t *testing.T) {
	w := newNet(t, 3)
	w.lead(1)
	if err := w.propose(2, 0, 1); err == nil {
		t.Error("a follower took a value")
	}
	if w.replicas[2].leader != 1 {
		t.Errorf("it takes %d for the leader", w.replicas[2].leader)
	}
}

func TestTheLogIsCutAndWhoIsBehindItGetsASnapshot(t *testing.T) {
	w := newNet(t, 3)
	w.lead(1)
	const values, batch = 4 * cutEntries, 256
	w.cut = 3
	for i := 0; i < values; i += batch {
		if err := w.propose(1, i, i+batch); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []uint64{1, 2} {
		s := w.replicas[id].storage
		first, _ := s.FirstIndex()
		last, _ := s.LastIndex()
		if held := last - first; held > 2*(cutEntries+batch) {
			t.Errorf("node %d holds %d entries", id, held)
		}
	}
	w.cut = 0
	w.tick(5)
	for id, r := range w.replicas {
		if r.state != w.replicas[1].state || r.state.applied != values {
			t.Errorf("node %d has %+v", id, r.state)
		}
	}
	if len(w.values[3]) == values {
		t.Error("no snapshot was needed")
	}
	if err := w.propose(1, values, values+3*cutEntries); err != nil {
		t.Fatal(err)
	}
	w.tick(5)
	if r := w.replicas[3]; r.state != w.replicas[1].state {
		t.Errorf("after its snapshot it has %+v", r.state)
	}
}

func TestAnotherLeads(t *testing.T) {
	w := newNet(t, 3)
	w.lead(1)
	if err := w.propose(1, 0, 10); err != nil {
		t.Fatal(err)
	}
	w.cut = 1
	// What nobody else hears is not decided.
	_ = w.propose(1, 100, 110)
	// Elections may fail, as both may stand at once.
	leader := uint64(1)
	for tries := 0; leader == 1 || leader == raft.None; tries++ {
		if tries == 1000 {
			t.Fatal("nobody else leads")
		}
		w.tick(1)
		leader = w.replicas[2].leader
	}
	if err := w.propose(leader, 10, 20); err != nil {
		t.Fatal(err)
	}
	w.cut = 0
	w.tick(30)
	for id, r := range w.replicas {
		if r.state != w.replicas[2].state || r.state.applied != 20 {
			t.Errorf("node %d has %+v", id, r.state)
		}
	}
}

func TestTheHashDependsOnTheOrder(t *testing.T) {
	var a, b state
	for _, v := range []string{"first", "a second value"} {
		a.apply([]byte(v))
	}
	for _, v := range []string{"a second value", "first"} {
		b.apply([]byte(v))
	}
	if a.hash == b.hash {
		t.Error("it does not")
	}
	if back, err := unmarshalState(a.marshal()); err != nil || back != a {
		t.Errorf("%+v came back as %+v: %v", a, back, err)
	}
	if _, err := unmarshalState([]byte("short")); err == nil {
		t.Error("a short snapshot was taken")
	}
}

// randomMessage has each field or not.
func randomMessage(r *rand.Rand) pb.Message {
	number := func() uint64 { return r.Uint64() >> r.IntN(65) }
	data := func() []byte {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	m := pb.Message{
		Type: pb.MessageType(r.IntN(20)), To: number(), From: number(), Term: number(), LogTerm: number(),
		Index: number(), Commit: number(), Vote: number(), Reject: r.IntN(2) == 0, RejectHint: number(),
	}
	for range r.IntN(5) {
		m.Entries = append(m.Entries, pb.Entry{Type: pb.EntryType(r.IntN(3)), Term: number(), Index: number(), Data: data()})
	}
	if r.IntN(2) == 0 {
		m.Context = data()
	}
	if r.IntN(2) == 0 {
		conf := pb.ConfState{Voters: []uint64{number(), number()}}
		m.Snapshot = &pb.Snapshot{Data: data(), Metadata: pb.SnapshotMetadata{Index: number(), Term: number(), ConfState: conf}}
	}
	return m
}

func TestMessagesAreDecodedAsTheLibraryDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		m := randomMessage(r)
		b, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		var theirs pb.Message
		if err := theirs.Unmarshal(b); err != nil {
			t.Fatal(err)
		}
		kept := bytes.Clone(b)
		ours, err := unmarshal(b)
		for i := range b {
			b[i] = 0
		}
		if err != nil || !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("%x is\n%+v, not\n%+v: %v", kept, ours, theirs, err)
		}
	}
}

// FuzzUnmarshal: no bytes make it panic, and what it takes it takes as the library does.
func FuzzUnmarshal(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		m := randomMessage(r)
		b, _ := m.Marshal()
		f.Add(b)
		if len(b) > 0 {
			b = bytes.Clone(b[:r.IntN(len(b))])
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, err := unmarshal(b)
		if err != nil {
			return
		}
		var theirs pb.Message
		if err := theirs.Unmarshal(b); err != nil {
			t.Fatalf("the library refuses %x: %v", b, err)
		}
		x, err1 := ours.Marshal()
		y, err2 := theirs.Marshal()
		if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
			t.Fatalf("%x is %x, not %x", b, x, y)
		}
	})
}
