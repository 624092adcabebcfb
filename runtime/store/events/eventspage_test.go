package events

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// topics are the event stream's topics.
var topics = []struct{ topic, payload, filterKeys string }{
	{"Job", "`Job`, and `Deleted` for a job that was removed", "id of the job"},
	{"Evaluation", "`Evaluation`", "ids of the evaluation, its job and its deployment"},
	{"Allocation", "`Allocation`, without its job; `Timeout` and `TimeoutReason` after `max_run_duration`", "ids of the allocation, its job and its deployment"},
	{"Deployment", "`Deployment`", "ids of the deployment and its job"},
	{"Node", "`Node`", "id of the node"},
	{"Service", "`Service`", "id of the registration, id of the job, name of the service"},
	{"Variable", "`Metadata` of the variable without its items, and `Deleted`", "path of the variable"},
	{"HostVolume", "`Volume`", "id, name and plugin of the volume"},
	{"ACLPolicy", "`ACLPolicy`; only a management token sees the topics of access control", "name of the policy"},
	{"ACLRole", "`ACLRole`", "id and name of the role"},
	{"ACLToken", "`ACLToken`, without its secret", "accessor id of the token"},
}

// eventTypes are the event types with their meanings.
var eventTypes = map[string]string{
	"JobRegistered":                 "a job was registered, or its status has changed",
	"JobDeregistered":               "a job was stopped or removed",
	"JobBatchDeregistered":          "the garbage collection has removed jobs",
	"EvaluationUpdated":             "an evaluation was created or has another status",
	"PlanResult":                    "the scheduler has placed, changed or stopped allocations",
	"AllocationUpdated":             "the node has reported the status of an allocation or of its tasks",
	"AllocationUpdateDesiredStatus": "a user or a drain has requested the stop of an allocation",
	"DeploymentStatusUpdate":        "a deployment was created or has another status",
	"DeploymentPromotion":           "the canaries of a deployment were promoted",
	"DeploymentAllocHealth":         "the health of allocations was set for a deployment",
	"NodeRegistration":              "the node was registered, or its properties have changed",
	"NodeDrain":                     "a drain of the node has started or ended",
	"NodeEligibility":               "the node accepts new allocations, or no longer accepts them",
	"NodeStreamEvent":               "the node has a new event, such as lost output or a full disk",
	"ServiceRegistration":           "an instance of a service was registered or changed",
	"ServiceDeregistration":         "an instance of a service was removed",
	"VariableUpdated":               "a variable was written or deleted",
	"HostVolumeRegistered":          "a host volume was created or changed",
	"HostVolumeDeleted":             "a host volume was deleted",
	"ACLPolicyUpserted":             "a policy was created or changed",
	"ACLPolicyDeleted":              "a policy was deleted",
	"ACLRoleUpserted":               "a role was created or changed",
	"ACLRoleDeleted":                "a role was deleted",
	"ACLTokenUpserted":              "a token was created or changed",
	"ACLTokenDeleted":               "a token was deleted, or has expired",
}

// runtimeDir is the directory with the package sources that the test reads.
var runtimeDir = filepath.Join("..", "..")

// docs/reference/events.md has each stream and task event type contained in the code.
func TestReferenceEventsPage(t *testing.T) {
	types := findEventTypes(t)
	for name := range eventTypes {
		if !types[name] {
			t.Errorf("the code has no events of the type %s", name)
		}
	}
	for name := range types {
		if eventTypes[name] == "" {
			t.Errorf("eventTypes does not have %s", name)
		}
	}
	var b strings.Builder
	b.WriteString("# Events and descriptions\n\n" +
		"This page is generated from the constants and comments of the code (`make reference`). `nomad-lite event stream` and [`/v1/event/stream`](api.md) show the events\n" +
		"of the stream, `nomad-lite alloc status` those of tasks.\n\n")
	b.WriteString("## Topics of the event stream\n\nA filter `Topic:KEY` selects the events of a topic whose filter keys contain KEY.\n\n")
	topicTable := docpage.NewTable("Topic", "Payload", "Filter keys")
	for _, topic := range topics {
		topicTable.AddRow(docpage.Code(topic.topic), topic.payload, topic.filterKeys)
	}
	b.WriteString(topicTable.String())
	b.WriteString("\n## Types of the event stream\n\nThe type is the operation that has changed the object: one operation causes events of several topics.\n\n")
	typeTable := docpage.NewTable("Type", "Meaning")
	for _, name := range slices.Sorted(maps.Keys(eventTypes)) {
		typeTable.AddRow(docpage.Code(name), eventTypes[name])
	}
	b.WriteString(typeTable.String())
	b.WriteString("\n## Events of tasks\n\nA task keeps its last ten events. A row is a cause of an event of the type.\n\n" + formatTaskEvents(t))
	b.WriteString("\n## Descriptions\n\nThe descriptions of allocations and deployments have Nomad's text.\n\n" + formatDescriptions(t))
	docpage.Check(t, "reference/events.md", b.String())
}

// findEventTypes returns the stream's event types: from the store's tables, from deletions, and from operations of its users.
func findEventTypes(t *testing.T) map[string]bool {
	t.Helper()
	types := map[string]bool{}
	add := func(e ast.Expr) {
		if text, ok := literalText(e); ok && text != "" {
			types[text] = true
		}
	}
	for _, dir := range []string{"store", "scheduler", filepath.Join("agent", "localnode")} {
		for _, file := range parseDir(t, filepath.Join(runtimeDir, dir)) {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					if name, ok := n.Type.(*ast.Ident); !ok || name.Name != "Event" {
						break
					}
					for _, element := range n.Elts {
						if field, ok := element.(*ast.KeyValueExpr); ok && field.Key.(*ast.Ident).Name == "Type" {
							add(field.Value)
						}
					}
				case *ast.ValueSpec:
					for i, name := range n.Names {
						if i < len(n.Values) && regexp.MustCompile(`^op[A-Z]`).MatchString(name.Name) {
							add(n.Values[i])
						}
						if values, ok := valueOf(n, i).(*ast.CompositeLit); ok && name.Name == "deletionEventTypes" {
							for _, element := range values.Elts {
								add(element.(*ast.KeyValueExpr).Value)
							}
						}
					}
				}
				return true
			})
		}
	}
	return types
}

func valueOf(spec *ast.ValueSpec, i int) ast.Expr {
	if i < len(spec.Values) {
		return spec.Values[i]
	}
	return nil
}

func literalText(e ast.Expr) (string, bool) {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}

// parseDir returns a package's files without its tests, by their paths.
func parseDir(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no Go files in %s: %v", dir, err)
	}
	files := map[string]*ast.File{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = file
	}
	return files
}

// stringConstants returns a package's string constants, by name.
func stringConstants(t *testing.T, dir string) map[string]string {
	t.Helper()
	constants := map[string]string{}
	for _, file := range parseDir(t, dir) {
		for _, declaration := range file.Decls {
			group, ok := declaration.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				spec := spec.(*ast.ValueSpec)
				for i, name := range spec.Names {
					if text, ok := literalText(valueOf(spec, i)); ok {
						constants[name.Name] = text
					}
				}
			}
		}
	}
	return constants
}

// formatTaskEvents returns a table of the functions in package model that make task events: the type, and the comment's text.
func formatTaskEvents(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/hashicorp/nomad/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	constants := stringConstants(t, strings.TrimSpace(string(dir)))
	maps.Copy(constants, stringConstants(t, filepath.Join(runtimeDir, "job", "model")))
	functions := map[string]*ast.FuncDecl{}
	for _, declaration := range parseDir(t, filepath.Join(runtimeDir, "job", "model"))[filepath.Join(runtimeDir, "job", "model", "taskevent.go")].Decls {
		if f, ok := declaration.(*ast.FuncDecl); ok && returnsTaskEvent(f) {
			functions[f.Name.Name] = f
		}
	}
	type row struct{ eventType, meaning string }
	var rows []row
	for name, f := range functions {
		if !ast.IsExported(name) {
			continue
		}
		eventType := taskEventType(f, functions, constants)
		meaning := strings.Join(strings.Fields(f.Doc.Text()), " ")
		if eventType == "" || !strings.HasPrefix(meaning, name+" ") {
			t.Errorf("model.%s has the type %q and the comment %q", name, eventType, meaning)
			continue
		}
		meaning, _, _ = strings.Cut(strings.TrimPrefix(meaning, name+" "), ". ")
		rows = append(rows, row{eventType, strings.ToUpper(meaning[:1]) + strings.TrimSuffix(meaning[1:], ".")})
	}
	if len(rows) < 30 {
		t.Fatalf("found %d functions that make task events", len(rows))
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.eventType+"\n"+a.meaning, b.eventType+"\n"+b.meaning) })
	table := docpage.NewTable("Type", "Meaning")
	for i, r := range rows {
		eventType := docpage.Code(r.eventType)
		if i > 0 && rows[i-1].eventType == r.eventType {
			eventType = ""
		}
		table.AddRow(eventType, r.meaning)
	}
	return table.String()
}

func returnsTaskEvent(f *ast.FuncDecl) bool {
	if f.Type.Results == nil || len(f.Type.Results.List) != 1 {
		return false
	}
	pointer, ok := f.Type.Results.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	name, ok := pointer.X.(*ast.SelectorExpr)
	return ok && name.Sel.Name == "TaskEvent"
}

// taskEventType returns the type of the events that a function makes: a constant in its body, or the type from the function it
// calls.
func taskEventType(f *ast.FuncDecl, functions map[string]*ast.FuncDecl, constants map[string]string) string {
	var found string
	ast.Inspect(f.Body, func(n ast.Node) bool {
		name, ok := n.(*ast.Ident)
		if !ok || found != "" {
			return found == ""
		}
		if other := functions[name.Name]; other != nil && other != f {
			found = taskEventType(other, functions, constants)
		} else if strings.HasPrefix(name.Name, "Task") {
			found = constants[name.Name]
		}
		return true
	})
	return found
}

func formatDescriptions(t *testing.T) string {
	t.Helper()
	table := docpage.NewTable("Object", "Status", "Description")
	for _, states := range []api.TaskState{{State: model.TaskPending}, {State: model.TaskRunning}, {State: model.TaskDead}, {State: model.TaskDead, Failed: true}} {
		status, description := model.AllocClientStatus(map[string]*api.TaskState{"task": &states})
		table.AddRow("allocation, client", docpage.Code(status), description)
	}
	table.AddRow("allocation, client", docpage.Code(api.AllocClientStatusComplete), model.MaxRunDurationExceeded)
	table.AddRow("allocation, client", docpage.Code(api.AllocClientStatusFailed), "Unable to add allocation due to error: …")
	constants := stringConstants(t, filepath.Join(runtimeDir, "job", "model"))
	for _, kind := range []struct{ object, names string }{
		{"allocation, desired", `^Alloc(NotNeeded|Updating|Migrating|Rescheduled)$`},
		{"deployment", `^Deployment[A-Z]`},
	} {
		var descriptions []string
		for name, text := range constants {
			if regexp.MustCompile(kind.names).MatchString(name) {
				descriptions = append(descriptions, strings.NewReplacer("%s", "…", "%d", "N").Replace(text))
			}
		}
		if len(descriptions) < 4 {
			t.Errorf("found %d descriptions of %s", len(descriptions), kind.object)
		}
		slices.Sort(descriptions)
		for _, text := range descriptions {
			table.AddRow(kind.object, "", text)
		}
	}
	return table.String()
}
