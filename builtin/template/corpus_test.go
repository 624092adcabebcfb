package template

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/builtin/template/evaluators"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

type corpusCase struct {
	Name     string
	Template struct {
		Data              *string
		Source            string
		LeftDelimiter     *string `json:"left_delimiter"`
		RightDelimiter    *string `json:"right_delimiter"`
		ErrorOnMissingKey bool    `json:"error_on_missing_key"`
		Env               bool
	}
	Agent               string
	Network, Expression string
	Result              corpusResult
	Unordered           string
}

// corpusResult is what Nomad makes of a case: one of a text, an environment, an error or a wait.
type corpusResult struct {
	Text        *string
	Base64      *string `json:"text_base64"`
	SHA256      string  `json:"text_sha256"`
	Shape       string
	Environment map[string]string
	Error       string
	Event       string
	Waits       string

	withoutSecrets string // Error without the values of the variables that the template has read
}

type corpusWorld struct {
	Base struct {
		Variables []*api.Variable
		Services  []*api.ServiceRegistration
		Files     map[string]struct {
			Text, Base64, Repeat string
			Times                int
		}
	}
	Agents   map[string]map[string]map[string]any
	Networks map[string]struct{ Commands []string }
	Env      map[string]string `json:"task_environment_without_template"`
}

func readCorpus(t *testing.T, file string) (*corpusWorld, []corpusCase) {
	t.Helper()
	dir := shareddir.OrSkip(t, filepath.Join("..", ".."), "corpus", "templates")
	text, err := os.ReadFile(filepath.Join(dir, "worlds.json"))
	if err != nil {
		t.Fatal(err)
	}
	w := &corpusWorld{}
	if err := json.Unmarshal(text, w); err != nil {
		t.Fatal(err)
	}
	return w, shareddir.ReadJSONLines[corpusCase](t, filepath.Join(dir, file))
}

// corpusHost is the host of one case.
type corpusHost struct {
	hook.Host
	world *corpusWorld

	mu       sync.Mutex
	secrets  []string // values of the variables that were read
	event    string   // type and text of the event that ends the case
	outcome  string
	endOfRun context.CancelFunc
}

// blockForever blocks like a call that waits for a change.
func blockForever(ctx context.Context, after uint64) error {
	if after > 0 {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (h *corpusHost) Variable(ctx context.Context, _ hook.Scope, req hook.VariableRequest) (hook.VariableResponse, error) {
	if strings.Contains(req.Path, " ") {
		return hook.VariableResponse{}, errors.New("invalid path")
	}
	r := hook.VariableResponse{Index: 1}
	for _, v := range h.world.Base.Variables {
		if v.Path == req.Path && v.Namespace == orDefault(req.Namespace) {
			r.Items, r.Metadata = v.Items, newHookMetadata(v.Metadata())
			h.mu.Lock()
			for _, key := range slices.Sorted(maps.Keys(v.Items)) {
				h.secrets = append(h.secrets, v.Items[key])
			}
			h.mu.Unlock()
		}
	}
	return r, blockForever(ctx, req.AfterIndex)
}

func orDefault(namespace string) string {
	if namespace == "" {
		return "default"
	}
	return namespace
}

func newHookMetadata(m *api.VariableMetadata) hook.VariableMetadata {
	return hook.VariableMetadata{
		Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
		CreateTime: time.Unix(0, m.CreateTime), ModifyTime: time.Unix(0, m.ModifyTime),
	}
}

func (h *corpusHost) Variables(ctx context.Context, _ hook.Scope, req hook.VariablesRequest) (hook.VariablesResponse, error) {
	r := hook.VariablesResponse{Index: 1}
	for _, v := range h.world.Base.Variables {
		if strings.HasPrefix(v.Path, req.Prefix) && (req.Namespace == "*" || v.Namespace == orDefault(req.Namespace)) {
			r.Variables = append(r.Variables, newHookMetadata(v.Metadata()))
		}
	}
	slices.SortFunc(r.Variables, func(a, b hook.VariableMetadata) int {
		return strings.Compare(a.Namespace+"\x00"+a.Path, b.Namespace+"\x00"+b.Path)
	})
	return r, blockForever(ctx, req.AfterIndex)
}

func (h *corpusHost) Services(ctx context.Context, _ hook.Scope, req hook.ServicesRequest) (hook.ServicesResponse, error) {
	r := hook.ServicesResponse{Index: 1, NoConsul: req.InPlaceOfConsul}
	if r.NoConsul {
		return r, blockForever(ctx, req.AfterIndex)
	}
	for _, s := range h.world.Base.Services {
		if s.Namespace == "default" && (req.Name == "" || s.ServiceName == req.Name) {
			r.Services = append(r.Services, hook.Service{
				ID: s.ID, Name: s.ServiceName, Address: s.Address, Port: s.Port, Tags: s.Tags, AllocID: s.AllocID, NodeID: s.NodeID, Datacenter: s.Datacenter, JobID: s.JobID,
			})
		}
	}
	slices.SortFunc(r.Services, func(a, b hook.Service) int { return strings.Compare(a.Name+"\x00"+a.ID, b.Name+"\x00"+b.ID) })
	return r, blockForever(ctx, req.AfterIndex)
}

func (h *corpusHost) Interpolate(_ context.Context, _ hook.Scope, text string) (string, error) {
	return strings.NewReplacer("${attr.os.signals}", "a,b,c,d", "${node.unique.id}", strings.Repeat("0", 36), "${meta.rack}", "r7").Replace(text), nil
}

func (h *corpusHost) end(event, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.event == "" {
		h.event, h.outcome = event, text
		h.endOfRun()
	}
}

func (h *corpusHost) EmitEvent(_ context.Context, _ hook.Scope, e hook.Event) error {
	if strings.HasPrefix(e.Message, "Missing: ") {
		h.end(e.Type, e.Message)
	}
	return nil
}

func (h *corpusHost) Kill(_ context.Context, _ hook.Scope, req hook.KillRequest) error {
	h.end("Killing", req.Reason)
	return nil
}

const corpusAllocID = "11111111-2222-3333-4444-555555555555"

// play renders the template of a case as the only one of a task, and returns the result in Nomad's form.
func (w *corpusWorld) play(t *testing.T, c *corpusCase, pool Evaluators) corpusResult {
	dir := t.TempDir()
	f := &fixture{T: t, dir: dir}
	block := templateBlock{SourcePath: c.Template.Source, DestPath: "local/out/000", ErrMissingKey: c.Template.ErrorOnMissingKey, Envvars: c.Template.Env, Once: true, ChangeMode: "noop"}
	if c.Template.Env {
		block.DestPath = "local/rendered.env"
	}
	for to, from := range map[*string]*string{&block.EmbeddedTmpl: c.Template.Data, &block.LeftDelim: c.Template.LeftDelimiter, &block.RightDelim: c.Template.RightDelimiter} {
		if from != nil {
			*to = *from
		}
	}
	limits := w.Agents[c.Agent]["client.template"]
	req := f.newRequest("t", []templateBlock{block}, map[string]any{"limits": limits})
	for path, file := range w.Base.Files {
		text := []byte(file.Text + strings.Repeat(file.Repeat, file.Times))
		if file.Base64 != "" {
			text, _ = base64.StdEncoding.DecodeString(file.Base64)
		}
		at := filepath.Join(req.Dir.Dir, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(at, text, 0o644); err != nil {
			t.Error(err)
		}
	}
	if err := os.Mkdir(filepath.Join(req.Dir.SharedAllocDir, "data"), 0o755); err != nil {
		t.Error(err)
	}
	place := strings.NewReplacer(dir, "<alloc-dir>", corpusAllocID, "<alloc-id>")
	req.Env = make(map[string]string, len(w.Env))
	for name, value := range w.Env {
		req.Env[name] = strings.NewReplacer("<alloc-dir>", dir, "<alloc-id>", corpusAllocID, "<short-alloc-id>", corpusAllocID[:8]).Replace(value)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	h := &corpusHost{world: w, endOfRun: end}
	hk := &Hook{Evaluators: pool}
	hk.SetHost(h, hook.Node{Region: "global"})
	answer, err := hk.Prestart(ctx, req)
	hk.stopRenderer(taskKey{req.Alloc.ID, req.Task.Name})
	h.mu.Lock()
	defer h.mu.Unlock()
	outcome := place.Replace(h.outcome)
	switch {
	case h.event == "Template":
		return corpusResult{Waits: outcome}
	case h.event != "":
		pairs := []string{}
		for _, secret := range h.secrets {
			pairs = append(pairs, secret, "")
		}
		const prefix = "Template failed: (dynamic): execute: " // Nomad redacts the text after it
		text, hasPrefix := strings.CutPrefix(h.outcome, prefix)
		text = strings.NewReplacer(pairs...).Replace(text)
		if hasPrefix {
			text = prefix + text
		}
		return corpusResult{Error: outcome, Event: h.event, withoutSecrets: place.Replace(text)}
	case err != nil:
		return corpusResult{Error: place.Replace(err.Error()), Event: "Task hook failed"}
	case c.Template.Env:
		for name, value := range answer.Env {
			if strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
				return corpusResult{Error: "the driver cannot start a process with the variable " + name, Event: "Driver Failure"}
			}
			if former, ok := w.Env[name]; ok && former == value {
				delete(answer.Env, name)
			}
		}
		return corpusResult{Environment: answer.Env}
	}
	text := f.readFile("t/local/out/000")
	placed := place.Replace(text)
	return corpusResult{Text: &placed}
}

// difference names the kind in which two results differ; "" if they are the same.
func (c *corpusCase) difference(got corpusResult) string {
	want := c.Result
	switch {
	case want.Error != "" && got.Error != "":
		if want.Event != got.Event {
			return "another event"
		}
		switch isRedacted := strings.Contains(want.Error, "[redacted]"); {
		case isRedacted && strings.ReplaceAll(want.Error, "[redacted]", "") != got.withoutSecrets:
			return "another error"
		case !isRedacted && want.Error != got.Error && want.Event == "Killing":
			return "another error"
		}
	case want.Error != "":
		return "Nomad fails"
	case got.Error != "":
		return "we fail"
	case want.Waits != got.Waits:
		return "another wait"
	case want.Environment != nil:
		if !maps.Equal(want.Environment, got.Environment) {
			return "another environment"
		}
	case want.Waits == "":
		sum := sha256.Sum256([]byte(*got.Text))
		switch {
		case want.Base64 != nil && *want.Base64 == base64.StdEncoding.EncodeToString([]byte(*got.Text)):
		case want.SHA256 != "" && want.SHA256 == hex.EncodeToString(sum[:]):
		case want.Shape != "" && regexp.MustCompile(want.Shape).MatchString(*got.Text):
		case want.Text != nil && c.sorted(*want.Text) == c.sorted(*got.Text):
		default:
			return "another text"
		}
	}
	return ""
}

func (c *corpusCase) sorted(text string) string {
	switch c.Unordered {
	case "words":
		return strings.Join(slices.Sorted(slices.Values(strings.Fields(text))), " ")
	case "lines":
		return strings.Join(slices.Sorted(slices.Values(strings.Split(text, "\n"))), "\n")
	}
	return text
}

// allowedDifference returns why a case may differ from Nomad; "" if it may not.
func (c *corpusCase) allowedDifference() string {
	switch {
	case strings.HasPrefix(c.Name, "first-pass/"):
		return "first pass" // Nomad executes a template once before it has data
	case strings.HasPrefix(c.Name, "open/plugin/"), strings.HasPrefix(c.Name, "open/writeToFile/"), c.Name == "deny/plugin/1":
		return "denied function" // plugin and writeToFile are always denied
	}
	return ""
}

var testPool = sync.OnceValue(func() *evaluators.Pool {
	l, err := evaluators.StartLauncher([]string{"launcher"}, func() (uint32, error) { return 91234, nil })
	if err == nil {
		err = l.Connect()
	}
	if err != nil {
		panic(err)
	}
	return evaluators.NewPool(l)
})

// replay plays cases with real evaluators, and returns the number of the allowed differences by kind.
func (w *corpusWorld) replay(t *testing.T, cases []corpusCase, pool Evaluators) map[string]int {
	counts := map[string]int{}
	var mu sync.Mutex
	var players sync.WaitGroup
	queue := make(chan *corpusCase)
	for range 40 {
		players.Go(func() {
			for c := range queue {
				t.Run(c.Name, func(t *testing.T) {
					got := w.play(t, c, pool)
					kind := c.difference(got)
					if kind == "" {
						return
					}
					allowed := c.allowedDifference()
					mu.Lock()
					defer mu.Unlock()
					counts[allowed]++
					if allowed == "" {
						template := ""
						if c.Template.Data != nil {
							template = *c.Template.Data
						}
						t.Errorf("%s: %s: %q\n  got  %s\n  want %s", c.Name, kind, template, got, c.Result)
					}
				})
			}
		})
	}
	for i := range cases {
		queue <- &cases[i]
	}
	close(queue)
	players.Wait()
	return counts
}

func (r corpusResult) String() string {
	switch {
	case r.Text != nil:
		return fmt.Sprintf("text %q", *r.Text)
	case r.Error != "":
		return fmt.Sprintf("%s: %s", r.Event, r.Error)
	case r.Waits != "":
		return "waits: " + r.Waits
	}
	return fmt.Sprintf("environment %q", r.Environment)
}

// Templates are Nomad's, except for those that Nomad fails because it executes a template once before it has data, and for the
// functions plugin and writeToFile.
func TestTemplatesMatchNomad(t *testing.T) {
	w, cases := readCorpus(t, "templates.jsonl")
	counts := w.replay(t, cases, testPool())
	if counts["first pass"] != 10 || counts["denied function"] != 9 {
		t.Errorf("differences: %v", counts)
	}
	t.Logf("%d cases, differences: %v", len(cases), counts)
}

// Env files are Nomad's without exception.
func TestEnvFilesMatchNomad(t *testing.T) {
	w, cases := readCorpus(t, "env-files.jsonl")
	if counts := w.replay(t, cases, testPool()); len(counts) > 0 {
		t.Errorf("differences: %v", counts)
	}
}

// Expressions of sockaddr have Nomad's results in all networks.
func TestSockaddrMatchesNomad(t *testing.T) {
	w, cases := readCorpus(t, "sockaddr.jsonl")
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make networks")
	}
	for network, setup := range w.Networks {
		t.Run(network, func(t *testing.T) {
			// The thread, which does not leave the network, exits with the test.
			runtime.LockOSThread()
			peers := fmt.Sprintf("peers-%d", os.Getpid())
			runIP(t, "ip netns add "+peers)
			defer runIP(t, "ip netns del "+peers)
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Fatal(err)
			}
			for _, command := range setup.Commands {
				runIP(t, strings.NewReplacer("netns peers", "netns "+peers, "-n peers", "-n "+peers).Replace(command))
			}
			l, err := evaluators.StartLauncher([]string{"launcher"}, func() (uint32, error) { return 91234, nil })
			if err == nil {
				err = l.Connect()
			}
			if err != nil {
				t.Fatal(err)
			}
			pool := evaluators.NewPool(l)
			for _, c := range cases {
				if c.Network != network {
					continue
				}
				r, err := pool.Evaluate(t.Context(), &evaluate.Request{Text: *c.Template.Data})
				if err != nil {
					t.Fatal(err)
				}
				got := corpusResult{Error: r.Err, Event: "Killing"}
				if r.Err == "" {
					text := string(r.Text)
					got = corpusResult{Text: &text}
				} else {
					got.Error = interfaceIndex.ReplaceAllString("Template failed: "+r.Err, "{")
					c.Result.Error = interfaceIndex.ReplaceAllString(c.Result.Error, "{")
				}
				if kind := c.difference(got); kind != "" {
					t.Errorf("%s: %s: %s\n  got  %s\n  want %s", c.Name, kind, c.Expression, got, c.Result)
				}
			}
		})
	}
}

// interfaceIndex matches the number of an interface in an error, which depends on the machine.
var interfaceIndex = regexp.MustCompile(`\{\d+ `)

func runIP(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}
