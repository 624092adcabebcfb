package builtins

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// describedIn are the pages that describe the options of each builtin.
var describedIn = map[string]string{
	"docker": "docker.md", "exec": "exec.md", "java": "exec.md#java", "qemu": "qemu.md", "raw_exec": "../how-to/run.md#drivers",
	"artifact": "agent.md#artifacts", "script": "hooks.md", "template": "agent.md#templates",
}

// docs/reference/plugin-config.md is the schemas of the builtin drivers and hooks.
func TestReferencePluginConfigPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Options of builtin drivers and hooks\n\n" +
		"This page is generated from the schemas of the builtin plugins (`make reference`). `nomad-lite plugin inspect NAME` prints the schemas of any plugin.\n\n" +
		"The options of a plugin are in `plugin \"NAME\" { config { … } }` of the [configuration of the agent](agent-config.md#plugin), those of a task in its `config` block. A driver can set a default itself, which its schema does not have:\n" +
		"the page of the driver has it.\n")
	all := schemas()
	for _, name := range Names() {
		page, ok := describedIn[name]
		if !ok {
			t.Errorf("describedIn does not have %s", name)
		}
		fmt.Fprintf(&b, "\n## %s\n\n[%s](%s) describes the options.\n", name, name, page)
		for _, kind := range []struct{ key, title string }{
			{"driver " + name + ", plugin config", "Options of the plugin"},
			{"hook " + name + ", plugin config", "Options of the plugin"},
			{"driver " + name + ", task config", "Options of a task"},
			{"hook " + name + ", attachment", "Options of an attachment"},
		} {
			table := docpage.NewTable("Option", "Type", "Default", "Required")
			addOptions(table, "", all[kind.key])
			if rows := table.String(); rows != "" {
				fmt.Fprintf(&b, "\n%s:\n\n%s", kind.title, rows)
			}
			delete(all, kind.key)
		}
	}
	for key := range all {
		t.Errorf("the page does not have the schema of %s", key)
	}
	docpage.Check(t, "reference/plugin-config.md", b.String())
}

// addOptions adds a row for each argument and block of a schema, and for those in the blocks.
func addOptions(table *docpage.Table, prefix string, schema *hclspec.Spec) {
	arguments, blocks := schema.Parts()
	required := map[bool]string{true: "yes", false: "no"}
	for _, p := range arguments {
		n := p.Spec.Node()
		table.AddRow(docpage.Code(prefix+p.Name), n.Expression, docpage.Code(p.DefaultText), required[n.Required])
	}
	for _, p := range blocks {
		n := p.Spec.Node()
		kind := blockTexts[n.Kind]
		if n.Expression != "" {
			kind += " and values of type " + n.Expression
		}
		table.AddRow(docpage.Code(prefix+p.Name), kind, docpage.Code(p.DefaultText), required[n.Required || n.Min > 0])
		addOptions(table, prefix+p.Name+".", n.Nested)
	}
}
