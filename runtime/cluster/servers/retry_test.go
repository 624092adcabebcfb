package servers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// A wait ends when the servers answer after they could not be reached. The answer to a call the servers have refused before is no
// reason.
func TestWaitRetryAfterRefusal(t *testing.T) {
	refused := wire.ServerError("Permission denied")
	unreachable := errors.New("connection refused")
	for _, test := range []struct {
		name    string
		results []error
		isEarly bool
	}{
		{"success after a refusal", []error{refused, nil}, false},
		{"success after a success", []error{nil, nil}, false},
		{"success after no answer", []error{unreachable, nil}, true},
		{"refusal after no answer", []error{unreachable, refused}, true},
		{"success after no leader", []error{wire.ServerError("No cluster leader"), nil}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Config{}, nil)
				start := time.Now()
				go func() {
					time.Sleep(10 * time.Second)
					for _, err := range test.results {
						p.noteResult(err)
					}
				}()
				if err := p.WaitRetry(t.Context(), time.Hour); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(start); (waited == 10*time.Second) != test.isEarly {
					t.Errorf("waited %v", waited)
				}
			})
		})
	}
}
