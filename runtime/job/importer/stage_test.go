package importer

import (
	"maps"
	"strings"
	"testing"
)

func TestStages(t *testing.T) {
	after := func(names ...string) (dependencies []Dependency) {
		for _, name := range names {
			dependencies = append(dependencies, Dependency{Name: name, Condition: Started})
		}
		return dependencies
	}
	for _, c := range []struct {
		name     string
		programs []Program
		want     map[string]Stage
		batch    bool
		err      string
	}{
		{
			name:     "programs that run until they are stopped are main tasks",
			programs: []Program{{Name: "db"}, {Name: "web", After: after("db")}},
		},
		{
			name:     "programs that all run once are main tasks of a batch job",
			programs: []Program{{Name: "a", RunsOnce: true}, {Name: "b", RunsOnce: true, After: after("a")}},
			batch:    true,
		},
		{
			name:     "a program that runs once before another is a prestart task, with what it needs",
			programs: []Program{{Name: "db"}, {Name: "cache"}, {Name: "migrate", RunsOnce: true, After: after("db")}, {Name: "web", After: after("migrate", "cache")}},
			want:     map[string]Stage{"db": PrestartSidecar, "cache": PrestartSidecar, "migrate": Prestart},
		},
		{
			name:     "a program that waits for no prestart task starts before it, because the task can need it without naming it",
			programs: []Program{{Name: "web", After: after("migrate")}, {Name: "migrate", RunsOnce: true}, {Name: "db"}, {Name: "proxy", After: after("web")}},
			want:     map[string]Stage{"db": PrestartSidecar, "migrate": Prestart},
		},
		{
			name:     "a program that runs once, and precedes none that does not, is a poststart task",
			programs: []Program{{Name: "db"}, {Name: "seed", RunsOnce: true, After: after("db")}, {Name: "report", RunsOnce: true, After: after("seed")}},
			want:     map[string]Stage{"seed": Poststart, "report": Poststart},
		},
		{
			name:     "programs that wait for each other are an error",
			programs: []Program{{Name: "a", After: after("b")}, {Name: "b", After: after("a")}},
			err:      "a, b wait for each other",
		},
		{
			name:     "an unknown program is an error",
			programs: []Program{{Name: "a", After: after("b")}},
			err:      "a depends on b, which does not exist",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, batch, err := Stages(c.programs)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || batch != c.batch {
				t.Fatalf("got batch %v and error %v, want batch %v", batch, err, c.batch)
			}
			if c.want == nil {
				c.want = map[string]Stage{}
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestLooksSecret(t *testing.T) {
	for name, want := range map[string]bool{
		"POSTGRES_PASSWORD": true, "db_pass": true, "AWS_SECRET_ACCESS_KEY": true, "GITHUB_TOKEN": true,
		"POSTGRES_PASSWORD_FILE": false, "KEYBOARD": false, "PASSENGER_COUNT": false, "HOST": false,
	} {
		if got := LooksSecret(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
