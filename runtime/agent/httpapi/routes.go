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
	methods string // separated by spaces
	// pattern is a path. {id} matches one segment, {id...} one or more: the ids of jobs have
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
	nodes := &nodeHandler{agent, c.Store, c.Scheduler, c.Node, c.Token}
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
	agents := &agentHandler{agent, c.Store, c.Scheduler, c.Node, c.Agent}
	plugins := &pluginHandler{store: c.Store, agent: c.Agent}
	login := &loginHandler{token: c.Token}
	debug := &debugHandler{agent, c.Node, c.Log, c.Optional.Debug}
	volumes := &volumeHandler{c.Store, c.Volumes}
	cluster := &clusterHandler{agent, c.Store, time.Now()}
	schedulerConfig := &schedulerConfigHandler{c.Store}

	return []route{
		{"GET", "/v1/jobs", jobs.list, readRouteDoc[[]jobStub]("list jobs", pageParams, "meta")},
		{"PUT POST", "/v1/jobs", jobWriter.register, bodyRouteDoc[registerRequest, jobWriteReply]("register a job")},
		{"PUT POST", "/v1/jobs/parse", jobWriter.parse, bodyRouteDoc[api.JobsParseRequest, api.Job]("parse the text of a job file")},
		{"GET PUT POST", "/v1/jobs/statuses", jobs.statuses, bodyRouteDoc[api.JobStatusesRequest, []jobStatus]("list jobs with their allocations", pageParams, "include_children")},
		{"PUT POST", "/v1/validate/job", jobWriter.validate, bodyRouteDoc[submittedJob, api.JobValidateResponse]("say what is wrong with a job")},
		{"GET", "/v1/job/{id...}", jobs.read, readRouteDoc[api.Job]("read a job")},
		{"PUT POST", "/v1/job/{id...}", jobWriter.register, bodyRouteDoc[registerRequest, jobWriteReply]("register a job")},
		{"DELETE", "/v1/job/{id...}", jobWriter.deregister, noBodyRouteDoc[api.JobDeregisterResponse]("stop a job", "purge global eval_priority no_shutdown_delay")},
		{"GET", "/v1/job/{id...}/actions", jobs.actions, readRouteDoc[[]jobAction]("list the actions of the tasks of a job")},
		{"GET", "/v1/job/{id...}/action", exec.runAction, streamRouteDoc("application/json", "run an action of a job in a task, over a websocket", "task group allocID action tty ws_handshake")},
		{"GET", "/v1/job/{id...}/allocations", jobs.allocations, readRouteDoc[[]allocStub]("list the allocations of a job", "all")},
		{"GET", "/v1/job/{id...}/deployment", jobs.latestDeployment, readRouteDoc[*deployment]("read the latest deployment of a job")},
		{"GET", "/v1/job/{id...}/deployments", jobs.deployments, readRouteDoc[[]deployment]("list the deployments of a job", "all")},
		{"PUT POST", "/v1/job/{id...}/dispatch", jobWriter.dispatch, bodyRouteDoc[api.JobDispatchRequest, api.JobDispatchResponse]("dispatch a parameterized job", "idempotency_token")},
		{"PUT POST", "/v1/job/{id...}/dispatch/payload", jobWriter.dispatchPayload, noBodyRouteDoc[api.JobDispatchResponse]("dispatch a parameterized job with the body as its payload", "idempotency_token")},
		{"PUT POST", "/v1/job/{id...}/evaluate", jobWriter.evaluate, bodyRouteDoc[api.JobEvaluateRequest, jobWriteReply]("evaluate a job")},
		{"GET", "/v1/job/{id...}/evaluations", jobs.evaluations, readRouteDoc[[]api.Evaluation]("list the evaluations of a job")},
		{"PUT POST", "/v1/job/{id...}/periodic/force", jobWriter.forcePeriodicLaunch, noBodyRouteDoc[any]("launch a periodic job now")},
		{"PUT POST", "/v1/job/{id...}/plan", jobWriter.plan, bodyRouteDoc[planRequest, api.JobPlanResponse]("say what the registration of a job would change")},
		{"PUT POST", "/v1/job/{id...}/revert", jobWriter.revert, bodyRouteDoc[api.JobRevertRequest, jobWriteReply]("register an earlier version of a job again")},
		{"GET", "/v1/job/{id...}/scale", scaling.status, readRouteDoc[api.JobScaleStatusResponse]("read the counts of the groups of a job, and how they have changed")},
		{"PUT POST", "/v1/job/{id...}/scale", scaling.scale, bodyRouteDoc[api.ScalingRequest, jobWriteReply]("change the count of a group")},
		{"GET", "/v1/job/{id...}/services", jobs.services, readRouteDoc[[]api.ServiceRegistration]("list the instances of the services of a job")},
		{"PUT POST", "/v1/job/{id...}/stable", jobWriter.setStable, bodyRouteDoc[api.JobStabilityRequest, api.JobStabilityResponse]("say that a version of a job is stable, or is not")},
		{"GET", "/v1/job/{id...}/submission", jobs.submission, readRouteDoc[api.JobSubmission]("read the text that a version of a job was made of", "version")},
		{"GET", "/v1/job/{id...}/summary", jobs.summary, readRouteDoc[api.JobSummary]("count the allocations of a job")},
		{"GET", "/v1/job/{id...}/versions", jobs.versions, readRouteDoc[api.JobVersionsResponse]("list the versions of a job", "diffs diff_version diff_tag")},
		{"PUT POST", "/v1/job/{id...}/tag", jobWriter.tagVersion, bodyRouteDoc[api.TagVersionRequest, api.JobVersionTag]("name a version of a job: its id, /versions/, the name")},
		{"DELETE", "/v1/job/{id...}/tag", jobWriter.untagVersion, noBodyRouteDoc[api.JobVersionTag]("take the name off a version of a job: its id, /versions/, the name")},
		{"GET", "/v1/scaling/policies", scaling.listPolicies, readRouteDoc[[]api.ScalingPolicyListStub]("list scaling policies", "job type prefix")},
		{"GET", "/v1/scaling/policy/{id}", scaling.readPolicy, readRouteDoc[api.ScalingPolicy]("read a scaling policy")},

		{"GET", "/v1/allocations", allocs.list, readRouteDoc[[]allocStub]("list allocations", pageParams, "resources task_states")},
		{"GET", "/v1/allocation/{id...}", allocs.read, readRouteDoc[api.Allocation]("read an allocation")},
		{"GET", "/v1/allocation/{id}/checks", allocs.checks, noBodyRouteDoc[map[string]checkStatus]("tell how the checks of an allocation are")},
		{"GET", "/v1/allocation/{id}/services", allocs.services, readRouteDoc[[]api.ServiceRegistration]("list the services of an allocation", "filter per_page next_token reverse")},
		{"GET", "/v1/allocation/{id}/timeline", allocs.timeline, readRouteDoc[allocTimeline]("read what happened in an allocation and how long it took")},
		{"PUT POST", "/v1/allocation/{id}/stop", allocs.stop, noBodyRouteDoc[api.AllocStopResponse]("stop an allocation", "reschedule no_shutdown_delay")},
		{"GET", "/v1/client/allocation/{id}/checks", allocs.checks, noBodyRouteDoc[map[string]checkStatus]("tell how the checks of an allocation are")},
		{"GET", "/v1/client/allocation/{id}/exec", exec.execTask, streamRouteDoc("application/json", "run a command in a task, over a websocket", "task command tty ws_handshake")},
		{"GET PUT POST", "/v1/client/allocation/{id}/gc", allocs.gcAllocation, noBodyRouteDoc[any]("take an ended allocation off the disk")},
		{"GET PUT POST", "/v1/client/allocation/{id}/pause", errorHandler(http.StatusInternalServerError, "Enterprise only"), noBodyRouteDoc[noContent]("refuse to pause tasks")},
		{"PUT POST", "/v1/client/allocation/{id}/restart", allocs.restart, bodyRouteDoc[api.AllocationRestartRequest, replyMeta]("restart tasks of an allocation")},
		{"PUT POST", "/v1/client/allocation/{id}/signal", allocs.signal, bodyRouteDoc[api.AllocSignalRequest, replyMeta]("send a signal to tasks of an allocation")},
		{"GET", "/v1/client/allocation/{id}/snapshot", noClusterHandler, noBodyRouteDoc[noContent]("refuse to move an allocation")},
		{"GET", "/v1/client/allocation/{id}/stats", allocs.stats, noBodyRouteDoc[api.AllocResourceUsage]("tell what the tasks of an allocation use", "task")},
		{"GET PUT POST DELETE", "/v1/client/allocation/{id...}", errorHandler(http.StatusNotFound, "resource not found"), noBodyRouteDoc[noContent]("refuse what cannot be done with allocations")},
		{"GET", "/v1/client/fs/ls/{id}", files.list, noBodyRouteDoc[[]api.AllocFileInfo]("list a directory of an allocation", "path")},
		{"GET", "/v1/client/fs/stat/{id}", files.stat, noBodyRouteDoc[api.AllocFileInfo]("tell what a file of an allocation is", "path")},
		{"GET", "/v1/client/fs/cat/{id}", files.read, streamRouteDoc("text/plain", "read a file of an allocation", "path")},
		{"GET", "/v1/client/fs/readat/{id}", files.read, streamRouteDoc("text/plain", "read a part of a file of an allocation", "path offset limit")},
		{"GET", "/v1/client/fs/stream/{id}", files.stream, streamRouteDoc("application/json", "follow a file of an allocation", "path origin offset follow")},
		{"GET", "/v1/client/fs/logs/{id}", files.taskLogs, streamRouteDoc("application/json", "read what a task prints, or follow it", "task type origin offset follow plain")},
		{"GET", "/v1/client/fs/{id...}", files.unknownOperation, noBodyRouteDoc[noContent]("refuse what cannot be done with files")},
		{"GET PUT", "/v1/client/gc", allocs.gcAllocations, noBodyRouteDoc[noContent]("take all ended allocations off the disk")},
		{"GET", "/v1/client/stats", agents.hostStats, noBodyRouteDoc[hoststats.Stats]("tell how busy the machine is", "node_id")},
		{"GET", "/v1/client/metadata", nodes.readMetadata, noBodyRouteDoc[api.NodeMetaResponse]("read the metadata of the node", "node_id")},
		{"POST", "/v1/client/metadata", nodes.setMetadata, bodyRouteDoc[api.NodeMetaApplyRequest, api.NodeMetaResponse]("change the metadata of the node", "node_id")},
		{"GET", "/v1/client/identity", noClusterHandler, noBodyRouteDoc[noContent]("refuse to show an identity")},
		{"POST", "/v1/client/identity/renew", noClusterHandler, noBodyRouteDoc[noContent]("refuse to renew an identity")},

		{"GET", "/v1/evaluations", evals.list, readRouteDoc[[]api.Evaluation]("list evaluations", pageParams, "status job")},
		{"DELETE", "/v1/evaluations", evals.delete, noBodyRouteDoc[noContent]("refuse to delete evaluations")},
		{"GET", "/v1/evaluations/count", evals.count, readRouteDoc[evaluationCount]("count evaluations", "filter prefix status job")},
		{"GET", "/v1/evaluation/{id}", evals.read, readRouteDoc[api.Evaluation]("read an evaluation", "related")},
		{"GET", "/v1/evaluation/{id}/allocations", evals.allocations, readRouteDoc[[]allocStub]("list the allocations of an evaluation")},

		{"GET", "/v1/deployments", deployments.list, readRouteDoc[[]deployment]("list deployments", pageParams)},
		{"GET", "/v1/deployment/{id}", deployments.read, readRouteDoc[deployment]("read a deployment")},
		{"GET", "/v1/deployment/allocations/{id}", deployments.allocations, readRouteDoc[[]allocStub]("list the allocations of a deployment")},
		{"PUT POST", "/v1/deployment/fail/{id}", deployments.fail, noBodyRouteDoc[api.DeploymentUpdateResponse]("make a deployment fail")},
		{"PUT POST", "/v1/deployment/pause/{id}", deployments.pause, bodyRouteDoc[api.DeploymentPauseRequest, api.DeploymentUpdateResponse]("pause a deployment, or let it go on")},
		{"PUT POST", "/v1/deployment/promote/{id}", deployments.promote, bodyRouteDoc[api.DeploymentPromoteRequest, api.DeploymentUpdateResponse]("promote the canaries of a deployment")},
		{"PUT POST", "/v1/deployment/unblock/{id}", deployments.unblock, bodyRouteDoc[api.DeploymentUnblockRequest, api.DeploymentUpdateResponse]("let a deployment go on that waits for other regions")},
		{"PUT POST", "/v1/deployment/allocation-health/{id}", deployments.setAllocationHealth, bodyRouteDoc[api.DeploymentAllocHealthRequest, api.DeploymentUpdateResponse]("say which allocations of a deployment are healthy")},

		{"GET", "/v1/nodes", nodes.list, readRouteDoc[[]nodeStub]("list nodes", pageParams, "os resources")},
		{"GET", "/v1/node/{id}", nodes.read, readRouteDoc[nodeView]("read a node")},
		{"GET", "/v1/node/{id}/allocations", nodes.allocations, readRouteDoc[[]api.Allocation]("list the allocations of a node")},
		{"PUT POST", "/v1/node/{id}/drain", nodes.drain, bodyRouteDoc[api.NodeUpdateDrainRequest, nodeWriteReply]("empty the node, or stop doing so")},
		{"PUT POST", "/v1/node/{id}/eligibility", nodes.setEligibility, bodyRouteDoc[api.NodeUpdateEligibilityRequest, nodeWriteReply]("say whether the node may have new allocations")},
		{"PUT POST", "/v1/node/{id}/evaluate", nodes.evaluate, noBodyRouteDoc[nodeWriteReply]("evaluate what is on the node")},
		{"PUT POST", "/v1/node/{id}/purge", nodes.purge, noBodyRouteDoc[noContent]("refuse to remove the node")},
		{"GET", "/v1/node/pools", pools.list, readRouteDoc[[]poolWithHash]("list node pools", pageParams)},
		{"PUT POST", "/v1/node/pools", nodePoolChangeHandler, noBodyRouteDoc[noContent]("refuse to make a node pool")},
		{"GET", "/v1/node/pool/{id}", pools.read, readRouteDoc[poolWithHash]("read a node pool")},
		{"PUT POST DELETE", "/v1/node/pool/{id}", nodePoolChangeHandler, noBodyRouteDoc[noContent]("refuse to change a node pool")},
		{"GET", "/v1/node/pool/{id}/nodes", pools.listNodes, readRouteDoc[[]nodeStub]("list the nodes of a node pool", pageParams, "os resources")},
		{"GET", "/v1/node/pool/{id}/jobs", pools.listJobs, readRouteDoc[[]jobStub]("list the jobs of a node pool", pageParams, "meta")},

		{"GET", "/v1/services", services.list, readRouteDoc[[]api.ServiceRegistrationListStub]("list the names of services", "prefix")},
		{"GET", "/v1/service/{id...}", services.read, readRouteDoc[[]api.ServiceRegistration]("list the instances of a service", pageParams, "choose")},
		{"DELETE", "/v1/service/{id...}", services.delete, noBodyRouteDoc[noContent]("remove an instance of a service: its name, a slash, its id")},
		{"GET DELETE", "/v1/service/", services.rejectMissingName, noBodyRouteDoc[noContent]("refuse an empty name")},
		{"GET", "/v1/vars", vars.list, readRouteDoc[[]api.VariableMetadata]("list variables without what is in them", pageParams)},
		{"GET", "/v1/var/{id...}", vars.read, readRouteDoc[api.Variable]("read a variable")},
		{"PUT POST", "/v1/var/{id...}", vars.put, bodyRouteDoc[api.Variable, api.Variable]("write a variable, or do something with its lock", "cas lock-acquire lock-renew lock-release")},
		{"DELETE", "/v1/var/{id...}", vars.delete, noBodyRouteDoc[noContent]("remove a variable", "cas")},
		{"PATCH OPTIONS", "/v1/var/{id...}", vars.rejectMethod, noBodyRouteDoc[noContent]("refuse other methods")},
		{"GET PUT POST DELETE", "/v1/var/", vars.rejectMissingPath, noBodyRouteDoc[noContent]("refuse an empty path")},
		{"GET", "/v1/namespaces", namespaces.list, readRouteDoc[[]namespaceWithHash]("list namespaces", pageParams)},
		{"PUT POST", "/v1/namespace", namespaces.put, bodyRouteDoc[api.Namespace, noContent]("make or change a namespace")},
		{"GET", "/v1/namespace/{id}", namespaces.read, readRouteDoc[namespaceWithHash]("read a namespace")},
		{"PUT POST", "/v1/namespace/{id}", namespaces.put, bodyRouteDoc[api.Namespace, noContent]("make or change a namespace")},
		{"DELETE", "/v1/namespace/{id}", namespaces.delete, noBodyRouteDoc[noContent]("remove a namespace that nothing is in")},

		{"PUT POST", "/v1/search", search.searchPrefix, bodyRouteDoc[api.SearchRequest, api.SearchResponse]("find what begins with a text")},
		{"PUT POST", "/v1/search/fuzzy", search.searchFuzzy, bodyRouteDoc[api.FuzzySearchRequest, api.FuzzySearchResponse]("find what has a text in its name")},
		{"GET", eventsPath, events.streamEvents, streamRouteDoc("application/json", "follow what changes", "topic index")},

		{"GET", "/v1/agent/health", agents.health, noBodyRouteDoc[map[string]health]("tell whether the agent is well", "type")},
		{"GET", "/v1/agent/host", debug.readHostData, noBodyRouteDoc[api.HostDataResponse]("tell about the machine, when debugging is enabled")},
		{"GET", "/v1/agent/members", agents.members, noBodyRouteDoc[members]("list the agents of the region")},
		{"GET", "/v1/agent/monitor", debug.monitor, streamRouteDoc("application/json", "follow the log of the agent", "log_level log_json log_include_location plain node_id server_id")},
		{"GET", "/v1/agent/pprof/{id}", debug.profile, streamRouteDoc("application/octet-stream", "profile the agent, when debugging is enabled", "seconds debug gc node_id server_id")},
		{"PUT POST", loginPath, login.logIn, noBodyRouteDoc[loginToken]("exchange a one-time secret for the token")},
		{"PUT POST", loginPath + "/secret", login.createSecret, noBodyRouteDoc[loginSecret]("make a one-time secret with which a browser logs in")},
		{"GET", "/v1/agent/plugins", plugins.list, noBodyRouteDoc[any]("list the plugins and hooks of the agent", "index wait")},
		{"PUT POST", "/v1/agent/reload", agents.reloadConfig, noBodyRouteDoc[noContent]("read the configuration again")},
		{"GET", "/v1/agent/self", agents.readSelf, noBodyRouteDoc[agentState]("show the configuration and some facts of the agent")},
		{"GET", "/v1/metrics", metrics.read, noBodyRouteDoc[api.MetricsSummary]("show how much is going on", "format")},
		{"GET", "/v1/openapi.json", a.serveOpenAPI, noBodyRouteDoc[any]("describe the API")},
		{"GET", "/v1/regions", agents.regions, noBodyRouteDoc[[]string]("list regions")},
		{"GET", "/v1/status/leader", agents.leader, noBodyRouteDoc[string]("show the address of the leader")},
		{"GET", "/v1/status/peers", agents.peers, noBodyRouteDoc[[]string]("list the addresses of the servers")},
		{"PUT", "/v1/system/gc", agents.forceGC, noBodyRouteDoc[noContent]("remove what has ended from the state and from the disk")},
		{"PUT", "/v1/system/reconcile/summaries", constantHandler(noContent{}), noBodyRouteDoc[noContent]("no effect: allocations are counted at each request")},
		{"GET", keySetPath, identities.keySet, noBodyRouteDoc[identity.KeySet]("list the keys that verify tokens of tasks")},
		{"GET", discoveryPath, identities.discover, noBodyRouteDoc[discovery]("say where the keys are that verify tokens of tasks")},
		{"GET", "/", redirectToUI, streamRouteDoc("text/html", "go to the page for people")},
		{"GET", "/ui/", a.servePage, streamRouteDoc("text/html", "show the web page")},
		{"GET", "/ui/{id...}", a.servePage, streamRouteDoc("text/html", "show the web page")},

		// These routes have the same reply on all single-server agents: see cluster_stubs.go.
		{"GET PUT POST DELETE", "/v1/acl/{id...}", noACLHandler, noBodyRouteDoc[noContent]("refuse policies and tokens")},
		{"GET", tokenSelfPath, describeToken, noBodyRouteDoc[api.ACLToken]("show which token the client has")},
		{"PUT POST", "/v1/agent/force-leave", noClusterHandler, noBodyRouteDoc[noContent]("refuse to make others leave")},
		{"PUT POST", "/v1/agent/join", constantHandler(agentJoinReply{Error: "clustering is not supported"}), noBodyRouteDoc[agentJoinReply]("refuse to join others")},
		{"GET PUT POST DELETE", "/v1/agent/keyring/{id...}", noClusterHandler, noBodyRouteDoc[noContent]("refuse keys of a cluster")},
		{"GET", "/v1/agent/monitor/export", errorHandler(http.StatusBadRequest, "the log of this agent is not kept: it goes to standard error"), noBodyRouteDoc[noContent]("refuse the log of before")},
		{"GET", "/v1/agent/schedulers", cluster.schedulers, noBodyRouteDoc[api.AgentSchedulerWorkersInfo]("list what plans")},
		{"GET", "/v1/agent/schedulers/config", cluster.schedulerWorkers, noBodyRouteDoc[api.AgentSchedulerWorkerConfigResponse]("show what plans")},
		{"PUT POST", "/v1/agent/schedulers/config", noClusterHandler, noBodyRouteDoc[noContent]("refuse another number of planners")},
		{"GET", "/v1/agent/servers", agents.servers, noBodyRouteDoc[[]string]("list the servers of this client")},
		{"PUT POST", "/v1/agent/servers", constantHandler(noContent{}), noBodyRouteDoc[noContent]("accept other servers without effect", "address")},
		{"GET", "/v1/operator/autopilot/configuration", cluster.autopilotConfiguration, noBodyRouteDoc[any]("show what looks after servers")},
		{"PUT POST", "/v1/operator/autopilot/configuration", noClusterHandler, noBodyRouteDoc[noContent]("refuse another")},
		{"GET", "/v1/operator/autopilot/health", cluster.autopilotHealth, noBodyRouteDoc[any]("show how the servers are")},
		{"GET", "/v1/operator/keyring/keys", keyring.list, noBodyRouteDoc[[]api.RootKeyMeta]("list the keys of variables")},
		{"PUT POST", "/v1/operator/keyring/rotate", keyring.rotate, noBodyRouteDoc[keyRotationReply]("make a new key for variables", "full algo publish_time")},
		{"DELETE", "/v1/operator/keyring/key/{id}", keyring.remove, noBodyRouteDoc[noContent]("remove a key of variables", "force")},
		{"GET", "/v1/operator/license", replyNoLicense, noBodyRouteDoc[noContent]("show the license: none")},
		{"PUT POST", "/v1/operator/license", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse a license")},
		{"GET", "/v1/operator/raft/configuration", cluster.raftConfiguration, noBodyRouteDoc[api.RaftConfiguration]("list the servers")},
		{"GET PUT POST DELETE", "/v1/operator/raft/{id...}", noClusterHandler, noBodyRouteDoc[noContent]("refuse other servers")},
		{"GET", "/v1/operator/scheduler/configuration", schedulerConfig.read, readRouteDoc[api.SchedulerConfigurationResponse]("show how allocations are placed")},
		{"PUT POST", "/v1/operator/scheduler/configuration", schedulerConfig.put, bodyRouteDoc[api.SchedulerConfiguration, api.SchedulerSetConfigurationResponse]("let tasks use memory_max, or not", "cas")},
		{"GET PUT POST", "/v1/operator/snapshot", errorHandler(http.StatusNotImplemented, "the state cannot be copied through the API: see nomad-lite operator state"), noBodyRouteDoc[noContent]("refuse copies of the state")},
		{"GET", "/v1/operator/upgrade-check/vault-workload-identity", constantHandler(vaultUpgrade{[]string{}, []string{}, []string{}}), noBodyRouteDoc[vaultUpgrade]("list what stands in the way of an upgrade")},
		{"GET POST", "/v1/operator/utilization", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse a report")},
		{"GET", "/v1/plugins", constantHandler([]any{}), noBodyRouteDoc[[]any]("list storage plugins: none", "type")},
		{"GET", "/v1/plugin/csi/{id...}", errorHandler(http.StatusNotFound, "plugin not found"), noBodyRouteDoc[noContent]("read a storage plugin")},
		{"GET PUT POST DELETE", "/v1/quota", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse quotas")},
		{"GET PUT POST DELETE", "/v1/quota/{id...}", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse quotas")},
		{"GET", "/v1/quota-usages", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse quotas")},
		{"GET", "/v1/quotas", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse quotas")},
		{"GET PUT POST DELETE", "/v1/recommendation", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse recommendations")},
		{"GET PUT POST DELETE", "/v1/recommendation/{id...}", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse recommendations")},
		{"GET PUT POST", "/v1/recommendations", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse recommendations")},
		{"GET PUT POST", "/v1/recommendations/apply", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse recommendations")},
		{"GET PUT POST DELETE", "/v1/sentinel/{id...}", noEnterpriseHandler, noBodyRouteDoc[noContent]("refuse policies")},
		{"GET", "/v1/volumes", volumes.list, readRouteDoc[[]api.HostVolumeStub]("list host volumes; there are no CSI volumes", pageParams, "type node_id node_pool")},
		{"GET", "/v1/volumes/claims", volumes.claims, readRouteDoc[[]api.TaskGroupHostVolumeClaim]("list the claims of groups with sticky volumes", pageParams, "job_id task_group volume_name")},
		{"DELETE", "/v1/volumes/claim/{id}", volumes.deleteClaim, noBodyRouteDoc[noContent]("remove a claim")},
		{"GET PUT POST DELETE", "/v1/volumes/{id}", noCSIHandler, noBodyRouteDoc[noContent]("refuse CSI volumes")},
		{"PUT POST", "/v1/volume/host/create", volumes.create, bodyRouteDoc[api.HostVolumeCreateRequest, api.HostVolumeCreateResponse]("create a host volume with its plugin, or change it")},
		{"PUT POST", "/v1/volume/host/register", volumes.register, bodyRouteDoc[api.HostVolumeRegisterRequest, api.HostVolumeRegisterResponse]("register a directory as a host volume, or change it")},
		{"GET", "/v1/volume/host/{id}", volumes.read, readRouteDoc[api.HostVolume]("read a host volume")},
		{"DELETE", "/v1/volume/host/{id}", volumes.delete, noBodyRouteDoc[replyMeta]("delete a host volume", "force")},
		{"GET", "/v1/volume/{id...}", errorHandler(http.StatusNotFound, "volume not found"), noBodyRouteDoc[noContent]("read a CSI volume: there is none")},
		{"PUT POST DELETE", "/v1/volume/{id...}", noCSIHandler, noBodyRouteDoc[noContent]("refuse CSI volumes")},
	}
}

// publicPaths are the paths that need no token, besides the web page. They disclose no data, except to a client with
// a one-time secret.
var publicPaths = map[string]bool{"/v1/agent/health": true, loginPath: true}

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

// allowsMethod reports whether the route supports the method.
func (rt route) allowsMethod(method string) bool {
	return slices.Contains(strings.Fields(rt.methods), method)
}

// literalLength returns the length of the pattern without its variables.
func (rt route) literalLength() int {
	before, rest, _ := strings.Cut(rt.pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	return len(before) + len(after)
}

// findRoute returns the most specific route for a path, and the id in the path. found reports whether the
// route supports the method, otherMethod whether any route has the path.
func findRoute(routes []route, method, path string) (best route, id string, found, otherMethod bool) {
	most := -1
	for _, rt := range routes {
		value, ok := rt.match(path)
		if !ok || rt.literalLength() < most || found && rt.literalLength() == most {
			continue
		}
		most, best, id, found = rt.literalLength(), rt, value, rt.allowsMethod(method)
	}
	return best, id, found, most >= 0
}
