package main

import (
	"os"
	"strings"
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
		Tasks: sdktest.Tasks{Shell: func(script string) map[string]any {
			// The config of a task is a template, so ${ and %{ must be escaped.
			script = strings.NewReplacer("${", "$${", "%{", "%%{").Replace(script)
			return map[string]any{"interpreter": []any{"/bin/sh"}, "script": script}
		}},
	})
}
