package monitor

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal/terminaltest"
)

// handlerTransport answers requests by a handler, without a network.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// newScriptedClient returns a client of a server that sends the given answers of each path in
// order, and repeats the last one.
func newScriptedClient(t *testing.T, answers map[string][]string) *api.Client {
	index := 0
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		index++
		w.Header().Set("X-Nomad-Index", fmt.Sprint(index))
		w.Header().Set("X-Nomad-Lastcontact", "0")
		left := answers[r.URL.Path]
		if len(left) == 0 {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, left[0])
		if len(left) > 1 {
			answers[r.URL.Path] = left[1:]
		}
	})
	c, err := api.NewClient(&api.Config{HttpClient: &http.Client{Transport: handlerTransport{server}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestMonitorExitCodes(t *testing.T) {
	const placementFailureJSON = `"FailedTGAllocs": {"g": {"NodesExhausted": 1, "DimensionExhausted": {"memory": 1}}}`
	for name, c := range map[string]struct {
		eval        string
		deployments []string
		code        int
		says        string
	}{
		"placed, and nothing to deploy": {`{"ID": "e", "Status": "complete"}`, nil, 0, `Evaluation "e" finished with status "complete"`},
		"failed evaluations are told":   {`{"ID": "e", "Status": "failed"}`, nil, 0, `Evaluation "e" finished with status "failed"`},
		"not all could be placed":       {`{"ID": "e", "Status": "complete", "BlockedEval": "b", ` + placementFailureJSON + `}`, nil, 2, `Dimension "memory" exhausted on 1 nodes`},
		"deployed":                      {`{"ID": "e", "Status": "complete", "DeploymentID": "d"}`, []string{`{"ID": "d", "Status": "successful"}`}, 0, "Status      = successful"},
		"deployed in the end":           {`{"ID": "e", "Status": "complete", "DeploymentID": "d", ` + placementFailureJSON + `}`, []string{`{"ID": "d", "Status": "running"}`, `{"ID": "d", "Status": "successful"}`}, 0, "Status      = successful"},
		"deployment failed":             {`{"ID": "e", "Status": "complete", "DeploymentID": "d"}`, []string{`{"ID": "d", "Status": "failed"}`}, 1, "Status      = failed"},
		"deployment cancelled":          {`{"ID": "e", "Status": "complete", "DeploymentID": "d"}`, []string{`{"ID": "d", "Status": "cancelled"}`}, 1, "Status      = cancelled"},
		"deployment taken back":         {`{"ID": "e", "Status": "complete", "DeploymentID": "d"}`, []string{`{"ID": "d", "JobID": "j", "Status": "failed", "TaskGroups": {"g": {"AutoRevert": true}}}`}, 1, `Monitoring deployment "older"`},
		"another evaluation follows":    {`{"ID": "e", "Status": "failed", "NextEval": "next"}`, nil, 2, `Monitoring evaluation "next"`},
		"it does not say how it stands": {`{"ID": "e"}`, nil, 1, ""},
		"there is none":                 {``, nil, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				answers := map[string][]string{
					"/v1/evaluation/e/allocations":    {"[]"},
					"/v1/evaluation/next":             {`{"ID": "next", "Status": "complete", ` + placementFailureJSON + `}`},
					"/v1/evaluation/next/allocations": {"[]"},
					"/v1/deployment/d":                c.deployments,
					"/v1/job/j/deployment":            {`{"ID": "older"}`},
					"/v1/deployment/older":            {`{"ID": "older", "Status": "successful"}`},
				}
				if c.eval != "" {
					answers["/v1/evaluation/e"] = []string{`{"ID": "e", "Status": "pending"}`, c.eval}
				}
				var out strings.Builder
				err := New(&cli.Streams{Out: &out}, newScriptedClient(t, answers), "", false).WatchEvaluationAndDeployment(t.Context(), "e")
				code := 0
				if exit := new(cli.ExitError); errors.As(err, &exit) {
					code = exit.Code
				} else if err != nil {
					code = 1
				}
				if code != c.code || !strings.Contains(out.String(), c.says) {
					t.Errorf("code %d (%v), want %d, and %q in:\n%s", code, err, c.code, c.says, out.String())
				}
			})
		})
	}
}

// On a terminal, a deployment is redrawn in place until it has ended.
func TestMonitorOnTerminal(t *testing.T) {
	tty := terminaltest.NewFakeScrollingTerminal(t, 80, 24)
	deployment := func(healthy int, status string) string {
		return fmt.Sprintf(`{"ID": "d", "JobID": "j", "Status": %q, "TaskGroups": {"g": {"DesiredTotal": 2, "HealthyAllocs": %d}}}`, status, healthy)
	}
	c := newScriptedClient(t, map[string][]string{
		"/v1/evaluation/e":             {`{"ID": "e", "JobID": "j", "Status": "complete", "DeploymentID": "d"}`},
		"/v1/evaluation/e/allocations": {`[{"ID": "a", "NodeID": "n", "TaskGroup": "g", "DesiredStatus": "run"}]`},
		"/v1/deployment/d":             {deployment(0, "running"), deployment(1, "running"), deployment(2, "successful")},
	})
	drawn := 0
	m := New(&cli.Streams{Out: tty}, c, "", false)
	m.liveScreen = &terminal.LiveScreen{Output: tty, Size: func() (int, int) {
		if strings.Contains(tty.String(), "s so far") {
			drawn++
		}
		return 80, 24
	}}
	if err := m.WatchEvaluationAndDeployment(t.Context(), "e"); err != nil {
		t.Fatal(err)
	}
	if drawn != 2 {
		t.Errorf("the deployment was drawn %d times while it ran, want 2", drawn)
	}
	got := regexp.MustCompile(`\S+T\S+Z?`).ReplaceAllString(tty.String(), "TIME")
	got = regexp.MustCompile(` +\n`).ReplaceAllString(got, "\n")
	const want = `==> TIME Monitoring evaluation "e"
    TIME Evaluation triggered by job "j"
    TIME Evaluation within deployment: "d"
    TIME Allocation "a" created: node "n", group "g"
    TIME Evaluation status changed: "pending" -> "complete"
==> TIME Evaluation "e" finished with status "complete"
==> TIME Monitoring deployment "d"
    TIME
    ID          = d
    Job ID      = j
    Job Version = 0
    Status      = successful
    Description = <none>

    Deployed
    Task Group  Desired  Placed  Healthy  Unhealthy  Progress Deadline
    g           2        0       2        0          N/A
`
	if got != want {
		t.Errorf("the terminal shows\n%s\nwant\n%s", got, want)
	}
}
