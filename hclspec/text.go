package hclspec

import (
	"fmt"
	"strings"
)

// Text describes the block for people, in the syntax of HCL: a line for each argument, with its type in place of
// its value, and each block with its content. Comments tell what is required, how often a block can occur, and
// defaults. The texts of a plugin are not escaped. The Text of a nil Spec is empty. For hosts only.
func (s *Spec) Text() string {
	var b strings.Builder
	s.writeText(&b, "", MaxDepth)
	return b.String()
}

func (s *Spec) writeText(b *strings.Builder, indent string, depth int) {
	if depth == 0 {
		return
	}
	arguments, blocks := s.Parts()
	nameWidth, typeWidth := 0, 0
	for _, a := range arguments {
		nameWidth = max(nameWidth, len(a.Name))
		if a.comment() != "" {
			typeWidth = max(typeWidth, len(a.Spec.typeOrLiteral))
		}
	}
	for _, a := range arguments {
		line := fmt.Sprintf("%s%-*s = %-*s %s", indent, nameWidth, a.Name, typeWidth, a.Spec.typeOrLiteral, a.comment())
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	for i, block := range blocks {
		if i > 0 || len(arguments) > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "%s%s", indent, block.Name)
		for _, label := range block.Spec.labels {
			fmt.Fprintf(b, " %q", label)
		}
		fmt.Fprintf(b, " { %s\n", block.comment())
		inner := indent + "  "
		if block.Spec.kind == KindBlockAttrs {
			fmt.Fprintf(b, "%sNAME = %s # any number, with any names\n", inner, block.Spec.typeOrLiteral)
		} else {
			block.Spec.nested.writeText(b, inner, depth-1)
		}
		fmt.Fprintf(b, "%s}\n", indent)
	}
}

// comment returns the comment at the end of the first line of a part; it may be empty.
func (p Part) comment() string {
	var notes []string
	if p.Spec.kind != KindAttr {
		notes = append(notes, p.Spec.describeLimits())
	} else if p.Spec.required {
		notes = append(notes, "required")
	}
	if p.DefaultText != "" {
		notes = append(notes, "default: "+p.DefaultText)
	}
	if len(notes) == 0 {
		return ""
	}
	return "# " + strings.Join(notes, ", ")
}
