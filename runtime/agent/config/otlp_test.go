package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
)

func TestOTLP(t *testing.T) {
	var c Config
	if diags := c.Parse("a.hcl", []byte(`
telemetry {
  publish_node_metrics = true
  otlp {
    endpoint = "http://localhost:4317"
    protocol = "grpc"
    headers {
      authorization = "Bearer x"
    }
    task_traceparent = true
    metrics          = true
  }
}`)); len(diags) > 0 {
		t.Fatal(diags)
	}
	if diags := c.Parse("b.json", []byte(`{"telemetry": {"otlp": {"endpoint": "https://collector:4318"}}}`)); len(diags) > 0 {
		t.Fatal(diags)
	}
	want := otlp.Settings{Endpoint: "https://collector:4318", Protocol: "grpc", Headers: map[string]string{"authorization": "Bearer x"}, TasksGetTraceparent: true, ExportMetrics: true}
	if !reflect.DeepEqual(c.OTLP, want) {
		t.Errorf("got %+v, want %+v", c.OTLP, want)
	}
}

func TestInvalidOTLP(t *testing.T) {
	for _, test := range []struct{ setting, want string }{
		{`endpoint = "localhost:4318"`, "a.hcl:3,3-11: endpoint: must be a URL"},
		{`endpoint = "http://u:s3cr3t@localhost"`, "endpoint: must have no user"},
		{`protocol = "http/json"`, `protocol: "http/json" is not supported`},
		{`headers = { "a b" = "s3cr3t" }`, `headers: "a b" is not the name of a header`},
		{`headers = { a = "s3cr3t\n" }`, `headers: the value of header "a"`},
		{`metrics = "often"`, "metrics"},
		{`logs = true`, "logs is not a setting of telemetry.otlp"},
	} {
		var c Config
		diags := c.Parse("a.hcl", []byte("telemetry {\n otlp {\n  "+test.setting+"\n }\n}"))
		if text := diags.Error(); !strings.Contains(text, test.want) || strings.Contains(text, "s3cr3t") {
			t.Errorf("%s: %s, want %s", test.setting, text, test.want)
		}
		if !reflect.DeepEqual(c.OTLP, otlp.Settings{}) {
			t.Errorf("%s: got %+v", test.setting, c.OTLP)
		}
	}
}
