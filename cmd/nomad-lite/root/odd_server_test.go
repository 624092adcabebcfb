package root

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const objectID = "8ba85cef-0000-4000-8000-000000000001"

// listResponses are the list endpoints, each with an answer of one object that has only the
// required fields.
var listResponses = map[string]string{
	"/v1/allocations":                       `[{"ID": "` + objectID + `"}]`,
	"/v1/allocation/" + objectID:            `{"ID": "` + objectID + `"}`,
	"/v1/jobs":                              `[{"ID": "web"}]`,
	"/v1/job/web/allocations":               `[{"ID": "` + objectID + `", "TaskStates": {"t": null}}]`,
	"/v1/job/web":                           `{"ID": "web", "TaskGroups": [null, {"Tasks": [null, {"Actions": [null]}]}]}`,
	"/v1/job/web/summary":                   `{"Summary": {"g": {}}}`,
	"/v1/job/web/versions":                  `{"Versions": [null, {"ID": "web"}], "Diffs": [null, {"TaskGroups": [null, {"Tasks": [null]}], "Objects": [null]}]}`,
	"/v1/job/web/deployment":                `{"ID": "` + objectID + `", "TaskGroups": {"g": null}}`,
	"/v1/job/web/deployments":               `[{"ID": "` + objectID + `"}]`,
	"/v1/job/web/evaluations":               `[{"ID": "` + objectID + `", "FailedTGAllocs": {"g": null}}]`,
	"/v1/job/web/scale":                     `{"TaskGroups": {"g": {"Events": [{}]}}}`,
	"/v1/job/web/plan":                      `{"Diff": {"Type": "Edited", "Fields": [null, {}], "TaskGroups": [null, {"Tasks": [null]}]}, "FailedTGAllocs": {"g": null}, "Annotations": {"DesiredTGUpdates": {"g": null}}, "CreatedEvals": [null]}`,
	"/v1/evaluations":                       `[{"ID": "` + objectID + `", "FailedTGAllocs": {"g": null}}]`,
	"/v1/evaluation/" + objectID:            `{"ID": "` + objectID + `", "FailedTGAllocs": {"g": null}, "RelatedEvals": [null], "PlanAnnotations": {"DesiredTGUpdates": {"g": null}}}`,
	"/v1/deployments":                       `[{"ID": "` + objectID + `", "TaskGroups": {"g": null}}]`,
	"/v1/deployment/" + objectID:            `{"ID": "` + objectID + `", "TaskGroups": {"g": null}}`,
	"/v1/nodes":                             `[{"ID": "` + objectID + `", "Drivers": {"raw_exec": null}}]`,
	"/v1/node/" + objectID:                  `{"ID": "` + objectID + `", "Drivers": {"raw_exec": null}, "Events": [null], "HostVolumes": {"v": null}}`,
	"/v1/node/" + objectID + "/allocations": `[{"ID": "` + objectID + `", "ClientStatus": "running"}]`,
	"/v1/agent/self":                        `{"stats": {"client": {"node_id": "` + objectID + `"}}}`,
	"/v1/agent/members":                     `{"Members": [{"Name": "a"}]}`,
	"/v1/services":                          `[{"Namespace": "default", "Services": [{}]}]`,
	"/v1/service/web":                       `[{}]`,
	"/v1/namespaces":                        `[{"Name": "default"}]`,
	"/v1/vars":                              `[{"Path": "p"}]`,
	"/v1/var/p":                             `{"Path": "p"}`,
	"/v1/search":                            `{"Matches": {"jobs": ["web"]}}`,
	"/v1/event/stream":                      `{"Index": 1, "Events": [{"Topic": "Job"}, {"Topic": "Service", "Payload": {"Service": {"Port": "x"}}}, {}]}` + "\n",
	"/v1/client/stats":                      `{"CPU": [null], "DiskStats": [null]}`,
	"/v1/client/allocation/" + objectID + "/stats":  `{"Tasks": {"t": null, "u": {}}}`,
	"/v1/client/allocation/" + objectID + "/checks": `{"c": {}}`,
}

// TestMalformedServerResponses runs each command against servers whose answers no Nomad
// server sends. No answer may cause a panic, and each error must name the failed operation.
// An empty answer is among them (checklist 42).
func TestMalformedServerResponses(t *testing.T) {
	t.Parallel()
	answers := map[string]http.HandlerFunc{
		"not found": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"null":      textHandler("null"),
		"object":    textHandler("{}"),
		"list":      textHandler("[]"),
		"page":      textHandler("<html>"),
		"nothing":   textHandler(""),
		"refusal":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Permission denied", http.StatusForbidden) },
		"bare objects": func(w http.ResponseWriter, r *http.Request) {
			body, known := listResponses[r.URL.Path]
			if !known {
				body = "{}"
			}
			textHandler(body)(w, r)
		},
		"objects and no more": func(w http.ResponseWriter, r *http.Request) {
			body, known := listResponses[r.URL.Path]
			if !known || strings.HasSuffix(r.URL.Path, "stats") {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			textHandler(body)(w, r)
		},
	}
	const jobFilePath = "../job/template/short.nomad.hcl"
	commands := []string{
		"alloc status", "alloc status 8ba85cef", "alloc status -verbose -stats 8ba85cef", "alloc status -short 8ba85cef", "alloc status -json 8ba85cef",
		"alloc logs 8ba85cef", "alloc logs -tail 8ba85cef t", "alloc logs -job web", "alloc fs 8ba85cef", "alloc fs 8ba85cef f", "alloc fs -tail 8ba85cef f",
		"alloc exec 8ba85cef true", "alloc exec -task t 8ba85cef true",
		"alloc restart 8ba85cef", "alloc signal 8ba85cef", "alloc stop -detach 8ba85cef", "alloc checks 8ba85cef", "alloc stats 8ba85cef", "alloc pause 8ba85cef t",
		"logs", "logs web", "logs -tail 1 -since 1h web", "node status", "node status -allocs -os -verbose", "node status 8ba85cef", "node status -self -verbose -stats", "node eligibility -enable -self",
		"node drain -enable -detach -self", "node drain -disable 8ba85cef", "node meta read", "node meta apply a=b",
		"service list", "service info web", "service info -verbose web", "service delete web id",
		"var list", "var get p", "var put p a=b", "var put -force p a=b", "var purge p", "namespace list", "namespace status default", "namespace apply x", "namespace delete x",
		"event stream", "event stream -json -filter Payload.Job.ID==x", "monitor", "system gc", "operator api jobs", "operator metrics", "operator metrics -json",
		"job status", "job status -json", "job status web", "job status -evals -verbose web", "job status -json web", "job allocs web", "job deployments web",
		"job deployments -latest web", "job dispatch web", "job eval web", "job export web", "job export -version 0 web", "job history -p web", "job history -full web",
		"job inspect web", "job inspect -hcl web", "job periodic force web", "job promote web", "job restart web", "job restart -reschedule web", "job revert web 0",
		"job revert web tag", "job scale web g 1", "job scale web 1", "job scaling-events web", "job start web", "job stop web", "job stop -detach web", "job tag apply -name n web",
		"job tag unset -name n web", "job action -job web a", "job action -alloc 8ba85cef a", "job plan " + jobFilePath, "job run " + jobFilePath, "job run -detach " + jobFilePath,
		"eval list", "eval status 8ba85cef", "eval status -monitor 8ba85cef", "eval delete 8ba85cef", "eval delete -yes -filter x",
		"deployment list", "deployment status -verbose 8ba85cef", "deployment status -monitor 8ba85cef", "deployment fail 8ba85cef", "deployment pause 8ba85cef",
		"deployment promote 8ba85cef", "deployment resume 8ba85cef", "deployment unblock 8ba85cef", "status web", "status",
		"server members", "server members -verbose", "agent-info", "plugin status", "plugin status raw_exec", "volume status", "ui web",
	}
	root := newRootCommand(&cli.Streams{})
	nameWords := make([]int, len(commands)) // number of words in the name of each command
	for i, command := range commands {
		cmd, _, err := root.Find(strings.Fields(command))
		if err != nil {
			t.Fatal(err)
		}
		nameWords[i] = len(strings.Fields(cmd.CommandPath())) - 1 // CommandPath starts with the name of the program
	}
	for name, handler := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "objects and no more" && name != "page" {
				t.Skip("makes the requests of all commands; two kinds of answers are enough with -short")
			}
			server := httptest.NewServer(handler)
			defer server.Close()
			for i, command := range commands {
				code, stderr := runCommand(t, command, slices.Insert(strings.Fields(command), nameWords[i], "-address", server.URL))
				if code != 0 && stderr == "" {
					t.Errorf("%s: exit code %d, and not a word", command, code)
				}
			}
		})
	}
}

func textHandler(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
}

// runCommand runs a command line in this process.
func runCommand(t *testing.T, command string, args []string) (code int, stderr string) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: panic: %v", command, r)
		}
	}()
	var out, stderrBuf bytes.Buffer
	code = Execute(args, &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &stderrBuf})
	return code, stderrBuf.String()
}
