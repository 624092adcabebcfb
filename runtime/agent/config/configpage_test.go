package config

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// settingComment is the comment above a setting: a description, and in brackets facts that the code does not have in one place, such as
// [type: string; default: info; reload; not in Nomad].
type settingComment struct {
	description, valueType, defaultValue string
	reload, ownSetting                   bool // a reload applies a change; Nomad does not have the setting
}

// docs/reference/agent-config.md has each setting of the tables, with the comment above it.
func TestReferenceConfigPage(t *testing.T) {
	p := &configPage{t: t, comments: readSettingComments(t), ignored: docpage.NewTable("Setting", "Reason")}
	p.sections, p.ownBlocks = map[string]*docpage.Table{}, map[string]bool{}
	p.addBlock("", topLevelSettings)
	p.addLabelledBlocks()
	for path := range p.comments {
		t.Errorf("the comment of %s describes no setting with an effect", path)
	}
	docpage.Check(t, "reference/agent-config.md", p.text())
}

// configPage collects the rows of the page.
type configPage struct {
	t        *testing.T
	comments map[string]settingComment // by path; a comment is removed when it has its row
	sections map[string]*docpage.Table // by the path of the block
	// ownBlocks are the paths of the blocks that Nomad does not have: it does not have their settings either.
	ownBlocks                  map[string]bool
	ignored                    *docpage.Table
	withEffect, withoutMeaning int // numbers of Nomad's settings, without blocks
}

func (p *configPage) addBlock(block string, settings map[string]settingSpec) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		path := strings.TrimPrefix(block+"."+name, ".")
		switch s := settings[name]; {
		case s.ignoredReason != "":
			p.ignored.AddRow(docpage.Code(path), s.ignoredReason)
			p.withoutMeaning++
		case s.blockSettings != nil:
			p.addRow(block, name, "block")
			p.addBlock(path, s.blockSettings)
		case s.valueType == nil:
			p.addRow(block, name, "")
		default:
			p.addRow(block, name, typeText(s.valueType))
		}
	}
}

// addLabelledBlocks adds the settings of the blocks that are not in the tables, and the legacy options.
func (p *configPage) addLabelledBlocks() {
	lines := allPromiseLines(p.t, nil)
	slices.Sort(lines) // a block comes before the blocks in it
	for _, line := range lines {
		block, name, _ := strings.Cut(line, " block, ")
		p.addRow(block, name, "")
	}
	for _, path := range slices.Sorted(maps.Keys(p.comments)) {
		if name, ok := strings.CutPrefix(path, "client.options."); ok {
			p.addRow("client.options", name, "")
		}
	}
}

func (p *configPage) addRow(block, name, valueType string) {
	path := strings.TrimPrefix(block+"."+name, ".")
	c, ok := p.comments[path]
	delete(p.comments, path)
	if c.valueType != "" {
		valueType = c.valueType
	}
	if !ok || c.description == "" || valueType == "" {
		p.t.Errorf("the setting %s has no comment with a description and, if its table does not have it, a type", path)
		return
	}
	c.ownSetting = c.ownSetting || p.ownBlocks[block]
	p.ownBlocks[path] = c.ownSetting
	if !c.ownSetting && valueType != "block" {
		p.withEffect++
	}
	table := p.sections[block]
	if table == nil {
		table = docpage.NewTable("Setting", "Type", "Default", "Reload", "In Nomad", "Description")
		p.sections[block] = table
	}
	table.AddRow(docpage.Code(name), valueType, c.defaultValue, yesOrNo(c.reload), yesOrNo(!c.ownSetting), c.description)
}

func yesOrNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func (p *configPage) text() string {
	var b strings.Builder
	b.WriteString("# Configuration of the agent\n\n" +
		"This page is generated from the tables of `runtime/agent/config` and their comments (`make reference`).\n" +
		"[Jobs that stay: the agent](agent.md) shows the configuration in use.\n\n" +
		"A *duration* is a text such as `\"90s\"`, or a number of nanoseconds; a *size* a text such as `\"100GB\"`, or a number of bytes. *Reload* means that `kill -HUP` applies a change; other changes need a restart of the agent,\n" +
		"which does not stop tasks. Without a default, a setting is empty, `false` or 0.\n")
	for _, block := range slices.Sorted(maps.Keys(p.sections)) {
		title := "Top level"
		if block != "" {
			title = block
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s", title, p.sections[block])
	}
	fmt.Fprintf(&b, "\n## Settings of Nomad without an effect\n\nOf Nomad's settings, %d have an effect, %d have no meaning here for the reason in the table, and none is refused. "+
		"The agent reports each setting without an effect in a warning with its position.\n\n%s", p.withEffect, p.withoutMeaning, p.ignored)
	return b.String()
}

// settingFunctions are the functions that read the settings of blocks with labels, and the options, by the path of the block.
var settingFunctions = map[string]string{
	"parseAuditSink": "audit.sink", "parseAuditFilter": "audit.filter",
	"setLegacyOptions": "client.options", "parseHostNetwork": "client.host_network", "parseHostVolume": "client.host_volume",
	"parseHookRule": "hook", "parseHookMatch": "hook.match", "parsePluginBlock": "plugin",
}

// readSettingComments returns the comments above the settings of the tables, and above the cases of settingFunctions.
func readSettingComments(t *testing.T) map[string]settingComment {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	r := &commentReader{t: t, files: token.NewFileSet(), tables: map[string]*ast.CompositeLit{}, comments: map[string]settingComment{}, byLine: map[string]*ast.CommentGroup{}}
	var functions []*ast.FuncDecl
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(r.files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range file.Comments {
			end := r.files.Position(group.End())
			r.byLine[fmt.Sprint(end.Filename, ":", end.Line+1)] = group
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				functions = append(functions, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == 1 {
						if table, ok := v.Values[0].(*ast.CompositeLit); ok {
							r.tables[v.Names[0].Name] = table
						}
					}
				}
			}
		}
	}
	r.readTable("", r.tables["topLevelSettings"])
	for _, f := range functions {
		block, ok := settingFunctions[f.Name.Name]
		if !ok {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CaseClause:
				for _, name := range n.List {
					r.readComment(block, name, n.Pos())
				}
			case *ast.IfStmt:
				if comparison, ok := n.Cond.(*ast.BinaryExpr); ok {
					r.readComment(block, comparison.Y, n.Pos())
				}
			}
			return true
		})
	}
	return r.comments
}

type commentReader struct {
	t        *testing.T
	files    *token.FileSet
	tables   map[string]*ast.CompositeLit // by the name of the variable
	byLine   map[string]*ast.CommentGroup // by the file and the line after the comment
	comments map[string]settingComment
}

// readTable reads the comments of a table of settings, and of the tables of the blocks in it.
func (r *commentReader) readTable(block string, table *ast.CompositeLit) {
	for _, element := range table.Elts {
		entry := element.(*ast.KeyValueExpr)
		name := r.readComment(block, entry.Key, entry.Pos())
		spec, ok := entry.Value.(*ast.CompositeLit)
		if !ok {
			continue
		}
		for _, element := range spec.Elts {
			field := element.(*ast.KeyValueExpr)
			if field.Key.(*ast.Ident).Name != "blockSettings" {
				continue
			}
			inner, ok := field.Value.(*ast.CompositeLit)
			if !ok {
				inner = r.tables[field.Value.(*ast.Ident).Name]
			}
			r.readTable(strings.TrimPrefix(block+"."+name, "."), inner)
		}
	}
}

// readComment stores the comment above the line of a position for the setting with the name, and returns the name.
func (r *commentReader) readComment(block string, nameLiteral ast.Expr, pos token.Pos) string {
	literal, ok := nameLiteral.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	name, err := strconv.Unquote(literal.Value)
	if err != nil {
		r.t.Fatal(err)
	}
	p := r.files.Position(pos)
	group := r.byLine[fmt.Sprint(p.Filename, ":", p.Line)]
	if group == nil {
		return name
	}
	path := strings.TrimPrefix(block+"."+name, ".")
	c, err := parseSettingComment(group.Text())
	if err != nil {
		r.t.Errorf("%s: the comment of %s: %v", p, path, err)
	}
	r.comments[path] = c
	return name
}

func parseSettingComment(text string) (c settingComment, err error) {
	text = strings.Join(strings.Fields(text), " ")
	description, facts, found := strings.Cut(text, " [")
	c.description = description
	if !found {
		return c, nil
	}
	facts, ok := strings.CutSuffix(facts, "]")
	if !ok {
		return c, fmt.Errorf("%q does not end with ]", text)
	}
	for fact := range strings.SplitSeq(facts, "; ") {
		name, value, _ := strings.Cut(fact, ": ")
		switch name {
		case "type":
			c.valueType = value
		case "default":
			c.defaultValue = value
		case "reload":
			c.reload = true
		case "not in Nomad":
			c.ownSetting = true
		default:
			return c, fmt.Errorf("%q is neither type, default, reload nor not in Nomad", fact)
		}
	}
	return c, nil
}

// The defaults in the comments are those that the packages fill in, as far as these export them.
func TestDefaultsOfComments(t *testing.T) {
	comments := readSettingComments(t)
	node := localnode.Settings{}.WithDefaults("the host name")
	ids, _ := DynamicUserRange{}.UserIDs()
	chroot := "Nomad's list"
	if len(allocdir.DefaultChrootEnv()) == 0 {
		chroot = ""
	}
	for path, want := range map[string]any{
		"name": node.Name, "region": node.Region, "datacenter": node.Datacenter,
		"client.node_pool": node.Pool, "client.min_dynamic_port": node.MinDynamicPort, "client.max_dynamic_port": node.MaxDynamicPort,
		"client.client_min_port": node.ClientMinPort, "client.client_max_port": node.ClientMaxPort,
		"client.bridge_network_name": node.Networks.Bridge.Name, "client.bridge_network_subnet": node.Networks.Bridge.IPv4Subnet,
		"client.cni_config_dir": node.Networks.CNI.ConfigDir, "client.cni_path": strings.Join(node.Networks.CNI.PluginDirs, ":"),
		"client.users.dynamic_user_min": ids.First, "client.users.dynamic_user_max": ids.Last,
		"client.chroot_env": chroot, "telemetry.collection_interval": metrics.DefaultInterval,
	} {
		if got := comments[path].defaultValue; got != fmt.Sprint(want) {
			t.Errorf("the comment of %s has the default %q, want %q", path, got, fmt.Sprint(want))
		}
	}
}
