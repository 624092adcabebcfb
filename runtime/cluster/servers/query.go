package servers

import (
	"cmp"
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

const (
	maxQueryBlock    = 5 * time.Minute // servers block no longer
	staleServerDelay = time.Second
	// maxUnchangedAnswers is how many immediately consecutive answers without a new index make the index start at zero.
	maxUnchangedAnswers = 5
)

// Query is a blocking query that a loop repeats to follow one subject. It chooses the next call's index, and recognises answers
// that are not new. The servers can go back to a lower index, because an operator restores a snapshot: a query with the old index
// would block although the subject has changed, so the index then starts at zero. The zero value is a query with an unknown
// subject. One goroutine uses a Query.
type Query struct {
	// MaxBlock is how long the servers can block; zero means five minutes, which is their limit.
	MaxBlock time.Duration
	// MaxStale is the longest time since the answering server heard from the leader; nil means no limit, and zero that only the
	// leader answers.
	MaxStale *time.Duration

	stale      bool // the last call allowed any server to answer
	fromLeader bool // the leader must answer the next call
	index      uint64
	unchanged  int       // answers without a new index, in immediate succession
	sent       time.Time // when the last call started
}

// Next sets the next call's index and time in o, and returns how long the servers can block. The first call reads the leader's
// state, and the servers answer it at once.
func (q *Query) Next(o *protocol.ReadOptions) (maxBlock time.Duration) {
	q.sent = time.Now()
	q.stale = q.index > 0 && !q.fromLeader && (q.MaxStale == nil || *q.MaxStale > 0)
	o.MinQueryIndex, o.AllowStale, q.fromLeader = q.index, q.stale, false
	if q.index > 0 {
		o.MaxQueryTime = cmp.Or(q.MaxBlock, maxQueryBlock)
	}
	return o.MaxQueryTime
}

// IsTooOld reports whether an answer must be discarded because its server last heard from the leader more than MaxStale ago
// (lastContact). The next call then goes to the leader.
func (q *Query) IsTooOld(lastContact time.Duration) bool {
	q.fromLeader = q.stale && q.MaxStale != nil && lastContact > *q.MaxStale
	return q.fromLeader
}

// IsNew reports whether an answer with the given index must be read: the servers have blocked until their time was over, or a
// server is behind, if it is not. IsNew then blocks for a moment if the answer was immediate, or until ctx ends.
func (q *Query) IsNew(ctx context.Context, index uint64) bool {
	if q.index == 0 || index > q.index {
		q.index, q.unchanged = max(index, 1), 0
		return true
	}
	if q.unchanged++; index < q.index || q.unchanged >= maxUnchangedAnswers {
		q.Restart()
	}
	if time.Since(q.sent) < staleServerDelay {
		_ = wait.Sleep(ctx, staleServerDelay) // the caller sees ctx's end
	}
	return false
}

// Restart makes the next call the first one. The caller restarts the query after a failed call: the next answer can come from
// servers restored meanwhile.
func (q *Query) Restart() { q.index, q.unchanged = 0, 0 }
