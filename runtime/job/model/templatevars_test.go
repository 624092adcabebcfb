package model

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestMissingVariables(t *testing.T) {
	for _, c := range []struct {
		name      string
		namespace string
		task      api.Task
		want      []string // warning paths and texts
	}{
		{"a variable that exists", "default", taskWithTemplate(`{{with nomadVar "there"}}{{.a}}{{end}}`), nil},
		{"items that the template reads", "default", taskWithTemplate(`{{with nomadVar "app/db"}}{{.user}}:{{.password}}{{end}}`), []string{
			`group.g.task.t.template.0.data: Task "t": the template of "local/env" reads the variable "app/db", which does not exist: the task waits until it is created, with nomad-lite var put app/db password=... user=...`,
		}},
		{"items that are not known", "prod", taskWithTemplate(`{{range (nomadVar "/app/db@prod/").Tuples}}{{.K}}{{end}}`), []string{
			`group.g.task.t.template.0.data: Task "t": the template of "local/env" reads the variable "app/db", which does not exist: the task waits until it is created, with nomad-lite var put -namespace prod app/db KEY=...`,
		}},
		{"a test for existence", "default", taskWithTemplate(`{{if nomadVarExists "app/db"}}{{with nomadVar "app/db"}}{{.a}}{{end}}{{end}}`), nil},
		{"another namespace", "default", taskWithTemplate(`{{nomadVar "app/db@prod"}}`), nil},
		{"secrets", "default", api.Task{Name: "t", Secrets: []*api.Secret{{Name: "a", Provider: "nomad", Path: "there"}, {Name: "b", Provider: "nomad", Path: "app/db"}, {Name: "c", Provider: "vault", Path: "x"}}}, []string{
			`group.g.task.t.secret.b.path: Task "t": the secret "b" reads the variable "app/db", which does not exist: the task waits until it is created, with nomad-lite var put app/db KEY=...`,
		}},
		{"a template without data", "default", api.Task{Name: "t", Templates: []*api.Template{{SourcePath: new("local/x")}}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := &api.Job{Namespace: &c.namespace, TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{&c.task}}}}
			var got []string
			for _, f := range MissingVariableFaults(job, func(path string) bool { return path == "there" }) {
				got = append(got, strings.Join(f.Path, ".")+": "+f.Text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("warnings %q, want %q", got, c.want)
			}
		})
	}
}

func taskWithTemplate(text string) api.Task {
	return api.Task{Name: "t", Templates: []*api.Template{{EmbeddedTmpl: &text, DestPath: new("local/env")}}}
}
