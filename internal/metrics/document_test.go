package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

const (
	dashboardFile = "../../docs/grafana-dashboard.json"
	rulesFile     = "../../docs/prometheus-rules.yml"
)

func TestReferenceMetricsTable(t *testing.T) {
	table := docpage.NewTable("Metric", "Type", "Labels", "")
	for _, d := range Definitions {
		table.AddRow(docpage.Code(d.Name), fmt.Sprint(d.Kind), docpage.Code(d.Labels...), d.Help)
	}
	docpage.CheckPart(t, "reference/metrics.md", table.String())
}

// checkMetricsExist checks that the table has the metrics of an expression.
func checkMetricsExist(t *testing.T, expression string) {
	t.Helper()
	names := regexp.MustCompile(`\bnomad_[a-z_]+\b`).FindAllString(expression, -1)
	if len(names) == 0 && !strings.HasPrefix(expression, "up{") {
		t.Errorf("expression without a metric: %s", expression)
	}
	for _, name := range names {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if d := byPrometheusName()[base]; d != nil && (d.Kind == Histogram) == (base != name) {
			continue
		}
		if d := byPrometheusName()[name]; d == nil || d.Kind == Histogram {
			t.Errorf("%s is not a metric: %s", name, expression)
		}
	}
}

func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	expressions := regexp.MustCompile(`(?m)^\s+expr: (.*)$`).FindAllStringSubmatch(string(text), -1)
	if alerts := strings.Count(string(text), "- alert:"); alerts < 10 || len(expressions) != alerts {
		t.Fatalf("%d expressions of %d alerts", len(expressions), alerts)
	}
	for _, e := range expressions {
		checkMetricsExist(t, e[1])
	}
	if out, err := exec.Command(requirePromtool(t), "check", "rules", rulesFile).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// dashboard has the parts of a Grafana dashboard that are checked.
type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Definition string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr, RefID string }
	}
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.UID == "" || d.SchemaVersion == 0 || len(d.Panels) < 10 {
		t.Fatalf("dashboard %+v", d)
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			checkMetricsExist(t, v.Definition)
		}
	}
	ids := map[int]bool{}
	rules := "groups:\n  - name: dashboard\n    rules:\n"
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.H == 0 || p.GridPos.X+p.GridPos.W > 24 || (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] {
				t.Errorf("panel %q has two queries %s", p.Title, q.RefID)
			}
			refs[q.RefID] = true
			checkMetricsExist(t, q.Expr)
			expression := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(q.Expr)
			if strings.Contains(expression, "$") {
				t.Errorf("variable that Grafana does not have: %s", q.Expr)
			}
			rules += fmt.Sprintf("      - record: query:panel%d:%s\n        expr: %q\n", p.ID, strings.ToLower(q.RefID), expression)
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(requirePromtool(t), "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
