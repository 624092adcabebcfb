package run

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestEnvFile(t *testing.T) {
	t.Setenv("INHERITED", "from outside")
	for name, c := range map[string]struct {
		text string
		want map[string]string
		err  string
	}{
		"a space after the name": {
			text: "# comment\n\nA=b\n export B = c=d \nEMPTY=\nSINGLE='a \"b\"'\nDOUBLE=\"a 'b' # c\"\nINHERITED\n",
			err:  `env:4: "B " is no name of a variable: write NAME=VALUE`,
		},
		"quotes, spaces and inherited values": {
			text: "# comment\n\nA=b\n  export B=c=d  \nEMPTY=\nSINGLE='a \"b\"'\nDOUBLE=\"a 'b' # c\"\nINHERITED\n",
			want: map[string]string{"A": "b", "B": "c=d", "EMPTY": "", "SINGLE": `a "b"`, "DOUBLE": "a 'b' # c", "INHERITED": "from outside"},
		},
		"the last line of a name applies": {text: "A=1\nA=2", want: map[string]string{"A": "2"}},
		"a line without a name":           {text: "A=1\n=x\n", err: `env:2: "" is no name`},
		"a name that is not set":          {text: "NO_SUCH_NAME\n", err: "env:1: NO_SUCH_NAME has no value, and is not set in the environment"},
		"an open quote":                   {text: "A='secret\n", err: "env:1: the value starts with ', and does not end with it"},
		"a quote alone":                   {text: "A=\"\n", err: "env:1: the value starts with \", and does not end with it"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "env")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			err := readEnvFileInto(path, got)
			switch {
			case c.err == "" && (err != nil || !maps.Equal(got, c.want)):
				t.Errorf("got %q and %v, want %q", got, err, c.want)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("got the error %v, want %q", err, c.err)
			case c.err != "" && strings.Contains(err.Error(), "secret"):
				t.Errorf("the error %v contains a value", err)
			}
		})
	}
}

func TestEnvFileOverridesEnvBlocks(t *testing.T) {
	dir := t.TempDir()
	var flags environmentFlags
	for name, text := range map[string]string{"first": "A=first\nB=first\n", "second": "B=second\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags.envFiles = []string{filepath.Join(dir, "first"), filepath.Join(dir, "second")}
	job := &api.Job{TaskGroups: []*api.TaskGroup{{Tasks: []*api.Task{{Env: map[string]string{"A": "file", "C": "file"}}, {}}}}}
	if err := flags.addEnvFilesToTasks(job); err != nil {
		t.Fatal(err)
	}
	tasks := job.TaskGroups[0].Tasks
	if want := map[string]string{"A": "first", "B": "second", "C": "file"}; !maps.Equal(tasks[0].Env, want) {
		t.Errorf("the task with an env block has %q, want %q", tasks[0].Env, want)
	}
	if want := map[string]string{"A": "first", "B": "second"}; !maps.Equal(tasks[1].Env, want) {
		t.Errorf("the task without an env block has %q, want %q", tasks[1].Env, want)
	}
}

func TestNomadVarFlags(t *testing.T) {
	flags := environmentFlags{nomadVarArgs: []string{"db a=1", "nomad/jobs/x k=v w", "db b=x=y"}}
	got, err := flags.parseNomadVars()
	if err != nil || len(got) != 2 || got[0].Path != "db" || got[1].Path != "nomad/jobs/x" {
		t.Fatalf("got %v and %v, want variables db and nomad/jobs/x", got, err)
	}
	if want := (api.VariableItems{"a": "1", "b": "x=y"}); !maps.Equal(got[0].Items, want) {
		t.Errorf("db has %q, want %q", got[0].Items, want)
	}
	if want := (api.VariableItems{"k": "v w"}); !maps.Equal(got[1].Items, want) {
		t.Errorf("nomad/jobs/x has %q, want %q", got[1].Items, want)
	}
	for text, want := range map[string]string{
		"db":          "-nomad-var db: want PATH KEY=VALUE",
		"db secret":   "-nomad-var db: want PATH KEY=VALUE",
		"db =secret":  "-nomad-var db: want PATH KEY=VALUE",
		"a.b k=v":     `-nomad-var a.b: invalid path "a.b"`,
		"nomad/x k=v": `only paths at "nomad/jobs"`,
		"db k=" + strings.Repeat("secret", 20_000): "-nomad-var db: the keys and values of a variable must not be longer",
	} {
		flags := environmentFlags{nomadVarArgs: []string{text}}
		if _, err := flags.parseNomadVars(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.20s: got %v, want %q", text, err, want)
		}
	}
}
