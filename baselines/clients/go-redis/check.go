// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Keys that are read at a time.
const batch = 500

// Who leads, as the first server has it that answers.
func leader(ctx context.Context, sentinels []string) (string, error) {
	var last error
	for _, address := range sentinels {
		client := redis.NewSentinelClient(&redis.Options{Addr: address})
		place, err := client.GetMasterAddrByName(ctx, "redis").Result()
		_ = client.Close()
		if err == nil {
			return place[0], nil
		}
		last = err
	}
	return "", breaks("no server says who leads: %v", last)
}

func (s *session) assertRole(client *redis.Client, wanted string) error {
	answer, err := client.Do(s.ctx, "ROLE").Slice()
	if err != nil || len(answer) == 0 || answer[0] != wanted {
		return breaks("ROLE was %v (%v), not %s", answer, err, wanted)
	}
	return nil
}

// Whether all that was acknowledged is there.
func (s *session) check(where string, at *redis.Client) error {
	keys := make([]string, 0, len(s.written))
	for key := range s.written {
		keys = append(keys, key)
	}
	for from := 0; from < len(keys); from += batch {
		part := keys[from:min(from+batch, len(keys))]
		found, err := at.MGet(s.ctx, part...).Result()
		if err != nil {
			return breaks("MGET at %s: %v", where, err)
		}
		for n, key := range part {
			if found[n] != s.written[key] {
				return breaks("the acknowledged write %s is not at %s: %v", key, where, found[n])
			}
		}
	}
	for name, numbers := range s.numbers {
		seen := map[int64]bool{}
		for _, number := range numbers {
			if seen[number] {
				return breaks("%s: %d was given out twice, so an acknowledged write was lost", name, number)
			}
			seen[number] = true
		}
		if found, err := at.Get(s.ctx, name).Int64(); err != nil || found < s.greatest[name] {
			return breaks("%s is %d (%v) at %s, and %d was acknowledged", name, found, err, where, s.greatest[name])
		}
	}
	left, right := at.Get(s.ctx, "left").Val(), at.Get(s.ctx, "right").Val()
	if left != right || left == "" {
		return breaks("left is %q and right %q at %s", left, right, where)
	}
	logged := at.LRange(s.ctx, "log", 0, -1).Val()
	if count, err := at.Get(s.ctx, "scripted").Int(); err != nil || count != len(logged) {
		return breaks("the script ran %d times (%v) and logged %d at %s", count, err, len(logged), where)
	}
	for n, number := range logged {
		if number != fmt.Sprint(n+1) {
			return breaks("the log of the script has %s in place %d at %s", number, n+1, where)
		}
	}
	kept := map[string]bool{}
	for _, list := range []string{"queue", "done"} {
		for _, item := range at.LRange(s.ctx, list, 0, -1).Val() {
			kept[item] = true
		}
	}
	for _, item := range s.pushed {
		if !kept[item] {
			return breaks("the pushed item %s is not at %s", item, where)
		}
	}
	return nil
}
