package config

import (
	"maps"
	"slices"
	"testing"
	"time"
)

func TestTemplateBlock(t *testing.T) {
	const configText = `
client {
  template {
    function_denylist    = ["env", "plugin"]
    disable_file_sandbox = true
    max_stale            = "0s"
    block_query_wait     = "30s"
    nomad_retry {
      attempts    = 0
      backoff     = "1s"
      max_backoff = "5s"
    }
    wait {
      min = "1s"
      max = "2s"
    }
    wait_bounds {
      max = "1h"
    }
    consul_retry {
      attempts = 1
    }
  }
}`
	var c Config
	got := diagnosticLines(c.Parse("n.hcl", []byte(configText)))
	want := []string{
		"n.hcl:20: client.template.consul_retry is ignored: there is no Consul here",
		"n.hcl:4: function_denylist: writeToFile stay denied: a template of nomad-lite starts no programs and writes no other files",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("warnings\n%q\nwant\n%q", got, want)
	}
	wait, _ := c.TemplateSettings["wait"].(map[string]time.Duration)
	bounds, _ := c.TemplateSettings["wait_bounds"].(map[string]time.Duration)
	denied, _ := c.TemplateSettings["function_denylist"].([]string)
	if !maps.Equal(wait, map[string]time.Duration{"min": time.Second, "max": 2 * time.Second}) ||
		!maps.Equal(bounds, map[string]time.Duration{"max": time.Hour}) ||
		!slices.Equal(denied, []string{"env", "plugin"}) || c.TemplateSettings["disable_file_sandbox"] != true || len(c.TemplateSettings) != 5 {
		t.Errorf("read %v", c.TemplateSettings)
	}

	if first, longest := c.TemplateRetryDelays(); first != time.Second || longest != 5*time.Second {
		t.Errorf("nomad_retry: %v, %v", first, longest)
	}
	if c.Cluster.TemplateMaxBlock != 30*time.Second || c.Cluster.TemplateMaxStale == nil || *c.Cluster.TemplateMaxStale != 0 {
		t.Errorf("read %+v", c.Cluster)
	}

	if got := diagnosticLines(c.Parse("n.hcl", []byte(`client { template { nomad_retry { max_backoff = "0" } } }`))); len(got) > 0 {
		t.Errorf("a backoff without a limit: %q", got)
	}

	c = Config{}
	got = diagnosticLines(c.Parse("n.json", []byte(`{"client": {"template": {"wait": {"min": "1s"}, "function_denylist": ["plugin", "executeTemplate", "writeToFile"]}}}`)))
	wait, _ = c.TemplateSettings["wait"].(map[string]time.Duration)
	if len(got) > 0 || !maps.Equal(wait, map[string]time.Duration{"min": time.Second}) {
		t.Errorf("as JSON: said %q, read %v", got, c.TemplateSettings)
	}

	for configText, want := range map[string]string{
		"wait {\nmin = \"5s\"\nmax = \"1s\"\n}":                    "wait: min 5s is greater than max 1s",
		`wait { middle = "5s" }`:                                   "wait: has min and max, and no middle",
		`wait_bounds { min = "x" }`:                                `wait_bounds: min must be a duration, such as "90s"`,
		`wait = "5s"`:                                              "wait: is a block: wait { min = … max = … }",
		`nomad_retry { attempts = 3 }`:                             "nomad_retry: attempts is ignored: a failed read is retried until it succeeds, and stops no task",
		`nomad_retry { backof = "1s" }`:                            `nomad_retry: has backoff, max_backoff and attempts, and no backof; did you mean "backoff"?`,
		`nomad_retry { backoff = "0" }`:                            "nomad_retry: backoff must be at least 1ms",
		"nomad_retry {\nbackoff = \"5s\"\nmax_backoff = \"1s\"\n}": "nomad_retry: backoff 5s is greater than max_backoff 1s",
		`function_denylist = "env"`:                                `function_denylist: must be a list, such as ["a", "b"]`,
	} {
		configText = "client {\n template {\n" + configText + "\n}\n}"
		if got := diagnosticLines(new(Config).Parse("n.hcl", []byte(configText))); len(got) != 1 || got[0] != "n.hcl:3: "+want {
			t.Errorf("%s: said %q, want %q", configText, got, want)
		}
	}
}
