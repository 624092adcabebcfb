package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
)

// corpusDir returns the directory of Nomad's own job files with their JSON by Nomad. They are not
// part of this repository.
func corpusDir(t *testing.T) string {
	t.Helper()
	return shareddir.OrSkip(t, filepath.Join("..", "..", ".."), "corpus", "jobspecs")
}

func TestCorpus(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpusDir(t), "*.nomad.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(strings.TrimSuffix(path, ".nomad.hcl") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			got := readExpectedJSON(t, path)
			// The comparison distinguishes null, absent and empty values.
			if diff := jsonDiff(t, got, want); diff != "" {
				t.Errorf("got %s", diff)
			}
		})
	}
}

// readExpectedJSON returns the output of `job run -output` for a file.
func readExpectedJSON(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, diags := Parse(ParseInput{DiagnosticFileName: filepath.Base(path), Text: text, RejectsUndeclaredVariables: true})
	if diags.HasErrors() {
		t.Fatal(NomadErrorText(diags))
	}
	var b bytes.Buffer
	if err := EncodeJobRunOutput(&b, file.Job); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jsonDiff(t *testing.T, got, want []byte) string {
	t.Helper()
	var g, w any
	for text, into := range map[*[]byte]*any{&got: &g, &want: &w} {
		decoder := json.NewDecoder(bytes.NewReader(*text))
		decoder.UseNumber()
		if err := decoder.Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(collectDifferences(nil, "", g, w), "\n")
}

// collectDifferences lists the paths at which two JSON values differ.
func collectDifferences(differences []string, at string, got, want any) []string {
	g, gotMap := got.(map[string]any)
	w, wantMap := want.(map[string]any)
	if gotMap && wantMap {
		for _, key := range unionOfKeys(g, w) {
			gv, gok := g[key]
			wv, wok := w[key]
			if gok != wok {
				differences = append(differences, fmt.Sprintf("%s.%s: present %v, want %v", at, key, gok, wok))
				continue
			}
			differences = collectDifferences(differences, at+"."+key, gv, wv)
		}
		return differences
	}
	gl, gotList := got.([]any)
	wl, wantList := want.([]any)
	if gotList && wantList && len(gl) == len(wl) {
		for i := range gl {
			differences = collectDifferences(differences, fmt.Sprintf("%s[%d]", at, i), gl[i], wl[i])
		}
		return differences
	}
	if !reflect.DeepEqual(got, want) {
		differences = append(differences, fmt.Sprintf("%s: %#v, want %#v", at, got, want))
	}
	return differences
}

func unionOfKeys(maps ...map[string]any) []string {
	var keys []string
	for _, m := range maps {
		for key := range m {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}
