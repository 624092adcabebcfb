package mock

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.ServeDriver(&Driver{}) })
}

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin and tasks in each case of the contract suite")
	}
	sdktest.Driver(t, sdktest.Plugin{
		Path: os.Args[0],
		Tasks: sdktest.Tasks{
			Runs:  map[string]any{"run_for": "1h"},
			Ends:  map[string]any{"run_for": "10ms", "stdout_string": "done\n"},
			Fails: map[string]any{"run_for": "10ms", "exit_code": 3},
		},
	})
}
