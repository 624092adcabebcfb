package store

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

var freezeVersion = flag.String("freeze", "", "version, such as 0.1, of the directory that TestFreezeState adds to testdata/state")

// A frozen data directory's files beside the state file and its keys.
const (
	commitFile  = "COMMIT"     // commit of the build that wrote the directory
	recordsFile = "RECORDS"    // a line for each record: its table and its key
	helpersFile = "HELPERS"    // protocol versions between the agent and its helper processes
	sumsFile    = "SHA256SUMS" // checksums for all other files, in sha256sum's format
)

// TestFreezeState adds a release's data directory to testdata/state. It runs in make state-fixture VERSION=… only.
func TestFreezeState(t *testing.T) {
	if *freezeVersion == "" {
		t.Skip("writes a data directory of a release; make state-fixture VERSION=0.1 runs it")
	}
	if !regexp.MustCompile(`^\d+\.\d+$`).MatchString(*freezeVersion) {
		t.Fatalf("version %q: write it as 0.1", *freezeVersion)
	}
	git := func(args ...string) string {
		out, err := exec.Command("git", args...).Output()
		mustSucceed(t, err)
		return strings.TrimSpace(string(out))
	}
	if changes := git("status", "--porcelain"); changes != "" {
		t.Fatalf("the work tree differs from its commit, which the directory names: commit or remove\n%s", changes)
	}
	freezeState(t, filepath.Join(stateFixtures, *freezeVersion), *freezeVersion, git("rev-parse", "HEAD"))
}

// freezeState writes a data directory with a record of each kind, and the files that describe it. The directory must not exist.
func freezeState(t *testing.T, dir, version, commit string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		t.Fatalf("%s exists: a directory of a release is only read", dir)
	} else {
		mustSucceed(t, err)
	}
	from := t.TempDir()
	s, err := openAs(t, from, version, currentFormat)
	mustSucceed(t, err)
	putEveryKind(t, s)
	contentByName := map[string][]byte{commitFile: []byte(commit + "\n"), helpersFile: []byte(listHelperProtocols(t))}
	for _, name := range []string{FileName, "keyring.json"} {
		contentByName[name], err = os.ReadFile(filepath.Join(from, name))
		mustSucceed(t, err)
	}
	s, err = openAs(t, from, version, currentFormat)
	mustSucceed(t, err)
	contentByName[recordsFile] = []byte(listRecords(s))
	mustSucceed(t, s.Close())
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(contentByName)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(contentByName[name]), name)
	}
	contentByName[sumsFile] = []byte(sums.String())
	for name, content := range contentByName {
		mustSucceed(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
}

// verifyFrozen returns an error if a file in a frozen directory was changed, added or removed.
func verifyFrozen(dir string) error {
	want, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		if e.Name() == sumsFile {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	if !bytes.Equal(sums.Bytes(), want) {
		return fmt.Errorf("%s was changed, but a directory of a release is only read: git checkout %s\nits files have the checksums\n%s%s has\n%s", dir, dir, &sums, sumsFile, want)
	}
	return nil
}

// listRecords returns the tables and keys of all records.
func listRecords(s *Store) string {
	var lines []string
	for key := range storeContent(s) {
		lines = append(lines, fmt.Sprintf("%s %q\n", key.table, key.key))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// helperProtocols are the constants with protocol versions between processes from different builds.
var helperProtocols = []struct{ name, file, constant string }{
	{"keeper", "../../plugins/host/keeper/keeperwire/wire.go", "ProtocolVersion"},
	{"log-collector", "../node/files/logs/collectorwire/wire.go", "ProtocolVersion"},
	{"plugin-core", "../../plugins/host/launch/handshake.go", "coreProtocolVersion"},
	{"plugin-app", "../../plugins/host/launch/handshake.go", "appProtocolVersion"},
}

// listHelperProtocols returns a line for each helperProtocols entry. It reads the sources, because this package cannot import
// the packages of the helper processes.
func listHelperProtocols(t *testing.T) string {
	t.Helper()
	var list strings.Builder
	for _, p := range helperProtocols {
		file, err := parser.ParseFile(token.NewFileSet(), p.file, nil, 0)
		mustSucceed(t, err)
		value := ""
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || spec.Names[0].Name != p.constant {
				return true
			}
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
				value = literal.Value
			}
			return false
		})
		if _, err := strconv.Atoi(value); err != nil {
			t.Fatalf("%s has no number in its constant %s: %v", p.file, p.constant, err)
		}
		fmt.Fprintf(&list, "%s %s\n", p.name, value)
	}
	return list.String()
}

// checkHelperProtocols checks that no protocol version is lower than in a release: the release's helper process would then seem
// to be newer.
func checkHelperProtocols(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, helpersFile))
	mustSucceed(t, err)
	current := map[string]int{}
	for line := range strings.Lines(listHelperProtocols(t)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		current[name], _ = strconv.Atoi(value)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if released, err := strconv.Atoi(value); err != nil || current[name] < released {
			t.Errorf("protocol %s has version %d, and %s has %q, %v", name, current[name], dir, value, err)
		}
	}
}

// checkAdopted checks that a store has adopted each record in a release's data directory, without loss.
func checkAdopted(t *testing.T, s *Store, from string) {
	t.Helper()
	if d := s.Damage(); len(d) > 0 || len(s.sealer.decryptErrors) > 0 {
		t.Errorf("damage %v, sealed %v", d, s.sealer.decryptErrors)
	}
	for key, object := range storeContent(s) {
		if record, ok := object.(*localRecord); ok {
			unknown, err := record.decode(newLocalRecordValues(key.table, key.key))
			if err != nil || len(unknown) > 0 {
				t.Errorf("%s %q: unknown fields %q, %v", key.table, key.key, unknown, err)
			}
		}
	}
	want, err := os.ReadFile(filepath.Join(from, recordsFile))
	mustSucceed(t, err)
	if got := listRecords(s); got != string(want) {
		t.Errorf("the store has the records\n%s%s has\n%s", got, from, want)
	}
}

// A release's directory is opened by a build with the same format and by a build with a later format. The later build migrates
// each part of each record. Neither build changes the directory.
func TestFrozenStateIsAdopted(t *testing.T) {
	frozen := filepath.Join(t.TempDir(), "0.0")
	freezeState(t, frozen, "0.0", "0123456789abcdef")
	before := directoryContent(t, frozen)

	checkAdopted(t, openWithKeys(t, copyState(t, frozen)), frozen)
	checkHelperProtocols(t, frozen)

	dir := copyState(t, frozen)
	var migrated atomic.Int64
	later := fileFormat{number: 3, oldestReaderFormat: 3, migrationByFromFormat: map[int]migration{2: func(_, _ string, _ bool, part []byte) ([]byte, error) {
		migrated.Add(1)
		return part, nil
	}}}
	for _, version := range []string{"0.1", "0.1.1"} {
		s, err := openAs(t, dir, version, later)
		mustSucceed(t, err)
		checkAdopted(t, s, frozen)
		mustSucceed(t, s.Close())
		if got := formatOf(t, filepath.Join(dir, FileName)); got.Format != 3 || got.OldestReaderFormat != 3 {
			t.Errorf("version %s: format %+v", version, got)
		}
	}
	if records, err := os.ReadFile(filepath.Join(frozen, recordsFile)); err != nil || migrated.Load() < int64(bytes.Count(records, []byte("\n"))) {
		t.Errorf("%d parts were migrated, of records (error %v)\n%s", migrated.Load(), err, records)
	}
	written, err := os.ReadFile(filepath.Join(frozen, FileName))
	mustSucceed(t, err)
	if kept, err := os.ReadFile(formatCopyName(filepath.Join(dir, FileName), 2)); err != nil || !bytes.Equal(kept, written) {
		t.Errorf("the copy from before the migration: %d bytes, error %v, want the %d bytes of the release", len(kept), err, len(written))
	}
	if !reflect.DeepEqual(directoryContent(t, frozen), before) {
		t.Error("the frozen directory was changed")
	}
}

func TestChangedFrozenStateIsFound(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"a changed file": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, commitFile), []byte("another commit\n"), 0o644)
		},
		"a removed file":        func(dir string) error { return os.Remove(filepath.Join(dir, helpersFile)) },
		"an added file":         func(dir string) error { return os.WriteFile(filepath.Join(dir, "notes"), nil, 0o644) },
		"without its checksums": func(dir string) error { return os.Remove(filepath.Join(dir, sumsFile)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "0.0")
			freezeState(t, dir, "0.0", "0123456789abcdef")
			mustSucceed(t, verifyFrozen(dir))
			mustSucceed(t, change(dir))
			if err := verifyFrozen(dir); err == nil {
				t.Error("no error")
			}
		})
	}
}
