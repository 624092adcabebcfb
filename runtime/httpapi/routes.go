package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/hoststats"
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
	{"GET", "/v1/job/{id...}/action", (*API).runAction, streams("application/json", "run an action of a job in a task, over a websocket", "task group allocID action tty ws_handshake")},
	{"GET", "/v1/job/{id...}/allocations", (*API).jobAllocations, reads[[]allocStub]("list the allocations of a job", "all")},
	{"GET", "/v1/job/{id...}/deployment", (*API).jobDeployment, reads[*deployment]("read the latest deployment of a job")},
	{"GET", "/v1/job/{id...}/deployments", (*API).jobDeployments, reads[[]deployment]("list the deployments of a job", "all")},
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

	{"GET", "/v1/allocations", (*API).listAllocations, reads[[]allocStub]("list allocations", paged, "resources task_states")},
	{"GET", "/v1/allocation/{id...}", (*API).readAllocation, reads[api.Allocation]("read an allocation")},
	{"GET", "/v1/allocation/{id}/checks", (*API).allocChecks, gives[map[string]checkStatus]("tell how the checks of an allocation are")},
	{"GET", "/v1/allocation/{id}/services", (*API).allocServices, reads[[]api.ServiceRegistration]("list the services of an allocation", "filter per_page next_token reverse")},
	{"PUT POST", "/v1/allocation/{id}/stop", (*API).stopAllocation, gives[api.AllocStopResponse]("stop an allocation", "reschedule no_shutdown_delay")},
	{"GET", "/v1/client/allocation/{id}/checks", (*API).allocChecks, gives[map[string]checkStatus]("tell how the checks of an allocation are")},
	{"GET", "/v1/client/allocation/{id}/exec", (*API).execTask, streams("application/json", "run a command in a task, over a websocket", "task command tty ws_handshake")},
	{"GET PUT POST", "/v1/client/allocation/{id}/gc", (*API).collectAllocation, gives[any]("take an ended allocation off the disk")},
	{"GET PUT POST", "/v1/client/allocation/{id}/pause", refused(http.StatusInternalServerError, "Enterprise only"), gives[nothing]("refuse to pause tasks")},
	{"PUT POST", "/v1/client/allocation/{id}/restart", (*API).restartAllocation, takes[api.AllocationRestartRequest, meta]("restart tasks of an allocation")},
	{"PUT POST", "/v1/client/allocation/{id}/signal", (*API).signalAllocation, takes[api.AllocSignalRequest, meta]("send a signal to tasks of an allocation")},
	{"GET", "/v1/client/allocation/{id}/snapshot", noCluster, gives[nothing]("refuse to move an allocation")},
	{"GET", "/v1/client/allocation/{id}/stats", (*API).allocStats, gives[api.AllocResourceUsage]("tell what the tasks of an allocation use", "task")},
	{"GET PUT POST DELETE", "/v1/client/allocation/{id...}", refused(http.StatusNotFound, "resource not found"), gives[nothing]("refuse what cannot be done with allocations")},
	{"GET", "/v1/client/fs/ls/{id}", (*API).listFiles, gives[[]api.AllocFileInfo]("list a directory of an allocation", "path")},
	{"GET", "/v1/client/fs/stat/{id}", (*API).statFile, gives[api.AllocFileInfo]("tell what a file of an allocation is", "path")},
	{"GET", "/v1/client/fs/cat/{id}", (*API).readFile, streams("text/plain", "read a file of an allocation", "path")},
	{"GET", "/v1/client/fs/readat/{id}", (*API).readFile, streams("text/plain", "read a part of a file of an allocation", "path offset limit")},
	{"GET", "/v1/client/fs/stream/{id}", (*API).streamFile, streams("application/json", "follow a file of an allocation", "path origin offset follow")},
	{"GET", "/v1/client/fs/logs/{id}", (*API).taskLogs, streams("application/json", "read what a task prints, or follow it", "task type origin offset follow plain")},
	{"GET", "/v1/client/fs/{id...}", (*API).noSuchVerb, gives[nothing]("refuse what cannot be done with files")},
	{"GET PUT", "/v1/client/gc", (*API).collectAllocations, gives[nothing]("take all ended allocations off the disk")},
	{"GET", "/v1/client/stats", (*API).hostStats, gives[hoststats.Stats]("tell how busy the machine is", "node_id")},
	{"GET", "/v1/client/metadata", (*API).readMetadata, gives[api.NodeMetaResponse]("read the metadata of the node", "node_id")},
	{"POST", "/v1/client/metadata", (*API).setMetadata, takes[api.NodeMetaApplyRequest, api.NodeMetaResponse]("change the metadata of the node", "node_id")},
	{"GET", "/v1/client/identity", noCluster, gives[nothing]("refuse to show an identity")},
	{"POST", "/v1/client/identity/renew", noCluster, gives[nothing]("refuse to renew an identity")},

	{"GET", "/v1/evaluations", (*API).listEvaluations, reads[[]api.Evaluation]("list evaluations", paged, "status job")},
	{"DELETE", "/v1/evaluations", (*API).deleteEvaluations, gives[nothing]("refuse to delete evaluations")},
	{"GET", "/v1/evaluations/count", (*API).countEvaluations, reads[evaluationCount]("count evaluations", "filter prefix status job")},
	{"GET", "/v1/evaluation/{id}", (*API).readEvaluation, reads[api.Evaluation]("read an evaluation", "related")},
	{"GET", "/v1/evaluation/{id}/allocations", (*API).evaluationAllocations, reads[[]allocStub]("list the allocations of an evaluation")},

	{"GET", "/v1/deployments", (*API).listDeployments, reads[[]deployment]("list deployments", paged)},
	{"GET", "/v1/deployment/{id}", (*API).readDeployment, reads[deployment]("read a deployment")},
	{"GET", "/v1/deployment/allocations/{id}", (*API).deploymentAllocations, reads[[]allocStub]("list the allocations of a deployment")},
	{"PUT POST", "/v1/deployment/fail/{id}", (*API).failDeployment, gives[api.DeploymentUpdateResponse]("make a deployment fail")},
	{"PUT POST", "/v1/deployment/pause/{id}", (*API).pauseDeployment, takes[api.DeploymentPauseRequest, api.DeploymentUpdateResponse]("pause a deployment, or let it go on")},
	{"PUT POST", "/v1/deployment/promote/{id}", (*API).promoteDeployment, takes[api.DeploymentPromoteRequest, api.DeploymentUpdateResponse]("promote the canaries of a deployment")},
	{"PUT POST", "/v1/deployment/unblock/{id}", (*API).unblockDeployment, takes[api.DeploymentUnblockRequest, api.DeploymentUpdateResponse]("let a deployment go on that waits for other regions")},
	{"PUT POST", "/v1/deployment/allocation-health/{id}", (*API).setAllocationHealth, takes[api.DeploymentAllocHealthRequest, api.DeploymentUpdateResponse]("say which allocations of a deployment are healthy")},

	{"GET", "/v1/nodes", (*API).listNodes, reads[[]nodeStub]("list nodes", paged, "os resources")},
	{"GET", "/v1/node/{id}", (*API).readNode, reads[api.Node]("read a node")},
	{"GET", "/v1/node/{id}/allocations", (*API).nodeAllocations, reads[[]api.Allocation]("list the allocations of a node")},
	{"PUT POST", "/v1/node/{id}/drain", (*API).drainNode, takes[api.NodeUpdateDrainRequest, nodeWritten]("empty the node, or stop doing so")},
	{"PUT POST", "/v1/node/{id}/eligibility", (*API).setEligibility, takes[api.NodeUpdateEligibilityRequest, nodeWritten]("say whether the node may have new allocations")},
	{"PUT POST", "/v1/node/{id}/evaluate", (*API).evaluateNode, gives[nodeWritten]("evaluate what is on the node")},
	{"PUT POST", "/v1/node/{id}/purge", (*API).purgeNode, gives[nothing]("refuse to remove the node")},
	{"GET", "/v1/node/pools", (*API).listPools, reads[[]poolWithHash]("list node pools", paged)},
	{"PUT POST", "/v1/node/pools", changePools, gives[nothing]("refuse to make a node pool")},
	{"GET", "/v1/node/pool/{id}", (*API).readPool, reads[poolWithHash]("read a node pool")},
	{"PUT POST DELETE", "/v1/node/pool/{id}", changePools, gives[nothing]("refuse to change a node pool")},
	{"GET", "/v1/node/pool/{id}/nodes", (*API).poolNodes, reads[[]nodeStub]("list the nodes of a node pool", paged, "os resources")},
	{"GET", "/v1/node/pool/{id}/jobs", (*API).poolJobs, reads[[]jobStub]("list the jobs of a node pool", paged, "meta")},

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
	{"GET", "/v1/namespaces", (*API).listNamespaces, reads[[]namespaceWithHash]("list namespaces", paged)},
	{"PUT POST", "/v1/namespace", (*API).putNamespace, takes[api.Namespace, nothing]("make or change a namespace")},
	{"GET", "/v1/namespace/{id}", (*API).readNamespace, reads[namespaceWithHash]("read a namespace")},
	{"PUT POST", "/v1/namespace/{id}", (*API).putNamespace, takes[api.Namespace, nothing]("make or change a namespace")},
	{"DELETE", "/v1/namespace/{id}", (*API).deleteNamespace, gives[nothing]("remove a namespace that nothing is in")},

	{"PUT POST", "/v1/search", (*API).searchPrefix, takes[api.SearchRequest, api.SearchResponse]("find what begins with a text")},
	{"PUT POST", "/v1/search/fuzzy", (*API).searchFuzzy, takes[api.FuzzySearchRequest, api.FuzzySearchResponse]("find what has a text in its name")},
	{"GET", eventsPath, (*API).followEvents, streams("application/json", "follow what changes", "topic index")},

	{"GET", "/v1/agent/health", (*API).agentHealth, gives[map[string]health]("tell whether the agent is well", "type")},
	{"GET", "/v1/agent/host", (*API).agentHost, gives[api.HostDataResponse]("tell about the machine, when debugging is enabled")},
	{"GET", "/v1/agent/members", (*API).agentMembers, gives[members]("list the agents of the region")},
	{"GET", "/v1/agent/monitor", (*API).monitor, streams("application/json", "follow the log of the agent", "log_level log_json log_include_location plain node_id server_id")},
	{"GET", "/v1/agent/pprof/{id}", (*API).agentProfile, streams("application/octet-stream", "profile the agent, when debugging is enabled", "seconds debug gc node_id server_id")},
	{"PUT POST", "/v1/agent/reload", (*API).agentReload, gives[nothing]("read the configuration again")},
	{"GET", "/v1/agent/self", (*API).agentSelf, gives[agentState]("show the configuration and some facts of the agent")},
	{"GET", "/v1/metrics", (*API).metrics, gives[api.MetricsSummary]("show how much is going on", "format")},
	{"GET", "/v1/openapi.json", (*API).describe, gives[any]("describe the API")},
	{"GET", "/v1/regions", (*API).regions, gives[[]string]("list regions")},
	{"GET", "/v1/status/leader", (*API).leader, gives[string]("show the address of the leader")},
	{"GET", "/v1/status/peers", (*API).peers, gives[[]string]("list the addresses of the servers")},
	{"PUT", "/v1/system/gc", (*API).collectRecords, gives[nothing]("remove what has ended from the state and from the disk")},
	{"PUT", "/v1/system/reconcile/summaries", fixed(nothing{}), gives[nothing]("count allocations again, which is done whenever somebody asks")},
	{"GET", "/", (*API).redirect, streams("text/html", "go to the page for people")},
	{"GET", "/ui/", (*API).ui, streams("text/html", "say what this is")},
	{"GET", "/ui/{id...}", (*API).ui, streams("text/html", "say what this is")},

	// What is the same for all agents that are alone: see alone.go.
	{"GET PUT POST DELETE", "/v1/acl/{id...}", noACL, gives[nothing]("refuse policies and tokens")},
	{"GET", "/v1/acl/token/self", fixed(anonymous), gives[api.ACLToken]("show the token of everybody")},
	{"PUT POST", "/v1/agent/force-leave", noCluster, gives[nothing]("refuse to make others leave")},
	{"PUT POST", "/v1/agent/join", fixed(joined{Error: "clustering is not supported"}), gives[joined]("refuse to join others")},
	{"GET PUT POST DELETE", "/v1/agent/keyring/{id...}", noCluster, gives[nothing]("refuse keys of a cluster")},
	{"GET", "/v1/agent/monitor/export", refused(http.StatusBadRequest, "the log of this agent is not kept: it goes to standard error"), gives[nothing]("refuse the log of before")},
	{"GET", "/v1/agent/schedulers", (*API).listSchedulers, gives[api.AgentSchedulerWorkersInfo]("list what plans")},
	{"GET", "/v1/agent/schedulers/config", (*API).configureSchedulers, gives[api.AgentSchedulerWorkerConfigResponse]("show what plans")},
	{"PUT POST", "/v1/agent/schedulers/config", noCluster, gives[nothing]("refuse another number of planners")},
	{"GET", "/v1/agent/servers", (*API).agentServers, gives[[]string]("list the servers of this client")},
	{"PUT POST", "/v1/agent/servers", fixed(nothing{}), gives[nothing]("accept other servers without effect", "address")},
	{"GET", "/v1/operator/autopilot/configuration", (*API).autopilotConfiguration, gives[any]("show what looks after servers")},
	{"PUT POST", "/v1/operator/autopilot/configuration", noCluster, gives[nothing]("refuse another")},
	{"GET", "/v1/operator/autopilot/health", (*API).autopilotHealth, gives[any]("show how the servers are")},
	{"GET", "/v1/operator/keyring/keys", (*API).listKeys, gives[[]api.RootKeyMeta]("list the keys of variables")},
	{"PUT POST", "/v1/operator/keyring/rotate", (*API).rotateKeys, gives[keyRotated]("make a new key for variables", "full algo publish_time")},
	{"DELETE", "/v1/operator/keyring/key/{id}", (*API).removeKey, gives[nothing]("remove a key of variables", "force")},
	{"GET", "/v1/operator/license", (*API).noLicense, gives[nothing]("show the license: none")},
	{"PUT POST", "/v1/operator/license", noEnterprise, gives[nothing]("refuse a license")},
	{"GET", "/v1/operator/raft/configuration", (*API).raftConfiguration, gives[api.RaftConfiguration]("list the servers")},
	{"GET PUT POST DELETE", "/v1/operator/raft/{id...}", noCluster, gives[nothing]("refuse other servers")},
	{"GET", "/v1/operator/scheduler/configuration", (*API).schedulerConfiguration, gives[api.SchedulerConfigurationResponse]("show how allocations are placed")},
	{"PUT POST", "/v1/operator/scheduler/configuration", refused(http.StatusNotImplemented, "there is one way to place allocations on one machine, and it cannot be changed"), gives[nothing]("refuse another way")},
	{"GET PUT POST", "/v1/operator/snapshot", refused(http.StatusNotImplemented, "the state cannot be copied through the API: see nomad-lite operator state"), gives[nothing]("refuse copies of the state")},
	{"GET", "/v1/operator/upgrade-check/vault-workload-identity", fixed(vaultUpgrade{[]string{}, []string{}, []string{}}), gives[vaultUpgrade]("list what stands in the way of an upgrade")},
	{"GET POST", "/v1/operator/utilization", noEnterprise, gives[nothing]("refuse a report")},
	{"GET", "/v1/plugins", fixed([]any{}), gives[[]any]("list storage plugins: none", "type")},
	{"GET", "/v1/plugin/csi/{id...}", refused(http.StatusNotFound, "plugin not found"), gives[nothing]("read a storage plugin")},
	{"GET PUT POST DELETE", "/v1/quota", noEnterprise, gives[nothing]("refuse quotas")},
	{"GET PUT POST DELETE", "/v1/quota/{id...}", noEnterprise, gives[nothing]("refuse quotas")},
	{"GET", "/v1/quota-usages", noEnterprise, gives[nothing]("refuse quotas")},
	{"GET", "/v1/quotas", noEnterprise, gives[nothing]("refuse quotas")},
	{"GET PUT POST DELETE", "/v1/recommendation", noEnterprise, gives[nothing]("refuse recommendations")},
	{"GET PUT POST DELETE", "/v1/recommendation/{id...}", noEnterprise, gives[nothing]("refuse recommendations")},
	{"GET PUT POST", "/v1/recommendations", noEnterprise, gives[nothing]("refuse recommendations")},
	{"GET PUT POST", "/v1/recommendations/apply", noEnterprise, gives[nothing]("refuse recommendations")},
	{"GET PUT POST DELETE", "/v1/sentinel/{id...}", noEnterprise, gives[nothing]("refuse policies")},
	{"GET", "/v1/volumes", (*API).listVolumes, gives[[]any]("list volumes: none", "type")},
	{"GET", "/v1/volumes/claims", fixed([]any{}), gives[[]any]("list claims of volumes: none")},
	{"DELETE", "/v1/volumes/claim/{id}", refused(http.StatusNotFound, "claim not found"), gives[nothing]("remove a claim")},
	{"GET PUT POST DELETE", "/v1/volumes/{id}", noVolumes, gives[nothing]("refuse volumes of other machines")},
	{"GET", "/v1/volume/{id...}", refused(http.StatusNotFound, "volume not found"), gives[nothing]("read a volume")},
	{"PUT POST DELETE", "/v1/volume/{id...}", noVolumes, gives[nothing]("refuse volumes")},
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

// serves tells whether the route is for the method.
func (rt route) serves(method string) bool {
	return slices.Contains(strings.Fields(rt.methods), method)
}

// literal returns how much of the pattern is written out.
func (rt route) literal() int {
	before, rest, _ := strings.Cut(rt.pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	return len(before) + len(after)
}

// find returns the route for a request, and whether there is one for another
// method.
func find(routes []route, method, path string) (best route, id string, found, otherMethod bool) {
	most := -1
	for _, rt := range routes {
		value, ok := rt.match(path)
		if !ok || rt.literal() < most || found && rt.literal() == most {
			continue
		}
		most, best, id, found = rt.literal(), rt, value, rt.serves(method)
	}
	return best, id, found, most >= 0
}
