package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

func TestScripts(t *testing.T) {
	testscript.Run(t, systemtest.NewScriptParams("testdata/script"))
}

// TestDocs runs the commands of the documents, in their order. A shell that stops at the first
// error executes each block that is marked sh. A block that is marked output has lines of the standard
// output of the block before it, in their order; "…" in a line stands for any text. A block that is marked with
// a language and a name is a file. The comment "<!-- test: COMMAND -->" is a command of the script, which readers do not see.
func TestDocs(t *testing.T) {
	slowtest.SkipLong(t, "builds and tests the plugins of the documents")
	scripts := t.TempDir()
	for name, text := range readDocuments(t) {
		name := strings.ReplaceAll(name, "/", "-") + ".txtar"
		if err := os.WriteFile(filepath.Join(scripts, name), convertDocumentToScript(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	params := systemtest.NewScriptParams(scripts)
	setUp := params.Setup
	params.Setup = func(env *testscript.Env) error {
		return errors.Join(setUp(env), unpackNomadIfNeeded(env, scripts))
	}
	testscript.Run(t, params)
}

// unpackNomadIfNeeded puts the stock Nomad agent into the PATH of a script that has a condition on it, if the machine has the agent.
func unpackNomadIfNeeded(env *testscript.Env, scriptDir string) error {
	script, err := os.ReadFile(filepath.Join(scriptDir, path.Base(env.T().(testing.TB).Name())+".txtar")) // testscript.Run makes T of a *testing.T
	if err != nil || !strings.Contains(string(script), "[!exec:nomad]") || !peers.HasProgram("nomad") {
		return err
	}
	dir := filepath.Join(env.Getenv("WORK"), ".peers", "bin")
	env.Setenv("PATH", dir+string(os.PathListSeparator)+env.Getenv("PATH"))
	return errors.Join(os.MkdirAll(dir, 0o755), peers.Unpack("nomad", filepath.Join(dir, "nomad")))
}

// readDocuments returns the documents in docs and its directories by their paths in docs without the suffix, such as how-to/run.
func readDocuments(t *testing.T) map[string]string {
	t.Helper()
	docs := os.DirFS(filepath.Join(systemtest.RepositoryDir(), "docs"))
	documents := map[string]string{}
	err := fs.WalkDir(docs, ".", func(path string, entry fs.DirEntry, err error) error {
		name, isDocument := strings.CutSuffix(path, ".md")
		if err != nil || !isDocument {
			return err
		}
		text, err := fs.ReadFile(docs, path)
		documents[name] = string(text)
		return err
	})
	if err != nil || len(documents) == 0 {
		t.Fatalf("%d documents, error: %v", len(documents), err)
	}
	return documents
}

// TestQuickStart runs the commands with which the tutorials for authors of plugins start, each on its own and
// literally, in an empty directory. With -v it prints the time of each command.
func TestQuickStart(t *testing.T) {
	slowtest.SkipLong(t, "runs all contract tests of three plugins")
	scripts := t.TempDir()
	for _, name := range []string{"first-driver", "first-hook", "first-device"} {
		document, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), "docs/tutorials", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		script, err := convertQuickStartToScript(string(document))
		if err != nil {
			t.Fatalf("docs/tutorials/%s.md: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(scripts, name+".txtar"), script, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, systemtest.NewScriptParams(scripts))
}

// convertQuickStartToScript turns the commands of the section "1. Make it" of a document into a testscript. Each command is
// a section of the script, whose time is printed. The test of the plugin and the job must be successful.
func convertQuickStartToScript(document string) ([]byte, error) {
	_, section, _ := strings.Cut(document, "\n## 1. Make it\n")
	_, block, _ := strings.Cut(section, "\n```sh\n")
	block, _, found := strings.Cut(block, "\n```")
	if !found {
		return nil, errors.New(`the section "1. Make it" has no commands`)
	}
	var script strings.Builder
	checked := map[string]bool{}
	for command := range strings.Lines(block + "\n") {
		command = strings.TrimSpace(command)
		if dir, isChange := strings.CutPrefix(command, "cd "); isChange {
			fmt.Fprintf(&script, "cd %s\n", dir)
			continue
		}
		fmt.Fprintf(&script, "# %[1]s\nexec %[1]s\n", command)
		for prefix, check := range map[string]string{
			"nomad-lite plugin test ": "stdout ' 0 failed, '\n! stdout '^(FAIL|QUIRK)'\n",
			"nomad-lite run ":         "stdout 'hello|seat'\nstderr 'completed: every task ended successfully'\n",
		} {
			if strings.HasPrefix(command, prefix) {
				script.WriteString(check)
				checked[prefix] = true
			}
		}
	}
	if len(checked) != 2 {
		return nil, fmt.Errorf("the section \"1. Make it\" does not test the plugin and run a job:\n%s", block)
	}
	script.WriteString("alone\n")
	return []byte(script.String()), nil
}

// hiddenCommand matches a command for the test in a document, which is a comment in Markdown.
var hiddenCommand = regexp.MustCompile("(?m)^<!-- test: (.*) -->$")

// loseDirectory is a file with a shell script that removes a data directory with its mounts, as if its disk were lost.
const loseDirectory = `-- lose.sh --
awk -v dir="$PWD/$1/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r -n 1 umount -l
exec rm -r --one-file-system "$1"
`

// convertDocumentToScript turns a Markdown document into a testscript.
func convertDocumentToScript(document string) []byte {
	var script, fileSections strings.Builder
	for _, program := range []string{"curl", "openssl"} {
		if strings.Contains(document, program+" ") {
			fmt.Fprintf(&script, "[!exec:%[1]s] skip 'there is no %[1]s'\n", program)
		}
	}
	for i, block := range strings.Split("\n"+document, "\n```") {
		mark, text, _ := strings.Cut(block, "\n")
		language, name, _ := strings.Cut(mark, " ")
		switch {
		case i%2 == 0: // this part of the text is between two code blocks
			for _, command := range hiddenCommand.FindAllStringSubmatch(block, -1) {
				fmt.Fprintln(&script, command[1])
			}
		case name != "":
			fmt.Fprintf(&fileSections, "-- %s --\n%s\n", name, text)
		case language == "sh":
			// Without a limit of its own, a loop whose condition never holds would take all the time of the tests.
			fmt.Fprintf(&script, "exec sh -c 'timeout 5m sh -ex step%d.sh || { tail -n 50 *.log; exit 1; }'\n", i)
			fmt.Fprintf(&fileSections, "-- step%d.sh --\n%s\n", i, text)
		case language == "output":
			fmt.Fprintf(&script, "printed step%d.out\n", i)
			fmt.Fprintf(&fileSections, "-- step%d.out --\n%s\n", i, text)
		}
	}
	script.WriteString("alone\n")
	fileSections.WriteString(loseDirectory)
	return []byte(script.String() + fileSections.String())
}
