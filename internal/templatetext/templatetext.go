package templatetext

import (
	"cmp"
	"regexp"
	"slices"
	"text/template/parse"
)

// MaxBlocks is the greatest number of blocks in a template that is parsed.
const MaxBlocks = 10_000

// HasTooManyBlocks reports whether the text of a template has more than MaxBlocks blocks; each "else if" counts as one. An empty leftDelim
// is the default delimiter. The parser is recursive, with a kilobyte of stack per nested block, and a stack overflow would crash the
// process. Ends of blocks do not count: what looks like one can be in a string or a comment.
func HasTooManyBlocks(text, leftDelim string) bool {
	block := regexp.MustCompile(regexp.QuoteMeta(cmp.Or(leftDelim, "{{")) + `(?:-\s)?\s*(?:if|range|with|block|define|else\s+(?:if|with))\b`)
	return len(block.FindAllStringIndex(text, MaxBlocks+1)) > MaxBlocks
}

// Call is a call of a function whose argument is a constant.
type Call struct {
	Arg string
	// Fields are the sorted names of the fields that the template reads from the result, such as "user" in
	// {{with f "x"}}{{.user}}{{end}}. The template may read others too, in ways that the text does not show.
	Fields []string
}

// CertainCalls returns the calls of a function with one constant argument that each execution of a template makes if no call
// fails and each returns a value that is not empty. It leaves out calls in the blocks of if and else, in arguments of and and
// or after the first, and in templates that the text defines. Empty delimiters are the default delimiters. CertainCalls
// returns nothing for a text that is not a template.
func CertainCalls(text, leftDelim, rightDelim, function string) []Call {
	if HasTooManyBlocks(text, leftDelim) {
		return nil
	}
	tree := parse.New("template")
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(text, leftDelim, rightDelim, make(map[string]*parse.Tree)); err != nil || tree.Root == nil {
		return nil
	}
	w := &callWalker{function: function, callByArg: make(map[string]*Call), callByVariable: make(map[string]*Call)}
	w.walkList(tree.Root, nil, true)
	calls := make([]Call, len(w.args))
	for i, arg := range w.args {
		calls[i] = *w.callByArg[arg]
		slices.Sort(calls[i].Fields)
		calls[i].Fields = slices.Compact(calls[i].Fields)
	}
	return calls
}

// callWalker walks the nodes of a template. In its methods, dot is the call whose result is the value of the dot, or nil if
// the value is another one, and isCertain is true in nodes that each execution reaches.
type callWalker struct {
	function       string
	args           []string // constant arguments of the calls, in the order of the first call
	callByArg      map[string]*Call
	callByVariable map[string]*Call
}

func (w *callWalker) walkList(list *parse.ListNode, dot *Call, isCertain bool) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			w.walkPipe(n.Pipe, dot, isCertain)
		case *parse.TemplateNode:
			w.walkPipe(n.Pipe, dot, isCertain)
		case *parse.IfNode:
			w.walkPipe(n.Pipe, dot, isCertain)
			w.walkList(n.List, dot, false)
			w.walkList(n.ElseList, dot, false)
		case *parse.WithNode:
			call := w.walkPipe(n.Pipe, dot, isCertain)
			w.walkList(n.List, call, isCertain && call != nil)
			w.walkList(n.ElseList, dot, false)
		case *parse.RangeNode:
			call := w.walkPipe(n.Pipe, dot, isCertain)
			for _, v := range n.Pipe.Decl { // they have an element, not the result of the call
				delete(w.callByVariable, v.Ident[0])
			}
			w.walkList(n.List, nil, isCertain && call != nil)
			w.walkList(n.ElseList, dot, false)
		}
	}
}

// walkPipe returns the call whose result is the value of a pipeline, or nil if the value is another one.
func (w *callWalker) walkPipe(pipe *parse.PipeNode, dot *Call, isCertain bool) (call *Call) {
	if pipe == nil {
		return nil
	}
	var piped parse.Node // constant value of the previous command
	for _, c := range pipe.Cmds {
		call = w.walkCommand(c, piped, dot, isCertain)
		piped = nil
		if len(c.Args) == 1 {
			piped = c.Args[0]
		}
	}
	for _, v := range pipe.Decl {
		delete(w.callByVariable, v.Ident[0])
		if call != nil {
			w.callByVariable[v.Ident[0]] = call
		}
	}
	return call
}

// walkCommand returns the call whose result is the value of a command, or nil if the value is another one.
func (w *callWalker) walkCommand(c *parse.CommandNode, piped parse.Node, dot *Call, isCertain bool) *Call {
	name := ""
	if id, ok := c.Args[0].(*parse.IdentifierNode); ok {
		name = id.Ident
	}
	values := make([]*Call, len(c.Args))
	for i, arg := range c.Args {
		isShortCircuited := i > 1 && (name == "and" || name == "or")
		values[i] = w.walkArg(arg, dot, isCertain && !isShortCircuited)
	}
	switch {
	case name == w.function:
		if len(c.Args) == 2 {
			piped = c.Args[1]
		}
		if constant, ok := piped.(*parse.StringNode); ok && len(c.Args) <= 2 && isCertain {
			return w.addCall(constant.Text)
		}
	case name == "index" && len(c.Args) > 2:
		if field, ok := c.Args[2].(*parse.StringNode); ok && values[1] != nil {
			values[1].Fields = append(values[1].Fields, field.Text)
		}
	case name == "" && len(c.Args) == 1:
		return values[0]
	}
	return nil
}

// walkArg returns the call whose result is the value of an argument, or nil if the value is another one.
func (w *callWalker) walkArg(arg parse.Node, dot *Call, isCertain bool) *Call {
	call, fields := dot, []string(nil)
	switch arg := arg.(type) {
	case *parse.DotNode:
	case *parse.FieldNode:
		fields = arg.Ident
	case *parse.VariableNode:
		call, fields = w.callByVariable[arg.Ident[0]], arg.Ident[1:]
	case *parse.PipeNode:
		call = w.walkPipe(arg, dot, isCertain)
	case *parse.ChainNode:
		call, fields = w.walkArg(arg.Node, dot, isCertain), arg.Field
	default:
		return nil
	}
	if len(fields) == 0 {
		return call
	}
	if call != nil {
		call.Fields = append(call.Fields, fields[0])
	}
	return nil
}

func (w *callWalker) addCall(arg string) *Call {
	call := w.callByArg[arg]
	if call == nil {
		call = &Call{Arg: arg}
		w.callByArg[arg] = call
		w.args = append(w.args, arg)
	}
	return call
}
