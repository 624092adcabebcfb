package builtins

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/builtin/docker"
	"github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/qemu"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/script"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
	"github.com/nomad-lite/nomad-lite/sdk"
)

const promisesFile = "plugin-config.txt"

// schemas returns the schemas of the builtins, by the name of the builtin and of the block that has the schema.
func schemas() map[string]*hclspec.Spec {
	all := map[string]*hclspec.Spec{}
	addDriver := func(i sdk.DriverInfo) {
		all["driver "+i.Name+", plugin config"], all["driver "+i.Name+", task config"] = i.ConfigSchema, i.TaskSchema
	}
	addHook := func(i sdk.HookInfo) {
		all["hook "+i.Name+", plugin config"], all["hook "+i.Name+", attachment"] = i.ConfigSchema, i.AttachmentSchema
	}
	addDriver((&docker.Driver{}).Info())
	addDriver((&exec.Driver{}).Info())
	addDriver((&java.Driver{}).Info())
	addDriver((&qemu.Driver{}).Info())
	addDriver((&rawexec.Driver{}).Info())
	addHook((&artifact.Hook{}).Info())
	addHook((&script.Hook{}).Info())
	addHook((&template.Hook{}).Info())
	return all
}

// promiseLines returns a line for each option of the schemas.
func promiseLines(schemas map[string]*hclspec.Spec) []string {
	var lines []string
	for name, schema := range schemas {
		lines = append(lines, name)
		lines = appendParts(lines, name+", ", schema)
	}
	return lines
}

func appendParts(lines []string, prefix string, schema *hclspec.Spec) []string {
	arguments, blocks := schema.Parts()
	for _, p := range arguments {
		n := p.Spec.Node()
		lines = append(lines, prefix+p.Name+": "+n.Expression+requiredText(n.Required))
	}
	for _, p := range blocks {
		n := p.Spec.Node()
		value := blockTexts[n.Kind] + requiredText(n.Required)
		if n.Min > 0 || n.Max > 0 {
			value += fmt.Sprintf(", %d to %d", n.Min, n.Max)
		}
		if len(n.Labels) > 0 {
			value += ", labels " + strings.Join(n.Labels, " ")
		}
		if n.Expression != "" {
			value += " and values of type " + n.Expression
		}
		lines = append(lines, prefix+p.Name+": "+value)
		lines = appendParts(lines, prefix+p.Name+".", n.Nested)
	}
	return lines
}

var blockTexts = map[hclspec.Kind]string{
	hclspec.KindBlock: "block", hclspec.KindBlockAttrs: "block with any names", hclspec.KindBlockList: "list of blocks", hclspec.KindBlockSet: "set of blocks",
	hclspec.KindBlockMap: "map of blocks",
}

func requiredText(required bool) string {
	if required {
		return ", required"
	}
	return ""
}

func TestReferenceBuiltinPromises(t *testing.T) {
	all := schemas()
	var names []string
	for name := range all {
		name, _, _ = strings.Cut(name, ",")
		_, name, _ = strings.Cut(name, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	if names = slices.Compact(names); !slices.Equal(names, Names()) {
		t.Errorf("schemas of %q, want those of all builtins, %q", names, Names())
	}
	promises.Check(t, promisesFile, promiseLines(all))
}

func TestChangedOptionsBreakPromises(t *testing.T) {
	const schema, option = "driver raw_exec, task config", "work_dir"
	arguments, blocks := schemas()[schema].Parts()
	for name, replacement := range map[string]*hclspec.Spec{
		"removed":           nil,
		"with another type": hclspec.Attr(option, "number", false),
		"required":          hclspec.Attr(option, "string", true),
	} {
		t.Run(name, func(t *testing.T) {
			attributes := map[string]*hclspec.Spec{}
			for _, p := range slices.Concat(arguments, blocks) {
				attributes[p.Name] = p.Spec
			}
			delete(attributes, option)
			if replacement != nil {
				attributes[option] = replacement
			}
			changed := maps.Clone(schemas())
			changed[schema] = hclspec.Object(attributes)
			promises.CheckOnly(t, promisesFile, promiseLines(changed), schema+", "+option)
		})
	}
}
