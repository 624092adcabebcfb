package hclspec

import (
	"fmt"
	"strings"
)

// Text describes the block for people, in the syntax of HCL: a line for each argument, with its type in place of
// its value, and each block with its content. Comments tell what is required, how often a block can occur, and
// defaults. The texts of a plugin are not escaped. The Text of a nil Spec is empty.
func (s *Spec) Text() string {
	var b strings.Builder
	s.writeText(&b, "", maxSpecDepth)
	return b.String()
}

func (s *Spec) writeText(b *strings.Builder, indent string, depth int) {
	if depth == 0 {
		return
	}
	arguments, blocks := s.bodyParts()
	nameWidth, typeWidth := 0, 0
	for _, a := range arguments {
		nameWidth = max(nameWidth, len(a.name))
		if a.comment() != "" {
			typeWidth = max(typeWidth, len(a.spec.typeOrLiteral))
		}
	}
	for _, a := range arguments {
		line := fmt.Sprintf("%s%-*s = %-*s %s", indent, nameWidth, a.name, typeWidth, a.spec.typeOrLiteral, a.comment())
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	for i, block := range blocks {
		if i > 0 || len(arguments) > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "%s%s", indent, block.name)
		for _, label := range block.spec.labels {
			fmt.Fprintf(b, " %q", label)
		}
		fmt.Fprintf(b, " { %s\n", block.comment())
		inner := indent + "  "
		if block.spec.kind == kindBlockAttrs {
			fmt.Fprintf(b, "%sNAME = %s # any number, with any names\n", inner, block.spec.typeOrLiteral)
		} else {
			block.spec.nested.writeText(b, inner, depth-1)
		}
		fmt.Fprintf(b, "%s}\n", indent)
	}
}

// comment returns the comment at the end of the first line of a part; it may be empty.
func (p part) comment() string {
	var notes []string
	if p.spec.kind != kindAttr {
		notes = append(notes, p.spec.describeLimits())
	} else if p.spec.required {
		notes = append(notes, "required")
	}
	if p.defaultText != "" {
		notes = append(notes, "default: "+p.defaultText)
	}
	if len(notes) == 0 {
		return ""
	}
	return "# " + strings.Join(notes, ", ")
}
