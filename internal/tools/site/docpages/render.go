package docpages

import (
	"bytes"
	"fmt"
	"html"
	"strings"

	"github.com/alecthomas/chroma/v2"
	chromahtml "github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/alecthomas/chroma/v2/styles"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extensionast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// newRenderer returns a renderer of documents. Headings have a link to themselves, code has colours, and a wide table scrolls.
func newRenderer() renderer.Renderer {
	return goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		// The renderers of goldmark have higher numbers, which stand behind lower ones.
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(nodeRenderer{}, 1))),
	).Renderer()
}

type nodeRenderer struct{}

func (nodeRenderer) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindHeading, renderHeading)
	r.Register(ast.KindCodeBlock, renderCodeBlock)
	r.Register(ast.KindFencedCodeBlock, renderCodeBlock)
	r.Register(extensionast.KindTable, renderTable)
	r.Register(extensionast.KindTableHeader, renderTableHeader)
	r.Register(extensionast.KindTableCell, renderTableCell)
	r.Register(ast.KindHTMLBlock, renderNothing)
	r.Register(ast.KindRawHTML, renderNothing)
}

func renderHeading(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	h := n.(*ast.Heading)
	id, _ := h.AttributeString("id")
	if entering {
		fmt.Fprintf(w, "<h%d id=\"%s\">", h.Level, id)
	} else if h.Level == 1 {
		fmt.Fprintf(w, "</h%d>\n", h.Level)
	} else {
		fmt.Fprintf(w, " <a class=\"anchor\" href=\"#%s\" aria-label=\"Link to this section\">#</a></h%d>\n", id, h.Level)
	}
	return ast.WalkContinue, nil
}

// renderCodeBlock writes a block with its file name, if the mark of the block has one after the language.
func renderCodeBlock(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	language, name := "", ""
	if fenced, ok := n.(*ast.FencedCodeBlock); ok && fenced.Info != nil {
		language, name, _ = strings.Cut(string(fenced.Info.Segment.Value(source)), " ")
	}
	if name != "" {
		fmt.Fprintf(w, "<p class=\"file\">%s</p>\n", html.EscapeString(name))
	}
	var b bytes.Buffer
	writeCode(&b, language, string(n.Lines().Value(source)))
	_, err := w.Write(b.Bytes())
	return ast.WalkSkipChildren, err
}

// maxColoured is the size up to which code has colours; each word with a colour costs an element of the page.
const maxColoured = 100_000

// writeCode writes code with the colours of its language, or without colours if the language is unknown.
func writeCode(b *bytes.Buffer, language, code string) {
	start := b.Len()
	b.WriteString(`<pre tabindex="0"><code>`)
	if lexer := lexers.Get(language); language != "" && lexer != nil && len(code) < maxColoured {
		tokens, err := chroma.Coalesce(lexer).Tokenise(nil, code)
		if err == nil {
			err = chromahtml.New(chromahtml.WithClasses(true), chromahtml.PreventSurroundingPre(true)).Format(b, styles.Fallback, tokens)
		}
		if err == nil {
			b.WriteString("</code></pre>\n")
			return
		}
		b.Truncate(start)
		b.WriteString(`<pre tabindex="0"><code>`)
	}
	b.WriteString(html.EscapeString(code))
	b.WriteString("</code></pre>\n")
}

func renderTable(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		_, _ = w.WriteString("<div class=\"table\" tabindex=\"0\"><table>\n")
	} else {
		_, _ = w.WriteString("</table></div>\n")
	}
	return ast.WalkContinue, nil
}

// renderTableHeader leaves out a header without a text: Markdown has no tables without a header.
func renderTableHeader(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	status := ast.WalkContinue
	switch hasText := plainText(n, source) != ""; {
	case entering && hasText:
		_, _ = w.WriteString("<thead>\n<tr>\n")
	case entering:
		status = ast.WalkSkipChildren
	case hasText:
		_, _ = w.WriteString("</tr>\n</thead>\n")
	}
	if !entering && n.NextSibling() != nil {
		_, _ = w.WriteString("<tbody>\n") // the renderer of the last row closes the element
	}
	return status, nil
}

// renderTableCell makes an empty cell of a header an ordinary cell, because a screen reader would read an empty title for each cell
// below it.
func renderTableCell(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	cell := n.(*extensionast.TableCell)
	name := "td"
	if cell.Parent().Kind() == extensionast.KindTableHeader && plainText(cell, source) != "" {
		name = "th"
	}
	switch {
	case !entering:
		fmt.Fprintf(w, "</%s>\n", name)
	case cell.Alignment == extensionast.AlignRight:
		fmt.Fprintf(w, "<%s class=\"right\">", name)
	default:
		fmt.Fprintf(w, "<%s>", name)
	}
	return ast.WalkContinue, nil
}

// renderNothing leaves out comments, which are the only HTML that a document can have.
func renderNothing(util.BufWriter, []byte, ast.Node, bool) (ast.WalkStatus, error) {
	return ast.WalkSkipChildren, nil
}
