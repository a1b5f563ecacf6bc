// SPDX-License-Identifier: Apache-2.0

// etcd-raft-node is one member of a log replicated by go.etcd.io/raft, the Raft library of etcd, which Fide's agreement
// is compared with. The log is in memory only, as Fide's is; so a node that ended must not be started again among those
// that go on: it has forgotten what it promised.
//
// Node 1 leads first. Each line of standard input is a JSON object:
//
//	{"run":"a","clients":16,"value_bytes":64,"seconds":5}  closed-loop clients in this process, which has to lead: each
//	                                                       proposes a value, waits until it is applied, and goes on
//	{"state":true}                                         what was applied so far
//
// It prints one JSON object per line and event. ns is CLOCK_MONOTONIC, which all processes of a machine share:
//
//	{"event":"ready","node":1,"ns":1}                      it listens
//	{"event":"leader","node":2,"id":1,"term":2,"ns":1}     node 2 learns that node 1 leads
//	{"event":"result","run":"a","decisions":9,"seconds":5,"per_second":1.8,"p50_us":1,"p99_us":1,"max_us":1,"clients":16}
//	                                                       from proposed to applied at the leader; a fifth of the time
//	                                                       passes before, uncounted
//	{"event":"state","node":1,"applied":9,"hash":"0f"}     number of values, and a hash that depends on their order
//	{"event":"refused","run":"a","leader":2,"why":"..."}   it does not lead (0: nobody does), or no longer
//
// It ends when its standard input does, so that it never outlives who started it, or after -limit.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/raft/v3"
)

const (
	// Garbage is collected when this much memory is in use and not before. Little of it is ever live, so that this is
	// once in many thousand decisions; at Go's default, a few MiB, it cost half of them.
	memoryBytes = 256 << 20
	// Who does not end within this is ended.
	endTime = 2 * time.Second
)

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "etcd-raft-node: "+format+"\n", args...)
	os.Exit(1)
}

func parsePeers(text string) (map[uint64]netip.AddrPort, error) {
	peers := make(map[uint64]netip.AddrPort)
	for _, part := range strings.Split(text, ",") {
		number, address, _ := strings.Cut(part, "=")
		id, err := strconv.ParseUint(number, 10, 8)
		if err != nil || id == 0 {
			return nil, fmt.Errorf("a peer is written 1=10.0.0.1:7000, with a number from 1 to 255, not %q", part)
		}
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, fmt.Errorf("peer %d: %v", id, err)
		}
		if _, twice := peers[id]; twice {
			return nil, fmt.Errorf("peer %d is given twice", id)
		}
		peers[id] = at
	}
	if len(peers) < 2 {
		return nil, errors.New("there are at least two nodes")
	}
	return peers, nil
}

func main() {
	var (
		id       = flag.Uint64("id", 0, "this node's number, required")
		list     = flag.String("peers", "", "all nodes, this one too: 1=10.0.0.1:7000,2=10.0.0.2:7000,...")
		tick     = flag.Duration("tick", 10*time.Millisecond, "Raft's clock; a heartbeat each")
		election = flag.Int("election-ticks", 10, "a leader that is silent for this many ticks, up to twice as many, is replaced")
		spin     = flag.Duration("spin", 0, "poll this long before sleeping; for nodes that have a core each")
		limit    = flag.Duration("limit", time.Hour, "the node ends by itself after this long")
		verbose  = flag.Bool("verbose", false, "Raft's log to stderr")
	)
	flag.Parse()
	peers, err := parsePeers(*list)
	if err != nil {
		fail("-peers: %v", err)
	}
	self, ok := peers[*id]
	switch {
	case !ok:
		fail("-id %d is not among -peers", *id)
	case *tick < time.Millisecond:
		fail("-tick is at least 1ms, not %v", *tick)
	case *election < 2:
		fail("-election-ticks is at least 2, not %d", *election)
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryBytes)
	out := io.Discard
	if *verbose {
		out = os.Stderr
	}
	listener, _, err := listen(self)
	if err != nil {
		fail("listening at %v: %v", self, err)
	}
	s, err := newServer(options{
		id:            *id,
		addresses:     peers,
		tick:          *tick,
		electionTicks: *election,
		spin:          *spin,
		listener:      listener,
		logger:        &raft.DefaultLogger{Logger: log.New(out, "", log.Lmicroseconds)},
		events:        newEvents(os.Stdout),
	})
	if err != nil {
		fail("%v", err)
	}

	end := sync.OnceFunc(func() {
		time.AfterFunc(endTime, func() { fail("it did not end within %v", endTime) })
		s.end()
	})
	time.AfterFunc(*limit, end)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-asked; end() }()
	go func() { obeyLines(s, os.Stdin); end() }()
	if err := s.run(); err != nil {
		fail("%v", err)
	}
}

// obeyLines hands on commands until there are no more.
func obeyLines(s *server, in io.Reader) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			s.events.emit(refusedEvent{Event: "refused", Why: err.Error()})
			continue
		}
		s.do(c)
	}
}
