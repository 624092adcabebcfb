package builtins

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/docker"
	"github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/mock"
	"github.com/nomad-lite/nomad-lite/builtin/qemu"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/script"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// All are the builtin drivers and hooks. Each runs in a process of its own, like
// third-party plugins: this binary, started again with `plugin serve NAME`.
var All = map[string]struct {
	Kind  base.Type
	serve func()
}{
	artifact.Name: {base.TypeHook, func() {
		artifact.ConfineProcess()
		sdk.ServeHook(&artifact.Hook{DownloadArgs: []string{ArtifactDownloadCommand}})
	}},
	docker.Name:   {base.TypeDriver, func() { sdk.ServeDriver(&docker.Driver{}) }},
	exec.Name:     {base.TypeDriver, func() { sdk.ServeDriver(&exec.Driver{}) }},
	java.Name:     {base.TypeDriver, func() { sdk.ServeDriver(&java.Driver{}) }},
	mock.Name:     {base.TypeDriver, func() { sdk.ServeDriver(&mock.Driver{}) }},
	qemu.Name:     {base.TypeDriver, func() { sdk.ServeDriver(&qemu.Driver{}) }},
	rawexec.Name:  {base.TypeDriver, func() { sdk.ServeDriver(&rawexec.Driver{}) }},
	script.Name:   {base.TypeHook, func() { sdk.ServeHook(&script.Hook{DedicatedProcess: true}) }},
	template.Name: {base.TypeHook, func() { template.ConfineProcess(); sdk.ServeHook(&template.Hook{}) }},
}

// DevPluginConfigs is the configuration with which builtins run commands without isolation.
var DevPluginConfigs = map[string]map[string]any{
	rawexec.Name: {"enabled": true},
	script.Name:  {"commands": true},
}

// ServePlugin serves a builtin as a plugin process. If a user runs the command directly, it prints
// that it is a plugin.
func ServePlugin(name string) error {
	builtin, ok := All[name]
	if !ok {
		names := slices.Sorted(maps.Keys(All))
		return fmt.Errorf("plugin serve: there is no builtin plugin %q, only %s", name, strings.Join(names, ", "))
	}
	builtin.serve()
	return nil
}

// Names returns the names of all builtins, sorted.
func Names() []string { return slices.Sorted(maps.Keys(All)) }

// DriverNames returns the names of the builtin drivers, sorted.
func DriverNames() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return All[name].Kind != base.TypeDriver })
}

// ArtifactDownloadCommand is the hidden command of the helper process that downloads one artifact
// with restricted rights.
const ArtifactDownloadCommand = "artifact-download"
