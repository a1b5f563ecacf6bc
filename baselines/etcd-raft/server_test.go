// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	stdnet "net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// Long enough for a machine with much else to do.
const patience = 30 * time.Second

// heard is any event.
type heard struct {
	Event, Run, Hash, Why             string
	Node, ID, Term, Leader, Decisions uint64
	Applied                           uint64
	Clients                           int
	PerSecond                         float64 `json:"per_second"`
	P50Us                             float64 `json:"p50_us"`
	P99Us                             float64 `json:"p99_us"`
	MaxUs                             float64 `json:"max_us"`
}

// node is a server in this process.
type node struct {
	*server
	heard chan heard
	done  chan error
}

type cluster struct {
	t         *testing.T
	nodes     map[uint64]*node
	addresses map[uint64]netip.AddrPort
}

func startCluster(t *testing.T, n uint64) *cluster {
	c := &cluster{t, map[uint64]*node{}, map[uint64]netip.AddrPort{}}
	listeners := map[uint64]int{}
	for id := uint64(1); id <= n; id++ {
		fd, at, err := listen(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		listeners[id], c.addresses[id] = fd, at
	}
	for id, listener := range listeners {
		in, out := io.Pipe()
		s, err := newServer(options{
			id: id, addresses: c.addresses, tick: 10 * time.Millisecond, electionTicks: 10, listener: listener,
			logger: quiet(), events: newEvents(out),
		})
		if err != nil {
			t.Fatal(err)
		}
		started := &node{s, make(chan heard, 100), make(chan error, 1)}
		c.nodes[id] = started
		go func() {
			for lines := json.NewDecoder(in); ; {
				var e heard
				if lines.Decode(&e) != nil {
					return
				}
				started.heard <- e
			}
		}()
		go func() { started.done <- s.run(); out.Close() }()
	}
	t.Cleanup(func() {
		for id := range c.nodes {
			c.kill(id)
		}
	})
	return c
}

// kill ends a node; its peers see what they see when its process dies.
func (c *cluster) kill(id uint64) {
	n := c.nodes[id]
	delete(c.nodes, id)
	n.end()
	select {
	case err := <-n.done:
		if err != nil {
			c.t.Errorf("node %d: %v", id, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("node %d does not end", id)
	}
	n.close()
}

func (c *cluster) await(id uint64, what string, wanted func(e heard) bool) heard {
	c.t.Helper()
	late := time.After(patience)
	for {
		select {
		case e := <-c.nodes[id].heard:
			if wanted(e) {
				return e
			}
		case <-late:
			c.t.Fatalf("node %d: no %s", id, what)
		}
	}
}

func (c *cluster) awaitLeader(id uint64, wanted func(e heard) bool) heard {
	c.t.Helper()
	return c.await(id, "leader", func(e heard) bool { return e.Event == "leader" && wanted(e) })
}

func (c *cluster) awaitFirst() {
	c.t.Helper()
	for id := range c.nodes {
		if e := c.awaitLeader(id, func(heard) bool { return true }); e.ID != firstLeader {
			c.t.Fatalf("%d leads first", e.ID)
		}
	}
}

func (c *cluster) order(id uint64, name string, seconds float64) {
	c.nodes[id].do(command{order: order{Run: name, Clients: 32, ValueBytes: 64, Seconds: seconds}})
}

// run gives the result, or the refusal.
func (c *cluster) run(id uint64, name string) heard {
	c.t.Helper()
	c.order(id, name, 0.2)
	return c.await(id, "result", func(e heard) bool { return e.Run == name })
}

// agreed waits until all that are left have applied the same, and gives how much that is.
func (c *cluster) agreed() uint64 {
	c.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		var states []heard
		for id, n := range c.nodes {
			n.do(command{State: true})
			states = append(states, c.await(id, "state", func(e heard) bool { return e.Event == "state" }))
		}
		differs := func(e heard) bool { return e.Applied != states[0].Applied || e.Hash != states[0].Hash }
		if !slices.ContainsFunc(states, differs) {
			return states[0].Applied
		}
		if time.Now().After(end) {
			c.t.Fatalf("they differ: %+v", states)
		}
	}
}

func TestALoadIsDecidedByAll(t *testing.T) {
	c := startCluster(t, 3)
	c.awaitFirst()
	var decisions uint64
	for _, name := range []string{"first", "second"} {
		e := c.run(1, name)
		if e.Event != "result" || e.Decisions == 0 || e.Clients != 32 {
			t.Fatalf("%+v", e)
		}
		if !(0 < e.P50Us && e.P50Us <= e.P99Us && e.P99Us <= e.MaxUs*1.001) {
			t.Errorf("latencies %v, %v, %v", e.P50Us, e.P99Us, e.MaxUs)
		}
		decisions += e.Decisions
	}
	if applied := c.agreed(); applied < decisions {
		t.Errorf("%d values were applied, and %d decided", applied, decisions)
	}
}

func TestAFollowerRefusesALoad(t *testing.T) {
	c := startCluster(t, 3)
	c.awaitFirst()
	if e := c.run(2, "a"); e.Event != "refused" || e.Leader != 1 || e.Why == "" {
		t.Errorf("%+v", e)
	}
}

func TestAKilledFollowerStopsNobody(t *testing.T) {
	c := startCluster(t, 3)
	c.awaitFirst()
	c.order(1, "a", 0.5)
	time.Sleep(100 * time.Millisecond)
	c.kill(3)
	if e := c.await(1, "result", func(e heard) bool { return e.Run == "a" }); e.Event != "result" {
		t.Fatalf("%+v", e)
	}
	if e := c.run(1, "b"); e.Event != "result" || e.Decisions == 0 {
		t.Errorf("%+v", e)
	}
	c.agreed()
}

func TestAKilledLeaderIsReplaced(t *testing.T) {
	c := startCluster(t, 3)
	c.awaitFirst()
	before := c.run(1, "a")
	c.order(1, "b", 10)
	time.Sleep(100 * time.Millisecond)
	c.kill(1)
	e := c.awaitLeader(2, func(e heard) bool { return e.ID != 1 })
	if e.Term < 3 {
		t.Errorf("the term is %d", e.Term)
	}
	c.awaitLeader(3, func(o heard) bool { return o.ID == e.ID && o.Term == e.Term })
	after := c.run(e.ID, "c")
	if after.Event != "result" || after.Decisions == 0 {
		t.Fatalf("%+v", after)
	}
	if applied := c.agreed(); applied < before.Decisions+after.Decisions {
		t.Errorf("%d values were applied, %d and %d decided", applied, before.Decisions, after.Decisions)
	}
}

func TestALeaderWithoutAMajorityGivesUp(t *testing.T) {
	c := startCluster(t, 3)
	c.awaitFirst()
	c.order(1, "a", 20)
	c.kill(2)
	c.kill(3)
	if e := c.await(1, "refusal", func(e heard) bool { return e.Run == "a" }); e.Event != "refused" {
		t.Errorf("%+v", e)
	}
}

// A connection that breaks, and one of somebody who is no peer.
func TestConnectionsComeBack(t *testing.T) {
	c := startCluster(t, 3)
	c.awaitFirst()
	for _, bytes := range [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		// A peer's greeting, which takes the place of its connection, and then a frame that is too long.
		append(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, helloMagic), 2), 255, 255, 255, 255),
		// And a frame of nonsense.
		append(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, helloMagic), 3), 2, 0, 0, 0, 9, 9),
	} {
		conn, err := stdnet.Dial("tcp", c.addresses[1].String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write(bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("it was not closed: %v", err)
		}
		conn.Close()
		leader := uint64(0)
		// There may be an election while both followers are away.
		for end := time.Now().Add(patience); leader == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			for id := range c.nodes {
				if e := c.run(id, "a"); e.Event == "result" && e.Decisions > 0 {
					leader = id
					break
				}
			}
		}
		if leader == 0 {
			t.Fatal("no decisions any more")
		}
	}
	c.agreed()
}

func TestOrdersAreChecked(t *testing.T) {
	good := order{"a", 16, 64, 1}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func(o *order){
		func(o *order) { o.Clients = 0 },
		func(o *order) { o.Clients = clientsMax + 1 },
		func(o *order) { o.ValueBytes = valueBytesMin - 1 },
		func(o *order) { o.ValueBytes = valueBytesMax + 1 },
		func(o *order) { o.Clients, o.ValueBytes = clientsMax, valueBytesMax },
		func(o *order) { o.Seconds = 0 },
		func(o *order) { o.Seconds = secondsMax + 1 },
	} {
		o := good
		spoil(&o)
		if o.check() == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestPeersAreRead(t *testing.T) {
	peers, err := parsePeers("1=10.0.0.1:7000,2=[::1]:7001")
	if err != nil || len(peers) != 2 || peers[2].Port() != 7001 {
		t.Errorf("%v: %v", peers, err)
	}
	for _, bad := range []string{"", "1", "1=10.0.0.1:7000", "0=10.0.0.1:7000,1=10.0.0.2:7000", "1=a:1,2=b:2",
		"1=10.0.0.1:7000,1=10.0.0.2:7000", "256=10.0.0.1:7000,1=10.0.0.2:7000"} {
		if _, err := parsePeers(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestALoadCountsItsOwnValuesOnce(t *testing.T) {
	l := newLoad(order{"a", 2, 16, 10}, 7, 0)
	entries := l.next(0)
	if len(entries) != 2 || len(l.next(0)) != 0 {
		t.Fatal("each client proposes once")
	}
	now := 5 * time.Second
	if err := l.applied([]byte("somebody else's value"), now); err != nil || l.decisions != 0 {
		t.Errorf("another's value: %v, %d", err, l.decisions)
	}
	if err := l.applied(entries[0].Data, now); err != nil || l.decisions != 1 {
		t.Errorf("its value: %v, %d", err, l.decisions)
	}
	if err := l.applied(entries[0].Data, now); err == nil {
		t.Error("its value was applied twice")
	}
	if l.over(11*time.Second) || len(l.next(12*time.Second)) != 0 || !l.over(13*time.Second) {
		t.Error("it ends when all values are applied, or a second after its time")
	}
}
