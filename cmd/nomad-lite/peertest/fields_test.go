package peertest

import (
	"reflect"
	"sync"
	"testing"
)

// shownFields are the fields of the protocol that the tests have seen on the other side, with the names of the tests.
var shownFields = struct {
	mu    sync.Mutex
	tests map[string]map[string]bool
}{tests: map[string]map[string]bool{}}

// fieldShown records that this test shows a field of a message, such as TaskConfig.user.
func fieldShown(t testing.TB, fields ...string) {
	shownFields.mu.Lock()
	defer shownFields.mu.Unlock()
	for _, field := range fields {
		if shownFields.tests[field] == nil {
			shownFields.tests[field] = map[string]bool{}
		}
		shownFields.tests[field][topLevelTest(t)] = true
	}
}

// assertField asserts that the other side shows the expected value of a field.
func assertField(t testing.TB, field string, got, want any) {
	t.Helper()
	fieldShown(t, field)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is %#v, want %#v", field, got, want)
	}
}
