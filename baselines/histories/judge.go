// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is one line of a history.
type operation struct {
	Client int     `json:"client"`
	Op     string  `json:"op"`
	Key    uint8   `json:"key"`
	Old    uint64  `json:"old,omitempty"`
	Value  uint64  `json:"value,omitempty"`
	Call   int64   `json:"call"`
	Return *int64  `json:"return,omitempty"`
	Found  *uint64 `json:"found,omitempty"`
	Host   int     `json:"host,omitempty"`
}

func (op *operation) check() error {
	if op.Op != "read" && op.Op != "write" && op.Op != "cas" {
		return fmt.Errorf("op is read, write or cas, not %q", op.Op)
	}
	if op.Return != nil && *op.Return < op.Call {
		return fmt.Errorf("it returns at %d, before its call at %d", *op.Return, op.Call)
	}
	if op.Return != nil && op.Found == nil && op.Op != "write" {
		return fmt.Errorf("a %s with an answer says what it found", op.Op)
	}
	return nil
}

// changes tells whether the operation is known to have set the register.
func (op *operation) changes() bool {
	return op.Return != nil && (op.Op == "write" || op.Op == "cas" && *op.Found == op.Old)
}

// model is one register. The state is its value.
var model = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, _ any) (bool, any) {
		now, op := state.(uint64), input.(*operation)
		if op.Return != nil && op.Found != nil && *op.Found != now {
			return false, state
		}
		if op.Op == "write" || op.Op == "cas" && now == op.Old {
			return true, op.Value
		}
		return true, state
	},
	Equal: func(a, b any) bool { return a.(uint64) == b.(uint64) },
	Hash:  func(state any) uint64 { return state.(uint64) },
	DescribeOperation: func(input, _ any) string {
		op := input.(*operation)
		text := op.Op
		switch op.Op {
		case "write":
			text = fmt.Sprintf("write %x", op.Value)
		case "cas":
			text = fmt.Sprintf("cas %x to %x", op.Old, op.Value)
		}
		switch {
		case op.Return == nil:
			text += ", no answer"
		case op.Found != nil:
			text += fmt.Sprintf(", found %x", *op.Found)
		}
		if op.Host != 0 {
			text += fmt.Sprintf(" (h%d)", op.Host)
		}
		return text
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%x", state) },
}

// stale is an answer with a value that had been overwritten before the question: enough to say that a history is not
// linearizable, and easier to understand than a drawing.
type stale struct {
	Key    uint8  `json:"key"`
	Client int    `json:"client"`
	Host   int    `json:"host,omitempty"`
	Found  uint64 `json:"found"`
	// CLOCK_MONOTONIC of the question.
	CallNs int64 `json:"call_ns"`
	// How long the value had been overwritten at least.
	AgeNs int64 `json:"age_ns"`
}

type verdict struct {
	// "ok", "illegal", or "unknown" if the time was over.
	Verdict    string `json:"verdict"`
	Operations int    `json:"operations"`
	// Of these, those that were never answered.
	Open    int      `json:"open"`
	Illegal []int    `json:"illegal_keys,omitempty"`
	Drawn   []string `json:"drawn,omitempty"`
	Stale   int      `json:"stale"`
	Oldest  *stale   `json:"oldest,omitempty"`
	Seconds float64  `json:"seconds"`
}

// judge asks porcupine about each register by itself: a history is linearizable if and only if each of its registers' is.
func judge(history []operation, limit time.Duration, prefix string) (verdict, error) {
	begun := time.Now()
	result := verdict{Verdict: "ok", Operations: len(history)}
	byKey := map[uint8][]*operation{}
	for at := range history {
		op := &history[at]
		byKey[op.Key] = append(byKey[op.Key], op)
		if op.Return == nil {
			result.Open++
		}
	}
	keys := make([]int, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, int(key))
	}
	sort.Ints(keys)
	for _, number := range keys {
		key := uint8(number)
		answers := staleAnswers(byKey[key])
		result.Stale += len(answers)
		for at := range answers {
			if result.Oldest == nil || answers[at].AgeNs > result.Oldest.AgeNs {
				result.Oldest = &answers[at]
			}
		}
		checked, info := porcupine.CheckOperationsVerbose(model, convert(byKey[key]), limit)
		switch checked {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			if result.Verdict == "ok" {
				result.Verdict = "unknown"
			}
			continue
		case porcupine.Illegal:
			result.Verdict = "illegal"
			result.Illegal = append(result.Illegal, number)
		}
		if prefix == "" {
			continue
		}
		path := fmt.Sprintf("%s-%d.html", prefix, key)
		if err := porcupine.VisualizePath(model, info, path); err != nil {
			return result, err
		}
		result.Drawn = append(result.Drawn, path)
	}
	result.Seconds = time.Since(begun).Seconds()
	return result, nil
}

// convert gives what porcupine takes. It numbers clients from 0 without gaps.
//
// What was never answered may have taken effect at any time since, or not at all, and each such operation can double what porcupine has to
// try. Most say nothing: a read; and a change whose value nobody found and no swap without an answer expects, as every answer between it and the
// next change would have found it, so that the history is linearizable without it if it is with it. A change whose value was found took effect before
// the first such answer.
func convert(history []*operation) []porcupine.Operation {
	clients := map[int]int{}
	all := make([]porcupine.Operation, 0, len(history))
	found, writers, swapped := map[uint64]int64{}, map[uint64]int{}, map[uint64]bool{}
	for _, op := range history {
		if op.Op != "read" {
			writers[op.Value]++
		}
		if op.Return == nil && op.Op == "cas" {
			swapped[op.Old] = true
		}
		if op.Return == nil || op.Found == nil {
			continue
		}
		if first, known := found[*op.Found]; !known || *op.Return < first {
			found[*op.Found] = *op.Return
		}
	}
	for _, op := range history {
		first, wasFound := found[op.Value]
		if op.Return == nil && (op.Op == "read" || !wasFound && !swapped[op.Value]) {
			continue
		}
		if _, known := clients[op.Client]; !known {
			clients[op.Client] = len(clients)
		}
		end := int64(math.MaxInt64)
		switch {
		case op.Return != nil:
			end = *op.Return
		// Each other writer, and the register at first, may be the one that was found.
		case wasFound && writers[op.Value] == 1 && op.Value != 0 && first >= op.Call:
			end = first
		}
		all = append(all, porcupine.Operation{ClientId: clients[op.Client], Input: op, Call: op.Call, Return: end})
	}
	return all
}

// staleAnswers finds answers whose value was overwritten before they were asked for: by a change that was called after the one
// that wrote the value had been answered, and that was answered before the question.
func staleAnswers(history []*operation) []stale {
	written := map[uint64]*operation{}
	var changes []*operation
	for _, op := range history {
		if _, before := written[op.Value]; before && op.Op != "read" {
			// Either may be the one that was found.
			written[op.Value] = &operation{}
		} else if op.Op != "read" {
			written[op.Value] = op
		}
		if op.changes() {
			changes = append(changes, op)
		}
	}
	// By call; with each, the earliest return from there on.
	sort.Slice(changes, func(a, b int) bool { return changes[a].Call < changes[b].Call })
	earliest := make([]int64, len(changes)+1)
	earliest[len(changes)] = math.MaxInt64
	for at := len(changes) - 1; at >= 0; at-- {
		earliest[at] = earliest[at+1]
		if end := *changes[at].Return; end < earliest[at] {
			earliest[at] = end
		}
	}
	var found []stale
	for _, op := range history {
		if op.Return == nil || op.Found == nil {
			continue
		}
		// The value at first was there before all.
		wrote := int64(math.MinInt64)
		if by, known := written[*op.Found]; known {
			if by.Return == nil {
				// When it took effect is not known.
				continue
			}
			wrote = *by.Return
		} else if *op.Found != 0 {
			continue
		}
		after := sort.Search(len(changes), func(at int) bool { return changes[at].Call > wrote })
		if over := earliest[after]; over < op.Call {
			found = append(found, stale{op.Key, op.Client, op.Host, *op.Found, op.Call, op.Call - over})
		}
	}
	return found
}
