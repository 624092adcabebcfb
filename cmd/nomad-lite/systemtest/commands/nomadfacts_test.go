package commands

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// nomadFact is a fact about the output of Nomad's command line that scripts rely on.
type nomadFact struct {
	fact    string // the expectation in words
	command string // command of the shell, with the variables that TestNomadFacts sets
	code    int    // exit code
	stdout  string // regular expression for the output; "" means that there is none
	stderr  string // the same for standard error
}

// anyText is the regular expression of a stream that is not a part of a fact.
const anyText = `(?s).*`

const (
	uuidPattern    = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`
	shortIDPattern = `[0-9a-f]{8}`
	timePattern    = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)`
	allocColumns   = `ID +Node ID +Task Group +Version +Desired +Status +Created +Modified`
)

// emptyAgentFacts are about an agent without jobs.
var emptyAgentFacts = []nomadFact{
	{"an empty list of jobs is a sentence", `nomad-lite job status`, 0, `\ANo running jobs\n\z`, ""},
	{"an empty list of evaluations is a sentence", `nomad-lite eval list`, 0, `\ANo evals found\n\z`, ""},
	{"an empty list of deployments is a sentence", `nomad-lite deployment list`, 0, `\ANo deployments found\n\z`, ""},
	{"an empty list of services is a sentence", `nomad-lite service list`, 0, `\ANo service registrations found\n\z`, ""},
	{"an empty list of scaling policies is a sentence", `nomad-lite scaling policy list`, 0, `\ANo policies found\n\z`, ""},
	{"an empty list of variables is a sentence", `nomad-lite var list -out table`, 0, `\ANo matching variables found\n\z`, ""},
	{"an empty list of CSI volumes is a title, and a sentence on stderr", `nomad-lite volume status -type csi`, 0, `\AContainer Storage Interface\n\z`, `\ANo CSI volumes\n\z`},
	{"an empty list of host volumes is a title, and a sentence on stderr", `nomad-lite volume status -type host`, 0, `\ADynamic Host Volumes\n`, `\ANo dynamic host volumes\n\z`},
	{"an empty list of CSI plugins is a title, and a sentence on stderr", `nomad-lite plugin status`, 0, `(?m)^Container Storage Interface$`, `\ANo CSI plugins\n\z`},
	{"an empty JSON list", `nomad-lite job status -json`, 0, `\A\[\]\n\z`, ""},
	{"an empty JSON list of variables", `nomad-lite var list`, 0, `\A\[\]\n\z`, ""},
	{"the other empty JSON lists", `for list in "eval list" "deployment list" "service list" "scaling policy list" "alloc status" "node status -filter ID==x"; do nomad-lite $list -json; done`, 0, `\A(\[\]\n){6}\z`, ""},
	{"an empty list of nodes is a sentence", `nomad-lite node status -filter ID==x`, 0, `\ANo nodes registered\n\z`, ""},
	{"the allocations of a node without any", `nomad-lite node status -self -short`, 0, `(?m)^Allocations\nNo allocations placed$`, ""},
	{"without templates", `nomad-lite job init -list-templates`, 1, "", `\ANo variables in nomad/job-templates\n`},
}

// nomadFacts are about an agent with the jobs that TestNomadFacts runs. They are checked in their order.
var nomadFacts = []nomadFact{
	// Flags, help and exit codes.
	{"a switch is turned off with =false", `nomad-lite job status -short=false --verbose=false web`, 0, `(?m)^Summary$`, ""},
	{"help goes to stdout", `nomad-lite job run -h`, 0, `(?m)^Usage:`, ""},
	{"each form of the help flag", `nomad-lite job run -help && nomad-lite job --help`, 0, `(?ms)^Usage:.*^Usage:`, ""},
	{"a group without a subcommand", `nomad-lite job`, 1, `(?m)^Usage:`, ""},
	{"a group with an unknown subcommand", `nomad-lite job zork`, 1, "", `"zork"`},
	{"no command", `nomad-lite`, 127, `(?m)^Usage:`, ""},
	{"an unknown command", `nomad-lite zork`, 127, "", `"zork"`},
	{"an unknown flag", `nomad-lite job status -zork`, 1, "", `zork`},
	{"an unknown flag of plan", `nomad-lite job plan -zork web.nomad.hcl`, 255, "", `zork`},
	{"an agent that is not there", `nomad-lite job status -address http://127.0.0.1:1`, 1, "", `connection refused`},
	{"a wrong number of arguments", `nomad-lite job allocs`, 1, "", `.`},
	{"a plan without changes", `nomad-lite job plan web.nomad.hcl`, 0, `(?m)^Job Modify Index: [1-9]\d*$`, ""},
	{"a plan with changes", `nomad-lite job plan other.nomad.hcl`, 1, `(?m)^Job Modify Index: [1-9]\d*$`, ""},
	{"the JSON of a plan", `nomad-lite job plan -json-output other.nomad.hcl`, 1, `(?s)\A\{\n    "Annotations": .*"Diff": .*"JobModifyIndex": [1-9]`, ""},
	{"a plan of a missing file", `nomad-lite job plan missing.nomad.hcl`, 255, "", `missing.nomad.hcl`},
	{"the exit code of exec", `nomad-lite alloc exec -task server $ALLOC sh -c 'echo out; echo err >&2; exit 7'`, 7, `\Aout\n\z`, `\Aerr\n\z`},
	{"the exit code of an action", `nomad-lite job action -job web -group g -task server fail`, 5, "", ""},
	{"the exit codes of exec and action at the top level", `nomad-lite exec -task server $ALLOC sh -c 'exit 7'; echo $?; nomad-lite action -job web -group g -task server greet; nomad-lite action -job web -group g -task server fail`, 5, `\A7\nhi\n\z`, ""},

	// Objects that do not exist, and ambiguous prefixes.
	{"an unknown job", `nomad-lite job status nope`, 1, "", `\ANo job\(s\) with prefix or ID "nope" found\n`},
	{"an unknown parameterized job", `nomad-lite job dispatch web`, 1, "", `\ANo parameterized job\(s\) with prefix or ID "web" found\n`},
	{"an unknown periodic job", `nomad-lite job periodic force web`, 1, "", `\ANo periodic job\(s\) with prefix or ID "web" found\n`},
	{"an unknown allocation", `nomad-lite alloc status 00000000-0`, 1, "", `\ANo allocation\(s\) with prefix or id "00000000-0" found\n`},
	{"an unknown node", `nomad-lite node status 00000000-0`, 1, "", `\ANo node\(s\) with prefix or id "00000000-0" found\n\z`},
	{"an unknown node to drain", `nomad-lite node drain -enable -detach 00000000-0 || nomad-lite node eligibility -disable 00000000-0`, 1, "", `\A(No node\(s\) with prefix or id "00000000-0" found\n){2}`},
	{"an unknown evaluation", `nomad-lite eval status 00000000-0`, 1, "", `\ANo evaluation\(s\) with prefix or id "00000000-0" found\n`},
	{"an unknown deployment", `nomad-lite deployment status 00000000-0`, 1, "", `"00000000-0"`},
	{"an unknown namespace", `nomad-lite namespace status nope`, 1, "", `Namespace "nope" matched no namespaces`},
	{"an unknown node pool", `nomad-lite node pool info nope`, 1, "", `No node pool with prefix "nope" found`},
	{"an unknown policy", `nomad-lite scaling policy info nope`, 1, "", `no scaling policies with prefix or ID "nope" found`},
	{"an unknown service", `nomad-lite service info nope`, 1, "", `No service registrations with prefix "nope" found`},
	{"an unknown variable", `nomad-lite var get nope`, 1, "", `Variable not found`},
	{"an unknown id", `nomad-lite status nope`, 1, "", `Unable to resolve ID: "nope"`},
	{"an id of one character", `nomad-lite alloc status a`, 1, "", `Identifier must contain at least two characters\.`},
	{"an ambiguous prefix of a job", `nomad-lite job inspect w`, 1, "", `\APrefix "w" matched multiple jobs\n\nID `},
	{"an exact id wins over longer ids", `nomad-lite job status web`, 0, `\AID +=? ?= web\n|\AID += web\n`, ""},
	{"an ambiguous prefix of an allocation", `nomad-lite alloc status -address $AMBIGUOUS aa`, 0, `\APrefix matched multiple allocations\n\n` + allocColumns + `.*\naa111111-`, ""},
	{"an ambiguous prefix of an allocation to stop", `nomad-lite alloc stop -address $AMBIGUOUS aa`, 1, "", `\APrefix matched multiple allocations\n\n` + allocColumns + `.*\naa111111-`},
	{"an ambiguous prefix of a node", `nomad-lite node status -address $AMBIGUOUS aa`, 1, "", `\APrefix matched multiple nodes\n\nID +DC +Name +Class +Drain +Eligibility +Status\naa111111-`},
	{"an ambiguous prefix of a node to drain", `nomad-lite node drain -enable -detach -address $AMBIGUOUS aa`, 1, "", `\APrefix matched multiple nodes\n\nID +DC +Name +Class +Drain +Eligibility +Status\n` + uuidPattern},
	{"an ambiguous prefix of an evaluation", `nomad-lite eval status -address $AMBIGUOUS aa`, 1, "", `\APrefix matched multiple evaluations\n\nID +Priority +Triggered By +Job ID +Namespace +Node ID +Status +Placement Failures\naa111111-`},
	{"an ambiguous prefix of a deployment", `nomad-lite deployment status -address $AMBIGUOUS aa`, 1, "", `\APrefix matched multiple deployments\n\nID +Job ID +Job Version +Status +Description\naa111111-`},

	// Questions. Each answer of no leaves the job as it is.
	{"the answer n", `echo n | nomad-lite job stop web-2`, 0, `\AAre you sure you want to stop job "web-20"\? \[y/N\] Cancelling job stop\n\z`, ""},
	{"other answers of no", `for answer in '' N no nope; do echo $answer | nomad-lite job stop web-2 || exit; done`, 0, `\A(.*\[y/N\] Cancelling job stop\n){4}\z`, ""},
	{"the answer yes", `echo yes | nomad-lite job stop web-2 && echo yo | nomad-lite job stop web-2`, 0, `\A(.*\[y/N\] For confirmation, an exact ‘y’ is required\.\n){2}\z`, ""},
	{"the answer Y", `echo Y | nomad-lite job stop web-2`, 1, `\[y/N\] No confirmation detected\. For confirmation, an exact 'y' is required\.\n\z`, ""},
	{"no answer", `nomad-lite job stop web-2 </dev/null`, 1, `\[y/N\] \n\z`, `\AFailed to parse answer: EOF\n\z`},
	{"the job still runs", `nomad-lite job status -t '{{range .}}{{.Job.Stop}}{{end}}' web-20`, 0, `\Afalse\n\z`, ""},
	{"the answer y", `echo y | nomad-lite job stop -detach web-2`, 0, `\[y/N\] ` + uuidPattern + `\n\z`, ""},
	{"a question about a node", `echo n | nomad-lite node drain -enable $(echo $NODE | cut -c1-8)`, 0, `\[y/N\] Canceling drain toggle\n\z`, ""},

	// Tables, JSON and templates.
	{"the columns of jobs", `nomad-lite job status`, 0, `\AID +Type +Priority +Status +Submit Date\n`, ""},
	{"the columns of jobs of all namespaces", `nomad-lite job status -namespace '*'`, 0, `\AID +Namespace +Type +Priority +Status +Submit Date\n`, ""},
	{"the type of a periodic job, its status and date", `nomad-lite job status`, 0, `(?m)^cron +batch/periodic +50 +running +` + timePattern + `$`, ""},
	{"the type of a parameterized job", `nomad-lite job status`, 0, `(?m)^param +batch/parameterized +50 +running +`, ""},
	{"the status of a stopped job", `nomad-lite job status`, 0, `(?m)^web-20 +service +50 +dead \(stopped\) +`, ""},
	{"job status -json is a list", `nomad-lite job status -json web`, 0, `(?s)\A\[\n    \{\n        "Allocations": \[.*"Evaluations": \[.*"LatestDeployment": \{.*"Summary": \{`, ""},
	{"job inspect has a wrapper", `nomad-lite job inspect web`, 0, `\A\{\n    "Job": \{\n        "Affinities": `, ""},
	{"job inspect -json has none", `nomad-lite job inspect -json web`, 0, `\A\{\n    "Affinities": `, ""},
	{"job run -output has a wrapper", `nomad-lite job run -output web.nomad.hcl`, 0, `\A\{\n    "Job": \{\n`, ""},
	{"job run -output has the order of the struct", `nomad-lite job run -output web.nomad.hcl`, 0, `(?s)\A\{\n    "Job": \{\n        "Region": null,\n        "Namespace": null,\n        "ID": "web",\n        "Name": "web",\n        "Type": null,`, ""},
	{"node pool list -json has one pool per line", `nomad-lite node pool list -json`, 0, `\A\[\n    \{"CreateIndex":.*"Name":"all".*\},\n    \{"CreateIndex":.*"Name":"default".*\}\n\]\n\z`, ""},
	{"operator scheduler get-config -json is the reply", `nomad-lite operator scheduler get-config -json`, 0, `(?s)\A\{\n    "KnownLeader": true,.*\n    "SchedulerConfig": \{\n.*"MemoryOversubscriptionEnabled": `, ""},
	{"JSON is indented by four spaces", `nomad-lite deployment list -json`, 0, `(?s)\A\[\n    \{\n        "CreateIndex": \d+,\n        "CreateTime": \d{19},\n        "ID": "` + uuidPattern + `",`, ""},
	{"job status -json without an id is the same list", `nomad-lite job status -json`, 0, `(?s)\A\[\n    \{\n        "Allocations": \[`, ""},
	{"job history -json is a list", `nomad-lite job history -json web`, 0, `\A\[\n    \{\n        "Affinities": `, ""},
	{"alloc status -json without an id is a list", `nomad-lite alloc status -json`, 0, `\A\[\n    \{\n        "ClientDescription": `, ""},
	{"alloc status -json with an id is an object", `nomad-lite alloc status -json $ALLOC`, 0, `\A\{\n    "AllocModifyIndex": `, ""},
	{"alloc checks -json is an object by check", `nomad-lite alloc checks -json $ALLOC`, 0, `\A\{\n    "[0-9a-f]{64}": \{\n`, ""},
	{"service list -json is a list of namespaces", `nomad-lite service list -json`, 0, `(?s)\A\[\n    \{\n        "Namespace": "default",\n        "Services": \[\n            \{\n                "ServiceName": `, ""},
	{"node status -json is a list", `nomad-lite node status -json`, 0, `\A\[\n    \{\n        "Address": `, ""},
	{"node status -json with an id is an object", `nomad-lite node status -json $NODE`, 0, `\A\{\n    "Attributes": `, ""},
	{"agent-info -json", `nomad-lite agent-info -json`, 0, `(?s)\A\{\n    "config": .*\n    "member": .*\n    "stats": `, ""},
	{"operator api prints the body as it is", `nomad-lite operator api jobs`, 0, `\A\[\{"`, ""},
	{"operator api succeeds although the agent reports an error", `nomad-lite operator api job/nope`, 0, `not found`, anyText},
	{"a template is executed on the struct", `nomad-lite alloc status -t '{{.ClientStatus}}' $ALLOC`, 0, `\Arunning\n\z`, ""},
	// Order of rows.
	{"jobs are sorted by id", `nomad-lite job status | tail -n +2 | cut -d' ' -f1 | LC_ALL=C sort -c`, 0, "", ""},
	{"evaluations and deployments are sorted by age", `for list in eval deployment; do nomad-lite $list list -t '{{range .}}{{.CreateIndex}} {{.ModifyIndex}}{{"\n"}}{{end}}' | cut -d' ' -f1 | sort -c -n -r || exit; done`, 0, "", ""},
	{"pages of evaluations start with the oldest", `test "$(nomad-lite eval list -t '{{range .}}{{.ID}}{{"\n"}}{{end}}' | tail -n 1)" = "$(nomad-lite eval list -per-page 1 -t '{{range .}}{{.ID}}{{end}}')"`, 0, "", ""},
	{"files are sorted by name", `nomad-lite alloc fs $ALLOC | tail -n +2 | sed 's/.* //; s,/$,,' | LC_ALL=C sort -c`, 0, "", ""},
	{"attributes are sorted by key", `nomad-lite node status -verbose -self | sed -n '/^Attributes$/,/^$/p' | sed '1d; /^$/d; s/ .*//' | LC_ALL=C sort -c`, 0, "", ""},
	{"processor cores are in their order", `nomad-lite node status -stats -self | sed -n 's/^cpu\([0-9][0-9]*\) .*/\1/p' | sort -c -n && nomad-lite node status -stats -self`, 0, `(?m)^CPU Stats\nCPU +User +System +Idle\ncpu0 `, ""},

	{"a page names the next page", `nomad-lite eval list -per-page 1`, 0, `\n\nResults have been paginated\. To get the next page run:\n\nnomad-lite eval list -per-page 1 -page-token \S+\n\z`, ""},
	{"the next page has another token", `nomad-lite eval list -per-page=1 -page-token=$EVAL`, 0, `(?m)^ID +Priority`, ""},

	// Monitors, -detach and warnings.
	{
		"the monitor of a job", `nomad-lite job run other.nomad.hcl`, 0,
		`(?s)\A==> ` + timePattern + `: Monitoring evaluation "` + shortIDPattern + `"\n    ` + timePattern + `: Evaluation triggered by job "other"\n` +
			`.*: Evaluation within deployment: "` + shortIDPattern + `"\n.*: Allocation "` + shortIDPattern + `" created: node "` + shortIDPattern + `", group "g"\n` +
			`.*: Evaluation status changed: "pending" -> "complete"\n==> ` + timePattern + `: Evaluation "` + shortIDPattern + `" finished with status "complete"\n` +
			`==> ` + timePattern + `: Monitoring deployment "` + shortIDPattern + `"\n.*Description = Deployment completed successfully\n`, "",
	},
	{"a failed placement", `nomad-lite job run nowhere.nomad.hcl`, 2, `(?s)finished with status "complete" but failed to place all allocations:\n.*Task Group "g" \(failed to place 1 allocation\).*\* Constraint .*waiting for additional capacity to place remainder\n`, ""},
	{"the exit code of the other monitors of a failed placement", `nomad-lite job eval nowhere >/dev/null; echo $?; nomad-lite eval status -monitor $(nomad-lite eval list -job nowhere -status complete -t '{{(index . 0).ID}}') >/dev/null`, 2, `\A2\n\z`, ""},
	{"a job without allocations", `nomad-lite job status nowhere`, 0, `(?s)\n\nPlacement Failure\nTask Group "g" \(failed to place 1 allocation\):\n  \* Constraint .*\n\nAllocations\nNo allocations placed\n\z`, ""},
	{"the index of a job that exists", `nomad-lite job run -check-index 0 web.nomad.hcl`, 1, "", `\AEnforcing job modify index 0: job already exists\nJob not updated\n\z`},
	{"the index of another version", `nomad-lite job run -check-index 1 web.nomad.hcl`, 1, "", `\AEnforcing job modify index 1: job exists with conflicting job modify index: \d+\nJob not updated\n\z`},
	{"a valid job and its warnings", `nomad-lite job validate warned.nomad.hcl`, 0, `(?s)\AJob Warnings:\n.*\n\nJob validation successful\n\z`, ""},
	{"a job is validated without an agent", `nomad-lite job validate -address http://127.0.0.1:1 web.nomad.hcl`, 0, `Job validation successful\n\z`, anyText},
	{"a missing driver is a warning", `sed s/raw_exec/podman/ web-20.nomad.hcl | nomad-lite job validate -`, 0, `\AJob validation successful\n\z`, `podman`},
	{"an invalid job", `echo 'job "x" {}' | nomad-lite job validate -`, 1, "", `group`},
	{"the warnings of a plan", `nomad-lite job plan warned.nomad.hcl`, 1, `(?ms)^Job Warnings:$.*^Job Modify Index: 0$`, ""},
	{"the index of a job that does not exist", `nomad-lite job run -check-index 7 warned.nomad.hcl`, 1, "", `\AEnforcing job modify index 7: job does not exist\nJob not updated\n\z`},
	{"job run -detach, and job warnings on stdout", `nomad-lite job run -detach warned.nomad.hcl`, 0, `\AJob Warnings:\n(?s:.*)\n\nJob registration successful\nEvaluation ID: ` + uuidPattern + `\n\z`, ""},
	{"job validate, and job warnings on stdout", `nomad-lite job validate warned.nomad.hcl`, 0, `\AJob Warnings:\n(?s:.*)\n\nJob validation successful\n\z`, ""},
	{"a parameterized job", `nomad-lite job run param.nomad.hcl`, 0, `\AJob registration successful\n\z`, anyText},
	{"a periodic job", `nomad-lite job run -detach cron.nomad.hcl`, 0, `\AJob registration successful\nApproximate next launch time: ` + timePattern + ` \(\w+ from now\)\n\z`, ""},
	{"job stop -detach", `nomad-lite job stop -detach warned nowhere`, 0, `\A(` + uuidPattern + `\n){2}\z`, ""},
	{"job start -detach", `nomad-lite job start -detach warned`, 0, `\AJob start successful\nEvaluation ID: ` + uuidPattern + `\n\z`, anyText},
	{"start at the top level", `nomad-lite job stop -detach warned >/dev/null && nomad-lite start -detach warned`, 0, `\AJob start successful\n`, anyText},
	{"job start of a job that runs", `nomad-lite job start warned`, 1, "", `\AJob "warned" has not been stopped`},
	{"job scale -detach", `nomad-lite job scale -detach other g 2`, 0, `\AJob scale successful\nEvaluation ID: ` + uuidPattern + `\n\z`, ""},
	{"job scale of an unknown group", `nomad-lite job scale other nope 2`, 1, "", `Group nope not found within job`},
	{"the message of a scaling event", `nomad-lite job scaling-events -verbose other`, 0, `submitted using the Nomad CLI`, ""},
	{"job eval -detach", `nomad-lite job eval -detach other`, 0, `\ACreated eval ID: "` + shortIDPattern + `" \n\z`, ""},
	{"job revert -detach", `nomad-lite job revert -detach other 0`, 0, `\AEvaluation ID: ` + uuidPattern + `\n\z`, ""},
	{"job periodic force -detach", `nomad-lite job periodic force -detach cron`, 0, `\AForce periodic successful\nEvaluation ID: ` + uuidPattern + `\n\z`, ""},
	{"job dispatch with a template of the id", `nomad-lite job dispatch -detach -id-prefix-template a-b -meta k=v param`, 0, `\ADispatched Job ID = param/dispatch-a-b-\d+-[0-9a-f]{8}\n`, ""},
	{"job dispatch -detach", `nomad-lite job dispatch -detach -meta k=v param`, 0, `\ADispatched Job ID = param/dispatch-\d+-[0-9a-f]{8}\nEvaluation ID     = ` + shortIDPattern + `\n\z`, ""},
	{"children have lines of their own", `nomad-lite job status`, 0, `(?m)^cron/periodic-\d+ +batch +50 +`, ""},
	{"the children of a parameterized job", `nomad-lite job status param`, 0, `(?ms)^Parameterized Job\n.*^Parameterized Job Summary\nPending +Running +Dead\n.*^Dispatched Jobs\nID +Status`, ""},
	{"the children of a periodic job", `nomad-lite job status cron`, 0, `(?ms)^Next Periodic Launch += ` + timePattern + ` \(.* from now\)$.*^Children Job Summary\nPending +Running +Dead\n.*^Previously Launched Jobs\nID +Status`, ""},
	{"a child is not parameterized", `nomad-lite job status $(nomad-lite job status | sed -n 's/^\(param\/dispatch-[0-9][^ ]*\).*/\1/p')`, 0, `(?m)^Parameterized += false$`, ""},
	{"alloc stop -detach", `nomad-lite alloc stop -detach $OTHER`, 0, `\A` + uuidPattern + `\n\z`, ""},
	{"allocations are sorted by age", `nomad-lite job allocs -t '{{range .}}{{.CreateIndex}}{{"\n"}}{{end}}' other | sort -c -n -r`, 0, "", ""},
	{"system gc is silent", `nomad-lite system gc`, 0, "", ""},
	{"system reconcile summaries is silent", `nomad-lite system reconcile summaries`, 0, "", ""},

	// Allocations.
	{"the columns of allocations", `nomad-lite job allocs web`, 0, `\A` + allocColumns + `\n` + shortIDPattern + ` +` + shortIDPattern + ` +g +0 +run +running +`, ""},
	{"the columns of allocations with -verbose", `nomad-lite job allocs -verbose web`, 0, `\AID +Eval ID +Node ID +Node Name +Task Group +Version +Desired +Status +Created +Modified\n`, ""},
	{
		"the labels of an allocation", `nomad-lite alloc status -verbose $ALLOC`, 0,
		`(?s)\AID += ` + uuidPattern + `\nEval ID += .*\nName += .*\nNode ID += .*\nNode Name += .*\nJob ID += web\nJob Version += 0\nClient Status += running\nClient Description += .*\n` +
			`Desired Status += run\nDesired Description += <none>\nCreated += ` + timePattern + `\nModified += ` + timePattern + `\nDeployment ID += ` + uuidPattern + `\nDeployment Health += healthy\n` +
			`Evaluated Nodes += 1\nFiltered Nodes += 0\nExhausted Nodes += 0\nAllocation Time += .*\nFailures += 0\n`, "",
	},
	{"the addresses of an allocation", `nomad-lite alloc status $ALLOC`, 0, `(?m)^Allocation Addresses:\nLabel +Dynamic +Address\n\*http +yes +[0-9.]+:\d+$`, ""},
	{"the checks of an allocation", `nomad-lite alloc status $ALLOC`, 0, `(?m)^Nomad Service Checks:\nService +Task +Name +Mode +Status\nweb +\(group\) +.* +healthiness +success$`, ""},
	{"the tasks of an allocation", `nomad-lite alloc status $ALLOC`, 0, `(?ms)^Task "init" \(prestart\) is "dead"\n.*^Task "last" \(poststop\) is "pending"\n.*^Task "side" \(prestart sidecar\) is "running"\n.*^Task "server" is "running"\n`, ""},
	{"the resources of a task", `nomad-lite alloc status $ALLOC`, 0, `(?m)^Task Resources:\nCPU +Memory +Disk +Addresses\n(\d+/)?100 MHz +`, ""},
	{"the events of a task", `nomad-lite alloc status $ALLOC`, 0, `(?ms)^Task Events:\nStarted At += ` + timePattern + `\nFinished At += N/A\nTotal Restarts += 0\nLast Restart += N/A\n\nRecent Events:\nTime +Type +Description\n(` + timePattern + ` +Driver [^\n]+\n)?` + timePattern + ` +Started +`, ""}, // an event of the driver can arrive later
	{"a short allocation", `nomad-lite alloc status -short $ALLOC`, 0, `(?ms)\AID += ` + uuidPattern + `\nName += web.g\[0\]\nCreated += .*\nModified += [^\n]*\n\nTasks\nName +State +Last Event +Time +Lifecycle.*^side +running .* prestart sidecar`, ""},
	{"alloc logs", `nomad-lite alloc logs -task server $ALLOC`, 0, `\Ahello\n\z`, ""},
	{"alloc logs -stderr writes to stdout", `nomad-lite alloc logs -stderr $ALLOC server`, 0, `\Acomplaint\n\z`, ""},
	{"the checks of an allocation in full", `nomad-lite alloc checks $ALLOC`, 0, `\AStatus of 1 Nomad Service Checks\n\nID +=  [0-9a-f]{64}\nName +=  .*\nGroup +=  web.g\[0\]\nTask +=  \(group\)\nService +=  web\nStatus +=  success\nMode +=  healthiness\nTimestamp +=  ` + timePattern + `\nStatusCode +=  200\nOutput +=  `, ""},
	{"the files of an allocation", `nomad-lite alloc fs $ALLOC`, 0, `\AMode +Size +Modified Time +Name\n`, ""},
	{"the status of a file", `nomad-lite alloc fs -stat $ALLOC alloc/logs/server.stdout.0`, 0, `\AMode +Size +Modified Time +Content Type +Name\n-rw\S+ +6 B +` + timePattern + ` +text/plain; charset=utf-8 +server.stdout.0\n\z`, ""},
	{"alloc signal is silent", `nomad-lite alloc signal -s SIGCONT $ALLOC server`, 0, "", ""},
	{"alloc restart is silent", `nomad-lite alloc restart $ALLOC side`, 0, "", ""},

	// Jobs.
	{"the fields of a job", `nomad-lite job status -short web`, 0, `\AID += web\nName += web\nSubmit Date += ` + timePattern + `\nType += service\nPriority += 50\nDatacenters += \*\nNamespace += default\nNode Pool += default\nStatus += running\nPeriodic += false\nParameterized += false\n`, ""},
	{
		"the sections of a job", `nomad-lite job status -evals web`, 0,
		`(?s)\n\nSummary\nTask Group +Queued +Starting +Running +Failed +Complete +Lost +Unknown\ng .*\n\nEvaluations\nID +Priority +Triggered By +Status +Placement Failures\n` +
			`.*\n\nLatest Deployment\nID += .*\nStatus += successful\nDescription += Deployment completed successfully\n\nDeployed\nTask Group +Desired +Placed +Healthy +Unhealthy +Progress Deadline\n` +
			`.*\n\nActions\nAction Name +Task Group +Task\n.*\n\nAllocations\n` + allocColumns, "",
	},
	{"the diffs of a history", `nomad-lite job history -p other`, 0, `(?m)^Version += 2\nStable += \w+\nSubmit Date += ` + timePattern + `\nDiff += ?\n.*Job: "other"`, ""},
	{"the JSON of a history", `nomad-lite job history -full -version 0 other`, 0, `\AVersion += 0\nStable += \w+\nSubmit Date += ` + timePattern + `\nFull += JSON Job:\n\{\n    "Affinities": `, ""},
	{"a version that does not exist", `nomad-lite job history -version 77 other`, 1, "", `Error printing job history for non-existing job or job version`},
	{"the source of a job", `nomad-lite job inspect -hcl web | cmp - web.nomad.hcl`, 0, "", ""},
	{"the variables of a job", `nomad-lite job inspect -hcl -with-vars other >/dev/null`, 0, "", `\A-var greeting=hi\n\z`},
	{"the last line of a restart", `nomad-lite job restart -on-error=fail -task side web`, 0, `(?s)\A==> ` + timePattern + `: Restarting 1 allocation\n.*: Restarting task "side" in allocation "` + shortIDPattern + `" for group "g"\n==> ` + timePattern + `: Job restart finished\n\nJob restarted successfully!\n\z`, ""},
	{"a tagged version", `nomad-lite job tag apply -name good -version 0 other && nomad-lite job history -version 0 other && nomad-lite job tag unset -name good other`, 0, `(?s)\AJob version 0 tagged with name "good"\n.*\nTag Name += good\n.*Tag "good" removed from job "other"\n\z`, ""},

	// Nodes.
	{"the columns of nodes", `nomad-lite node status`, 0, `\AID +Node Pool +DC +Name +Class +Drain +Eligibility +Status\n` + shortIDPattern + ` +default +dc1 +\S+ +<none> +false +eligible +ready\n\z`, ""},
	{"the columns of nodes with flags", `nomad-lite node status -verbose -os -allocs`, 0, `\AID +Node Pool +DC +Name +Class +OS +Address +Version +Drain +Eligibility +Status +Running Allocs\n` + uuidPattern + ` `, ""},
	{"the ids of nodes", `nomad-lite node status -quiet`, 0, `\A` + uuidPattern + `\n\z`, ""},
	{
		"the fields and sections of a node", `nomad-lite node status -self`, 0,
		`(?s)\AID += ` + uuidPattern + `\nName += .*\nNode Pool += default\nClass += <none>\nDC += dc1\nDrain += false\nEligibility += eligible\nStatus += ready\nCSI Controllers += <none>\nCSI Drivers += <none>\nUptime += .*\n` +
			`Host Volumes += .*\nHost Networks += .*\nCSI Volumes += <none>\nDriver Status += \S+\n.*\nNode Events\nTime +Subsystem +Message\n.*\n\nAllocated Resources\nCPU +Memory +Disk +Alloc Count` +
			`.*\n\nAllocation Resource Utilization\nCPU +Memory\n.*\n\nHost Resource Utilization\nCPU +Memory +Disk\n.*\n\nAllocations\n` + allocColumns, "",
	},
	{"a short node", `nomad-lite node status -self -short`, 0, `(?s)\AID += .*\nDrivers += \S+\n\nAllocations\n` + allocColumns, ""},
	{"the allocations of a node with -verbose", `nomad-lite node status -self -verbose`, 0, `(?s)\nDrivers\nDriver +Detected +Healthy +Message +Time\n.*\nNode Events\nTime +Subsystem +Message +Details\n.*\n\nAllocations\nID +Eval ID +Node ID +Task Group +Version +Desired +Status +Created +Modified.*\n\nAttributes\n.*\n\nMeta\n`, ""},
	{"node meta apply is silent", `nomad-lite node meta apply a=b`, 0, "", ""},
	{"the metadata of a node", `nomad-lite node meta read`, 0, `(?s)\AAll Meta\n.*a += b\n.*\nDynamic Meta\na += b\n.*\nStatic Meta\n`, ""},
	{"the metadata of a node as JSON", `nomad-lite node meta read -json`, 0, `(?s)\A\{\n    "Dynamic": .*\n    "Meta": .*\n    "Static": `, ""},
	{"node pools", `nomad-lite node pool list`, 0, `(?ms)\AName +Description\nall .*^default `, ""},
	{"a node pool", `nomad-lite node pool info def`, 0, `\AName += default\nDescription += .*\nNode Identity TTL += .*\n\nMetadata\nNo metadata\n\nScheduler Configuration\nNo scheduler configuration\n`, ""},
	{"an exact name of a node pool wins over longer names", `nomad-lite node pool info -address $AMBIGUOUS aa`, 0, `\AName += aa\n`, ""},
	{"node events are sorted by age, the latest first", `nomad-lite node eligibility -disable -self >/dev/null && nomad-lite node eligibility -enable -self >/dev/null && nomad-lite node status -self`, 0, `(?s)\nNode Events\nTime +Subsystem +Message\n\S+ +\S+ +Node marked as eligible for scheduling\n\S+ +\S+ +Node marked as ineligible for scheduling\n`, ""},
	{"the nodes of a pool", `nomad-lite node pool nodes -per-page 1 default`, 0, `\AID +DC +Name +Class +Drain +Eligibility +Status\n`, ""},
	{"eligibility", `nomad-lite node eligibility -disable $NODE && nomad-lite node eligibility -enable -self`, 0, `\ANode "` + uuidPattern + `" scheduling eligibility set: ineligible for scheduling\nNode "` + uuidPattern + `" scheduling eligibility set: eligible for scheduling\n\z`, ""},

	// Deployments and evaluations.
	{"a group with canaries and automatic revert", `nomad-lite job run canary.nomad.hcl >/dev/null && nomad-lite job run -detach -var args=200000 canary.nomad.hcl >/dev/null && nomad-lite job status canary`, 0, `(?ms)^Status += running\nDescription += Deployment is running but requires manual promotion\n\nDeployed\nTask Group +Auto Revert +Promoted +Desired +Canaries +Placed +Healthy +Unhealthy +Progress Deadline\ng +true +false +1 +1 `, ""},
	{"a paused and resumed deployment", canaryDeployment + `nomad-lite deployment pause $id && nomad-lite deployment list && nomad-lite deployment resume -detach $id`, 0, `(?s)\ADeployment "` + uuidPattern + `" paused\n.* paused +Deployment is paused\n.*\nDeployment "` + uuidPattern + `" resumed\nEvaluation ID: ` + uuidPattern + `\n\z`, ""},
	{"a promoted job", canaryDeployment + `until nomad-lite deployment status -t '{{.TaskGroups.g.HealthyAllocs}}' $id | grep -q 1; do sleep 0.1; done; nomad-lite job promote -detach canary`, 0, `\AEvaluation ID: ` + uuidPattern + `\n\z`, ""},
	{"a deployment that fails by hand", `sleep 0.5; nomad-lite job run -detach -var args=300000 canary.nomad.hcl >/dev/null; ` + canaryDeployment + `nomad-lite deployment fail -detach $id && nomad-lite deployment status $id`, 0, `(?ms)\ADeployment "` + uuidPattern + `" failed\. Auto-reverted to job version 1\.\nEvaluation ID: ` + uuidPattern + `\n.*^Status += failed\nDescription += .* - rolling back to job version 1$`, ""},
	{"the monitor continues with the reverted deployment, and the exit code is 1", `nomad-lite job run -var args=bad canary.nomad.hcl`, 1, `(?s)Description = Failed due to unhealthy allocations - rolling back to job version 3\n.*\n==> ` + timePattern + `: Monitoring deployment "` + shortIDPattern + `"\n.*Description = Deployment completed successfully\n`, ""},
	{"a newer version cancels a deployment", `sed 's/canary  *=.*//; s/min_healthy_time *=.*/min_healthy_time = "1m"/' canary.nomad.hcl >plain.nomad.hcl; nomad-lite job run -detach -var args=400000 plain.nomad.hcl >/dev/null; nomad-lite job run -detach -var args=500000 plain.nomad.hcl >/dev/null; nomad-lite job deployments canary`, 0, ` cancelled +Cancelled due to newer version of job\n`, ""},
	{"the events of a failed task", `nomad-lite alloc status $(nomad-lite job allocs -t '{{range .}}{{if eq .ClientStatus "failed"}}{{.ID}}{{end}}{{end}}' canary)`, 0, `(?s)\nDeployment Health += unhealthy\n.*` + timePattern + ` +Not Restarting +.*\n` + timePattern + ` +Terminated +Exit Code: 1\n` + timePattern + ` +Started +.*\n` + timePattern + ` +Task Setup +.*\n` + timePattern + ` +Received +`, ""},
	{
		"a deployment without progress, and its groups sorted by name", `nomad-lite job run late.nomad.hcl`, 1,
		`(?s)Status += failed\n *Description = Failed due to progress deadline\n.*Task Group +Desired +Placed +Healthy +Unhealthy +Progress Deadline\n *a .*\n *b `, "",
	},
	{"versions and deployments are sorted by age", `nomad-lite job history -t '{{range .}}{{.Version}}{{"\n"}}{{end}}' canary | sort -c -n -r && nomad-lite job deployments -t '{{range .}}{{.JobVersion}}{{"\n"}}{{end}}' canary | sort -c -n -r`, 0, "", ""},
	{"the columns of deployments", `nomad-lite deployment list`, 0, `\AID +Job ID +Job Version +Status +Description\n`, ""},
	{"a deployment", `nomad-lite deployment status $DEPLOYMENT`, 0, `\AID += ` + shortIDPattern + `\nJob ID += web\nJob Version += 0\nStatus += successful\nDescription += Deployment completed successfully\n\nDeployed\nTask Group +Desired +Placed +Healthy +Unhealthy +Progress Deadline\n`, ""},
	{"a deployment that has ended", `nomad-lite deployment fail -detach $DEPLOYMENT`, 1, "", `can't fail terminal deployment`},
	{"the columns of evaluations", `nomad-lite eval list`, 0, `\AID +Priority +Triggered By +Job ID +Namespace +Node ID +Status +Placement Failures\n`, ""},
	{
		"an evaluation", `nomad-lite eval status $EVAL`, 0,
		`(?s)\AID += ` + shortIDPattern + `\nCreate Time += .*\nModify Time += .*\nStatus += complete\nStatus Description += .*\nType += service\nTriggeredBy += job-register\nJob ID += web\nNamespace += default\nPriority += 50\nPlacement Failures += false\n.*\n\nPlaced Allocations\n` + allocColumns + `\n`, "",
	},
	{"an evaluation with -verbose", `nomad-lite eval status -verbose $EVAL`, 0, `(?m)^Placed Allocations\n` + allocColumns + `\n` + uuidPattern, ""},

	// Services, scaling, variables and namespaces.
	{"services", `nomad-lite service list`, 0, `(?m)\AService Name +Tags\nweb +\[a,b\]$`, ""},
	{"the instances of a service", `nomad-lite service info web`, 0, `\AJob ID +Address +Tags +Node ID +Alloc ID`, ""},
	{"the id of an instance", `nomad-lite service info -verbose web`, 0, `(?m)\AID += _nomad-task-` + uuidPattern + `-group-g-web-http\nService Name += web\nNamespace += default\nJob ID += web\nAlloc ID += .*\nNode ID += .*\nDatacenter += dc1\nAddress += .*\nTags += \[a,b\]$`, ""},
	{"the columns of scaling policies", `nomad-lite scaling policy list`, 0, `\AID +Enabled +Type +Target\n.* Namespace:default,Job:web,Group:g\n`, ""},
	{"a scaling policy", `nomad-lite scaling policy info $(nomad-lite scaling policy list | tail -n 1 | cut -c1-8)`, 0, `(?m)\AID += ` + shortIDPattern + `\nEnabled += true\nTarget += .*\nMin += 0\nMax += 3\n(?s).*\n\nPolicy:\n`, ""},
	{"a new variable", `nomad-lite var put -out none a/b k=v`, 0, `\ACreated variable "a/b" with modify index \d+\n\z`, ""},
	{"a conflict", `nomad-lite var put a/b k=w`, 1, "", `(?s)\A\nCheck-and-Set conflict\n\n.*provided check-index \(0\).*server-side index \(\d+\)`},
	{"a changed variable", `nomad-lite var put -force -out none a/b k=w`, 0, `\AUpdated variable "a/b" with modify index \d+\n\z`, ""},
	{"a variable in a pipe", `nomad-lite var get a/b`, 0, `(?s)\A\{\n  "Namespace": "default",\n  "Path": "a/b",\n  "CreateIndex": \d+,\n  "ModifyIndex": \d+,\n  "CreateTime": \d+,\n  "ModifyTime": \d+,\n  "Items": \{\n    "k": "w"\n  \}\n\}\n\z`, ""},
	{"a variable as a table", `nomad-lite var get -out table a/b`, 0, `\ANamespace += default\nPath += a/b\nCreate Time += ` + timePattern + `\n(Modify Time += .*\n)?Check Index += \d+\n\nItems\nk += w\n\z`, ""},
	{"an item", `nomad-lite var get -item k a/b`, 0, `\Aw\n\z`, ""},
	{"an unknown item", `nomad-lite var get -item z a/b`, 1, "", `Variable does not contain "z" item`},
	{"variables are sorted by path, without items", `nomad-lite var put -out none a/a k=v >/dev/null; nomad-lite var list; nomad-lite var purge a/a >/dev/null`, 0, `\A\[\n(?s:.*"Path": "a/a".*"Path": "a/b",\n    "CreateIndex": \d+,\n    "ModifyIndex": \d+,\n    "CreateTime": \d+,\n    "ModifyTime": \d+\n  \}\n\])\n\z`, ""},
	{"variables as a table", `nomad-lite var list -out table`, 0, `\ANamespace +Path +Last Updated\ndefault +a/b +` + timePattern + `\n\z`, ""},
	{"variables, one per line", `nomad-lite var list -out terse`, 0, `\Aa/b\n\z`, ""},
	{"variables of all namespaces", `nomad-lite var list -out terse -namespace '*'`, 0, `\Adefault +a/b\n\z`, ""},
	{"a purged variable", `nomad-lite var purge a/b && nomad-lite var purge a/b`, 0, `\ASuccessfully purged variable "a/b"!\nSuccessfully purged variable "a/b"!\n\z`, ""},
	{"the file of var init", `nomad-lite var init && nomad-lite var init -out json && ls spec.*`, 0, `(?s)\AExample variable specification written to spec\.nv\.hcl\n.*written to spec\.nv\.json\n.*spec\.nv\.hcl\nspec\.nv\.json\n\z`, ""},
	{"var init twice", `nomad-lite var init`, 1, "", `File "spec\.nv\.hcl" already exists`},
	{"a lock that another holder has", `nomad-lite var lock -shell=false locks/a nomad-lite var lock -early-return locks/a true`, 1, "", `another holder has the lock`},
	{"the pause between two requests of a lock", `nomad-lite var lock -backoff 100ms locks/a 'exit 3'`, 3, "", ""},
	{"a namespace", `nomad-lite namespace apply -description d ns && nomad-lite namespace status ns`, 0, `\ASuccessfully applied namespace "ns"!\nName += ns\nDescription += d\nQuota += <none>\nEnabled Drivers += .*\nDisabled Drivers += .*\nEnabled Network Modes += .*\nDisabled Network Modes += .*\n\z`, ""},
	{"an exact name of a namespace wins", `nomad-lite namespace apply ns-2 >/dev/null; nomad-lite namespace status ns; nomad-lite namespace delete ns-2 >/dev/null`, 0, `\AName += ns\n`, ""},
	{"namespaces", `nomad-lite namespace list`, 0, `\AName +Description\ndefault .*\nns +d\n\z`, ""},
	{"an inspected namespace", `nomad-lite namespace inspect ns`, 0, `\A\{\n    "`, ""},
	{"a deleted namespace", `nomad-lite namespace delete ns`, 0, `\ASuccessfully deleted namespace "ns"!\n\z`, ""},

	// The agent, and files.
	{"agent-info", `nomad-lite agent-info`, 0, `(?ms)\Aclient$.*^  node_id = ` + uuidPattern + `$.*^nomad$.*^runtime$`, ""},
	{"the keys of agent-info", `nomad-lite agent-info`, 0, `(?s)\n  known_servers = .*\n  num_allocations = \d+\n.*\n  leader = true\n`, ""},
	{"the directory of operator debug", `nomad-lite operator debug -duration 0s -output bundles`, 0, `(?s)\AStarting debugger\.\.\.\n\nNomad CLI Version: .*\n           Region: .*\n        Namespace: .*\n          Servers: \(1/1\) .*\n          Clients: \(1/1\) .*\n         Interval: 30s\n         Duration: 0s\n   pprof Interval: .*\n\nCapturing cluster data\.\.\.\n.*Created debug directory: bundles/nomad-debug-\S+\n\z`, anyText},
	{"the archive of operator debug", `nomad-lite operator debug -duration 0s`, 0, `\nCreated debug archive: nomad-debug-\S+\.tar\.gz\n\z`, anyText},
	{"the addresses of the web page", `for page in jobs jobs/web@default allocations/$ALLOC clients clients/$NODE evaluations jobs/web/deployments variables variables/var/a/b@default servers; do nomad-lite operator api -verbose /ui/$page 2>&1 | grep '^HTTP\|^< HTTP' ; done`, 0, `\A(.* 200 OK\n){10}\z`, ""},
	{"server members", `nomad-lite server members`, 0, `\AName +Address +Port +Status +Leader +Raft Version +Build +Datacenter +Region\n`, ""},
	{"server members -verbose", `nomad-lite server members -verbose`, 0, `\AName +Address +Port +Status +Leader +Protocol +Raft Version +Build +Datacenter +Region +Tags\n`, ""},
	{"metrics", `nomad-lite operator metrics`, 0, `\A\{"Counters":`, ""},
	{"the address of the web page", `nomad-lite ui -show-url`, 0, `\AURL for web UI: http://\S+/ui/?\n\z`, ""},
	{"the address of the page of a job", `nomad-lite ui -show-url web`, 0, `\AURL for web UI: http://\S+/ui/jobs/web\n\z`, ""},
	{"the web page of an unknown id", `nomad-lite ui -show-url nope`, 1, "", `Unable to resolve ID: "nope"`},
	{"a valid configuration", `nomad-lite config validate good.hcl`, 0, `\AConfiguration is valid!\n\z`, ""},
	{"an invalid configuration", `nomad-lite config validate bad.hcl`, 1, "", `bad\.hcl(?s:.*)\nConfiguration is invalid\n\z`},
	{"a formatted file", `nomad-lite fmt -check web.nomad.hcl`, 0, "", ""},
	{"a file that is not formatted", `nomad-lite fmt -check bad.hcl`, 1, `\Abad\.hcl\n\z`, ""},
	{"standard input is formatted", `nomad-lite fmt - <bad.hcl`, 0, `\A\w+ +=`, ""},
	{"a template of a job file", `nomad-lite var put -out none nomad/job-templates/t template=@web.nomad.hcl description=d >/dev/null && nomad-lite job init -list-templates && nomad-lite job init -template t new.nomad.hcl && cmp new.nomad.hcl web.nomad.hcl`, 0, `(?m)^t +d\nExample job file written to new\.nomad\.hcl$`, ""},
	{"the example is not overwritten", `nomad-lite job init new.nomad.hcl`, 1, "", `Job 'new\.nomad\.hcl' already exists`},
	{"a job file at a URL", `nomad-lite job plan $URL/web.nomad.hcl && nomad-lite job validate $URL/web.nomad.hcl && nomad-lite job run -detach $URL/web.nomad.hcl`, 0, `(?s)\nJob Modify Index: .*\nJob validation successful\n.*\nJob registration successful\n`, ""},
	{"a missing job file at a URL", `nomad-lite job run $URL/missing.nomad.hcl`, 1, "", `404`},

	// Commands that one machine does not have.
	{"node intro", `nomad-lite node intro create`, 1, "", `no such command: \w`},
	{"monitor export", `nomad-lite monitor export -service-name x`, 1, "", `no such command: \w`},
	{"operator utilization", `nomad-lite operator utilization`, 1, "", `no such command: \w`},
	{"Consul Connect", `nomad-lite job init -connect`, 1, "", `Consul is not a part`},

	// A drain stops the tasks, so it is the last.
	{"node drain -detach", `nomad-lite node drain -enable -detach -self && nomad-lite node drain -disable -self >/dev/null`, 0, `\ANode "` + uuidPattern + `" drain strategy set\n\z`, ""},
	{"node drain", `nomad-lite node drain -enable -force $NODE`, 0, `(?s)\A` + timePattern + `: Ctrl-C to stop monitoring: will not cancel the node drain\n` + timePattern + `: Node "` + uuidPattern + `" drain strategy set\n.*(: Drain complete for node ` + uuidPattern + `\n.*|: All allocations on node "` + uuidPattern + `" have stopped\n.*){2}\z`, ""},
	{"node drain -disable", `nomad-lite node drain -disable -self`, 0, `\ANode "` + uuidPattern + `" drain strategy unset\n\z`, ""},
}

// factFiles are the files in the working directory of the facts.
var factFiles = map[string]string{
	"web.nomad.hcl": `job "web" {
  group "g" {
    count = 1

    network {
      port "http" {}
    }

    update {
      min_healthy_time = "100ms"
    }

    scaling {
      min = 0
      max = 3
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"
      tags     = ["a", "b"]

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "10s"
      }
    }

    task "init" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/true"
      }
    }

    task "last" {
      driver = "raw_exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "/bin/true"
      }
    }

    task "side" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/bin/sleep"
        args    = ["1000000"]
      }
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo hello; echo complaint >&2; exec say-hello $NOMAD_PORT_http 2>/dev/null"]
      }

      env {
        PATH = "SEARCH-PATH"
      }

      action "greet" {
        command = "/bin/echo"
        args    = ["hi"]
      }

      action "fail" {
        command = "/bin/sh"
        args    = ["-c", "exit 5"]
      }
    }
  }
}
`,
	"web-20.nomad.hcl":  newSleepJobFile("web-20", "", ""),
	"other.nomad.hcl":   "variable \"greeting\" {\n  default = \"hello\"\n}\n" + newSleepJobFile("other", "", "env {\n        GREETING = var.greeting\n      }"),
	"nowhere.nomad.hcl": "job \"nowhere\" {\n  type = \"batch\"\n  constraint {\n    attribute = \"${attr.kernel.name}\"\n    value     = \"plan9\"\n  }\n" + trueGroup + "}\n",
	"warned.nomad.hcl":  newSleepJobFile("warned", "", "resources {\n        memory     = 64\n        memory_max = 128\n      }"),
	"canary.nomad.hcl":  "variable \"args\" {\n  default = \"100000\"\n}\n" + strings.NewReplacer(`"1000000"`, "var.args", `"100ms"`, "var.args == \"bad\" ? \"1m\" : \"100ms\"\n      auto_revert = true\n      canary = 1").Replace(newSleepJobFile("canary", noRestart+noReschedule, "")),
	"param.nomad.hcl":   "job \"param\" {\n  type = \"batch\"\n  parameterized {\n    meta_required = [\"k\"]\n  }\n" + trueGroup + "}\n",
	"cron.nomad.hcl":    "job \"cron\" {\n  type = \"batch\"\n  periodic {\n    crons = [\"0 0 1 1 *\"]\n  }\n" + trueGroup + "}\n",
	"late.nomad.hcl":    "job \"late\" {\n  update {\n    min_healthy_time  = \"100ms\"\n    healthy_deadline  = \"500ms\"\n    progress_deadline = \"1s\"\n  }\n" + lateGroup("b") + lateGroup("a") + "}\n",
	"good.hcl":          "log_level = \"DEBUG\"\n",
	"bad.hcl":           "log_level   =    \"LOUD\"\n",
}

// canaryDeployment sets the variable id to the latest deployment of job canary.
const canaryDeployment = `id=$(nomad-lite job deployments -latest -t '{{.ID}}' canary) && `

const trueGroup = "  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"/bin/true\"\n      }\n    }\n  }\n"

// lateGroup returns a group that is never healthy, because its first task does not end and its second one waits for that.
func lateGroup(name string) string {
	return "  group \"" + name + "\" {\n    task \"first\" {\n      driver       = \"raw_exec\"\n      kill_timeout = \"100ms\"\n      lifecycle {\n        hook = \"prestart\"\n      }\n" +
		"      config {\n        command = \"/bin/sleep\"\n        args    = [\"1000000\"]\n      }\n    }\n" +
		"    task \"t\" {\n      driver       = \"raw_exec\"\n      kill_timeout = \"100ms\"\n      config {\n        command = \"/bin/true\"\n      }\n    }\n  }\n"
}

// newSleepJobFile returns the file of a service job whose task sleeps.
func newSleepJobFile(id, groupBlock, taskBlock string) string {
	return "job \"" + id + "\" {\n  group \"g\" {\n    update {\n      min_healthy_time = \"100ms\"\n    }\n    " + groupBlock + "\n" +
		"    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"/bin/sleep\"\n        args    = [\"1000000\"]\n      }\n      " + taskBlock + "\n    }\n  }\n}\n"
}

// TestNomadFacts checks, with one agent, the facts about Nomad's command line that scripts rely on.
func TestNomadFacts(t *testing.T) {
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	dir := t.TempDir()
	for name, text := range factFiles {
		text = strings.ReplaceAll(text, "SEARCH-PATH", os.Getenv("PATH"))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "NOMAD_ADDR="+s.Address, "NODE="+s.NodeID, "URL="+serveDirectory(t, dir), "AMBIGUOUS="+serveAmbiguousIDs(t))
	for _, f := range emptyAgentFacts {
		f.check(t, dir, env)
	}
	for _, command := range []string{
		"nomad-lite job run web.nomad.hcl", "nomad-lite job run -detach web-20.nomad.hcl", "nomad-lite job run -detach -var greeting=hi other.nomad.hcl",
		"nomad-lite job run param.nomad.hcl", "nomad-lite job run cron.nomad.hcl",
	} {
		nomadFact{"setup", command, 0, anyText, anyText}.check(t, dir, env)
	}
	if t.Failed() {
		t.FailNow()
	}
	env = append(env, readFactIDs(t, s)...)
	for _, f := range nomadFacts {
		f.check(t, dir, env)
	}
}

// readFactIDs returns the ids of the jobs' objects as variables of the environment.
func readFactIDs(t *testing.T, s *systemtest.TestAgent) []string {
	t.Helper()
	ids := map[string]string{}
	for job, name := range map[string]string{"web": "ALLOC", "other": "OTHER"} {
		var allocs []*api.AllocationListStub
		for deadline := time.Now().Add(systemtest.WaitTimeout); len(allocs) == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			var err error
			if allocs, _, err = s.Jobs().Allocations(job, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		if len(allocs) == 0 {
			t.Fatalf("job %q is not placed", job)
		}
		ids[name] = allocs[0].ID
		if job == "web" {
			ids["EVAL"] = allocs[0].EvalID
		}
	}
	deployment, _, err := s.Jobs().LatestDeployment("web", nil)
	if err != nil {
		t.Fatal(err)
	}
	ids["DEPLOYMENT"] = deployment.ID
	var env []string
	for name, id := range ids {
		env = append(env, name+"="+id)
	}
	return env
}

// check runs the command of a fact, and compares its result.
func (f nomadFact) check(t *testing.T, dir string, env []string) {
	t.Run(f.fact, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), systemtest.WaitTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", f.command)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, time.Second
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != f.code {
			t.Errorf("%s: exit code %d, want %d", f.command, got, f.code)
		}
		for _, stream := range []struct {
			name, got, want string
		}{{"stdout", stdout.String(), f.stdout}, {"stderr", stderr.String(), f.stderr}} {
			if stream.want == "" {
				stream.want = `\A\z`
			}
			if !regexp.MustCompile(stream.want).MatchString(stream.got) {
				t.Errorf("%s: %s does not match %s:\n%s", f.command, stream.name, stream.want, stream.got)
			}
		}
	})
}

// serveDirectory serves the files of a directory over HTTP, and returns the address.
func serveDirectory(t *testing.T, dir string) string {
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return server.URL
}

// serveAmbiguousIDs serves an API whose lists contain two objects with the prefix "aa" and the node pools aa and aab,
// and returns the address. The ids of an agent's objects are random, and it has no such pools.
func serveAmbiguousIDs(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply := `[{"ID": "aa111111-1111-4111-8111-111111111111"}, {"ID": "aa222222-2222-4222-8222-222222222222"}]`
		switch r.URL.Path {
		case "/v1/node/pools":
			reply = `[{"Name": "aab"}, {"Name": "aa"}]`
		case "/v1/node/pool/aa":
			reply = `{"Name": "aa"}`
		}
		_, _ = w.Write([]byte(reply)) // an error means that the client has exited
	}))
	t.Cleanup(server.Close)
	return server.URL
}
