// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func verdictOf(t *testing.T, lines string) verdict {
	t.Helper()
	history, err := readHistory(strings.NewReader(strings.TrimSpace(lines)))
	if err != nil {
		t.Fatal(err)
	}
	result, err := judge(history, time.Minute, filepath.Join(t.TempDir(), "drawn"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range result.Drawn {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	return result
}

func TestHistories(t *testing.T) {
	for name, test := range map[string]struct {
		verdict     string
		open, stale int
		lines       string
	}{
		"reads see writes": {"ok", 0, 0, `
{"client":0,"op":"write","key":0,"value":1,"call":1,"return":2}
{"client":1,"op":"read","key":0,"call":3,"return":4,"found":1}`},
		"keys are apart": {"ok", 0, 0, `
{"client":0,"op":"write","key":0,"value":1,"call":1,"return":2}
{"client":1,"op":"read","key":1,"call":3,"return":4,"found":0}`},
		"a stale read": {"illegal", 0, 1, `
{"client":0,"op":"write","key":0,"value":1,"call":1,"return":2}
{"client":0,"op":"write","key":0,"value":2,"call":3,"return":4}
{"client":1,"op":"read","key":0,"call":6,"return":7,"found":1,"host":2}`},
		"a lost write": {"illegal", 0, 1, `
{"client":0,"op":"write","key":0,"value":1,"call":1,"return":2}
{"client":1,"op":"read","key":0,"call":6,"return":7,"found":0}`},
		"an open write took effect late": {"ok", 1, 0, `
{"client":0,"op":"write","key":0,"value":1,"call":1}
{"client":1,"op":"read","key":0,"call":6,"return":7,"found":0}
{"client":1,"op":"read","key":0,"call":8,"return":9,"found":1}`},
		"an open write is not undone": {"illegal", 1, 0, `
{"client":0,"op":"write","key":0,"value":1,"call":1}
{"client":1,"op":"read","key":0,"call":6,"return":7,"found":1}
{"client":1,"op":"read","key":0,"call":8,"return":9,"found":0}`},
		"an open read says nothing": {"ok", 1, 0, `
{"client":0,"op":"write","key":0,"value":1,"call":1,"return":2}
{"client":1,"op":"read","key":0,"call":6}`},
		"an open write was found before it was asked for": {"illegal", 1, 0, `
{"client":0,"op":"read","key":0,"call":1,"return":2,"found":7}
{"client":1,"op":"write","key":0,"value":7,"call":3}`},
		"an open write of a value that another wrote takes effect later": {"ok", 1, 0, `
{"client":0,"op":"write","key":0,"value":1,"call":1}
{"client":1,"op":"write","key":0,"value":1,"call":2,"return":3}
{"client":2,"op":"read","key":0,"call":4,"return":5,"found":1}
{"client":1,"op":"write","key":0,"value":2,"call":6,"return":7}
{"client":2,"op":"read","key":0,"call":8,"return":9,"found":1}`},
		"an open swap took effect between two answers": {"ok", 1, 0, `
{"client":0,"op":"cas","key":0,"old":0,"value":1,"call":1}
{"client":1,"op":"read","key":0,"call":2,"return":3,"found":0}
{"client":1,"op":"cas","key":0,"old":1,"value":2,"call":4,"return":5,"found":1}
{"client":1,"op":"read","key":0,"call":6,"return":7,"found":2}`},
		"an open swap needs an open write that nobody found": {"ok", 2, 0, `
{"client":0,"op":"write","key":0,"value":5,"call":1}
{"client":1,"op":"cas","key":0,"old":5,"value":7,"call":2}
{"client":2,"op":"read","key":0,"call":3,"return":4,"found":7}`},
		"two swaps of one value": {"illegal", 0, 0, `
{"client":0,"op":"cas","key":0,"old":0,"value":1,"call":1,"return":5,"found":0}
{"client":1,"op":"cas","key":0,"old":0,"value":2,"call":1,"return":5,"found":0}`},
		"a swap that failed": {"ok", 0, 0, `
{"client":0,"op":"write","key":0,"value":3,"call":1,"return":2}
{"client":1,"op":"cas","key":0,"old":1,"value":2,"call":3,"return":5,"found":3}
{"client":1,"op":"read","key":0,"call":6,"return":7,"found":3}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := verdictOf(t, test.lines)
			if got.Verdict != test.verdict || got.Open != test.open || got.Stale != test.stale {
				t.Errorf("%+v", got)
			}
			if illegal := test.verdict == "illegal"; illegal != (len(got.Drawn) == 1) {
				t.Errorf("drawn: %v", got.Drawn)
			}
		})
	}
}

// TestManyOpenOperations has 400 operations without an answer, none of which anybody found: trying each in each place would never end.
func TestManyOpenOperations(t *testing.T) {
	var lines strings.Builder
	for at := 0; at < 400; at++ {
		fmt.Fprintf(&lines, "{\"client\":%d,\"op\":\"write\",\"key\":0,\"value\":%d,\"call\":%d}\n", 2*at, 1000+at, 10*at)
		fmt.Fprintf(&lines, "{\"client\":1,\"op\":\"read\",\"key\":0,\"call\":%d,\"return\":%d,\"found\":0}\n", 10*at+5, 10*at+6)
	}
	if got := verdictOf(t, lines.String()); got.Verdict != "ok" || got.Open != 400 {
		t.Errorf("%+v", got)
	}
	lines.WriteString(`{"client":1,"op":"read","key":0,"call":9000,"return":9001,"found":9}`)
	if got := verdictOf(t, lines.String()); got.Verdict != "illegal" {
		t.Errorf("%+v", got)
	}
}

func TestAgeOfStaleAnswer(t *testing.T) {
	got := verdictOf(t, `
{"client":0,"op":"write","key":0,"value":1,"call":1,"return":2}
{"client":0,"op":"write","key":0,"value":2,"call":3,"return":4}
{"client":0,"op":"write","key":0,"value":3,"call":5,"return":6}
{"client":1,"op":"read","key":0,"call":100,"return":101,"found":1,"host":3}`)
	if got.Oldest == nil || got.Oldest.AgeNs != 96 || got.Oldest.Host != 3 {
		t.Errorf("%+v", got.Oldest)
	}
}

func TestBadLines(t *testing.T) {
	for _, line := range []string{
		`{`, `{"op":"add"}`, `{"op":"write","key":300}`, `{"op":"read","call":5,"return":4,"found":1}`, `{"op":"read","call":5,"return":6}`,
	} {
		if _, err := readHistory(strings.NewReader(line)); err == nil {
			t.Errorf("%s: no error", line)
		}
	}
}
