package builtins

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/docker"
	"github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
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
	serve func(args []string)
}{
	artifact.Name: {base.TypeHook, func([]string) {
		artifact.ConfineProcess()
		sdk.ServeHook(&artifact.Hook{DownloadArgs: []string{ArtifactDownloadCommand}})
	}},
	docker.Name:   {base.TypeDriver, func([]string) { sdk.ServeDriver(&docker.Driver{}) }},
	exec.Name:     {base.TypeDriver, func([]string) { sdk.ServeDriver(&exec.Driver{}) }},
	java.Name:     {base.TypeDriver, func([]string) { sdk.ServeDriver(&java.Driver{}) }},
	qemu.Name:     {base.TypeDriver, func([]string) { sdk.ServeDriver(&qemu.Driver{}) }},
	rawexec.Name:  {base.TypeDriver, func([]string) { sdk.ServeDriver(&rawexec.Driver{}) }},
	script.Name:   {base.TypeHook, func([]string) { sdk.ServeHook(&script.Hook{DedicatedProcess: true}) }},
	template.Name: {base.TypeHook, serveTemplates},
}

// DevPluginConfigs is the configuration with which builtins run commands without isolation.
var DevPluginConfigs = map[string]map[string]any{
	rawexec.Name: {"enabled": true},
	script.Name:  {"commands": true},
}

// serveTemplates serves the hook template. The only argument, if there is one, are the download_uids of the agent.
func serveTemplates(args []string) {
	uids := strings.Join(args, "")
	evaluator := template.ConfineProcess([]string{TemplateEvaluatorCommand}, func() (uint32, error) {
		return artifact.FindUserID(context.Background(), uids)
	})
	sdk.ServeHook(&template.Hook{Evaluator: evaluator})
}

// ServePlugin serves a builtin as a plugin process, with the arguments after its name. If a user runs the command directly, it
// prints that it is a plugin.
func ServePlugin(name string, args ...string) error {
	builtin, ok := All[name]
	if !ok {
		names := slices.Sorted(maps.Keys(All))
		return fmt.Errorf("plugin serve: there is no builtin plugin %q, only %s", name, strings.Join(names, ", "))
	}
	builtin.serve(args)
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

// TemplateEvaluatorCommand is the hidden command of the helper process that evaluates templates without rights.
const TemplateEvaluatorCommand = "template-evaluator"
