// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

type readyEvent struct {
	Event string `json:"event"`
	Node  uint64 `json:"node"`
	Ns    int64  `json:"ns"`
}

// leaderEvent: a node learns that another, ID, leads.
type leaderEvent struct {
	Event string `json:"event"`
	Node  uint64 `json:"node"`
	ID    uint64 `json:"id"`
	Term  uint64 `json:"term"`
	Ns    int64  `json:"ns"`
}

type resultEvent struct {
	Event     string  `json:"event"`
	Run       string  `json:"run"`
	Decisions uint64  `json:"decisions"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	P50Us     float64 `json:"p50_us"`
	P99Us     float64 `json:"p99_us"`
	MaxUs     float64 `json:"max_us"`
	Clients   int     `json:"clients"`
}

type stateEvent struct {
	Event   string `json:"event"`
	Node    uint64 `json:"node"`
	Applied uint64 `json:"applied"`
	Hash    string `json:"hash"`
}

// refusedEvent: what was asked is not done, or not to its end. Leader is 0 while there is none.
type refusedEvent struct {
	Event  string `json:"event"`
	Run    string `json:"run,omitempty"`
	Leader uint64 `json:"leader"`
	Why    string `json:"why"`
}

// command is a line of standard input.
type command struct {
	order
	State bool `json:"state"`
}

// events prints one JSON object per line.
type events struct {
	mu  sync.Mutex
	out *json.Encoder
}

func newEvents(w io.Writer) *events { return &events{out: json.NewEncoder(w)} }

func (e *events) emit(event any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.out.Encode(event)
}

// monotonicNs is CLOCK_MONOTONIC, which all processes of a machine share.
func monotonicNs() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("clock_gettime: %v", err))
	}
	return t.Nano()
}
