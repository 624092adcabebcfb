package main

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	sdktest.Hook(t, sdktest.Plugin{
		Path:       os.Args[0],
		Config:     map[string]any{"default_timeout": "20s"},
		Attachment: map[string]any{"exec": map[string]any{"command": []string{"/bin/true"}}, "interval": "50ms"},
	})
}
