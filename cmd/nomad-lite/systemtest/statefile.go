package systemtest

import (
	"bytes"
	"context"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/rogpeppe/go-internal/testscript"
)

// editStateFile is the command "statefile FILE" of the scripts. It creates a state file. With the
// arguments FILE OLD NEW it replaces bytes in a state file, wherever they are.
func editStateFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 && len(args) != 3 {
		ts.Fatalf("usage: statefile FILE [OLD NEW]")
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
	s, err := store.Open(store.Config{Path: path, Logger: hclog.NewNullLogger()})
	ts.Check(err)
	_, err = s.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutJob(&api.Job{
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
		tx.PutMeta(state.PluginProcessPrefix+"docker", &state.PluginProcess{PID: 17, Addr: "/run/docker"})
		tx.PutMeta(state.AttachedHooksPrefix+"a", map[string]string{"api_key": "hunter2"})
		return nil
	})
	ts.Check(err)
	ts.Check(s.Close())
}
