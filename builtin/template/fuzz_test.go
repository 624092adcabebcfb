package template

import (
	"context"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// A template either returns an error, or renders to a text of at most maxContentSize bytes.
func FuzzExecute(f *testing.F) {
	f.Add(`{{ with nomadVar "app" }}{{ .w | toUpper }}{{ end }}`, false)
	f.Add(`{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`, true)
	f.Add(`{{ range loop 3 }}{{ scratch.MapSet "a" "b" . }}{{ else }}{{ break }}{{ end }}`, true)
	f.Add(`{{ range $k, $v := parseJSON "{\"a\":[1]}" }}{{ $k }}{{ index $v 0 | add 1 }}{{ end }}`, false)
	f.Add(`{{ file "../x" }}{{ env "attr.kernel.name" }}{{ nomadService 1 "k" "a.b" }}{{ byTag (nomadService "db") }}`, false)
	f.Add(`{{ scratch.MapSet "m" "a" (scratch.Get "m") }}{{ scratch.Get "m" }}{{ scratch }}{{ printf "%*[1]d" 5 }}`, false)
	f.Add(`{{ sprig_dict "a" (sprig_list 1 "x") | toYAML }}{{ sockaddr "GetAllInterfaces | sort \"-name\" | join \"address\" \",\"" }}`, true)
	f.Add(`{{ sprig_seq 1 2 9 | sprig_splitn " " 2 }}{{ sprig_chunk 2 (sprig_untilStep 0 5 1) | sprig_first | sprig_slice }}{{ sprig_randInt 0 9 | sprig_toDate "2006" }}`, true)
	f.Fuzz(func(t *testing.T, text string, strict bool) {
		n := newFakeHost()
		n.setVariable("app", "w", "x")
		n.services = []hook.Service{{ID: "1", Name: "db", Tags: []string{"a"}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		dir := t.TempDir()
		task := newTaskRenderer(n, hook.Node{Region: "global"}, hook.Scope{}, prestartOrPoststartFields{config: &hookConfig{}, namespace: "default", taskDir: hook.TaskDir{Dir: dir, PrivateDir: dir}}, false, localEvaluator{})
		e := &evaluationRequest{Name: "x", Text: text, ErrMissingKey: strict, Namespace: "default", Region: "global", Now: time.Now()}
		out, err := localEvaluator{}.evaluate(ctx, e, &taskEvaluationData{task: task, changeCountsAtFirstRead: map[dataSource]int{}})
		if ctx.Err() != nil {
			t.Fatalf("it has no end: %v", err)
		}
		if err == nil && len(out.Text) > maxContentSize {
			t.Errorf("%d bytes come of it", len(out.Text))
		}
	})
}
