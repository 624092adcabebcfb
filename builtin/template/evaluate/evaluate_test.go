package evaluate

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// newTestData has a variable, services of Nomad and of Consul, and a file.
func newTestData() []Datum {
	v := &api.Variable{Namespace: "default", Path: "app", CreateIndex: 3, ModifyIndex: 4, Items: map[string]string{"user": "admin", "empty": ""}}
	web := &api.ServiceRegistration{ID: "1", ServiceName: "web", NodeID: "node", Address: "192.0.2.1", Port: 80, Datacenter: "dc1", Tags: []string{"b", "a"}}
	return []Datum{
		{Query: Query{Kind: Variable, Name: "app", Namespace: "default"}, Value: Value{Exists: true, Variable: v}},
		{Query: Query{Kind: Variable, Name: "nope", Namespace: "default"}},
		{Query: Query{Kind: Variable, Name: "denied", Namespace: "default"}, Unavailable: true},
		{Query: Query{Kind: VariableList, Name: "ap", Namespace: "default"}, Value: Value{Exists: true, Variables: []*api.VariableMetadata{v.Metadata()}}},
		{Query: Query{Kind: VariableList, Name: "no", Namespace: "default"}, Value: Value{Exists: true}},
		{Query: Query{Kind: Service, Name: "web"}, Value: Value{Exists: true, Services: []*api.ServiceRegistration{web}}},
		{Query: Query{Kind: Service, Name: "web", Choose: "1|k"}, Value: Value{Exists: true, Services: []*api.ServiceRegistration{web}}},
		{Query: Query{Kind: ServiceList}, Value: Value{Exists: true, ServiceNames: []*api.ServiceRegistrationStub{{ServiceName: "web", Tags: []string{"b", "a"}}, {ServiceName: "db"}}}},
		{Query: Query{Kind: ConsulService, Name: "db"}, Value: Value{Exists: true, ConsulServices: []ConsulInstance{
			{ServiceRegistration: api.ServiceRegistration{ServiceName: "db", Address: "192.0.2.2", Port: 1, Tags: []string{"x"}, Datacenter: "dc1"}, Status: "passing"},
			{ServiceRegistration: api.ServiceRegistration{ServiceName: "db", Address: "192.0.2.3", Port: 2, Datacenter: "dc2"}, Status: "critical"},
		}}},
		{Query: Query{Kind: ConsulServiceList}},
		{Query: Query{Kind: File, Name: "/local/x"}, Value: Value{Exists: true, Text: "content"}},
		{Query: Query{Kind: File, Name: "/etc/x"}, Err: "'/etc/x' is outside of sandbox"},
		{Query: Query{Kind: NodeAttribute, Name: "attr.cpu.arch"}, Value: Value{Exists: true, Text: "amd64"}},
		{Query: Query{Kind: NodeAttribute, Name: "attr.nope"}},
	}
}

func TestEvaluate(t *testing.T) {
	for _, c := range []struct {
		text, want string
		err        string   // a part of the error
		missing    []string // the names of missing data
	}{
		{text: "", want: ""},
		{text: `{{ with nomadVar "app" }}{{ .user }} {{ .Metadata.ModifyIndex }} {{ .user.Parent.Path }} {{ .ItemsMap | toJSON }}{{ end }}`, want: `admin 4 app {"empty":"","user":"admin"}`},
		{text: `{{ nomadVarExists "app" }} {{ nomadVarExists "nope" }} {{ nomadVarExists "" }}`, want: "true false false"},
		{text: `{{ nomadVar "nope" }}{{ nomadVar "denied" }}`, missing: []string{"nomad.var.block(nope@default.global)", "nomad.var.block(denied@default.global)"}},
		{text: `{{ nomadVarExists "denied" }}`, missing: []string{"nomad.var.get(denied@default.global)"}},
		{text: `{{ nomadVar "@" }}`, err: `nomad.var.get: invalid format: "@"`},
		{text: `{{ range nomadVarList "ap" }}{{ . }} {{ .CreateIndex }}{{ end }}{{ range nomadVarList "no" }}x{{ end }}`, want: "app 3"},
		{text: `{{ nomadVarListSafe "no" }}`, missing: []string{"nomad.var.list(no@default.global)"}},
		{text: `{{ nomadVarList "a" "b" }}`, err: "nomadVarList takes either"},
		{text: `{{ range nomadService "web" }}{{ .Address }}:{{ .Port }} {{ .Tags }}{{ end }}{{ range nomadService "c.web" }}x{{ end }}`, want: "192.0.2.1:80 [a b]"},
		{text: `{{ len (nomadService 1 "k" "web") }}`, want: "1"},
		{text: `{{ nomadService 1 }}`, err: "expected string for <service> argument"},
		{text: `{{ nomadService "1" "k" "web" }}`, err: "expected integer for <count> argument"},
		{text: `{{ nomadService 1 2 "web" }}`, err: "expected string for <key> argument"},
		{text: `{{ nomadService 1 "k" 2 }}`, err: "expected string for <service> argument"},
		{text: `{{ nomadService }}`, err: "expected arguments <service>"},
		{text: `{{ range nomadServices }}{{ .Name }}{{ .Tags }}{{ end }}`, want: "db[]web[a b]"},
		{text: `{{ range service "db" }}{{ .Address }}{{ .Status }}{{ end }} {{ len (service "db" "any") }} {{ len (service "x.db@dc1|any") }} {{ len (service "db|critical") }}`, want: "192.0.2.2passing 2 1 1"},
		{text: `{{ service "db|nope" }}`, err: `health.service: invalid filter: "nope"`},
		{text: `{{ services }}{{ key "a" }}{{ importedServices "p" }}`, missing: []string{"catalog.services", "list.importedServices(p)", "kv.block(a)"}},
		{text: `{{ with secret "s/x" }}{{ end }}`, missing: []string{"vault.read(s/x)"}},
		{text: `{{ file "/local/x" }}{{ file "" }}`, want: "content"},
		{text: `{{ file "/etc/x" }}`, err: "error calling file: '/etc/x' is outside of sandbox"},
		{text: `{{ env "A" }} {{ env "attr.cpu.arch" }} {{ env "attr.nope" }} {{ envOrDefault "B" "b" }} {{ mustEnv "A" }}`, want: "a amd64  b a"},
		{text: `{{ mustEnv "B" }}`, err: "required environment variable B is empty"},
		{text: `{{ toTOML (parseJSON "{\"a\":1}") }} {{ sprig_int "3.9" }}`, want: "a = 1.0 3"},
		{text: `{{ plugin "/bin/true" }}`, err: "error calling plugin: function is disabled"},
		{text: `{{ sprig_upper "a" }}`, err: "error calling sprig_upper: function is disabled"},
		{text: "{{ nope }}", err: `(dynamic): parse: template: :1: function "nope" not defined`},
		{text: strings.Repeat("{{ if 1 }}", 11_000), err: "a template has at most 10000 blocks"},
	} {
		r := Evaluate(&Request{Text: c.text, Namespace: "default", Env: map[string]string{"A": "a"}, DeniedFunctions: []string{"sprig_up*"}, Data: newTestData()})
		if len(r.Unknown) > 0 || c.err == "" && r.Err != "" || c.err != "" && !strings.Contains(r.Err, c.err) || !slices.Equal(r.Missing, c.missing) ||
			c.err == "" && c.missing == nil && string(r.Text) != c.want {
			t.Errorf("%.100s: %q, error %q, missing %q, unknown %v", c.text, r.Text, r.Err, r.Missing, r.Unknown)
		}
	}
}

// A template without data is executed to its end, so that all its queries are known at once.
func TestUnknownQueries(t *testing.T) {
	r := Evaluate(&Request{Text: `{{ with nomadVar "a" }}{{ nomadVar "b" }}{{ end }}{{ nomadVar "c@ns.eu" }}{{ nomadVar "a" }}{{ env "meta.x" }}{{ env "A" }}{{ env "B" }}{{ nomadService 2 "k" "s" }}`, Namespace: "default", Env: map[string]string{"A": ""}})
	want := []Query{
		{Kind: Variable, Name: "a", Namespace: "default"}, {Kind: Variable, Name: "c", Namespace: "ns", Region: "eu"},
		{Kind: NodeAttribute, Name: "meta.x"}, {Kind: Service, Name: "s", Choose: "2|k"},
	}
	if !slices.Equal(r.Unknown, want) || !slices.Equal(r.Used, want) || !slices.Equal(r.UsedEnv, []string{"A"}) {
		t.Errorf("unknown %v, used %v, variables %v", r.Unknown, r.Used, r.UsedEnv)
	}
}

// The order of interfaces is go-sockaddr's also for selectors that need no route.
func TestSortInterfaces(t *testing.T) {
	if _, err := sortInterfaces("address,nope", nil); err == nil || err.Error() != `unknown sort type: "nope"` {
		t.Errorf("error %v", err)
	}
	text, err := evaluateSockaddr(`GetInterfaceIP "^lo$"`)
	if err != nil || text != "" { // an address of the loopback interface is not forwardable
		t.Errorf("%q, %v", text, err)
	}
}
