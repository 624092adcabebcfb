package replica

import (
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// BenchmarkUnchangedList measures a list without changes. Servers send one after each report by a node.
func BenchmarkUnchangedList(b *testing.B) {
	fake := newFakeServers(nil)
	for range 500 {
		fake.place(newJob("web"))
	}
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	r := New(Config{
		Region: "global", NodeID: nodeID, Pool: fake, Member: fake, Store: s,
		OnAllocsChanged: func() {}, Logger: hclog.NewNullLogger(),
	})
	list, err := r.listAllocs(b.Context(), new(servers.Query))
	if err != nil {
		b.Fatal(err)
	}
	if err := r.applyList(b.Context(), list); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.applyList(b.Context(), list); err != nil {
			b.Fatal(err)
		}
	}
}
