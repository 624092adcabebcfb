package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
)

// A refusalArea is a part of the program with its refusals: the texts of errors that it makes itself, and does not pass on.
type refusalArea struct {
	title, intro string
	dirs         []string // with their subdirectories
	constructors []string // functions and methods whose first text is the message
	// remedies maps messages that do not state what to do to the remedy.
	remedies map[string]string
	// internal are messages that no user sees as such.
	internal []string
}

var errorConstructors = []string{"errors.New", "fmt.Errorf"}

var refusalAreas = []refusalArea{
	{
		title:        "Configuration of the agent",
		intro:        "`nomad-lite config validate` reports them with the file, the line and the name of the setting. Settings and values are in [the configuration](agent-config.md).",
		dirs:         []string{"runtime/agent/config"},
		constructors: append([]string{"syntaxError", "r.addDiagnostic", "p.addDiagnostic"}, errorConstructors...),
		remedies: map[string]string{
			"has %s, and no %s%s": "write one of these settings",
			"is not a setting of a host_network block: it has %s%s":                                                  "write one of these settings",
			"is not a setting of a host_volume block: it has %s%s":                                                   "write one of these settings",
			"is not known: a hook has %s%s":                                                                          "write one of these settings",
			"is not known: match has %s%s":                                                                           "write one of these settings",
			"Nesting too deep: blocks, objects and lists may be nested %d levels deep at most":                       "write the value with fewer levels",
			"not HCL: the file ends before this %q is closed":                                                        "close the bracket",
			"not HCL: %q does not close the %q at %s":                                                                "close the bracket with its counterpart",
			"%q has a directory that is not an absolute path: the agent would run programs of its working directory": "write absolute paths",
			"%s is not a number of 64 bits":                                                                          "write a smaller number",
			"%s is not a number":                                                                                     "write digits",
			"no .hcl or .json file in this directory":                                                                "name a file or a directory that has one",
			"%s is not a setting that is known here, and is ignored%s":                                               "correct the name, or remove the setting; this is a warning",
			"%s is not a setting of %s that is known here, and is ignored%s":                                         "correct the name, or remove the setting; this is a warning",
			"%s is ignored: %s":                                                                                      "nothing: this is a warning, and the file can remain that of a Nomad agent",
			"option %q is ignored: it has no meaning here%s":                                                         "nothing: this is a warning",
			"the parser of HCL failed: %v":                                                                           "correct the syntax near the reported line",
			"not HCL: %v":                                                                                            "correct the syntax at the reported position",
			"not HCL: %s":                                                                                            "correct the syntax at the reported position",
			"there is something after the object":                                                                    "write one object into a file of JSON",
			"not a JSON object: %v":                                                                                  "correct the JSON at the reported position",
			"is one object":                                                                                          "write one object",
			"is larger than any disk":                                                                                "write a smaller size",
			"Plugin block without a name":                                                                            `write plugin "NAME" { … }`,
			"Not a plugin name":                                                                                      "use letters, digits, dots, dashes and underscores, and start with a letter or a digit",
			"Block ignored":                                                                                          "remove the block: a plugin block has args, config, env_allowlist and sha256",
			"Setting ignored":                                                                                        "remove the setting: a plugin block has args, config, env_allowlist and sha256",
			"Not a checksum":                                                                                         "write the 64 hexadecimal digits that sha256sum prints",
			"Not a config block":                                                                                     "write config { … }",
			"Label on a config block":                                                                                "remove the label",
			"Two config blocks":                                                                                      "join the two blocks",
			"Setting and block of one name":                                                                          "write either the setting or the block",
			"Not a text":                                                                                             "write one text in quotes",
			"Template sequence":                                                                                      "write the value without %{ … }",
			"Not a string":                                                                                           "write a text in quotes",
			"Not a list of strings":                                                                                  `write a list such as ["a", "b"]`,
			"%s is not known, or not safe":                                                                           "name a cipher suite that Go considers secure, or remove the setting",
			"%s %v is greater than %s %v":                                                                            "write a smaller first duration, or a larger second one",
			"cidr or interface must say which address the network has":                                               "add one of the two settings",
			"cannot be false here: running tasks is all that an agent does":                                          "remove the setting",
			"the network of the node's own address has this name: set network_interface in place of it": "choose another name, or set network_interface",
		},
		internal: []string{"plugin %q: %s", "plugin %q: %s %v"},
	},
	{
		title:        "Plugins",
		intro:        "The log of the agent, `nomad-lite plugin list` and `nomad-lite plugin test` show them after the name of the plugin.",
		dirs:         []string{"plugins/host/catalog", "plugins/host/launch", "plugins/host/supervisor", "plugins/host/helperdir"},
		constructors: errorConstructors,
		remedies: map[string]string{
			"wrote %s on stdout, where only the handshake line may stand; a plugin logs to stderr": "let the plugin write to stderr",
			"not a regular file":                "put the program itself into the plugin directory",
			"%s: not a regular file":            "name the file of the program",
			"%s is not a regular file":          "name the file of the program",
			"its sha256 is %s, but %s wants %s": "install the program with this checksum, or change sha256 in the plugin block",
			"%s has changed":                    "restart the plugin: nomad-lite plugin restart NAME",
			"%s belongs to uid %d; it must belong to root or to uid %d, who runs it":         "chown the file or the directory",
			"builtin plugin %q: not a valid name":                                            "report the defect",
			"builtin plugin %q: named twice":                                                 "report the defect",
			"named at %s: %s":                                                                "put the program into the plugin directory, or remove the plugin block",
			"the link leads to %s, which does not exist":                                     "correct the link, or remove it",
			"the link leads out of the plugin directory, to %s":                              "copy the program into the plugin directory: nomad-lite plugin install FILE",
			"replaced by another plugin":                                                     "nothing: the plugin directory or the configuration has another program for the name",
			"removed from the configuration":                                                 "add the plugin block again, or stop the jobs that need the plugin",
			"no such driver":                                                                 "install the plugin of the driver: nomad-lite plugin list shows what there is",
			"no such hook":                                                                   "install the plugin of the hook",
			"no such device plugin":                                                          "install the device plugin",
			"no such plugin":                                                                 "correct the name: nomad-lite plugin list shows what there is",
			"not available":                                                                  "read the log of the agent: the plugin has failed, and is started again",
			"plugin is of unknown type: %q":                                                  "build the plugin for Nomad or nomad-lite",
			"it reports itself as %s, which is not a plugin name":                            "correct the name that the plugin reports",
			"failed to parse plugin version %s: malformed version":                           "correct the version that the plugin reports, such as v1.2.3",
			"plugin provided no compatible API versions: it names none":                      "correct the API versions that the plugin reports",
			"plugin provided invalid API versions: malformed version: %s":                    "correct the API versions that the plugin reports",
			"plugin provided no compatible API versions: it speaks %s, this host %s":         "install a version of the plugin for the API of the host",
			"the plugin rejects its configuration: %s":                                       "correct the config of the plugin block",
			"failed to parse config: %s":                                                     "correct the config of the plugin block: nomad-lite plugin inspect NAME shows its schema",
			"the hook subscribes to no hook point that this host knows":                      "install a version of the hook for this version of nomad-lite",
			"%s: it is a plugin of another program than Nomad (it refuses the magic cookie)": "install a plugin for Nomad or nomad-lite",
			"%s, its last words on stderr: %s":                                               "correct what the plugin reports",
			"%s, its last words on stderr:\n\t%s":                                            "correct what the plugin reports",
			"handshake line %s: protocol version %s is no number":                            "write nothing to stdout before the handshake; build the plugin with go-plugin or the SDK",
			"incompatible API version with plugin: it speaks version %d of Nomad's plugin protocol, not %d": "install a version of the plugin for this protocol",
			"unsupported plugin protocol %s: only grpc is spoken here":                                      "build the plugin with gRPC",
			"handshake line %s: socket %s is not an absolute path":                                          "build the plugin with go-plugin or the SDK",
			"handshake line %s: address %s is not host:port":                                                "build the plugin with go-plugin or the SDK",
			"handshake line %s: the plugin listens on %s, which is not a loopback address":                  "let the plugin listen on a unix socket or on loopback",
			"unknown address type %s in handshake line %s":                                                  "build the plugin with go-plugin or the SDK",
			"socket directory %s: longer than %d characters, a unix socket in it cannot be named":           "choose a data directory with a shorter path",
			"no answer":                                                       "see why the plugin blocks: its log is in the log of the agent",
			"%s: no answer within %s":                                         "see why the plugin blocks: its log is in the log of the agent",
			"out of descriptors or memory":                                    "raise the limits of the agent (LimitNOFILE), or free memory",
			"its socket %s does not exist":                                    "build the plugin with go-plugin or the SDK",
			"nobody listens on its socket %s":                                 "see why the plugin has ended: its log is in the log of the agent",
			"a process of uid %d listens on it, not the plugin":               "find the process: it uses the socket of the plugin",
			"process %d of uid %d listens on it, not the plugin":              "find the process: it uses the socket of the plugin",
			"%s: the process runs, and nothing answers gRPC on its socket %s": "see why the plugin blocks: its log is in the log of the agent",
		},
		internal: []string{"plugin supervisor has stopped", "another process reads it", "%s is %s and no pipe", "the recorded plugin process is gone"},
	},
	{
		title:        "Commands",
		intro:        "A command prints the message after its name, with the exit code of [its section](commands.md). The commands of Nomad that nomad-lite does not have are in [the command line](cli.md#nomads-commands).",
		dirs:         []string{"cmd/nomad-lite"},
		constructors: errorConstructors,
		remedies: map[string]string{
			"-batch-wait ask: there is no terminal for an answer":                                                     "write a time such as 30s",
			"-duration, -pprof-duration and -interval take a time; -interval may not be zero":                         "write times such as 30s",
			"-lang %s: a new %s is written in %s":                                                                     "name one of these languages",
			"-n and -c need -tail or -f":                                                                              "add -tail or -f",
			"-no-shutdown-delay is for -reschedule: a restart in place has no such delay":                             "leave the flag out, or add -reschedule",
			"-prepublish has no meaning here: a new key is used at once":                                              "leave the flag out",
			"-replace is for programs in Go, not in %s":                                                               "leave the flag out",
			"-watch-path %s=%s: no job has a task %q":                                                                 "correct the name of the task",
			"Configuration is invalid":                                                                                "correct the errors that are printed before",
			"Group %s not found within job %q; it has %s":                                                             "name one of these groups",
			"Job %q has not been stopped: its status is %q\n%s":                                                       "nothing: only a stopped job can be started",
			"No file or directory at %s":                                                                              "correct the path",
			"Only .nomad and .hcl files can be processed using nomad fmt":                                             "rename the file, or name another one",
			"Unable to resolve ID: %q\nNo job, allocation or node has an id with this beginning":                      "correct the id: nomad-lite job status lists the jobs",
			"Variable does not contain %q item; it has %s":                                                            "name one of these items",
			"allocation %q has no task %q; it has %s":                                                                 "name one of these tasks",
			"debug %s: the process has ended: %s":                                                                     "correct what the process reports",
			"driver %q cannot be used: %s":                                                                            "correct the reason: nomad-lite plugin list shows the drivers",
			"follow events: the agent has ended the stream":                                                           "run the command again",
			"the agent has ended the stream":                                                                          "run the command again",
			"job %q does not fit on this machine: %s":                                                                 "reduce the resources of the job",
			"job %q failed:\n%s":                                                                                      "correct what the tasks report",
			"job %q has no deployment to promote\nCanaries come from 'canary' in an update block of the job":          "nothing: only a deployment with canaries can be promoted",
			"job %q has no group %q, but %s":                                                                          "name one of these groups",
			"job %q has no group %q":                                                                                  "correct the name of the group",
			"job %q has no task %q there, but %s":                                                                     "name one of these tasks",
			"job %q has no task %q; it has %s":                                                                        "name one of these tasks",
			"job %q is not started again%s":                                                                           "correct the job file, and save it again",
			"job %q was removed before it had ended":                                                                  "run the job again",
			"no browser":                                                                                              "open the printed address in a browser",
			"no job has allocations":                                                                                  "run a job: nomad-lite job run FILE",
			"no task of allocation %q offers action %q, but %s":                                                       "name one of these actions",
			"no task of allocation %q offers an action\nActions come from action blocks in the tasks of a job":        "add an action block to a task of the job",
			"plugin serve: there is no builtin plugin %q, only %s":                                                    "name one of these plugins",
			"plugin test %s: that file is not executable":                                                             "chmod +x the file",
			"plugin test %s: there is no such file; is the plugin built?":                                             "build the plugin",
			"plugin %q has not started":                                                                               "read the log: it has the reason",
			"read deployment %q: the answer does not say how it stands":                                               "see nomad-lite deployment status; a server of another program may have answered",
			"read evaluation %q: the answer does not say how it stands":                                               "see nomad-lite eval status; a server of another program may have answered",
			"read the scheduler configuration: the answer has none":                                                   "check the address: a server of another program may have answered",
			"list allocations of job %q: the answer does not contain the status of allocation %q":                     "check the address: a server of another program may have answered",
			"restart %s: it is %s, and does not start again":                                                          "run the job again",
			"search the output of job %q: the agent does not search output: it is of Nomad, or of an earlier version": "search the output of the command: nomad-lite logs JOB | grep TEXT",
			"session left; the command has been ended":                                                                "nothing: a signal has ended the session",
			"standard input (-) is one job file, and is given twice":                                                  "name - once",
			"standard input is named twice with -":                                                                    "name - once",
			"stopped while it waited for plugin %s: nothing has run":                                                  "run the command again",
			"table %s has %d records that begin with %q: %s, %s …":                                                    "write more characters of the key",
			"there is nothing in a table %q; there is something in: %s":                                               "name one of these tables",
			"the agent has no plugin %s":                                                                              "see why in the log of the agent",
			"the jobs are being stopped":                                                                              "wait until the command has ended",
			"the server answered %s":                                                                                  "correct the URL of the job file",
			"the session was idle":                                                                                    "run nomad-lite ui again",
			"the session has ended: %s":                                                                               "run nomad-lite ui again",
			"the value starts with %c, and does not end with it":                                                      "close the quotes",
			"there is no file %s, and a namespace cannot be called that":                                              "correct the path or the name",
			"tls: ca_file %s: there is no certificate in it":                                                          "name a file with certificates in PEM",
			"unix_sockets: there is no group %q":                                                                      "create the group, or name another one",
			"Identifier must contain at least two characters. The id of the %s is given as %q":                        "write more characters of the id",
			"debug %s: the process has ended (%s) before it listened for a host: is the plugin built with the sdk?":   "build the plugin with the SDK",
			"unknown flag: -%s":                                                                                       "correct the name: -help lists the flags",
			"%s is module %s, not a checkout of %s":                                                                   "name a checkout of nomad-lite with -replace",
			"%s is neither a directory nor an executable file":                                                        "name a directory with source code, or a program",
			"%s: job %q is in another file, too":                                                                      "leave one of the files out",
			"%s: %q is not a part of a variable; there are path, namespace, items and modify_index":                   "write one of these parts",
			"%s: %q is not a part of a variable":                                                                      "remove it",
			"the agent does not answer":                                                                               "start the agent, or correct -address or NOMAD_ADDR",
			"permission denied":                                                                                       "set NOMAD_TOKEN to the content of the file token of the data directory",
			"%s is damaged: %d places, %d records can be read. An agent starts with those and keeps what it cannot read": "restore a backup, or start the agent with what remains",
			"another holder has the lock":       "try again when the lock is free, or wait with -max-retry",
			"output is missing":                 "the log of the agent has the reason; the event of the task has the number of bytes",
			"the connection to the agent broke": "run the command again",
			"ambiguous prefix":                  "write more characters of the id",
			"there is no room for it\nSee why: nomad-lite eval status %s": "free resources, or stop another job",
		},
		internal: []string{"%s%s\nJob not updated", "interrupted", "interrupted twice, the plugin was killed", "agent stopped", "another signal has ended the wait"},
	},
}

// docs/reference/errors.md has the refusals of jobs, and each message that the areas make.
func TestReferenceErrorsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Errors and remedies\n\n" +
		"This page is generated from the table of refusals of `runtime/job/admission` and from the messages in the code (`make reference`).\n" +
		"In a message, `…` stands for a name or a value. A message without a remedy states itself what to do. Errors of the operating system, of the network and of plugins follow a message after a colon; they are not listed.\n\n")
	b.WriteString("## Jobs that cannot run here\n\n" + formatJobRefusals())
	b.WriteString("\n## Invalid jobs\n\nThe texts are Nomad's. Before each of them, the program names the place in the job file: correct the attribute or the block there.\n\n")
	faults := findMessages(t, refusalArea{dirs: []string{"runtime/job/model"}, constructors: []string{"addFault"}})
	if len(faults) < 100 {
		t.Errorf("found %d faults of jobs", len(faults))
	}
	lines := map[string]bool{}
	for _, message := range faults {
		lines[formatMessage(message)] = true
	}
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	for _, area := range refusalAreas {
		messages := findMessages(t, area)
		if len(messages) < 30 {
			t.Errorf("%s: found %d messages", area.title, len(messages))
		}
		for _, known := range append(area.internal, slices.Collect(maps.Keys(area.remedies))...) {
			if !slices.Contains(messages, known) {
				t.Errorf("%s: the code does not have the message %q", area.title, known)
			}
		}
		remedies := map[string]string{} // two messages can differ only in their verbs
		for _, message := range messages {
			if slices.Contains(area.internal, message) {
				continue
			}
			line := formatMessage(message)
			remedies[line] = cmp.Or(area.remedies[message], remedies[line])
			if remedies[line] == "" && !statesRemedy.MatchString(line) {
				t.Errorf("%s: the message %q does not state what to do: add a sentence to it, or a remedy to the table", area.title, message)
			}
		}
		table := docpage.NewTable("Message", "Remedy")
		for _, line := range slices.Sorted(maps.Keys(remedies)) {
			table.AddRow(line, remedies[line])
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s", area.title, area.intro, table)
	}
	docpage.Check(t, "reference/errors.md", b.String())
}

func formatJobRefusals() string {
	effects := map[admission.RefusalEffect]string{admission.Accepts: "accepts", admission.Warns: "warns", admission.Rejects: "rejects"}
	table := docpage.NewTable("Refusal", "Part of the job", "Remedy", "API", "`job run`", "`job validate`", "`run`")
	for _, kind := range admission.RefusalKinds() {
		row := []string{docpage.Code(kind.ID), kind.RefusedPart, kind.Remedy}
		for _, caller := range []admission.CallerKind{admission.API, admission.Submit, admission.Validate, admission.Foreground} {
			row = append(row, effects[kind.EffectFor(caller)])
		}
		table.AddRow(row...)
	}
	return table.String()
}

// formatVerb matches verbs of package fmt without text between them, with the quotes around them.
var formatVerb = regexp.MustCompile(`(?:'?%(\[\d+\])?[-+# 0]*[\d.]*[a-zA-Z]'?)+`)

// statesRemedy matches a message that contains an instruction, or the form of a valid value.
var statesRemedy = regexp.MustCompile(`(?i)\b(add|and not|ask|be|build it|chmod|choose|correct|download|excludes?|export|give|in place of|it needs|it has|leave|like|list|name|needs?|nomad-lite|of which|print|remove|restore|run|see|set|split|start again|starts?|such as|takes?|try|use|wait|want|which|without|write)\b|is a block|is one block|\(.* is short|belong together|the command after it|there are|a number|http`)

// hasWord matches a message that does not only consist of values.
var hasWord = regexp.MustCompile(`\pL`)

// formatMessage returns a message as code, with "…" in place of its values.
func formatMessage(message string) string {
	message = strings.ReplaceAll(strings.TrimSpace(message), "\n", ". ")
	message = formatVerb.ReplaceAllString(strings.ReplaceAll(message, "%%", "\x00"), "…")
	return docpage.Code(strings.Join(strings.Fields(strings.ReplaceAll(message, "\x00", "%")), " "))
}

// findMessages returns the messages of an area in the order of the alphabet. A message that wraps another error with %w is none.
func findMessages(t *testing.T, area refusalArea) []string {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range area.dirs {
		root := filepath.Join("..", "..", filepath.FromSlash(dir))
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && slices.Contains([]string{"systemtest", "peertest", "testdata", "template"}, entry.Name()) {
				return filepath.SkipDir
			}
			if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && slices.Contains(area.constructors, calledName(call, area.constructors)) {
					if text := firstText(call); hasWord.MatchString(formatMessage(text)) && !strings.Contains(text, "%w") {
						found[text] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// calledName returns the name of the called function: with its package or receiver, or, if the constructors have it, without.
func calledName(call *ast.CallExpr, constructors []string) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if slices.Contains(constructors, f.Sel.Name) {
			return f.Sel.Name
		}
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// firstText returns the first argument of a call that is a text, or a sum with a text.
func firstText(call *ast.CallExpr) string {
	for _, argument := range call.Args {
		if text, ok := textOf(argument); ok {
			return text
		}
	}
	return ""
}

// textOf returns a text, or the texts of a sum with %s in place of the values in it.
func textOf(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, isText := textOf(e.X)
		right, isAlsoText := textOf(e.Y)
		if e.Op != token.ADD || !isText && !isAlsoText {
			return "", false
		}
		if !isText {
			left = "%s"
		}
		if !isAlsoText {
			right = "%s"
		}
		return left + right, true
	}
	return "", false
}
