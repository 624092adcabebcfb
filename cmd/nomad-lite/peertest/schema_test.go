package peertest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// nomadDriverFiles are the file names under which the program ext-drivers serves Nomad's drivers. The driver mock_driver is
// left out: it simulates tasks for tests, and each side has the options that its own tests need.
var nomadDriverFiles = map[string]string{
	"docker": "ext-docker", "exec": "ext-exec", "java": "ext-java", "qemu": "ext-qemu", "raw_exec": "ext-raw-exec",
}

// acceptedDifference is a part of a builtin driver that differs from Nomad's driver for a reason, which the
// documentation of the driver has, too.
type acceptedDifference struct{ driver, part, reason string }

func acceptedDifferences() []acceptedDifference {
	const (
		pidsLimit = "limits the processes of a task, as Nomad's docker driver does"
		seccomp   = "filters system calls by default, as Docker does; the option switches the filter off"
		none      = "a task of a group with network mode none has a loopback interface of its own"
		denied    = "java has the same isolation as exec, and so the same options"
		runs      = "a task of java is a process like one of exec"
		caps      = "without it a task has no capabilities with which it becomes another user, and no rights on files of others unless it is root"
		modes     = "a task has a namespace of the machine only if the operator allows it"
		bits      = "no task leaves a set-user-ID program for other accounts"
	)
	list := []acceptedDifference{
		{"docker", "plugin.infra_image", "by default the driver makes the image itself, so that nothing is pulled"},

		{"exec", "plugin.pids_limit", pidsLimit},
		{"exec", "plugin.seccomp", seccomp},
		{"exec", "task.oom_score_adj", "raw_exec and docker have the option, too"},
		{"exec", "capability.NetworkIsolationModes", none},

		{"java", "plugin.pids_limit", pidsLimit},
		{"java", "plugin.seccomp", seccomp},
		{"java", "plugin.denied_host_uids", denied},
		{"java", "plugin.denied_host_gids", denied},
		{"java", "plugin.no_pivot_root", denied},
		{"java", "capability.NetworkIsolationModes", none},
		{"java", "capability.Exec", runs},
		{"java", "capability.SendSignals", runs},

		{"raw_exec", "plugin.pids_limit", pidsLimit},
		{"raw_exec", "capability.MountConfigs", "Nomad's agent rejects a volume_mount with its builtin raw_exec, too; only the driver as an external plugin reports that it mounts volumes, and runs the task without them"},
	}
	for _, driver := range []string{"exec", "java"} {
		list = append(list,
			acceptedDifference{driver, "plugin.allow_caps", caps},
			acceptedDifference{driver, "plugin.denied_users", caps},
			acceptedDifference{driver, "plugin.allow_pid_mode", modes},
			acceptedDifference{driver, "plugin.allow_ipc_mode", modes},
			acceptedDifference{driver, "plugin.allow_host_mode_root", modes},
			acceptedDifference{driver, "plugin.allow_setid_bits", bits},
		)
	}
	if os.Geteuid() != 0 {
		list = append(list, acceptedDifference{"raw_exec", "plugin.enabled", "an agent that is not root gives no rights that the user does not have"})
	}
	return list
}

// The builtin drivers have the capabilities of Nomad's drivers of the same names, and the same options with the same types
// and defaults.
func TestDriversHaveNomadsSchemas(t *testing.T) {
	program := peers.ProgramOrSkip(t, "ext-drivers")
	dir := t.TempDir()
	reasons := map[string]map[string]string{}
	for _, d := range acceptedDifferences() {
		if reasons[d.driver] == nil {
			reasons[d.driver] = map[string]string{}
		}
		reasons[d.driver][d.part] = d.reason
	}
	for _, name := range builtins.DriverNames() {
		file, ok := nomadDriverFiles[name]
		if !ok {
			continue
		}
		accepted := reasons[name]
		delete(reasons, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := linkPlugins(filepath.Join(dir, name), map[string]string{file: program}); err != nil {
				t.Fatal(err)
			}
			compareParts(t, inspectParts(t, filepath.Join(dir, name, file)), inspectParts(t, name), accepted)
			if name == "raw_exec" {
				// With a wrong number, our driver would still have the capabilities and the defaults, and Nomad's would not.
				fieldShown(t, "drivers.DriverCapabilities.send_signals", "drivers.DriverCapabilities.exec", "drivers.DriverCapabilities.network_isolation_modes",
					"hclspec.Default.primary", "hclspec.Default.default")
			}
		})
	}
	for name := range reasons {
		t.Errorf("acceptedDifferences has the driver %q, which is not compared", name)
	}
}

func compareParts(t *testing.T, nomad, lite, accepted map[string]string) {
	all := maps.Clone(nomad)
	maps.Copy(all, lite)
	for _, part := range slices.Sorted(maps.Keys(all)) {
		reason, isAccepted := accepted[part]
		switch isEqual := nomad[part] == lite[part]; {
		case isEqual && isAccepted:
			t.Errorf("%s no longer differs (%s): remove it from acceptedDifferences, and from the documentation", part, reason)
		case !isEqual && !isAccepted:
			t.Errorf("%s: Nomad has %q, nomad-lite has %q", part, nomad[part], lite[part])
		}
	}
	for part := range accepted {
		if _, ok := all[part]; !ok {
			t.Errorf("acceptedDifferences has %s, and neither driver has it", part)
		}
	}
}

// inspectParts returns what plugin inspect prints of a driver: the text of each option and block of its schemas, and of
// each capability, by path. An absent part has no text.
func inspectParts(t *testing.T, target string) map[string]string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command("nomad-lite", "plugin", "inspect", "-json", target)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("inspect %s: %v\n%s", target, err, stderr.String())
	}
	var plugin struct {
		Capabilities             map[string]json.RawMessage
		ConfigSchema, TaskSchema json.RawMessage
	}
	if err := json.Unmarshal(out, &plugin); err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for name, value := range plugin.Capabilities {
		parts["capability."+name] = strings.Join(strings.Fields(string(value)), " ")
	}
	for root, text := range map[string]json.RawMessage{"plugin": plugin.ConfigSchema, "task": plugin.TaskSchema} {
		schema, err := hclspec.FromJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		addParts(t, parts, root, schema)
	}
	if len(plugin.Capabilities) == 0 || parts["task.args"] == "" {
		t.Fatalf("inspect %s prints no capabilities, or no schema of tasks:\n%s", target, out)
	}
	return parts
}

// addParts adds the options and blocks of a schema, whose path is at.
func addParts(t *testing.T, parts map[string]string, at string, schema *hclspec.Spec) {
	t.Helper()
	switch n := schema.Node(); n.Kind {
	case hclspec.KindObject:
		for key, attribute := range n.Attributes {
			addParts(t, parts, at+"."+key, attribute)
		}
	case hclspec.KindDefault:
		addParts(t, parts, at, n.Nested)
		parts[at] += ", default " + literalValue(t, n.Default)
	case hclspec.KindAttr, hclspec.KindBlock, hclspec.KindBlockAttrs, hclspec.KindBlockList:
		kind := map[hclspec.Kind]string{
			hclspec.KindAttr: "argument", hclspec.KindBlock: "block", hclspec.KindBlockAttrs: "block of arguments", hclspec.KindBlockList: "blocks",
		}[n.Kind]
		parts[at] = fmt.Sprintf("%s %s of type %q, required %v, %d to %d", kind, n.Name, n.Expression, n.Required, n.Min, n.Max)
		if n.Nested != nil {
			addParts(t, parts, at, n.Nested)
		}
	default:
		t.Fatalf("%s has a kind of schema, %d, that the test cannot compare", at, n.Kind)
	}
}

// literalValue returns the value of a literal as JSON, because both sides write the same value in different ways.
func literalValue(t *testing.T, literal *hclspec.Spec) string {
	t.Helper()
	expression := literal.Node().Expression
	parsed, diags := hclsyntax.ParseExpression([]byte(expression), "literal", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	value, diags := parsed.Value(nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	text, err := ctyjson.Marshal(value, value.Type())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
