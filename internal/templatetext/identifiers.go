package templatetext

import "text/template/parse"

// WalkIdentifiers calls f for each function name in a parsed template, in the order of the text.
func WalkIdentifiers(n parse.Node, f func(*parse.IdentifierNode)) {
	walkAll := func(nodes ...parse.Node) {
		for _, child := range nodes {
			WalkIdentifiers(child, f)
		}
	}
	walkBranch := func(b *parse.BranchNode) { walkAll(b.Pipe, b.List, b.ElseList) }
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			walkAll(n.Nodes...)
		}
	case *parse.ActionNode:
		walkAll(n.Pipe)
	case *parse.TemplateNode:
		walkAll(n.Pipe)
	case *parse.IfNode:
		walkBranch(&n.BranchNode)
	case *parse.WithNode:
		walkBranch(&n.BranchNode)
	case *parse.RangeNode:
		walkBranch(&n.BranchNode)
	case *parse.PipeNode:
		if n != nil {
			for _, c := range n.Cmds {
				walkAll(c.Args...)
			}
		}
	case *parse.ChainNode:
		walkAll(n.Node)
	case *parse.IdentifierNode:
		f(n)
	}
}
