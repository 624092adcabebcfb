package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// route is one route of the API: a row of the table that newRoutes returns.
type route struct {
	methods string // HTTP methods, separated by spaces
	// pattern is a path, in which {id} matches one segment and {id...} one or more, because the ids of jobs can have
	// slashes.
	pattern string
	handler func(*request) (any, error)
	routeDoc
}

// newRoutes returns all routes of the API. If a path matches several patterns, the most specific
// pattern is used.
func (a *API) newRoutes() []route {
	c := &a.config
	agent := &localAgent{c.Store, c.NodeID, c.Region, c.AdvertiseAddr, c.Version}
	jobs := &jobReader{c.Store}
	jobWriter := &jobWriter{c.Store, c.Scheduler, c.JobParser, &jobChecker{c.Store, c.Node, c.Region, a.logger}}
	scaling := &scalingHandler{c.Store, c.Scheduler}
	allocs := &allocHandler{c.Store, c.Scheduler, c.Node, a.logger}
	files := &fileHandler{c.Store, c.Node}
	exec := &execHandler{c.Store, c.Node, a.access, &a.execSessions}
	nodes := &nodeHandler{agent, c.Store, c.Scheduler, c.Node, c.OperatorToken}
	pools := &nodePoolHandler{c.Store, nodes, jobs}
	evals := &evaluationHandler{c.Store}
	deployments := &deploymentHandler{c.Store, c.Scheduler}
	services := &serviceHandler{c.Store}
	vars := &variableHandler{c.Store, a.variables}
	namespaces := &namespaceHandler{c.Store}
	search := &searchHandler{c.Store}
	keyring := &keyringHandler{c.Store, c.Identities, a.logger}
	identities := &identityHandler{c.Identities}
	events := &eventHandler{c.Store, c.Node, a.logger}
	metrics := &metricsHandler{c.Metrics}
	agents := &agentHandler{agent, c.Store, c.Scheduler, c.Node, c.AgentFuncs}
	plugins := &pluginHandler{store: c.Store, agent: c.AgentFuncs}
	login := &loginHandler{token: c.OperatorToken}
	debug := &debugHandler{agent, c.Node, c.MonitoredLog, c.OptionalRoutes.EnableDebug}
	volumes := &volumeHandler{c.Store, c.Volumes}
	cluster := &clusterHandler{agent, c.Store, time.Now()}
	schedulerConfig := &schedulerConfigHandler{c.Store}

	return []route{
		{"GET", "/v1/jobs", jobs.list, readRouteDoc[[]jobStub]("list jobs", pageParams, "meta")},
		{"PUT POST", "/v1/jobs", jobWriter.register, bodyRouteDoc[registerRequest, jobWriteReply]("register a job")},
		{"PUT POST", "/v1/jobs/parse", jobWriter.parse, bodyRouteDoc[api.JobsParseRequest, api.Job]("parse the text of a job file")},
		{"GET PUT POST", "/v1/jobs/statuses", jobs.statuses, bodyRouteDoc[api.JobStatusesRequest, []jobStatus]("list jobs with the statuses of their allocations", pageParams, "include_children")},
		{"PUT POST", "/v1/validate/job", jobWriter.validate, bodyRouteDoc[submittedJob, api.JobValidateResponse]("validate a job")},
		{"GET", "/v1/job/{id...}", jobs.read, readRouteDoc[api.Job]("read a job")},
		{"PUT POST", "/v1/job/{id...}", jobWriter.register, bodyRouteDoc[registerRequest, jobWriteReply]("register a job")},
		{"DELETE", "/v1/job/{id...}", jobWriter.deregister, noBodyRouteDoc[api.JobDeregisterResponse]("stop a job", "purge global eval_priority no_shutdown_delay")},
		{"GET", "/v1/job/{id...}/actions", jobs.actions, readRouteDoc[[]jobAction]("list the actions of the tasks of a job")},
		{"GET", "/v1/job/{id...}/action", exec.runAction, streamRouteDoc("application/json", "run an action of a job in a task, over a websocket", "task group allocID action tty ws_handshake")},
		{"GET", "/v1/job/{id...}/allocations", jobs.allocations, readRouteDoc[[]allocStub]("list the allocations of a job", "all")},
		{"GET", "/v1/job/{id...}/deployment", jobs.latestDeployment, readRouteDoc[*deployment]("read the latest deployment of a job")},
		{"GET", "/v1/job/{id...}/deployments", jobs.deployments, readRouteDoc[[]deployment]("list the deployments of a job", "all")},
		{"PUT POST", "/v1/job/{id...}/dispatch", jobWriter.dispatch, bodyRouteDoc[api.JobDispatchRequest, api.JobDispatchResponse]("dispatch a parameterized job", "idempotency_token")},
		{"PUT POST", "/v1/job/{id...}/dispatch/payload", jobWriter.dispatchPayload, noBodyRouteDoc[api.JobDispatchResponse]("dispatch a parameterized job with the request body as its payload", "idempotency_token")},
		{"PUT POST", "/v1/job/{id...}/evaluate", jobWriter.evaluate, bodyRouteDoc[api.JobEvaluateRequest, jobWriteReply]("create an evaluation for a job")},
		{"GET", "/v1/job/{id...}/evaluations", jobs.evaluations, readRouteDoc[[]api.Evaluation]("list the evaluations of a job")},
		{"PUT POST", "/v1/job/{id...}/periodic/force", jobWriter.forcePeriodicLaunch, noBodyRouteDoc[any]("launch a child of a periodic job now")},
		{"PUT POST", "/v1/job/{id...}/plan", jobWriter.plan, bodyRouteDoc[planRequest, api.JobPlanResponse]("plan a job: show the changes that its registration would make")},
		{"PUT POST", "/v1/job/{id...}/revert", jobWriter.revert, bodyRouteDoc[api.JobRevertRequest, jobWriteReply]("revert a job to an earlier version")},
		{"GET", "/v1/job/{id...}/scale", scaling.status, readRouteDoc[api.JobScaleStatusResponse]("read the task group counts and the scaling events of a job")},
		{"PUT POST", "/v1/job/{id...}/scale", scaling.scale, bodyRouteDoc[api.ScalingRequest, jobWriteReply]("change the count of a task group")},
		{"GET", "/v1/job/{id...}/services", jobs.services, readRouteDoc[[]api.ServiceRegistration]("list the service registrations of a job")},
		{"PUT POST", "/v1/job/{id...}/stable", jobWriter.setStable, bodyRouteDoc[api.JobStabilityRequest, api.JobStabilityResponse]("mark a version of a job as stable or unstable")},
		{"GET", "/v1/job/{id...}/submission", jobs.submission, readRouteDoc[api.JobSubmission]("read the job file from which a version of a job was submitted", "version")},
		{"GET", "/v1/job/{id...}/summary", jobs.summary, readRouteDoc[api.JobSummary]("read the numbers of allocations of a job by status")},
		{"GET", "/v1/job/{id...}/versions", jobs.versions, readRouteDoc[api.JobVersionsResponse]("list the versions of a job", "diffs diff_version diff_tag")},
		{"PUT POST", "/v1/job/{id...}/tag", jobWriter.tagVersion, bodyRouteDoc[api.TagVersionRequest, api.JobVersionTag]("tag a version of a job; the path is /v1/job/<job ID>/versions/<tag>/tag")},
		{"DELETE", "/v1/job/{id...}/tag", jobWriter.untagVersion, noBodyRouteDoc[api.JobVersionTag]("remove the tag of a version of a job; the path is /v1/job/<job ID>/versions/<tag>/tag")},
		{"GET", "/v1/scaling/policies", scaling.listPolicies, readRouteDoc[[]api.ScalingPolicyListStub]("list scaling policies", "job type prefix")},
		{"GET", "/v1/scaling/policy/{id}", scaling.readPolicy, readRouteDoc[api.ScalingPolicy]("read a scaling policy")},

		{"GET", "/v1/allocations", allocs.list, readRouteDoc[[]allocStub]("list allocations", pageParams, "resources task_states")},
		{"GET", "/v1/allocation/{id...}", allocs.read, readRouteDoc[api.Allocation]("read an allocation")},
		{"GET", "/v1/allocation/{id}/checks", allocs.checks, noBodyRouteDoc[map[string]checkStatus]("read the status of the service checks of an allocation")},
		{"GET", "/v1/allocation/{id}/services", allocs.services, readRouteDoc[[]api.ServiceRegistration]("list the service registrations of an allocation", "filter per_page next_token reverse")},
		{"GET", "/v1/allocation/{id}/timeline", allocs.timeline, readRouteDoc[allocTimeline]("read the timeline of an allocation: hook, driver and task operations with their durations")},
		{"PUT POST", "/v1/allocation/{id}/stop", allocs.stop, noBodyRouteDoc[api.AllocStopResponse]("stop an allocation", "reschedule no_shutdown_delay")},
		{"GET", "/v1/client/allocation/{id}/checks", allocs.checks, noBodyRouteDoc[map[string]checkStatus]("read the status of the service checks of an allocation")},
		{"GET", "/v1/client/allocation/{id}/exec", exec.execTask, streamRouteDoc("application/json", "run a command in a task, over a websocket", "task command tty ws_handshake")},
		{"GET PUT POST", "/v1/client/allocation/{id}/gc", allocs.gcAllocation, noBodyRouteDoc[any]("garbage collect the directory of a terminal allocation")},
		{"GET PUT POST", "/v1/client/allocation/{id}/pause", errorHandler(http.StatusInternalServerError, "Enterprise only"), noBodyRouteDoc[noContent]("not supported: pausing tasks requires Nomad Enterprise")},
		{"PUT POST", "/v1/client/allocation/{id}/restart", allocs.restart, bodyRouteDoc[api.AllocationRestartRequest, replyMeta]("restart one task or all tasks of an allocation")},
		{"PUT POST", "/v1/client/allocation/{id}/signal", allocs.signal, bodyRouteDoc[api.AllocSignalRequest, replyMeta]("send a signal to one task or all tasks of an allocation")},
		{"GET", "/v1/client/allocation/{id}/snapshot", noClusterHandler, noBodyRouteDoc[noContent]("not supported: migrating the directory of an allocation requires a cluster")},
		{"GET", "/v1/client/allocation/{id}/stats", allocs.stats, noBodyRouteDoc[api.AllocResourceUsage]("read the CPU, memory and device usage of an allocation", "task")},
		{"GET PUT POST DELETE", "/v1/client/allocation/{id...}", errorHandler(http.StatusNotFound, "resource not found"), noBodyRouteDoc[noContent]("unknown operation on an allocation: 404")},
		{"GET", "/v1/client/fs/ls/{id}", files.list, noBodyRouteDoc[[]api.AllocFileInfo]("list a directory of an allocation", "path")},
		{"GET", "/v1/client/fs/stat/{id}", files.stat, noBodyRouteDoc[api.AllocFileInfo]("read the metadata of a file of an allocation", "path")},
		{"GET", "/v1/client/fs/cat/{id}", files.read, streamRouteDoc("text/plain", "read a file of an allocation", "path")},
		{"GET", "/v1/client/fs/readat/{id}", files.read, streamRouteDoc("text/plain", "read a range of bytes of a file of an allocation", "path offset limit")},
		{"GET", "/v1/client/fs/stream/{id}", files.stream, streamRouteDoc("application/json", "stream a file of an allocation", "path origin offset follow")},
		{"GET", "/v1/client/fs/logs/{id}", files.taskLogs, streamRouteDoc("application/json", "stream the stdout or stderr of a task", "task type origin offset follow plain")},
		{"GET", "/v1/client/fs/{id...}", files.unknownOperation, noBodyRouteDoc[noContent]("unknown operation on a file: 404")},
		{"GET PUT", "/v1/client/gc", allocs.gcAllocations, noBodyRouteDoc[noContent]("garbage collect the directories of all terminal allocations")},
		{"GET", "/v1/client/stats", agents.hostStats, noBodyRouteDoc[hoststats.Stats]("read the CPU, memory, disk and device usage of the host", "node_id")},
		{"GET", "/v1/client/metadata", nodes.readMetadata, noBodyRouteDoc[api.NodeMetaResponse]("read the dynamic and static metadata of the node", "node_id")},
		{"POST", "/v1/client/metadata", nodes.setMetadata, bodyRouteDoc[api.NodeMetaApplyRequest, api.NodeMetaResponse]("change the dynamic metadata of the node", "node_id")},
		{"GET", "/v1/client/identity", noClusterHandler, noBodyRouteDoc[noContent]("not supported: a node identity requires a cluster")},
		{"POST", "/v1/client/identity/renew", noClusterHandler, noBodyRouteDoc[noContent]("not supported: a node identity requires a cluster")},

		{"GET", "/v1/evaluations", evals.list, readRouteDoc[[]api.Evaluation]("list evaluations", pageParams, "status job")},
		{"DELETE", "/v1/evaluations", evals.delete, noBodyRouteDoc[noContent]("not supported: deleting evaluations")},
		{"GET", "/v1/evaluations/count", evals.count, readRouteDoc[evaluationCount]("count evaluations", "filter prefix status job")},
		{"GET", "/v1/evaluation/{id}", evals.read, readRouteDoc[api.Evaluation]("read an evaluation", "related")},
		{"GET", "/v1/evaluation/{id}/allocations", evals.allocations, readRouteDoc[[]allocStub]("list the allocations of an evaluation")},

		{"GET", "/v1/deployments", deployments.list, readRouteDoc[[]deployment]("list deployments", pageParams)},
		{"GET", "/v1/deployment/{id}", deployments.read, readRouteDoc[deployment]("read a deployment")},
		{"GET", "/v1/deployment/allocations/{id}", deployments.allocations, readRouteDoc[[]allocStub]("list the allocations of a deployment")},
		{"PUT POST", "/v1/deployment/fail/{id}", deployments.fail, noBodyRouteDoc[api.DeploymentUpdateResponse]("fail a deployment")},
		{"PUT POST", "/v1/deployment/pause/{id}", deployments.pause, bodyRouteDoc[api.DeploymentPauseRequest, api.DeploymentUpdateResponse]("pause or resume a deployment")},
		{"PUT POST", "/v1/deployment/promote/{id}", deployments.promote, bodyRouteDoc[api.DeploymentPromoteRequest, api.DeploymentUpdateResponse]("promote the canaries of a deployment")},
		{"PUT POST", "/v1/deployment/unblock/{id}", deployments.unblock, bodyRouteDoc[api.DeploymentUnblockRequest, api.DeploymentUpdateResponse]("unblock a deployment of a multi-region job")},
		{"PUT POST", "/v1/deployment/allocation-health/{id}", deployments.setAllocationHealth, bodyRouteDoc[api.DeploymentAllocHealthRequest, api.DeploymentUpdateResponse]("set the health of allocations of a deployment")},

		{"GET", "/v1/nodes", nodes.list, readRouteDoc[[]nodeStub]("list nodes", pageParams, "os resources")},
		{"GET", "/v1/node/{id}", nodes.read, readRouteDoc[nodeView]("read a node")},
		{"GET", "/v1/node/{id}/allocations", nodes.allocations, readRouteDoc[[]api.Allocation]("list the allocations of a node")},
		{"PUT POST", "/v1/node/{id}/drain", nodes.drain, bodyRouteDoc[api.NodeUpdateDrainRequest, nodeWriteReply]("start or stop draining a node")},
		{"PUT POST", "/v1/node/{id}/eligibility", nodes.setEligibility, bodyRouteDoc[api.NodeUpdateEligibilityRequest, nodeWriteReply]("change the scheduling eligibility of a node")},
		{"PUT POST", "/v1/node/{id}/evaluate", nodes.evaluate, noBodyRouteDoc[nodeWriteReply]("accepted without effect: blocked evaluations are processed when the node changes")},
		{"PUT POST", "/v1/node/{id}/purge", nodes.purge, noBodyRouteDoc[noContent]("not supported: the agent's own node cannot be purged")},
		{"GET", "/v1/node/pools", pools.list, readRouteDoc[[]poolWithHash]("list node pools", pageParams)},
		{"PUT POST", "/v1/node/pools", nodePoolChangeHandler, noBodyRouteDoc[noContent]("not supported: node pools follow from the configuration of the agent")},
		{"GET", "/v1/node/pool/{id}", pools.read, readRouteDoc[poolWithHash]("read a node pool")},
		{"PUT POST DELETE", "/v1/node/pool/{id}", nodePoolChangeHandler, noBodyRouteDoc[noContent]("not supported: node pools follow from the configuration of the agent")},
		{"GET", "/v1/node/pool/{id}/nodes", pools.listNodes, readRouteDoc[[]nodeStub]("list the nodes of a node pool", pageParams, "os resources")},
		{"GET", "/v1/node/pool/{id}/jobs", pools.listJobs, readRouteDoc[[]jobStub]("list the jobs of a node pool", pageParams, "meta")},

		{"GET", "/v1/services", services.list, readRouteDoc[[]api.ServiceRegistrationListStub]("list services by namespace", "prefix")},
		{"GET", "/v1/service/{id...}", services.read, readRouteDoc[[]api.ServiceRegistration]("list the registrations of a service", pageParams, "choose")},
		{"DELETE", "/v1/service/{id...}", services.delete, noBodyRouteDoc[noContent]("delete a service registration; the path is /v1/service/<service name>/<registration ID>")},
		{"GET DELETE", "/v1/service/", services.rejectMissingName, noBodyRouteDoc[noContent]("error: the path lacks the name of the service")},
		{"GET", "/v1/vars", vars.list, readRouteDoc[[]api.VariableMetadata]("list the metadata of variables, without their items", pageParams)},
		{"GET", "/v1/var/{id...}", vars.read, readRouteDoc[api.Variable]("read a variable")},
		{"PUT POST", "/v1/var/{id...}", vars.put, bodyRouteDoc[api.Variable, api.Variable]("write a variable, or acquire, renew or release its lock", "cas lock-acquire lock-renew lock-release")},
		{"DELETE", "/v1/var/{id...}", vars.delete, noBodyRouteDoc[noContent]("delete a variable", "cas")},
		{"PATCH OPTIONS", "/v1/var/{id...}", vars.rejectMethod, noBodyRouteDoc[noContent]("error: the method is not supported")},
		{"GET PUT POST DELETE", "/v1/var/", vars.rejectMissingPath, noBodyRouteDoc[noContent]("error: the URL lacks the path of the variable")},
		{"GET", "/v1/namespaces", namespaces.list, readRouteDoc[[]namespaceWithHash]("list namespaces", pageParams)},
		{"PUT POST", "/v1/namespace", namespaces.put, bodyRouteDoc[api.Namespace, noContent]("create or update a namespace")},
		{"GET", "/v1/namespace/{id}", namespaces.read, readRouteDoc[namespaceWithHash]("read a namespace")},
		{"PUT POST", "/v1/namespace/{id}", namespaces.put, bodyRouteDoc[api.Namespace, noContent]("create or update a namespace")},
		{"DELETE", "/v1/namespace/{id}", namespaces.delete, noBodyRouteDoc[noContent]("delete an empty namespace")},

		{"PUT POST", "/v1/search", search.searchPrefix, bodyRouteDoc[api.SearchRequest, api.SearchResponse]("search for objects by a prefix of the ID or name")},
		{"PUT POST", "/v1/search/fuzzy", search.searchFuzzy, bodyRouteDoc[api.FuzzySearchRequest, api.FuzzySearchResponse]("search for objects by a part of the name")},
		{"GET", eventsPath, events.streamEvents, streamRouteDoc("application/json", "stream events", "topic index")},

		{"GET", "/v1/agent/health", agents.health, noBodyRouteDoc[map[string]health]("read the health of the agent; status 500 if it is unhealthy", "type")},
		{"GET", "/v1/agent/host", debug.readHostData, noBodyRouteDoc[api.HostDataResponse]("read host data for troubleshooting; requires enable_debug")},
		{"GET", "/v1/agent/members", agents.members, noBodyRouteDoc[members]("list the members of the cluster: only this agent")},
		{"GET", "/v1/agent/monitor", debug.monitor, streamRouteDoc("application/json", "stream the log of the agent", "log_level log_json log_include_location plain node_id server_id")},
		{"GET", "/v1/agent/pprof/{id}", debug.profile, streamRouteDoc("application/octet-stream", "read a pprof profile of the agent; requires enable_debug", "seconds debug gc node_id server_id")},
		{"PUT POST", loginPath, login.logIn, noBodyRouteDoc[loginToken]("exchange a one-time login secret for the API token")},
		{"PUT POST", loginPath + "/secret", login.createSecret, noBodyRouteDoc[loginSecret]("create a one-time login secret for a browser")},
		{"GET", "/v1/agent/plugins", plugins.list, noBodyRouteDoc[any]("list the plugins and hooks of the agent", "index wait")},
		{"PUT POST", "/v1/agent/reload", agents.reloadConfig, noBodyRouteDoc[noContent]("reload the configuration")},
		{"GET", "/v1/agent/self", agents.readSelf, noBodyRouteDoc[agentState]("read the configuration and the runtime statistics of the agent")},
		{"GET", "/v1/metrics", metrics.read, noBodyRouteDoc[api.MetricsSummary]("read the metrics of the agent", "format")},
		{"GET", "/v1/openapi.json", a.serveOpenAPI, noBodyRouteDoc[any]("read this OpenAPI document")},
		{"GET", "/v1/regions", agents.regions, noBodyRouteDoc[[]string]("list regions")},
		{"GET", "/v1/status/leader", agents.leader, noBodyRouteDoc[string]("read the RPC address of the leader: this agent")},
		{"GET", "/v1/status/peers", agents.peers, noBodyRouteDoc[[]string]("list the RPC addresses of the servers: only this agent")},
		{"PUT", "/v1/system/gc", agents.forceGC, noBodyRouteDoc[noContent]("force garbage collection of terminal jobs, evaluations, deployments and allocations")},
		{"PUT", "/v1/system/reconcile/summaries", constantHandler(noContent{}), noBodyRouteDoc[noContent]("accepted without effect: job summaries are computed at each request")},
		{"GET", keySetPath, identities.keySet, noBodyRouteDoc[identity.KeySet]("read the JSON Web Key Set that verifies workload identity tokens")},
		{"GET", discoveryPath, identities.discover, noBodyRouteDoc[discovery]("read the OpenID Connect discovery document")},
		{"GET", "/", redirectToUI, streamRouteDoc("text/html", "redirect to the web UI")},
		{"GET", "/ui/", a.servePage, streamRouteDoc("text/html", "serve the web UI")},
		{"GET", "/ui/{id...}", a.servePage, streamRouteDoc("text/html", "serve the web UI")},

		// These routes have the same reply on all single-server agents: see cluster_stubs.go.
		{"GET PUT POST DELETE", "/v1/acl/{id...}", noACLHandler, noBodyRouteDoc[noContent]("not supported: ACL policies, roles and tokens")},
		{"GET", tokenSelfPath, describeToken, noBodyRouteDoc[api.ACLToken]("read the ACL token of the request")},
		{"PUT POST", "/v1/agent/force-leave", noClusterHandler, noBodyRouteDoc[noContent]("not supported: clustering")},
		{"PUT POST", "/v1/agent/join", constantHandler(agentJoinReply{Error: "clustering is not supported"}), noBodyRouteDoc[agentJoinReply]("not supported: clustering")},
		{"GET PUT POST DELETE", "/v1/agent/keyring/{id...}", noClusterHandler, noBodyRouteDoc[noContent]("not supported: gossip encryption keys")},
		{"GET", "/v1/agent/monitor/export", errorHandler(http.StatusBadRequest, "the log of this agent is not kept: it goes to standard error"), noBodyRouteDoc[noContent]("not supported: the agent does not store its log")},
		{"GET", "/v1/agent/schedulers", cluster.schedulers, noBodyRouteDoc[api.AgentSchedulerWorkersInfo]("list the scheduler workers of the agent")},
		{"GET", "/v1/agent/schedulers/config", cluster.schedulerWorkers, noBodyRouteDoc[api.AgentSchedulerWorkerConfigResponse]("read the configuration of the scheduler workers")},
		{"PUT POST", "/v1/agent/schedulers/config", noClusterHandler, noBodyRouteDoc[noContent]("not supported: changing the number of scheduler workers")},
		{"GET", "/v1/agent/servers", agents.servers, noBodyRouteDoc[[]string]("list the RPC addresses of the servers of this client")},
		{"PUT POST", "/v1/agent/servers", constantHandler(noContent{}), noBodyRouteDoc[noContent]("accepted without effect: change the servers of this client", "address")},
		{"GET", "/v1/operator/autopilot/configuration", cluster.autopilotConfiguration, noBodyRouteDoc[any]("read the Autopilot configuration")},
		{"PUT POST", "/v1/operator/autopilot/configuration", noClusterHandler, noBodyRouteDoc[noContent]("not supported: changing the Autopilot configuration")},
		{"GET", "/v1/operator/autopilot/health", cluster.autopilotHealth, noBodyRouteDoc[any]("read the Autopilot health of the servers")},
		{"GET", "/v1/operator/keyring/keys", keyring.list, noBodyRouteDoc[[]api.RootKeyMeta]("list the encryption keys of the keyring")},
		{"PUT POST", "/v1/operator/keyring/rotate", keyring.rotate, noBodyRouteDoc[keyRotationReply]("rotate the active encryption key of the keyring", "full algo publish_time")},
		{"DELETE", "/v1/operator/keyring/key/{id}", keyring.remove, noBodyRouteDoc[noContent]("remove an encryption key from the keyring", "force")},
		{"GET", "/v1/operator/license", replyNoLicense, noBodyRouteDoc[noContent]("read the Enterprise license: there is none")},
		{"PUT POST", "/v1/operator/license", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: Enterprise licenses")},
		{"GET", "/v1/operator/raft/configuration", cluster.raftConfiguration, noBodyRouteDoc[api.RaftConfiguration]("read the Raft configuration: this agent is the only server")},
		{"GET PUT POST DELETE", "/v1/operator/raft/{id...}", noClusterHandler, noBodyRouteDoc[noContent]("not supported: changing Raft peers")},
		{"GET", "/v1/operator/scheduler/configuration", schedulerConfig.read, readRouteDoc[api.SchedulerConfigurationResponse]("read the scheduler configuration")},
		{"PUT POST", "/v1/operator/scheduler/configuration", schedulerConfig.put, bodyRouteDoc[api.SchedulerConfiguration, api.SchedulerSetConfigurationResponse]("update the scheduler configuration", "cas")},
		{"GET PUT POST", "/v1/operator/snapshot", errorHandler(http.StatusNotImplemented, "the state cannot be copied through the API: see nomad-lite operator state"), noBodyRouteDoc[noContent]("not supported: snapshots of the state")},
		{"GET", "/v1/operator/upgrade-check/vault-workload-identity", constantHandler(vaultUpgrade{[]string{}, []string{}, []string{}}), noBodyRouteDoc[vaultUpgrade]("list the jobs, nodes and tokens that an upgrade to Vault workload identities affects: none")},
		{"GET POST", "/v1/operator/utilization", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: utilization reports require Nomad Enterprise")},
		{"GET", "/v1/plugins", constantHandler([]any{}), noBodyRouteDoc[[]any]("list CSI plugins: there are none", "type")},
		{"GET", "/v1/plugin/csi/{id...}", errorHandler(http.StatusNotFound, "plugin not found"), noBodyRouteDoc[noContent]("read a CSI plugin: there are none")},
		{"GET PUT POST DELETE", "/v1/quota", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/quota/{id...}", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET", "/v1/quota-usages", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET", "/v1/quotas", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/recommendation", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/recommendation/{id...}", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST", "/v1/recommendations", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST", "/v1/recommendations/apply", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/sentinel/{id...}", noEnterpriseHandler, noBodyRouteDoc[noContent]("not supported: Sentinel policies require Nomad Enterprise")},
		{"GET", "/v1/volumes", volumes.list, readRouteDoc[[]api.HostVolumeStub]("list host volumes; there are no CSI volumes", pageParams, "type node_id node_pool")},
		{"GET", "/v1/volumes/claims", volumes.claims, readRouteDoc[[]api.TaskGroupHostVolumeClaim]("list the claims of task groups on sticky host volumes", pageParams, "job_id task_group volume_name")},
		{"DELETE", "/v1/volumes/claim/{id}", volumes.deleteClaim, noBodyRouteDoc[noContent]("delete a claim on a sticky host volume")},
		{"GET PUT POST DELETE", "/v1/volumes/{id}", noCSIHandler, noBodyRouteDoc[noContent]("not supported: CSI volumes")},
		{"PUT POST", "/v1/volume/host/create", volumes.create, bodyRouteDoc[api.HostVolumeCreateRequest, api.HostVolumeCreateResponse]("create or update a host volume with a volume plugin")},
		{"PUT POST", "/v1/volume/host/register", volumes.register, bodyRouteDoc[api.HostVolumeRegisterRequest, api.HostVolumeRegisterResponse]("register or update an existing directory as a host volume")},
		{"GET", "/v1/volume/host/{id}", volumes.read, readRouteDoc[api.HostVolume]("read a host volume")},
		{"DELETE", "/v1/volume/host/{id}", volumes.delete, noBodyRouteDoc[replyMeta]("delete a host volume", "force")},
		{"GET", "/v1/volume/{id...}", errorHandler(http.StatusNotFound, "volume not found"), noBodyRouteDoc[noContent]("read a CSI volume: there are none")},
		{"PUT POST DELETE", "/v1/volume/{id...}", noCSIHandler, noBodyRouteDoc[noContent]("not supported: CSI volumes")},
	}
}

// publicPaths are the paths, besides those of the web page, that need no token. loginPath needs a one-time secret instead.
var publicPaths = map[string]bool{"/v1/agent/health": true, loginPath: true}

// matchPath returns the id in a path that matches the pattern.
func (r route) matchPath(path string) (id string, ok bool) {
	before, rest, variable := strings.Cut(r.pattern, "{id")
	if !variable {
		return "", path == r.pattern
	}
	_, after, _ := strings.Cut(rest, "}")
	id, ok = strings.CutPrefix(path, before)
	if ok {
		id, ok = strings.CutSuffix(id, after)
	}
	many := strings.HasPrefix(rest, "...")
	return id, ok && id != "" && (many || !strings.Contains(id, "/"))
}

// allowsMethod reports whether the route supports the method.
func (r route) allowsMethod(method string) bool {
	return slices.Contains(strings.Fields(r.methods), method)
}

// literalLength returns the length of the pattern without its variables.
func (r route) literalLength() int {
	before, rest, _ := strings.Cut(r.pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	return len(before) + len(after)
}

// findRoute returns the most specific route for a path, and the id in the path. found reports whether the
// route supports the method, otherMethod whether any route has the path.
func findRoute(routes []route, method, path string) (best route, id string, found, otherMethod bool) {
	most := -1
	for _, rt := range routes {
		value, ok := rt.matchPath(path)
		if !ok || rt.literalLength() < most || found && rt.literalLength() == most {
			continue
		}
		most, best, id, found = rt.literalLength(), rt, value, rt.allowsMethod(method)
	}
	return best, id, found, most >= 0
}
