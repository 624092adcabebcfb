package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// newSampleStateFile makes a state file with a record of every kind, and returns the file's bytes and content.
func newSampleStateFile(t testing.TB) ([]byte, map[recordKey]any) {
	t.Helper()
	s := openStore(t, tempStatePath(t))
	for i := range 6 {
		mustUpdate(t, s, func(tx *Txn) {
			job := testJob(fmt.Sprintf("job-%d", i), 0)
			tx.PutJobAndVersion(job)
			tx.PutJobSubmission("default", *job.ID, 0, &api.JobSubmission{Source: strings.Repeat("# text\n", 1000), Format: "hcl2"})
			for n := range 4 {
				id := fmt.Sprintf("%08d-0000-0000-0000-00000000000%d", i, n)
				tx.PutScheduledAllocation(&api.Allocation{ID: id, Namespace: "default", JobID: *job.ID, Job: job, EvalID: "eval"})
				tx.putTaskFields(id, "web", record.Fields{StartID: "start", RunComplete: n == 0})
			}
			tx.PutEvaluation(&api.Evaluation{ID: fmt.Sprintf("eval-%d", i), Namespace: "default", JobID: *job.ID})
			tx.PutVariable(&api.Variable{Namespace: "default", Path: *job.ID, Items: api.VariableItems{"password": "hunter2"}})
			tx.AddScalingEvent("default", *job.ID, "app", api.ScalingEvent{Message: "more"})
			tx.PutAgentRecord(state.BootIDName, "b0071d")
		})
	}
	for i := range 3 { // deleted records leave free pages in the file
		mustUpdate(t, s, func(tx *Txn) { tx.DeleteEvaluation(fmt.Sprintf("eval-%d", i)) })
	}
	have := storeContent(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.file.path)
	if err != nil {
		t.Fatal(err)
	}
	return text, have
}

// storeContent returns all objects in a store.
func storeContent(s *Store) map[recordKey]any {
	all := make(map[recordKey]any)
	txn := s.memDB.Txn(false)
	for _, k := range tableDefs {
		it, err := txn.Get(string(k.table), "id_prefix", "")
		if err != nil {
			panic(err)
		}
		for obj := it.Next(); obj != nil; obj = it.Next() {
			if ended, ok := obj.(*endedAllocation); ok {
				obj = ended.withEvents()
				all[recordKey{agentMetaTable, state.EndedAllocPrefix + k.keyOf(obj)}] = &localRecord{key: state.EndedAllocPrefix + k.keyOf(obj), unencryptedPart: encodedTrue}
			}
			if r, ok := obj.(*localRecord); ok {
				obj = &localRecord{key: r.key, unencryptedPart: r.unencryptedPart, secretPart: r.secretPart, undecryptedSecret: r.undecryptedSecret}
			}
			all[recordKey{k.table, k.keyOf(obj)}] = obj
		}
	}
	return all
}

// openDamagedFile opens a damaged file. It checks that the store has no record that was not stored, reports missing records,
// and works.
func openDamagedFile(t *testing.T, name string, text []byte, want map[recordKey]any) (missing int) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "store-test-") // a tmpfs is faster: the test writes many files and does not test the disk
	if err != nil {
		dir = t.TempDir()
	} else {
		defer os.RemoveAll(dir)
	}
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	have := storeContent(s)
	if strings.Contains(fmt.Sprint(s.Damage()), "one of the two heads") {
		want = have // Open has read the older meta page, so the last change is lost and is reported
	}
	for key, obj := range have {
		if !reflect.DeepEqual(obj, want[key]) {
			t.Errorf("%s: %s %q is not what it was: %s", name, key.table, key.key, firstDifference("", reflect.ValueOf(obj), reflect.ValueOf(want[key])))
		}
	}
	missing = len(want) - len(have)
	if missing > 0 && len(s.Damage()) == 0 {
		t.Errorf("%s: %d records are missing, and nobody says so", name, missing)
	}
	before := s.Index()
	index := mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "after"}) })
	if index != before+1 {
		t.Errorf("%s: index %d after %d", name, index, before)
	}
	if err := s.Close(); err != nil {
		t.Errorf("%s: close: %v", name, err)
	}
	again, err := Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatalf("%s: second time: %v", name, err)
	}
	defer again.Close()
	if d := again.Damage(); len(d) > 0 {
		t.Errorf("%s: damage is still there at the second time: %v", name, d)
	}
	if got := len(storeContent(again)); got != len(have)+1 {
		t.Errorf("%s: %d records at the second time, want %d", name, got, len(have)+1)
	}
	return missing
}

func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	text, want := newSampleStateFile(t)
	if len(text) < 20*pageSize {
		t.Fatalf("the sample has only %d bytes", len(text))
	}
	for cut := 0; cut < len(text); cut += pageSize {
		openDamagedFile(t, fmt.Sprintf("cut to %d of %d", cut, len(text)), text[:cut], want)
	}
	openDamagedFile(t, "cut within a page", text[:5*pageSize+17], want)
}

func TestFlippedBits(t *testing.T) {
	t.Parallel()
	text, want := newSampleStateFile(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	lost := 0
	for range rounds {
		bad := bytes.Clone(text)
		var flippedBits []int
		for range 1 + random.IntN(3) {
			bit := random.IntN(len(bad) * 8)
			if random.IntN(2) == 0 { // damage at the start of a page has the most effect
				bit = bit/(8*pageSize)*8*pageSize + random.IntN(8*200)
			}
			bad[bit/8] ^= 1 << (bit % 8)
			flippedBits = append(flippedBits, bit)
		}
		lost += openDamagedFile(t, fmt.Sprintf("seed %d, bits %v", seed, flippedBits), bad, want)
	}
	if lost == 0 {
		t.Error("nothing was lost at all, so nothing was tested")
	}
}

// forEachTable calls f for each table in a state file, with the position of the table's name and, if the table is stored
// inline, of its page.
func forEachTable(t *testing.T, text []byte, f func(name string, at, page int)) {
	t.Helper()
	h, err := readMetaPage(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	le, list := binary.LittleEndian, int(h.rootPageID)*pageSize
	for i := range int(le.Uint16(text[list+10:])) {
		element := list + pageHeaderSize + i*elementHeaderSize
		at := element + int(le.Uint32(text[element+4:]))
		value := at + int(le.Uint32(text[element+8:]))
		page := 0
		if le.Uint64(text[value:]) == 0 {
			page = value + bucketHeaderSize
		}
		f(string(text[at:value]), at, page)
	}
}

// A table's name and record count have no checksum in the file.
func TestDamagedTableList(t *testing.T) {
	t.Parallel()
	text, want := newSampleStateFile(t)
	inlineTables := 0
	forEachTable(t, text, func(name string, at, page int) {
		for i := range name {
			bad := bytes.Clone(text)
			bad[at+i] ^= 1 << (i % 8)
			if missing := openDamagedFile(t, fmt.Sprintf("letter %d of %s", i, name), bad, want); missing > 0 {
				t.Errorf("letter %d of %s: %d records are missing", i, name, missing)
			}
		}
		if page > 0 {
			inlineTables++
			bad := bytes.Clone(text)
			bad[page+10] = 0
			openDamagedFile(t, "no records in "+name, bad, want)
		}
	})
	if inlineTables == 0 {
		t.Error("no table is small")
	}
}

func TestFilesThatAreNoDatabase(t *testing.T) {
	t.Parallel()
	for name, text := range map[string][]byte{
		"zero length": {},
		"text":        []byte("hello"),
		"zeros":       make([]byte, 10*pageSize),
		"ones":        bytes.Repeat([]byte{0xff}, 10*pageSize),
	} {
		openDamagedFile(t, name, text, nil)
	}
}

// A damaged file is kept for inspection, and its last index is not used again.
func TestDamagedFileIsKept(t *testing.T) {
	t.Parallel()
	path := tempStatePath(t)
	s := openStore(t, path)
	mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "a"}) })
	for range 5 {
		s.Close()
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		before := s.Index()
		s = openStore(t, path)
		if s.Index() <= before || s.Index() < lostIndexIncrement {
			t.Errorf("index %d after %d", s.Index(), before)
		}
		d := s.Damage()
		if len(d) != 1 || !strings.HasPrefix(d[0].KeptIn, path+".damaged-") {
			t.Fatalf("damage %v", d)
		}
		if _, err := os.Stat(d[0].KeptIn); err != nil {
			t.Error(err)
		}
		mustUpdate(t, s, func(tx *Txn) { tx.PutNodeWithStorageEvents(&api.Node{ID: "n"}) })
		events := s.Snapshot().Node(nil, "n").Events
		if len(events) != 1 || events[0].Subsystem != "Storage" || !strings.Contains(events[0].Message, "neither of its two heads is valid") {
			t.Errorf("events %v", events)
		}
	}
	if kept, _ := filepath.Glob(path + ".damaged-*"); len(kept) != 3 {
		t.Errorf("kept %v, want the last three", kept)
	}
}

// editRecord changes one state file record. It uses bbolt instead of a store.
func editRecord(t *testing.T, path, bucket, key string, f func([]byte) []byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if key == "*" {
			k, _ := b.Cursor().First()
			key = string(k)
		}
		value := b.Get([]byte(key))
		if value == nil {
			return fmt.Errorf("no %s %q", bucket, key)
		}
		return b.Put([]byte(key), f(bytes.Clone(value)))
	}); err != nil {
		t.Fatal(err)
	}
}

// withSchemaVersion returns a record with another schema version and a valid checksum.
func withSchemaVersion(bucket, key string, version byte) func([]byte) []byte {
	return func(b []byte) []byte {
		b[0] = version
		binary.BigEndian.PutUint32(b[1:], recordChecksum(bucket, key, version, b[5:headerSize], b[headerSize:]))
		return b
	}
}

func TestBadRecordGoesToQuarantine(t *testing.T) {
	t.Parallel()
	const evalID = "eval-1"
	for name, tc := range map[string]struct {
		edit  func([]byte) []byte
		cause string
	}{
		"next schema version":     {withSchemaVersion("evaluations", evalID, schemaVersion+1), "record has schema version 2, this build reads 1"},
		"previous schema version": {withSchemaVersion("evaluations", evalID, schemaVersion-1), "record has schema version 0, this build reads 1"},
		"flipped bit":             {func(b []byte) []byte { b[len(b)-1] ^= 4; return b }, "checksum does not match"},
		"too short":               {func(b []byte) []byte { return b[:5] }, "record is too short"},
		"other content": {func([]byte) []byte {
			payload, _ := encodeMsgpack("a string")
			return encodeRecord("evaluations", evalID, 1, payload)
		}, "only encoded map or array"},
		"content of another": {func([]byte) []byte {
			payload, _ := encodeMsgpack(&api.Evaluation{ID: "other"})
			return encodeRecord("evaluations", evalID, 1, payload)
		}, errRecordOfOtherKey.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, tempStatePath(t))
			mustUpdate(t, s, func(tx *Txn) {
				for i := range 3 {
					tx.PutEvaluation(&api.Evaluation{ID: fmt.Sprintf("eval-%d", i)})
				}
			})
			s.Close()
			path, bad := s.file.path, []byte(nil)
			editRecord(t, path, "evaluations", evalID, func(b []byte) []byte { bad = tc.edit(b); return bad })
			s = openStore(t, path)
			d := s.Damage()
			if len(d) != 1 || d[0].Table != Evaluations || d[0].Key != evalID || !strings.Contains(d[0].Cause, tc.cause) || d[0].KeptIn != "quarantine" {
				t.Fatalf("damage %+v, want %q", d, tc.cause)
			}
			snap := s.Snapshot()
			if snap.Evaluation(nil, evalID) != nil || len(snap.Evaluations(nil, "")) != 2 {
				t.Error("not exactly the bad one is gone")
			}
			s = reopenStore(t, s)
			if d := s.Damage(); len(d) > 0 {
				t.Errorf("damage at the second time: %v", d)
			}
			if s.Index() != 1 {
				t.Errorf("index %d", s.Index())
			}
			s.Close()
			contents, err := InspectFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(contents.Quarantine) != 1 || !bytes.Equal(contents.Quarantine[0].Value, bad) || !strings.Contains(contents.Quarantine[0].Cause, tc.cause) {
				t.Errorf("quarantine %+v", contents.Quarantine)
			}
			if kept, _ := filepath.Glob(path + ".*"); len(kept) != 0 {
				t.Errorf("files %v beside a file whose structure was good", kept)
			}
		})
	}
}

// A job record shared by many allocations has a second copy among the job's versions.
func TestUnreadableSharedJob(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	job := testJob("a", 3)
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutJobAndVersion(job)
		for i := range 3 {
			tx.PutScheduledAllocation(&api.Allocation{ID: fmt.Sprintf("alloc-%d", i), Namespace: "default", JobID: "a", Job: job})
		}
		tx.PutScheduledAllocation(&api.Allocation{ID: "purged", Namespace: "default", JobID: "b", Job: testJob("b", 0)})
	})
	s.Close()
	path := s.file.path
	for _, id := range []string{"alloc-0", "purged"} {
		hash := s.jobs.hashesByJob[s.Snapshot().Allocation(nil, id).Job]
		editRecord(t, path, jobBucket, hash, func(b []byte) []byte { b[20] ^= 1; return b })
	}
	s = openStore(t, path)
	if a := s.Snapshot().Allocation(nil, "purged"); a != nil {
		t.Errorf("an allocation has the job %v from nowhere", a.Job)
	}
	for range 2 {
		for i := range 3 {
			if a := s.Snapshot().Allocation(nil, fmt.Sprintf("alloc-%d", i)); a == nil || !reflect.DeepEqual(a.Job, job) {
				t.Errorf("alloc %d: %+v", i, a)
			}
		}
		s = reopenStore(t, s)
	}
	if d := s.Damage(); len(d) > 0 {
		t.Errorf("damage at the second time: %v", d)
	}
}

func TestLostIndexNeverGoesBack(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	for range 3 {
		mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "a"}) })
	}
	s.Close()
	editRecord(t, s.file.path, metaBucket, indexKey, func(b []byte) []byte { b[20] ^= 1; return b })
	s = openStore(t, s.file.path)
	if s.Index() < lostIndexIncrement || s.Snapshot().LatestTableIndex(nil, Jobs) != s.Index() {
		t.Errorf("index %d, of jobs %d", s.Index(), s.Snapshot().LatestTableIndex(nil, Jobs))
	}
	was := s.Index()
	s = reopenStore(t, s)
	if s.Index() != was || len(s.Damage()) > 0 {
		t.Errorf("index %d after %d, damage %v", s.Index(), was, s.Damage())
	}
}

func TestUnknownTableIsKept(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "a"}) })
	s.Close()
	path := s.file.path
	value := withSchemaVersion("of a newer build", "k", schemaVersion+1)(encodeRecord("of a newer build", "k", 1, []byte("v")))
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte("of a newer build"))
		if err != nil {
			return err
		}
		return b.Put([]byte("k"), value)
	}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	editRecord(t, path, "namespaces", "a", func(b []byte) []byte { b[20] ^= 1; return b }) // the damage makes Open rebuild the file
	s = openStore(t, path)
	if d := s.Damage(); len(d) != 1 {
		t.Errorf("damage %v", d)
	}
	s = reopenStore(t, s)
	if len(s.recordsInUnknownBuckets) != 1 || !bytes.Equal(s.recordsInUnknownBuckets[0].value, value) || len(s.Damage()) > 0 {
		t.Errorf("have %v, damage %v", s.recordsInUnknownBuckets, s.Damage())
	}
}

func TestFileInUse(t *testing.T) {
	t.Parallel()
	path := tempStatePath(t)
	cmd := testChildCommand(t, "hold", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	var lockedErr *LockedError
	if !errors.As(err, &lockedErr) || lockedErr.OwnerPID != cmd.Process.Pid {
		t.Errorf("error %v, want one that names process %d", err, cmd.Process.Pid)
	}
	if want := fmt.Sprintf("state file %s is in use by process %d", path, cmd.Process.Pid); err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if _, err := InspectFile(path); !errors.As(err, &lockedErr) || lockedErr.OwnerPID != cmd.Process.Pid {
		t.Errorf("inspect: %v", err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	openStore(t, path)
}

// A killed agent's child process has the agent's lock until it executes its program.
func TestOpenWaitsForTheLock(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	path := s.file.path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := openAndLockStateFile(t.Context(), path, true)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { file.Close() })
	openStore(t, path)
}

func TestFileDeletedWhileOpen(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	path := s.file.path
	mustUpdate(t, s, func(tx *Txn) { tx.PutJobAndVersion(testJob("a", 0)) })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.PutJobAndVersion(testJob("b", 0)) })
	mustUpdate(t, s, func(tx *Txn) { tx.PutJobAndVersion(testJob("c", 0)) })
	if _, err := Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()}); !errors.As(err, new(*LockedError)) {
		t.Errorf("the new file is not locked: %v", err)
	}
	s = reopenStore(t, s)
	if got := len(s.Snapshot().Jobs(nil, "default", "")); got != 3 || len(s.Damage()) > 0 {
		t.Errorf("%d jobs, want 3; damage %v", got, s.Damage())
	}
}

func TestFileReplacedWhileOpen(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	path := s.file.path
	mustUpdate(t, s, func(tx *Txn) { tx.PutJobAndVersion(testJob("a", 0)) })
	if err := os.WriteFile(path+".other", []byte("somebody else's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".other", path); err != nil {
		t.Fatal(err)
	}
	put := func(tx *Txn) error { tx.PutJobAndVersion(testJob("b", 0)); return nil }
	if _, err := s.Update(t.Context(), put); !errors.Is(err, errFileReplaced) {
		t.Errorf("error %v", err)
	}
	if s.Snapshot().Job(nil, "default", "b") != nil {
		t.Error("readers see a change that failed")
	}
	if err := s.CheckWrite(t.Context()); !errors.Is(err, errFileReplaced) || !errors.Is(s.LastWriteErr(), errFileReplaced) {
		t.Errorf("check: %v, last error %v", err, s.LastWriteErr())
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "somebody else's" {
		t.Errorf("the other file now holds %q, %v", text, err)
	}
	os.Remove(path)
	if err := s.CheckWrite(t.Context()); err != nil || s.LastWriteErr() != nil {
		t.Errorf("check without the other file: %v, last error %v", err, s.LastWriteErr())
	}
	before := s.Index()
	if err := s.CheckWrite(t.Context()); err != nil || s.Index() != before {
		t.Errorf("the check has changed the state: %v", err)
	}
	if _, err := s.Update(t.Context(), put); err != nil {
		t.Error(err)
	}
	s = reopenStore(t, s)
	if got := len(s.Snapshot().Jobs(nil, "default", "")); got != 2 || len(s.Damage()) > 0 {
		t.Errorf("%d jobs, want 2; damage %v", got, s.Damage())
	}
}

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "a"}) })
	s.Close()
	path := s.file.path
	// These files remain after a crash between a new file's two links, and after a crash while the file is written.
	if err := errors.Join(os.Link(path, path+temporaryNameInfix+"1"), os.WriteFile(path+temporaryNameInfix+"2", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, path)
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 || s.Snapshot().Namespace(nil, "a") == nil {
		t.Errorf("left %v; namespaces %v", left, s.Snapshot().Namespaces(nil, ""))
	}
}

func TestConcurrentCreation(t *testing.T) {
	t.Parallel()
	path := tempStatePath(t)
	var wg sync.WaitGroup
	var createdCount, lockedCount atomic.Int64
	for range 8 {
		wg.Go(func() {
			s, err := Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
			switch {
			case err == nil:
				createdCount.Add(1)
				t.Cleanup(func() { s.Close() })
			case errors.As(err, new(*LockedError)):
				lockedCount.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if createdCount.Load() != 1 || lockedCount.Load() != 7 {
		t.Errorf("%d have the file, %d were told that it is in use", createdCount.Load(), lockedCount.Load())
	}
}

func TestNotAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".", "fifo", "link", "missing/state.db"} {
		path := filepath.Join(dir, name)
		if _, err := Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// mountSmallTmpfs mounts a tmpfs with the given size, and returns its directory.
func mountSmallTmpfs(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDiskFull(t *testing.T) {
	dir := mountSmallTmpfs(t, "512k")
	counted := 0
	s, err := Open(t.Context(), Config{StateFilePath: filepath.Join(dir, "state.db"), Logger: hclog.NewNullLogger(), OnWrite: func(_ time.Duration, _ int, err error) {
		if err != nil {
			counted++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	put := func(i int) error {
		_, err := s.Update(t.Context(), func(tx *Txn) error {
			for _, half := range []string{"a", "b"} {
				tx.PutJobSubmission("default", fmt.Sprintf("job-%d-%s", i, half), 0, &api.JobSubmission{Source: strings.Repeat(half, 7000)})
			}
			return nil
		})
		return err
	}
	// A retry can succeed because the failed change has left room, so the disk counts as full only after
	// several failures.
	full, failures := 0, 0
	index := s.Index()
	for failures < 4 {
		err := put(full)
		switch {
		case err == nil:
			full, failures, index = full+1, 0, s.Index()
		case !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), s.file.path):
			t.Fatalf("error %v", err)
		default:
			failures++
		}
		if full == 100 {
			t.Fatal("the disk is never full")
		}
	}
	if full < 5 {
		t.Fatalf("full after %d changes", full)
	}
	if counted < 4 {
		t.Errorf("OnWrite had %d errors", counted)
	}
	if s.Index() != index || s.Snapshot().JobSubmission(nil, "default", fmt.Sprintf("job-%d-a", full), 0) != nil {
		t.Error("readers see a part of what failed")
	}
	check := func(n int) {
		t.Helper()
		if got := len(storeContent(s)); got != 2*n || len(s.Damage()) > 0 {
			t.Errorf("%d records, want %d; damage %v", got, 2*n, s.Damage())
		}
	}
	s = reopenStore(t, s) // Open succeeds although the disk is full
	check(full)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=4m"); err != nil {
		t.Fatal(err)
	}
	if err := put(full); err != nil {
		t.Errorf("there is room again, but: %v", err)
	}
	s = reopenStore(t, s)
	check(full + 1)
	s.Close()
}

// On a full disk a damaged file is read, and it is rebuilt when there is space.
func TestDamageOnAFullDisk(t *testing.T) {
	text, want := newSampleStateFile(t)
	dir := mountSmallTmpfs(t, "4m")
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	editRecord(t, path, "evaluations", "*", func(b []byte) []byte { b[7] ^= 1; return b })
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	s := openStore(t, path)
	have := len(storeContent(s))
	if have != len(want)-1 || len(s.Damage()) != 1 {
		t.Errorf("%d of %d records, damage %v", have, len(want), s.Damage())
	}
	put := func(tx *Txn) error { tx.PutNamespace(&api.Namespace{Name: "a"}); return nil }
	if _, err := s.Update(t.Context(), put); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), put); err != nil {
		t.Errorf("there is room, but: %v", err)
	}
	s = reopenStore(t, s)
	if got := len(storeContent(s)); got != have+1 || len(s.Damage()) > 0 {
		t.Errorf("%d records, want %d; damage %v", got, have+1, s.Damage())
	}
	s.Close()
}

func TestReadOnlyDisk(t *testing.T) {
	dir := mountSmallTmpfs(t, "4m")
	s := openStore(t, filepath.Join(dir, "state.db"))
	mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "a"}) })
	s.Close()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{StateFilePath: s.file.path, Logger: hclog.NewNullLogger()}); !errors.Is(err, unix.EROFS) {
		t.Errorf("error %v", err)
	}
	if _, err := InspectFile(s.file.path); err != nil {
		t.Errorf("inspect: %v", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.file.path)
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteNamespace("a") })
	s.Close()
}

// After a bbolt panic, the file is written again from memory.
func TestAbandonedFileIsRebuilt(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(f *os.File, size int64) error{
		"nonsense over the pages": func(f *os.File, size int64) error {
			_, err := f.WriteAt(bytes.Repeat([]byte{0xee}, int(size)-2*pageSize), 2*pageSize)
			return err
		},
		"truncated under the map": func(f *os.File, _ int64) error { return f.Truncate(pageSize) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, tempStatePath(t))
			mustUpdate(t, s, func(tx *Txn) { tx.PutJobAndVersion(testJob("a", 0)) })
			f, err := os.OpenFile(s.file.path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			info, err := f.Stat()
			if err == nil {
				err = spoil(f, info.Size())
			}
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			_, err = s.Update(t.Context(), func(tx *Txn) error { tx.PutJobAndVersion(testJob("b", 0)); return nil })
			if err == nil || !strings.Contains(err.Error(), s.file.path) {
				t.Fatalf("error %v", err)
			}
			mustUpdate(t, s, func(tx *Txn) { tx.PutJobAndVersion(testJob("c", 0)) })
			s = reopenStore(t, s)
			jobs := s.Snapshot().Jobs(nil, "default", "")
			if len(jobs) != 2 || *jobs[0].ID != "a" || *jobs[1].ID != "c" || len(s.Damage()) > 0 {
				t.Errorf("jobs %v, damage %v", jobs, s.Damage())
			}
		})
	}
}

// Whatever a file's content is, the page scan ends and does not panic.
func FuzzScan(f *testing.F) {
	s := openStore(f, tempStatePath(f))
	for i := range 30 {
		mustUpdate(f, s, func(tx *Txn) {
			tx.PutJobSubmission("default", fmt.Sprint(i), 0, &api.JobSubmission{Source: strings.Repeat("x", 300*i)})
		})
	}
	s.Close()
	text, err := os.ReadFile(s.file.path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte{})
	f.Add(uint32(pageSize+16), []byte{1, 2, 3})
	f.Add(uint32(5*pageSize), bytes.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		bad := bytes.Clone(text)
		copy(bad[int(at)%len(bad):], patch)
		// Meta pages get a valid checksum, so that the fuzzer reaches the other pages.
		for id := range 2 {
			m := bad[id*pageSize+pageHeaderSize:]
			checksum := fnv.New64a()
			checksum.Write(m[:56])
			binary.LittleEndian.PutUint64(m[56:], checksum.Sum64())
		}
		visited := 0
		faults := visitRecordsAndVerifyPages(bytes.NewReader(bad), int64(len(bad)), "", func(string, []byte, []byte) { visited++ })
		if visited > len(bad)/elementHeaderSize {
			t.Errorf("%d records in %d bytes", visited, len(bad))
		}
		if len(faults) > 0 {
			return
		}
		// bbolt can safely open a file if the scan finds no faults.
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true, NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Update(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			b, err := tx.CreateBucketIfNotExists([]byte("more"))
			if err != nil {
				return err
			}
			return b.Put([]byte("k"), []byte("v"))
		}); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A local record that cannot be decoded when it is read is moved to quarantine and reported, even if the caller ignores the
// error.
func TestUnreadableLocalRecordIsQuarantined(t *testing.T) {
	t.Parallel()
	const allocID = "alloc-1"
	for _, tc := range []struct {
		table    Table
		key      string
		read     func(Reader) (bool, error)
		complete bool // the test stores complete records, which can be decoded and are rejected by CheckRecord
	}{
		{taskLocalsTable, allocID + "\x00web", func(r Reader) (bool, error) { _, ok, err := r.TaskFields(allocID, "web"); return ok, err }, false},
		{taskHandlesTable, allocID + "\x00web\x001", func(r Reader) (bool, error) { h, err := r.TaskHandle(allocID, "web", "1"); return h != nil, err }, false},
		{taskStatesTable, allocID + "\x00web", func(r Reader) (bool, error) { s, err := r.TaskState(allocID, "web"); return s != nil, err }, false},
		{allocLocalsTable, allocID, func(r Reader) (bool, error) { c, err := r.CheckResults(allocID); return c != nil, err }, false},
		{agentMetaTable, "remains/x", func(r Reader) (bool, error) { return r.ReadAgentRecord("remains/x", new(state.PendingRemoval)) }, false},
		{agentMetaTable, "plugin/x", func(r Reader) (bool, error) { return r.ReadAgentRecord("plugin/x", new(state.PluginProcess)) }, true},
	} {
		t.Run(string(tc.table)+" "+readableKey(tc.key), func(t *testing.T) {
			t.Parallel()
			s := openStore(t, tempStatePath(t))
			content := any("a string")
			if tc.complete {
				content = map[string]string{"name": "x"}
			}
			mustUpdate(t, s, func(tx *Txn) {
				tx.PutNodeWithStorageEvents(&api.Node{ID: "node"})
				tx.PutAgentRecord(state.BootIDName, "x")
				payload, err := encodeMsgpack(content)
				if err != nil {
					t.Error(err)
				}
				tx.putLocalRecordIfChanged(tc.table, tc.key, payload, nil)
			})
			s = reopenStore(t, s)
			if d := s.Damage(); len(d) > 0 {
				t.Fatalf("damage before it is read: %v", d)
			}
			if ok, err := tc.read(s.Snapshot().Reader); ok || err == nil {
				t.Fatalf("read %t, %v", ok, err)
			}
			// The second read does not report the same record again. The writer may have moved the record already.
			if ok, err := tc.read(s.Snapshot().Reader); ok {
				t.Fatalf("second read %t, %v", ok, err)
			}
			mustUpdate(t, s, func(tx *Txn) { // the writer runs this update after those enqueued by the reads
				if ok, err := tc.read(tx.Reader); ok || err != nil {
					t.Errorf("read %t, %v after the quarantine", ok, err)
				}
			})
			d := s.Damage()
			if len(d) != 1 || d[0].Table != tc.table || d[0].Key != readableKey(tc.key) || d[0].KeptIn != "quarantine" {
				t.Errorf("damage %+v", d)
			}
			events := s.Snapshot().Node(nil, "node").Events
			if len(events) != 1 || !strings.Contains(events[0].Message, d[0].NameAndCause()) {
				t.Errorf("events of the node: %+v", events)
			}
			s = reopenStore(t, s)
			if d := s.Damage(); len(d) > 0 {
				t.Errorf("damage at the second open: %v", d)
			}
			var metaText string
			if ok, err := s.Snapshot().ReadAgentRecord(state.BootIDName, &metaText); !ok || err != nil {
				t.Errorf("another record: %t, %v", ok, err)
			}
			s.Close()
			contents, err := InspectFile(s.file.path)
			if err != nil {
				t.Fatal(err)
			}
			if len(contents.Quarantine) != 1 || contents.Quarantine[0].Table != tc.table || contents.Quarantine[0].Cause != d[0].Cause {
				t.Fatalf("quarantine %+v", contents.Quarantine)
			}
			r, err := decodeRecord(string(tc.table), tc.key, contents.Quarantine[0].Value)
			want, _ := encodeMsgpack(content)
			if err != nil || !bytes.Equal(r.payload, want) {
				t.Errorf("bytes of the record are not kept: %v, %v", r, err)
			}
		})
	}
}

// An unreadable record is not quarantined if it is written again before.
func TestRewrittenRecordIsNotQuarantined(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	const name = state.PluginProcessPrefix + "x"
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(name, "a string") })
	mustUpdate(t, s, func(tx *Txn) {
		if _, err := tx.ReadAgentRecord(name, new(state.PluginProcess)); err == nil {
			t.Error("it reads")
		}
		tx.PutAgentRecord(name, &state.PluginProcess{PID: 1, Addr: "new"})
	})
	mustUpdate(t, s, func(tx *Txn) {
		var p state.PluginProcess
		if ok, err := tx.ReadAgentRecord(name, &p); !ok || err != nil || p.Addr != "new" {
			t.Errorf("%v, %t, %v", p, ok, err)
		}
	})
	if d := s.Damage(); len(d) > 0 {
		t.Errorf("damage %v", d)
	}
}
