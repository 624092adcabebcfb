package main

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds; with -short, builtin/rawexec runs the suite for drivers")
	}
	sdktest.Driver(t, sdktest.Plugin{
		Path: os.Args[0],
		Tasks: sdktest.Tasks{
			LongRunning: map[string]any{"duration": "1h"},
			Succeeds:    map[string]any{"duration": "10ms"},
		},
	})
}
