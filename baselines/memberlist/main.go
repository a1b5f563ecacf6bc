// SPDX-License-Identifier: Apache-2.0

// memberlist-node is one member of a hashicorp/memberlist cluster, the SWIM
// implementation that Fide's detection of a silent host is compared with.
//
// It prints one JSON object per line and event, stamped with CLOCK_MONOTONIC in
// ns, which all processes of a machine share:
//
//	{"event":"ready","node":"h1","ns":1}    it listens, and has joined if told to
//	{"event":"alive","node":"h2","ns":1}    NotifyJoin
//	{"event":"dead","node":"h2","ns":1}     NotifyLeave: the verdict
//	{"event":"suspect","node":"h2","ns":1}  it suspects somebody, or hears that somebody is suspected
//	{"event":"refute","node":"h1","ns":1}   it was suspected itself, and says it is alive
//
// It ends when its standard input does, so that it never outlives who started it.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sys/unix"
)

type event struct {
	Event string `json:"event"`
	Node  string `json:"node"`
	Ns    int64  `json:"ns"`
}

var (
	outMu sync.Mutex
	out   = json.NewEncoder(os.Stdout)
)

func nowNs() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		fail("clock_gettime: %v", err)
	}
	return t.Nano()
}

func emit(kind, node string) {
	e := event{kind, node, nowNs()}
	outMu.Lock()
	defer outMu.Unlock()
	_ = out.Encode(e)
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "memberlist-node: "+format+"\n", args...)
	os.Exit(1)
}

// delegate prints the notifications that memberlist gives its users.
type delegate struct{}

func (delegate) NotifyJoin(n *memberlist.Node)   { emit("alive", n.Name) }
func (delegate) NotifyLeave(n *memberlist.Node)  { emit("dead", n.Name) }
func (delegate) NotifyUpdate(n *memberlist.Node) {}

// logWatch finds suspicions, which memberlist tells nobody but its log.
type logWatch struct {
	self    string
	verbose bool
}

func (w logWatch) Write(line []byte) (int, error) {
	switch {
	case bytes.Contains(line, []byte("Refuting a suspect message")):
		emit("refute", w.self)
	case bytes.Contains(line, []byte("Suspect ")):
		_, rest, _ := strings.Cut(string(line), "Suspect ")
		node, _, _ := strings.Cut(rest, " ")
		emit("suspect", node)
	}
	if w.verbose {
		os.Stderr.Write(line)
	}
	return len(line), nil
}

func main() {
	var (
		role     = flag.String("role", "member", "watch prints all events, member only ready and refute")
		name     = flag.String("name", "", "node name, required")
		bind     = flag.String("bind", "127.0.0.1", "address to bind and advertise")
		port     = flag.Int("port", 7946, "port, UDP and TCP")
		join     = flag.String("join", "", "comma-separated members to join through; empty: wait to be joined")
		preset   = flag.String("config", "lan", "lan: DefaultLANConfig; fast: DefaultLocalConfig. The flags below override it")
		verbose  = flag.Bool("verbose", false, "memberlist's log to stderr")
		probe    = flag.Duration("probe-interval", 0, "time between probes")
		timeout  = flag.Duration("probe-timeout", 0, "time to wait for a probe's answer")
		suspMult = flag.Int("suspicion-mult", 0, "suspicion timeout = this * log10(n) * probe interval")
		suspMax  = flag.Int("suspicion-max-mult", 0, "unconfirmed suspicion lasts this times longer")
		gossip   = flag.Duration("gossip-interval", 0, "time between gossip messages")
		nodes    = flag.Int("gossip-nodes", 0, "nodes to gossip to at a time")
		indirect = flag.Int("indirect-checks", -1, "nodes asked to probe in our stead")
		aware    = flag.Int("awareness-max", 0, "most that a node stretches its timeouts by when it finds itself slow")
	)
	flag.Parse()
	if *name == "" {
		fail("-name is required")
	}
	var c *memberlist.Config
	switch *preset {
	case "lan":
		c = memberlist.DefaultLANConfig()
	case "fast":
		c = memberlist.DefaultLocalConfig()
	default:
		fail("-config is lan or fast, not %q", *preset)
	}
	c.Name = *name
	c.BindAddr, c.BindPort = *bind, *port
	c.AdvertiseAddr, c.AdvertisePort = *bind, *port
	setDuration(&c.ProbeInterval, *probe)
	setDuration(&c.ProbeTimeout, *timeout)
	setDuration(&c.GossipInterval, *gossip)
	setInt(&c.SuspicionMult, *suspMult, 1)
	setInt(&c.SuspicionMaxTimeoutMult, *suspMax, 1)
	setInt(&c.GossipNodes, *nodes, 1)
	setInt(&c.IndirectChecks, *indirect, 0)
	setInt(&c.AwarenessMaxMultiplier, *aware, 1)
	watch := *role == "watch"
	switch {
	case watch:
		c.Events = delegate{}
		c.LogOutput = nil
		c.Logger = log.New(logWatch{*name, *verbose}, "", 0)
	case *role == "member":
		c.LogOutput = nil
		c.Logger = log.New(logWatch{*name, *verbose}, "", 0)
	default:
		fail("-role is watch or member, not %q", *role)
	}
	list, err := memberlist.Create(c)
	if err != nil {
		fail("%v", err)
	}
	if *join != "" {
		if err := joinAll(list, strings.Split(*join, ",")); err != nil {
			fail("joining %s: %v", *join, err)
		}
	}
	emit("ready", *name)

	done := make(chan os.Signal, 1)
	signal.Notify(done, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		done <- syscall.SIGTERM
	}()
	<-done
}

// joinAll tries for five seconds: the others may still be starting.
func joinAll(list *memberlist.Memberlist, through []string) error {
	const tries, pause = 50, 100 * time.Millisecond
	var err error
	for range tries {
		if _, err = list.Join(through); err == nil {
			return nil
		}
		time.Sleep(pause)
	}
	return err
}

func setDuration(to *time.Duration, value time.Duration) {
	if value > 0 {
		*to = value
	}
}

func setInt(to *int, value, least int) {
	if value >= least {
		*to = value
	}
}
