package template

import (
	"context"
	"errors"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the results of the functions to testdata/functions.golden")

// noSources are the data of a template that reads no source. Its seed is constant.
type noSources struct{}

func (noSources) interpolate(context.Context, string) (string, error) {
	return "", errors.New("no attributes")
}

func (noSources) readSource(context.Context, sourceQuery) (sourceValue, error) {
	return sourceValue{}, errors.New("no sources")
}

func (noSources) randomSeed(context.Context) ([]byte, error) { return []byte("constant"), nil }

// evaluateText evaluates a template that reads no source, at a constant time.
func evaluateText(ctx context.Context, text string) (string, error) {
	e := &evaluationRequest{Name: "x", Text: text, Env: map[string]string{"GREETING": "hello"}, Now: time.Unix(1400000000, 0)}
	result, err := localEvaluator{}.evaluate(ctx, e, noSources{})
	if err != nil {
		return "", err
	}
	return result.Text, nil
}

// The golden file has a template in each line that starts with {{, and its quoted result or the word error in the
// next line. The values of nil, which text/template prints as <no value>, are results too.
func TestFunctionResults(t *testing.T) {
	const path = "testdata/functions.golden"
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var updated strings.Builder
	lines, templates := strings.Split(strings.TrimSuffix(string(golden), "\n"), "\n"), 0
	for i, line := range lines {
		if !strings.HasPrefix(line, "{{") {
			if line == "" {
				updated.WriteString("\n")
			}
			continue
		}
		templates++
		got, want := "error", ""
		if i+1 < len(lines) {
			want = lines[i+1]
		}
		out, err := evaluateText(t.Context(), line)
		if err == nil {
			got = strconv.Quote(out)
		}
		updated.WriteString(line + "\n" + got + "\n")
		if got != want && !*update {
			t.Errorf("%s\ngot  %s (%v)\nwant %s", line, got, err, want)
		}
	}
	if templates == 0 {
		t.Fatal("the golden file has no template")
	}
	if *update {
		if err := os.WriteFile(path, []byte(updated.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
