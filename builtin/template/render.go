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
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

const (
	maxTemplateBodyExecutions = 100_000 // executions of the bodies of loops and templates
	maxNestingDepth           = 1000    // nesting of template calls, and of blocks
)

// renderPass is one rendering pass: one execution of the template of a file, with
// one current time and one sequence of random numbers.
type renderPass struct {
	ctx            context.Context
	task           *taskRenderer
	file           *templateFile
	now            time.Time  // current time for the template
	usesTime       bool       // the template has called a function that returns now
	randomNumbers  *rand.Rand // nil if the template has not used random numbers
	bodyExecutions int
	templateDepth  int
	sourcesRead    map[dataSource]int // the sources that the template has read, and the change count of each at its first read
	missingSources map[dataSource]bool
}

// parsedTemplate is a parsed template.
type parsedTemplate struct{ text *template.Template }

// Names of functions that are called in every body of a loop or template, and
// around each call of a template.
const (
	countBodyFuncName     = "_step"
	enterTemplateFuncName = "_enter"
	leaveTemplateFuncName = "_leave"
)

// compile parses the text of a template. All its errors are permanent.
func compile(name, text string, b *templateBlock) (*parsedTemplate, error) {
	if blockDepth(text, b.LeftDelim) > maxNestingDepth {
		return nil, permanentErrorf("template: %s: blocks are nested more than %d deep", name, maxNestingDepth)
	}
	missing := "missingkey=zero"
	if b.ErrMissingKey {
		missing = "missingkey=error"
	}
	// The functions are bound to a rendering pass before the execution.
	t, err := template.New(name).Option(missing).Delims(b.LeftDelim, b.RightDelim).Funcs(pureFuncs()).Funcs((*renderPass)(nil).funcs()).Parse(text)
	if err != nil {
		return nil, permanentError{err}
	}
	for _, part := range t.Templates() {
		if part.Tree != nil {
			addBodyLimitCalls(part.Tree, part.Root)
		}
	}
	return &parsedTemplate{t}, nil
}

// blockDepth returns how deep the blocks of a text are nested; each "else if"
// counts as a level. The parser needs a kilobyte of stack per level, and a stack
// overflow would crash the process.
func blockDepth(text, delimiter string) (deepest int) {
	block := regexp.MustCompile(regexp.QuoteMeta(cmp.Or(delimiter, "{{")) + `(?:-\s)?\s*(if|range|with|block|define|end|else\s+(?:if|with))\b`)
	var openBlocks []int // number of blocks that each pending end closes
	depth := 0
	for _, m := range block.FindAllStringSubmatchIndex(text, -1) {
		switch word := text[m[2]:m[3]]; {
		case word == "end":
			if last := len(openBlocks) - 1; last >= 0 {
				depth -= openBlocks[last]
				openBlocks = openBlocks[:last]
			}
			continue
		case word[:2] == "el" && len(openBlocks) > 0:
			openBlocks[len(openBlocks)-1]++
		default:
			openBlocks = append(openBlocks, 1)
		}
		depth++
		deepest = max(deepest, depth)
	}
	return deepest
}

// addBodyLimitCalls adds a call of countBodyExecution to every body below a list, so that the
// execution ends after maxTemplateBodyExecutions: text/template cannot be cancelled, and {{range
// 1000000000000}} would keep a core busy forever.
func addBodyLimitCalls(tree *parse.Tree, list *parse.ListNode) {
	if list == nil {
		return
	}
	nodes := []parse.Node{newCallNode(tree, list.Pos, countBodyFuncName)}
	for _, n := range list.Nodes {
		if _, calls := n.(*parse.TemplateNode); calls {
			nodes = append(nodes, newCallNode(tree, n.Position(), enterTemplateFuncName), n, newCallNode(tree, n.Position(), leaveTemplateFuncName))
			continue
		}
		nodes = append(nodes, n)
		switch n := n.(type) {
		case *parse.RangeNode:
			addBodyLimitCalls(tree, n.List)
			addBodyLimitCalls(tree, n.ElseList)
		case *parse.IfNode:
			addBranchBodyLimitCalls(tree, &n.BranchNode)
		case *parse.WithNode:
			addBranchBodyLimitCalls(tree, &n.BranchNode)
		}
	}
	list.Nodes = nodes
}

// addBranchBodyLimitCalls is addBodyLimitCalls for both bodies of an if or with.
func addBranchBodyLimitCalls(tree *parse.Tree, n *parse.BranchNode) {
	addBodyLimitCalls(tree, n.List)
	addBodyLimitCalls(tree, n.ElseList)
}

// newCallNode returns the node of {{ function }}.
func newCallNode(tree *parse.Tree, pos parse.Pos, function string) parse.Node {
	name := parse.NewIdentifier(function).SetTree(tree).SetPos(pos)
	command := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pos, Args: []parse.Node{name}}
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: pos, Pipe: &parse.PipeNode{NodeType: parse.NodePipe, Pos: pos, Cmds: []*parse.CommandNode{command}}}
}

// execute renders the document, on a thread that cannot access files: only the
// function file opens files, on a thread of its own. The text must be ignored
// while data are missing.
func (d *parsedTemplate) execute(p *renderPass) (text string, err error) {
	var out limitedBuffer
	err = runConfined(noDir, func(*os.Root) error { return d.executeOnThread(p, &out) })
	var permanent permanentError
	switch {
	case err == nil:
		return out.String(), nil
	case errors.As(err, &permanent):
		return "", permanentError{err}
	case len(p.missingSources) > 0 && p.ctx.Err() == nil:
		return "", nil // the missing data may be the cause of the error
	}
	return "", err
}

// executeOnThread converts a panic to an error, because the process serves other
// tasks too.
func (d *parsedTemplate) executeOnThread(p *renderPass, out *limitedBuffer) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	t, err := d.text.Clone()
	if err != nil {
		return err
	}
	err = t.Funcs(p.funcs()).Execute(out, nil)
	if errors.Is(err, errTooLarge) {
		err = fmt.Errorf("template: %s: %w", t.Name(), err) // an error of the buffer out lacks the template name
	}
	return err
}

var errTooLarge = fmt.Errorf("more than %d bytes come of it", maxContentSize)

// limitedBuffer is a buffer with a maximum size.
type limitedBuffer struct{ bytes.Buffer }

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxContentSize {
		return 0, errTooLarge
	}
	return l.Buffer.Write(b)
}

// funcs returns the functions that depend on the rendering pass.
func (p *renderPass) funcs() template.FuncMap {
	all := template.FuncMap{
		countBodyFuncName:     p.countBodyExecution,
		enterTemplateFuncName: p.enterTemplate,
		leaveTemplateFuncName: func() string { p.templateDepth--; return "" },
		"env":                 func(name string) (string, error) { value, _, err := p.env(name); return value, err },
		"mustEnv":             p.mustEnv,
		"envOrDefault":        p.envOrDefault,
		"file":                p.fileFunc,
		"loop":                p.loopNumbers,
		"scratch":             newScratch(),
		"sockaddr":            evaluateSockaddr,
		"timestamp":           p.timestamp,

		"nomadVar":         p.nomadVar,
		"nomadVarExists":   p.nomadVarExists,
		"nomadVarList":     func(prefix ...string) ([]varMeta, error) { return p.nomadVarList(false, prefix) },
		"nomadVarListSafe": func(prefix ...string) ([]varMeta, error) { return p.nomadVarList(true, prefix) },
		"nomadService":     p.nomadService,
		"nomadServices":    p.nomadServices,
	}
	maps.Copy(all, p.sprigFuncs())
	for name, why := range unsupportedFuncs() {
		all[name] = failingFunc(name, why)
	}
	if p != nil {
		for _, name := range p.task.limits.DeniedFunctions {
			all[name] = failingFunc(name, disabledReason)
		}
	}
	return acceptItemArgs(all)
}

// failingFunc returns a function that always fails.
func failingFunc(name, why string) func(...any) (string, error) {
	return func(...any) (string, error) { return "", permanentErrorf("%s: %s", name, why) }
}

func (p *renderPass) countBodyExecution() (string, error) {
	if p.bodyExecutions++; p.bodyExecutions > maxTemplateBodyExecutions {
		return "", fmt.Errorf("more than %d steps", maxTemplateBodyExecutions)
	}
	return "", p.ctx.Err()
}

func (p *renderPass) enterTemplate() (string, error) {
	if p.templateDepth++; p.templateDepth > maxNestingDepth {
		return "", fmt.Errorf("templates call each other more than %d deep", maxNestingDepth)
	}
	return "", nil
}

// loopNumbers is the function loop of templates: it returns the numbers from 0, or
// from the first of two bounds, up to the last bound, exclusive.
func (p *renderPass) loopNumbers(bounds ...any) ([]int64, error) {
	ints := make([]int64, len(bounds))
	for i, b := range bounds {
		n, err := emptyAsZero(func(s string) (n int64, err error) { _, err = fmt.Sscan(s, &n); return n, err })(fmt.Sprint(b))
		if err != nil {
			return nil, fmt.Errorf("loop: %v is no whole number", b)
		}
		ints[i] = n
	}
	var from, to int64
	switch len(ints) {
	case 1:
		to = ints[0]
	case 2:
		from, to = ints[0], ints[1]
	default:
		return nil, errors.New("loop takes one number or two")
	}
	if to-from > maxTemplateBodyExecutions {
		return nil, fmt.Errorf("a loop of more than %d steps", maxTemplateBodyExecutions)
	}
	var numbers []int64
	for ; from < to; from++ {
		numbers = append(numbers, from)
	}
	return numbers, nil
}

// env returns a variable of the task's environment. Attributes of the node are
// available under their names too.
func (p *renderPass) env(name string) (value string, ok bool, err error) {
	if value, ok = p.task.env[name]; ok {
		return value, true, nil
	}
	if area, _, _ := strings.Cut(name, "."); !slices.Contains([]string{"attr", "meta", "node"}, area) {
		return "", false, nil
	}
	reference := "${" + name + "}"
	value, err = p.task.interpolate(p.ctx, reference)
	if err != nil || value == reference {
		return "", false, err
	}
	return value, true, nil
}

func (p *renderPass) mustEnv(name string) (string, error) {
	value, ok, err := p.env(name)
	if err == nil && !ok {
		err = fmt.Errorf("the task has no variable %s", name)
	}
	return value, err
}

func (p *renderPass) envOrDefault(name, otherwise string) (string, error) {
	value, ok, err := p.env(name)
	if !ok {
		value = otherwise
	}
	return value, err
}

// readSource returns the value of a source, and records that the template depends
// on it. A nil value means that the source is missing.
func (p *renderPass) readSource(s dataSource, how fetchFunc) (any, error) {
	value, changeCount, err := p.task.watcher.get(p.ctx, s, how)
	if _, known := p.sourcesRead[s]; !known && err == nil {
		p.sourcesRead[s] = changeCount
	}
	return value, err
}

func (p *renderPass) fileFunc(path string) (string, error) {
	at, ok := p.task.dirs.resolveReadable(path)
	if !ok || at.root == p.task.dirs.sharedAllocDir {
		return "", permanentErrorf("'%s' is outside of sandbox", path)
	}
	s := dataSource{"file", path}
	content, err := p.readSource(s, at.waitForChange)
	if err != nil {
		return "", err
	}
	if content == nil {
		p.missingSources[s] = true
		return "", nil
	}
	return content.(string), nil
}

// localPath removes the namespace and the region from a path. It returns an error
// if they are not the namespace and the region of the job.
func (p *renderPass) localPath(path string) (string, error) {
	bare, where, other := strings.Cut(strings.Trim(path, "/"), "@")
	namespace, region, _ := strings.Cut(where, ".")
	if other && (namespace != p.task.namespace || region != "" && region != p.task.region) {
		return "", permanentErrorf("%q is in another namespace or region than the job: only %s.%s can be read", path, p.task.namespace, p.task.region)
	}
	return bare, nil
}

func (p *renderPass) readVariable(kind, path string) (dataSource, map[string]string, error) {
	path, err := p.localPath(path)
	if err != nil {
		return dataSource{}, nil, err
	}
	s := dataSource{kind, path + "@" + p.task.namespace + "." + p.task.region}
	value, err := p.readSource(s, p.task.client.fetchVariable(path))
	found, _ := value.(map[string]string)
	return s, found, err
}

func (p *renderPass) nomadVar(path string) (items, error) {
	s, found, err := p.readVariable("nomad.var.block", path)
	if err != nil {
		return nil, err
	}
	if found == nil {
		p.missingSources[s] = true
		return nil, nil
	}
	all := make(items, len(found))
	for k, v := range found {
		all[k] = item(v)
	}
	return all, nil
}

func (p *renderPass) nomadVarExists(path string) (bool, error) {
	_, found, err := p.readVariable("nomad.var.query", path)
	return found != nil, err
}

// nomadVarList lists the variables below a prefix; the safe variant treats an
// empty list as missing.
func (p *renderPass) nomadVarList(safe bool, prefix []string) ([]varMeta, error) {
	path, err := p.localPath(strings.Join(prefix, ""))
	if err != nil {
		return nil, err
	}
	s := dataSource{"nomad.var.list", path + "@" + p.task.namespace + "." + p.task.region}
	value, err := p.readSource(s, p.task.client.fetchVariables(path))
	if err != nil {
		return nil, err
	}
	list := []varMeta{}
	for _, path := range value.([]string) {
		list = append(list, varMeta{Path: path, Namespace: p.task.namespace})
	}
	if safe && len(list) == 0 {
		p.missingSources[s] = true
	}
	return list, nil
}

// nomadService lists the instances of "name" or "tag.name". With a number and a
// key before the name it returns that many instances, which are stable for the
// key while the instances live.
func (p *renderPass) nomadService(args ...any) ([]service, error) {
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
	name, err := p.localPath(fmt.Sprint(args[len(args)-1]))
	if err != nil {
		return nil, err
	}
	tag, bare, tagged := strings.Cut(name, ".")
	if !tagged {
		bare = name
	}
	value, err := p.readSource(dataSource{"nomad.service", bare + "@" + p.task.region}, p.task.client.fetchServices(bare))
	if err != nil {
		return nil, err
	}
	list := []service{}
	for _, s := range value.([]hook.Service) {
		if !tagged || slices.Contains(s.Tags, tag) {
			list = append(list, service{s, s.NodeID})
		}
	}
	if limit < 0 || limit >= len(list) {
		return list, nil
	}
	byRank := make(map[string]service, len(list))
	for _, s := range list {
		byRank[instanceSortKey(key, s)] = s
	}
	list = list[:0]
	for _, r := range slices.Sorted(maps.Keys(byRank))[:min(limit, len(byRank))] {
		list = append(list, byRank[r])
	}
	return list, nil
}

// instanceSortKey returns the sort key of an instance for a key: added or removed instances
// do not reorder the others.
func instanceSortKey(key string, s service) string {
	h := fnv.New128a()
	h.Write([]byte(key + "\x00" + s.ID))
	return string(h.Sum(nil))
}

func (p *renderPass) nomadServices() ([]serviceName, error) {
	value, err := p.readSource(dataSource{"nomad.services", p.task.region}, p.task.client.fetchServices(""))
	if err != nil {
		return nil, err
	}
	list := []serviceName{}
	for _, s := range value.([]hook.Service) { // sorted by name
		if n := len(list); n == 0 || list[n-1].Name != s.Name {
			list = append(list, serviceName{Name: s.Name})
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
