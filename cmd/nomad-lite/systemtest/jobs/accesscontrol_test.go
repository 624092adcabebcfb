package jobs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
)

// recordedPairsEnvVar is the number of pairs of a token and a request that TestRecordedAccessControl plays, or "all". Without it, the
// test is skipped: the player needs seconds for the objects of each pair. TestRecordedDecisions of package acl has all decisions.
const recordedPairsEnvVar = "NOMAD_LITE_ACCESS_CONTROL"

// accessControlConfig is the configuration on which the recording depends. DIR is the parent of the volumes.
const accessControlConfig = `
name = "node-1"
acl {
  enabled = true
}
server {
  eval_gc_threshold       = "24h"
  batch_eval_gc_threshold = "24h"
  job_gc_threshold        = "24h"
  deployment_gc_threshold = "24h"
}
client {
  gc_max_allocs = 1000
  chroot_env {
    "/bin/busybox" = "/bin/busybox"
  }
  host_volume "static" {
    path = "DIR/static"
  }
  host_volume "static-ro" {
    path      = "DIR/static-ro"
    read_only = true
  }
  host_volume "secret-vol" {
    path = "DIR/secret-vol"
  }
}
`

// answer is what is compared of an answer: its status, the text of a refusal, the members of a list, and how a session was closed.
type answer struct {
	Status  int
	Text    string
	Members []string
	Body    string
	Close   string
}

// isRefused reports whether the answer is a refusal, in one of the forms of the recording.
func (a answer) isRefused() bool {
	return a.Status == 403 || a.Status == 401 || a.Text == "Permission denied" || a.Close == "1011 Permission denied" || a.Body == "text Permission denied" || a.Body == "no frame"
}

func (a answer) equals(b answer) bool {
	if a.Status != b.Status || a.isRefused() != b.isRefused() || !slices.Equal(a.Members, b.Members) {
		return false
	}
	return a.Status != 403 && a.Status != 401 || a.Text == b.Text
}

// difference is one answer of the agent that is not the recorded one.
type difference struct {
	row, request string
	want, got    answer
}

// accessExceptions are the permitted differences, by their reason. The first reason that matches counts.
var accessExceptions = []struct {
	reason  string
	permits func(d difference) bool
}{
	{"a route that does not exist here", func(d difference) bool {
		return d.got.Status == 501 || d.got.Status == 404 && regexp.MustCompile(`^acl\.(auth-method|rule|oidc|login|identity)|^node\.identity`).MatchString(d.request) || strings.HasPrefix(d.request, "agent.monitor.export") || strings.HasPrefix(d.request, "client.pause")
	}},
	{"metrics need agent:read", func(d difference) bool { return strings.HasPrefix(d.request, "metrics") }},
	{"the world lacks jobs and plugins of CSI, auth methods, and node pools", func(d difference) bool {
		return slices.ContainsFunc(d.want.Members, func(m string) bool {
			return !slices.Contains(d.got.Members, m) && regexp.MustCompile(`scratch-(csi|plug|exec|pool)|np1|victim-pool|^plug$|^plugins plug$`).MatchString(m)
		}) || strings.HasPrefix(d.request, "pool.") || strings.HasPrefix(d.request, "fuzzy.jobs@") || strings.HasPrefix(d.request, "fuzzy.all")
	}},
	{"refused, where Nomad shows an object without a right in its namespace, or to all", func(d difference) bool {
		return len(d.got.Members) < len(d.want.Members) && regexp.MustCompile(`^(search|fuzzy|volumes\.list\.host)`).MatchString(d.request) || strings.HasPrefix(d.request, "scaling.policy")
	}},
	{"refused or absent, where Nomad tells a foreign id from an absent one", func(d difference) bool {
		isHidden := func(a answer) bool {
			return a.isRefused() || a.Status == 404 || a.Status == 500 || a.Status == 200 && len(a.Members) == 0 || strings.HasPrefix(a.Close, "1008 Unknown allocation")
		}
		return isHidden(d.want) && isHidden(d.got)
	}},
	{"variables are found as the list shows them, where Nomad's search ignores labels with patterns", func(d difference) bool {
		return strings.HasPrefix(d.request, "search.vars") || strings.HasPrefix(d.request, "fuzzy.vars")
	}},
	{"an event that came too late for the player", func(d difference) bool {
		return strings.HasPrefix(d.request, "events.") && d.got.Status == 200 && d.got.Body == "no frame"
	}},
	{"a refusal before the body is read", func(d difference) bool { return d.got.isRefused() && d.want.Status == 400 }},
	{"a stream over all namespaces has the events of the permitted ones", func(d difference) bool {
		return strings.HasPrefix(d.request, "events.") && strings.HasSuffix(d.request, "@*")
	}},
	{"the services of an allocation are found by its own namespace", func(d difference) bool { return strings.HasPrefix(d.request, "alloc.services.") }},
}

// TestRecordedAccessControl plays the recorded table of requests and tokens, or a sample of it.
func TestRecordedAccessControl(t *testing.T) {
	pairs := os.Getenv(recordedPairsEnvVar)
	if pairs == "" {
		t.Skip("plays recorded requests for a long time: make test-access-control")
	}
	dir := shareddir.OrSkip(t, filepath.Join("..", "..", "..", ".."), "conformance", "acl")
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the driver exec")
	}
	volumes := t.TempDir()
	for _, name := range []string{"static", "static-ro", "secret-vol"} {
		if err := os.Mkdir(filepath.Join(volumes, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := systemtest.StartPersistentAgent(t, nil, strings.ReplaceAll(accessControlConfig, "DIR", volumes))
	address := s.PinHTTPPort()
	token, _, err := s.Client.ACLTokens().Bootstrap(nil)
	if err != nil {
		t.Fatal(err)
	}
	replay := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "python3", append([]string{"-B", filepath.Join(dir, "replay.py")}, append(args, "--addr", address, "--token", token.SecretID)...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && (cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 || errs.Len() > 0) {
			t.Fatalf("replay.py %s: %v\n%s\n%s", args, err, out.String(), errs.String())
		}
		return out.String()
	}
	t.Log(replay("setup", "--keep-going"))
	args := []string{"check", "--keep-going", "--first", "1000000"}
	if pairs != "all" {
		seed := rand.Int32()
		t.Logf("seed %d", seed)
		args = append(args, "--sample", pairs, "--seed", fmt.Sprint(seed))
	}
	text := replay(args...)
	counts := map[string]int{}
	for _, d := range parseDifferences(t, text) {
		if d.want.equals(d.got) {
			continue
		}
		reason := ""
		for _, e := range accessExceptions {
			if e.permits(d) {
				reason = e.reason
				break
			}
		}
		if reason == "" {
			t.Errorf("%s %s\n  want %+v\n  got  %+v", d.row, d.request, d.want, d.got)
		}
		counts[reason]++
	}
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%d answers differ: %s", counts[reason], reason)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	t.Log(lines[len(lines)-1])
}

// parseDifferences reads the differences in the output of the player.
func parseDifferences(t *testing.T, text string) (all []difference) {
	t.Helper()
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		want, ok := strings.CutPrefix(line, "  want ")
		if !ok || i == 0 || i+1 == len(lines) {
			continue
		}
		var d difference
		name := strings.LastIndex(lines[i-1], " ") // rows can have spaces
		d.row, d.request = lines[i-1][:name], lines[i-1][name+1:]
		err := json.Unmarshal([]byte(want), &d.want)
		if err == nil {
			err = json.Unmarshal([]byte(strings.TrimPrefix(lines[i+1], "  got  ")), &d.got)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, d)
	}
	return all
}
