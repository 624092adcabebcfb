package store

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// recordChecker is implemented by some local record types. CheckRecord returns an error if the decoded record lacks a field
// that its reader needs, for example because another build has written the record.
type recordChecker interface{ CheckRecord() error }

// unreadableRecord is a local record that a transaction moves into the quarantine. Open decodes the other tables' records, and
// moves unreadable ones into the quarantine with [stateLoader.quarantineRecord].
type unreadableRecord struct {
	damage Damage
	record *localRecord
	event  *api.NodeEvent
}

// quarantineWrite returns the write for storing the record in the quarantine.
func (u unreadableRecord) quarantineWrite(s *Store, index uint64) (bucketWrite, error) {
	table, key := string(u.damage.Table), u.record.key
	name := table + "\x00" + key
	payload, err := s.sealer.encodeQuarantineRecord(name, quarantinedRecord{
		Cause: u.damage.Cause, Time: u.damage.Time, Value: encodeRecord(table, key, index, s.sealer.encodeLocalRecord(u.damage.Table, u.record)),
	})
	if err != nil {
		return bucketWrite{}, fmt.Errorf("encode quarantine record of %s %q: %w", table, readableKey(key), err)
	}
	return bucketWrite{quarantineBucket, name, encodeRecord(quarantineBucket, name, index, payload)}, nil
}

// quarantineRecordLater enqueues an update that moves an unreadable record into the quarantine and reports the damage,
// unless another update replaces the record before. It does not block, because a transaction may call it. If the store
// is closed, the record stays in its table.
func (s *Store) quarantineRecordLater(t Table, record *localRecord, cause error) {
	_, _ = s.enqueue(func(tx *Txn) error {
		if rowByKey[localRecord](tx.Reader, nil, t, record.key) == record {
			tx.moveToQuarantine(t, record, cause)
		}
		return nil
	}, 0)
}

// moveToQuarantine moves a record into the quarantine, and adds an event to the node.
func (tx *Txn) moveToQuarantine(t Table, record *localRecord, cause error) {
	u := unreadableRecord{
		damage: Damage{
			Table: t, Key: readableKey(record.key), Cause: cause.Error(), KeptIn: "quarantine", Time: time.Now(),
		},
		record: record,
	}
	if tx.store.file == nil {
		u.damage.KeptIn = ""
	}
	u.event = u.damage.nodeEvent()
	tx.deleteObjectIfExists(t, record.key)
	tx.quarantined = append(tx.quarantined, u)
	tx.addNodeEvent(u.event)
}

// addNodeEvent adds an event to the node.
func (tx *Txn) addNodeEvent(event *api.NodeEvent) {
	tx.storageEvents = append(tx.storageEvents[:len(tx.storageEvents):len(tx.storageEvents)], event)
	for _, node := range tx.Nodes(nil, "") {
		n := *node
		tx.PutNodeWithStorageEvents(&n) // PutNodeWithStorageEvents adds the event
	}
}

// reportQuarantinedRecords logs the records that a transaction has moved into the quarantine, and adds them to [Store.Damage]'s
// result.
func (s *Store) reportQuarantinedRecords(list []unreadableRecord) {
	for _, u := range list {
		s.logger.Error("state could not be read", "table", u.damage.Table, "key", u.damage.Key, "error", u.damage.Cause, "kept", u.damage.KeptIn)
		if len(s.pendingNodeEvents) <= 2*maxNodeEvents {
			s.pendingNodeEvents = append(s.pendingNodeEvents, u.event)
		}
		s.damageMu.Lock()
		s.damagedParts = append(s.damagedParts, u.damage)
		s.damageMu.Unlock()
	}
}
