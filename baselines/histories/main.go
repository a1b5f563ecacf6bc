// SPDX-License-Identifier: Apache-2.0

// histories-judge decides by porcupine whether histories of a replicated set of registers are linearizable.
//
// Each argument is a file of JSON lines, one operation a line; all files together are one history:
//
//	{"client":3,"op":"write","key":0,"value":17,"call":100,"return":250}
//	{"client":4,"op":"read","key":0,"call":120,"return":260,"found":17}
//	{"client":5,"op":"cas","key":0,"old":17,"value":21,"call":300,"return":400,"found":17}
//	{"client":6,"op":"write","key":1,"value":33,"call":310}
//
// "found" is what the register held just before; a cas took effect if that equals "old". Times are nanoseconds of one
// clock. An operation without "return" was never answered: it may take effect at any time after its call, or never.
// Registers hold 0 at first, and no value is written twice.
//
// It prints one JSON object, and draws each register whose history is not linearizable to PREFIX-KEY.html.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// Longest line that is read, bytes.
const lineMax = 4096

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "histories-judge: "+format+"\n", args...)
	os.Exit(1)
}

// readHistory reads operations, one a line.
func readHistory(from io.Reader) ([]operation, error) {
	var all []operation
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, lineMax), lineMax)
	for number := 1; lines.Scan(); number++ {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if err := op.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		all = append(all, op)
	}
	return all, lines.Err()
}

func main() {
	limit := flag.Duration("limit", time.Minute, "time for each register; beyond it the verdict is \"unknown\"")
	prefix := flag.String("draw", "", "prefix of the drawings of registers that are not linearizable; empty draws none")
	flag.Parse()
	var history []operation
	for _, path := range flag.Args() {
		file, err := os.Open(path)
		if err != nil {
			fail("%v", err)
		}
		part, err := readHistory(file)
		file.Close()
		if err != nil {
			fail("%s: %v", path, err)
		}
		history = append(history, part...)
	}
	verdict, err := judge(history, *limit, *prefix)
	if err != nil {
		fail("%v", err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdict); err != nil {
		fail("%v", err)
	}
}
