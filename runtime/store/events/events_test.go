package events

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func TestFilter(t *testing.T) {
	job := store.Event{Topic: api.TopicJob, Key: "web", Namespace: "default"}
	alloc := store.Event{Topic: api.TopicAllocation, Key: "a1", Namespace: "default", FilterKeys: []string{"web", ""}}
	node := store.Event{Topic: api.TopicNode, Key: "n1"}
	for _, c := range []struct {
		name      string
		topics    []string
		namespace string
		want      []store.Event
	}{
		{"no topic is all", nil, "default", []store.Event{job, alloc, node}},
		{"an empty topic is none", []string{""}, "default", []store.Event{job, alloc, node}},
		{"all of all topics", []string{"*:*"}, "*", []store.Event{job, alloc, node}},
		{"a topic", []string{"Job"}, "default", []store.Event{job}},
		{"all of a topic", []string{"Job:*"}, "default", []store.Event{job}},
		{"a key", []string{"Job:web"}, "default", []store.Event{job}},
		{"another key", []string{"Job:db"}, "default", nil},
		{"the key of something that it belongs to", []string{"Allocation:web"}, "default", []store.Event{alloc}},
		{"a key of any topic", []string{"*:web"}, "default", []store.Event{job, alloc}},
		{"a topic that matches twice comes once", []string{"Allocation:web", "Allocation:a1", "Allocation:*"}, "default", []store.Event{alloc}},
		{"several topics", []string{"Job:web", "Node"}, "default", []store.Event{job, node}},
		{"another namespace, where nodes are too", nil, "prod", []store.Event{node}},
		{"all namespaces", []string{"Job"}, "*", []store.Event{job}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := ParseFilter(c.topics, c.namespace)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for _, e := range f.matchingBatch([]store.Event{job, alloc, node}).Events {
				got = append(got, string(e.Topic)+":"+e.Key)
			}
			for _, e := range c.want {
				want = append(want, string(e.Topic)+":"+e.Key)
			}
			if !slices.Equal(got, want) {
				t.Errorf("events %v, want %v", got, want)
			}
		})
	}
	if _, err := ParseFilter([]string{"Job", "a:b:c"}, "default"); err == nil || err.Error() != "error parsing topics: Invalid key value pair for topic, topic: a:b:c" {
		t.Errorf("error %v", err)
	}
}

func TestEventPayload(t *testing.T) {
	job := &api.Job{ID: new("web")}
	secret := &api.Variable{Path: "p", Items: api.VariableItems{"k": "hidden"}, Lock: &api.VariableLock{ID: "hidden", TTL: "15s"}}
	for _, c := range []struct {
		name string
		e    store.Event
		ok   func(map[string]any) bool
	}{
		{"a job", store.Event{Topic: api.TopicJob, Object: job}, func(p map[string]any) bool { return p["Job"] == job && len(p) == 1 }},
		{"a job that was purged", store.Event{Topic: api.TopicJob, Object: job, Deleted: true}, func(p map[string]any) bool { return p["Job"] == job && p["Deleted"] == true }},
		{"an allocation is without its job", store.Event{Topic: api.TopicAllocation, Object: &api.Allocation{ID: "a", Job: job}}, func(p map[string]any) bool {
			a := p["Allocation"].(*api.Allocation)
			return a.ID == "a" && a.Job == nil && len(p) == 1
		}},
		{"an allocation that ran for too long", store.Event{Topic: api.TopicAllocation, Object: &api.Allocation{ClientDescription: model.MaxRunDurationExceeded}}, func(p map[string]any) bool {
			return p["Timeout"] == true && p["TimeoutReason"] == "allocation exceeded max_run_duration"
		}},
		{"a service", store.Event{Topic: api.TopicService, Object: &api.ServiceRegistration{ID: "s"}, Deleted: true}, func(p map[string]any) bool {
			return p["Service"].(*api.ServiceRegistration).ID == "s" && len(p) == 1
		}},
		{"a volume", store.Event{Topic: store.TopicHostVolume, Object: &state.HostVolume{Volume: &api.HostVolume{ID: "v"}, PendingOperation: state.HostVolumeCreate}}, func(p map[string]any) bool {
			v, ok := p["Volume"].(*api.HostVolume)
			return len(p) == 1 && ok && v.ID == "v"
		}},
		{"a variable keeps its secrets", store.Event{Topic: "Variable", Object: secret, Deleted: true}, func(p map[string]any) bool {
			m := p["Metadata"].(*api.VariableMetadata)
			return m.Path == "p" && m.Lock.ID == "" && m.Lock.TTL == "15s" && p["Deleted"] == true
		}},
	} {
		if p := eventPayload(c.e); !c.ok(p) || strings.Contains(fmt.Sprintf("%+v", p), "hidden") {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
	if secret.Lock.ID != "hidden" {
		t.Error("what is stored has changed")
	}
}

// channelSource is an eventSource with given changes.
type channelSource chan []store.Event

func (c channelSource) Next(ctx context.Context) ([]store.Event, error) {
	select {
	case e, ok := <-c:
		if !ok {
			return nil, store.ErrLagged
		}
		return e, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func TestFollowSendsHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var got []string
		feed := make(channelSource)
		ended := make(chan error)
		f, _ := ParseFilter([]string{"Job"}, "default")
		go func() {
			ended <- StreamWithHeartbeats(t.Context(), feed, f, func(c Batch) error {
				got = append(got, fmt.Sprint(time.Since(begin), " ", c.Index, " ", len(c.Events)))
				return nil
			})
		}()
		time.Sleep(40 * time.Second)
		feed <- []store.Event{{Topic: api.TopicNode, Index: 7}}
		feed <- []store.Event{{Topic: api.TopicJob, Index: 8}, {Topic: api.TopicNode, Index: 8}, {Topic: api.TopicJob, Key: "b", Index: 8}}
		time.Sleep(30 * time.Second)
		close(feed)
		if err := <-ended; err != store.ErrLagged {
			t.Errorf("error %v", err)
		}
		want := []string{"0s 0 0", "30s 0 0", "40s 8 2", "1m0s 0 0"}
		if !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestFollowEnds(t *testing.T) {
	gone, stopped := errors.New("client has gone"), errors.New("agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	everything, _ := ParseFilter(nil, "*")
	if err := StreamWithHeartbeats(ctx, channelSource(nil), everything, func(Batch) error { return gone }); err != gone {
		t.Errorf("error %v", err)
	}
	feed := make(channelSource, 1)
	feed <- []store.Event{{Topic: api.TopicJob}}
	sent := 0
	if err := StreamWithHeartbeats(ctx, feed, everything, func(Batch) error {
		if sent++; sent == 2 {
			return gone
		}
		return nil
	}); err != gone {
		t.Errorf("error %v", err)
	}
	cancel(stopped)
	if err := StreamWithHeartbeats(ctx, make(channelSource), everything, func(Batch) error { return nil }); err != stopped {
		t.Errorf("error %v", err)
	}
}

// A follower that has missed changes gets an error.
func TestSlowFollower(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(t.TempDir(), "state.db"), Logger: hclog.NewNullLogger(), MaxFeedChanges: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	change := func() {
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
			tx.PutVariable(&api.Variable{Namespace: "default", Path: "v"})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	change()
	everything, _ := ParseFilter(nil, "*")
	read := 0
	err = StreamWithHeartbeats(t.Context(), s.Subscribe(0), everything, func(c Batch) error {
		if len(c.Events) == 0 {
			return nil
		}
		read++
		for range 5 {
			change()
		}
		return nil
	})
	if err != store.ErrLagged || read != 1 {
		t.Errorf("%v after %d changes", err, read)
	}
}
