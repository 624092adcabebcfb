package endurance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newModule makes a module with a package, which a test imports, and another package the working directory. It is in a
// repository without changes.
func newModule(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                   "module example.com/m\n",
		"go.sum":                   "",
		"README.md":                "# m\n",
		"docs/endurance.md":        "# Parts\n",
		"testdata/shared.txt":      "shared",
		"unrelated/unrelated.go":   "package unrelated\n",
		"imported/imported.go":     "package imported\n",
		"imported/other_test.go":   "package imported\n",
		"long/long.go":             "package long\n",
		"long/long_test.go":        "package long\n",
		"long/external_test.go":    "package long_test\n\nimport _ \"example.com/m/imported\"\n",
		"long/testdata/dir/in.txt": "input",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(root, "long"))
	for _, args := range [][]string{
		{"init", "-q", root}, {"add", "-A", root}, {"-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "m"},
	} {
		if _, err := commandOutput("git", args...); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// A change of a file changes the hash of the code if the test is compiled from the file or can read it, and
// the commit if the file is not the table of the parts.
func TestChangesOfCode(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command fourteen times")
	}
	root := newModule(t)
	before, err := readCodeUnderTest()
	if err != nil || before.pkg != "long" || len(before.hash) != hashDigits {
		t.Fatalf("%+v, %v", before, err)
	}
	commit, err := readCommit()
	if err != nil || len(commit) != hashDigits {
		t.Fatalf("commit %q, %v", commit, err)
	}
	for _, test := range []struct {
		file    string
		isCode  bool
		isTable bool
	}{
		{file: "go.mod", isCode: true},
		{file: "go.sum", isCode: true},
		{file: "testdata/shared.txt", isCode: true},
		{file: "imported/imported.go", isCode: true},
		{file: "long/long.go", isCode: true},
		{file: "long/long_test.go", isCode: true},
		{file: "long/external_test.go", isCode: true},
		{file: "long/testdata/dir/in.txt", isCode: true},
		{file: "unrelated/unrelated.go"},
		{file: "imported/other_test.go"},
		{file: "README.md"},
		{file: "docs/endurance.md", isTable: true},
	} {
		path := filepath.Join(root, test.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		code, err := readCodeUnderTest()
		if err != nil || (code.hash != before.hash) != test.isCode {
			t.Errorf("%s is changed: hash %s, was %s, %v", test.file, code.hash, before.hash, err)
		}
		now, err := readCommit()
		if err != nil || strings.HasSuffix(now, "+changes") == test.isTable {
			t.Errorf("%s is changed: commit %s, was %s, %v", test.file, now, commit, err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := readCodeUnderTest(); err != nil || after != before {
		t.Errorf("nothing is changed: %+v, was %+v, %v", after, before, err)
	}
}
