package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rsa"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// configWithKeys returns the config for a store with keys in a directory.
func configWithKeys(dir string) Config {
	return Config{
		StateFilePath: filepath.Join(dir, FileName), KeyFile: filepath.Join(dir, "keyring.json"), Logger: hclog.NewNullLogger(),
	}
}

func openWithKeys(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), configWithKeys(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// sealedName and openName are the names of a wholly sealed record and of an unsealed one.
const (
	sealedName = state.IdentityPrefix + "one"
	openName   = state.BootIDName
)

// secretTokens returns tokens that contain a secret.
func secretTokens(secret string) state.TokenByIdentityName {
	return state.TokenByIdentityName{"t": {JWT: secret, IssuedAt: time.Unix(1, 0).UTC()}}
}

// plantedSecret is part of each secret that these tests store.
const plantedSecret = "hunter2"

// fieldsWithSecrets returns a task's record. Each field that can hold a secret contains plantedSecret.
func fieldsWithSecrets() record.Fields {
	handle := func() *driver.Handle {
		return &driver.Handle{
			Version: 1,
			Config:  &driver.TaskConfig{ID: "x/web/1", Name: "web", Env: map[string]string{"NOMAD_ALLOC_ID": "x", "TOKEN": plantedSecret + "-env"}},
			// Many third-party drivers keep the task's configuration in their state.
			DriverState: []byte("NOMAD_ALLOC_ID=x TOKEN=" + plantedSecret + "-state"),
		}
	}
	return record.Fields{
		StartID:             "x/web/1",
		Handle:              handle(),
		FirstPendingDestroy: &record.PendingDestroy{StartID: "x/web/0", Handle: handle()},
		HookStateByName: map[string]record.HookState{
			"template": {PrestartDone: true, Env: map[string]string{"TOKEN": plantedSecret + "-template"}},
			"vault":    {Data: map[string]string{"lease": plantedSecret + "-lease"}},
			"plain":    {PrestartDone: true},
		},
	}
}

func putSecrets(t *testing.T, s *Store) {
	t.Helper()
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "x", Namespace: "default", JobID: "web"})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "a", Items: api.VariableItems{"p": plantedSecret + "-a"}})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "b", Items: api.VariableItems{"p": plantedSecret + "-b"}})
		tx.PutAgentRecord(sealedName, secretTokens(plantedSecret+"-fact"))
		tx.PutAgentRecord(openName, "fact")
		tx.putTaskFields("x", "web", fieldsWithSecrets())
	})
}

// checkSecrets checks that all values stored by putSecrets are unchanged.
func checkSecrets(t *testing.T, s *Store) {
	t.Helper()
	snap := s.Snapshot()
	for _, path := range []string{"a", "b"} {
		v := snap.Variable(nil, "default", path)
		if v == nil || v.Items["p"] != plantedSecret+"-"+path || snap.VariableDecryptErr(v) != nil {
			t.Errorf("variable %s: %v, %v", path, v, snap.VariableDecryptErr(v))
		}
	}
	if local, ok, err := taskFieldsWithSecrets(snap.Reader, "x", "web"); !ok || err != nil || !reflect.DeepEqual(local, fieldsWithSecrets()) {
		t.Errorf("task: %+v, %t, %v", local, ok, err)
	}
	var tokens state.TokenByIdentityName
	if ok, err := snap.ReadAgentRecord(sealedName, &tokens); !ok || err != nil || !reflect.DeepEqual(tokens, secretTokens(plantedSecret+"-fact")) {
		t.Errorf("record %s: %v, %t, %v", sealedName, tokens, ok, err)
	}
	bootID := ""
	if ok, err := snap.ReadAgentRecord(openName, &bootID); !ok || err != nil || bootID != "fact" {
		t.Errorf("record %s: %q, %t, %v", openName, bootID, ok, err)
	}
	if err := s.KeyFileErr(); err != nil {
		t.Error(err)
	}
	if d := s.Damage(); len(d) > 0 {
		t.Errorf("damage: %v", d)
	}
}

// filesWithSecret returns the files in and below a directory that contain plantedSecret.
func filesWithSecret(t *testing.T, dir string) (found []string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(plantedSecret)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Fatalf("search %s: %d files, %v", dir, files, err)
	}
	return found
}

func TestStateFileHoldsNoSecrets(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	for range 3 { // several writes, because unused pages keep their former content
		putSecrets(t, s)
	}
	putTask(t, s)
	checkSecrets(t, s)
	if found := filesWithSecret(t, dir); len(found) > 0 {
		t.Errorf("secrets in %v", found)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkSecrets(t, openWithKeys(t, dir))
	if info, err := os.Stat(filepath.Join(dir, "keyring.json")); err != nil || info.Mode() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
}

// putTask stores a task's state with the calls that a task runner makes.
func putTask(t *testing.T, s *Store) {
	t.Helper()
	local := fieldsWithSecrets()
	if err := s.PutTask("x", "web", local, &api.TaskState{State: "running"}, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(local, fieldsWithSecrets()) {
		t.Error("the state of the runner was changed")
	}
}

// putRawRecords changes a closed state file's records without a store.
func putRawRecords(t *testing.T, dir string, ops ...bucketWrite) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, FileName), 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		for _, o := range ops {
			if err := applyWrite(tx, o); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// getRawPayload returns the payload of a record in a closed state file.
func getRawPayload(t *testing.T, dir, bucket, key string) []byte {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, FileName), 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var payload []byte
	_ = db.View(func(tx *bolt.Tx) error {
		r, err := decodeRecord(bucket, key, tx.Bucket([]byte(bucket)).Get([]byte(key)))
		if err != nil {
			t.Fatal(err)
		}
		payload = bytes.Clone(r.payload)
		return nil
	})
	return payload
}

// writePlainState makes the state file for a store without keys.
func writePlainState(t *testing.T, dir string) {
	t.Helper()
	s, err := Open(t.Context(), Config{StateFilePath: filepath.Join(dir, FileName), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	putSecrets(t, s)
	const key = "y\x00web"
	payload, err := s.sealer.encodeQuarantineRecord("task_local\x00"+key, quarantinedRecord{Cause: "damaged", Time: time.Unix(1, 0).UTC(), Value: []byte(plantedSecret)})
	mustSucceed(t, err)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	putRawRecords(t, dir, bucketWrite{quarantineBucket, "task_local\x00" + key, encodeRecord(quarantineBucket, "task_local\x00"+key, 1, payload)})
	if len(filesWithSecret(t, dir)) == 0 {
		t.Fatal("the state file holds no secrets")
	}
}

func TestPlainStateIsSealedAtTheFirstStart(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, dir string){
		"no key file": func(*testing.T, string) {},
		"killed after": func(t *testing.T, dir string) {
			mustSucceed(t, keyring.NewRing().Save(filepath.Join(dir, "keyring.json")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writePlainState(t, dir)
			before(t, dir)
			s := openWithKeys(t, dir)
			checkSecrets(t, s)
			if found := filesWithSecret(t, dir); len(found) > 0 {
				t.Errorf("secrets in %v while the store is open", found)
			}
			mustSucceed(t, s.Close())
			s = openWithKeys(t, dir)
			checkSecrets(t, s)
			q, err := s.sealer.decryptQuarantinedRecord("task_local\x00y\x00web", mustDecodeRecord(t, quarantineBucket, "task_local\x00y\x00web", s.quarantinedRecordByName["task_local\x00y\x00web"]))
			if err != nil || string(q.Value) != plantedSecret || q.Cause != "damaged" {
				t.Errorf("quarantine: %+v, %v", q, err)
			}
		})
	}
}

func mustDecodeRecord(t *testing.T, bucket, key string, value []byte) []byte {
	t.Helper()
	r, err := decodeRecord(bucket, key, value)
	mustSucceed(t, err)
	return r.payload
}

func mustSucceed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestQuarantinedRecordsAreSealed(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(sealedName, plantedSecret) })
	if _, err := s.Snapshot().ReadAgentRecord(sealedName, new(state.TokenByIdentityName)); err == nil {
		t.Fatal("a text was read as a map")
	}
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(openName, "later") }) // the writer runs this update after the one that quarantines the record
	if d := s.Damage(); len(d) != 1 || d[0].Key != sealedName {
		t.Fatalf("damage: %v", d)
	}
	mustSucceed(t, s.Close())
	if found := filesWithSecret(t, dir); len(found) > 0 {
		t.Errorf("secrets in %v", found)
	}
}

func TestSealedItemsCannotBeSwapped(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	mustSucceed(t, s.Close())
	a, b := namespacedKey("default", "a"), namespacedKey("default", "b")
	boxA, openA, err := decodeEnvelope(getRawPayload(t, dir, string(Variables), a))
	mustSucceed(t, err)
	boxB, openB, err := decodeEnvelope(getRawPayload(t, dir, string(Variables), b))
	mustSucceed(t, err)
	putRawRecords(t, dir,
		bucketWrite{string(Variables), a, encodeRecord(string(Variables), a, 1, encodeEnvelope(boxB, openA))},
		bucketWrite{string(Variables), b, encodeRecord(string(Variables), b, 1, encodeEnvelope(boxA, openB))})
	s = openWithKeys(t, dir)
	snap := s.Snapshot()
	for _, path := range []string{"a", "b"} {
		v := snap.Variable(nil, "default", path)
		if err := snap.VariableDecryptErr(v); len(v.Items) > 0 || !errors.Is(err, keyring.ErrDecrypt) || !strings.Contains(err.Error(), "variable \"default/"+path+"\"") {
			t.Errorf("variable %s: %v, %v", path, v.Items, err)
		}
	}
	// A new value makes the variable readable again.
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "a", Items: api.VariableItems{"p": "new"}})
	})
	snap = s.Snapshot()
	if v := snap.Variable(nil, "default", "a"); snap.VariableDecryptErr(v) != nil || v.Items["p"] != "new" {
		t.Errorf("after a write: %v, %v", v, snap.VariableDecryptErr(v))
	}
}

func TestMissingKeyFile(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"missing": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			keyFile := filepath.Join(dir, "keyring.json")
			s := openWithKeys(t, dir)
			putSecrets(t, s)
			mustSucceed(t, s.Close())
			keys, err := os.ReadFile(keyFile)
			mustSucceed(t, err)
			mustSucceed(t, lose(keyFile))

			for range 2 { // sealed records are kept by several agents that lack the key
				s = openWithKeys(t, dir)
				snap := s.Snapshot()
				if err := s.KeyFileErr(); err == nil || !strings.Contains(err.Error(), keyFile) || !strings.Contains(err.Error(), "root keyring rotate") {
					t.Errorf("KeysErr: %v, want place and remedy", err)
				}
				if _, err := s.Keys(); err == nil {
					t.Error("Keys: no error")
				}
				v := snap.Variable(nil, "default", "a")
				if err := snap.VariableDecryptErr(v); len(v.Items) > 0 || err == nil || !strings.Contains(err.Error(), keyFile) {
					t.Errorf("variable: %v, %v", v.Items, err)
				}
				for what, change := range map[string]func(*Txn){
					"put":         func(tx *Txn) { tx.PutVariable(&api.Variable{Namespace: "default", Path: "c", Items: v.Items}) },
					"overwrite":   func(tx *Txn) { tx.PutVariable(&api.Variable{Namespace: "default", Path: "a", Items: v.Items}) },
					"delete":      func(tx *Txn) { tx.DeleteVariable("default", "a") },
					"delete none": func(tx *Txn) { tx.DeleteVariable("default", "c") },
				} {
					var keyFileErr *KeyFileError
					if _, err := s.Update(testContext, func(tx *Txn) error { change(tx); return nil }); !errors.As(err, &keyFileErr) {
						t.Errorf("%s: %v", what, err)
					}
				}
				// Without the key, tasks are recovered without the sealed parts of their records.
				local, ok, err := taskFieldsWithSecrets(snap.Reader, "x", "web")
				if !ok || err != nil || local.StartID != "x/web/1" || local.Handle == nil || local.Handle.Config.ID != "x/web/1" || len(local.Handle.Config.Env) > 0 {
					t.Errorf("task: %+v, %t, %v", local, ok, err)
				}
				var tokens state.TokenByIdentityName
				if _, err := snap.ReadAgentRecord(sealedName, &tokens); err == nil {
					t.Errorf("tokens: %v", tokens)
				}
				mustUpdate(t, s, func(tx *Txn) {
					local.RunComplete = true
					tx.putTaskFields("x", "web", local)
					tx.PutNodeWithStorageEvents(&api.Node{ID: "n"})
				})
				if events := s.Snapshot().Node(nil, "n").Events; len(events) != 1 || !strings.Contains(events[0].Message, keyFile) {
					t.Errorf("node events %v", events)
				}
				if d := s.Damage(); len(d) > 0 {
					t.Errorf("damage: %v", d)
				}
				mustUpdate(t, s, func(tx *Txn) { local.RunComplete = false; tx.putTaskFields("x", "web", local) })
				mustSucceed(t, s.runBetweenTransactions(testContext, func() error { return s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))) }))
				mustSucceed(t, s.Close())
			}

			mustSucceed(t, os.WriteFile(keyFile, keys, 0o600))
			checkSecrets(t, openWithKeys(t, dir))
		})
	}
}

func TestKeyRotationMakesANewKeyWhenTheOldIsLost(t *testing.T) {
	dir := t.TempDir()
	keyFile := filepath.Join(dir, "keyring.json")
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	mustSucceed(t, s.Close())
	mustSucceed(t, os.WriteFile(keyFile, []byte("{"), 0o600))
	s = openWithKeys(t, dir)
	// A record written without a key is sealed as soon as there is a key.
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(state.IdentityPrefix+"two", secretTokens(plantedSecret)) })
	if _, err := s.RotateKeys(testContext, false); err != nil {
		t.Fatal(err)
	}
	if found := filesWithSecret(t, dir); len(found) > 0 {
		t.Errorf("secrets in %v", found)
	}
	if kept, _ := filepath.Glob(keyFile + ".unreadable-*"); len(kept) != 1 {
		t.Errorf("files of before: %v", kept)
	}
	// A variable with items that cannot be opened is kept. Only a variable with items can replace it.
	_, err := s.Update(testContext, func(tx *Txn) error {
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "a"})
		return nil
	})
	var sealedErr *SecretDecryptError
	if !errors.As(err, &sealedErr) {
		t.Errorf("a variable without items in the place of a sealed one: %v", err)
	}
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "a", Items: api.VariableItems{"p": "new"}})
	})
	mustSucceed(t, s.Close())
	s = openWithKeys(t, dir)
	snap := s.Snapshot()
	if a := snap.Variable(nil, "default", "a"); a.Items["p"] != "new" || s.KeyFileErr() != nil {
		t.Errorf("variable: %v, %v", a, s.KeyFileErr())
	}
	if b := snap.Variable(nil, "default", "b"); snap.VariableDecryptErr(b) == nil {
		t.Errorf("variable: %v", b)
	}
}

func TestKeyRotation(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	first, err := s.Keys()
	mustSucceed(t, err)
	second, err := s.RotateKeys(testContext, false)
	mustSucceed(t, err)
	if keys, err := s.Keys(); err != nil || len(keys) != 2 || keys[0].State != api.RootKeyStateInactive || keys[1].KeyID != second.KeyID {
		t.Errorf("keys %v, %v", keys, err)
	}
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "c", Items: api.VariableItems{"p": plantedSecret + "-c"}})
	})
	mustSucceed(t, s.Close())
	key := func(path string) string {
		box, _, err := decodeEnvelope(getRawPayload(t, dir, string(Variables), namespacedKey("default", path)))
		mustSucceed(t, err)
		return keyring.SealingKeyID(box)
	}
	if key("a") != first[0].KeyID || key("c") != second.KeyID {
		t.Errorf("sealed with %s and %s, the keys are %s and %s", key("a"), key("c"), first[0].KeyID, second.KeyID)
	}
	s = openWithKeys(t, dir)
	checkSecrets(t, s)
	var keyInUseErr *KeyInUseError
	if err := s.RemoveKey(testContext, first[0].KeyID, false); !errors.As(err, &keyInUseErr) || keyInUseErr.SealedRecordCount != 6 {
		t.Errorf("remove a key that is used: %v", err)
	}
	if err := s.RemoveKey(testContext, second.KeyID, true); !errors.Is(err, keyring.ErrKeyActive) {
		t.Errorf("remove the active key: %v", err)
	}
	third, err := s.RotateKeys(testContext, true)
	mustSucceed(t, err)
	mustSucceed(t, s.RemoveKey(testContext, first[0].KeyID, false))
	mustSucceed(t, s.RemoveKey(testContext, second.KeyID, false))
	mustSucceed(t, s.Close())
	for _, path := range []string{"a", "b", "c"} {
		if key(path) != third.KeyID {
			t.Errorf("variable %s is sealed with %s, want %s", path, key(path), third.KeyID)
		}
	}
	s = openWithKeys(t, dir)
	checkSecrets(t, s)
	// If a key is removed with force, the records sealed with it are first sealed with the active key.
	_, err = s.RotateKeys(testContext, false)
	mustSucceed(t, err)
	mustSucceed(t, s.RemoveKey(testContext, third.KeyID, true))
	mustSucceed(t, s.Close())
	checkSecrets(t, openWithKeys(t, dir))
}

func TestTemporaryKeys(t *testing.T) {
	dir := t.TempDir()
	c := configWithKeys(dir)
	c.KeyFile, c.TemporaryKeys = "", true
	s, err := Open(t.Context(), c)
	mustSucceed(t, err)
	defer s.Close()
	putSecrets(t, s)
	checkSecrets(t, s)
	if found := filesWithSecret(t, dir); len(found) > 0 {
		t.Errorf("secrets in %v", found)
	}
	if _, err := s.RotateKeys(testContext, true); err != nil {
		t.Error(err)
	}
	checkSecrets(t, s)
	if names, _ := filepath.Glob(filepath.Join(dir, "keyring*")); len(names) > 0 {
		t.Errorf("files %v", names)
	}
}

func TestSigningKey(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	if keys, err := s.SigningKeys().PublicKeys(); err != nil || len(keys) != 0 {
		t.Errorf("before the first request: %v, %v", keys, err)
	}
	type result struct {
		id  string
		key *rsa.PrivateKey
		err error
	}
	results := make(chan result)
	for range 4 {
		go func() {
			id, key, err := s.SigningKeys().EnsureActiveKey(testContext)
			results <- result{id, key, err}
		}()
	}
	first := <-results
	for range 3 {
		if other := <-results; other != first || first.err != nil {
			t.Errorf("concurrent requests got %v and %v", first.id, other)
		}
	}
	mustSucceed(t, s.Close())
	s = openWithKeys(t, dir)
	id, key, err := s.SigningKeys().EnsureActiveKey(testContext)
	if err != nil || id != first.id || !key.Equal(first.key) {
		t.Errorf("the next agent has key %s, want %s: %v", id, first.id, err)
	}

	active, err := s.RotateKeys(testContext, false)
	mustSucceed(t, err)
	public, err := s.SigningKeys().PublicKeys()
	if err != nil || len(public) != 2 || public[0].KeyID != first.id || public[1].KeyID != active.KeyID {
		t.Errorf("public keys after a rotation: %v, %v", public, err)
	}
	mustSucceed(t, s.RemoveKey(testContext, first.id, true))
	if public, err := s.SigningKeys().PublicKeys(); err != nil || len(public) != 1 {
		t.Errorf("public keys after the removal: %v, %v", public, err)
	}
}

// rotateKeysUntilKilled prints a line, waits for a line, and then changes a variable and rotates keys as
// fast as it can.
func rotateKeysUntilKilled(dir string) {
	s, err := Open(context.Background(), configWithKeys(dir))
	if err != nil || s.KeyFileErr() != nil || len(s.Damage()) > 0 {
		fmt.Fprintln(os.Stderr, err, s.KeyFileErr(), s.Damage())
		os.Exit(1)
	}
	n := 0
	if v := s.Snapshot().Variable(nil, "default", "n"); v != nil {
		fmt.Sscan(v.Items["n"], &n)
	}
	fmt.Println(n)
	os.Stdin.Read(make([]byte, 1))
	for n++; ; n++ {
		_, err := s.Update(testContext, func(tx *Txn) error {
			tx.PutVariable(&api.Variable{Namespace: "default", Path: "n", Items: api.VariableItems{"n": fmt.Sprint(n)}})
			return nil
		})
		if err == nil {
			_, err = s.RotateKeys(testContext, true)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// Each rotation step changes a name or a file in the state's directory. The test kills the process at each step.
func TestKilledKeyRotationLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	mustSucceed(t, s.Close())
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	mustSucceed(t, err)
	events := os.NewFile(uintptr(watch), "inotify")
	defer events.Close()
	_, err = unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO|unix.IN_DELETE)
	mustSucceed(t, err)
	confirmedWrites, buffer := 0, make([]byte, 64<<10)
	rounds := 3 * len(keyRotationSteps)
	if testing.Short() {
		rounds = len(keyRotationSteps)
	}
	for round := range rounds {
		step := keyRotationSteps[round%len(keyRotationSteps)]
		cmd := testChildCommand(t, "rotate", dir)
		in, err := cmd.StdinPipe()
		mustSucceed(t, err)
		out, err := cmd.StdoutPipe()
		mustSucceed(t, err)
		mustSucceed(t, cmd.Start())
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			cmd.Wait()
			t.Fatalf("%v: the process says %s", step, cmd.Stderr)
		}
		mustSucceed(t, events.SetReadDeadline(time.Now().Add(time.Millisecond)))
		for {
			if _, err := events.Read(buffer); err != nil {
				break // discards the events of earlier changes
			}
		}
		mustSucceed(t, events.SetReadDeadline(time.Now().Add(time.Minute)))
		fmt.Fprintln(in)
		for left := 1 + round/len(keyRotationSteps); left > 0; {
			n, err := events.Read(buffer)
			if err != nil {
				t.Fatalf("%v: %v, %s", step, err, cmd.Stderr)
			}
			for b := buffer[:n]; len(b) > 0; {
				size := unix.SizeofInotifyEvent + binary.NativeEndian.Uint32(b[12:])
				name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:size]), "\x00")
				if binary.NativeEndian.Uint32(b[4:]) == step.change && strings.HasPrefix(name, step.name) {
					left--
				}
				b = b[size:]
			}
		}
		cmd.Process.Kill()
		for more := true; more; more = lines.Scan() {
			n := 0
			fmt.Sscan(lines.Text(), &n)
			confirmedWrites = max(confirmedWrites, n)
		}
		cmd.Wait()
		if text := cmd.Stderr.(*bytes.Buffer).String(); text != "" {
			t.Fatalf("%v: the process says %s", step, text)
		}
		s := openWithKeys(t, dir)
		checkSecrets(t, s)
		n := 0
		if v := s.Snapshot().Variable(nil, "default", "n"); v != nil {
			fmt.Sscan(v.Items["n"], &n)
		}
		if n < confirmedWrites || n > confirmedWrites+1 {
			t.Errorf("%v: the variable is of change %d, but %d was told", step, n, confirmedWrites)
		}
		confirmedWrites = n
		mustSucceed(t, s.Close())
	}
}

// keyRotationSteps are the directory changes during a full rotation, in order.
var keyRotationSteps = []struct {
	change uint32
	name   string
}{
	{unix.IN_CREATE, "keyring.json.new-"},
	{unix.IN_MODIFY, "keyring.json.new-"},
	{unix.IN_CLOSE_WRITE, "keyring.json.new-"},
	{unix.IN_MOVED_TO, "keyring.json"},
	{unix.IN_CREATE, "state.db.new-"},
	{unix.IN_MODIFY, "state.db.new-"},
	{unix.IN_MOVED_TO, "state.db"},
}

func TestKeyRotationThatCannotBeWrittenChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	putSecrets(t, s)
	keys, err := s.Keys()
	mustSucceed(t, err)
	keyFile := filepath.Join(dir, "keyring.json")
	mustSucceed(t, os.Rename(keyFile, keyFile+".kept"))
	mustSucceed(t, os.MkdirAll(filepath.Join(keyFile, "in the way"), 0o700))
	if _, err := s.RotateKeys(context.Background(), true); err == nil {
		t.Error("no error")
	}
	if now, err := s.Keys(); err != nil || !reflect.DeepEqual(now, keys) {
		t.Errorf("keys %v, %v", now, err)
	}
	mustSucceed(t, os.RemoveAll(keyFile))
	mustSucceed(t, os.Rename(keyFile+".kept", keyFile))
	mustSucceed(t, s.Close())
	checkSecrets(t, openWithKeys(t, dir))
}

func FuzzDecodeEnvelope(f *testing.F) {
	f.Add(encodeEnvelope(make([]byte, 40), []byte("open")))
	f.Add([]byte{envelopeFirstByte, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		box, open, err := decodeEnvelope(payload)
		if err == nil && box != nil {
			if b, o, err := decodeEnvelope(encodeEnvelope(box, open)); err != nil || !bytes.Equal(b, box) || !bytes.Equal(o, open) {
				t.Errorf("%x %x %v", b, o, err)
			}
		}
	})
}
