package store

import (
	"reflect"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// TestHooksOfTaskRecordHaveTheNameOfTheWholeRecord compares the record part decoded by AttachedHookConfigs with the whole
// record's type. The part has no former names, so a former name would be missed.
func TestHooksOfTaskRecordHaveTheNameOfTheWholeRecord(t *testing.T) {
	field, _ := reflect.TypeFor[state.TaskRecord]().FieldByName("AllocHookConfigByName")
	part := reflect.TypeFor[taskRecordHooks]().Field(0)
	if field.Tag != part.Tag || field.Type != part.Type {
		t.Errorf("the part has %v %v, the record %v %v", part.Type, part.Tag, field.Type, field.Tag)
	}
	for former, now := range fieldAliases {
		if now == part.Tag.Get("store") {
			t.Errorf("%s is a former name of %s, which attachedHookConfigsOfTask does not read", former, now)
		}
	}
}
