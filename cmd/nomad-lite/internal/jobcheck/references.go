package jobcheck

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// EnvSources are the variables that tasks can have besides the variables of their job.
type EnvSources struct {
	// InheritedHostEnv are the variables of the agent that tasks inherit. Nil means that they are unknown.
	InheritedHostEnv map[string]string
	// CapabilitiesByDriver maps driver names to capabilities. The isolation of other drivers is unknown, except docker's.
	CapabilitiesByDriver map[string]*driver.Capabilities
	// HasOperatorHooks means that hooks of the agent's configuration may set variables of any task.
	HasOperatorHooks bool
}

// WarnUnsetReferences prints a warning for each ${NAME} in a canonical valid job that stays unresolved when a task starts, because
// nothing can set the variable NAME, and for each service whose name is invalid with the values of its references. It does not
// check references to nodes and to secrets.
func WarnUnsetReferences(j *jobfile.File, s *cli.Streams, sources EnvSources) error {
	w := referenceWarnings{file: j, sources: sources, printed: make(map[string]bool)}
	for _, group := range j.Job.TaskGroups {
		w.checkGroup(group)
	}
	return j.SortAndPrintDiagnostics(s, w.diags)
}

type referenceWarnings struct {
	file    *jobfile.File
	sources EnvSources
	printed map[string]bool // keys of diagnostics, because several tasks have the meta of their group
	diags   hcl.Diagnostics
}

// referenceScope is a task, or a group's part outside of its tasks, with the environment that resolves its references.
type referenceScope struct {
	*referenceWarnings
	path []string // path of the group or the task
	env  *taskenv.Env
	// laterNames are variables that are set after the env block was resolved.
	laterNames []string
	// isSetInCluster reports whether a part of the job that only a cluster runs sets a variable. Its refusal is another finding.
	isSetInCluster func(name string) bool
	// mayInherit means that the task can have unknown variables of the agent.
	mayInherit bool
}

func (w *referenceWarnings) checkGroup(group *api.TaskGroup) {
	alloc := newPlaceholderAlloc(w.file.Job, group)
	path := []string{"group", *group.Name}
	scope := referenceScope{
		referenceWarnings: w, path: path, env: taskenv.NewBuilder(placeholderNode, alloc, taskenv.Task{}).Build(),
		isSetInCluster: func(string) bool { return false },
	}
	scope.checkServices(group.Services)
	for i, n := range group.Networks {
		network := []string{"network", strconv.Itoa(i)}
		scope.checkText(n.Hostname, append(network, "hostname")...)
		if n.CNI != nil {
			scope.checkValues(n.CNI.Args, append(network, "cni", "args")...)
		}
	}
	for _, task := range group.Tasks {
		if scope, isKnown := w.newTaskScope(alloc, group, task); isKnown {
			scope.checkTask(group, task)
		}
	}
}

// newTaskScope returns the scope of a task. isKnown is false if a hook or a template of the task can set any variable.
func (w *referenceWarnings) newTaskScope(alloc taskenv.Alloc, group *api.TaskGroup, task *api.Task) (scope *referenceScope, isKnown bool) {
	attached := slices.ContainsFunc(model.HookAttachments(w.file.Job), func(at model.HookAttachment) bool {
		return (at.Group == "" || at.Group == *group.Name) && (at.Task == "" || at.Task == task.Name)
	})
	if attached || w.sources.HasOperatorHooks {
		return nil, false
	}
	hasConnect := slices.ContainsFunc(group.Services, func(s *api.Service) bool { return s.Connect != nil })
	scope = &referenceScope{referenceWarnings: w, path: jobfile.TaskBlockPath(group, task), isSetInCluster: func(name string) bool {
		return hasConnect && strings.HasPrefix(name, "NOMAD_UPSTREAM_") || task.CSIPluginConfig != nil && name == "CSI_ENDPOINT"
	}}
	for _, t := range task.Templates {
		if !pointer.Value(t.Envvars) {
			continue
		}
		names, isComplete := template.EnvNames(pointer.Value(t.EmbeddedTmpl), pointer.Value(t.LeftDelim), pointer.Value(t.RightDelim))
		if pointer.Value(t.SourcePath) != "" || !isComplete {
			return nil, false
		}
		scope.laterNames = append(scope.laterNames, names...)
	}
	isolation := w.isolationOf(task.Driver)
	scope.mayInherit = w.sources.InheritedHostEnv == nil && isolation != driver.FSIsolationImage
	builder := taskenv.NewBuilder(placeholderNode, alloc, taskenv.Task{Name: task.Name, Meta: task.Meta, EnvBlock: task.Env, CPUMHz: 1, MemoryMB: 1, MemoryMaxMB: 1})
	builder.SetDirs(placeholderDirs, isolation)
	builder.SetHostEnv(w.sources.InheritedHostEnv)
	builder.SetIdentityTokens(placeholderTokens(task))
	scope.env = builder.Build()
	return scope, true
}

func (w *referenceWarnings) isolationOf(driverName string) driver.FSIsolation {
	switch c := w.sources.CapabilitiesByDriver[driverName]; {
	case c != nil:
		return c.FSIsolation
	case driverName == docker.Name:
		return driver.FSIsolationImage
	}
	return driver.FSIsolationNone
}

// placeholder is the value of variables whose value is known only when the task starts. It is valid in a service name.
const placeholder = "0"

var placeholderNode = taskenv.Node{
	NodeFacts:    model.NodeFacts{ID: placeholder, Name: placeholder, Datacenter: placeholder, Region: placeholder, Class: placeholder, Pool: placeholder},
	ParentCgroup: placeholder,
}

var placeholderDirs = hook.TaskDir{
	AllocDir: placeholder, SharedAllocDir: placeholder, LocalDir: placeholder, SecretsDir: placeholder,
	UnveiledAllocDir: placeholder, UnveiledTaskDir: placeholder, UnveiledSecretsDir: placeholder,
}

// taskVars returns the variables that each task has besides the variables of its allocation.
func taskVars() map[string]string {
	builder := taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{Name: placeholder, CPUMHz: 1, MemoryMB: 1, MemoryMaxMB: 1})
	builder.SetDirs(placeholderDirs, driver.FSIsolationNone)
	return builder.Build().Vars()
}

// newPlaceholderAlloc returns an allocation of a group, with a placeholder for each value that a placement decides.
func newPlaceholderAlloc(job *api.Job, group *api.TaskGroup) taskenv.Alloc {
	granted := &api.AllocatedResources{Tasks: make(map[string]*api.AllocatedTaskResources)}
	for _, n := range group.Networks {
		for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			granted.Shared.Ports = append(granted.Shared.Ports, api.PortMapping{Label: p.Label})
		}
	}
	for _, task := range group.Tasks {
		granted.Tasks[task.Name] = &api.AllocatedTaskResources{}
		if task.Resources == nil {
			continue
		}
		for _, n := range task.Resources.Networks {
			// The variables for an IPv4 address have other names than those for an IPv6 address.
			for _, ip := range []string{"192.0.2.1", "2001:db8::1"} {
				granted.Tasks[task.Name].Networks = append(granted.Tasks[task.Name].Networks, &api.NetworkResource{IP: ip, ReservedPorts: n.ReservedPorts, DynamicPorts: n.DynamicPorts})
			}
		}
	}
	child := *job
	if child.ParameterizedJob != nil {
		child.Dispatched, child.Meta = true, maps.Clone(job.Meta)
		for _, key := range child.ParameterizedJob.MetaRequired {
			if child.Meta == nil {
				child.Meta = make(map[string]string)
			}
			child.Meta[key] = placeholder
		}
	}
	if model.CanHaveChildren(job) {
		child.ParentID = job.ID
	}
	alloc := taskenv.NewAlloc(&api.Allocation{
		ID: placeholder, Name: model.AllocName(job, group, 0), Namespace: *job.Namespace, JobID: *job.ID, Job: &child, TaskGroup: *group.Name, AllocatedResources: granted,
	})
	if model.GroupNetworkUnlessHost(group) != nil {
		alloc.Network = &taskenv.NetworkStatus{Interface: placeholder, Address: placeholder}
	}
	return alloc
}

func placeholderTokens(task *api.Task) map[string]string {
	tokens := make(map[string]string)
	for _, id := range append([]*api.WorkloadIdentity{task.Identity}, task.Identities...) {
		if id != nil && id.Env {
			tokens[id.Name] = placeholder
		}
	}
	return tokens
}

func (c *referenceScope) checkTask(group *api.TaskGroup, task *api.Task) {
	job := c.file.Job
	c.checkMeta(job.Meta, "meta")
	c.checkMeta(group.Meta, "group", *group.Name, "meta")
	c.checkMeta(task.Meta, append(slices.Clone(c.path), "meta")...)
	for _, name := range slices.Sorted(maps.Keys(task.Env)) {
		c.checkResolvedText(task.Env[name], c.env.Vars()[name], append(slices.Clone(c.path), "env", name)...)
	}
	c.checkConfig(task.Config)
	c.checkServices(task.Services)
	for i, a := range task.Artifacts {
		artifact := []string{"artifact", strconv.Itoa(i)}
		c.checkText(pointer.Value(a.GetterSource), append(artifact, "source")...)
		c.checkText(pointer.Value(a.RelativeDest), append(artifact, "destination")...)
		c.checkValues(a.GetterOptions, append(artifact, "options")...)
		c.checkValues(a.GetterHeaders, append(artifact, "headers")...)
	}
	for i, t := range task.Templates {
		c.checkText(pointer.Value(t.SourcePath), "template", strconv.Itoa(i), "source")
		c.checkText(pointer.Value(t.DestPath), "template", strconv.Itoa(i), "destination")
	}
}

// checkMeta checks the values of a meta block, except the attachments of hooks, which the hooks read.
func (c *referenceScope) checkMeta(meta map[string]string, path ...string) {
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if !strings.HasPrefix(key, "lite_") {
			c.checkResolvedText(meta[key], c.env.Vars()["NOMAD_META_"+key], append(slices.Clone(path), key)...)
		}
	}
}

func (c *referenceScope) checkServices(services []*api.Service) {
	for i, s := range services {
		service := []string{"service", strconv.Itoa(i)}
		c.checkServiceName(s.Name, append(service, "name")...)
		c.checkText(s.PortLabel, append(service, "port")...)
		c.checkText(s.Address, append(service, "address")...)
		c.checkText(strings.Join(s.Tags, "\n"), append(service, "tags")...)
		c.checkText(strings.Join(s.CanaryTags, "\n"), append(service, "canary_tags")...)
		for k, check := range s.Checks {
			at := append(slices.Clone(service), "check", strconv.Itoa(k))
			for _, field := range []struct{ name, text string }{
				{"name", check.Name}, {"type", check.Type}, {"port", check.PortLabel}, {"protocol", check.Protocol}, {"method", check.Method},
				{"path", check.Path}, {"command", check.Command}, {"grpc_service", check.GRPCService}, {"args", strings.Join(check.Args, "\n")},
			} {
				if field.text != fmt.Sprintf("service: %q check", s.Name) { // the default name repeats the name of the service
					c.checkText(field.text, append(slices.Clone(at), field.name)...)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(check.Header)) {
				c.checkText(name+"\n"+strings.Join(check.Header[name], "\n"), append(slices.Clone(at), "header", name)...)
			}
		}
	}
}

// checkServiceName warns of a name that is invalid with the values of its references, if the job decides all of them.
func (c *referenceScope) checkServiceName(name string, path ...string) {
	names := taskenv.References(name)
	dependsOnNode := slices.ContainsFunc(names, func(name string) bool { return !isEnvName(name) || c.mayInherit })
	if c.checkText(name, path...) || len(names) == 0 || dependsOnNode {
		return
	}
	resolved := c.env.ReplaceReferences(name)
	if reason := model.ServiceNameFault(resolved); reason != "" && !strings.Contains(resolved, "${") {
		c.warn(fmt.Sprintf("the name of the service is %q when the task starts, and is then refused: %s", resolved, reason), "", slices.Concat(c.path, path))
	}
}

func (c *referenceScope) checkValues(texts map[string]string, path ...string) {
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		c.checkText(texts[key], append(slices.Clone(path), key)...)
	}
}

// checkText checks a text below the scope's path. It returns true if it has found an unset reference.
func (c *referenceScope) checkText(text string, path ...string) (hasUnset bool) {
	return c.warnUnset(c.env.UnresolvedReferences(text), "the text stays as it is", slices.Concat(c.path, path))
}

// checkResolvedText checks a text whose value in the environment is resolved. It warns of the references in both.
func (c *referenceScope) checkResolvedText(text, resolved string, path ...string) {
	names := taskenv.References(text)
	unset := slices.DeleteFunc(taskenv.References(resolved), func(name string) bool { return !slices.Contains(names, name) })
	c.warnUnset(unset, "the text stays as it is", path)
}

// checkConfig checks a config block, whose references must be set.
func (c *referenceScope) checkConfig(config map[string]any) {
	vars := c.env.Vars()
	for _, r := range block.References(config) {
		root, _, _ := strings.Cut(r.Variable, ".")
		isSet := false
		for name := range vars {
			isSet = isSet || name == r.Variable || !r.IsEnvItem && (name == root || strings.HasPrefix(name, root+"."))
		}
		if !isSet && r.Variable != "env" {
			c.warnUnset([]string{r.Variable}, "the task fails when it is started", append(slices.Clone(c.path), "config", r.Argument))
		}
	}
}

// warnUnset adds a warning for each of the names that nothing can set. It returns true if there are such names.
func (c *referenceScope) warnUnset(names []string, consequence string, path []string) (hasUnset bool) {
	for _, name := range names {
		if !isEnvName(name) || slices.Contains(c.laterNames, name) || c.isSetInCluster(name) || c.mayInherit && mayAgentHave(name) {
			continue
		}
		hasUnset = true
		c.warn(fmt.Sprintf("nothing sets ${%s}: %s%s", name, consequence, c.hintFor(name)), name, path)
	}
	return hasUnset
}

// hintFor suggests a variable, or lists the ports for a variable of a port.
func (c *referenceScope) hintFor(name string) string {
	vars := c.env.Vars()
	if _, isTaskVar := taskVars()[name]; isTaskVar && vars[name] == "" {
		return ". Only parts of a task can refer to it"
	}
	known := slices.Concat(slices.Sorted(maps.Keys(vars)), c.laterNames)
	for _, prefix := range []string{"NOMAD_PORT_", "NOMAD_HOST_PORT_", "NOMAD_ADDR_", "NOMAD_IP_", "NOMAD_ALLOC_PORT_"} {
		label, isPort := strings.CutPrefix(name, prefix)
		if !isPort {
			continue
		}
		var labels []string
		for _, v := range known {
			if l, ok := strings.CutPrefix(v, prefix); ok {
				labels = append(labels, l)
			}
		}
		if len(labels) == 0 {
			return fmt.Sprintf(". The group has no ports: write port %q {} in its network block", label)
		}
		if near := model.ClosestSimilarName(label, labels); near != "" {
			return fmt.Sprintf(". Did you mean ${%s%s}?", prefix, near)
		}
		return ". The ports of the group are " + strings.Join(labels, ", ")
	}
	const minLength = 6 // shorter names are similar to too many others
	if near := model.ClosestSimilarName(name, known); near != "" && len(name) >= minLength {
		return fmt.Sprintf(". Did you mean ${%s}?", near)
	}
	return ""
}

func (w *referenceWarnings) warn(text, name string, path []string) {
	diag := w.file.NewWarningDiagnostic(path, text)
	if key := fmt.Sprint(path, text); !w.printed[key] {
		w.printed[key] = true
		if name != "" {
			w.narrowToReference(diag, name)
		}
		w.diags = append(w.diags, diag)
	}
}

// narrowToReference moves the range of a diagnostic to the reference in the source text, if the range or, for a block, the text after
// its header contains the reference.
func (w *referenceWarnings) narrowToReference(diag *hcl.Diagnostic, name string) {
	if diag.Subject == nil {
		return
	}
	source := w.file.Parsed.SourceTextByFileName[diag.Subject.Filename]
	start := min(diag.Subject.Start.Byte, len(source))
	reference := "${" + name + "}"
	offset := bytes.Index(source[start:], []byte(reference))
	if offset < 0 {
		return
	}
	isBlock := bytes.HasPrefix(bytes.TrimLeft(source[diag.Subject.End.Byte:], " "), []byte("{"))
	if start += offset; start > diag.Subject.End.Byte && !isBlock {
		return
	}
	line := bytes.Count(source[:start], []byte("\n")) + 1
	column := start - (bytes.LastIndexByte(source[:start], '\n') + 1) + 1
	diag.Subject = &hcl.Range{
		Filename: diag.Subject.Filename,
		Start:    hcl.Pos{Line: line, Column: column, Byte: start},
		End:      hcl.Pos{Line: line, Column: column + len(reference), Byte: start + len(reference)},
	}
}

// isEnvName reports whether a name in a reference is the name of an environment variable, and neither of a node's property nor of a
// value in a secret block, which have their own checks.
func isEnvName(name string) bool {
	if name[0] >= '0' && name[0] <= '9' {
		return false
	}
	root, _, _ := strings.Cut(name, ".")
	return !slices.Contains([]string{"attr", "meta", "node", "secret"}, root)
}

// mayAgentHave reports whether an agent can have a variable in its environment that its tasks inherit: any variable except those
// that only a placement sets.
func mayAgentHave(name string) bool {
	rest, isNomad := strings.CutPrefix(name, "NOMAD_")
	return !isNomad || slices.Contains(clientVars, rest) || strings.HasPrefix(rest, "VAR_") || strings.HasPrefix(rest, "LITE_") || strings.HasPrefix(rest, "CLI_")
}

// clientVars are the variables of Nomad's clients, without the prefix NOMAD_.
var clientVars = []string{
	"ADDR", "REGION", "NAMESPACE", "TOKEN", "HTTP_AUTH", "CACERT", "CAPATH", "CLIENT_CERT", "CLIENT_KEY", "TLS_SERVER_NAME", "SKIP_VERIFY", "LICENSE", "LICENSE_PATH", "LOG_LEVEL",
}
