package template

import (
	"reflect"
	"regexp"
	"testing"
)

// The functions with a budget have the results of the package regexp.
func FuzzRegexp(f *testing.F) {
	for _, seed := range []struct {
		expr, text, to string
		n              int
	}{
		{"", "aé\xff", "-", -1},
		{"a*", "baaac", "<$0>", 2},
		{`^a|\ba|a$`, "aa aa\na", "x", -1},
		{`(?m)^|(?m)$`, "a\n\nb", "|", 3},
		{`\B|(x)(y)?`, "xyx é x", "$2$1", -1},
		{`(?i)k|\w+`, "K kk", "", 1},
		{"x*?", "xx", "$$", 0},
		{`[\x{fffd}]|.`, "\xff\xfea", "-", -1},
		{`\Qa.`, "a.a.", "-", -1},
		{"", "", "-", -1},
		{`\A`, "aa", "b", -1},
		{`\z|a`, "aa", "b", -1},
	} {
		f.Add(seed.expr, seed.text, seed.to, seed.n)
	}
	f.Fuzz(func(t *testing.T, expr, text, to string, n int) {
		p, err := compilePattern(expr)
		if err != nil || len(text) > 1000 {
			return
		}
		r := regexp.MustCompile(expr)
		if got, err := p.findMatches(text, n); err != nil {
			return
		} else if want := r.FindAllStringSubmatchIndex(text, n); len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q in %q: %v, want %v", expr, text, got, want)
		}
		if got, _ := regexMatch(expr, text); got != r.MatchString(text) {
			t.Errorf("%q in %q: match %t", expr, text, got)
		}
		if got, _ := regexFind(expr, text); got != r.FindString(text) {
			t.Errorf("%q in %q: %q", expr, text, got)
		}
		if got, _ := regexFindAll(expr, text, n); !reflect.DeepEqual(got, r.FindAllString(text, n)) {
			t.Errorf("%q in %q: all %q", expr, text, got)
		}
		if got, _ := regexSplit(expr, text, n); !reflect.DeepEqual(got, r.Split(text, n)) {
			t.Errorf("%q splits %q into %q, want %q", expr, text, got, r.Split(text, n))
		}
		if got, err := regexReplaceAll(expr, to, text); err == nil && got != r.ReplaceAllString(text, to) {
			t.Errorf("%q in %q with %q: %q, want %q", expr, text, to, got, r.ReplaceAllString(text, to))
		}
		if got, err := regexReplaceAllLiteral(expr, text, to); err == nil && got != r.ReplaceAllLiteralString(text, to) {
			t.Errorf("%q in %q with %q: literally %q, want %q", expr, text, to, got, r.ReplaceAllLiteralString(text, to))
		}
	})
}
