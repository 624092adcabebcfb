package httpapi

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// listCacheKey identifies the requests that get the same reply from the same state.
type listCacheKey struct {
	path, query        string // the query is without the parameters of blocking queries
	gzip, readOnlyView bool
	// rights are those of the client, nil if it sees everything: two clients get the same list only if they have the same rights.
	rights *acl.Rights
}

// cachedList is the reply of a list, as long as its objects do not change.
type cachedList struct {
	body      []byte // as it is sent: compressed if the key says so
	gzip      bool
	index     uint64
	nextToken string
	inputs    store.WatchSet // closed when the reply changes
	usedAt    time.Time
}

// isOutdated reports whether the state from which the reply was made has changed.
func (c *cachedList) isOutdated() bool {
	for changed := range c.inputs {
		if wait.IsClosed(changed) {
			return true
		}
	}
	return false
}

// cachedListOverhead is the memory of a cachedList without its body and its inputs, and watchedInputSize that of an input.
const (
	cachedListOverhead = 1 << 10
	watchedInputSize   = 64
)

func (c *cachedList) size() int {
	return len(c.body) + len(c.inputs)*watchedInputSize + cachedListOverhead
}

// The limits of a listCache: maxListCacheSize bytes in all replies, and listCacheIdleTime, after which an unused reply is
// removed.
const (
	maxListCacheSize  = 8 << 20
	listCacheIdleTime = 10 * time.Second
)

// listCache has the encoded replies of lists that clients have requested recently. Its methods may be called concurrently.
type listCache struct {
	mu          sync.Mutex
	replies     map[listCacheKey]*cachedList
	size        int         // sum of the sizes of replies
	expireTimer *time.Timer // calls removeExpired; nil if replies is empty
}

// get returns the reply of a key, or nil if there is none that is still valid.
func (l *listCache) get(key listCacheKey) *cachedList {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.replies[key]
	if c == nil {
		return nil
	}
	if c.isOutdated() {
		l.removeLocked(key)
		return nil
	}
	c.usedAt = time.Now()
	return c
}

// put stores a reply, which must not be changed from then on. It removes the replies that were not used for the longest
// time if there is no room, and ignores a reply that needs more than half of the room.
func (l *listCache) put(key listCacheKey, c *cachedList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(key)
	if c.size() > maxListCacheSize/2 {
		return
	}
	for l.size+c.size() > maxListCacheSize {
		keys := slices.Collect(maps.Keys(l.replies))
		l.removeLocked(slices.MinFunc(keys, func(a, b listCacheKey) int { return l.replies[a].usedAt.Compare(l.replies[b].usedAt) }))
	}
	if l.replies == nil {
		l.replies = make(map[listCacheKey]*cachedList)
	}
	c.usedAt = time.Now()
	l.replies[key] = c
	l.size += c.size()
	if l.expireTimer == nil {
		l.expireTimer = time.AfterFunc(listCacheIdleTime, l.removeExpired)
	}
}

func (l *listCache) removeLocked(key listCacheKey) {
	if c := l.replies[key]; c != nil {
		l.size -= c.size()
		delete(l.replies, key)
	}
}

// removeExpired removes the replies that are outdated, or that were not used for listCacheIdleTime.
func (l *listCache) removeExpired() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range l.replies {
		if c.isOutdated() || time.Since(c.usedAt) >= listCacheIdleTime {
			l.removeLocked(key)
		}
	}
	l.expireTimer = nil
	if len(l.replies) > 0 {
		l.expireTimer = time.AfterFunc(listCacheIdleTime, l.removeExpired)
	}
}

// uncachedList is the value of a list reply that writeReply adds to the cache.
type uncachedList struct {
	value  any
	key    listCacheKey
	inputs store.WatchSet
}

// listCacheKey returns the key of the request. It returns false if the rights of the client limit what the list has.
func (r *request) listCacheKey() (key listCacheKey, cacheable bool) {
	query := make(url.Values, len(r.query))
	for name, values := range r.query {
		if name != "index" && name != "wait" && name != "stale" {
			query[name] = values
		}
	}
	key = listCacheKey{path: r.URL.Path, query: query.Encode(), gzip: acceptsGzip(r.Request), readOnlyView: r.rights.isReadOnly}
	if !r.rights.acl.IsManagement() {
		key.rights = r.rights.acl
	}
	return key, r.rights.workload == nil && !r.rights.isClusterUser
}

// blockingListQuery is like blockingQuery, for a list that only depends on the state, on the path and query of the request,
// and on whether the client has only the read-only token. read must add all that it reads to its WatchSet: the encoded
// reply is sent again until an input changes. A request that waits keeps no reply in memory.
func (r *request) blockingListQuery(state *store.Store, read readSnapshotFunc) (any, error) {
	if _, cacheable := r.listCacheKey(); !cacheable {
		return r.blockingQuery(state, read)
	}
	r.isReplyReadFromState = true
	ctx, cancel := context.WithTimeout(r.Context(), r.waitTime)
	defer cancel()
	ctx, stop := r.untilExpiry(ctx)
	defer stop()
	for waitEnded := false; ; {
		inputs := store.NewWatchSet()
		s, err := r.snapshot(state, inputs)
		if err != nil {
			return nil, err
		}
		key, _ := r.listCacheKey() // the rights may have changed
		var value any
		if cached := r.listCache.get(key); cached != nil {
			value, inputs, r.replyIndex, r.nextToken = cached, cached.inputs, cached.index, cached.nextToken
		} else {
			var index uint64
			value, index, err = read(s, inputs)
			r.replyIndex = max(index, 1)
			if err == nil {
				value = uncachedList{value, key, inputs}
			}
		}
		if waitEnded || r.minIndex == 0 || r.replyIndex > r.minIndex || isBadRequest(err) {
			return value, err
		}
		value = nil // frees the memory while the request waits
		waitEnded = inputs.WatchCtx(ctx) != nil
	}
}
