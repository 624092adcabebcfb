package access

import (
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
)

const (
	maxAnswerAge    = 30 * time.Second // age from which the servers are asked again
	maxCacheEntries = 1024             // above this number, a cache drops its oldest entries
)

// cache keeps answers from the servers. The zero value is ready to use. It may be used concurrently.
type cache[T any] struct {
	mu      sync.Mutex
	answers map[string]answer[T]
}

type answer[T any] struct {
	value T
	time  time.Time
}

// get returns the values for keys. It calls fetch, without a lock, for keys with missing or too old answers; a key missing in
// fetch's result has the zero value. If fetch fails, get returns old answers if it has all of them, unless the servers have
// rejected the token.
func (c *cache[T]) get(keys []string, fetch func(keys []string) (map[string]T, error)) (map[string]T, error) {
	found, old := c.lookup(keys)
	if len(old) == 0 {
		return found, nil
	}
	fetched, err := fetch(old)
	if err != nil {
		if len(found) < len(keys) || servers.IsTokenRejected(err) {
			return nil, err
		}
		return found, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = make(map[string]answer[T])
	}
	for _, key := range old {
		found[key] = fetched[key]
		c.answers[key] = answer[T]{fetched[key], time.Now()}
	}
	for len(c.answers) > maxCacheEntries {
		c.dropOldestLocked()
	}
	return found, nil
}

// lookup returns the answers to keys, however old, and the keys for which the servers must be asked. keys has no duplicates.
func (c *cache[T]) lookup(keys []string) (found map[string]T, old []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found = make(map[string]T)
	for _, key := range keys {
		a, known := c.answers[key]
		if known {
			found[key] = a.value
		}
		if !known || time.Since(a.time) >= maxAnswerAge {
			old = append(old, key)
		}
	}
	return found, old
}

func (c *cache[T]) dropOldestLocked() {
	oldest, first := "", true
	for key, a := range c.answers {
		if first || a.time.Before(c.answers[oldest].time) {
			oldest, first = key, false
		}
	}
	delete(c.answers, oldest)
}
