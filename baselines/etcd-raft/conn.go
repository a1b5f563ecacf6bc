// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

const (
	// A frame is its length, 4 bytes little endian, and a raftpb.Message.
	headerBytes = 4
	frameMax    = 4 << 20
	// Messages beyond this much unsent are dropped; the library sends them again.
	unsentMax = 16 << 20
	readBytes = 256 << 10
	// Buffers that grew beyond this are given back once they are empty.
	keptBytes = 1 << 20

	helloMagic = 0x7466_6172 // "raft"
	helloBytes = 16
)

// conn is a TCP connection between two nodes, for both directions, so that acknowledgements of TCP's ride on what is sent
// anyway. The peer with the higher number dials.
type conn struct {
	fd int
	// 0 until it is known whose it is.
	peer uint64
	// It was dialled from here, and is not established yet.
	dialling bool

	in  []byte
	out []byte
	// Of out.
	sent int
	// The kernel took less than all, and tells when it takes more.
	blocked bool
	dirty   bool
}

// queue appends a message to what flush sends.
func (c *conn) queue(m *pb.Message) bool {
	size := m.Size()
	if len(c.out)-c.sent+size > unsentMax || size > frameMax {
		return false
	}
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(size))
	at := len(c.out)
	c.out = grow(c.out, size)[:at+size]
	if _, err := m.MarshalToSizedBuffer(c.out[at:]); err != nil {
		c.out = c.out[:at-headerBytes]
		return false
	}
	return true
}

func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	larger := make([]byte, len(b), max(2*cap(b), len(b)+n, 64<<10))
	copy(larger, b)
	return larger
}

func (c *conn) queueHello(self uint64) {
	c.out = binary.LittleEndian.AppendUint64(c.out, helloMagic)
	c.out = binary.LittleEndian.AppendUint64(c.out, self)
}

// flush sends what the kernel takes without waiting.
func (c *conn) flush() error {
	for c.sent < len(c.out) {
		n, err := unix.Write(c.fd, c.out[c.sent:])
		switch err {
		case nil:
			c.sent += n
		case unix.EINTR:
		case unix.EAGAIN:
			c.blocked = true
			c.compact()
			return nil
		default:
			return err
		}
	}
	c.out, c.sent, c.blocked = c.out[:0], 0, false
	if cap(c.out) > keptBytes {
		c.out = nil
	}
	return nil
}

func (c *conn) compact() {
	if c.sent > len(c.out)/2 {
		c.out = c.out[:copy(c.out, c.out[c.sent:])]
		c.sent = 0
	}
}

// receiver is what a connection hands its messages to.
type receiver interface {
	knows(peer uint64) bool
	step(m pb.Message)
}

// read takes what has arrived, up to readBytes, and hands on each whole message.
func (c *conn) read(to receiver) error {
	c.in = grow(c.in, readBytes)
	n, err := unix.Read(c.fd, c.in[len(c.in):cap(c.in)])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("closed by the peer")
	}
	c.in = c.in[:len(c.in)+n]
	used, err := c.decode(to)
	if err != nil {
		return err
	}
	c.in = c.in[:copy(c.in, c.in[used:])]
	if len(c.in) == 0 && cap(c.in) > keptBytes {
		c.in = nil
	}
	return nil
}

func (c *conn) decode(to receiver) (int, error) {
	used := 0
	if c.peer == 0 {
		if len(c.in) < helloBytes {
			return 0, nil
		}
		magic, id := binary.LittleEndian.Uint64(c.in), binary.LittleEndian.Uint64(c.in[8:])
		if magic != helloMagic || !to.knows(id) {
			return 0, fmt.Errorf("not a peer's greeting")
		}
		c.peer = id
		used = helloBytes
	}
	for {
		rest := c.in[used:]
		if len(rest) < headerBytes {
			return used, nil
		}
		size := int(binary.LittleEndian.Uint32(rest))
		if size > frameMax {
			return used, fmt.Errorf("a frame of %d bytes", size)
		}
		if len(rest)-headerBytes < size {
			return used, nil
		}
		m, err := unmarshal(rest[headerBytes : headerBytes+size])
		if err != nil {
			return used, err
		}
		if m.From != c.peer {
			return used, fmt.Errorf("a message from %d over the connection of %d", m.From, c.peer)
		}
		used += headerBytes + size
		to.step(m)
	}
}
