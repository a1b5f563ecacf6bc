// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

const (
	// The node that stands for election at the start. The others wait this long for it before they do.
	firstLeader = 1
	beginTime   = 3 * time.Second

	// Sockets that are looked at per turn.
	eventsMax   = 64
	commandsMax = 16
)

type peer struct {
	id      uint64
	address netip.AddrPort
	// nil while there is none.
	conn *conn
	// When it was last tried.
	dialled time.Duration
}

type options struct {
	id uint64
	// Of all nodes, this one too.
	addresses     map[uint64]netip.AddrPort
	tick          time.Duration
	electionTicks int
	// How long a node polls without sleeping after the last message.
	spin time.Duration
	// A listening socket, which the server closes.
	listener int
	logger   raft.Logger
	events   *events
}

// server is a node: one goroutine that waits for sockets, clock and commands and does everything itself. No message is
// handed from one goroutine to another, and all that arrived at once becomes one batch. (With net.Conn, a goroutine for
// each connection and channels between them it made a third fewer decisions.)
type server struct {
	options
	peers   map[uint64]*peer
	conns   map[int]*conn
	dirty   []*conn
	replica *replica
	load    *load
	begun   time.Time
	// When this node last stood for election by itself.
	campaigned time.Duration

	epoll, timer, wake int
	commands           chan command
	stop               chan struct{}
	// What must not happen, and ends the node.
	broken error
}

func newServer(o options) (*server, error) {
	s := &server{
		options:  o,
		peers:    make(map[uint64]*peer),
		conns:    make(map[int]*conn),
		begun:    time.Now(),
		commands: make(chan command, commandsMax),
		stop:     make(chan struct{}),
		epoll:    -1, timer: -1, wake: -1,
	}
	var voters []uint64
	for id, address := range o.addresses {
		voters = append(voters, id)
		if id != o.id {
			s.peers[id] = &peer{id: id, address: address, dialled: -redialTime}
		}
	}
	var err error
	if s.replica, err = newReplica(o.id, voters, o.electionTicks, s, o.logger); err == nil {
		err = s.open()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) open() (err error) {
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	every := unix.NsecToTimespec(int64(s.tick))
	if err = unix.TimerfdSettime(s.timer, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		return err
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	for _, fd := range []int{s.listener, s.timer, s.wake} {
		if err = s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	return nil
}

// close is called once nobody calls anything else.
func (s *server) close() {
	for fd := range s.conns {
		unix.Close(fd)
	}
	for _, fd := range []int{s.listener, s.timer, s.wake, s.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (s *server) watch(op, fd int, what uint32) error {
	return unix.EpollCtl(s.epoll, op, fd, &unix.EpollEvent{Events: what, Fd: int32(fd)})
}

func (s *server) now() time.Duration { return time.Since(s.begun) }

// run serves until end is called, or until what must not happen does.
func (s *server) run() (err error) {
	// The library panics with a text when its invariants are broken, say by a node that was started again.
	defer func() {
		if why := recover(); why != nil {
			text, ok := why.(string)
			if !ok {
				panic(why)
			}
			err = fmt.Errorf("raft: %s", text)
		}
	}()
	s.dialAll()
	s.events.emit(readyEvent{"ready", s.id, monotonicNs()})
	var found [eventsMax]unix.EpollEvent
	for {
		n, err := s.wait(found[:])
		if err != nil && err != unix.EINTR {
			return err
		}
		ticked := false
		for i := range max(n, 0) {
			e := &found[i]
			switch fd := int(e.Fd); fd {
			case s.listener:
				s.accept()
			case s.timer:
				ticked = drain(fd)
			case s.wake:
				drain(fd)
			default:
				if c := s.conns[fd]; c != nil {
					s.serve(c, e.Events)
				}
			}
		}
		// After what arrived, and once however many periods passed: a node that stood still must not take its own absence
		// for the leader's.
		if ticked {
			s.ticked()
		}
		if s.ended() {
			return nil
		}
		if err := s.work(); err != nil {
			return err
		}
	}
}

func (s *server) wait(found []unix.EpollEvent) (int, error) {
	if s.spin > 0 {
		for until := s.now() + s.spin; s.now() < until; {
			if n, err := unix.EpollWait(s.epoll, found, 0); n > 0 {
				return n, err
			}
		}
	}
	return unix.EpollWait(s.epoll, found, -1)
}

func drain(fd int) bool {
	var b [8]byte
	n, _ := unix.Read(fd, b[:])
	return n == len(b)
}

// ended obeys the commands that have come, and says whether one of them was to end.
func (s *server) ended() bool {
	for {
		select {
		case <-s.stop:
			return true
		case c := <-s.commands:
			s.obey(c)
		default:
			return false
		}
	}
}

// work does what the library has ready and lets clients propose, until there is no more, and sends what came of it.
func (s *server) work() error {
	for {
		if err := s.replica.turn(); err != nil {
			return err
		}
		if s.broken != nil {
			return s.broken
		}
		if s.load == nil {
			break
		}
		if !s.replica.leads() {
			s.lost(errors.New("it leads no more"))
			break
		}
		now := s.now()
		entries := s.load.next(now)
		if len(entries) == 0 {
			if s.load.over(now) {
				s.events.emit(s.load.result())
				s.load = nil
			}
			break
		}
		if err := s.replica.propose(entries); err != nil {
			s.lost(err)
		}
	}
	s.flush()
	return nil
}

// lost ends a run that cannot go on.
func (s *server) lost(why error) {
	s.events.emit(refusedEvent{"refused", s.load.order.Run, s.replica.leader, why.Error()})
	s.load = nil
}

func (s *server) obey(c command) {
	if c.State {
		st := s.replica.state
		s.events.emit(stateEvent{"state", s.id, st.applied, fmt.Sprintf("%016x", st.hash)})
		return
	}
	err := c.order.check()
	switch {
	case err != nil:
	case !s.replica.leads():
		err = errors.New("it does not lead")
	case s.load != nil:
		err = errors.New("another run is on")
	}
	if err != nil {
		s.events.emit(refusedEvent{"refused", c.Run, s.replica.leader, err.Error()})
		return
	}
	s.load = newLoad(c.order, uint64(monotonicNs())<<8|s.id, s.now())
}

func (s *server) ticked() {
	now := s.now()
	begun := s.replica.term > firstTerm || s.replica.leader != raft.None || now >= beginTime
	switch pause := s.tick * time.Duration(s.electionTicks); {
	case begun:
		s.replica.raw.Tick()
	case s.id == firstLeader && s.connected() && (s.campaigned == 0 || now-s.campaigned >= pause):
		s.campaigned = now
		_ = s.replica.raw.Campaign()
	}
	s.dialAll()
}

func (s *server) connected() bool {
	for _, p := range s.peers {
		if p.conn == nil || p.conn.dialling {
			return false
		}
	}
	return true
}

// What other goroutines call.

// do hands a command over.
func (s *server) do(c command) {
	select {
	case s.commands <- c:
		s.rouse()
	case <-s.stop:
	}
}

// end is called once.
func (s *server) end() {
	close(s.stop)
	s.rouse()
}

func (s *server) rouse() { _, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// What the replica calls.

func (s *server) send(m *pb.Message) bool {
	p := s.peers[m.To]
	if p == nil || p.conn == nil || p.conn.dialling || !p.conn.queue(m) {
		return false
	}
	s.soil(p.conn)
	return true
}

func (s *server) applied(entries []pb.Entry) {
	if s.load == nil {
		return
	}
	now := s.now()
	for i := range entries {
		if err := s.load.applied(entries[i].Data, now); err != nil {
			s.broken = err
		}
	}
}

func (s *server) led(l leadership) {
	s.events.emit(leaderEvent{"leader", s.id, l.leader, l.term, monotonicNs()})
}

// What a connection calls.

func (s *server) knows(peer uint64) bool { return s.peers[peer] != nil }

// step drops what the library does not take: messages of former terms, mostly.
func (s *server) step(m pb.Message) { _ = s.replica.raw.Step(m) }
