// SPDX-License-Identifier: Apache-2.0

// A session of go-redis with a group whose leaders die meanwhile; see ../README.md.
//
// usage: session IP:PORT,IP:PORT,... FAIL-OVERS
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Rounds of each task before a leader dies, and again after it.
const rounds = 50

// Longest wait for those rounds.
const limit = 180 * time.Second

// After each round: other tests run beside this session.
const pause = 2 * time.Millisecond

var script = redis.NewScript(
	"local n = redis.call('INCR', KEYS[1]); redis.call('RPUSH', KEYS[2], n); return n")

// A promise that was not kept.
type broken struct{ why string }

func (b broken) Error() string { return b.why }

func breaks(format string, args ...any) error { return broken{fmt.Sprintf(format, args...)} }

// A task failed in a way that a fail-over explains: nothing to wait for came.
var errSilent = errors.New("silent: nothing came within a second")

type session struct {
	ctx             context.Context
	master, replica *redis.Client
	news            <-chan *redis.Message
	stop            atomic.Bool
	reads, messages atomic.Int64

	lock      sync.Mutex
	fault     error
	written   map[string]string
	pushed    []string
	numbers   map[string][]int64
	greatest  map[string]int64
	errors    map[string]int
	lastWrite time.Time
	gap       time.Duration
}

// Notes an acknowledged write, at most one of keys and a number of a counter among it.
func (s *session) acknowledge(counter string, number int64, keys map[string]string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	now := time.Now()
	if !s.lastWrite.IsZero() {
		s.gap = max(s.gap, now.Sub(s.lastWrite))
	}
	s.lastWrite = now
	for key, value := range keys {
		s.written[key] = value
	}
	if counter != "" {
		s.numbers[counter] = append(s.numbers[counter], number)
		s.greatest[counter] = max(s.greatest[counter], number)
	}
}

type task struct {
	name  string
	round func(s *session, name string, number int) error
	done  atomic.Int64
}

func write(s *session, name string, number int) error {
	key := fmt.Sprintf("%s:%d", name, number)
	if err := s.master.Set(s.ctx, key, number, 0).Err(); err != nil {
		return err
	}
	s.acknowledge("", 0, map[string]string{key: fmt.Sprint(number)})
	counted, err := s.master.Incr(s.ctx, "counter").Result()
	if err == nil {
		s.acknowledge("counter", counted, nil)
	}
	return err
}

func writeMany(s *session, name string, number int) error {
	keys := map[string]string{}
	pipe := s.master.Pipeline()
	for part := range 10 {
		key := fmt.Sprintf("%s:%d:%d", name, number, part)
		keys[key] = fmt.Sprint(part)
		pipe.Set(s.ctx, key, part, 0)
	}
	counted := pipe.Incr(s.ctx, "counter")
	if _, err := pipe.Exec(s.ctx); err != nil {
		return err
	}
	s.acknowledge("counter", counted.Val(), keys)
	return nil
}

// Both counters are read, and written if nobody else has written them meanwhile.
func transact(s *session, _ string, _ int) error {
	var right *redis.IntCmd
	both := func(tx *redis.Tx) error {
		found, err := tx.MGet(s.ctx, "left", "right").Result()
		if err != nil {
			return err
		}
		if found[0] != found[1] {
			return breaks("a transaction was applied in part: left is %v, right %v", found[0], found[1])
		}
		text, _ := found[0].(string)
		left, _ := strconv.ParseInt(text, 10, 64)
		_, err = tx.TxPipelined(s.ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(s.ctx, "left", left+1, 0)
			right = pipe.Incr(s.ctx, "right")
			return nil
		})
		return err
	}
	for {
		err := s.master.Watch(s.ctx, both, "left", "right")
		if err == redis.TxFailedErr {
			continue
		}
		if err == nil {
			s.acknowledge("right", right.Val(), nil)
		}
		return err
	}
}

func runScript(s *session, _ string, _ int) error {
	number, err := script.Run(s.ctx, s.master, []string{"scripted", "log"}).Int64()
	if err == nil {
		s.acknowledge("scripted", number, nil)
	}
	return err
}

func push(s *session, _ string, number int) error {
	item := fmt.Sprintf("item%d", number)
	if err := s.master.RPush(s.ctx, "queue", item).Err(); err != nil {
		return err
	}
	s.acknowledge("", 0, nil)
	s.lock.Lock()
	s.pushed = append(s.pushed, item)
	s.lock.Unlock()
	return nil
}

func move(s *session, _ string, _ int) error {
	err := s.master.BLMove(s.ctx, "queue", "done", "LEFT", "RIGHT", time.Second).Err()
	if err == redis.Nil {
		return errSilent
	}
	return err
}

func read(s *session, _ string, _ int) error {
	s.lock.Lock()
	least := s.greatest["counter"]
	s.lock.Unlock()
	found, err := s.replica.Get(s.ctx, "counter").Int64()
	if err == redis.Nil {
		found, err = 0, nil
	}
	if err == nil && found < least {
		return breaks("a read at a replica missed an acknowledged write: counter %d, not at least %d", found, least)
	}
	if err == nil {
		s.reads.Add(1)
	}
	return err
}

func publish(s *session, _ string, number int) error {
	return s.master.Publish(s.ctx, "news", number).Err()
}

func hear(s *session, _ string, _ int) error {
	select {
	case <-s.news:
		s.messages.Add(1)
		return nil
	case <-time.After(time.Second):
		return errSilent
	}
}

// The kind of an error that a fail-over explains, or "".
func kind(err error) string {
	for _, code := range []string{"LOADING", "READONLY", "TRYAGAIN", "UNKNOWN"} {
		if strings.HasPrefix(err.Error(), code+" ") {
			return code
		}
	}
	var answer redis.Error
	if errors.As(err, &answer) {
		return ""
	}
	// The rest is of the connection: its texts name addresses and ports.
	if errors.Is(err, errSilent) {
		return "silent"
	}
	return "connection"
}

func (s *session) run(t *task) {
	for number := 1; !s.stop.Load(); number++ {
		err := t.round(s, t.name, number)
		if err == nil {
			t.done.Add(1)
			time.Sleep(pause)
			continue
		}
		what := kind(err)
		var promise broken
		s.lock.Lock()
		if errors.As(err, &promise) {
			s.fault = err
		} else if what == "" {
			s.fault = breaks("%s: unexpected answer: %v", t.name, err)
		}
		s.errors[what]++
		s.lock.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *session) awaitRounds(tasks []*task, what string) error {
	base := map[*task]int64{}
	for _, t := range tasks {
		base[t] = t.done.Load()
	}
	for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		s.lock.Lock()
		fault := s.fault
		s.lock.Unlock()
		if fault != nil {
			return fault
		}
		behind := []string{}
		for _, t := range tasks {
			if done := t.done.Load() - base[t]; done < rounds {
				behind = append(behind, fmt.Sprintf("%s %d", t.name, done))
			}
		}
		if len(behind) == 0 {
			return nil
		}
		if time.Now().After(until) {
			return breaks("not every task has had %d rounds within %v %s: %v; %v", rounds, limit, what, behind, s.errors)
		}
	}
}

func main() {
	failovers, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "how many fail-overs?", err)
		os.Exit(2)
	}
	result, err := whole(strings.Split(os.Args[1], ","), failovers)
	if err != nil {
		fmt.Fprintln(os.Stderr, "broken promise:", err)
		os.Exit(1)
	}
	line, _ := json.Marshal(result)
	fmt.Println(string(line))
}

func whole(sentinels []string, failovers int) (map[string]any, error) {
	options := func() *redis.FailoverOptions {
		// By default a server that has died is dialled for a second before another one is asked who leads.
		return &redis.FailoverOptions{MasterName: "redis", SentinelAddrs: sentinels, DialerRetries: 1}
	}
	ofReplica := options()
	ofReplica.ReplicaOnly = true
	ctx := context.Background()
	s := &session{
		ctx: ctx, master: redis.NewFailoverClient(options()), replica: redis.NewFailoverClient(ofReplica),
		written: map[string]string{}, numbers: map[string][]int64{}, greatest: map[string]int64{},
		errors: map[string]int{},
	}
	if err := s.assertRole(s.master, "master"); err != nil {
		return nil, err
	}
	if err := s.assertRole(s.replica, "slave"); err != nil {
		return nil, err
	}
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinels[0]})
	replicas, err := sentinel.Replicas(ctx, "redis").Result()
	if err != nil {
		return nil, breaks("SENTINEL REPLICAS: %v", err)
	}
	first, err := leader(ctx, sentinels)
	if err != nil {
		return nil, err
	}
	leaders := []string{first}
	s.news = s.master.Subscribe(ctx, "news").Channel()
	tasks := []*task{
		{name: "writer0", round: write}, {name: "writer1", round: write}, {name: "writer2", round: write},
		{name: "pipeline", round: writeMany}, {name: "script", round: runScript},
		{name: "push", round: push}, {name: "move", round: move},
		{name: "transaction0", round: transact}, {name: "transaction1", round: transact},
		{name: "reader", round: read}, {name: "publisher", round: publish}, {name: "subscriber", round: hear},
	}
	var ended sync.WaitGroup
	for _, t := range tasks {
		ended.Go(func() { s.run(t) })
	}
	if err := s.awaitRounds(tasks, "before a leader dies"); err != nil {
		return nil, err
	}
	s.lock.Lock()
	calm := s.errors
	s.errors = map[string]int{}
	s.lock.Unlock()
	gaps := []float64{}
	input := bufio.NewReader(os.Stdin)
	for range failovers {
		s.lock.Lock()
		s.gap = 0
		s.lock.Unlock()
		fmt.Println("under way")
		if line, _ := input.ReadString('\n'); !strings.HasPrefix(line, "killed") {
			return nil, breaks("the test did not say that it has killed the leader")
		}
		if err := s.awaitRounds(tasks, "after a leader has died"); err != nil {
			return nil, err
		}
		s.lock.Lock()
		gaps = append(gaps, float64(s.gap.Microseconds())/1000)
		s.lock.Unlock()
		after, err := leader(ctx, sentinels)
		if err != nil {
			return nil, err
		}
		if after == leaders[len(leaders)-1] {
			return nil, breaks("the master is %s as before, though it was killed", after)
		}
		leaders = append(leaders, after)
	}
	s.stop.Store(true)
	ended.Wait()
	if s.fault != nil {
		return nil, s.fault
	}
	if err := s.check("the master", s.master); err != nil {
		return nil, err
	}
	// One that was a replica before may lead now.
	fresh := redis.NewFailoverClient(ofReplica)
	if err := s.assertRole(fresh, "slave"); err != nil {
		return nil, err
	}
	if err := s.check("the replica", fresh); err != nil {
		return nil, err
	}
	_, resp, _ := strings.Cut(s.master.Do(ctx, "CLIENT", "INFO").String(), " resp=")
	return map[string]any{
		"library": "go-redis " + redis.Version(), "resp": int(resp[0] - '0'),
		"leaders": leaders, "replicas_before": len(replicas),
		"writes": len(s.written), "counted": len(s.numbers["counter"]), "transactions": len(s.numbers["right"]),
		"scripts": len(s.numbers["scripted"]), "pushed": len(s.pushed), "replica_reads": s.reads.Load(),
		"messages": s.messages.Load(), "errors_before": calm, "errors": s.errors, "gaps_ms": gaps,
	}, nil
}
