package store

import (
	"reflect"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// Objects whose type has a field Namespace are in a namespace. A new table must not be forgotten in namespaceOf.
func TestEachTableWithNamespacesIsKnown(t *testing.T) {
	for _, def := range tableDefs {
		if !def.hasTableIndex {
			continue
		}
		var object any = newFilled(def.newZeroRecord(""))
		if a, ok := object.(*allocationRecord); ok {
			object = a.Alloc
		}
		typ := reflect.TypeOf(object).Elem()
		if volume, found := typ.FieldByName("Volume"); found {
			typ = volume.Type.Elem()
		}
		_, want := typ.FieldByName("Namespace")
		if got := namespaceOf(object) != ""; got != want {
			t.Errorf("%s: the namespace is known: %v, the type has one: %v", def.table, got, want)
		}
	}
}

func TestRestrictedSnapshotLacksObjects(t *testing.T) {
	s := openWithKeys(t, t.TempDir())
	mustUpdate(t, s, func(tx *Txn) {
		for _, namespace := range []string{"a", "b"} {
			for _, def := range tableDefs {
				if !def.hasTableIndex {
					continue
				}
				switch object := newFilled(def.newZeroRecord("x")); o := object.(type) {
				case *api.Job:
					o.Namespace, o.ParentID = &namespace, nil
					tx.putObjectSettingIndexes(def, o)
				case *api.Evaluation:
					o.Namespace, o.ID = namespace, "e"+namespace
					tx.putObjectSettingIndexes(def, o)
				case *api.Variable:
					o.Namespace = namespace
					tx.putObjectSettingIndexes(def, o)
				}
			}
			alloc := newFilled(new(api.Allocation)).(*api.Allocation)
			alloc.Namespace, alloc.ID = namespace, "a"+namespace
			tx.PutScheduledAllocation(alloc)
		}
	})
	restricted := s.Snapshot().Restrict(func(_ Table, namespace string, _ any) bool { return namespace == "a" })
	for what, n := range map[string][]int{
		"jobs":        {len(restricted.Jobs(nil, AnyNamespace, "")), len(restricted.Jobs(nil, "b", "")), 1, 0},
		"evaluations": {len(restricted.Evaluations(nil, "")), len(restricted.EvaluationsByJob(nil, "b", "JobID")), 1, 0},
		"variables":   {len(restricted.Variables(nil, AnyNamespace, "")), len(restricted.Variables(nil, "b", "")), 1, 0},
		"allocations": {len(restricted.WithoutEndedEvents().Allocations(nil, "")), len(restricted.AllocationsByNamespace(nil, "b")), 1, 0},
	} {
		if !slices.Equal(n[:2], n[2:]) {
			t.Errorf("%s: in all namespaces and in b: %v, want %v", what, n[:2], n[2:])
		}
	}
	if restricted.Evaluation(nil, "eb") != nil || restricted.Evaluation(nil, "ea") == nil || restricted.Allocation(nil, "ab") != nil || restricted.Allocation(nil, "aa") == nil {
		t.Error("reads by id")
	}
	if restricted.Index() != s.Index() || restricted.LatestTableIndex(nil, Jobs) == 0 {
		t.Error("the indexes are those of the whole state")
	}
}
