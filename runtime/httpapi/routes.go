package httpapi

import (
	"strings"

	"github.com/hashicorp/nomad/api"
)

// route is one row of the table.
type route struct {
	methods string // separated by spaces
	// pattern is a path. {id} in it stands for one segment, {id...} for as many as
	// there are: the ids of jobs have slashes.
	pattern string
	serve   func(*API, *request) (any, error)
	about
}

// routes are all that there is to ask for. A path that fits several patterns is
// meant by the most particular one.
var routes = []route{
	{"GET", "/v1/jobs", (*API).listJobs, reads[[]jobStub]("list jobs", paged, "meta")},
	{"PUT POST", "/v1/jobs", (*API).registerJob, takes[registration, jobWritten]("register a job")},
	{"PUT POST", "/v1/jobs/parse", (*API).parseJob, takes[api.JobsParseRequest, api.Job]("parse the text of a job file")},
	{"GET PUT POST", "/v1/jobs/statuses", (*API).jobStatuses, takes[api.JobStatusesRequest, []jobStatus]("list jobs with their allocations", paged, "include_children")},
	{"PUT POST", "/v1/validate/job", (*API).validateJob, takes[sentJob, api.JobValidateResponse]("say what is wrong with a job")},
	{"GET", "/v1/job/{id...}", (*API).readJob, reads[api.Job]("read a job")},
	{"PUT POST", "/v1/job/{id...}", (*API).registerJob, takes[registration, jobWritten]("register a job")},
	{"DELETE", "/v1/job/{id...}", (*API).deregisterJob, gives[api.JobDeregisterResponse]("stop a job", "purge global eval_priority no_shutdown_delay")},
	{"GET", "/v1/job/{id...}/actions", (*API).jobActions, reads[[]jobAction]("list the actions of the tasks of a job")},
	{"GET", "/v1/job/{id...}/allocations", (*API).jobAllocations, reads[[]api.AllocationListStub]("list the allocations of a job", "all")},
	{"GET", "/v1/job/{id...}/deployment", (*API).jobDeployment, reads[*api.Deployment]("read the latest deployment of a job")},
	{"GET", "/v1/job/{id...}/deployments", (*API).jobDeployments, reads[[]api.Deployment]("list the deployments of a job", "all")},
	{"PUT POST", "/v1/job/{id...}/dispatch", (*API).dispatchJob, takes[api.JobDispatchRequest, api.JobDispatchResponse]("dispatch a parameterized job", "idempotency_token")},
	{"PUT POST", "/v1/job/{id...}/dispatch/payload", (*API).dispatchPayload, gives[api.JobDispatchResponse]("dispatch a parameterized job with the body as its payload", "idempotency_token")},
	{"PUT POST", "/v1/job/{id...}/evaluate", (*API).evaluateJob, takes[api.JobEvaluateRequest, jobWritten]("evaluate a job")},
	{"GET", "/v1/job/{id...}/evaluations", (*API).jobEvaluations, reads[[]api.Evaluation]("list the evaluations of a job")},
	{"PUT POST", "/v1/job/{id...}/periodic/force", (*API).forceJob, gives[any]("launch a periodic job now")},
	{"PUT POST", "/v1/job/{id...}/plan", (*API).planJob, takes[planRequest, api.JobPlanResponse]("say what the registration of a job would change")},
	{"PUT POST", "/v1/job/{id...}/revert", (*API).revertJob, takes[api.JobRevertRequest, jobWritten]("register an earlier version of a job again")},
	{"GET", "/v1/job/{id...}/scale", (*API).jobScale, reads[api.JobScaleStatusResponse]("read the counts of the groups of a job, and how they have changed")},
	{"PUT POST", "/v1/job/{id...}/scale", (*API).scaleJob, takes[api.ScalingRequest, jobWritten]("change the count of a group")},
	{"GET", "/v1/job/{id...}/services", (*API).jobServices, reads[[]api.ServiceRegistration]("list the instances of the services of a job")},
	{"PUT POST", "/v1/job/{id...}/stable", (*API).stableJob, takes[api.JobStabilityRequest, api.JobStabilityResponse]("say that a version of a job is stable, or is not")},
	{"GET", "/v1/job/{id...}/submission", (*API).jobSubmission, reads[api.JobSubmission]("read the text that a version of a job was made of", "version")},
	{"GET", "/v1/job/{id...}/summary", (*API).jobSummary, reads[api.JobSummary]("count the allocations of a job")},
	{"GET", "/v1/job/{id...}/versions", (*API).jobVersions, reads[api.JobVersionsResponse]("list the versions of a job", "diffs diff_version diff_tag")},
	{"PUT POST", "/v1/job/{id...}/tag", (*API).tagVersion, takes[api.TagVersionRequest, api.JobVersionTag]("name a version of a job: its id, /versions/, the name")},
	{"DELETE", "/v1/job/{id...}/tag", (*API).untagVersion, gives[api.JobVersionTag]("take the name off a version of a job: its id, /versions/, the name")},
	{"GET", "/v1/scaling/policies", (*API).listPolicies, reads[[]api.ScalingPolicyListStub]("list scaling policies", "job type prefix")},
	{"GET", "/v1/scaling/policy/{id}", (*API).readPolicy, reads[api.ScalingPolicy]("read a scaling policy")},

	{"GET", "/v1/allocations", (*API).listAllocations, reads[[]api.AllocationListStub]("list allocations", paged, "resources task_states")},
	{"GET", "/v1/allocation/{id}", (*API).readAllocation, reads[api.Allocation]("read an allocation")},
	{"PUT POST", "/v1/allocation/{id}/stop", (*API).stopAllocation, gives[api.AllocStopResponse]("stop an allocation", "reschedule no_shutdown_delay")},
	{"GET PUT POST", "/v1/client/allocation/{id}/gc", (*API).collectAllocation, gives[any]("take an ended allocation off the disk")},
	{"PUT POST", "/v1/client/allocation/{id}/restart", (*API).restartAllocation, takes[api.AllocationRestartRequest, meta]("restart tasks of an allocation")},
	{"PUT POST", "/v1/client/allocation/{id}/signal", (*API).signalAllocation, takes[api.AllocSignalRequest, meta]("send a signal to tasks of an allocation")},
	{"GET PUT", "/v1/client/gc", (*API).collectAllocations, gives[nothing]("take all ended allocations off the disk")},

	{"GET", "/v1/evaluations", (*API).listEvaluations, reads[[]api.Evaluation]("list evaluations", paged, "status job")},
	{"DELETE", "/v1/evaluations", (*API).deleteEvaluations, gives[nothing]("refuse to delete evaluations")},
	{"GET", "/v1/evaluations/count", (*API).countEvaluations, reads[evaluationCount]("count evaluations", "filter prefix status job")},
	{"GET", "/v1/evaluation/{id}", (*API).readEvaluation, reads[api.Evaluation]("read an evaluation", "related")},
	{"GET", "/v1/evaluation/{id}/allocations", (*API).evaluationAllocations, reads[[]api.AllocationListStub]("list the allocations of an evaluation")},

	{"GET", "/v1/deployments", (*API).listDeployments, reads[[]api.Deployment]("list deployments", paged)},
	{"GET", "/v1/deployment/{id}", (*API).readDeployment, reads[api.Deployment]("read a deployment")},
	{"GET", "/v1/deployment/allocations/{id}", (*API).deploymentAllocations, reads[[]api.AllocationListStub]("list the allocations of a deployment")},
	{"PUT POST", "/v1/deployment/fail/{id}", (*API).failDeployment, gives[api.DeploymentUpdateResponse]("make a deployment fail")},
	{"PUT POST", "/v1/deployment/pause/{id}", (*API).pauseDeployment, takes[api.DeploymentPauseRequest, api.DeploymentUpdateResponse]("pause a deployment, or let it go on")},
	{"PUT POST", "/v1/deployment/promote/{id}", (*API).promoteDeployment, takes[api.DeploymentPromoteRequest, api.DeploymentUpdateResponse]("promote the canaries of a deployment")},
	{"PUT POST", "/v1/deployment/unblock/{id}", (*API).unblockDeployment, takes[api.DeploymentUnblockRequest, api.DeploymentUpdateResponse]("let a deployment go on that waits for other regions")},
	{"PUT POST", "/v1/deployment/allocation-health/{id}", (*API).setAllocationHealth, takes[api.DeploymentAllocHealthRequest, api.DeploymentUpdateResponse]("say which allocations of a deployment are healthy")},

	{"GET", "/v1/nodes", (*API).listNodes, reads[[]api.NodeListStub]("list nodes", paged, "os resources")},
	{"GET", "/v1/node/{id}", (*API).readNode, reads[api.Node]("read a node")},
	{"GET", "/v1/node/{id}/allocations", (*API).nodeAllocations, reads[[]api.Allocation]("list the allocations of a node")},

	{"GET", "/v1/services", (*API).listServices, reads[[]api.ServiceRegistrationListStub]("list the names of services", "prefix")},
	{"GET", "/v1/service/{id...}", (*API).readService, reads[[]api.ServiceRegistration]("list the instances of a service", paged, "choose")},
	{"DELETE", "/v1/service/{id...}", (*API).deleteService, gives[nothing]("remove an instance of a service: its name, a slash, its id")},
	{"GET DELETE", "/v1/service/", (*API).noServiceName, gives[nothing]("refuse an empty name")},
	{"GET", "/v1/vars", (*API).listVariables, reads[[]api.VariableMetadata]("list variables without what is in them", paged)},
	{"GET", "/v1/var/{id...}", (*API).readVariable, reads[api.Variable]("read a variable")},
	{"PUT POST", "/v1/var/{id...}", (*API).putVariable, takes[api.Variable, api.Variable]("write a variable, or do something with its lock", "cas lock-acquire lock-renew lock-release")},
	{"DELETE", "/v1/var/{id...}", (*API).deleteVariable, gives[nothing]("remove a variable", "cas")},
	{"PATCH OPTIONS", "/v1/var/{id...}", (*API).otherMethod, gives[nothing]("refuse other methods")},
	{"GET PUT POST DELETE", "/v1/var/", (*API).noVariablePath, gives[nothing]("refuse an empty path")},
	{"GET", "/v1/namespaces", (*API).listNamespaces, reads[[]api.Namespace]("list namespaces", paged)},
	{"PUT POST", "/v1/namespace", (*API).putNamespace, takes[api.Namespace, nothing]("make or change a namespace")},
	{"GET", "/v1/namespace/{id}", (*API).readNamespace, reads[api.Namespace]("read a namespace")},
	{"PUT POST", "/v1/namespace/{id}", (*API).putNamespace, takes[api.Namespace, nothing]("make or change a namespace")},
	{"DELETE", "/v1/namespace/{id}", (*API).deleteNamespace, gives[nothing]("remove a namespace that nothing is in")},

	{"PUT POST", "/v1/search", (*API).searchPrefix, takes[api.SearchRequest, api.SearchResponse]("find what begins with a text")},
	{"PUT POST", "/v1/search/fuzzy", (*API).searchFuzzy, takes[api.FuzzySearchRequest, api.FuzzySearchResponse]("find what has a text in its name")},
	{"GET", eventsPath, (*API).followEvents, streams("application/json", "follow what changes", "topic index")},

	{"GET", "/v1/agent/health", (*API).agentHealth, gives[any]("tell whether the agent works", "type")},
	{"GET", "/v1/agent/self", (*API).agentSelf, gives[any]("show the configuration and some facts of the agent")},
	{"GET", "/v1/openapi.json", (*API).describe, gives[any]("describe the API")},
	{"GET", "/v1/regions", (*API).regions, gives[[]string]("list regions")},
	{"GET", "/v1/status/leader", (*API).leader, gives[string]("show the address of the leader")},
	{"GET", "/v1/status/peers", (*API).peers, gives[[]string]("list the addresses of the servers")},
	{"PUT", "/v1/system/gc", (*API).collectRecords, gives[nothing]("remove what has ended from the state and from the disk")},
}

// open are the paths that tell nothing and that nobody needs a token for.
var open = map[string]bool{"/v1/agent/health": true}

// match returns what stands for the id in a path of the pattern.
func (rt route) match(path string) (id string, ok bool) {
	before, rest, variable := strings.Cut(rt.pattern, "{id")
	if !variable {
		return "", path == rt.pattern
	}
	_, after, _ := strings.Cut(rest, "}")
	id, ok = strings.CutPrefix(path, before)
	if ok {
		id, ok = strings.CutSuffix(id, after)
	}
	many := strings.HasPrefix(rest, "...")
	return id, ok && id != "" && (many || !strings.Contains(id, "/"))
}

// find returns the route for a request, and whether there is one for another
// method.
func find(routes []route, method, path string) (best route, id string, found, otherMethod bool) {
	for _, rt := range routes {
		value, ok := rt.match(path)
		if !ok {
			continue
		}
		fits := false
		for m := range strings.FieldsSeq(rt.methods) {
			fits = fits || m == method
		}
		switch {
		case found && len(rt.pattern) < len(best.pattern):
		case otherMethod && len(rt.pattern) < len(best.pattern):
		case fits:
			best, id, found = rt, value, true
		case !found || len(rt.pattern) > len(best.pattern):
			best, found, otherMethod = rt, false, true
		}
	}
	return best, id, found, otherMethod
}
