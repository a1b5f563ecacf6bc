// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	redialTime = 50 * time.Millisecond
	// An attempt that takes longer is given up.
	dialTime = 250 * time.Millisecond
	// More connections than that are closed at once.
	connsMax = 1024
)

// dialAll begins the connections that are missing and are this node's to begin.
func (s *server) dialAll() {
	now := s.now()
	for _, p := range s.peers {
		if c := p.conn; c != nil {
			if c.dialling && now-p.dialled > dialTime {
				s.drop(c)
			}
			continue
		}
		if s.id < p.id || now-p.dialled < redialTime {
			continue
		}
		p.dialled = now
		fd, err := dial(p.address)
		if err != nil {
			continue
		}
		c := &conn{fd: fd, peer: p.id, dialling: true}
		if err := s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLOUT); err != nil {
			unix.Close(fd)
			continue
		}
		s.conns[fd] = c
		p.conn = c
	}
}

// accept takes in all who dialled. Whose a connection is, its first bytes tell.
func (s *server) accept() {
	for {
		fd, _, err := unix.Accept4(s.listener, socketFlags)
		if err != nil {
			return
		}
		if len(s.conns) >= connsMax || tune(fd) != nil || s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN) != nil {
			unix.Close(fd)
			continue
		}
		s.conns[fd] = &conn{fd: fd}
	}
}

// drop closes a connection; what was not sent is lost, and the library learns that it has to be sent again.
func (s *server) drop(c *conn) {
	if c.fd < 0 {
		return
	}
	unix.Close(c.fd)
	delete(s.conns, c.fd)
	c.fd = -1
	if p := s.peers[c.peer]; p != nil && p.conn == c {
		p.conn = nil
		s.replica.raw.ReportUnreachable(p.id)
	}
}

// serve does what a connection is ready for.
func (s *server) serve(c *conn, what uint32) {
	if c.dialling {
		failure, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || failure != 0 {
			s.drop(c)
			return
		}
		c.dialling = false
		c.queueHello(s.id)
		s.soil(c)
		_ = s.watch(unix.EPOLL_CTL_MOD, c.fd, unix.EPOLLIN)
		return
	}
	if what&unix.EPOLLOUT != 0 {
		_ = s.watch(unix.EPOLL_CTL_MOD, c.fd, unix.EPOLLIN)
		c.blocked = false
		s.soil(c)
	}
	if what&^uint32(unix.EPOLLOUT) == 0 {
		return
	}
	stranger := c.peer == 0
	if err := c.read(s); err != nil {
		s.drop(c)
		return
	}
	if stranger && c.peer != 0 {
		// It dials anew only when it has given up the former one.
		p := s.peers[c.peer]
		if p.conn != nil {
			s.drop(p.conn)
		}
		p.conn = c
	}
}

func (s *server) soil(c *conn) {
	if !c.dirty {
		c.dirty = true
		s.dirty = append(s.dirty, c)
	}
}

// flush sends what was queued since the last one, in one write to each peer.
func (s *server) flush() {
	for _, c := range s.dirty {
		c.dirty = false
		if c.fd < 0 || c.blocked {
			continue
		}
		if err := c.flush(); err != nil {
			s.drop(c)
		} else if c.blocked {
			_ = s.watch(unix.EPOLL_CTL_MOD, c.fd, unix.EPOLLIN|unix.EPOLLOUT)
		}
	}
	s.dirty = s.dirty[:0]
}
