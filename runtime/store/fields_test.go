package store

import (
	"reflect"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// storedRecord is a kind of records in the state file.
type storedRecord struct {
	name string // name of the table, and, for a table with several kinds, the key or the prefix of the keys
	typ  reflect.Type
}

// storedRecords returns the kinds of records in the state file.
func storedRecords() []storedRecord {
	records := []storedRecord{
		{metaBucket + " " + indexKey, reflect.TypeFor[tableIndexRecord]()},
		{quarantineBucket, reflect.TypeFor[quarantinedRecord]()},
		{jobBucket, reflect.TypeFor[api.Job]()},
		{string(Variables) + " (sealed)", reflect.TypeFor[map[string]string]()},
		{string(taskLocalsTable) + " (sealed)", reflect.TypeFor[state.TaskSecrets]()},
		{string(taskStatesTable) + " (written)", reflect.TypeFor[taskStateRecord]()},
	}
	for _, k := range tableDefs {
		if k.table != agentMetaTable {
			records = append(records, storedRecord{string(k.table), reflect.TypeOf(k.newRecord("")).Elem()})
		}
	}
	for _, kind := range state.AgentRecords {
		records = append(records, storedRecord{string(agentMetaTable) + " " + kind.Name, reflect.TypeOf(kind.New()).Elem()})
	}
	return records
}

// storedTypes returns one zero value of each type that the store encodes.
func storedTypes() (values []any) {
	for _, r := range storedRecords() {
		values = append(values, reflect.Zero(r.typ).Interface())
	}
	return values
}
