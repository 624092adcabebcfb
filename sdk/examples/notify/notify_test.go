// Package notify tests the Python hook in this directory.
package notify

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

//go:generate ./generate.sh

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Python in each case")
	}
	if out, err := exec.Command("/usr/bin/python3", "-c", "import grpc, google.protobuf").CombinedOutput(); err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatalf("there is no /usr/bin/python3 with grpc: %v\n%s", err, out)
		}
		t.Skip("there is no /usr/bin/python3 with grpc (Debian: python3-grpcio)")
	}
	var requestCount atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requestCount.Add(1)
		var payload struct {
			Job, Task   string
			ExitCode    int  `json:"exit_code"`
			WillRestart bool `json:"will_restart"`
		}
		if err := json.NewDecoder(r.Body).Decode(&payload); err != nil || payload.Job != "suite" || payload.Task != "task" || payload.ExitCode != 137 {
			t.Errorf("it is told %+v, %v", payload, err)
		}
	}))
	defer server.Close()
	t.Run("suite", func(t *testing.T) {
		sdktest.Hook(t, sdktest.Plugin{Path: "./notify-on-exit", Attachment: map[string]any{"url": server.URL}})
	})
	if requestCount.Load() < 10 {
		t.Errorf("%d calls in all of the suite", requestCount.Load())
	}
}
