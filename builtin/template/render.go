package template

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/nomad-lite/nomad-lite/internal/templatetext"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

const (
	maxTemplateBodyExecutions = 100_000 // maximum executions of loop and template bodies in one rendering pass
	maxNestingDepth           = 1000    // maximum nesting of template calls, and of values
)

// renderPass is one execution of a template. During the pass, the current time
// and the sequence of random numbers are fixed.
type renderPass struct {
	*evaluationRequest
	ctx                    context.Context
	data                   evaluationData
	usesTime               bool       // true after a template function has returned the current time
	randomNumbers          *rand.Rand // nil if the template has not used random numbers
	templateBodyExecutions int
	templateCallDepth      int
	missingSources         map[sourceQuery]bool
}

// parsedTemplate is a parsed template, with inserted calls that count its executed bodies.
type parsedTemplate struct{ goTemplate *template.Template }

// compileTemplate inserts calls of functions with these names into every body of a loop or
// template, and before and after each call of a template.
const (
	bodyStartFuncName          = "_step"
	beforeTemplateCallFuncName = "_enter"
	afterTemplateCallFuncName  = "_leave"
)

// compileTemplate parses a template. Its errors are always permanent.
func compileTemplate(e *evaluationRequest) (*parsedTemplate, error) {
	if templatetext.BlockDepth(e.Text, e.LeftDelim) > templatetext.MaxBlockDepth {
		return nil, permanentErrorf("template: %s: blocks are nested more than %d deep", e.Name, templatetext.MaxBlockDepth)
	}
	missing := "missingkey=zero"
	if e.ErrMissingKey {
		missing = "missingkey=error"
	}
	// The methods of a nil renderPass are replaced by the methods of the actual pass
	// before each execution.
	t, err := template.New(e.Name).Option(missing).Delims(e.LeftDelim, e.RightDelim).Funcs(pureFuncs()).Funcs((*renderPass)(nil).renderPassFuncs()).Parse(e.Text)
	if err != nil {
		return nil, permanentError{err}
	}
	for _, part := range t.Templates() {
		if part.Tree != nil {
			insertBodyExecutionCounters(part.Tree, part.Root)
		}
	}
	return &parsedTemplate{t}, nil
}

// insertBodyExecutionCounters adds a call of countTemplateBodyExecution to the list and to every body in it, so
// that the execution fails after maxTemplateBodyExecutions: text/template cannot be cancelled,
// and {{range 1000000000000}} would keep a CPU busy for hours.
func insertBodyExecutionCounters(tree *parse.Tree, list *parse.ListNode) {
	if list == nil {
		return
	}
	nodes := []parse.Node{newFuncCallNode(tree, list.Pos, bodyStartFuncName)}
	for _, n := range list.Nodes {
		if _, calls := n.(*parse.TemplateNode); calls {
			nodes = append(nodes, newFuncCallNode(tree, n.Position(), beforeTemplateCallFuncName), n, newFuncCallNode(tree, n.Position(), afterTemplateCallFuncName))
			continue
		}
		nodes = append(nodes, n)
		switch n := n.(type) {
		case *parse.RangeNode:
			insertBodyExecutionCounters(tree, n.List)
			insertBodyExecutionCounters(tree, n.ElseList)
		case *parse.IfNode:
			insertBranchBodyExecutionCounters(tree, &n.BranchNode)
		case *parse.WithNode:
			insertBranchBodyExecutionCounters(tree, &n.BranchNode)
		}
	}
	list.Nodes = nodes
}

// insertBranchBodyExecutionCounters calls insertBodyExecutionCounters for both bodies of an if or
// with.
func insertBranchBodyExecutionCounters(tree *parse.Tree, n *parse.BranchNode) {
	insertBodyExecutionCounters(tree, n.List)
	insertBodyExecutionCounters(tree, n.ElseList)
}

// newFuncCallNode returns the parsed form of {{ function }}.
func newFuncCallNode(tree *parse.Tree, pos parse.Pos, function string) parse.Node {
	name := parse.NewIdentifier(function).SetTree(tree).SetPos(pos)
	command := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pos, Args: []parse.Node{name}}
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: pos, Pipe: &parse.PipeNode{NodeType: parse.NodePipe, Pos: pos, Cmds: []*parse.CommandNode{command}}}
}

// execute renders a template on a thread that cannot access files; the template
// function file opens files on a thread of its own. If data are missing, the
// returned text must not be used.
func (pa *parsedTemplate) execute(p *renderPass) (text string, err error) {
	var out limitedBuffer
	err = runOnThreadConfinedToDir(noAccessibleDir, func(*os.Root) error { return pa.executeRecoveringPanics(p, &out) })
	var permanentErr permanentError
	switch {
	case err == nil:
		return out.String(), nil
	case errors.As(err, &permanentErr):
		return "", permanentError{err}
	case len(p.missingSources) > 0 && p.ctx.Err() == nil:
		return "", nil // the error is ignored, because the missing data may be its cause
	}
	return "", err
}

// executeRecoveringPanics executes a template. It converts a panic into an error,
// because the process serves other tasks too.
func (pa *parsedTemplate) executeRecoveringPanics(p *renderPass, out *limitedBuffer) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	t, err := pa.goTemplate.Clone()
	if err != nil {
		return err
	}
	err = t.Funcs(p.renderPassFuncs()).Execute(out, nil)
	if errors.Is(err, errOutputTooLarge) {
		err = fmt.Errorf("template: %s: %w", t.Name(), err) // adds the template name, which errors of the output buffer lack
	}
	return err
}

var errOutputTooLarge = fmt.Errorf("more than %d bytes come of it", maxContentSize)

// limitedBuffer is a buffer with a maximum size.
type limitedBuffer struct{ bytes.Buffer }

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxContentSize {
		return 0, errOutputTooLarge
	}
	return l.Buffer.Write(b)
}

// renderPassFuncs returns the template functions whose results depend on the rendering pass.
func (p *renderPass) renderPassFuncs() template.FuncMap {
	all := template.FuncMap{
		bodyStartFuncName:          p.countTemplateBodyExecution,
		beforeTemplateCallFuncName: p.countNestedTemplateCall,
		afterTemplateCallFuncName:  func() string { p.templateCallDepth--; return "" },
		"env": func(name string) (string, error) {
			value, _, err := p.lookupEnvOrNodeAttribute(name)
			return value, err
		},
		"mustEnv":      p.mustEnv,
		"envOrDefault": p.envOrDefault,
		"file":         p.readFileOrMarkMissing,
		"loop":         p.loopNumbers,
		"scratch":      newScratchFunc(),
		"sockaddr":     evaluateSockaddr,
		"timestamp":    p.timestamp,

		"nomadVar":         p.nomadVar,
		"nomadVarExists":   p.nomadVarExists,
		"nomadVarList":     func(prefix ...string) ([]nomadVarMeta, error) { return p.nomadVarList(false, prefix) },
		"nomadVarListSafe": func(prefix ...string) ([]nomadVarMeta, error) { return p.nomadVarList(true, prefix) },
		"nomadService":     p.nomadService,
		"nomadServices":    p.nomadServices,
		"service":          p.service,
		"services":         p.nomadServices,
	}
	maps.Copy(all, p.renderPassSprigFuncs())
	for name, why := range unsupportedFuncs() {
		all[name] = newFailingFunc(name, why)
	}
	if p != nil {
		for _, name := range p.DeniedFunctions {
			all[name] = newFailingFunc(name, disabledReason)
		}
	}
	return wrapFuncsToAcceptVarItems(all)
}

// newFailingFunc returns a function that always fails.
func newFailingFunc(name, why string) func(...any) (string, error) {
	return func(...any) (string, error) { return "", permanentErrorf("%s: %s", name, why) }
}

func (p *renderPass) countTemplateBodyExecution() (string, error) {
	if p.templateBodyExecutions++; p.templateBodyExecutions > maxTemplateBodyExecutions {
		return "", fmt.Errorf("more than %d steps", maxTemplateBodyExecutions)
	}
	return "", p.ctx.Err()
}

func (p *renderPass) countNestedTemplateCall() (string, error) {
	if p.templateCallDepth++; p.templateCallDepth > maxNestingDepth {
		return "", fmt.Errorf("templates call each other more than %d deep", maxNestingDepth)
	}
	return "", nil
}

// loopNumbers is the template function loop. It returns the numbers from 0 or,
// with two arguments, from the first one, up to the last argument, exclusive.
func (p *renderPass) loopNumbers(bounds ...any) ([]int64, error) {
	ints := make([]int64, len(bounds))
	for i, b := range bounds {
		n, err := parseEmptyAsZero(func(s string) (n int64, err error) { _, err = fmt.Sscan(s, &n); return n, err })(fmt.Sprint(b))
		if err != nil {
			return nil, fmt.Errorf("loop: %v is no whole number", b)
		}
		ints[i] = n
	}
	var loopStart, to int64
	switch len(ints) {
	case 1:
		to = ints[0]
	case 2:
		loopStart, to = ints[0], ints[1]
	default:
		return nil, errors.New("loop takes one number or two")
	}
	if to-loopStart > maxTemplateBodyExecutions {
		return nil, fmt.Errorf("a loop of more than %d steps", maxTemplateBodyExecutions)
	}
	var numbers []int64
	for ; loopStart < to; loopStart++ {
		numbers = append(numbers, loopStart)
	}
	return numbers, nil
}

// lookupEnvOrNodeAttribute returns the value of an environment variable of the task. Attributes of the node
// (attr., meta., node.) are also available.
func (p *renderPass) lookupEnvOrNodeAttribute(name string) (value string, ok bool, err error) {
	if value, ok = p.Env[name]; ok {
		return value, true, nil
	}
	if area, _, _ := strings.Cut(name, "."); !slices.Contains([]string{"attr", "meta", "node"}, area) {
		return "", false, nil
	}
	reference := "${" + name + "}"
	value, err = p.data.interpolate(p.ctx, reference)
	if err != nil || value == reference {
		return "", false, err
	}
	return value, true, nil
}

func (p *renderPass) mustEnv(name string) (string, error) {
	value, ok, err := p.lookupEnvOrNodeAttribute(name)
	if err == nil && !ok {
		err = fmt.Errorf("the task has no variable %s", name)
	}
	return value, err
}

func (p *renderPass) envOrDefault(name, otherwise string) (string, error) {
	value, ok, err := p.lookupEnvOrNodeAttribute(name)
	if !ok {
		value = otherwise
	}
	return value, err
}

func (p *renderPass) readFileOrMarkMissing(path string) (string, error) {
	q := sourceQuery{fileKind, path}
	file, err := p.data.readSource(p.ctx, q)
	if err == nil && !file.Exists {
		p.missingSources[q] = true
	}
	return file.FileText, err
}

// stripJobNamespaceFromPath removes the namespace and the region ("@namespace.region") from a
// path. It returns an error if they are not the namespace and the region of the job.
func (p *renderPass) stripJobNamespaceFromPath(path string) (string, error) {
	bare, where, other := strings.Cut(strings.Trim(path, "/"), "@")
	namespace, region, _ := strings.Cut(where, ".")
	if other && (namespace != p.Namespace || region != "" && region != p.Region) {
		return "", permanentErrorf("%q is in another namespace or region than the job: only %s.%s can be read", path, p.Namespace, p.Region)
	}
	return bare, nil
}

func (p *renderPass) readVariable(kind, path string) (sourceQuery, sourceValue, error) {
	path, err := p.stripJobNamespaceFromPath(path)
	if err != nil {
		return sourceQuery{}, sourceValue{}, err
	}
	q := sourceQuery{kind, path}
	found, err := p.data.readSource(p.ctx, q)
	return q, found, err
}

func (p *renderPass) nomadVar(path string) (nomadVarItems, error) {
	q, found, err := p.readVariable(variableKind, path)
	if err != nil {
		return nil, err
	}
	if !found.Exists {
		p.missingSources[q] = true
		return nil, nil
	}
	all := make(nomadVarItems, len(found.VariableItems))
	for k, v := range found.VariableItems {
		all[k] = nomadVarItem(v)
	}
	return all, nil
}

func (p *renderPass) nomadVarExists(path string) (bool, error) {
	_, found, err := p.readVariable(variableQueryKind, path)
	return found.Exists, err
}

// nomadVarList lists the variables below a prefix. If emptyIsMissing is true (nomadVarListSafe),
// an empty list counts as missing data.
func (p *renderPass) nomadVarList(emptyIsMissing bool, prefix []string) ([]nomadVarMeta, error) {
	path, err := p.stripJobNamespaceFromPath(strings.Join(prefix, ""))
	if err != nil {
		return nil, err
	}
	q := sourceQuery{variableListKind, path}
	found, err := p.data.readSource(p.ctx, q)
	if err != nil {
		return nil, err
	}
	list := []nomadVarMeta{}
	for _, path := range found.VariablePaths {
		list = append(list, nomadVarMeta{Path: path, Namespace: p.Namespace})
	}
	if emptyIsMissing && len(list) == 0 {
		p.missingSources[q] = true
	}
	return list, nil
}

// nomadService lists the instances of the service "name", with "tag.name" only
// those with the tag. With a number and a key as the first arguments, it
// returns that many instances, which are the same for the same key as long as
// they exist.
func (p *renderPass) nomadService(args ...any) ([]serviceInstance, error) {
	limit, key := -1, ""
	switch len(args) {
	case 1:
	case 3:
		n, ok := args[0].(int)
		if !ok || n < 1 {
			return nil, fmt.Errorf("nomadService: %v is no number of instances", args[0])
		}
		limit, key = n, fmt.Sprint(args[1])
	default:
		return nil, errors.New(`nomadService takes a name, or a number, a key and a name`)
	}
	name, err := p.stripJobNamespaceFromPath(fmt.Sprint(args[len(args)-1]))
	if err != nil {
		return nil, err
	}
	list, err := p.instancesOf(name)
	if err != nil {
		return nil, err
	}
	if limit < 0 || limit >= len(list) {
		return list, nil
	}
	byRank := make(map[string]serviceInstance, len(list))
	for _, s := range list {
		byRank[instanceSortHash(key, s)] = s
	}
	list = list[:0]
	for _, r := range slices.Sorted(maps.Keys(byRank))[:min(limit, len(byRank))] {
		list = append(list, byRank[r])
	}
	return list, nil
}

// instancesOf lists the instances of the service "name", with "tag.name" only those with the tag.
func (p *renderPass) instancesOf(name string) ([]serviceInstance, error) {
	tag, bare, tagged := strings.Cut(name, ".")
	if !tagged {
		bare = name
	}
	found, err := p.data.readSource(p.ctx, sourceQuery{serviceKind, bare})
	if err != nil {
		return nil, err
	}
	list := []serviceInstance{}
	for _, s := range found.Services {
		if !tagged || slices.Contains(s.Tags, tag) {
			list = append(list, serviceInstance{s, s.NodeID})
		}
	}
	return list, nil
}

// catalogStatuses are the statuses by which consul-template can filter the instances of a service.
var catalogStatuses = []string{"any", hook.ServicePassing, "warning", hook.ServiceCritical, "maintenance"}

// catalogInstance is an instance with the fields that consul-template has for a service of Consul.
type catalogInstance struct {
	serviceInstance
	NodeAddress string
	NodeMeta    map[string]string
	ServiceMeta map[string]string
	Status      string
}

// service lists the instances of a service in the catalog of this node, as consul-template does for Consul. The argument is
// "name", "tag.name" or one of them with "@" and the datacenter of the instance, followed by a list of statuses after "|" or as a
// second argument. Without a list, only instances that pass their checks are listed; the status "any" selects all instances.
// An instance passes if the host does not know its status, as the nodes of a cluster.
func (p *renderPass) service(args ...string) ([]catalogInstance, error) {
	if len(args) == 0 || args[0] == "" {
		return nil, errors.New("service takes a name")
	}
	query, list, _ := strings.Cut(strings.Join(args, "|"), "|")
	statuses := strings.Split(cmp.Or(list, hook.ServicePassing), ",")
	for i, status := range statuses {
		if statuses[i] = strings.TrimSpace(status); !slices.Contains(catalogStatuses, statuses[i]) {
			return nil, fmt.Errorf("service: %q is no status: use %s", statuses[i], strings.Join(catalogStatuses, ", "))
		}
	}
	name, datacenter, _ := strings.Cut(query, "@")
	found, err := p.instancesOf(name)
	if err != nil {
		return nil, err
	}
	instances := []catalogInstance{}
	for _, s := range found {
		status := cmp.Or(s.Status, hook.ServicePassing)
		if (datacenter == "" || s.Datacenter == datacenter) && (slices.Contains(statuses, "any") || slices.Contains(statuses, status)) {
			instances = append(instances, catalogInstance{serviceInstance: s, NodeAddress: s.Address, Status: status})
		}
	}
	return instances, nil
}

// instanceSortHash returns a hash by which nomadService sorts instances for a key: added or
// removed instances do not change the order of the others.
func instanceSortHash(key string, s serviceInstance) string {
	h := fnv.New128a()
	h.Write([]byte(key + "\x00" + s.ID))
	return string(h.Sum(nil))
}

func (p *renderPass) nomadServices() ([]serviceNameAndTags, error) {
	found, err := p.data.readSource(p.ctx, sourceQuery{Kind: servicesKind})
	if err != nil {
		return nil, err
	}
	list := []serviceNameAndTags{}
	for _, s := range found.Services { // the host returns the services sorted by name
		if n := len(list); n == 0 || list[n-1].Name != s.Name {
			list = append(list, serviceNameAndTags{Name: s.Name})
		}
		last := &list[len(list)-1]
		last.Tags = append(last.Tags, s.Tags...)
	}
	for i := range list {
		slices.Sort(list[i].Tags)
		list[i].Tags = slices.Compact(list[i].Tags)
	}
	return list, nil
}
