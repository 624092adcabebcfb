package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// releaseQuarantined takes the records that this build can read out of the quarantine, where a build that could not read
// them has moved them. A record whose object exists again stays there.
func (l *stateLoader) releaseQuarantined() {
	// An allocation needs its job, and the records of a runner need their allocation.
	rank := func(name string) int {
		switch t, _, _ := strings.Cut(name, "\x00"); Table(t) {
		case taskLocalsTable, taskStatesTable, allocLocalsTable, agentMetaTable:
			return 2
		case Allocations:
			return 1
		}
		return 0
	}
	names := slices.SortedFunc(maps.Keys(l.store.quarantinedRecords), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	for _, name := range names {
		table, key, _ := strings.Cut(name, "\x00")
		if k := tableDefsByTable[Table(table)]; k != nil && l.isNeeded(Table(table), key) {
			l.release(k, name, key)
		}
	}
}

// release loads a quarantined record if this build can read it.
func (l *stateLoader) release(k *tableDef, name, key string) {
	q, r, ok := l.readQuarantined(name, string(k.table), key)
	if !ok || k.isLocal && !l.isReadable(k.table, key, r.payload) { // an unreadable record would return to the quarantine when it is read
		return
	}
	if err := l.loadIntactRecord(string(k.table), key, k, r, q.Value); err != nil {
		return
	}
	if a, ok := l.allocations[key]; ok && k.table == Allocations && (l.isReplaced(a.Alloc) || !l.hasJob(a.allocationRecord)) {
		delete(l.allocations, key)
		return
	}
	l.highestIndex = max(l.highestIndex, r.index)
	l.removeFromQuarantine(name, q)
}

// readQuarantined returns a quarantined record, and false if it is damaged or cannot be opened.
func (l *stateLoader) readQuarantined(name, bucket, key string) (q quarantinedRecord, r fileRecord, ok bool) {
	stored, err := decodeRecord(quarantineBucket, name, l.store.quarantinedRecords[name])
	if err == nil {
		q, err = l.store.sealer.openQuarantined(name, stored.payload)
	}
	if err == nil {
		r, err = decodeRecord(bucket, key, q.Value)
	}
	return q, r, err == nil
}

func (l *stateLoader) removeFromQuarantine(name string, q quarantinedRecord) {
	table, key, _ := strings.Cut(name, "\x00")
	delete(l.store.quarantinedRecords, name)
	l.store.released = append(l.store.released, QuarantinedEntry{Table: Table(table), Key: readableKey(key), Cause: q.Cause, Time: q.Time, Value: q.Value, Readable: true})
}

// hasJob reports whether the job of an allocation was loaded. If the job is in the quarantine and can be read, it is loaded.
func (l *stateLoader) hasJob(a allocationRecord) bool {
	if a.Spec == "" || l.jobs[a.Spec] != nil || l.jobVersion(a) != nil {
		return true
	}
	name := jobBucket + "\x00" + a.Spec
	q, r, ok := l.readQuarantined(name, jobBucket, a.Spec)
	if !ok || l.loadIntactRecord(jobBucket, a.Spec, nil, r, q.Value) != nil {
		return false
	}
	l.removeFromQuarantine(name, q)
	return true
}

// isNeeded reports whether the object of a quarantined record does not exist, and, for a record that belongs to an allocation that has not
// ended, whether the allocation exists.
func (l *stateLoader) isNeeded(t Table, key string) bool {
	if t == Allocations {
		_, exists := l.allocations[key]
		return !exists
	}
	if existing, err := l.mem.First(string(t), "id", key); err != nil || existing != nil {
		return false
	}
	allocID := ""
	switch t {
	case taskLocalsTable, taskStatesTable, allocLocalsTable:
		allocID, _, _ = strings.Cut(key, "\x00")
		if ended, err := l.mem.First(string(agentMetaTable), "id", state.EndedAllocPrefix+allocID); err != nil || ended != nil {
			return false
		}
	case agentMetaTable:
		for _, prefix := range []string{state.EndedAllocPrefix, state.CollectAllocAtEndPrefix} {
			if id, ok := strings.CutPrefix(key, prefix); ok {
				allocID = id
			}
		}
	}
	_, exists := l.allocations[allocID]
	return allocID == "" || exists
}

// isReadable reports whether this build can read a local record.
func (l *stateLoader) isReadable(t Table, key string, payload []byte) bool {
	box, open, err := decodeEnvelope(payload)
	if err != nil || tableDefsByTable[t].newRecord(key) == nil {
		return false
	}
	record := &localRecord{key: key, payload: open}
	if box != nil {
		if record.secret, err = l.store.sealer.openBox(string(t), key, box); err != nil {
			return false
		}
	}
	_, err = record.decode(newLocalValues(t, key))
	return err == nil
}

// isReplaced reports whether a newer allocation has taken the place of an allocation that may have running tasks.
func (l *stateLoader) isReplaced(a *api.Allocation) bool {
	if a.ClientTerminalStatus() {
		return false
	}
	for _, other := range l.allocations {
		if o := other.Alloc; o.ID != a.ID && o.Namespace == a.Namespace && o.JobID == a.JobID && o.Name == a.Name && o.CreateIndex > a.CreateIndex {
			return true
		}
	}
	return false
}

// storeReleased writes the file anew if records were taken out of the quarantine.
func (s *Store) storeReleased() {
	if len(s.released) == 0 {
		return
	}
	if err := s.file.rebuild(s.allRecords(s.mem.Txn(false))); err != nil {
		s.logger.Error("records taken out of the quarantine not stored", "error", err)
	}
}

// reportReleased logs the records that were taken out of the quarantine, and adds one node event.
func (s *Store) reportReleased() {
	if len(s.released) == 0 {
		return
	}
	for _, q := range s.released {
		s.logger.Info("record taken out of the quarantine", "table", q.Table, "key", q.Key, "quarantined", q.Time, "cause", q.Cause)
	}
	first := s.released[0]
	message := fmt.Sprintf("State was taken out of the quarantine, because this version can read it: %s %q", first.Table, first.Key)
	if n := len(s.released) - 1; n > 0 {
		message += fmt.Sprintf(" (and %d more, see the log)", n)
	}
	s.nodeEvents = append(s.nodeEvents, &api.NodeEvent{Message: message, Subsystem: "Storage", Timestamp: time.Now()})
}
