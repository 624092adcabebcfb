package httpapi

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
)

// readReplyFields reads testdata/shapes.txt: the fields of each type, and whether a field is omitted when
// it is empty.
func readReplyFields(t *testing.T) map[string]map[string]bool {
	t.Helper()
	text, err := os.ReadFile("testdata/shapes.txt")
	if err != nil {
		t.Fatal(err)
	}
	shapes := make(map[string]map[string]bool)
	var fields map[string]bool
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, word := range strings.Fields(line) {
			if name, ok := strings.CutSuffix(word, ":"); ok {
				fields = make(map[string]bool)
				shapes[name] = fields
				continue
			}
			name, omitted := strings.CutSuffix(word, "?")
			fields[name] = omitted
		}
	}
	return shapes
}

// TestReplyFields compares the encoder's output with testdata/shapes.txt: each field is present under
// its name, and is omitted when empty only where Nomad omits it.
func TestReplyFields(t *testing.T) {
	types := map[string]reflect.Type{
		"JobListStub": reflect.TypeFor[jobStub](), "JobSummary": reflect.TypeFor[api.JobSummary](), "TaskGroupSummary": reflect.TypeFor[api.TaskGroupSummary](),
		"Job": reflect.TypeFor[api.Job](), "TaskGroup": reflect.TypeFor[api.TaskGroup](), "Task": reflect.TypeFor[api.Task](),
		"Resources": reflect.TypeFor[api.Resources](), "Service": reflect.TypeFor[api.Service](), "ServiceCheck": reflect.TypeFor[api.ServiceCheck](),
		"Template": reflect.TypeFor[api.Template](), "UpdateStrategy": reflect.TypeFor[api.UpdateStrategy](), "MigrateStrategy": reflect.TypeFor[api.MigrateStrategy](),
		"RestartPolicy": reflect.TypeFor[api.RestartPolicy](), "ReschedulePolicy": reflect.TypeFor[api.ReschedulePolicy](),
		"EphemeralDisk": reflect.TypeFor[api.EphemeralDisk](), "PeriodicConfig": reflect.TypeFor[api.PeriodicConfig](),
		"ParameterizedJobConfig": reflect.TypeFor[api.ParameterizedJobConfig](), "NetworkResource": reflect.TypeFor[api.NetworkResource](),
		"Port": reflect.TypeFor[api.Port](), "WorkloadIdentity": reflect.TypeFor[api.WorkloadIdentity](), "LogConfig": reflect.TypeFor[api.LogConfig](),
		"TaskArtifact": reflect.TypeFor[api.TaskArtifact](), "VolumeRequest": reflect.TypeFor[api.VolumeRequest](), "VolumeMount": reflect.TypeFor[api.VolumeMount](),
		"Secret": reflect.TypeFor[api.Secret](), "DisconnectStrategy": reflect.TypeFor[api.DisconnectStrategy](), "ScalingPolicy": reflect.TypeFor[api.ScalingPolicy](),
		"CheckRestart": reflect.TypeFor[api.CheckRestart](), "ChangeScript": reflect.TypeFor[api.ChangeScript](), "Evaluation": reflect.TypeFor[api.Evaluation](),
		"EvaluationStub": reflect.TypeFor[api.EvaluationStub](), "AllocMetric": reflect.TypeFor[api.AllocationMetric](), "Allocation": reflect.TypeFor[api.Allocation](),
		"AllocListStub": reflect.TypeFor[allocStub](), "TaskState": reflect.TypeFor[api.TaskState](), "TaskEvent": reflect.TypeFor[api.TaskEvent](),
		"Deployment": reflect.TypeFor[deploymentView](), "DeploymentState": reflect.TypeFor[deploymentStateView](), "Node": reflect.TypeFor[nodeView](),
		"NodeListStub": reflect.TypeFor[api.NodeListStub](), "HostStats": reflect.TypeFor[hoststats.Stats](), "MemoryStats": reflect.TypeFor[api.MemoryStats](),
		"CpuStats": reflect.TypeFor[api.CpuStats](), "ServiceRegistration": reflect.TypeFor[api.ServiceRegistration](),
	}
	// different has the fields whose format differs from Nomad's, with the reason.
	different := map[string]string{
		"Node.Drain": "the text about the node has it", "Node.SecretID": "the text about the node has it",
		"JobListStub.Namespace": "it is never empty",
	}
	found := 0
	for name, want := range readReplyFields(t) {
		typ, ok := types[name]
		if !ok {
			t.Errorf("%s: no type is compared with it", name)
			continue
		}
		found++
		if slices.Contains(omitEmptyTypes, typ) {
			for field := range want {
				want[field] = true
			}
		}
		for _, f := range jsonFieldsOf(typ) {
			omit, known := want[f.name]
			delete(want, f.name)
			switch {
			case different[name+"."+f.name] != "":
			case f.omitEmpty && !known: // only clients set this field; it is empty in a canonical object
			case !known:
				t.Errorf("%s.%s is not in shapes.txt", name, f.name)
			case omit != f.omitEmpty:
				t.Errorf("%s.%s: left out when empty: %v, want %v", name, f.name, f.omitEmpty, omit)
			}
		}
		for field := range want {
			if !want[field] && different[name+"."+field] == "" {
				t.Errorf("%s.%s is missing", name, field)
			}
		}
	}
	if found != len(types) {
		t.Errorf("%d of %d types were compared", found, len(types))
	}
}
