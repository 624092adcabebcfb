package builtins

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/docker"
	"github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/isolated"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/qemu"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/builtin/script"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/builtin/template/evaluators"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// All maps the name of each builtin driver and hook to its kind and its server. Each builtin runs in a process of its
// own, as third-party plugins do: the process runs this binary with the arguments `plugin serve NAME`.
var All = map[string]struct {
	Kind  base.Type
	serve func(args []string)
}{
	artifact.Name: {base.TypeHook, func([]string) {
		artifact.ConfineHookProcess()
		sdk.ServeHook(&artifact.Hook{DownloadProcessArgs: []string{ArtifactDownloadCommand}})
	}},
	docker.Name:   {base.TypeDriver, func([]string) { sdk.ServeDriver(&docker.Driver{}) }},
	exec.Name:     {base.TypeDriver, func([]string) { sdk.ServeDriver(&exec.Driver{}) }},
	java.Name:     {base.TypeDriver, func([]string) { sdk.ServeDriver(&java.Driver{}) }},
	qemu.Name:     {base.TypeDriver, func([]string) { sdk.ServeDriver(&qemu.Driver{}) }},
	rawexec.Name:  {base.TypeDriver, func([]string) { sdk.ServeDriver(&rawexec.Driver{}) }},
	script.Name:   {base.TypeHook, func([]string) { sdk.ServeHook(&script.Hook{IsDedicatedProcess: true}) }},
	template.Name: {base.TypeHook, serveTemplateHook},
}

// PredictFingerprint returns the first fingerprint of a builtin driver's process with these options of a plugin block, by the code
// that the process runs too. It returns false if the fingerprint starts another process, and if the options are wrong: the process
// reports these.
func PredictFingerprint(name string, options map[string]any) (driver.Fingerprint, bool) {
	var d interface {
		Info() sdk.DriverInfo
		Fingerprint(context.Context) driver.Fingerprint
	}
	var configure func(*sdk.Config) error
	switch {
	case name == rawexec.Name:
		rawExec := new(rawexec.Driver)
		d, configure = rawExec, func(c *sdk.Config) error { return rawExec.Configure(context.Background(), c) }
	case name == exec.Name && sandbox.IsRoot():
		isolatedExec := new(exec.Driver)
		d, configure = isolatedExec, func(c *sdk.Config) error {
			var decoded isolated.Config
			if err := c.Decode(&decoded); err != nil {
				return err
			}
			return isolatedExec.SetConfig(decoded) // Configure also logs what the options give to tasks
		}
	default:
		return driver.Fingerprint{}, false
	}
	encoded, err := launch.EncodeConfigBlock(d.Info().ConfigSchema, options)
	if err == nil {
		err = configure(sdk.NewConfig(encoded))
	}
	if err != nil {
		return driver.Fingerprint{}, false
	}
	f := d.Fingerprint(context.Background())
	if f.Health == driver.HealthHealthy && f.HealthDescription == "" {
		f.HealthDescription = "Healthy" // as package sdk sends it
	}
	return f, true
}

// DevPluginConfigs maps the name of a builtin to the configuration that lets it run commands without isolation, as in
// development mode.
var DevPluginConfigs = map[string]map[string]any{
	rawexec.Name: {"enabled": true},
	script.Name:  {"commands": true},
}

// serveTemplateHook serves the builtin hook template. optionalDownloadUIDs has at most one element: the agent's setting
// download_uids.
func serveTemplateHook(optionalDownloadUIDs []string) {
	uids := strings.Join(optionalDownloadUIDs, "")
	launcher, err := evaluators.StartLauncher([]string{TemplateLauncherCommand}, func() (uint32, error) {
		return artifact.FindUnusedUserID(context.Background(), uids)
	})
	if err == nil {
		template.ConfineHookProcess()
		err = launcher.Connect()
	}
	if err != nil {
		hclog.Default().Error("the hook template cannot start the launcher of its evaluators", "error", err)
		os.Exit(1)
	}
	go func() {
		launcher.Wait()
		hclog.Default().Error("the launcher of template evaluators has exited")
		os.Exit(1) // the agent starts the hook's process and its launcher again
	}()
	sdk.ServeHook(&template.Hook{Evaluators: evaluators.NewPool(launcher)})
}

// ServePlugin serves a builtin as a plugin process. argsAfterName are the command-line arguments after the builtin's
// name. If a user runs the command directly, ServePlugin prints that the program is a plugin.
func ServePlugin(name string, argsAfterName ...string) error {
	builtin, ok := All[name]
	if !ok {
		names := slices.Sorted(maps.Keys(All))
		return fmt.Errorf("plugin serve: there is no builtin plugin %q, only %s", name, strings.Join(names, ", "))
	}
	builtin.serve(argsAfterName)
	return nil
}

// Names returns the names of all builtins, sorted.
func Names() []string { return slices.Sorted(maps.Keys(All)) }

// DriverNames returns the names of the builtin drivers, sorted.
func DriverNames() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return All[name].Kind != base.TypeDriver })
}

// ArtifactDownloadCommand is the name of the hidden command that downloads one artifact in a process with restricted
// rights.
const ArtifactDownloadCommand = "artifact-download"

// Names of the hidden commands of the hook template: the process that starts evaluators, and an evaluator, which evaluates templates
// with restricted rights.
const (
	TemplateLauncherCommand  = "template-launcher"
	TemplateEvaluatorCommand = "template-evaluator"
)
