package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const source = `package p

import "context"

type Task interface {
	Wait(ctx context.Context) (code int, err error)
	hidden()
}

type Driver[T Task] interface {
	Start(id string) T
}

type Number interface{ ~int | ~float64 }

type base struct{ ID string }

type Request struct {
	base
	*Options
	Env    map[string][]string
	secret int
}

type Options struct{ Call func(name string, args ...any) }

func (o *Options) Set(name string) {}
func (o Options) Get() (value string, ok bool) { return "", false }

type Alias = Options

const Max = 3
const Name string = "a: b"

var Events chan<- [2]int

func Serve[T Task](d Driver[T]) {}
func unexported() {}

// Host serves plugins. Later
// versions can add methods.
type Host interface {
	Exec(command string)
}

// Client calls plugins. For hosts only.
type Client struct{ Socket string }

func (c *Client) Call() {}

// Dial is in another package of the host. For hosts only.
func Dial() *Client { return nil }

type Config struct {
	Body   string
	Digest []byte // For hosts only.
}

// Digests of the protocol. For hosts only.
const (
	Short = 1
	Long  = 2
)
`

// newModule returns the directory of a module with one package.
func newModule(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "p/p.go": source} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// listSource returns the lines of a module with one package.
func listSource(t *testing.T, source string) []string {
	t.Helper()
	lines, err := list(newModule(t, source), []string{"./..."})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestList(t *testing.T) {
	want := []string{
		`p, const Max: untyped int = 3`,
		`p, const Name: string = "a: b"`,
		`p, func Serve: func[T p.Task](p.Driver[T])`,
		`p, method (*Options) Set: func(string)`,
		`p, type Config, field Body: string`,
		`p, type Config: struct`,
		`p, type Host, method Exec: func(string)`,
		`p, type Host: interface that can grow`,
		`p, method (Request) Set: func(string)`,
		`p, method (Options) Get: func() (string, bool)`,
		`p, method (Request) Get: func() (string, bool)`,
		`p, type Alias: = p.Options`,
		`p, type Driver[T p.Task], method Start: func(string) T`,
		`p, type Driver[T p.Task]: interface { Start }`,
		`p, type Number: interface { ~int | ~float64 }`,
		`p, type Options, field Call: func(string, ...any)`,
		`p, type Options: struct`,
		`p, type Request, embedded Options: *p.Options`,
		`p, type Request, field Env: map[string][]string`,
		`p, type Request, field ID: string`,
		`p, type Request: struct`,
		`p, type Task, method Wait: func(context.Context) (int, error)`,
		`p, type Task: interface { Wait, unexported methods }`,
		`p, var Events: chan<- [2]int`,
	}
	slices.Sort(want)
	got := listSource(t, source)
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("unexpected line %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("no line %s", line)
		}
	}
}

// The lines differ for a change that breaks other modules, and for no other change.
func TestChanges(t *testing.T) {
	before := listSource(t, source)
	for name, test := range map[string]struct {
		old, new     string
		gone, appear int
	}{
		"a removed method":                    {"func (o *Options) Set(name string) {}", "", 2, 0}, // Request promotes it
		"another name of a parameter":         {"Set(name string)", "Set(key string)", 0, 0},
		"another type of a parameter":         {"Set(name string)", "Set(name int)", 2, 2},
		"a new function":                      {"func unexported()", "func Exported()", 0, 1},
		"a new field":                         {"secret int", "Secret int", 0, 1},
		"a new method of an interface":        {"Start(id string) T", "Start(id string) T; Stop()", 1, 2},
		"a new method, not exported":          {"Start(id string) T", "Start(id string) T; stop()", 1, 1},
		"another value of a constant":         {"Max = 3", "Max = 4", 1, 1},
		"a method of the pointer only":        {"(o Options) Get()", "(o *Options) Get()", 1, 1}, // Request embeds the pointer
		"another constraint of a type":        {"Driver[T Task] interface", "Driver[T any] interface", 2, 2},
		"a method of an interface that grows": {"Exec(command string)", "Exec(command string); Kill()", 0, 1},
		"a removed method of such":            {"Exec(command string)", "", 1, 0},
		"an interface that no longer grows":   {"versions can add methods.", "", 1, 1},
		"a declaration for hosts":             {"// Dial is in another package of the host. For hosts only.\nfunc Dial() *Client { return nil }", "", 0, 0},
		"another name of a type parameter":    {"func Serve[T Task](d Driver[T])", "func Serve[U Task](d Driver[U])", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(source, test.old) {
				t.Fatalf("the source has no %q", test.old)
			}
			text := strings.Replace(source, test.old, test.new, 1)
			after := listSource(t, text)
			gone := slices.DeleteFunc(slices.Clone(before), func(line string) bool { return slices.Contains(after, line) })
			appear := slices.DeleteFunc(slices.Clone(after), func(line string) bool { return slices.Contains(before, line) })
			if len(gone) != test.gone || len(appear) != test.appear {
				t.Errorf("lines gone %q, want %d; new lines %q, want %d", gone, test.gone, appear, test.appear)
			}
		})
	}
}

func TestSourceWithAnErrorIsRejected(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n", "p.go": "package p\n\nvar X undefined\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if lines, err := list(dir, []string{"./..."}); err == nil {
		t.Errorf("got %q, want an error", lines)
	}
	if _, err := list(dir, nil); err == nil {
		t.Error("no patterns are no error")
	}
}

func TestSentencesThatContradictAreRejected(t *testing.T) {
	for name, test := range map[string]struct{ source, want string }{
		"a promised function with a type for hosts": {"// T has no use for authors. For hosts only.\ntype T struct{}\n\nfunc F() map[string][]*T { return nil }", `depends on example.com/m/p.T`},
		"a struct that can grow":                    {"// Later versions can add methods.\ntype T struct{}", `declares no interface`},
	} {
		t.Run(name, func(t *testing.T) {
			lines, err := list(newModule(t, "package p\n\n"+test.source+"\n"), []string{"./..."})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q and the error %v, want an error with %q", lines, err, test.want)
			}
		})
	}
}
