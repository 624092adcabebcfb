package rawexec

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.Serve(&Driver{}) })
}

func TestContract(t *testing.T) {
	sdktest.Driver(t, sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"enabled": true},
		Tasks: sdktest.Tasks{Shell: func(script string) map[string]any {
			return map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}
		}},
	})
}
