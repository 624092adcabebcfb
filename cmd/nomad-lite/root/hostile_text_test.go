package root

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// canary is in each hostile text, so that a test sees whether the text has reached the output.
const canary = "CANARY"

// hostileParts are what a task, or the author of a job, writes to control a terminal or to show another text.
var hostileParts = []string{
	"\x1b[2J", "\x1b[H", "\x1b]0;title\a", "\x1b]52;c;Y29weQ==\x1b\\", "\x1b[>4;2m", "\x1bc", "\x1bP+q\x1b\\", "\x1b", "\b\b", "\a", "\x00", "\x7f", "\r", "\x0e",
	"\u0085", "\u009b2J", "\u009d0;x\u009c", "\u0090", "\u202a", "\u202e", "\u202d", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c", "\u200b", "\u2060", "\ufeff", "\u00ad",
	"\u2028", "\u2029", "\ufff9", "\U000e0041", "\U0001d173", "\u180e",
}

// hostileText returns a text of random parts, the same for each call with the same seed and name.
func hostileText(seed uint64, name string) string {
	hash := fnv.New64()
	io.WriteString(hash, name)
	random := rand.New(rand.NewPCG(seed, hash.Sum64()))
	text := canary
	for range 1 + random.IntN(4) {
		text += hostileParts[random.IntN(len(hostileParts))] + "x"
	}
	return text
}

// hiddenRanges are the characters that must not reach a terminal. The table is not that of the program.
var hiddenRanges = [][2]rune{
	{0, 8}, {0xb, 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x61c, 0x61c}, {0x180e, 0x180e}, {0x200b, 0x200b}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
	{0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0x1d173, 0x1d17a}, {0xe0000, 0xe007f},
}

// ownSequences are the sequences that nomad-lite writes: colours, and the movements of the live lines.
var ownSequences = regexp.MustCompile("\x1b\\[[0-9;:]*m|\x1b\\[\\?7[lh]|\x1b\\[[0-9]+A\r\x1b\\[J")

// findUnsafe returns the part of an output that begins with an unsafe character, or "".
func findUnsafe(output string) string {
	output = ownSequences.ReplaceAllString(output, "")
	for i, r := range output {
		unsafe := slices.ContainsFunc(hiddenRanges, func(within [2]rune) bool { return r >= within[0] && r <= within[1] })
		if _, size := utf8.DecodeRuneInString(output[i:]); unsafe || r == utf8.RuneError && size == 1 {
			return output[i:min(len(output), i+40)]
		}
	}
	return ""
}

// cleanFields have values on which commands depend.
var cleanFields = map[string]string{
	"ID": objectID, "EvalID": objectID, "NodeID": objectID, "DeploymentID": objectID, "AllocID": objectID, "node_id": objectID, "EvalCreateIndex": "",
	"PrevAllocation": "", "NextAllocation": "", "FollowupEvalID": "", "NextEval": "", "PreviousEval": "", "BlockedEval": "", "NextToken": "",
	"Type": "service", "ClientStatus": "running", "Path": "p",
}

// hostileValues fills values of the API with hostile text.
type hostileValues struct{ seed uint64 }

// fill sets a value. name is the path of the value in its object.
func (h hostileValues) fill(v reflect.Value, name string, depth int) {
	field := name[strings.LastIndexByte(name, '.')+1:]
	switch v.Kind() {
	case reflect.String:
		clean, isClean := cleanFields[field]
		switch {
		case field == "Status" && strings.Contains(name, "Evaluation"):
			v.SetString("complete")
		case field == "Status" && strings.Contains(name, "Deployment"):
			v.SetString("successful")
		case field == "ID" && strings.Contains(name, "Job"), field == "JobID", field == "Name" && strings.Contains(name, "Namespace"):
			v.SetString("web" + hostileText(h.seed, "web"))
		case field == "TaskGroup", strings.HasSuffix(name, ".TaskGroup.Name"):
			v.SetString(hostileText(h.seed, "group"))
		case strings.HasSuffix(name, ".Task.Name"):
			v.SetString(hostileText(h.seed, "task"))
		case isClean:
			v.SetString(clean)
		default:
			v.SetString(hostileText(h.seed, name))
		}
	case reflect.Pointer:
		if depth < 14 {
			v.Set(reflect.New(v.Type().Elem()))
			h.fill(v.Elem(), name, depth+1)
		}
	case reflect.Slice:
		if depth < 14 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			h.fill(v.Index(0), name, depth+1)
		}
	case reflect.Map:
		if depth < 14 && v.Type().Key().Kind() == reflect.String {
			v.Set(reflect.MakeMap(v.Type()))
			key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			switch field {
			case "TaskStates", "Tasks", "TaskResources":
				key.SetString(hostileText(h.seed, "task"))
			case "TaskGroups", "Summary":
				key.SetString(hostileText(h.seed, "group"))
			default:
				key.SetString(hostileText(h.seed, name+"key"))
			}
			h.fill(element, name, depth+1)
			v.SetMapIndex(key, element)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1_700_000_000, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				h.fill(v.Field(i), name+"."+v.Type().Name()+"."+v.Type().Field(i).Name, depth+1)
			}
		}
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf(hostileText(h.seed, name)))
		}
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int16, reflect.Int8:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(1)
	case reflect.Float64, reflect.Float32:
		v.SetFloat(1)
	}
}

// hostileReplies are the types of the replies by the pattern of their path.
var hostileReplies = []struct {
	path  string
	reply any
}{
	{"/v1/allocations", []*api.AllocationListStub(nil)},
	{"/v1/allocation/[^/]+", api.Allocation{}},
	{"/v1/allocation/[^/]+/stop", api.AllocStopResponse{}},
	{"/v1/allocation/[^/]+/services", []*api.ServiceRegistration(nil)},
	{"/v1/jobs", []*api.JobListStub(nil)},
	{"/v1/jobs/parse", api.Job{}},
	{"/v1/validate/job", api.JobValidateResponse{}},
	{"/v1/job/[^/]+", api.Job{}},
	{"/v1/job/[^/]+/allocations", []*api.AllocationListStub(nil)},
	{"/v1/job/[^/]+/summary", api.JobSummary{}},
	{"/v1/job/[^/]+/versions", api.JobVersionsResponse{}},
	{"/v1/job/[^/]+/deployment", api.Deployment{}},
	{"/v1/job/[^/]+/deployments", []*api.Deployment(nil)},
	{"/v1/job/[^/]+/evaluations", []*api.Evaluation(nil)},
	{"/v1/job/[^/]+/scale", api.JobScaleStatusResponse{}},
	{"/v1/job/[^/]+/plan", api.JobPlanResponse{}},
	{"/v1/job/[^/]+/submission", api.JobSubmission{}},
	{"/v1/job/[^/]+/(dispatch|evaluate|revert|periodic/force)", api.JobDispatchResponse{}},
	{"/v1/evaluations", []*api.Evaluation(nil)},
	{"/v1/evaluation/[^/]+", api.Evaluation{}},
	{"/v1/evaluation/[^/]+/allocations", []*api.AllocationListStub(nil)},
	{"/v1/deployments", []*api.Deployment(nil)},
	{"/v1/deployment/[^/]+", api.Deployment{}},
	{"/v1/deployment/allocations/[^/]+", []*api.AllocationListStub(nil)},
	{"/v1/deployment/(fail|pause|promote|unblock)/[^/]+", api.DeploymentUpdateResponse{}},
	{"/v1/nodes", []*api.NodeListStub(nil)},
	{"/v1/node/pools", []*api.NodePool(nil)},
	{"/v1/node/pool/[^/]+", api.NodePool{}},
	{"/v1/node/pool/[^/]+/nodes", []*api.NodeListStub(nil)},
	{"/v1/node/pool/[^/]+/jobs", []*api.JobListStub(nil)},
	{"/v1/node/[^/]+", api.Node{}},
	{"/v1/node/[^/]+/allocations", []*api.Allocation(nil)},
	{"/v1/node/[^/]+/(drain|eligibility)", api.NodeDrainUpdateResponse{}},
	{"/v1/agent/self", api.AgentSelf{}},
	{"/v1/agent/members", api.ServerMembers{}},
	{"/v1/agent/health", api.AgentHealthResponse{}},
	{"/v1/services", []*api.ServiceRegistrationListStub(nil)},
	{"/v1/service/[^/]+", []*api.ServiceRegistration(nil)},
	{"/v1/acl/bootstrap", api.ACLToken{}},
	{"/v1/acl/policies", []*api.ACLPolicyListStub(nil)},
	{"/v1/acl/policy/self", []*api.ACLPolicyListStub(nil)},
	{"/v1/acl/policy/[^/]+", api.ACLPolicy{}},
	{"/v1/acl/tokens", []*api.ACLTokenListStub(nil)},
	{"/v1/acl/token", api.ACLToken{}},
	{"/v1/acl/token/[^/]+", api.ACLToken{}},
	{"/v1/acl/roles", []*api.ACLRoleListStub(nil)},
	{"/v1/acl/role", api.ACLRole{}},
	{"/v1/acl/role/.+", api.ACLRole{}},
	{"/v1/namespaces", []*api.Namespace(nil)},
	{"/v1/namespace/[^/]+", api.Namespace{}},
	{"/v1/vars", []*api.VariableMetadata(nil)},
	{"/v1/var/.+", api.Variable{}},
	{"/v1/operator/keyring/keys", []*api.RootKeyMeta(nil)},
	{"/v1/operator/keyring/rotate", struct{ Key *api.RootKeyMeta }{}},
	{"/v1/volume/host/(create|register)", api.HostVolumeCreateResponse{}},
	{"/v1/scaling/policies", []*api.ScalingPolicyListStub(nil)},
	{"/v1/scaling/policy/[^/]+", api.ScalingPolicy{}},
	{"/v1/volumes", []*api.HostVolumeStub(nil)},
	{"/v1/volume/host/[^/]+", api.HostVolume{}},
	{"/v1/volumes/claims", []*api.TaskGroupHostVolumeClaim(nil)},
	{"/v1/plugins", []*api.CSIPluginListStub(nil)},
	{"/v1/operator/scheduler/configuration", api.SchedulerConfigurationResponse{}},
	{"/v1/client/stats", api.HostStats{}},
	{"/v1/client/metadata", api.NodeMetaResponse{}},
	{"/v1/client/allocation/[^/]+/stats", api.AllocResourceUsage{}},
	{"/v1/client/allocation/[^/]+/checks", map[string]*api.AllocCheckStatus(nil)},
	{"/v1/client/fs/ls/[^/]+", []*api.AllocFileInfo(nil)},
	{"/v1/regions", []string(nil)},
	{"/v1/metrics", api.MetricsSummary{}},
}

// hostilePaths are the compiled patterns of hostileReplies.
var hostilePaths = sync.OnceValue(func() (all []*regexp.Regexp) {
	for _, known := range hostileReplies {
		all = append(all, regexp.MustCompile("^"+known.path+"$"))
	}
	return all
})

// ServeHTTP replies as an agent whose objects and tasks have hostile text.
func (h hostileValues) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw := hostileOutput(h.seed)
	path := r.URL.Path
	w.Header().Set("Content-Type", "application/json")
	frame := func() {
		json.NewEncoder(w).Encode(api.StreamFrame{Data: []byte(raw), File: "alloc/logs/t.stdout.0", Offset: int64(len(raw))})
	}
	switch {
	case strings.HasPrefix(path, "/v1/client/fs/logs/"), strings.HasPrefix(path, "/v1/client/fs/stream/"), path == "/v1/agent/monitor":
		frame()
		return
	case strings.HasPrefix(path, "/v1/client/fs/cat/"), strings.HasPrefix(path, "/v1/client/fs/readat/"):
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, raw)
		return
	case strings.HasPrefix(path, "/v1/client/fs/stat/"):
		fmt.Fprintf(w, `{"Name": %s, "Size": %d, "IsDir": %v, "ContentType": "x"}`, quoteJSON(hostileText(h.seed, path)), len(raw), strings.Contains(r.URL.RawQuery, "dir"))
		return
	case path == "/v1/event/stream":
		fmt.Fprintf(w, `{"Index": 1, "Events": [{"Topic": "Job", "Type": %[1]s, "Key": %[1]s, "Namespace": %[1]s, "Index": 5, "Payload": {"Job": {"ID": %[1]s, "Status": %[1]s}}}]}`+"\n", quoteJSON(hostileText(h.seed, path)))
		return
	case strings.HasPrefix(path, "/v1/client/fs/ls/") && r.URL.Query().Get("path") == "alloc/logs":
		fmt.Fprintf(w, `[{"Name": %s, "Size": %d}]`, quoteJSON(hostileText(h.seed, "task")+".stdout.0"), len(raw))
		return
	case path == "/v1/jobs" && r.Method != http.MethodGet:
		fmt.Fprintf(w, `{"EvalID": "%s", "Warnings": %s}`, objectID, quoteJSON(hostileText(h.seed, path)))
		return
	case path == "/v1/search":
		fmt.Fprintf(w, `{"Matches": {"jobs": [%s]}}`, quoteJSON("web"+hostileText(h.seed, "web")))
		return
	}
	for i, known := range hostileReplies {
		if !hostilePaths()[i].MatchString(path) {
			continue
		}
		value := reflect.New(reflect.TypeOf(known.reply)).Elem()
		h.fill(value, value.Type().String(), 0)
		if self, ok := value.Interface().(api.AgentSelf); ok {
			self.Stats["client"] = map[string]string{"node_id": objectID}
		}
		w.Header().Set("X-Nomad-Index", "1")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.Encode(value.Interface())
		return
	}
	http.Error(w, hostileText(h.seed, path), http.StatusNotFound)
}

func quoteJSON(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// hostileOutput is what a task has printed: bytes, with colours and all parts.
func hostileOutput(seed uint64) string {
	parts := slices.Clone(hostileParts)
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return canary + "\x1b[31mred\n" + strings.Join(parts, "x\n") + "\x9b2J\xff\n" + canary + "\n"
}

// runOnTerminal runs a command line on a terminal of its own, in this process, and returns what the terminal got.
func runOnTerminal(t *testing.T, args []string) string {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if _, err := term.MakeRaw(int(slave.Fd())); err != nil { // the terminal must not change the bytes
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		var all bytes.Buffer
		_, _ = io.Copy(&all, master) // the read of a terminal fails when its other side is closed
		got <- all.Bytes()
	}()
	Execute(args, &cli.Streams{In: strings.NewReader(""), Out: slave, Err: slave})
	slave.Close()
	return string(<-got)
}

// hostileCommand is a command line for TestTerminalGetsNoControlCharacters.
type hostileCommand struct {
	line  string
	quiet bool // the command prints no text of the agent
	json  bool // standard output is JSON
	raw   bool // a pipe gets the output of the task as it is
}

var hostileCommands = []hostileCommand{
	{line: "alloc checks 8ba85cef"}, {line: "alloc checks -json 8ba85cef", json: true}, {line: "alloc fs 8ba85cef dir"}, {line: "alloc fs -json 8ba85cef dir", json: true},
	{line: "alloc fs 8ba85cef f", raw: true}, {line: "alloc fs -stat 8ba85cef f"}, {line: "alloc fs -tail 8ba85cef f", raw: true}, {line: "alloc fs -f 8ba85cef f", raw: true},
	{line: "fs 8ba85cef f", raw: true},
	{line: "alloc logs -task T 8ba85cef", raw: true}, {line: "alloc logs -f -task T 8ba85cef", raw: true}, {line: "alloc logs -tail -task T 8ba85cef"}, {line: "alloc logs -stderr -task T 8ba85cef", raw: true},
	{line: "alloc pause 8ba85cef T"}, {line: "alloc restart 8ba85cef"}, {line: "alloc signal 8ba85cef"}, {line: "alloc stats 8ba85cef"}, {line: "alloc stats -json 8ba85cef", json: true},
	{line: "alloc status 8ba85cef"}, {line: "alloc status"}, {line: "alloc status -json 8ba85cef", json: true}, {line: "alloc status -verbose -stats 8ba85cef"}, {line: "alloc status -short 8ba85cef"},
	{line: "alloc status -t {{.Name}} 8ba85cef"}, {line: "alloc status -timeline 8ba85cef"}, {line: "alloc stop 8ba85cef"},
	{line: "agent-info", quiet: true}, {line: "agent-info -json", json: true}, {line: "monitor"}, {line: "monitor -json"},
	{line: "deployment fail 8ba85cef"}, {line: "deployment list"}, {line: "deployment list -json", json: true}, {line: "deployment pause 8ba85cef", quiet: true}, {line: "deployment promote 8ba85cef"},
	{line: "deployment resume 8ba85cef"}, {line: "deployment status -verbose 8ba85cef"}, {line: "deployment status -monitor 8ba85cef"}, {line: "deployment status -json 8ba85cef", json: true}, {line: "deployment unblock 8ba85cef"},
	{line: "eval delete 8ba85cef", quiet: true}, {line: "eval list"}, {line: "eval list -json", json: true}, {line: "eval status 8ba85cef"}, {line: "eval status -json 8ba85cef", json: true}, {line: "eval status -monitor 8ba85cef"},
	{line: "event stream"}, {line: "event stream -json"},
	{line: "job action -job web A"}, {line: "action -job web A"}, {line: "job allocs web"}, {line: "job allocs -json web", json: true}, {line: "job deployments web"}, {line: "job deployments -json -latest web", json: true},
	{line: "job dispatch -detach web"}, {line: "job eval web"}, {line: "job export web", json: true}, {line: "job history -p -full web"}, {line: "job history -json web", json: true},
	{line: "job inspect web", json: true}, {line: "inspect web", json: true}, {line: "job inspect -hcl -with-vars web"}, {line: "job inspect -t {{.Name}} web"},
	{line: "job periodic force -detach web", quiet: true}, {line: "job plan FILE"}, {line: "plan FILE"}, {line: "job promote -detach web", quiet: true}, {line: "job restart -yes web", quiet: true}, {line: "job revert -detach web 1", quiet: true},
	{line: "job run -detach FILE"}, {line: "job run -output GOOD", json: true}, {line: "job run -detach GOOD", quiet: true}, {line: "job plan GOOD"}, {line: "job scale -detach web g 1"}, {line: "job scaling-events web"}, {line: "job start -detach web"}, {line: "start -detach web"},
	{line: "job status"}, {line: "job status -json", json: true}, {line: "job status web"}, {line: "job status -evals -all-allocs -verbose web"}, {line: "job status -json web", json: true},
	{line: "job stop -detach -yes web", quiet: true}, {line: "stop -detach -yes web", quiet: true}, {line: "job tag apply -name n web"}, {line: "job tag unset -name n web"}, {line: "job validate FILE"}, {line: "validate FILE"},
	{line: "acl bootstrap"}, {line: "acl policy apply x FILE", quiet: true}, {line: "acl policy delete x", quiet: true}, {line: "acl policy info x"}, {line: "acl policy list"}, {line: "acl policy list -json", json: true},
	{line: "acl policy self"}, {line: "acl role create -name x -policy y"}, {line: "acl role delete x", quiet: true}, {line: "acl role info x"}, {line: "acl role list"}, {line: "acl role update -name x y"},
	{line: "acl token create -policy x"}, {line: "acl token create -policy x -json", json: true}, {line: "acl token delete x", quiet: true}, {line: "acl token info x"}, {line: "acl token list"}, {line: "acl token self -token x"}, {line: "acl token update -name x y"},
	{line: "logs web"}, {line: "logs -tail 3 -timestamps web"}, {line: "namespace apply x"}, {line: "namespace delete x", quiet: true}, {line: "namespace list"}, {line: "namespace list -json", json: true},
	{line: "namespace inspect web", json: true}, {line: "namespace status web"}, {line: "node drain -disable -self", quiet: true}, {line: "node eligibility -enable -self", quiet: true}, {line: "node meta apply a=b", quiet: true},
	{line: "node meta read"}, {line: "node meta read -json", json: true}, {line: "node pool list"}, {line: "node pool list -json", json: true}, {line: "node pool info p"}, {line: "node pool nodes p"}, {line: "node pool jobs p"},
	{line: "node status"}, {line: "node status -allocs -os -verbose"}, {line: "node status -json", json: true}, {line: "node status -self -verbose -stats"},
	{line: "operator api jobs", json: true}, {line: "operator api /v1/client/fs/cat/x", raw: true}, {line: "operator api -verbose /v1/nowhere"}, {line: "operator metrics", json: true}, {line: "operator metrics -pretty", json: true},
	{line: "operator scheduler get-config"}, {line: "operator scheduler get-config -json", json: true}, {line: "plugin status"}, {line: "plugin status raw_exec", quiet: true}, {line: "plugin status -type csi"}, {line: "plugin restart raw_exec", quiet: true},
	{line: "operator root keyring list"}, {line: "operator root keyring rotate"}, {line: "operator root keyring remove 8ba85cef", quiet: true}, {line: "operator scheduler set-config -memory-oversubscription=true", quiet: true},
	{line: "alloc exec -t=false -task T 8ba85cef true"}, {line: "exec -t=false -task T 8ba85cef true"}, {line: "var lock p true", quiet: true}, {line: "volume create -detach VOLUME"}, {line: "volume register VOLUME"},
	{line: "scaling policy list"}, {line: "scaling policy list -json", json: true}, {line: "scaling policy info 8ba85cef"}, {line: "server members -verbose"}, {line: "server members -json", json: true},
	{line: "service delete web id"}, {line: "service info -verbose web"}, {line: "service info -json web", json: true}, {line: "service list"}, {line: "service list -json", json: true}, {line: "status"}, {line: "status web"},
	{line: "system gc"}, {line: "system reconcile summaries"}, {line: "top -once"}, {line: "top -json", json: true}, {line: "ui -show-url web", quiet: true},
	{line: "var get p"}, {line: "var get -out json p", json: true}, {line: "var get -out hcl p"}, {line: "var list"}, {line: "var list -out json", json: true}, {line: "var purge p", quiet: true}, {line: "var put -force p a=b", quiet: true},
	{line: "volume status"}, {line: "volume status -json", json: true}, {line: "volume status 8ba85cef"}, {line: "volume delete 8ba85cef", quiet: true}, {line: "volume claim list"}, {line: "volume claim delete 8ba85cef"},
}

// hostileCommandExceptions are the commands with connection flags that hostileCommands leaves out, with the reason.
var hostileCommandExceptions = map[string]string{
	"nomad-lite init":                      "writes a file",
	"nomad-lite job init":                  "writes a file",
	"nomad-lite operator snapshot save":    "writes a file; its reply has no text of jobs",
	"nomad-lite operator snapshot inspect": "reads a file",
	"nomad-lite operator snapshot restore": "reads a file",
	"nomad-lite operator snapshot redact":  "reads a file, and prints no text of it",
	"nomad-lite operator snapshot state":   "reads a file, and prints its records as operator state inspect",
	"nomad-lite plugin list":               "starts the plugins of this machine, because the agent's report is invalid here",
	"nomad-lite plugin install":            "writes a file, and starts a plugin; its reply has no text of jobs",
	"nomad-lite operator debug":            "writes files, for ten seconds at least",
}

// TestTerminalGetsNoControlCharacters runs each command with an agent whose every text is hostile, and finds no
// character on the terminal that controls it or is invisible.
func TestTerminalGetsNoControlCharacters(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := httptest.NewServer(hostileValues{seed})
	defer server.Close()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, hostileText(seed, r.URL.Path), http.StatusInternalServerError)
	}))
	defer refusing.Close()
	dir := t.TempDir()
	text := strings.NewReplacer("\x00", "", "\r", "", "\u0085", "", `\`, `\\`).Replace(hostileText(seed, "file")) // HCL does not have these characters, and a backslash begins an escape sequence
	for name, content := range map[string]string{
		"FILE":   "job \"web\" {\n  group \"g\" {\n    unknown = \"%s\"\n  }\n}\n",
		"GOOD":   "job \"web\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      meta {\n        a = \"%s\"\n      }\n    }\n  }\n}\n",
		"VOLUME": "name = \"v\"\ntype = \"host\"\nplugin_id = \"mkdir\"\nhost_path = \"/%s\"\nparameters {\n  a = \"%[1]s\"\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, content, text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tested := map[string]bool{}
	root := newRootCommand(&cli.Streams{})
	for i, c := range hostileCommands {
		args := strings.Fields(c.line)
		cmd, _, err := root.Find(args)
		if err != nil {
			t.Fatal(err)
		}
		tested[cmd.CommandPath()] = true
		if testing.Short() && (uint64(i)+seed)%8 != 0 {
			continue
		}
		words := len(strings.Fields(cmd.CommandPath())) - 1
		for i, arg := range args {
			switch arg {
			case "T":
				args[i] = hostileText(seed, "task")
			case "FILE", "GOOD", "VOLUME":
				args[i] = filepath.Join(dir, arg)
			}
		}
		withAddress := func(address string) []string { return slices.Insert(slices.Clone(args), words, "-address", address) }
		t.Run(c.line, func(t *testing.T) {
			refused := runOnTerminal(t, withAddress(refusing.URL))
			if at := findUnsafe(refused); at != "" {
				t.Errorf("the terminal got %q of an error in\n%q", at, refused)
			}
			args := withAddress(server.URL)
			onTerminal := runOnTerminal(t, args)
			if at := findUnsafe(onTerminal); at != "" {
				t.Errorf("the terminal got %q in\n%q", at, onTerminal)
			}
			if !strings.Contains(onTerminal, canary) && (!c.quiet || !strings.Contains(refused, canary)) {
				t.Errorf("no text of the agent has reached the terminal:\n%s%s", refused, onTerminal)
			}
			if !c.json && !c.raw {
				return
			}
			var piped, errs bytes.Buffer
			Execute(args, &cli.Streams{In: strings.NewReader(""), Out: &piped, Err: &errs})
			if raw := hostileOutput(seed); c.raw && !strings.Contains(piped.String(), raw) {
				t.Errorf("a pipe got\n%q, want\n%q", &piped, raw)
			}
			if c.json {
				want, err := decodeJSON(piped.String())
				if err != nil {
					t.Fatalf("a pipe got no JSON: %v\n%s%s", err, &piped, &errs)
				}
				if got, err := decodeJSON(onTerminal); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("the JSON on the terminal has another value (%v):\n%s", err, onTerminal)
				}
			}
		})
	}
	for _, cmd := range commandsWithAgent(root) {
		if path := cmd.CommandPath(); !tested[path] && hostileCommandExceptions[path] == "" {
			t.Errorf("%s is not in hostileCommands", path)
		}
	}
}

// commandsWithAgent returns the commands with connection flags below a command.
func commandsWithAgent(cmd *cobra.Command) (found []*cobra.Command) {
	for _, child := range cmd.Commands() {
		found = append(found, commandsWithAgent(child)...)
	}
	if cmd.Flags().Lookup("address") != nil && cmd.Flags().Lookup("tls-skip-verify") != nil {
		found = append(found, cmd)
	}
	return found
}

// decodeJSON returns the values in a text.
func decodeJSON(text string) (values []any, err error) {
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var value any
		switch err := decoder.Decode(&value); {
		case errors.Is(err, io.EOF) && len(values) > 0:
			return values, nil
		case err != nil:
			return nil, err
		}
		values = append(values, value)
	}
}
