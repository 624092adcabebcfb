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

// unquarantineReadableRecords loads the records in the quarantine that this build can read, and removes them from the quarantine.
// Another build, which could not read them, has moved them there. A record stays in the quarantine if another record with
// its key exists.
func (l *stateLoader) unquarantineReadableRecords() {
	// rank orders the records: a job is loaded before its allocations, and an allocation before its runner's records.
	rank := func(name string) int {
		switch t, _, _ := strings.Cut(name, "\x00"); Table(t) {
		case taskLocalsTable, taskStatesTable, taskHandlesTable, allocLocalsTable, agentMetaTable:
			return 2
		case Allocations:
			return 1
		}
		return 0
	}
	names := slices.SortedFunc(maps.Keys(l.store.quarantinedRecordByName), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	for _, name := range names {
		table, key, _ := strings.Cut(name, "\x00")
		if k := tableDefsByTable[Table(table)]; k != nil && l.canLoadQuarantinedRecord(Table(table), key) {
			l.unquarantineIfReadable(k, name, key)
		}
	}
}

// unquarantineIfReadable loads a quarantined record and removes it from the quarantine, if this build can read it.
func (l *stateLoader) unquarantineIfReadable(def *tableDef, quarantineKey, key string) {
	q, r, ok := l.readQuarantined(quarantineKey, string(def.table), key)
	if !ok || def.isReadByAgentOnly && !l.isLocalRecordReadable(def.table, key, r.payload) { // an unreadable record would return to the quarantine when it is read
		return
	}
	if err := l.loadUnquarantinedRecord(string(def.table), key, r, q.Value); err != nil {
		return
	}
	if a, ok := l.allocationsByID[key]; ok && def.table == Allocations && (l.isReplacedButNotTerminal(a.Alloc) || !l.findOrUnquarantineJob(a.allocationRecord)) {
		delete(l.allocationsByID, key)
		return
	}
	l.highestRecordIndex = max(l.highestRecordIndex, r.changeIndex)
	l.removeFromQuarantine(quarantineKey, q)
}

// loadUnquarantinedRecord loads a record from the quarantine.
func (l *stateLoader) loadUnquarantinedRecord(bucket, key string, r fileRecord, value []byte) error {
	d := &fileRecordDecoding{bucket: bucket, key: key, value: value, record: r}
	l.store.decodeObject(d, new(allocationDecoder))
	return l.loadIntactRecord(d)
}

// readQuarantined decodes a quarantined record. ok is false if it is damaged or cannot be decrypted.
func (l *stateLoader) readQuarantined(quarantineKey, bucket, key string) (q quarantinedRecord, r fileRecord, ok bool) {
	stored, err := decodeRecord(quarantineBucket, quarantineKey, l.store.quarantinedRecordByName[quarantineKey])
	if err == nil {
		q, err = l.store.sealer.decryptQuarantinedRecord(quarantineKey, stored.payload)
	}
	if err == nil {
		r, err = decodeRecord(bucket, key, q.Value)
	}
	return q, r, err == nil
}

func (l *stateLoader) removeFromQuarantine(quarantineKey string, q quarantinedRecord) {
	table, key, _ := strings.Cut(quarantineKey, "\x00")
	delete(l.store.quarantinedRecordByName, quarantineKey)
	l.store.unquarantinedRecords = append(l.store.unquarantinedRecords, QuarantinedEntry{Table: Table(table), Key: readableKey(key), Cause: q.Cause, Time: q.Time, Value: q.Value, ReadableByThisBuild: true})
}

// findOrUnquarantineJob reports whether an allocation's job is loaded. If not, it tries to load the job from the quarantine.
func (l *stateLoader) findOrUnquarantineJob(a allocationRecord) bool {
	if a.JobHash == "" || l.jobsByHash[a.JobHash] != nil || l.findJobVersionOf(a) != nil {
		return true
	}
	name := jobBucket + "\x00" + a.JobHash
	q, r, ok := l.readQuarantined(name, jobBucket, a.JobHash)
	if !ok || l.loadUnquarantinedRecord(jobBucket, a.JobHash, r, q.Value) != nil {
		return false
	}
	l.removeFromQuarantine(name, q)
	return true
}

// canLoadQuarantinedRecord reports whether a quarantined record can be loaded: no record with its key exists, and if it belongs to an
// allocation, this allocation exists and has not ended.
func (l *stateLoader) canLoadQuarantinedRecord(t Table, key string) bool {
	if t == Allocations {
		_, exists := l.allocationsByID[key]
		return !exists
	}
	if existing, err := l.memTxn.First(string(t), "id", key); err != nil || existing != nil || t == agentMetaTable && l.endedRecords[key] {
		return false
	}
	allocID := ""
	switch t {
	case taskLocalsTable, taskStatesTable, taskHandlesTable, allocLocalsTable:
		allocID, _, _ = strings.Cut(key, "\x00")
		key := state.EndedAllocPrefix + allocID
		if ended, err := l.memTxn.First(string(agentMetaTable), "id", key); err != nil || ended != nil || l.endedRecords[key] {
			return false
		}
	case agentMetaTable:
		for _, prefix := range []string{state.EndedAllocPrefix, state.CollectAllocAtEndPrefix} {
			if id, ok := strings.CutPrefix(key, prefix); ok {
				allocID = id
			}
		}
	}
	_, exists := l.allocationsByID[allocID]
	return allocID == "" || exists
}

// isLocalRecordReadable reports whether this build can decrypt and decode a local table record.
func (l *stateLoader) isLocalRecordReadable(t Table, key string, payload []byte) bool {
	box, open, err := decodeEnvelope(payload)
	if err != nil || tableDefsByTable[t].newZeroRecord(key) == nil {
		return false
	}
	record := &localRecord{key: key, unencryptedPart: open}
	if box != nil {
		if record.secretPart, err = l.store.sealer.decryptSecretBox(string(t), key, box); err != nil {
			return false
		}
	}
	_, err = record.decode(newLocalRecordValues(t, key))
	return err == nil
}

// isReplacedButNotTerminal reports whether a newer allocation with the same name exists, and a itself may have running
// tasks.
func (l *stateLoader) isReplacedButNotTerminal(a *api.Allocation) bool {
	if a.ClientTerminalStatus() {
		return false
	}
	for _, other := range l.allocationsByID {
		if o := other.Alloc; o.ID != a.ID && o.Namespace == a.Namespace && o.JobID == a.JobID && o.Name == a.Name && o.CreateIndex > a.CreateIndex {
			return true
		}
	}
	return false
}

// rebuildFileIfUnquarantined rebuilds the state file if records were taken out of the quarantine.
func (s *Store) rebuildFileIfUnquarantined() {
	if len(s.unquarantinedRecords) == 0 {
		return
	}
	if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
		s.logger.Error("records taken out of the quarantine not stored", "error", err)
	}
}

// logUnquarantinedRecords logs the records taken out of the quarantine, and adds one node event.
func (s *Store) logUnquarantinedRecords() {
	if len(s.unquarantinedRecords) == 0 {
		return
	}
	for _, q := range s.unquarantinedRecords {
		s.logger.Info("record taken out of the quarantine", "table", q.Table, "key", q.Key, "quarantined", q.Time, "cause", q.Cause)
	}
	first := s.unquarantinedRecords[0]
	message := fmt.Sprintf("State was taken out of the quarantine, because this version can read it: %s %q", first.Table, first.Key)
	if n := len(s.unquarantinedRecords) - 1; n > 0 {
		message += fmt.Sprintf(" (and %d more, see the log)", n)
	}
	s.pendingNodeEvents = append(s.pendingNodeEvents, &api.NodeEvent{Message: message, Subsystem: "Storage", Timestamp: time.Now()})
}
