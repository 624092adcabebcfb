package acl

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
)

// recordedCommand is a command of Nomad's command line, with its output.
type recordedCommand struct {
	Argv                  []string
	Stdin, Stdout, Stderr string
	Code                  int
	Token                 string `json:"NOMAD_TOKEN"`
	Note                  string
}

// outputExceptions are the commands whose output or exit code differs, by the reason. The other texts on standard error differ too:
// here each error has a remedy.
var outputExceptions = map[string][]string{
	"the help text is that of nomad-lite": {"acl", "acl policy", "acl role", "acl token"},
	"the flag exists here":                {"acl policy info -json reader", "acl policy info -t {{.Name}} reader", "acl token info -json", "acl token self -json", "acl role info -json"},
	"a list is sorted by random ids":      {"acl role list"},
}

func exceptionFor(line string) string {
	for reason, starts := range outputExceptions {
		for _, start := range starts {
			if line == start || strings.HasPrefix(line, start+" ") && start != "acl" && len(strings.Fields(start)) > 2 {
				return reason
			}
		}
	}
	return ""
}

// commandPlayer runs commands against an API with access control, and binds the recorded ids to the ids here.
type commandPlayer struct {
	store          *store.Store
	server         *httptest.Server
	dir, resetFile string
	idByRecordedID map[string]string
}

func newCommandPlayer(t *testing.T) *commandPlayer {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), KeyFile: filepath.Join(dir, "keyring.json"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	p := &commandPlayer{store: s, dir: dir, resetFile: filepath.Join(dir, "reset"), idByRecordedID: map[string]string{}}
	control := accesscontrol.New(accesscontrol.Config{
		Store: s, Logger: hclog.NewNullLogger(), ResetFile: p.resetFile, MinExpirationTTL: time.Second, MaxExpirationTTL: 24 * time.Hour, TokenGCThreshold: time.Hour,
	})
	p.server = httptest.NewServer(httpapi.New(httpapi.Config{Store: s, Region: "global", AccessControl: control, Logger: hclog.NewNullLogger()}))
	t.Cleanup(p.server.Close)
	for name, text := range map[string]string{
		"reader.hcl": "namespace \"default\" {\n  policy = \"read\"\n}\n", "bad.hcl": "nonsense {\n  policy = \"read\"\n}\n", "empty.hcl": "",
		"secret": "aaaaaaaa-0000-4000-8000-00000000bb01\n", "bad-secret": "short\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	return p
}

// run runs a command, and returns its output.
func (p *commandPlayer) run(args []string, stdin, token string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "nomad-lite", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(NewCommand(&cli.Streams{In: strings.NewReader(stdin), Out: &out, Err: &errs}))
	root.SetOut(&out)
	root.SetErr(&errs)
	for i, arg := range args { // the root of the command tree accepts flags with one dash
		if strings.HasPrefix(arg, "-") && len(arg) > 2 && arg[1] != '-' {
			args[i] = "-" + arg
		}
	}
	root.SetArgs(args)
	err := root.Execute()
	var exit *cli.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.Code
	case err != nil:
		code = 1
	}
	if err != nil {
		fmt.Fprintln(&errs, err)
	}
	return out.String(), errs.String(), code
}

var (
	recordedID  = regexp.MustCompile(`[ea]{8}-0000-4000-8000-0000000[0-9a-f]{5}`)
	placeholder = regexp.MustCompile(recordedID.String() + `|<time>( UTC)?|<index>`)
)

// fill replaces recorded ids by the ids here.
func (p *commandPlayer) fill(text string) string {
	return recordedID.ReplaceAllStringFunc(text, func(id string) string {
		if here := p.idByRecordedID[id]; here != "" {
			return here
		}
		return id
	})
}

// matches compares an output with the recorded one, line by line, and binds new ids.
func (p *commandPlayer) matches(got, want string) bool {
	gotLines, wantLines := strings.Split(strings.TrimSpace(got), "\n"), strings.Split(strings.TrimSpace(want), "\n")
	if len(gotLines) != len(wantLines) {
		return false
	}
	for i, line := range wantLines {
		pattern, rest := "^", p.fill(strings.TrimRight(line, " "))
		var ids []string
		for {
			at := placeholder.FindStringIndex(rest)
			if at == nil {
				break
			}
			pattern += regexp.QuoteMeta(rest[:at[0]])
			if found := rest[at[0]:at[1]]; recordedID.MatchString(found) {
				pattern += `([0-9a-f-]{36})`
				ids = append(ids, found)
			} else {
				pattern += `[^",]+`
			}
			rest = rest[at[1]:]
		}
		match := regexp.MustCompile(pattern + regexp.QuoteMeta(rest) + "$").FindStringSubmatch(strings.TrimRight(gotLines[i], " "))
		if match == nil {
			return false
		}
		for n, id := range ids {
			p.idByRecordedID[id] = match[n+1]
		}
	}
	return true
}

// TestRecordedCommands runs the recorded commands of Nomad in order.
func TestRecordedCommands(t *testing.T) {
	dir := shareddir.OrSkip(t, filepath.Join("..", "..", ".."), "conformance", "acl", "cli")
	var commands []recordedCommand
	for _, name := range []string{"bootstrap", "policy", "token", "role"} {
		commands = append(commands, shareddir.ReadJSONLines[recordedCommand](t, filepath.Join(dir, name+".jsonl"))...)
	}
	const managementSecret = "aaaaaaaa-0000-4000-8000-000000000001" // how the recording names the first management token
	p := newCommandPlayer(t)
	t.Setenv("NOMAD_ADDR", p.server.URL)
	excepted, compared := map[string]int{}, 0
	for _, c := range commands {
		if c.Argv[1] != "acl" {
			excepted["a command of another group"]++
			continue
		}
		line := strings.Join(c.Argv[1:], " ")
		if strings.HasPrefix(c.Note, "after a reset file") {
			if err := os.WriteFile(p.resetFile, fmt.Append(nil, p.store.Snapshot().ACLBootstrapIndex()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.Note == "after the end of the token" {
			time.Sleep(1100 * time.Millisecond) // the token lives for a second
		}
		t.Setenv("NOMAD_TOKEN", p.fill(c.Token))
		var args []string
		for _, arg := range c.Argv[1:] {
			args = append(args, p.fill(arg))
		}
		stdout, stderr, code := p.run(args, c.Stdin, c.Token)
		isFirstBootstrap := line == "acl bootstrap" && c.Code == 0
		if reason := exceptionFor(line); reason != "" {
			excepted[reason]++
			continue
		}
		compared++
		if code != c.Code || !p.matches(stdout, c.Stdout) || (stderr == "") != (c.Stderr == "") {
			t.Errorf("%s: exit code %d, want %d; standard error %q, recorded %q\n got %s\nwant %s", line, code, c.Code, stderr, c.Stderr, stdout, p.fill(c.Stdout))
		}
		if isFirstBootstrap {
			p.idByRecordedID[managementSecret] = p.idByRecordedID["eeeeeeee-0000-4000-8000-000000000002"]
		}
	}
	total := compared
	for _, reason := range slices.Sorted(maps.Keys(excepted)) {
		t.Logf("%d commands excepted: %s", excepted[reason], reason)
		total += excepted[reason]
	}
	t.Logf("%d of %d commands have the recorded output and exit code", compared, total)
}
