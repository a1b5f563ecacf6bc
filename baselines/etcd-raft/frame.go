// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"

	pb "go.etcd.io/raft/v3/raftpb"
)

// The numbers of raftpb.Message's and raftpb.Entry's fields, with the wire type, as they are written.
const (
	varint, lengthDelimited = 0, 2

	tagEntries    = 7<<3 | lengthDelimited
	tagEntryType  = 1<<3 | varint
	tagEntryTerm  = 2<<3 | varint
	tagEntryIndex = 3<<3 | varint
	tagEntryData  = 4<<3 | lengthDelimited
)

var errMalformed = errors.New("a malformed message")

// unmarshal decodes a message. Its own Unmarshal copies each entry's value to a place of its own, and grows the list of
// entries again and again; a third of a follower's time went there. So the entries, which are written one after another,
// are decoded here, from one copy of them all. b is not kept.
func unmarshal(b []byte) (pb.Message, error) {
	var m pb.Message
	from, to, count, err := findEntries(b)
	if err != nil {
		return m, err
	}
	// Decoding twice into one message merges the two.
	if err := m.Unmarshal(b[:from]); err != nil {
		return m, err
	}
	if count == 0 {
		return m, nil
	}
	m.Entries = make([]pb.Entry, count)
	rest := bytes.Clone(b[from:to])
	for i := range m.Entries {
		_, rest, _ = uvarint(rest)
		var body []byte
		if body, rest, err = delimited(rest); err != nil {
			return m, err
		}
		if err := unmarshalEntry(&m.Entries[i], body); err != nil {
			return m, err
		}
	}
	return m, m.Unmarshal(b[to:])
}

// findEntries gives where the first run of entries is, and how many there are.
func findEntries(b []byte) (from, to, count int, err error) {
	rest := b
	for len(rest) > 0 {
		at := len(b) - len(rest)
		tag, after, err := uvarint(rest)
		if err != nil {
			return 0, 0, 0, err
		}
		if tag != tagEntries && count > 0 {
			return from, at, count, nil
		}
		switch tag & 7 {
		case varint:
			_, rest, err = uvarint(after)
		case lengthDelimited:
			_, rest, err = delimited(after)
		default:
			err = errMalformed
		}
		if err != nil {
			return 0, 0, 0, err
		}
		if tag == tagEntries {
			if count == 0 {
				from = at
			}
			count++
		}
	}
	if count == 0 {
		from = len(b)
	}
	return from, len(b), count, nil
}

func unmarshalEntry(e *pb.Entry, b []byte) error {
	for len(b) > 0 {
		tag, rest, err := uvarint(b)
		if err != nil {
			return err
		}
		var number uint64
		switch tag {
		case tagEntryType:
			number, b, err = uvarint(rest)
			e.Type = pb.EntryType(number)
		case tagEntryTerm:
			e.Term, b, err = uvarint(rest)
		case tagEntryIndex:
			e.Index, b, err = uvarint(rest)
		case tagEntryData:
			e.Data, b, err = delimited(rest)
		default:
			err = errMalformed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	// Most are tags and small numbers.
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:], nil
	}
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errMalformed
	}
	return v, b[n:], nil
}

func delimited(b []byte) (value, rest []byte, err error) {
	n, b, err := uvarint(b)
	if err != nil || n > uint64(len(b)) {
		return nil, nil, errMalformed
	}
	return b[:n:n], b[n:], nil
}
