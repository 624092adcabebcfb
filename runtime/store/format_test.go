package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// openAs opens the state in a directory as a build with the given version and format.
func openAs(t *testing.T, dir, version string, format fileFormat) (*Store, error) {
	t.Helper()
	c := configWithKeys(dir)
	c.BuildVersion = version
	s, err := openWithFormat(t.Context(), c, format)
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

// formatOf returns a closed state file's format record.
func formatOf(t *testing.T, path string) formatRecord {
	t.Helper()
	f, err := os.Open(path)
	mustSucceed(t, err)
	defer f.Close()
	r, err := readFormatRecord(f)
	if err != nil || r == nil {
		t.Fatalf("%s has no record of its format: %v", path, err)
	}
	return *r
}

// Builds with any format read the format record: its form never changes.
func TestFormOfFormatRecord(t *testing.T) {
	s, err := openAs(t, t.TempDir(), "1.2.3", currentFormat)
	mustSucceed(t, err)
	mustSucceed(t, s.Close())
	payload := getRawPayload(t, filepath.Dir(s.file.path), "meta", "format")
	if got, want := string(payload), `{"format":2,"oldest_reader":2,"writer":"1.2.3"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// directoryContent returns the content and metadata for all files in a directory.
func directoryContent(t *testing.T, dir string) map[string]string {
	t.Helper()
	content := make(map[string]string)
	mustSucceed(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		content[path] = fmt.Sprintf("%v %v %x", info.Mode(), info.ModTime(), text)
		return err
	}))
	return content
}

// futureFormat is a newer build's format that no earlier build can read.
var futureFormat = fileFormat{number: currentFormat.number + 1, oldestReaderFormat: currentFormat.number + 1}

func TestFileOfNewerFormatIsRefusedUntouched(t *testing.T) {
	dir := t.TempDir()
	s, err := openAs(t, dir, "9.1.0", futureFormat)
	mustSucceed(t, err)
	putSecrets(t, s)
	mustSucceed(t, s.Close())
	// An agent that reads the file would remove this file and change the key file's mode.
	mustSucceed(t, os.WriteFile(filepath.Join(dir, FileName+temporaryNameInfix+"1"), nil, 0o600))
	mustSucceed(t, os.Chmod(filepath.Join(dir, "keyring.json"), 0o644))
	before := directoryContent(t, dir)

	check := func(err error, parts ...string) {
		t.Helper()
		var formatErr *UnsupportedFormatError
		if !errors.As(err, &formatErr) {
			t.Fatalf("got %v, want a FormatError", err)
		}
		for _, part := range append(parts, s.file.path, "format 3", "format 2", "nomad-lite 9.1.0", "tasks continue to run", "to go back") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not contain %q", err, part)
			}
		}
		if !reflect.DeepEqual(directoryContent(t, dir), before) {
			t.Error("a file was changed")
		}
	}
	_, err = openAs(t, dir, "0.1.0", currentFormat)
	check(err, "another data directory")
	_, err = InspectFile(s.file.path)
	check(err)
	mustSucceed(t, os.WriteFile(formatCopyName(s.file.path, currentFormat.number), nil, 0o600))
	before = directoryContent(t, dir)
	_, err = openAs(t, dir, "0.1.0", currentFormat)
	check(err, formatCopyName(s.file.path, currentFormat.number))

	mustSucceed(t, os.Chmod(filepath.Join(dir, "keyring.json"), 0o600))
	s, err = openAs(t, dir, "9.2.0", futureFormat)
	mustSucceed(t, err)
	checkSecrets(t, s)
}

func TestFileOfNewerFormatForOldReaders(t *testing.T) {
	dir := t.TempDir()
	s, err := openAs(t, dir, "9.1.0", fileFormat{number: currentFormat.number + 1, oldestReaderFormat: currentFormat.number})
	mustSucceed(t, err)
	putSecrets(t, s)
	mustSucceed(t, s.Close())
	s, err = openAs(t, dir, "0.1.0", currentFormat)
	mustSucceed(t, err)
	checkSecrets(t, s)
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(openName, "fact") })
	mustUpdate(t, s, func(tx *Txn) { tx.PutNodeWithStorageEvents(&api.Node{ID: "n"}) })
	mustSucceed(t, s.runBetweenTransactions(t.Context(), func() error { return s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))) }))
	mustSucceed(t, s.Close())
	if got, want := formatOf(t, s.file.path), (formatRecord{currentFormat.number + 1, currentFormat.number, "0.1.0"}); got != want {
		t.Errorf("format %+v, want %+v", got, want)
	}
}

func TestFileWithoutFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	mustSucceed(t, s.Close())
	putRawRecords(t, dir, bucketWrite{metaBucket, formatKey, nil})
	expectRefused := func() {
		t.Helper()
		before := directoryContent(t, dir)
		if _, err := Open(t.Context(), configWithKeys(dir)); !errors.Is(err, errNoFormat) {
			t.Errorf("opened: %v", err)
		}
		if _, err := InspectFile(s.file.path); !errors.Is(err, errNoFormat) {
			t.Errorf("inspected: %v", err)
		}
		if !reflect.DeepEqual(directoryContent(t, dir), before) {
			t.Error("a file was changed")
		}
	}
	expectRefused()
	// A record with an earlier encoding is intact, and no damage.
	putRawRecords(t, dir, bucketWrite{string(Jobs), "default\x00old", encodeRecord(string(Jobs), "default\x00old", 1, []byte(`{"ID":"old"}`))})
	expectRefused()
	putRawRecords(t, dir, bucketWrite{string(Jobs), "default\x00old", nil})
	// The agent always starts on a damaged file.
	putRawRecords(t, dir, bucketWrite{metaBucket, formatKey, []byte("damaged")})
	s, err := Open(t.Context(), configWithKeys(dir))
	mustSucceed(t, err)
	if d := s.Damage(); len(d) != 1 || d[0].Key != formatKey {
		t.Errorf("damage %v", d)
	}
	mustSucceed(t, s.Close())
	if got := formatOf(t, s.file.path); got.Format != currentFormat.number {
		t.Errorf("format %+v", got)
	}
}

// nextFormat is a planted format with other values for the task start, the token JWT, the job region and the allocation client
// status. Evaluations have no place in it.
var nextFormat = fileFormat{number: currentFormat.number + 1, oldestReaderFormat: currentFormat.number + 1, migrationByFromFormat: map[int]migration{currentFormat.number: func(bucket, key string, isSealed bool, part []byte) ([]byte, error) {
	edit := func(path ...string) ([]byte, error) {
		var v map[string]any
		if err := decodeMsgpack(part, &v); err != nil {
			return nil, err
		}
		at := v
		for _, name := range path[:len(path)-1] {
			at = at[name].(map[string]any)
		}
		at[path[len(path)-1]] = "migrated"
		return encodeMsgpack(v)
	}
	switch {
	case bucket == string(Evaluations):
		return nil, nil
	case bucket == string(taskLocalsTable) && !isSealed:
		return edit("start_id")
	case bucket == string(Jobs) || bucket == jobBucket || bucket == string(JobVersions):
		return edit("Region")
	case bucket == string(Allocations):
		return edit("alloc", "ClientDescription")
	case bucket == string(agentMetaTable) && strings.HasPrefix(key, state.IdentityPrefix) && isSealed:
		return edit("t", "jwt")
	}
	return part, nil
}}}

// putOldState stores a state in the current format, which the planted format migrates.
func putOldState(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := openAs(t, dir, "0.1.0", currentFormat)
	mustSucceed(t, err)
	putSecrets(t, s)
	job := testJob("web", 0)
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutJobAndVersion(job)
		tx.PutScheduledAllocation(&api.Allocation{ID: "x", Namespace: "default", JobID: "web", Job: job})
		tx.PutEvaluation(&api.Evaluation{ID: "e"})
		tx.PutNodeWithStorageEvents(&api.Node{ID: "n"})
	})
	return s
}

// checkMigrated checks putOldState's state after its migration.
func checkMigrated(t *testing.T, s *Store) {
	t.Helper()
	snap := s.Snapshot()
	local, _, err := taskFieldsWithSecrets(snap.Reader, "x", "web")
	if err != nil || local.StartID != "migrated" || local.Handle.Config.Env["TOKEN"] == "" {
		t.Errorf("task %+v, %v", local, err)
	}
	var tokens state.TokenByIdentityName
	if _, err := snap.ReadAgentRecord(sealedName, &tokens); err != nil || tokens["t"].JWT != "migrated" {
		t.Errorf("tokens %v, %v", tokens, err)
	}
	if job := snap.Job(nil, "default", "web"); *job.Region != "migrated" {
		t.Errorf("job %v", *job.Region)
	}
	if a := snap.Allocation(nil, "x"); a.ClientDescription != "migrated" || *a.Job.Region != "migrated" {
		t.Errorf("allocation %+v", a)
	}
	if snap.Evaluation(nil, "e") != nil {
		t.Error("the evaluation is still there")
	}
	if v := snap.Variable(nil, "default", "a"); v.Items["p"] != plantedSecret+"-a" {
		t.Errorf("variable %v", v.Items)
	}
	if d := s.Damage(); len(d) > 0 {
		t.Errorf("damage %v", d)
	}
}

func TestMigrationKeepsTheOldFileAsCopy(t *testing.T) {
	dir := t.TempDir()
	mustSucceed(t, putOldState(t, dir).Close())
	s, err := openAs(t, dir, "0.1.0", currentFormat)
	mustSucceed(t, err)
	old := storeContent(s)
	mustSucceed(t, s.Close())
	oldFile, err := os.ReadFile(s.file.path)
	mustSucceed(t, err)
	copyName := formatCopyName(s.file.path, currentFormat.number)
	mustSucceed(t, os.WriteFile(copyName, []byte("copy of an earlier migration"), 0o600))

	for range 2 { // the second start finds a migrated file
		s, err = openAs(t, dir, "0.2.0", nextFormat)
		mustSucceed(t, err)
		checkMigrated(t, s)
		mustUpdate(t, s, func(tx *Txn) {
			a := *tx.Allocation(nil, "x")
			a.DesiredStatus += "+"
			tx.PutScheduledAllocation(&a)
		})
		mustSucceed(t, s.Close())
		if got, want := formatOf(t, s.file.path), (formatRecord{currentFormat.number + 1, currentFormat.number + 1, "0.2.0"}); got != want {
			t.Errorf("format %+v, want %+v", got, want)
		}
		if text, err := os.ReadFile(copyName); err != nil || !slices.Equal(text, oldFile) {
			t.Errorf("the copy differs from the old file: %v", err)
		}
	}
	_, err = openAs(t, dir, "0.1.0", currentFormat)
	var formatErr *UnsupportedFormatError
	if !errors.As(err, &formatErr) || formatErr.PreMigrationCopyPath != copyName || formatErr.WriterVersion != "0.2.0" {
		t.Fatalf("the older build: %v", err)
	}
	// The way back.
	mustSucceed(t, os.Rename(copyName, s.file.path))
	s, err = openAs(t, dir, "0.1.0", currentFormat)
	mustSucceed(t, err)
	if got := storeContent(s); !reflect.DeepEqual(got, old) {
		t.Error("the older build reads another state from the copy")
	}
}

func TestMigrationOfDamagedFile(t *testing.T) {
	dir := t.TempDir()
	s := putOldState(t, dir)
	mustSucceed(t, s.Close())
	putRawRecords(t, dir, bucketWrite{string(Deployments), "d", []byte("damaged")})
	s, err := openAs(t, dir, "0.2.0", nextFormat)
	mustSucceed(t, err)
	if d := s.Damage(); len(d) != 1 || d[0].Table != Deployments {
		t.Errorf("damage %v", d)
	}
	mustSucceed(t, s.Close())
	s, err = openAs(t, dir, "0.2.0", nextFormat)
	mustSucceed(t, err)
	checkMigrated(t, s)
	if !isRegularFile(formatCopyName(s.file.path, currentFormat.number)) {
		t.Error("there is no copy")
	}
}

func TestFormatWithoutMigrationIsRefused(t *testing.T) {
	dir := t.TempDir()
	mustSucceed(t, putOldState(t, dir).Close())
	before := directoryContent(t, dir)
	_, err := openAs(t, dir, "0.3.0", fileFormat{number: 4, oldestReaderFormat: 4, migrationByFromFormat: map[int]migration{3: keepRecordPart}})
	var formatErr *UnsupportedFormatError
	if !errors.As(err, &formatErr) || !strings.Contains(err.Error(), "nomad-lite 0.1.0") || !reflect.DeepEqual(directoryContent(t, dir), before) {
		t.Errorf("got %v", err)
	}
}

func TestMigrationWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	s := putOldState(t, dir)
	mustSucceed(t, s.Close())
	before := directoryContent(t, dir)
	info, err := os.Stat(s.file.path)
	mustSucceed(t, err)

	defer func() { freeBytes = FreeDiskBytes }()
	freeBytes = func(string) (uint64, error) { return 1000, nil }
	s, err = openAs(t, dir, "0.2.0", nextFormat)
	mustSucceed(t, err)
	checkMigrated(t, s) // the state can be read
	s.UpdateInNextTransaction(func(tx *Txn) error { tx.PutAgentRecord(state.BootIDName, "b"); return nil })
	for _, err := range []error{s.LastWriteErr(), func() error {
		_, err := s.Update(t.Context(), func(tx *Txn) error { tx.PutEvaluation(&api.Evaluation{ID: "f"}); return nil })
		return err
	}()} {
		var migrationErr *MigrationError
		if !errors.As(err, &migrationErr) || migrationErr.MissingDiskBytes != info.Size()-1000 || !errors.Is(err, unix.ENOSPC) ||
			!strings.Contains(err.Error(), fmt.Sprintf("%d bytes are missing", info.Size()-1000)) {
			t.Errorf("got %v", err)
		}
	}
	if !reflect.DeepEqual(directoryContent(t, dir), before) {
		t.Error("a file was changed")
	}
	freeBytes = FreeDiskBytes
	mustUpdate(t, s, func(tx *Txn) {
		n := *tx.Node(nil, "n")
		tx.PutNodeWithStorageEvents(&n)
	})
	if events := s.Snapshot().Node(nil, "n").Events; s.LastWriteErr() != nil || len(events) != 1 || !strings.Contains(events[0].Message, "bytes are missing") {
		t.Errorf("after there is room: %v, events %v", s.LastWriteErr(), events)
	}
	var boot string
	if known, err := s.Snapshot().ReadAgentRecord(state.BootIDName, &boot); !known || err != nil || boot != "b" {
		t.Errorf("the record that belongs to the first stored change: %q, %t, %v", boot, known, err)
	}
	mustSucceed(t, s.Close())
	if got := formatOf(t, s.file.path); got.Format != nextFormat.number || !isRegularFile(formatCopyName(s.file.path, currentFormat.number)) {
		t.Errorf("format %+v", got)
	}
	s, err = openAs(t, dir, "0.2.0", nextFormat)
	mustSucceed(t, err)
	checkMigrated(t, s)
}

// A migration that runs out of space although the disk seemed to have room reports how many bytes it lacked.
func TestMigrationRunsOutOfSpace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a disk")
	}
	dir := t.TempDir()
	mustSucceed(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s := putOldState(t, dir)
	const bytes = 3 << 20
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutNodeWithStorageEvents(&api.Node{ID: "large", Attributes: map[string]string{"text": strings.Repeat("x", bytes)}})
	})
	mustSucceed(t, s.Close())
	const free = 1 << 20
	inDir, err := FreeDiskBytes(dir)
	mustSucceed(t, err)
	mustSucceed(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, inDir-free), 0o600))

	calls := 0
	defer func() { freeBytes = FreeDiskBytes }()
	freeBytes = func(dir string) (uint64, error) {
		if calls++; calls == 1 {
			return 1 << 30, nil
		}
		return FreeDiskBytes(dir)
	}
	s, err = openAs(t, dir, "0.2.0", nextFormat)
	mustSucceed(t, err)
	defer s.Close()
	var migrationErr *MigrationError
	if err := s.LastWriteErr(); !errors.As(err, &migrationErr) || migrationErr.MissingDiskBytes < bytes-free || migrationErr.MissingDiskBytes > bytes-free/2 {
		t.Errorf("got %v, want a bit more than %d bytes", err, bytes-free)
	}
}

func TestRebuildWritesSmallTransactions(t *testing.T) {
	sizes := []int{1, 3, 5, 20, 9, 1, 4, 4, 4}
	all := func(yield func(bucketWrite) bool) {
		for _, n := range sizes {
			if !yield(bucketWrite{value: make([]byte, n)}) {
				return
			}
		}
	}
	var got [][]int
	for ops := range splitWritesBySize(all, 10) {
		var group []int
		for _, o := range ops {
			group = append(group, len(o.value))
		}
		got = append(got, group)
	}
	if want := [][]int{{1, 3, 5}, {20}, {9, 1}, {4, 4}, {4}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// quarantine moves a closed state file's records into the quarantine, as a build that cannot read them would.
func quarantine(t *testing.T, dir string, s *Store, keys ...recordKey) {
	t.Helper()
	var ops []bucketWrite
	for _, key := range keys {
		bucket := string(key.table)
		value := encodeRecord(bucket, key.key, 1, getRawPayload(t, dir, bucket, key.key))
		name := bucket + "\x00" + key.key
		payload, err := s.sealer.encodeQuarantineRecord(name, quarantinedRecord{Cause: "record has schema version 2, this build reads 1", Time: time.Unix(1, 0), Value: value})
		mustSucceed(t, err)
		ops = append(ops, bucketWrite{bucket, key.key, nil}, bucketWrite{quarantineBucket, name, encodeRecord(quarantineBucket, name, 1, payload)})
	}
	putRawRecords(t, dir, ops...)
}

func TestReadableRecordsAreTakenOutOfTheQuarantine(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	job := testJob("web", 0)
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "x", Namespace: "default", JobID: "web", Name: "web.app[0]", Job: job, ClientStatus: "running"})
		tx.PutAgentRecord(state.NetworkPrefix+"x", &state.NetworkRecord{AllocID: "x", Mode: "bridge"})
		tx.PutNodeWithStorageEvents(&api.Node{ID: "n"})
	})
	spec := s.jobs.hashesByJob[s.Snapshot().Allocation(nil, "x").Job]
	want := storeContent(s)
	mustSucceed(t, s.Close())
	keys := []recordKey{
		{Variables, "default\x00a"}, {taskLocalsTable, "x\x00web"}, {Allocations, "x"}, {jobBucket, spec},
		{agentMetaTable, state.NetworkPrefix + "x"}, {agentMetaTable, sealedName},
	}
	quarantine(t, dir, s, keys...)
	contents, err := InspectFile(s.file.path)
	if err != nil || len(contents.Quarantine) != len(keys) || len(contents.Damage) > 0 {
		t.Errorf("inspected %+v, %v", contents, err)
	}
	for range 2 {
		s = openWithKeys(t, dir)
		if got := storeContent(s); len(got) != len(want) {
			t.Errorf("%d objects, want %d", len(got), len(want))
		}
		checkSecrets(t, s)
		if a := s.Snapshot().Allocation(nil, "x"); a == nil || a.Job == nil || len(s.quarantinedRecordByName) > 0 {
			t.Errorf("allocation %v, quarantine %d", a, len(s.quarantinedRecordByName))
		}
		mustUpdate(t, s, func(tx *Txn) {
			n := *tx.Node(nil, "n")
			tx.PutNodeWithStorageEvents(&n)
		})
		if events := s.Snapshot().Node(nil, "n").Events; len(events) != 1 || !strings.Contains(events[0].Message, `agent "`) && !strings.Contains(events[0].Message, "taken out of the quarantine") {
			t.Errorf("events %v", events)
		}
		mustSucceed(t, s.Close())
	}
}

func TestRecordStaysInQuarantine(t *testing.T) {
	for name, test := range map[string]struct {
		record recordKey
		change func(*Txn) // changes made by the build that has quarantined the record
	}{
		"variable exists again": {recordKey{Variables, "default\x00a"}, func(tx *Txn) {
			tx.PutVariable(&api.Variable{Namespace: "default", Path: "a", Items: api.VariableItems{"p": "new"}})
		}},
		"task has another record": {recordKey{taskLocalsTable, "x\x00web"}, func(tx *Txn) { tx.putTaskFields("x", "web", record.Fields{StartID: "new"}) }},
		"allocation has ended":    {recordKey{taskLocalsTable, "x\x00web"}, func(tx *Txn) { tx.MarkAllocationEnded("x") }},
		"allocation is deleted":   {recordKey{taskLocalsTable, "x\x00web"}, func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("x") }},
		"allocation is replaced": {recordKey{Allocations, "x"}, func(tx *Txn) {
			tx.PutScheduledAllocation(&api.Allocation{ID: "y", Namespace: "default", JobID: "web", Name: "web.app[0]"})
		}},
		"record is unreadable": {recordKey{agentMetaTable, state.PluginProcessPrefix + "x"}, func(*Txn) {}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openWithKeys(t, dir)
			putSecrets(t, s)
			mustUpdate(t, s, func(tx *Txn) {
				tx.PutScheduledAllocation(&api.Allocation{ID: "x", Namespace: "default", JobID: "web", Name: "web.app[0]", ClientStatus: "running"})
				tx.PutAgentRecord(state.PluginProcessPrefix+"x", &state.PluginProcess{Addr: "has no pid"})
			})
			mustSucceed(t, s.Close())
			quarantine(t, dir, s, test.record)
			// This build, which finds no quarantine, plays the build that has quarantined the record.
			quarantined := getRawPayload(t, dir, quarantineBucket, string(test.record.table)+"\x00"+test.record.key)
			key := string(test.record.table) + "\x00" + test.record.key
			putRawRecords(t, dir, bucketWrite{quarantineBucket, key, nil})
			s = openWithKeys(t, dir)
			mustUpdate(t, s, test.change)
			want := storeContent(s)
			mustSucceed(t, s.Close())
			putRawRecords(t, dir, bucketWrite{quarantineBucket, key, encodeRecord(quarantineBucket, key, 1, quarantined)})

			s = openWithKeys(t, dir)
			if got := storeContent(s); !reflect.DeepEqual(got, want) || len(s.quarantinedRecordByName) != 1 {
				t.Errorf("%d objects, want %d; %d in quarantine", len(got), len(want), len(s.quarantinedRecordByName))
			}
			if d := s.Damage(); len(d) > 0 {
				t.Errorf("damage %v", d)
			}
		})
	}
}
