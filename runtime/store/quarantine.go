package store

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// checker is what a value that is read from a local record can be. CheckRecord
// returns an error for a record that decodes but lacks what its reader needs, for
// example because another build has written it.
type checker interface{ CheckRecord() error }

// unreadable is a local record that a transaction moves into the quarantine.
// Records of the public tables are decoded when the store is opened; see
// [loader.bad].
type unreadable struct {
	damage Damage
	record *localRecord
	event  *api.NodeEvent
}

// op makes the write of the record in the quarantine.
func (u unreadable) op(s *Store, index uint64) (op, error) {
	table, key := string(u.damage.Table), u.record.key
	name := table + "\x00" + key
	payload, err := s.quarantinePayload(name, quarantined{
		Cause: u.damage.Cause, Time: u.damage.Time, Value: encodeRecord(table, key, index, s.localPayload(u.damage.Table, u.record)),
	})
	if err != nil {
		return op{}, fmt.Errorf("encode quarantine record of %s %q: %w", table, readable(key), err)
	}
	return op{quarantineBucket, name, encodeRecord(quarantineBucket, name, index, payload)}, nil
}

// quarantineRecord has the writer move a record into the quarantine and report it,
// unless it is written anew before. It does not wait: readers may be part of a
// transaction. If the store is closed, the record is found again by the next agent.
func (s *Store) quarantineRecord(t Table, record *localRecord, cause error) {
	_, _ = s.enqueue(func(tx *Txn) error {
		if first[localRecord](tx.Reader, nil, t, record.key) == record {
			tx.quarantine(t, record, cause)
		}
		return nil
	}, 0)
}

// quarantine moves a record into the quarantine, and adds an event to the node.
func (tx *Txn) quarantine(t Table, record *localRecord, cause error) {
	u := unreadable{
		damage: Damage{
			Table: t, Key: readable(record.key), Cause: cause.Error(), Kept: "quarantine", Time: time.Now(),
		},
		record: record,
	}
	u.event = u.damage.nodeEvent()
	tx.delete(t, record.key)
	tx.quarantined = append(tx.quarantined, u)
	tx.nodeEvents = append(tx.nodeEvents[:len(tx.nodeEvents):len(tx.nodeEvents)], u.event)
	for _, node := range tx.Nodes(nil, "") {
		n := *node
		tx.PutNode(&n) // which adds the event
	}
}

// report notes what a batch has moved into the quarantine.
func (s *Store) report(list []unreadable) {
	for _, u := range list {
		s.logger.Error("state could not be read", "table", u.damage.Table, "key", u.damage.Key, "error", u.damage.Cause, "kept", u.damage.Kept)
		if len(s.nodeEvents) <= 2*keptNodeEvents {
			s.nodeEvents = append(s.nodeEvents, u.event)
		}
		s.mu.Lock()
		s.damage = append(s.damage, u.damage)
		s.mu.Unlock()
	}
}
