package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/mock"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/script"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// builtins are the builtin drivers and hooks. Each runs in a process of its own, like
// third-party plugins: this binary, started again with `plugin serve NAME`.
var builtins = map[string]struct {
	kind  base.Type
	serve func()
}{
	artifact.Name: {base.TypeHook, func() { artifact.Confine(); sdk.Serve(&artifact.Hook{Args: []string{artifactDownload}}) }},
	mock.Name:     {base.TypeDriver, func() { sdk.Serve(&mock.Driver{}) }},
	rawexec.Name:  {base.TypeDriver, func() { sdk.Serve(&rawexec.Driver{}) }},
	script.Name:   {base.TypeHook, func() { sdk.Serve(&script.Hook{OwnProcess: true}) }},
	template.Name: {base.TypeHook, func() { template.Confine(); sdk.Serve(&template.Hook{}) }},
}

// devConfig is the configuration of builtins for users who let jobs run commands without
// isolation.
var devConfig = map[string]map[string]any{
	rawexec.Name: {"enabled": true},
	script.Name:  {"commands": true},
}

// servePlugin serves a builtin as a plugin process. Started by a person, it prints that it
// is a plugin.
func servePlugin(name string) error {
	builtin, ok := builtins[name]
	if !ok {
		names := slices.Sorted(maps.Keys(builtins))
		return fmt.Errorf("plugin serve: there is no builtin plugin %q, only %s", name, strings.Join(names, ", "))
	}
	builtin.serve()
	return nil
}
