// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// A connection over which nothing is acknowledged for this long is given up, also when nothing is sent.
	userTimeoutMs = 1000
	keepaliveS    = 1

	backlog = 64
)

func sockaddr(a netip.AddrPort) (unix.Sockaddr, int) {
	if a.Addr().Unmap().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, unix.AF_INET6
}

const socketFlags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// dial begins a connection; it is there when it can be written to.
func dial(to netip.AddrPort) (int, error) {
	address, family := sockaddr(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|socketFlags, 0)
	if err != nil {
		return -1, err
	}
	if err := tune(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if err := unix.Connect(fd, address); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func tune(fd int) error {
	for _, o := range [...]struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeoutMs},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepaliveS},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepaliveS},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}

// listen gives a listening socket and its address, whose port is chosen if it was 0.
func listen(at netip.AddrPort) (int, netip.AddrPort, error) {
	address, family := sockaddr(at)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|socketFlags, 0)
	if err != nil {
		return -1, at, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, address)
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	var bound unix.Sockaddr
	if err == nil {
		bound, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, at, err
	}
	switch b := bound.(type) {
	case *unix.SockaddrInet4:
		at = netip.AddrPortFrom(at.Addr(), uint16(b.Port))
	case *unix.SockaddrInet6:
		at = netip.AddrPortFrom(at.Addr(), uint16(b.Port))
	}
	return fd, at, nil
}
