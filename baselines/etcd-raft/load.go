// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	pb "go.etcd.io/raft/v3/raftpb"
)

const (
	// A value begins with the run, the client, and the client's count.
	valueBytesMin = 16
	valueBytesMax = 64 << 10
	clientsMax    = 64 << 10
	// All clients' values at once.
	outstandingBytesMax = 32 << 20
	secondsMax          = 600

	// This part of the measured time comes before it and is not counted.
	warmUpFraction = 5
	// What is still outstanding at the end is waited for this long.
	drainTime = time.Second

	latencyNsMax  = int64(120 * time.Second)
	latencyDigits = 3
)

// order is what a run is asked to do.
type order struct {
	Run        string  `json:"run"`
	Clients    int     `json:"clients"`
	ValueBytes int     `json:"value_bytes"`
	Seconds    float64 `json:"seconds"`
}

func (o order) check() error {
	switch {
	case o.Clients < 1 || o.Clients > clientsMax:
		return fmt.Errorf("clients is from 1 to %d, not %d", clientsMax, o.Clients)
	case o.ValueBytes < valueBytesMin || o.ValueBytes > valueBytesMax:
		return fmt.Errorf("value_bytes is from %d to %d, not %d", valueBytesMin, valueBytesMax, o.ValueBytes)
	case o.Clients*o.ValueBytes > outstandingBytesMax:
		return fmt.Errorf("clients times value_bytes is at most %d", outstandingBytesMax)
	case !(o.Seconds > 0 && o.Seconds <= secondsMax):
		return fmt.Errorf("seconds is more than 0 and at most %d, not %v", secondsMax, o.Seconds)
	}
	return nil
}

type client struct {
	count uint32
	// When its value was proposed.
	since time.Duration
}

// load is a run of closed-loop clients: each has one value outstanding, and proposes the next when it is applied.
type load struct {
	order   order
	run     uint64
	clients []client
	// Who may propose the next value.
	idle []uint32
	// What a value holds besides.
	filler []byte

	warm, end, drained time.Duration
	// Those applied between warm and end.
	decisions uint64
	latency   *hdrhistogram.Histogram
	maxNs     int64
}

// newLoad begins at now; run is part of all its values, and no other load has it.
func newLoad(o order, run uint64, now time.Duration) *load {
	measured := time.Duration(o.Seconds * float64(time.Second))
	l := &load{
		order:   o,
		run:     run,
		clients: make([]client, o.Clients),
		idle:    make([]uint32, o.Clients),
		latency: hdrhistogram.New(1, latencyNsMax, latencyDigits),
	}
	for i := range l.idle {
		l.idle[i] = uint32(i)
	}
	l.filler = make([]byte, o.ValueBytes-valueBytesMin)
	for i := range l.filler {
		l.filler[i] = byte(i)
	}
	l.warm = now + measured/warmUpFraction
	l.end = l.warm + measured
	l.drained = l.end + drainTime
	return l
}

// applied counts a value that was applied at now. Others' values are none of its business.
func (l *load) applied(value []byte, now time.Duration) error {
	if len(value) < valueBytesMin || binary.LittleEndian.Uint64(value) != l.run {
		return nil
	}
	id, count := binary.LittleEndian.Uint32(value[8:]), binary.LittleEndian.Uint32(value[12:])
	if int(id) >= len(l.clients) || l.clients[id].count != count {
		return fmt.Errorf("client %d's value %d was applied out of turn", id, count)
	}
	c := &l.clients[id]
	c.count++
	l.idle = append(l.idle, id)
	if now >= l.warm && now < l.end {
		l.decisions++
		ns := int64(now - c.since)
		l.maxNs = max(l.maxNs, ns)
		_ = l.latency.RecordValue(min(ns, latencyNsMax))
	}
	return nil
}

// next gives the idle clients' values; none once the time is over.
func (l *load) next(now time.Duration) []pb.Entry {
	if len(l.idle) == 0 || now >= l.end {
		return nil
	}
	// One allocation for all: they are dropped together too, when the log is cut.
	size := l.order.ValueBytes
	values := make([]byte, len(l.idle)*size)
	entries := make([]pb.Entry, len(l.idle))
	for i, id := range l.idle {
		c := &l.clients[id]
		c.since = now
		value := values[i*size : (i+1)*size : (i+1)*size]
		binary.LittleEndian.PutUint64(value, l.run)
		binary.LittleEndian.PutUint32(value[8:], id)
		binary.LittleEndian.PutUint32(value[12:], c.count)
		copy(value[valueBytesMin:], l.filler)
		entries[i].Data = value
	}
	l.idle = l.idle[:0]
	return entries
}

// over says whether nothing is left to wait for.
func (l *load) over(now time.Duration) bool {
	return now >= l.drained || now >= l.end && len(l.idle) == len(l.clients)
}

func (l *load) result() resultEvent {
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	return resultEvent{
		Event:     "result",
		Run:       l.order.Run,
		Decisions: l.decisions,
		Seconds:   l.order.Seconds,
		PerSecond: float64(l.decisions) / l.order.Seconds,
		P50Us:     us(l.latency.ValueAtQuantile(50)),
		P99Us:     us(l.latency.ValueAtQuantile(99)),
		MaxUs:     us(l.maxNs),
		Clients:   l.order.Clients,
	}
}
