package jobcheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// callersFixture has the four callers of package admission that get job files: the HTTP API, as an agent serves it, and what the
// commands plan, validate and run do before they start anything. All of them get the facts of one node.
type callersFixture struct {
	node   *api.Node
	client *api.Client
}

// schemas are the schemas of the drivers of the node.
var schemas = map[string]admission.DriverConfigSchema{
	"raw_exec": {Spec: hclspec.Object(map[string]*hclspec.Spec{
		"command": hclspec.Attr("command", "string", true), "args": hclspec.Attr("args", "list(string)", false),
	})},
	"simulation": {}, "host_network": {}, "podman": {}, "docker": {},
}

// capabilities are the capabilities of the drivers of the node.
var capabilities = map[string]*driver.Capabilities{
	"raw_exec":     {NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}, MountConfigs: driver.MountConfigsNone},
	"simulation":   {NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}},
	"host_network": {NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost}},
	"podman":       {NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}, MustCreateNetwork: true},
	"docker":       {NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}, MustCreateNetwork: true},
}

// checkHooks rejects all attachments: the hook absent does not exist, and no other hook accepts its attachment.
func checkHooks(job *api.Job) (faults []admission.HookAttachmentFault) {
	for _, at := range model.HookAttachments(job) {
		fault := admission.HookAttachmentFault{Attachment: at, IsHookMissing: at.Hook == "absent", Err: errors.New("bad value: correct it")}
		if fault.IsHookMissing {
			fault.Err = errors.New("no such hook: install it")
		}
		faults = append(faults, fault)
	}
	return faults
}

// apiPlugins are the plugins of the HTTP API.
type apiPlugins struct{}

func (apiPlugins) CheckHookAttachments(_ context.Context, job *api.Job) ([]admission.HookAttachmentFault, []error) {
	return checkHooks(job), nil
}

func (apiPlugins) TaskConfigSchema(_ context.Context, driver string) (*hclspec.Spec, error) {
	schema, found := schemas[driver]
	if !found {
		return nil, errors.New("no such driver")
	}
	return schema.Spec, nil
}

func (apiPlugins) DriverCapabilities(_ context.Context, driverName string) (*driver.Capabilities, error) {
	return capabilities[driverName], nil
}

func newCallersFixture(t *testing.T) *callersFixture {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), KeyFile: filepath.Join(dir, "keyring.json"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	node := schedtest.NewReadyNodeWithMockDriver(1 << 20)
	node.Attributes["nomad.service_discovery"] = "true"
	node.Attributes["plugins.secrets.nomad.version"] = "1"
	node.Drivers = make(map[string]*api.DriverInfo)
	for name := range capabilities {
		node.Drivers[name] = &api.DriverInfo{Detected: true, Healthy: true}
	}
	node.HostVolumes = map[string]*api.HostVolumeInfo{"data": {Path: dir}}
	node.NodeResources = &api.NodeResources{}
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutNodeWithStorageEvents(node); return nil }); err != nil {
		t.Fatal(err)
	}
	logger := hclog.NewNullLogger()
	server := httptest.NewServer(httpapi.New(httpapi.Config{
		Store: s, Plugins: apiPlugins{}, NodeID: node.ID, Region: api.GlobalRegion, Logger: logger,
		Scheduler: scheduler.New(scheduler.Config{Store: s, NodeID: node.ID, Logger: logger, HostEnv: scheduler.Env{
			NewID: uuid.NewString, IsPortFree: func(scheduler.HostPort) bool { return true }, RandIntN: func(int) int { return 0 }, Now: time.Now,
		}}),
	}))
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &callersFixture{node, client}
}

// facts returns the facts about the node that a command has.
func (c *callersFixture) facts(job *api.Job) admission.Node {
	features := scheduler.PlacementNodeOf(c.node).NodeFeatures
	return admission.Node{
		DriverNames: slices.Collect(maps.Keys(capabilities)), ConfigSchemaByDriver: schemas, CapabilitiesByDriver: capabilities,
		HookFaults: checkHooks(job), Features: &features,
	}
}

// outcome is what one caller has reported about a job.
type outcome struct {
	fault    []string // texts of faults
	rejected []string // texts of refusals for which the caller rejects the job
	warned   []string // texts of refusals for which the caller prints a warning
	ids      []string // ids of all refusals in the answer
	config   []string // texts of errors in config blocks
	accepted bool
}

// command returns the outcome of a command that prints the answer.
func (c *callersFixture) command(t *testing.T, file *jobfile.File, caller admission.CallerKind) (o outcome) {
	t.Helper()
	model.Canonicalize(file.Job)
	answer := file.CanonicalizeAndCheckAdmission(t.Context(), c.facts(file.Job), admission.CheckOptions{Caller: caller})
	report := jobfile.NewCheckReport()
	accepted, err := file.PrintAdmissionAnswer(&cli.Streams{Out: report, Err: report, NoColour: true}, "heading", &answer)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range model.LeafFaults(answer.ValidationErr) {
		o.fault = append(o.fault, fault.Text)
	}
	for _, r := range answer.Refusals {
		o.ids = append(o.ids, r.Kind.ID)
	}
	for _, d := range report.Diagnostics {
		switch {
		case d.ID != "" && d.Severity == "warning":
			o.warned = append(o.warned, d.Text)
		case d.ID != "":
			o.rejected = append(o.rejected, d.Text)
		case strings.HasPrefix(d.Text, "Task \""):
			o.config = append(o.config, d.Text)
		}
	}
	o.accepted = accepted
	return o
}

// api returns the texts with which the routes that validate, plan and register a job reject it, without the faults that
// are warnings of two of the routes, and the plan.
func (c *callersFixture) api(t *testing.T, job *api.Job, driverFaults []string) (texts map[string]string, plan *api.JobPlanResponse) {
	t.Helper()
	text := func(err error) string {
		var response api.UnexpectedResponseError
		if err != nil && !errors.As(err, &response) {
			t.Fatal(err)
		}
		return response.Body()
	}
	validation, _, err := c.client.Jobs().Validate(job, nil)
	texts = map[string]string{"validate": text(err)}
	if err == nil {
		texts["validate"] = textWithoutDriverFaults(validation, driverFaults)
	}
	plan, _, err = c.client.Jobs().Plan(job, false, nil)
	texts["plan"] = text(err)
	registered, _, err := c.client.Jobs().Register(job, nil)
	texts["register"] = text(err)
	for _, fault := range driverFaults {
		const consequence = ". The task will fail when it is started."
		if registered != nil && !strings.Contains(registered.Warnings, fault+consequence) || plan != nil && !strings.Contains(plan.Warnings, fault+consequence) {
			t.Errorf("warnings of register and plan %v %v, want %q", registered, plan, fault)
		}
	}
	return texts, plan
}

var configErrorPattern = regexp.MustCompile(`(?s)^Task group (.+), task (.+): driver \S+: config: (.*)$`)

func textWithoutDriverFaults(v *api.JobValidateResponse, driverFaults []string) string {
	others := slices.DeleteFunc(slices.Clone(v.ValidationErrors), func(text string) bool {
		return configErrorPattern.MatchString(text) || slices.Contains(driverFaults, text)
	})
	switch {
	case len(others) == len(v.ValidationErrors):
		return v.Error
	case len(others) == 0:
		return ""
	case len(others) == 1 && strings.HasPrefix(others[0], "This job cannot run here:"):
		return others[0]
	}
	return model.FormatErrorList(others)
}

// compare checks that the four callers give one answer about a job file. It returns the ids of the refusals.
func (c *callersFixture) compare(t *testing.T, file *jobfile.File) []string {
	t.Helper()
	validate, run := c.command(t, file, admission.Validate), c.command(t, file, admission.Foreground)
	if !slices.Equal(validate.ids, run.ids) || !slices.Equal(validate.fault, run.fault) || !slices.Equal(validate.config, run.config) {
		t.Errorf("validate and run differ:\n%+v\n%+v", validate, run)
	}
	answer := file.CanonicalizeAndCheckAdmission(t.Context(), c.facts(file.Job), admission.CheckOptions{Caller: admission.API})
	want := ""
	if rejected := answer.RefusalsWithEffect(admission.Rejects); answer.ValidationErr != nil {
		want = answer.ValidationErr.Error()
	} else if len(rejected) > 0 {
		want = "This job cannot run here:"
		for _, r := range rejected {
			want += "\n" + strings.Join(r.Path, ".") + ": " + r.Text
		}
	}
	if *file.Job.Region != api.GlobalRegion {
		want = "No path to region" // the API rejects the request before it looks at the job
	}
	var driverFaults []string
	for _, r := range answer.RefusalsWithEffect(admission.Warns) {
		driverFaults = append(driverFaults, strings.Join(r.Path, ".")+": "+r.Text)
	}
	replies, plan := c.api(t, file.Job, driverFaults)
	for route, got := range replies {
		if strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%s:\n got %q\nwant %q", route, got, want)
		}
	}
	// A command rejects whatever the API rejects, and otherwise only what the table says.
	if want != "" && *file.Job.Region == api.GlobalRegion && (validate.accepted || run.accepted) {
		t.Errorf("the API rejects the job: %q; validate %+v, run %+v", want, validate, run)
	}
	blocked := false
	for _, r := range answer.Refusals {
		switch r.Kind.Scope {
		case admission.OnNode, admission.UntilInstalled:
			blocked = true
		}
	}
	if plan != nil && blocked && file.Job.Periodic == nil && !file.Job.IsParameterized() && hasInstances(file.Job) && len(plan.FailedTGAllocs) == 0 && plan.Annotations != nil {
		t.Errorf("%v: the plan places the job", validate.ids)
	}
	return validate.ids
}

func hasInstances(job *api.Job) bool {
	return slices.ContainsFunc(job.TaskGroups, func(g *api.TaskGroup) bool { return *g.Count > 0 })
}

func parseFile(t *testing.T, name string, text []byte) *jobfile.File {
	t.Helper()
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: name, Text: text, RejectsUndeclaredVariables: true})
	if diags.HasErrors() {
		t.Fatal(jobspec.NomadErrorText(diags))
	}
	return &jobfile.File{Job: file.Job, Parsed: file, SourceText: text}
}

// TestCallersAgreeOnTheCorpus compares the answers about Nomad's own job files.
func TestCallersAgreeOnTheCorpus(t *testing.T) {
	dir := shareddir.OrSkip(t, filepath.Join("..", "..", "..", ".."), "corpus", "jobspecs")
	files, err := filepath.Glob(filepath.Join(dir, "*.nomad.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	c := newCallersFixture(t)
	counts := make(map[string]int)
	for i, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			file := parseFile(t, path, text)
			// The files of the corpus have the same few ids, and the API does not change the type of a job.
			file.Job.ID = new(fmt.Sprintf("corpus-%d", i))
			if namespace := file.Job.Namespace; namespace != nil { // the commands do not know the namespaces of an agent
				if _, err := c.client.Namespaces().Register(&api.Namespace{Name: *namespace}, nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range c.compare(t, file) {
				counts[id]++
			}
		})
	}
	t.Logf("%d files, refusals by id: %v", len(files), counts)
}

// refusedJob is a job with one refusal.
type refusedJob struct {
	job, group, task string // blocks in the job, its group and its task
	edit             func(*api.Job)
}

// refusedJobs has a job for each row of the table.
var refusedJobs = map[string]refusedJob{
	"unknown-network-mode":  {group: "network {\n mode = \"driver\"\n }"},
	"further-network":       {group: "network {}\n network {\n mode = \"none\"\n }"},
	"host-network-hostname": {group: "network {\n hostname = \"x\"\n }"},
	"missing-network-mode":  {group: "network {\n mode = \"bridge\"\n }"},
	"missing-host-network":  {group: "network {\n port \"a\" {\n host_network = \"public\"\n }\n }"},
	"consul-connect":        {group: "network {\n mode = \"bridge\"\n }\n service {\n connect {\n sidecar_service {}\n }\n }"},
	"consul-namespace":      {group: "consul {\n namespace = \"a\"\n}\nservice {}"},
	"unknown-port-label":    {group: "service {\n provider = \"nomad\"\n port = \"x\"\n }"},
	"csi-volume":            {group: "volume \"v\" {\n type = \"csi\"\n source = \"x\"\n access_mode = \"single-node-writer\"\n attachment_mode = \"file-system\"\n }"},
	"missing-host-volume":   {group: "volume \"v\" {\n type = \"host\"\n source = \"x\"\n }"},
	"csi-plugin":            {task: "csi_plugin {\n id = \"x\"\n type = \"node\"\n }"},
	"secret-provider":       {task: "secret \"x\" {\n provider = \"vault\"\n path = \"a\"\n }"},
	"secret-path":           {task: "secret \"x\" {\n provider = \"nomad\"\n path = \"nomad/jobs/$${NOMAD_JOB_ID}\"\n }"},
	"secret-config":         {task: "secret \"x\" {\n provider = \"nomad\"\n path = \"a\"\n config {\n namespace = \"other\"\n }\n }"},
	"identity-claims":       {task: "identity {\n name = \"x\"\n aud = [\"a\"]\n extra_claims = [\"b\"]\n }"},
	"config-size": {edit: func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Config["args"] = slices.Repeat([]any{"x"}, hclspec.MaxValues)
	}},
	"driver-without-mounts":   {group: "volume \"v\" {\n type = \"host\"\n source = \"data\"\n }", task: "volume_mount {\n volume = \"v\"\n destination = \"/data\"\n }"},
	"driver-without-networks": {group: "network {\n mode = \"none\"\n }", edit: func(j *api.Job) { j.TaskGroups[0].Tasks[0].Driver = "host_network" }},
	"several-network-drivers": {group: "network {\n mode = \"none\"\n }\n task \"other\" {\n driver = \"docker\"\n }", edit: func(j *api.Job) {
		for _, t := range j.TaskGroups[0].Tasks {
			if t.Name == "t" {
				t.Driver = "podman"
			}
		}
	}},
	"missing-driver":   {edit: func(j *api.Job) { j.TaskGroups[0].Tasks[0].Driver = "nope" }},
	"missing-hook":     {task: "meta {\n lite_hook_absent = \"\"\n }"},
	"hook-attachment":  {job: "meta {\n lite_hook_strict = \"x\"\n }"},
	"other-region":     {job: `region = "eu"`},
	"stopped-job":      {edit: func(j *api.Job) { j.Stop = new(true) }},
	"periodic-job":     {job: "periodic {\n crons = [\"@daily\"]\n }"},
	"other-datacenter": {job: `datacenters = ["dc2"]`},
	"unmet-constraint": {job: "constraint {\n attribute = \"$${attr.kernel.name}\"\n value = \"plan9\"\n }"},
}

// TestEachRefusalIsTheAnswerOfAllCallers checks that the job of each row of the table gets exactly this refusal, and that each
// caller does what the scope of the row says.
func TestEachRefusalIsTheAnswerOfAllCallers(t *testing.T) {
	c := newCallersFixture(t)
	for _, row := range admission.RefusalKinds() {
		t.Run(row.ID, func(t *testing.T) {
			parts, found := refusedJobs[row.ID]
			if !found {
				t.Fatal("no job has this refusal")
			}
			text := fmt.Sprintf("job %q {\n type = \"batch\"\n %s\n group \"g\" {\n %s\n task \"t\" {\n driver = \"raw_exec\"\n config {\n command = \"true\"\n }\n %s\n }\n }\n}\n", row.ID, parts.job, parts.group, parts.task)
			file := parseFile(t, row.ID+".nomad.hcl", []byte(text))
			if parts.edit != nil {
				parts.edit(file.Job)
			}
			if ids := c.compare(t, file); !slices.Equal(ids, []string{row.ID}) {
				t.Fatalf("refusals %q", ids)
			}
			for _, caller := range []admission.CallerKind{admission.Validate, admission.Foreground} {
				o := c.command(t, file, caller)
				rejects, warns := row.EffectFor(caller) == admission.Rejects, row.EffectFor(caller) == admission.Warns
				if len(o.rejected) == 1 != rejects || len(o.warned) == 1 != warns || o.accepted == rejects {
					t.Errorf("caller %d: %+v", caller, o)
				}
			}
			report := jobfile.NewCheckReport()
			accepted, err := file.CheckUnknownPortLabels(&cli.Streams{Out: report, Err: report, NoColour: true})
			if err != nil || accepted != (row.Scope != admission.InFiles) {
				t.Errorf("plan and run with an agent: accepted %v, %v", accepted, err)
			}
		})
	}
	if len(refusedJobs) != len(admission.RefusalKinds()) {
		t.Errorf("%d jobs for %d rows", len(refusedJobs), len(admission.RefusalKinds()))
	}
}

// A system job with a scaling block was valid for commands without an agent, and invalid for the API.
func TestCallersRejectScalingOfASystemJob(t *testing.T) {
	c := newCallersFixture(t)
	file := parseFile(t, "system.nomad.hcl", []byte("job \"system\" {\n type = \"system\"\n group \"g\" {\n scaling {\n max = 1\n }\n task \"t\" {\n driver = \"raw_exec\"\n config {\n command = \"true\"\n }\n }\n }\n}\n"))
	c.compare(t, file)
	for _, caller := range []admission.CallerKind{admission.Validate, admission.Foreground} {
		if o := c.command(t, file, caller); o.accepted || !slices.Equal(o.fault, []string{"Task groups with job type system do not support scaling blocks"}) {
			t.Errorf("caller %d: %+v", caller, o)
		}
	}
}
