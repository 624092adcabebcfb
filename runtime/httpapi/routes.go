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
	// pattern is a path. {id} matches one segment, {id...} one or more: the ids of jobs have
	// slashes.
	pattern string
	serve   func(*API, *request) (any, error)
	about
}

// routes are all routes of the API. If a path matches several patterns, the most specific pattern
// is used.
var routes = []route{
	{"GET", "/v1/jobs", (*API).listJobs, reads[[]jobStub]("list jobs", paged, "meta")},
	{"PUT POST", "/v1/jobs", (*API).registerJob, withBody[registration, jobWritten]("register a job")},
	{"PUT POST", "/v1/jobs/parse", (*API).parseJob, withBody[api.JobsParseRequest, api.Job]("parse the text of a job file")},
	{"GET PUT POST", "/v1/jobs/statuses", (*API).jobStatuses, withBody[api.JobStatusesRequest, []jobStatus]("list jobs with their allocations", paged, "include_children")},
	{"PUT POST", "/v1/validate/job", (*API).validateJob, withBody[sentJob, api.JobValidateResponse]("say what is wrong with a job")},
	{"GET", "/v1/job/{id...}", (*API).readJob, reads[api.Job]("read a job")},
	{"PUT POST", "/v1/job/{id...}", (*API).registerJob, withBody[registration, jobWritten]("register a job")},
	{"DELETE", "/v1/job/{id...}", (*API).deregisterJob, noBody[api.JobDeregisterResponse]("stop a job", "purge global eval_priority no_shutdown_delay")},
	{"GET", "/v1/job/{id...}/actions", (*API).jobActions, reads[[]jobAction]("list the actions of the tasks of a job")},
	{"GET", "/v1/job/{id...}/action", (*API).runAction, streams("application/json", "run an action of a job in a task, over a websocket", "task group allocID action tty ws_handshake")},
	{"GET", "/v1/job/{id...}/allocations", (*API).jobAllocations, reads[[]allocStub]("list the allocations of a job", "all")},
	{"GET", "/v1/job/{id...}/deployment", (*API).jobDeployment, reads[*deployment]("read the latest deployment of a job")},
	{"GET", "/v1/job/{id...}/deployments", (*API).jobDeployments, reads[[]deployment]("list the deployments of a job", "all")},
	{"PUT POST", "/v1/job/{id...}/dispatch", (*API).dispatchJob, withBody[api.JobDispatchRequest, api.JobDispatchResponse]("dispatch a parameterized job", "idempotency_token")},
	{"PUT POST", "/v1/job/{id...}/dispatch/payload", (*API).dispatchPayload, noBody[api.JobDispatchResponse]("dispatch a parameterized job with the body as its payload", "idempotency_token")},
	{"PUT POST", "/v1/job/{id...}/evaluate", (*API).evaluateJob, withBody[api.JobEvaluateRequest, jobWritten]("evaluate a job")},
	{"GET", "/v1/job/{id...}/evaluations", (*API).jobEvaluations, reads[[]api.Evaluation]("list the evaluations of a job")},
	{"PUT POST", "/v1/job/{id...}/periodic/force", (*API).forceJob, noBody[any]("launch a periodic job now")},
	{"PUT POST", "/v1/job/{id...}/plan", (*API).planJob, withBody[planRequest, api.JobPlanResponse]("say what the registration of a job would change")},
	{"PUT POST", "/v1/job/{id...}/revert", (*API).revertJob, withBody[api.JobRevertRequest, jobWritten]("register an earlier version of a job again")},
	{"GET", "/v1/job/{id...}/scale", (*API).jobScale, reads[api.JobScaleStatusResponse]("read the counts of the groups of a job, and how they have changed")},
	{"PUT POST", "/v1/job/{id...}/scale", (*API).scaleJob, withBody[api.ScalingRequest, jobWritten]("change the count of a group")},
	{"GET", "/v1/job/{id...}/services", (*API).jobServices, reads[[]api.ServiceRegistration]("list the instances of the services of a job")},
	{"PUT POST", "/v1/job/{id...}/stable", (*API).stableJob, withBody[api.JobStabilityRequest, api.JobStabilityResponse]("say that a version of a job is stable, or is not")},
	{"GET", "/v1/job/{id...}/submission", (*API).jobSubmission, reads[api.JobSubmission]("read the text that a version of a job was made of", "version")},
	{"GET", "/v1/job/{id...}/summary", (*API).jobSummary, reads[api.JobSummary]("count the allocations of a job")},
	{"GET", "/v1/job/{id...}/versions", (*API).jobVersions, reads[api.JobVersionsResponse]("list the versions of a job", "diffs diff_version diff_tag")},
	{"PUT POST", "/v1/job/{id...}/tag", (*API).tagVersion, withBody[api.TagVersionRequest, api.JobVersionTag]("name a version of a job: its id, /versions/, the name")},
	{"DELETE", "/v1/job/{id...}/tag", (*API).untagVersion, noBody[api.JobVersionTag]("take the name off a version of a job: its id, /versions/, the name")},
	{"GET", "/v1/scaling/policies", (*API).listPolicies, reads[[]api.ScalingPolicyListStub]("list scaling policies", "job type prefix")},
	{"GET", "/v1/scaling/policy/{id}", (*API).readPolicy, reads[api.ScalingPolicy]("read a scaling policy")},

	{"GET", "/v1/allocations", (*API).listAllocations, reads[[]allocStub]("list allocations", paged, "resources task_states")},
	{"GET", "/v1/allocation/{id...}", (*API).readAllocation, reads[api.Allocation]("read an allocation")},
	{"GET", "/v1/allocation/{id}/checks", (*API).allocChecks, noBody[map[string]checkStatus]("tell how the checks of an allocation are")},
	{"GET", "/v1/allocation/{id}/services", (*API).allocServices, reads[[]api.ServiceRegistration]("list the services of an allocation", "filter per_page next_token reverse")},
	{"PUT POST", "/v1/allocation/{id}/stop", (*API).stopAllocation, noBody[api.AllocStopResponse]("stop an allocation", "reschedule no_shutdown_delay")},
	{"GET", "/v1/client/allocation/{id}/checks", (*API).allocChecks, noBody[map[string]checkStatus]("tell how the checks of an allocation are")},
	{"GET", "/v1/client/allocation/{id}/exec", (*API).execTask, streams("application/json", "run a command in a task, over a websocket", "task command tty ws_handshake")},
	{"GET PUT POST", "/v1/client/allocation/{id}/gc", (*API).collectAllocation, noBody[any]("take an ended allocation off the disk")},
	{"GET PUT POST", "/v1/client/allocation/{id}/pause", refused(http.StatusInternalServerError, "Enterprise only"), noBody[noContent]("refuse to pause tasks")},
	{"PUT POST", "/v1/client/allocation/{id}/restart", (*API).restartAllocation, withBody[api.AllocationRestartRequest, meta]("restart tasks of an allocation")},
	{"PUT POST", "/v1/client/allocation/{id}/signal", (*API).signalAllocation, withBody[api.AllocSignalRequest, meta]("send a signal to tasks of an allocation")},
	{"GET", "/v1/client/allocation/{id}/snapshot", noCluster, noBody[noContent]("refuse to move an allocation")},
	{"GET", "/v1/client/allocation/{id}/stats", (*API).allocStats, noBody[api.AllocResourceUsage]("tell what the tasks of an allocation use", "task")},
	{"GET PUT POST DELETE", "/v1/client/allocation/{id...}", refused(http.StatusNotFound, "resource not found"), noBody[noContent]("refuse what cannot be done with allocations")},
	{"GET", "/v1/client/fs/ls/{id}", (*API).listFiles, noBody[[]api.AllocFileInfo]("list a directory of an allocation", "path")},
	{"GET", "/v1/client/fs/stat/{id}", (*API).statFile, noBody[api.AllocFileInfo]("tell what a file of an allocation is", "path")},
	{"GET", "/v1/client/fs/cat/{id}", (*API).readFile, streams("text/plain", "read a file of an allocation", "path")},
	{"GET", "/v1/client/fs/readat/{id}", (*API).readFile, streams("text/plain", "read a part of a file of an allocation", "path offset limit")},
	{"GET", "/v1/client/fs/stream/{id}", (*API).streamFile, streams("application/json", "follow a file of an allocation", "path origin offset follow")},
	{"GET", "/v1/client/fs/logs/{id}", (*API).taskLogs, streams("application/json", "read what a task prints, or follow it", "task type origin offset follow plain")},
	{"GET", "/v1/client/fs/{id...}", (*API).noSuchVerb, noBody[noContent]("refuse what cannot be done with files")},
	{"GET PUT", "/v1/client/gc", (*API).collectAllocations, noBody[noContent]("take all ended allocations off the disk")},
	{"GET", "/v1/client/stats", (*API).hostStats, noBody[hoststats.Stats]("tell how busy the machine is", "node_id")},
	{"GET", "/v1/client/metadata", (*API).readMetadata, noBody[api.NodeMetaResponse]("read the metadata of the node", "node_id")},
	{"POST", "/v1/client/metadata", (*API).setMetadata, withBody[api.NodeMetaApplyRequest, api.NodeMetaResponse]("change the metadata of the node", "node_id")},
	{"GET", "/v1/client/identity", noCluster, noBody[noContent]("refuse to show an identity")},
	{"POST", "/v1/client/identity/renew", noCluster, noBody[noContent]("refuse to renew an identity")},

	{"GET", "/v1/evaluations", (*API).listEvaluations, reads[[]api.Evaluation]("list evaluations", paged, "status job")},
	{"DELETE", "/v1/evaluations", (*API).deleteEvaluations, noBody[noContent]("refuse to delete evaluations")},
	{"GET", "/v1/evaluations/count", (*API).countEvaluations, reads[evaluationCount]("count evaluations", "filter prefix status job")},
	{"GET", "/v1/evaluation/{id}", (*API).readEvaluation, reads[api.Evaluation]("read an evaluation", "related")},
	{"GET", "/v1/evaluation/{id}/allocations", (*API).evaluationAllocations, reads[[]allocStub]("list the allocations of an evaluation")},

	{"GET", "/v1/deployments", (*API).listDeployments, reads[[]deployment]("list deployments", paged)},
	{"GET", "/v1/deployment/{id}", (*API).readDeployment, reads[deployment]("read a deployment")},
	{"GET", "/v1/deployment/allocations/{id}", (*API).deploymentAllocations, reads[[]allocStub]("list the allocations of a deployment")},
	{"PUT POST", "/v1/deployment/fail/{id}", (*API).failDeployment, noBody[api.DeploymentUpdateResponse]("make a deployment fail")},
	{"PUT POST", "/v1/deployment/pause/{id}", (*API).pauseDeployment, withBody[api.DeploymentPauseRequest, api.DeploymentUpdateResponse]("pause a deployment, or let it go on")},
	{"PUT POST", "/v1/deployment/promote/{id}", (*API).promoteDeployment, withBody[api.DeploymentPromoteRequest, api.DeploymentUpdateResponse]("promote the canaries of a deployment")},
	{"PUT POST", "/v1/deployment/unblock/{id}", (*API).unblockDeployment, withBody[api.DeploymentUnblockRequest, api.DeploymentUpdateResponse]("let a deployment go on that waits for other regions")},
	{"PUT POST", "/v1/deployment/allocation-health/{id}", (*API).setAllocationHealth, withBody[api.DeploymentAllocHealthRequest, api.DeploymentUpdateResponse]("say which allocations of a deployment are healthy")},

	{"GET", "/v1/nodes", (*API).listNodes, reads[[]nodeStub]("list nodes", paged, "os resources")},
	{"GET", "/v1/node/{id}", (*API).readNode, reads[api.Node]("read a node")},
	{"GET", "/v1/node/{id}/allocations", (*API).nodeAllocations, reads[[]api.Allocation]("list the allocations of a node")},
	{"PUT POST", "/v1/node/{id}/drain", (*API).drainNode, withBody[api.NodeUpdateDrainRequest, nodeWritten]("empty the node, or stop doing so")},
	{"PUT POST", "/v1/node/{id}/eligibility", (*API).setEligibility, withBody[api.NodeUpdateEligibilityRequest, nodeWritten]("say whether the node may have new allocations")},
	{"PUT POST", "/v1/node/{id}/evaluate", (*API).evaluateNode, noBody[nodeWritten]("evaluate what is on the node")},
	{"PUT POST", "/v1/node/{id}/purge", (*API).purgeNode, noBody[noContent]("refuse to remove the node")},
	{"GET", "/v1/node/pools", (*API).listPools, reads[[]poolWithHash]("list node pools", paged)},
	{"PUT POST", "/v1/node/pools", changePools, noBody[noContent]("refuse to make a node pool")},
	{"GET", "/v1/node/pool/{id}", (*API).readPool, reads[poolWithHash]("read a node pool")},
	{"PUT POST DELETE", "/v1/node/pool/{id}", changePools, noBody[noContent]("refuse to change a node pool")},
	{"GET", "/v1/node/pool/{id}/nodes", (*API).poolNodes, reads[[]nodeStub]("list the nodes of a node pool", paged, "os resources")},
	{"GET", "/v1/node/pool/{id}/jobs", (*API).poolJobs, reads[[]jobStub]("list the jobs of a node pool", paged, "meta")},

	{"GET", "/v1/services", (*API).listServices, reads[[]api.ServiceRegistrationListStub]("list the names of services", "prefix")},
	{"GET", "/v1/service/{id...}", (*API).readService, reads[[]api.ServiceRegistration]("list the instances of a service", paged, "choose")},
	{"DELETE", "/v1/service/{id...}", (*API).deleteService, noBody[noContent]("remove an instance of a service: its name, a slash, its id")},
	{"GET DELETE", "/v1/service/", (*API).noServiceName, noBody[noContent]("refuse an empty name")},
	{"GET", "/v1/vars", (*API).listVariables, reads[[]api.VariableMetadata]("list variables without what is in them", paged)},
	{"GET", "/v1/var/{id...}", (*API).readVariable, reads[api.Variable]("read a variable")},
	{"PUT POST", "/v1/var/{id...}", (*API).putVariable, withBody[api.Variable, api.Variable]("write a variable, or do something with its lock", "cas lock-acquire lock-renew lock-release")},
	{"DELETE", "/v1/var/{id...}", (*API).deleteVariable, noBody[noContent]("remove a variable", "cas")},
	{"PATCH OPTIONS", "/v1/var/{id...}", (*API).otherMethod, noBody[noContent]("refuse other methods")},
	{"GET PUT POST DELETE", "/v1/var/", (*API).noVariablePath, noBody[noContent]("refuse an empty path")},
	{"GET", "/v1/namespaces", (*API).listNamespaces, reads[[]namespaceWithHash]("list namespaces", paged)},
	{"PUT POST", "/v1/namespace", (*API).putNamespace, withBody[api.Namespace, noContent]("make or change a namespace")},
	{"GET", "/v1/namespace/{id}", (*API).readNamespace, reads[namespaceWithHash]("read a namespace")},
	{"PUT POST", "/v1/namespace/{id}", (*API).putNamespace, withBody[api.Namespace, noContent]("make or change a namespace")},
	{"DELETE", "/v1/namespace/{id}", (*API).deleteNamespace, noBody[noContent]("remove a namespace that nothing is in")},

	{"PUT POST", "/v1/search", (*API).searchPrefix, withBody[api.SearchRequest, api.SearchResponse]("find what begins with a text")},
	{"PUT POST", "/v1/search/fuzzy", (*API).searchFuzzy, withBody[api.FuzzySearchRequest, api.FuzzySearchResponse]("find what has a text in its name")},
	{"GET", eventsPath, (*API).followEvents, streams("application/json", "follow what changes", "topic index")},

	{"GET", "/v1/agent/health", (*API).agentHealth, noBody[map[string]health]("tell whether the agent is well", "type")},
	{"GET", "/v1/agent/host", (*API).agentHost, noBody[api.HostDataResponse]("tell about the machine, when debugging is enabled")},
	{"GET", "/v1/agent/members", (*API).agentMembers, noBody[members]("list the agents of the region")},
	{"GET", "/v1/agent/monitor", (*API).monitor, streams("application/json", "follow the log of the agent", "log_level log_json log_include_location plain node_id server_id")},
	{"GET", "/v1/agent/pprof/{id}", (*API).agentProfile, streams("application/octet-stream", "profile the agent, when debugging is enabled", "seconds debug gc node_id server_id")},
	{"PUT POST", "/v1/agent/reload", (*API).agentReload, noBody[noContent]("read the configuration again")},
	{"GET", "/v1/agent/self", (*API).agentSelf, noBody[agentState]("show the configuration and some facts of the agent")},
	{"GET", "/v1/metrics", (*API).metrics, noBody[api.MetricsSummary]("show how much is going on", "format")},
	{"GET", "/v1/openapi.json", (*API).describe, noBody[any]("describe the API")},
	{"GET", "/v1/regions", (*API).regions, noBody[[]string]("list regions")},
	{"GET", "/v1/status/leader", (*API).leader, noBody[string]("show the address of the leader")},
	{"GET", "/v1/status/peers", (*API).peers, noBody[[]string]("list the addresses of the servers")},
	{"PUT", "/v1/system/gc", (*API).collectRecords, noBody[noContent]("remove what has ended from the state and from the disk")},
	{"PUT", "/v1/system/reconcile/summaries", fixed(noContent{}), noBody[noContent]("count allocations again, which is done whenever somebody asks")},
	{"GET", "/", (*API).redirect, streams("text/html", "go to the page for people")},
	{"GET", "/ui/", (*API).ui, streams("text/html", "say what this is")},
	{"GET", "/ui/{id...}", (*API).ui, streams("text/html", "say what this is")},

	// Routes with the same reply on all single-server agents: see cluster_stubs.go.
	{"GET PUT POST DELETE", "/v1/acl/{id...}", noACL, noBody[noContent]("refuse policies and tokens")},
	{"GET", "/v1/acl/token/self", fixed(anonymous), noBody[api.ACLToken]("show the token of everybody")},
	{"PUT POST", "/v1/agent/force-leave", noCluster, noBody[noContent]("refuse to make others leave")},
	{"PUT POST", "/v1/agent/join", fixed(joined{Error: "clustering is not supported"}), noBody[joined]("refuse to join others")},
	{"GET PUT POST DELETE", "/v1/agent/keyring/{id...}", noCluster, noBody[noContent]("refuse keys of a cluster")},
	{"GET", "/v1/agent/monitor/export", refused(http.StatusBadRequest, "the log of this agent is not kept: it goes to standard error"), noBody[noContent]("refuse the log of before")},
	{"GET", "/v1/agent/schedulers", (*API).listSchedulers, noBody[api.AgentSchedulerWorkersInfo]("list what plans")},
	{"GET", "/v1/agent/schedulers/config", (*API).configureSchedulers, noBody[api.AgentSchedulerWorkerConfigResponse]("show what plans")},
	{"PUT POST", "/v1/agent/schedulers/config", noCluster, noBody[noContent]("refuse another number of planners")},
	{"GET", "/v1/agent/servers", (*API).agentServers, noBody[[]string]("list the servers of this client")},
	{"PUT POST", "/v1/agent/servers", fixed(noContent{}), noBody[noContent]("accept other servers without effect", "address")},
	{"GET", "/v1/operator/autopilot/configuration", (*API).autopilotConfiguration, noBody[any]("show what looks after servers")},
	{"PUT POST", "/v1/operator/autopilot/configuration", noCluster, noBody[noContent]("refuse another")},
	{"GET", "/v1/operator/autopilot/health", (*API).autopilotHealth, noBody[any]("show how the servers are")},
	{"GET", "/v1/operator/keyring/keys", (*API).listKeys, noBody[[]api.RootKeyMeta]("list the keys of variables")},
	{"PUT POST", "/v1/operator/keyring/rotate", (*API).rotateKeys, noBody[keyRotated]("make a new key for variables", "full algo publish_time")},
	{"DELETE", "/v1/operator/keyring/key/{id}", (*API).removeKey, noBody[noContent]("remove a key of variables", "force")},
	{"GET", "/v1/operator/license", (*API).noLicense, noBody[noContent]("show the license: none")},
	{"PUT POST", "/v1/operator/license", noEnterprise, noBody[noContent]("refuse a license")},
	{"GET", "/v1/operator/raft/configuration", (*API).raftConfiguration, noBody[api.RaftConfiguration]("list the servers")},
	{"GET PUT POST DELETE", "/v1/operator/raft/{id...}", noCluster, noBody[noContent]("refuse other servers")},
	{"GET", "/v1/operator/scheduler/configuration", (*API).schedulerConfiguration, noBody[api.SchedulerConfigurationResponse]("show how allocations are placed")},
	{"PUT POST", "/v1/operator/scheduler/configuration", refused(http.StatusNotImplemented, "there is one way to place allocations on one machine, and it cannot be changed"), noBody[noContent]("refuse another way")},
	{"GET PUT POST", "/v1/operator/snapshot", refused(http.StatusNotImplemented, "the state cannot be copied through the API: see nomad-lite operator state"), noBody[noContent]("refuse copies of the state")},
	{"GET", "/v1/operator/upgrade-check/vault-workload-identity", fixed(vaultUpgrade{[]string{}, []string{}, []string{}}), noBody[vaultUpgrade]("list what stands in the way of an upgrade")},
	{"GET POST", "/v1/operator/utilization", noEnterprise, noBody[noContent]("refuse a report")},
	{"GET", "/v1/plugins", fixed([]any{}), noBody[[]any]("list storage plugins: none", "type")},
	{"GET", "/v1/plugin/csi/{id...}", refused(http.StatusNotFound, "plugin not found"), noBody[noContent]("read a storage plugin")},
	{"GET PUT POST DELETE", "/v1/quota", noEnterprise, noBody[noContent]("refuse quotas")},
	{"GET PUT POST DELETE", "/v1/quota/{id...}", noEnterprise, noBody[noContent]("refuse quotas")},
	{"GET", "/v1/quota-usages", noEnterprise, noBody[noContent]("refuse quotas")},
	{"GET", "/v1/quotas", noEnterprise, noBody[noContent]("refuse quotas")},
	{"GET PUT POST DELETE", "/v1/recommendation", noEnterprise, noBody[noContent]("refuse recommendations")},
	{"GET PUT POST DELETE", "/v1/recommendation/{id...}", noEnterprise, noBody[noContent]("refuse recommendations")},
	{"GET PUT POST", "/v1/recommendations", noEnterprise, noBody[noContent]("refuse recommendations")},
	{"GET PUT POST", "/v1/recommendations/apply", noEnterprise, noBody[noContent]("refuse recommendations")},
	{"GET PUT POST DELETE", "/v1/sentinel/{id...}", noEnterprise, noBody[noContent]("refuse policies")},
	{"GET", "/v1/volumes", (*API).listVolumes, noBody[[]any]("list volumes: none", "type")},
	{"GET", "/v1/volumes/claims", fixed([]any{}), noBody[[]any]("list claims of volumes: none")},
	{"DELETE", "/v1/volumes/claim/{id}", refused(http.StatusNotFound, "claim not found"), noBody[noContent]("remove a claim")},
	{"GET PUT POST DELETE", "/v1/volumes/{id}", noVolumes, noBody[noContent]("refuse volumes of other machines")},
	{"GET", "/v1/volume/{id...}", refused(http.StatusNotFound, "volume not found"), noBody[noContent]("read a volume")},
	{"PUT POST DELETE", "/v1/volume/{id...}", noVolumes, noBody[noContent]("refuse volumes")},
}

// open are the paths that disclose nothing and need no token.
var open = map[string]bool{"/v1/agent/health": true}

// match returns the id in a path that matches the pattern.
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

// serves reports whether the route supports the method.
func (rt route) serves(method string) bool {
	return slices.Contains(strings.Fields(rt.methods), method)
}

// literal returns the length of the pattern without its variables.
func (rt route) literal() int {
	before, rest, _ := strings.Cut(rt.pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	return len(before) + len(after)
}

// find returns the route for a request. otherMethod reports whether a route exists for another
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
