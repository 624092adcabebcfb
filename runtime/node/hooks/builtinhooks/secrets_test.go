package builtinhooks

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

func TestSecretsAreReadAtEachStart(t *testing.T) {
	items := map[string]string{"user": "alice"}
	task := &api.Task{
		Env:     map[string]string{"USER": "${secret.db.user}"},
		Secrets: []*api.Secret{{Name: "db", Provider: "nomad", Path: "a/b"}},
	}
	env := taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{EnvBlock: task.Env})
	workload := identity.Workload{Namespace: "prod", AllocID: "a", Task: "web"}
	h := NewSecretsHook(task, workload, func(_ context.Context, w identity.Workload, _, path string) (map[string]string, error) {
		if w != workload || path != "a/b" {
			t.Errorf("read %s of %v", path, w)
		}
		return items, nil
	}, env, nil)
	for _, want := range []string{"alice", "bob"} {
		items = map[string]string{"user": want}
		r, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{})
		if err != nil || r.Done || len(r.Env)+len(r.State) > 0 {
			t.Fatalf("%+v, %v: want a response that stores nothing", r, err)
		}
		if got := env.Build().Vars()["USER"]; got != want {
			t.Errorf("USER = %q, want %q", got, want)
		}
	}
}

// A task waits for a variable that does not exist, with one event, and stops waiting when it is killed.
func TestSecretsWaitForVariable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := &api.Task{Secrets: []*api.Secret{{Name: "db", Provider: "nomad", Path: "a/b"}}}
		began, created := time.Now(), time.Now().Add(time.Hour)
		var events []string
		h := NewSecretsHook(task, identity.Workload{Namespace: "prod"}, func(context.Context, identity.Workload, string, string) (map[string]string, error) {
			if time.Now().Before(created) {
				return nil, nil
			}
			return map[string]string{"user": "alice"}, nil
		}, taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}), func(e *api.TaskEvent) { events = append(events, e.Type+" "+e.Message) })
		if _, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{}); err != nil || time.Since(began).Truncate(time.Minute) != time.Hour {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if want := []string{"Template Missing: nomad.var.block(a/b@prod)"}; !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
		created = time.Now().Add(time.Hour)
		ctx, kill := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, kill)
		if _, err := h.Prestart(ctx, hook.TaskPrestartRequest{}); !errors.Is(err, context.Canceled) {
			t.Errorf("killed: %v", err)
		}
	})
}

func TestSecretsReportPlaceAndRemedy(t *testing.T) {
	unreadable := errors.New("sealed with another key")
	secrets := []*api.Secret{{Name: "db", Provider: "nomad", Path: "a/b"}}
	for _, c := range []struct {
		name  string
		task  api.Task
		items map[string]string
		err   error
		want  []string
	}{
		{"a variable that cannot be read", api.Task{}, nil, unreadable, []string{`secret "db": sealed with another key`}},
		{"no key of env", api.Task{Env: map[string]string{"A": "${secret.db.user} ${secret.db.nope}"}}, map[string]string{"user": "alice"}, nil, []string{"env A: ${secret.db.nope} has no value", "nomad-lite var put"}},
		{"no secret block of this name", api.Task{Env: map[string]string{"A": "${secret.other.user}"}}, map[string]string{"user": "alice"}, nil, []string{"env A: ${secret.other.user} has no value"}},
		{
			"no key in a nested block of config",
			api.Task{Config: map[string]any{"args": []any{"x"}, "mount": []any{map[string]any{"source": []any{"${secret.db.user}", "${secret.db.nope}"}}}}},
			map[string]string{"user": "alice"},
			nil,
			[]string{"config.mount[0].source[1]: ${secret.db.nope} has no value"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.task.Secrets = secrets
			env := taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{EnvBlock: c.task.Env})
			h := NewSecretsHook(&c.task, identity.Workload{Namespace: "prod"}, func(context.Context, identity.Workload, string, string) (map[string]string, error) {
				return c.items, c.err
			}, env, nil)
			_, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{})
			if !driver.IsRecoverable(err) {
				t.Fatalf("error %v, want one that the restart policy decides about", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "alice") {
				t.Errorf("error %q has a value", err)
			}
		})
	}
}
