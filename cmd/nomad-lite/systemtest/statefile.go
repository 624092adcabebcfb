package systemtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
	"github.com/rogpeppe/go-internal/testscript"
	bolt "go.etcd.io/bbolt"
)

// createOrEditStateFile is the script command "statefile". With the argument FILE it creates a state file. With FILE
// OLD NEW it replaces bytes anywhere in a state file. With -newer FILE it changes the format of a state file to 9,
// which only version 9.9.0 can read.
func createOrEditStateFile(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 2 && args[0] == "-newer" && !neg {
		ts.Check(writeNewerStateFormat(ts.MkAbs(args[1])))
		return
	}
	if neg || len(args) != 1 && len(args) != 3 {
		ts.Fatalf("usage: statefile FILE [OLD NEW], statefile -newer FILE")
	}
	path := ts.MkAbs(args[0])
	if len(args) == 3 {
		text, err := os.ReadFile(path)
		ts.Check(err)
		if !bytes.Contains(text, []byte(args[1])) || len(args[1]) != len(args[2]) {
			ts.Fatalf("%s: no %q to replace", args[0], args[1])
		}
		ts.Check(os.WriteFile(path, bytes.ReplaceAll(text, []byte(args[1]), []byte(args[2])), 0o600))
		return
	}
	s, err := store.Open(context.Background(), store.Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	ts.Check(err)
	_, err = s.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutJobAndVersion(&api.Job{
			ID: new("web"), Namespace: new("default"), Version: new(uint64(0)), Meta: map[string]string{"api_token": "hvs.0123456789"},
			TaskGroups: []*api.TaskGroup{{Name: new("app"), Tasks: []*api.Task{{
				Name: "server", Driver: "docker",
				Config:    map[string]any{"image": "nginx", "auth": []any{map[string]any{"username": "me", "password": "hunter2"}}},
				Env:       map[string]string{"DB_URL": "postgres://me:hunter2@db"},
				Templates: []*api.Template{{EmbeddedTmpl: new("key = hunter2"), DestPath: new("local/key")}},
			}}}},
		})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "app/db", Items: api.VariableItems{"password": "hunter2", "user": "hunter2"}})
		tx.PutEvaluation(&api.Evaluation{ID: "cafe0000-0000-0000-0000-000000000001", Namespace: "default", JobID: "web", Status: "complete"})
		tx.PutEvaluation(&api.Evaluation{ID: "cafe0000-0000-0000-0000-000000000002", Namespace: "default", JobID: "web", Status: "blocked"})
		tx.PutAgentRecord(state.PluginProcessPrefix+"docker", &state.PluginProcess{PID: 17, Addr: "/run/docker"})
		tx.PutAgentRecord(state.AttachedHooksPrefix+"a", map[string]string{"api_key": "hunter2"})
		return nil
	})
	ts.Check(err)
	ts.Check(s.Close())
}

// writeNewerStateFormat replaces the record of a state file that states its format. The encoding of this record never
// changes.
func writeNewerStateFormat(path string) error {
	const payload = `{"format":9,"oldest_reader":9,"writer":"9.9.0"}`
	index := make([]byte, 8)
	checksum := crc32.Checksum(slices.Concat([]byte("meta\x00format\x00\x01"), index, []byte(payload)), crc32.MakeTable(crc32.Castagnoli))
	record := slices.Concat([]byte{1}, binary.BigEndian.AppendUint32(nil, checksum), index, []byte(payload))
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), record) })
	return errors.Join(err, db.Close())
}
