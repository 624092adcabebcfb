package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of a file.
type mutant struct {
	file   string // relative to the root of the work tree
	line   int
	what   string // description, for example "delete r.StartID = next"
	source []byte // of the whole file with the change
}

// key identifies a mutant in the list of equivalent ones. It has no line, so that changes elsewhere in the file keep it.
func (m mutant) key() string { return m.file + ": " + m.what }

// mutate returns the mutants of a file. Each change is made in the syntax tree, printed, and undone.
func mutate(file string, source []byte) (mutants []mutant, err error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	add := func(node ast.Node, what string) {
		if count[what]++; count[what] > 1 {
			what = fmt.Sprintf("%s (%d)", what, count[what])
		}
		var b bytes.Buffer
		if printErr := printer.Fprint(&b, fset, tree); printErr != nil {
			err = printErr
		}
		mutants = append(mutants, mutant{file, fset.Position(node.Pos()).Line, what, b.Bytes()})
	}
	text := func(node ast.Node) string {
		var b bytes.Buffer
		if printErr := printer.Fprint(&b, fset, node); printErr != nil {
			err = printErr
		}
		return strings.Join(strings.Fields(b.String()), " ")
	}
	var enclosing []ast.Node
	ast.Inspect(tree, func(node ast.Node) bool {
		if node == nil {
			enclosing = enclosing[:len(enclosing)-1]
			return true
		}
		if declaration, ok := node.(*ast.GenDecl); ok && declaration.Tok != token.VAR {
			return false // the values of constants and the types are not code
		}
		enclosing = append(enclosing, node)
		switch n := node.(type) {
		case *ast.BlockStmt:
			deleteStatements(n.List, text, add)
		case *ast.CaseClause:
			deleteStatements(n.Body, text, add)
		case *ast.IfStmt:
			original := n.Cond
			n.Cond = &ast.UnaryExpr{Op: token.NOT, X: &ast.ParenExpr{X: original}}
			add(original, "negate "+text(original))
			n.Cond = original
		case *ast.BinaryExpr:
			original := n.Op
			for _, other := range exchanged[original] {
				n.Op = original
				what := text(n)
				n.Op = other
				add(n, fmt.Sprintf("write %s for %s in %s", other, original, what))
			}
			n.Op = original
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				original, where := n.Name, text(enclosing[len(enclosing)-2])
				n.Name = strconv.FormatBool(original != "true")
				add(n, fmt.Sprintf("write %s for %s in %s", n.Name, original, where))
				n.Name = original
			}
		case *ast.BasicLit:
			if value, convErr := strconv.Atoi(n.Value); n.Kind == token.INT && convErr == nil {
				original, where := n.Value, text(enclosing[len(enclosing)-2])
				n.Value = strconv.Itoa(value + 1)
				add(n, fmt.Sprintf("write %s for %s in %s", n.Value, original, where))
				n.Value = original
			}
		case *ast.AssignStmt:
			exchangeAssigned(n, text, add)
		case *ast.CompositeLit:
			changeElements(n, text, add)
		}
		return true
	})
	return mutants, err
}

var exchanged = map[token.Token][]token.Token{
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.OR: {token.AND}, token.AND: {token.OR},
}

// deleteStatements replaces each statement that has an effect by an empty one.
func deleteStatements(list []ast.Stmt, text func(ast.Node) string, add func(ast.Node, string)) {
	for i, original := range list {
		switch s := original.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue // does not compile without it
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.IfStmt, *ast.RangeStmt, *ast.ForStmt, *ast.SwitchStmt, *ast.DeferStmt:
		case *ast.ReturnStmt:
			if len(s.Results) > 0 && i == len(list)-1 {
				continue
			}
		default:
			continue
		}
		what := "delete " + text(original)
		list[i] = &ast.EmptyStmt{Semicolon: original.Pos(), Implicit: true}
		add(original, what)
		list[i] = original
	}
}

// exchangeAssigned leaves out one of several assigned variables.
func exchangeAssigned(n *ast.AssignStmt, text func(ast.Node) string, add func(ast.Node, string)) {
	if n.Tok != token.ASSIGN || len(n.Lhs) < 2 || len(n.Lhs) != len(n.Rhs) {
		return
	}
	what := text(n)
	for i, original := range n.Lhs {
		n.Lhs[i] = ast.NewIdent("_")
		add(original, fmt.Sprintf("do not assign %s in %s", text(original), what))
		n.Lhs[i] = original
	}
}

// changeElements deletes each element that has a key, and exchanges each constant for the next element's. It skips texts, which only
// users read.
func changeElements(n *ast.CompositeLit, text func(ast.Node) string, add func(ast.Node, string)) {
	elements := n.Elts
	for i, original := range elements {
		keyed, ok := original.(*ast.KeyValueExpr)
		if ok {
			switch v := keyed.Value.(type) {
			case *ast.BasicLit:
				if v.Kind == token.STRING {
					continue
				}
			case *ast.CompositeLit:
				continue // its elements are changed
			}
			n.Elts = slices.Delete(slices.Clone(elements), i, i+1)
			add(original, fmt.Sprintf("delete %s of %s", text(original), text(n)))
			n.Elts = elements
		}
		other := valueOf(elements[(i+1)%len(elements)])
		value := valueOf(original)
		if value == nil || other == nil || value.Name == other.Name {
			continue
		}
		exchanged := ast.Expr(other)
		if ok {
			exchanged = &ast.KeyValueExpr{Key: keyed.Key, Value: other}
		}
		elements[i] = exchanged
		add(original, fmt.Sprintf("write %s for %s", text(exchanged), text(original)))
		elements[i] = original
	}
}

// valueOf returns the constant or variable that is the value of an element, or nil.
func valueOf(element ast.Expr) *ast.Ident {
	if keyed, ok := element.(*ast.KeyValueExpr); ok {
		element = keyed.Value
	}
	value, _ := element.(*ast.Ident)
	return value
}
