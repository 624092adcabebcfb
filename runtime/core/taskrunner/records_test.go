package taskrunner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// slowStore stores each record when the test sends the put's result.
type slowStore struct{ results []chan error }

func (s *slowStore) PutTaskState(*api.TaskState, state.Durability) state.WaitDurableFunc {
	result := make(chan error, 1)
	s.results = append(s.results, result)
	return func() error { return <-result }
}

func (s *slowStore) PutBothRecords(record.Fields, *api.TaskState, state.Durability) state.WaitDurableFunc {
	return s.PutTaskState(nil, 0)
}

func (s *slowStore) TaskHandle(string) (*driver.Handle, error) { return nil, nil }

// When an earlier put succeeds late, the retries of a failed later put continue.
func TestSuccessOfAnEarlierPutEndsNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{}
		r := &taskRecords{
			store: store, onTaskStateChange: func() {}, runReturned: make(chan struct{}), logger: hclog.NewNullLogger(),
			env:   taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}),
			alloc: &Alloc{}, record: record.New(time.Now()),
		}
		r.emitEvent(model.EventStarted())
		failed := make(chan error)
		go func() { failed <- r.storeHookData("web", map[string]string{"a": "b"}) }()
		synctest.Wait()
		store.results[1] <- errors.New("disk full")
		if err := <-failed; err == nil {
			t.Fatal("no error")
		}
		store.results[0] <- nil
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), putRetryDelay/2)
		defer cancel()
		if r.awaitRecordStored(ctx) {
			t.Error("the record counts as stored")
		}
		time.Sleep(putRetryDelay)
		synctest.Wait()
		if len(store.results) != 3 {
			t.Fatalf("%d puts, want a third one", len(store.results))
		}
		store.results[2] <- nil
		if !r.awaitRecordStored(t.Context()) {
			t.Error("the record is not stored")
		}
	})
}
