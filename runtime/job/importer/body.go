package importer

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// File is a job file that is written.
type File struct{ file *hclwrite.File }

// NewFile returns an empty file.
func NewFile() *File { return &File{hclwrite.NewEmptyFile()} }

// Body returns the top level of the file.
func (f *File) Body() *Body { return &Body{body: f.file.Body()} }

// Bytes returns the formatted text of the file.
func (f *File) Bytes() []byte { return hclwrite.Format(f.file.Bytes()) }

// Body is the content of the file or of a block. Strings are written as they are: `${` in them is
// escaped for HCL, and so reaches the job.
type Body struct {
	body        *hclwrite.Body
	hasContent  bool
	afterString bool // the last item is an attribute
}

// Set writes an attribute. Strings, numbers, truth values, durations, lists of strings and maps of
// strings are values; other types panic.
func (b *Body) Set(name string, value any) {
	b.separate(true)
	if text, isText := value.(string); isText && strings.Count(text, "\n") > 1 && strings.HasSuffix(text, "\n") && isHeredocText(text) {
		b.body.SetAttributeRaw(name, heredocTokens(text))
		return
	}
	b.body.SetAttributeValue(name, toCty(value))
}

// SetLocal writes an attribute with the list of strings of a local value, and more strings after them.
func (b *Body) SetLocal(name, local string, more []string) {
	b.separate(true)
	tokens := hclwrite.TokensForTraversal(hcl.Traversal{hcl.TraverseRoot{Name: "local"}, hcl.TraverseAttr{Name: local}})
	if len(more) > 0 {
		tokens = hclwrite.TokensForFunctionCall("concat", tokens, hclwrite.TokensForValue(toCty(more)))
	}
	b.body.SetAttributeRaw(name, tokens)
}

// SetNonZero writes an attribute unless the value is empty, false or 0.
func (b *Body) SetNonZero(name string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
	case int:
		if v == 0 {
			return
		}
	case int64:
		if v == 0 {
			return
		}
	case bool:
		if !v {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	case map[string]string:
		if len(v) == 0 {
			return
		}
	case time.Duration:
		if v == 0 {
			return
		}
	}
	b.Set(name, value)
}

// SetMap writes a map of strings as a block if each key can be the name of an attribute, else as an
// attribute with an object. It writes nothing for an empty map.
func (b *Body) SetMap(name string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	for key := range values {
		if !hclsyntax.ValidIdentifier(key) {
			b.Set(name, values)
			return
		}
	}
	block := b.Block(name)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		block.Set(key, values[key])
	}
}

// Block adds a block after an empty line, and returns its content.
func (b *Body) Block(name string, labels ...string) *Body {
	b.separate(false)
	return &Body{body: b.body.AppendNewBlock(name, labels).Body()}
}

// Comment adds lines of a comment.
func (b *Body) Comment(text string) {
	b.separate(true)
	var tokens hclwrite.Tokens
	for line := range strings.Lines(text) {
		comment := strings.TrimRight("# "+cleanCommentLine(line), " ") + "\n"
		tokens = append(tokens, &hclwrite.Token{Type: hclsyntax.TokenComment, Bytes: []byte(comment)})
	}
	b.body.AppendUnstructuredTokens(tokens)
}

// cleanCommentLine removes the line end and control characters, with which a text could end the comment.
func cleanCommentLine(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, "�"))
}

func (b *Body) separate(isLine bool) {
	if b.hasContent && !(isLine && b.afterString) {
		b.body.AppendNewline()
	}
	b.hasContent, b.afterString = true, isLine
}

func toCty(value any) cty.Value {
	switch v := value.(type) {
	case string:
		return cty.StringVal(strings.ToValidUTF8(v, "�"))
	case int:
		return cty.NumberIntVal(int64(v))
	case int64:
		return cty.NumberIntVal(v)
	case bool:
		return cty.BoolVal(v)
	case time.Duration:
		return cty.StringVal(formatDuration(v))
	case []string:
		list := make([]cty.Value, len(v))
		for i, s := range v {
			list[i] = toCty(s)
		}
		return cty.TupleVal(list)
	case map[string]string:
		object := make(map[string]cty.Value, len(v))
		for key, s := range v {
			object[strings.ToValidUTF8(key, "�")] = toCty(s)
		}
		return cty.ObjectVal(object)
	}
	panic(fmt.Sprintf("value of type %T", value))
}

// formatDuration leaves out the zero seconds and minutes of Go's format.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

const heredocEnd = "EOT"

// isHeredocText reports whether a text stays the same in a here document, which has no escapes for
// control characters.
func isHeredocText(text string) bool {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == heredocEnd {
			return false
		}
	}
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == '�' })
}

func heredocTokens(text string) hclwrite.Tokens {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "${", "$${"), "%{", "%%{")
	return hclwrite.Tokens{
		{Type: hclsyntax.TokenOHeredoc, Bytes: []byte("<<" + heredocEnd + "\n")},
		{Type: hclsyntax.TokenStringLit, Bytes: []byte(text)},
		{Type: hclsyntax.TokenCHeredoc, Bytes: []byte(heredocEnd)},
	}
}

// ConfigText escapes a text for the config block of a driver, whose strings the client parses as
// templates: without it, `${X:-y}` of a shell is a syntax error there.
func ConfigText(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "${", "$${"), "%{", "%%{")
}

// ConfigTexts is ConfigText for each element.
func ConfigTexts(texts []string) []string {
	escaped := make([]string, len(texts))
	for i, text := range texts {
		escaped[i] = ConfigText(text)
	}
	return escaped
}

// HasReference reports whether a text outside of a config block has a part such as ${NAME}, which the
// client replaces by a variable or attribute of this name, if there is one. It cannot be escaped there.
func HasReference(text string) bool { return referencePattern().MatchString(text) }

var referencePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{[a-zA-Z0-9_.-]+\}`) })

// LooksSecret reports whether the value of a variable with this name is probably a secret.
func LooksSecret(name string) bool {
	name = strings.ToUpper(name)
	if strings.HasSuffix(name, "_FILE") {
		return false // the path of a file with the secret
	}
	for _, word := range []string{"PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "APIKEY", "API_KEY", "PRIVATE_KEY", "ACCESS_KEY", "CREDENTIAL", "_PASS", "_KEY"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// Label returns a name with each character replaced that labels of ports and names of variables cannot have.
func Label(name string) string {
	label := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
	return strings.TrimSuffix(label, "_")
}
