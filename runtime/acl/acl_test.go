package acl

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func mustParse(t *testing.T, text string) *Rules {
	t.Helper()
	rules, err := Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return rules
}

func rightsOf(t *testing.T, texts ...string) *Rights {
	t.Helper()
	var policies []*Rules
	for _, text := range texts {
		policies = append(policies, mustParse(t, text))
	}
	return Merge(policies...)
}

func TestMostSpecificLabelCounts(t *testing.T) {
	for _, test := range []struct {
		name, policy string
		want         bool
	}{
		{"no rule", ``, false},
		{"another namespace", `namespace "prod" { policy = "read" }`, false},
		{"exact name", `namespace "prod-blue" { policy = "read" }`, true},
		{"all namespaces", `namespace "*" { policy = "read" }`, true},
		{"exact name without the capability", "namespace \"*\" { policy = \"read\" }\nnamespace \"prod-blue\" { capabilities = [\"submit-job\"] }", false},
		{"longer pattern grants", "namespace \"*\" { policy = \"deny\" }\nnamespace \"prod-*\" { policy = \"read\" }", true},
		{"longer pattern denies", "namespace \"prod-*\" { policy = \"deny\" }\nnamespace \"*\" { policy = \"read\" }", false},
		{"last of two patterns of equal length grants", "namespace \"prod*\" { policy = \"read\" }\nnamespace \"*blue\" { policy = \"deny\" }", true},
		{"last of two patterns of equal length denies", "namespace \"prod*\" { policy = \"deny\" }\nnamespace \"*blue\" { policy = \"read\" }", false},
		{"pattern in the middle", `namespace "p*d-*e" { policy = "read" }`, true},
		{"pattern with overlapping parts", `namespace "prod-blue*blue" { policy = "read" }`, false},
		{"pattern with overlapping ends", `namespace "prod-b*blue" { policy = "read" }`, false},
		{"denied as a capability", `namespace "prod-*" { capabilities = ["read-job", "deny"] }`, false},
		{"denied by the second block of the label", "namespace \"prod-*\" { policy = \"read\" }\nnamespace \"prod-*\" { policy = \"deny\" }", false},
	} {
		if got := rightsOf(t, test.policy).Namespace("prod-blue", ReadJob); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
}

func TestRightsOfPoliciesAddUpAndDenyTakesAll(t *testing.T) {
	read, submit, deny := `namespace "a" { policy = "read" }`, `namespace "a" { capabilities = ["submit-job"] }`, `namespace "a" { policy = "deny" }`
	if r := rightsOf(t, read, submit); !r.Namespace("a", ReadJob) || !r.Namespace("a", SubmitJob) {
		t.Error("the rights of two policies do not add up")
	}
	for _, policies := range [][]string{{read, deny}, {deny, read}} {
		if r := rightsOf(t, policies...); r.Namespace("a", ReadJob) || r.SeesNamespace("a") || r.AnyNamespace(ReadJob) {
			t.Error("deny does not take the rights of another policy", policies)
		}
	}
	node := rightsOf(t, `node { policy = "write" }`, `node { policy = "deny" }`, `agent { policy = "read" }`, `agent { policy = "write" }`)
	if node.ReadsNodes() || node.WritesNodes() || !node.ReadsAgents() || !node.WritesAgents() {
		t.Error("blocks without a label are merged wrongly")
	}
	operator := rightsOf(t, `operator { policy = "deny" }`, `operator { capabilities = ["snapshot-save"] }`)
	if operator.Operator(SnapshotSave) || operator.ReadsOperator() {
		t.Error("the operator policy deny does not take a capability")
	}
	both := rightsOf(t, "operator {\n policy = \"write\"\n capabilities = [\"deny\"]\n}")
	if !both.Operator(SnapshotSave) || !both.WritesOperator() {
		t.Error("the operator capability deny takes the rights of the policy")
	}
}

func variables(namespace string, paths ...string) string {
	var b strings.Builder
	for _, p := range paths {
		path, capabilities, _ := strings.Cut(p, "=")
		fmt.Fprintf(&b, "path %q { capabilities = [%s] }\n", path, capabilities)
	}
	return fmt.Sprintf("namespace %q {\nvariables {\n%s}\n}\n", namespace, b.String())
}

func TestVariables(t *testing.T) {
	for _, test := range []struct {
		name     string
		policies []string
		want     bool // read of app/db in prod
	}{
		{"another path", []string{variables("prod", `web="read"`)}, false},
		{"exact path", []string{variables("prod", `app/db="read"`)}, true},
		{"write does not read", []string{variables("prod", `app/db="write"`)}, false},
		{"longest path", []string{variables("prod", `app/*="read"`, `*="deny"`)}, true},
		{"exact path denies", []string{variables("prod", `app/*="read"`, `app/db="deny"`)}, false},
		{"deny in the same list", []string{variables("prod", `app/*="read","deny"`)}, false},
		{"deny in another list", []string{variables("prod", `app/*="read"`), variables("prod", `app/*="deny"`)}, true},
		{"denied namespace", []string{variables("prod", `app/*="read"`), `namespace "prod" { policy = "deny" }`}, true},
		{"write policy of the namespace", []string{`namespace "prod" { policy = "write" }`}, false},
		{"pattern of the namespace with a longer path", []string{variables("*", `app/db="read"`), variables("prod", `*="deny"`)}, true},
		{"pattern of the namespace with a shorter path", []string{variables("*", `a*="read"`), variables("prod", `ap*="deny"`)}, false},
	} {
		if got := rightsOf(t, test.policies...).Variable("prod", "app/db", Read); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
	if r := rightsOf(t, variables("prod", `app/*="read"`)); !r.Variable("prod", "app/x", List) {
		t.Error("read does not list")
	}
}

func TestWorkloadReadsItsOwnVariablesAndAllServices(t *testing.T) {
	deny := rightsOf(t, `namespace "*" { policy = "deny" }`, variables("*", `*="deny"`))
	r := deny.WithWorkload(Workload{"prod", "web", "app", "main"})
	for path, want := range map[string]bool{
		"nomad/jobs": true, "nomad/jobs/web": true, "nomad/jobs/web/app": true, "nomad/jobs/web/app/main": true,
		"nomad/jobs/web/app/side": false, "nomad/jobs/web/db": false, "nomad/jobs/other": false, "nomad": false, "app": false,
	} {
		if got := r.Variable("prod", path, Read); got != want {
			t.Errorf("%s: got %v", path, got)
		}
	}
	if r.Variable("prod", "nomad/jobs/web", Write) || r.Variable("default", "nomad/jobs", Read) || r.Namespace("prod", ReadJob) {
		t.Error("the workload has rights beyond its own")
	}
	if !r.Service("default") || deny.Service("default") {
		t.Error("services of all namespaces")
	}
}

func TestManagementMayDoEverything(t *testing.T) {
	r := Management()
	if !r.Namespace("x", SubmitJob) || !r.Variable("x", "y", Write) || !r.HostVolume("v", MountReadWrite) || !r.NodePool("p", Delete) || !r.WritesNodes() ||
		!r.WritesAgents() || !r.WritesOperator() || !r.Operator(SnapshotSave) || !r.ReadsPlugins() || !r.SeesNamespace("x") || !r.AnyNamespace(ListJobs) || !r.Service("x") {
		t.Error("a right is missing")
	}
}

func TestPoliciesStandForCapabilities(t *testing.T) {
	write := rightsOf(t, `namespace "a" { policy = "write" }`)
	for _, c := range NamespaceCapabilities() {
		want := !slices.Contains([]Capability{
			AllocNodeExec, CSIRegisterPlugin, SentinelOverride, HostVolumeDelete, HostVolumeRegister, HostVolumeWrite, CancelDeployment,
			DeleteServiceRegistration, DeregisterJob, EvaluateJob, FailDeployment, ForcePeriodicJob, GCAllocation, PauseAllocation, PauseDeployment,
			PlanJob, PromoteDeployment, PurgeJob, RegisterJob, RevertJob, SetAllocHealthDeployment, StableJob, TagJobVersion, UnblockDeployment,
		}, c)
		if got := write.Namespace("a", c); got != want {
			t.Errorf("write: %s: got %v", c, got)
		}
	}
	volumes := mustParse(t, `namespace "a" { capabilities = ["host-volume-write"] }`).Namespaces[0].Capabilities
	if want := []Capability{HostVolumeWrite, HostVolumeRegister, HostVolumeCreate, HostVolumeDelete, HostVolumeRead}; !slices.Equal(volumes, want) {
		t.Errorf("host-volume-write stands for %v", volumes)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`namespace "a" { policy = "list" }`:                                `Invalid namespace policy: "list": use one of deny, read, write, scale`,
		`namespace "a b" { policy = "read" }`:                              `Invalid namespace name: "a b": use 1 to 128 letters, digits, and the characters -*`,
		`namespace "a" { capabilities = ["no"] }`:                          `Invalid namespace capability 'no': `,
		`node { policy = "" }`:                                             `Invalid node policy: ""`,
		"node { policy = \"read\" }\nnode { policy = \"read\" }":           "Invalid or duplicate policy keys: node",
		`node "x" { policy = "read" }`:                                     "Invalid or duplicate policy keys: x",
		"x = 1\nnode { policy = \"read\" }":                                "Invalid or duplicate policy keys: x",
		`# nothing`:                                                        "Invalid policy: # nothing",
		`namespace "a" { variables { } }`:                                  "Invalid variable policy: no variable paths in namespace a",
		`namespace "a" { variables { path "/x" { capabilities = [] } } }`:  `Invalid variable path "/x" in namespace a: cannot start with a leading '/'`,
		`namespace "a" { variables { path "x" { capabilities = ["no"] }}}`: "Invalid variable capability 'no' in namespace a",
		`operator { capabilities = ["no"] }`:                               "Invalid operator capability 'no'",
		`node_pool "p" { policy = "no" }`:                                  "Invalid node pool policy 'no' for 'p'",
		`{"\0`:                                                             "Failed to parse ACL Policy: ",
		strings.Repeat("[", 1<<20):                                         "Failed to parse ACL Policy: more than 100 blocks or lists are nested",
		`namespace "a" {`:                                                  "Failed to parse ACL Policy: At ",
	} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}

// FuzzParse checks that a text that is accepted makes rights without a panic, and that a second reading has the same rights.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		``, `{}`, `namespace "a*" { policy = "write" }`, `{"namespace": {"a": {"capabilities": ["read-job"], "variables": {"path": {"x/*": {"capabilities": ["read"]}}}}}}`,
		variables("a", `x="read"`), "node { policy = \"read\" }\nhost_volume \"v\" { policy = \"write\" }\nnode_pool \"*\" { policy = \"deny\" }", `operator { policy = "write" }`,
		`namespace = "a"`, `namespace { }`, `node = "x"`, `"" "" {}`, `namespace "a" "b" {}`, `[]`, `{"namespace": [1]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := Parse(text)
		if err != nil {
			return
		}
		first, second := Merge(rules), Merge(mustParse(t, text))
		for _, c := range NamespaceCapabilities() {
			for _, namespace := range []string{"a", "default", ""} {
				if first.Namespace(namespace, c) != second.Namespace(namespace, c) {
					t.Fatalf("%s in %q: two readings of %q differ", c, namespace, text)
				}
				if first.Namespace(namespace, c) && !first.AnyNamespace(c) {
					t.Fatalf("%s in %q but in no namespace: %q", c, namespace, text)
				}
			}
		}
		first.Variable("a", "x/y", Read)
	})
}

// BenchmarkNamespace measures one decision with the rules of 100 policies.
func BenchmarkNamespace(b *testing.B) {
	var policies []*Rules
	for i := range 100 {
		rules, err := Parse(fmt.Sprintf("namespace \"team-%d-*\" { policy = \"read\" }", i))
		if err != nil {
			b.Fatal(err)
		}
		policies = append(policies, rules)
	}
	r := Merge(policies...)
	for b.Loop() {
		r.Namespace("other", ReadJob)
	}
}
