package peertest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// fieldTableFile has a row for each field of the protocol. A row has the tests that show the field, or in their place the
// reason why no peer can show it, which starts with noPeer. A test of plugins/proto compares the rows with the .proto files.
var fieldTableFile = filepath.Join("..", "..", "..", "docs", "reference", "driver-protocol.md")

const noPeer = "none: "

// fieldRow matches one row of the table.
var fieldRow = regexp.MustCompile("(?m)^\\| `([a-z]+\\.[A-Za-z.]+\\.\\w+)` \\| (.*) \\|$")

// shownFields are the fields that the tests have seen on the other side, with the names of the tests.
var shownFields = struct {
	mu    sync.Mutex
	tests map[string]map[string]bool
}{tests: map[string]map[string]bool{}}

// fieldShown records that a test has shown fields, such as drivers.TaskConfig.user.
func fieldShown(t testing.TB, fields ...string) {
	shownFields.mu.Lock()
	defer shownFields.mu.Unlock()
	for _, field := range fields {
		if shownFields.tests[field] == nil {
			shownFields.tests[field] = map[string]bool{}
		}
		name, _, _ := strings.Cut(t.Name(), "/")
		shownFields.tests[field][name] = true
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

// checkFieldTable compares the table with shownFields, or updates it. All tests of the package must have
// run.
func checkFieldTable() error {
	text, err := os.ReadFile(fieldTableFile)
	if err != nil {
		return err
	}
	shownFields.mu.Lock()
	defer shownFields.mu.Unlock()
	var faults []string
	rows := map[string]bool{}
	updated := fieldRow.ReplaceAllStringFunc(string(text), func(row string) string {
		cells := fieldRow.FindStringSubmatch(row)
		field, current := cells[1], cells[2]
		rows[field] = true
		tests := strings.Join(slices.Sorted(maps.Keys(shownFields.tests[field])), ", ")
		switch {
		case tests == "" && !strings.HasPrefix(current, noPeer):
			faults = append(faults, fmt.Sprintf("%s: no test shows it, and the row has %q: write %q and the reason", field, current, noPeer))
		case tests != "" && tests != current && !golden.Updating():
			faults = append(faults, fmt.Sprintf("%s: the row has %q, and these tests show it: %q; run the tests with "+golden.EnvVar+"=1", field, current, tests))
		case tests != "":
			current = tests
		}
		return fmt.Sprintf("| `%s` | %s |", field, current)
	})
	for _, field := range slices.Sorted(maps.Keys(shownFields.tests)) {
		if !rows[field] {
			faults = append(faults, fmt.Sprintf("%s: tests show it, and the table has no such row", field))
		}
	}
	if golden.Updating() {
		if err := os.WriteFile(fieldTableFile, []byte(updated), 0o644); err != nil {
			return err
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s:\n%s", fieldTableFile, strings.Join(faults, "\n"))
	}
	return nil
}
