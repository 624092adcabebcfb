package acl

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
)

// recordedRow is a token with policies and the answers a real Nomad gave it.
type recordedRow struct {
	Row             string
	Token           string
	Workload        string
	Policies        map[string]string
	TokenPolicies   []string `json:"token_policies"`
	Roles           map[string][]string
	ThenDelete      []string `json:"then_delete"`
	ThenDeleteRoles bool     `json:"then_delete_roles"`
	Rules           string
	Accepted        *bool
	Text            string
	Refused         json.RawMessage
	Stored          json.RawMessage
	Answers         []*int
}

func readRecording(t *testing.T) (rows, refused []recordedRow) {
	t.Helper()
	dir := shareddir.OrSkip(t, filepath.Join("..", ".."), "conformance", "acl")
	read := func(name string, into any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(name, err)
		}
	}
	for _, name := range []string{"capabilities.json", "merge.json"} {
		var file struct{ Rows, Refused []recordedRow }
		read(name, &file)
		rows, refused = append(rows, file.Rows...), append(refused, file.Refused...)
	}
	for _, row := range shareddir.ReadJSONLines[recordedRow](t, filepath.Join(dir, "policies.jsonl")) {
		if row.Accepted != nil && !*row.Accepted {
			refused = append(refused, row)
		} else {
			rows = append(rows, row)
		}
	}
	return rows, refused
}

// text returns a refused row's only policy.
func (r recordedRow) text() string {
	for _, text := range r.Policies {
		return text
	}
	return r.Rules
}

func TestRecordedTextsAreAcceptedAndStored(t *testing.T) {
	rows, refused := readRecording(t)
	texts := 0
	for _, row := range rows {
		if row.Refused != nil {
			var r struct{ Policy, Text string }
			if err := json.Unmarshal(row.Refused, &r); err != nil {
				t.Fatal(err)
			}
			refused = append(refused, recordedRow{Row: row.Row, Rules: row.Policies[r.Policy], Text: r.Text})
			continue
		}
		var storedByName map[string]json.RawMessage
		if len(row.Policies) == 1 {
			for name := range row.Policies {
				storedByName = map[string]json.RawMessage{name: row.Stored}
			}
		} else if row.Stored != nil {
			if err := json.Unmarshal(row.Stored, &storedByName); err != nil {
				t.Fatal(row.Row, err)
			}
		}
		for name, text := range row.Policies {
			texts++
			rules, err := Parse(text)
			if err != nil {
				t.Errorf("%s: %v", row.Row, err)
				continue
			}
			var stored struct{ RulesJSON json.RawMessage }
			if storedByName[name] == nil {
				continue
			}
			if err := json.Unmarshal(storedByName[name], &stored); err != nil || stored.RulesJSON == nil || string(stored.RulesJSON) == "null" {
				continue
			}
			var want, got map[string]any
			if err := json.Unmarshal(stored.RulesJSON, &want); err != nil {
				t.Fatal(row.Row, err)
			}
			encoded, err := json.Marshal(rules)
			if err == nil {
				err = json.Unmarshal(encoded, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, found := want["Raw"]; !found { // the recording leaves out the text itself
				want["Raw"] = text
			}
			gotText, _ := json.Marshal(got)
			wantText, _ := json.Marshal(want)
			if string(gotText) != string(wantText) {
				t.Errorf("%s:\n got %s\nwant %s", row.Row, gotText, wantText)
			}
		}
	}
	for _, row := range refused {
		texts++
		_, err := Parse(row.text())
		if err == nil {
			t.Errorf("%s: accepted: %s", row.Row, row.text())
			continue
		}
		want := strings.TrimPrefix(row.Text, "policy 0 invalid: 1 error occurred:\n\t* failed to parse rules: ")
		want, _, hasDump := strings.Cut(want, "&acl.")
		got := err.Error() + "\n\n"
		if hasDump && !strings.HasPrefix(got, want) || !hasDump && got != want {
			t.Errorf("%s: %s\n got %q\nwant %q", row.Row, row.text(), got, want)
		}
	}
	t.Logf("%d texts compared", texts)
}

// rights returns the rights of a row's token.
func (r recordedRow) rights(t *testing.T) *Rights {
	t.Helper()
	if r.Token == "management" {
		return Management()
	}
	names := slices.Clone(r.TokenPolicies)
	for _, policies := range r.Roles {
		if !r.ThenDeleteRoles {
			names = append(names, policies...)
		}
	}
	var policies []*Rules
	for _, name := range names {
		if text, found := r.Policies[name]; found && !slices.Contains(r.ThenDelete, name) {
			rules, err := Parse(text)
			if err != nil {
				t.Fatal(r.Row, err)
			}
			policies = append(policies, rules)
		}
	}
	return Merge(policies...)
}

// recordedDecision is a request that one right decides: its answer is 403 exactly if the right is missing.
type recordedDecision struct {
	requests string // names without the namespace, which is the query's
	allows   func(r *Rights, namespace string) bool
}

func has(capabilities ...Capability) func(*Rights, string) bool {
	return func(r *Rights, namespace string) bool {
		if namespace == "*" {
			return r.AnyNamespace(capabilities...)
		}
		return r.Namespace(namespace, capabilities...)
	}
}

func variable(path string, capability Capability) func(*Rights, string) bool {
	return func(r *Rights, namespace string) bool { return r.Variable(namespace, path, capability) }
}

func always(can func(*Rights) bool) func(*Rights, string) bool {
	return func(r *Rights, _ string) bool { return can(r) }
}

var recordedDecisions = []recordedDecision{
	{"jobs.list jobs.list.prefix jobs.list.filter", has(ListJobs)},
	{"jobs.parse", has(ParseJob, SubmitJob)},
	{"job.read job.read.absent job.allocations job.evaluations job.deployments job.deployment job.summary job.versions job.submission evals.list allocs.list deployments.list", has(ReadJob)},
	{"job.plan.same job.plan.new", has(SubmitJob, PlanJob)},
	{"job.revert", has(SubmitJob, RevertJob)},
	{"job.stable", has(SubmitJob, StableJob)},
	{"job.tag", has(SubmitJob, TagJobVersion)},
	{"job.register job.register.path", has(SubmitJob, RegisterJob)},
	{"job.evaluate.parameterized job.evaluate.absent", has(SubmitJob, EvaluateJob)},
	{"job.dispatch.badmeta job.dispatch.absent", has(DispatchJob)},
	{"job.deregister.purge.absent", has(SubmitJob, PurgeJob)},
	{"var.read.app-config", variable("app/config", Read)},
	{"var.read.app-db-pass", variable("app/db/pass", Read)},
	{"var.read.nomad-jobs-web", variable("nomad/jobs/web", Read)},
	{"var.read.top", variable("top", Read)},
	{"var.read.shared-x", variable("shared/x", Read)},
	{"var.write.top", variable("top", Write)},
	{"var.write.shared-x", variable("shared/x", Write)},
	{"nodes.list node.read agent.members", always((*Rights).ReadsNodes)},
	{"node.eligibility node.drain", always((*Rights).WritesNodes)},
	{"agent.self agent.servers agent.schedulers", always((*Rights).ReadsAgents)},
	{"agent.reload", always((*Rights).WritesAgents)},
	{"operator.scheduler operator.autopilot", always((*Rights).ReadsOperator)},
	{"operator.scheduler.write", always((*Rights).WritesOperator)},
	{"operator.snapshot", always(func(r *Rights) bool { return r.Operator(SnapshotSave) })},
	{"operator.keyring", always(func(r *Rights) bool { return r.Operator(KeyringRead) })},
	{"plugins.list", always((*Rights).ListsPlugins)},
	{"pool.read.np1", always(func(r *Rights) bool { return r.NodePool("np1", Read) })},
	{"pool.write.path", always(func(r *Rights) bool { return r.NodePool("np1", Write) })},
	{"namespace.read.default", always(func(r *Rights) bool { return r.SeesNamespace("default") })},
	{"namespace.read.prod", always(func(r *Rights) bool { return r.SeesNamespace("prod") })},
	{"namespace.read.prod-blue", always(func(r *Rights) bool { return r.SeesNamespace("prod-blue") })},
	{"namespace.write acl.tokens", always((*Rights).IsManagement)},
	{"job.register.volume-static-rw", func(r *Rights, namespace string) bool {
		return r.Namespace(namespace, SubmitJob, RegisterJob) && r.HostVolume("static", MountReadWrite)
	}},
	{"job.register.volume-secret-vol-ro", func(r *Rights, namespace string) bool {
		return r.Namespace(namespace, SubmitJob, RegisterJob) && r.HostVolume("secret-vol", MountReadOnly, MountReadWrite)
	}},
}

func TestRecordedDecisions(t *testing.T) {
	rows, _ := readRecording(t)
	dir := shareddir.OrSkip(t, filepath.Join("..", ".."), "conformance", "acl")
	var requests []struct{ ID string }
	var answers []struct{ Status int }
	for name, into := range map[string]any{"requests.json": &requests, "answers.json": &answers} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	compared := 0
	for _, row := range rows {
		if row.Token == "unknown" || len(row.Answers) == 0 {
			continue
		}
		rights := row.rights(t)
		for i, request := range requests {
			if row.Answers[i] == nil {
				continue
			}
			name, namespace, _ := strings.Cut(request.ID, "@")
			at := slices.IndexFunc(recordedDecisions, func(d recordedDecision) bool { return slices.Contains(strings.Fields(d.requests), name) })
			if at < 0 {
				continue
			}
			if strings.HasPrefix(name, "job.register") || strings.HasPrefix(name, "job.plan") {
				if namespace == "nope" || namespace == "*" {
					continue // the namespace is checked before the token
				}
			}
			compared++
			want := answers[*row.Answers[i]].Status != 403
			if got := recordedDecisions[at].allows(rights, namespace); got != want {
				t.Errorf("%s: %s: allowed %v, recorded status %d", row.Row, request.ID, got, answers[*row.Answers[i]].Status)
			}
		}
	}
	t.Logf("%d decisions compared", compared)
}
