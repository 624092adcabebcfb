package event

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// printEvents prints events of one topic, whose payloads are given, and returns the changes that the lines
// describe.
func printEvents(t *testing.T, topic, eventType string, payloads ...string) []string {
	t.Helper()
	var out bytes.Buffer
	p := &eventPrinter{streams: &cli.Streams{Out: &out}, lastObjectByKey: map[string]*eventObject{}}
	for i, payload := range payloads {
		event := fmt.Sprintf(`{"Topic": %q, "Type": %q, "Key": "KEY", "Index": %d, "Payload": %s}`, topic, eventType, i+1, payload)
		if err := p.printEventBatch([]byte(`{"Events": [` + event + `]}`)); err != nil {
			t.Fatal(err)
		}
	}
	var changes []string
	for line := range strings.Lines(out.String()) {
		_, change, _ := strings.Cut(line, "KEY")
		changes = append(changes, strings.TrimSpace(change))
	}
	return changes
}

func TestEventLineDescribesChange(t *testing.T) {
	t.Parallel()
	const allocation = `{"Allocation": {"Name": "web.g[0]", "ClientStatus": %q, "DesiredStatus": %q, "DeploymentStatus": %s, "TaskStates": {"t": {"State": %q, "Failed": %t, "Events": [%s]}}}}`
	const received, started = `{"Type": "Received", "Time": 1}`, `{"Type": "Started", "Time": 2}`
	const terminated = `{"Type": "Terminated", "Time": 3, "ExitCode": 3, "DisplayMessage": "Exit Code: 3"}`
	const downloading = `{"Type": "Downloading Artifacts", "Time": 2}`
	for name, test := range map[string]struct {
		topic, eventType string
		payloads, want   []string
	}{
		"a job is registered, runs, is updated and stopped": {"Job", "JobRegistered", []string{
			`{"Job": {"Version": 0, "Status": "pending"}}`,
			`{"Job": {"Version": 0, "Status": "running"}}`,
			`{"Job": {"Version": 0, "Status": "running", "Stable": true}}`,
			`{"Job": {"Version": 1, "Status": "running"}}`,
			`{"Job": {"Version": 2, "Status": "dead", "Stop": true}}`,
			`{"Job": {"Version": 3, "Status": "pending"}}`,
			`{"Job": {"Version": 3}, "Deleted": true}`,
		}, []string{
			"version 0 pending", "version 0 pending -> running", "version 0 running; stable", "version 0 -> 1 running",
			"version 1 -> 2 running -> dead; stopped", "version 2 -> 3 dead -> pending; started again", "deleted",
		}},
		"a job that was stopped before": {"Job", "JobRegistered", []string{`{"Job": {"Version": 4, "Status": "dead", "Stop": true}}`}, []string{"version 4 dead; stopped"}},
		"an allocation starts, fails and is stopped": {"Allocation", "AllocationUpdated", []string{
			fmt.Sprintf(allocation, "pending", "run", "null", "pending", false, received),
			fmt.Sprintf(allocation, "running", "run", "null", "running", false, received+","+started),
			fmt.Sprintf(allocation, "running", "run", `{"Healthy": true}`, "running", false, received+","+started),
			fmt.Sprintf(allocation, "failed", "run", `{"Healthy": true}`, "dead", true, received+","+started+","+terminated),
			fmt.Sprintf(allocation, "failed", "stop", `{"Healthy": true}`, "dead", true, received+","+started+","+terminated),
		}, []string{
			"web.g[0] pending, wanted run", "web.g[0] pending -> running, wanted run; task t: Started", "web.g[0] running, wanted run; healthy",
			"web.g[0] running -> failed, wanted run; task t: exit code 3", "web.g[0] failed, wanted run -> stop; task t: exit code 3",
		}},
		"a download makes progress": {"Allocation", "AllocationUpdated", []string{
			fmt.Sprintf(allocation, "pending", "run", "null", "pending", false, received+","+downloading),
			fmt.Sprintf(allocation, "pending", "run", "null", "pending", false, received+","+downloading+`,{"Type": "Downloading Artifacts", "Time": 3, "DisplayMessage": "a: 1 MB", "Details": {"operation_id": "a", "ongoing": "true"}}`),
			fmt.Sprintf(allocation, "pending", "stop", "null", "pending", false, received+","+downloading+`,{"Type": "Downloading Artifacts", "Time": 4, "DisplayMessage": "a: 2 MB", "Details": {"operation_id": "a", "ongoing": "true"}}`),
		}, []string{
			"web.g[0] pending, wanted run; task t: downloads artifacts",
			"web.g[0] pending, wanted run -> stop; task t: downloads artifacts",
		}},
		"a task ends": {"Allocation", "AllocationUpdated", []string{
			fmt.Sprintf(allocation, "running", "run", "null", "running", false, started),
			fmt.Sprintf(allocation, "complete", "run", `{"Healthy": false}`, "dead", false, started+`,{"Type": "Terminated", "Time": 3, "DisplayMessage": "Exit Code: 0"}`),
		}, []string{"web.g[0] running, wanted run", "web.g[0] running -> complete, wanted run; unhealthy; task t: Terminated: Exit Code: 0"}},
		"an evaluation is blocked": {"Evaluation", "EvaluationUpdated", []string{
			`{"Evaluation": {"JobID": "web", "TriggeredBy": "job-register", "Status": "pending"}}`,
			`{"Evaluation": {"JobID": "web", "TriggeredBy": "job-register", "Status": "blocked", "StatusDescription": "memory is exhausted", "FailedTGAllocs": {"g": {"NodesEvaluated": 1, "DimensionExhausted": {"memory": 1}}, "h": null}}}`,
			`{"Evaluation": {"JobID": "web", "TriggeredBy": "job-register", "Status": "failed", "StatusDescription": "cannot be planned"}}`,
		}, []string{
			"job-register of job web pending",
			`job-register of job web pending -> blocked; group g not placed: Dimension "memory" exhausted on 1 nodes; group h not placed; memory is exhausted`,
			"job-register of job web blocked -> failed; cannot be planned",
		}},
		"a deployment succeeds": {"Deployment", "DeploymentStatusUpdate", []string{
			`{"Deployment": {"JobID": "web", "Status": "running", "StatusDescription": "Deployment is running", "TaskGroups": {"g": {"DesiredTotal": 2, "PlacedAllocs": 1}, "h": null}}}`,
			`{"Deployment": {"JobID": "web", "Status": "successful", "StatusDescription": "Deployment completed successfully"}}`,
		}, []string{
			"of job web running: Deployment is running; group g: 1 placed, 0 healthy, 0 unhealthy of 2",
			"of job web running -> successful: Deployment completed successfully",
		}},
		"a node is drained, and a driver fails": {"Node", "NodeRegistration", []string{
			`{"Node": {"Name": "n", "Status": "ready", "SchedulingEligibility": "eligible", "Drivers": {"exec": {"Healthy": true}, "java": null}}}`,
			`{"Node": {"Name": "n", "Status": "ready", "SchedulingEligibility": "ineligible", "DrainStrategy": {}, "Drivers": {"exec": {"Healthy": true}}}}`,
			`{"Node": {"Name": "n", "Status": "down", "SchedulingEligibility": "ineligible", "DrainStrategy": {}, "Drivers": {"exec": {"HealthDescription": "no cgroups"}}}}`,
		}, []string{
			"n ready, eligible", "n ready, eligible -> ineligible; drains", "n ready -> down, ineligible; driver exec unhealthy: no cgroups",
		}},
		"a service":             {"Service", "ServiceRegistration", []string{`{"Service": {"ServiceName": "web", "Address": "::1", "Port": 80}}`}, []string{"web [::1]:80"}},
		"a removed service":     {"Service", "ServiceDeregistration", []string{`{"Service": {"ServiceName": "web", "Address": "10.0.0.1"}}`}, []string{"web 10.0.0.1 removed"}},
		"a variable":            {"Variable", "VariableUpdated", []string{`{"Metadata": {"CreateIndex": 1, "ModifyIndex": 1}}`, `{"Metadata": {"CreateIndex": 1, "ModifyIndex": 2}}`, `{"Metadata": {"CreateIndex": 1, "ModifyIndex": 3, "Lock": {}}}`, `{"Metadata": {}, "Deleted": true}`}, []string{"created", "changed", "locked", "deleted"}},
		"an object of its own":  {"ACLToken", "ACLTokenUpserted", []string{`{"ACLToken": {}}`}, []string{""}},
		"an unexpected payload": {"Job", "JobRegistered", []string{`{"Job": "web"}`}, []string{""}},
	} {
		if got := printEvents(t, test.topic, test.eventType, test.payloads...); strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

// Stored events are printed on request only, with the time in their object.
func TestStoredEvents(t *testing.T) {
	t.Parallel()
	events := func(from, to int) []byte {
		var all []string
		for i := from; i <= to; i++ {
			all = append(all, fmt.Sprintf(`{"Topic": "Evaluation", "Type": "EvaluationUpdated", "Key": "e%d", "Index": %d, "Payload": {"Evaluation": {"ModifyTime": %d}}}`, i, i, time.Date(2026, 5, 4, 12, 0, i, 0, time.Local).UnixNano()))
		}
		return []byte(`{"Events": [` + strings.Join(all, ",") + `]}`)
	}
	for name, test := range map[string]struct {
		options streamOptions
		want    []string
	}{
		"from now":           {streamOptions{}, []string{"e5"}},
		"the last two first": {streamOptions{lastStoredEventCount: 2}, []string{"e3", "e4", "e5"}},
		"more than stored":   {streamOptions{lastStoredEventCount: 20}, []string{"e1", "e2", "e3", "e4", "e5"}},
		"from an index":      {streamOptions{hasIndexFlag: true}, []string{"e1", "e2", "e3", "e4", "e5"}},
	} {
		var out bytes.Buffer
		p := &eventPrinter{options: test.options, streams: &cli.Streams{Out: &out}, newestIndexAtStart: 4, lastObjectByKey: map[string]*eventObject{}}
		if err := p.printEventBatch(events(1, 5)); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		for i, line := range lines {
			fields := strings.Fields(line)
			if key := fields[4]; i >= len(test.want) || key != test.want[i] {
				t.Errorf("%s: line %d is of %s", name, i, key)
			}
			stored := time.Date(2026, 5, 4, 12, 0, i+5-len(lines)+1, 0, time.Local).Format(time.RFC3339)
			if isStored := fields[0] == stored; isStored == (fields[4] == "e5") {
				t.Errorf("%s: time of %s is %s", name, fields[4], fields[0])
			}
		}
		if len(lines) != len(test.want) {
			t.Errorf("%s: %d lines", name, len(lines))
		}
	}
}

// A stored event that arrives late, because the machine is busy, is printed when the last stored events were
// requested.
func TestStoredEventThatArrivesLate(t *testing.T) {
	t.Parallel()
	for last, want := range []int{0, 1} {
		var out bytes.Buffer
		p := &eventPrinter{options: streamOptions{lastStoredEventCount: last}, streams: &cli.Streams{Out: &out}, newestIndexAtStart: 9, lastObjectByKey: map[string]*eventObject{}}
		if err := p.printLastStoredEvents(); err != nil {
			t.Fatal(err)
		}
		if err := p.printEventBatch([]byte(`{"Events": [{"Topic": "Job", "Index": 9}]}`)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("-last %d: %d lines, want %d", last, got, want)
		}
	}
}
