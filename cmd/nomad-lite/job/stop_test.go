package job

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// An error of one job does not keep the others running, and jobs that launch others are stopped first, with what they have
// launched meanwhile.
func TestStopAllContinuesAfterAnError(t *testing.T) {
	jobs := []*api.JobListStub{
		{ID: "api", Namespace: "default", Status: "running"},
		{ID: "backup", Namespace: "default", Status: "running", Periodic: true},
		{ID: "ended", Namespace: "default", Status: "dead"},
		{ID: "web", Namespace: "default", Status: "running"},
	}
	var stopped []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, isJob := strings.CutPrefix(r.URL.Path, "/v1/job/")
		switch {
		case !isJob:
			_ = json.NewEncoder(w).Encode(jobs)
			return
		case id == "api":
			http.Error(w, "the disk is full", http.StatusInternalServerError)
			return
		case id == "backup":
			jobs = append(jobs, &api.JobListStub{ID: "backup/periodic-1", ParentID: "backup", Namespace: "default", Status: "running"}, &api.JobListStub{ID: "new", Namespace: "default", Status: "running"})
		}
		stopped = append(stopped, id)
		_ = json.NewEncoder(w).Encode(api.JobDeregisterResponse{EvalID: "eval-" + id})
	}))
	defer server.Close()
	t.Setenv("NOMAD_ADDR", server.URL)

	var out bytes.Buffer
	cmd := NewStopCommand(&cli.Streams{In: strings.NewReader("y\n"), Out: &out, Err: io.Discard})
	cmd.SetArgs([]string{"--all", "--detach"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), `stop job "api"`) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
	if want := []string{"backup", "web", "backup/periodic-1"}; !slices.Equal(stopped, want) {
		t.Errorf("stopped %q, want %q", stopped, want)
	}
	if want := "Are you sure you want to stop 3 job(s): backup, api, web? [y/N] eval-backup\neval-web\neval-backup/periodic-1\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
}
