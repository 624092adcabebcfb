package taskrunner

import (
	"maps"
	"testing"
)

func TestWithTraceparent(t *testing.T) {
	for _, test := range []struct {
		name, value string
		env, want   map[string]string
	}{
		{"a task without a trace context", "", map[string]string{"A": "1"}, map[string]string{"A": "1"}},
		{"a task with a trace context", "00-1", map[string]string{"A": "1"}, map[string]string{"A": "1", "TRACEPARENT": "00-1"}},
		{"the job sets the variable", "00-1", map[string]string{"TRACEPARENT": "job"}, map[string]string{"TRACEPARENT": "job"}},
	} {
		before := maps.Clone(test.env)
		if got := withTraceparent(test.env, test.value); !maps.Equal(got, test.want) || !maps.Equal(test.env, before) {
			t.Errorf("%s: got %v, want %v; the shared variables are %v", test.name, got, test.want, test.env)
		}
	}
}
