// SPDX-License-Identifier: Apache-2.0

// Clients of a Redis server, from Go: client PORT. Prints what they are answered.
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func one(at int, said []string) {
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	check(err)
	defer connection.Close()
	from, seen := bufio.NewReader(connection), sha256.New()
	answer := func() {
		line, err := from.ReadString('\n')
		check(err)
		io.WriteString(seen, line)
		var count int
		if fmt.Sscanf(line, "$%d", &count); line[0] == '$' && count >= 0 {
			body := make([]byte, count+2)
			_, err = io.ReadFull(from, body)
			check(err)
			seen.Write(body)
		}
	}
	for turn := 0; turn < 300; turn++ {
		value := strings.Repeat("x", 1+turn*turn%20000)
		fmt.Fprintf(connection, "*3\r\n$3\r\nSET\r\n$2\r\ng%d\r\n$%d\r\n%s\r\nGET g%d\r\n", at, len(value), value, at)
		answer()
		answer()
	}
	for turn := 0; turn < 1000; turn++ {
		fmt.Fprintf(connection, "INCR go%d\r\n", at)
	}
	for turn := 0; turn < 1000; turn++ {
		answer()
	}
	said[at] = fmt.Sprintf("%x", seen.Sum(nil))
}

func main() {
	said := make([]string, 10)
	var all sync.WaitGroup
	for at := range said {
		all.Add(1)
		go func() {
			defer all.Done()
			one(at, said)
		}()
	}
	all.Wait()
	fmt.Println(strings.Join(said, "\n"))
}
