package store

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/goldenfields"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// storedRecords returns the record kinds in the state file. A record's name is the table name, and, for a table with several
// kinds, the key or the prefix of the keys.
func storedRecords() []goldenfields.Record {
	records := []goldenfields.Record{
		{Name: metaBucket + " " + indexKey, Type: reflect.TypeFor[tableIndexRecord]()},
		{Name: quarantineBucket, Type: reflect.TypeFor[quarantinedRecord]()},
		{Name: jobBucket, Type: reflect.TypeFor[api.Job]()},
		{Name: string(Variables) + " (sealed)", Type: reflect.TypeFor[map[string]string]()},
		{Name: string(taskLocalsTable) + " (sealed)", Type: reflect.TypeFor[state.TaskSecrets]()},
		{Name: string(taskHandlesTable) + " (sealed)", Type: reflect.TypeFor[state.HandleSecrets]()},
		{Name: string(taskStatesTable) + " (written)", Type: reflect.TypeFor[taskStateRecord]()},
	}
	for _, k := range tableDefs {
		if k.table != agentMetaTable {
			records = append(records, goldenfields.Record{Name: string(k.table), Type: reflect.TypeOf(k.newZeroRecord("")).Elem()})
		}
	}
	for _, kind := range state.AgentRecordKinds {
		records = append(records, goldenfields.Record{Name: string(agentMetaTable) + " " + kind.NameOrPrefix, Type: reflect.TypeOf(kind.NewRecord()).Elem()})
	}
	return records
}

// storedTypes returns one zero value for each type encoded by the store.
func storedTypes() (values []any) {
	for _, r := range storedRecords() {
		values = append(values, reflect.Zero(r.Type).Interface())
	}
	return values
}

// listFields returns a line for each record kind and for each field in its types.
func listFields(records []goldenfields.Record) []string {
	return goldenfields.List(records, func(t reflect.Type) (fields []goldenfields.Field) {
		for _, f := range storedFields(t) {
			fields = append(fields, goldenfields.Field{Name: f.storedName, Type: f.goType})
		}
		return fields
	})
}

const goldenFields = "testdata/fields.golden"

// stateFixtures is the directory with the data directories that builds must be able to read.
const stateFixtures = "../../testdata/state"

// releasedStates returns the data directories of released versions.
func releasedStates(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(stateFixtures, "*"))
	mustSucceed(t, err)
	return slices.DeleteFunc(dirs, func(dir string) bool { return filepath.Base(dir) == "next" })
}

// The field names are the state file's format: a field that disappears, for example because an editor renames it or the Nomad
// API module is updated, is lost in the files of earlier builds.
func TestReferenceStoredFields(t *testing.T) {
	goldenfields.CheckList(t, goldenFields, listFields(storedRecords()), fieldAliases)
}

func TestEachAliasAndSecretFieldExists(t *testing.T) {
	current := make(map[string]bool)
	for _, line := range listFields(storedRecords()) {
		name, _, _ := strings.Cut(line, " ")
		current[name] = true
	}
	for name := range secretAPIFields {
		if !current[name] {
			t.Errorf("secretAPIFields has %s, which is not stored", name)
		}
	}
	for name, alias := range fieldAliases {
		if now := name[:strings.LastIndex(name, ".")+1] + alias; !current[now] || current[name] {
			t.Errorf("fieldAliases maps %s to %s", name, now)
		}
	}
}

func TestFieldChangesAreFound(t *testing.T) {
	// The tables are types with one name, before and after a change.
	type records = []goldenfields.Record
	record := func(zero any) records { return records{{Name: "agent x/", Type: reflect.TypeOf(zero)}} }
	listOf := func(zero any) []string {
		lines := listFields(record(zero))
		for i := range lines {
			lines[i] = strings.ReplaceAll(lines[i], reflect.TypeOf(zero).String(), "T")
		}
		return lines
	}
	type tagged struct {
		DriverState []byte `store:"driver_state,secret"`
	}
	type taggedRenamed struct {
		OpaqueState []byte `store:"driver_state,secret"`
	}
	type plain struct{ DriverState []byte }
	type plainRenamed struct{ OpaqueState []byte }
	type plainText struct{ DriverState string }
	golden := listFields(storedRecords())
	for name, test := range map[string]struct {
		golden, current []string
		aliases         map[string]string
		want            []string // part of each problem
	}{
		"unchanged":                        {golden, golden, nil, nil},
		"renamed field with a tag":         {listOf(tagged{}), listOf(taggedRenamed{}), nil, nil},
		"renamed field without a tag":      {listOf(plain{}), listOf(plainRenamed{}), nil, []string{"T.DriverState has disappeared", "T.OpaqueState is not in the list"}},
		"renamed tag":                      {listOf(plain{}), listOf(tagged{}), nil, []string{"T.DriverState has disappeared", "T.driver_state is not in the list"}},
		"renamed tag with an alias":        {listOf(plain{}), listOf(tagged{}), map[string]string{"T.DriverState": "driver_state"}, []string{"T.driver_state is not in the list"}},
		"other kind":                       {listOf(plain{}), listOf(plainText{}), nil, []string{"T.DriverState was bytes and is string"}},
		"other kind with an alias":         {[]string{"T.a int"}, []string{"T.b string"}, map[string]string{"T.a": "b"}, []string{"T.a was int and is string", "T.b is not in the list"}},
		"the Nomad API drops a field":      {golden, remove(golden, "api.Task.Leader bool"), nil, []string{"api.Task.Leader has disappeared"}},
		"the Nomad API changes a kind":     {golden, replace(golden, "api.Task.Leader bool", "api.Task.Leader *bool"), nil, []string{"api.Task.Leader was bool and is *bool"}},
		"a table disappears":               {golden, remove(golden, "agent/network/ state.NetworkRecord"), nil, []string{"agent/network/ has disappeared"}},
		"the Nomad API has one field more": {remove(golden, "api.Task.Leader bool"), golden, nil, []string{"api.Task.Leader is not in the list"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := goldenfields.Compare(test.golden, test.current, test.aliases)
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i := range got {
				if !strings.Contains(got[i], test.want[i]) {
					t.Errorf("got %q, want %q", got[i], test.want[i])
				}
			}
		})
	}
}

// remove returns the lines without one line.
func remove(lines []string, line string) []string {
	if !slices.Contains(lines, line) {
		panic("no line " + line)
	}
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l == line })
}

// replace returns the lines with another one instead of old.
func replace(lines []string, old, line string) []string { return append(remove(lines, old), line) }
