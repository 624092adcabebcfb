package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/agent/healthtracker"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// route is one route of the API: a row of the table that newRoutes returns.
type route struct {
	spaceSeparatedMethods string // HTTP methods, such as "PUT POST"
	// pattern is a path, in which {id} matches one segment and {id...} one or more, because the ids of jobs can have
	// slashes.
	pattern string
	access  access
	handler func(*request) (any, error)
	routeDoc
}

// newRoutes returns all routes of the API. If a path matches several patterns, the most specific
// pattern is used.
func (a *API) newRoutes() []route {
	c := &a.config
	agent := &localAgent{c.Store, c.NodeID, c.Region, c.AdvertiseAddr, c.NomadAPIVersion, c.Cluster}
	jobs := &jobReadHandler{c.Store}
	health := &jobHealthHandler{c.Store, healthtracker.New(healthtracker.ForNode(c.Allocs, c.Files, c.NodeID))}
	jobWriter := &jobWriteHandler{c.Store, c.Scheduler, c.JobParser, &jobChecker{c.Store, c.Plugins, c.Region, c.JobLimits, a.logger}}
	scaling := &scalingHandler{c.Store, c.Scheduler}
	allocs := &allocHandler{c.Store, c.Scheduler, c.Allocs, c.Files, c.DeviceStats, a.logger}
	files := &fileHandler{c.Store, c.Files, c.LogCollector}
	exec := &execHandler{c.Store, c.Allocs, a.access, c.DisableRemoteExec, &a.execSessions}
	nodes := &nodeHandler{agent, c.Store, c.Scheduler, &c.Host, c.Metadata, c.OperatorToken}
	pools := &nodePoolHandler{c.Store, nodes, jobs}
	evals := &evaluationHandler{c.Store, c.Scheduler}
	deployments := &deploymentHandler{c.Store, c.Scheduler}
	services := &serviceHandler{c.Store}
	vars := &variableHandler{c.Store, a.variables}
	namespaces := &namespaceHandler{c.Store}
	search := &searchHandler{c.Store, c.Search.withDefaults()}
	keyring := &keyringHandler{c.Store, c.Identities, a.logger}
	identities := &identityHandler{c.Identities}
	events := &eventHandler{store: c.Store, host: &c.Host, logger: a.logger, isDisabled: c.OptionalRoutes.DisableEventStream}
	metrics := &metricsHandler{c.Metrics}
	allocSnapshots := &allocSnapshotHandler{c.Store, c.Files, c.Cluster, a.logger}
	snapshots := &snapshotHandler{c.AgentFuncs.WriteSnapshot}
	agents := &agentHandler{agent, c.Store, c.Scheduler, c.Allocs, c.Conditions, c.AgentFuncs, c.HostStats, c.DeviceStats}
	plugins := &pluginHandler{store: c.Store, agentFuncs: c.AgentFuncs}
	login := &loginHandler{operatorToken: c.OperatorToken}
	proofs := newProofHandler(c.OperatorToken, c.ReadOnlyToken)
	debug := &debugHandler{agent, c.HostStats, c.MonitoredLog, c.Secrets, c.OptionalRoutes.EnableDebug || c.AccessControl != nil}
	volumes := &volumeHandler{c.Store, c.Volumes}
	acls := &aclHandler{c.Store, c.AccessControl}
	cluster := &clusterHandler{agent, c.Store, time.Now()}
	schedulerConfig := &schedulerConfigHandler{c.Store, c.Scheduler}
	jobLogs := newJobLogHandler(c.Store, c.Files)
	histories := &historyHandler{agent, c.Store, c.History}

	return []route{
		{"GET", "/v1/jobs", inNamespace(acl.ListJobs), jobs.list, routeDocOfStateRead[[]jobStub]("list jobs", pageParams, "meta")},
		{"PUT POST", "/v1/jobs", ofObject(acl.SubmitJob, acl.RegisterJob), jobWriter.register, routeDocWithBody[registerRequest, jobWriteReply]("register a job")},
		{"PUT POST", "/v1/jobs/parse", inNamespace(acl.ParseJob, acl.SubmitJob), jobWriter.parse, routeDocWithBody[api.JobsParseRequest, api.Job]("parse the text of a job file. With check_config, errors that drivers find in config blocks are errors, with their positions; an addition to Nomad's API", "check_config")},
		{"GET PUT POST", "/v1/jobs/statuses", inNamespace(acl.ReadJob), jobs.statuses, routeDocWithBody[api.JobStatusesRequest, []jobStatus]("list jobs with the statuses of their allocations", pageParams, "include_children")},
		{"GET", "/v1/jobs/health", inNamespace(acl.ReadJob), health.list, routeDocOfStateRead[[]jobHealth]("list the health of all jobs in words, with reasons and remedies; an addition to Nomad's API")},
		{"GET", "/v1/jobs/ports", inNamespace(acl.ReadJob), jobs.ports, routeDocOfStateRead[[]jobPorts]("list the ports of the running allocations of all jobs; an addition to Nomad's API")},
		{"GET", "/v1/jobs/history", inNamespace(acl.ReadJob), histories.jobs, routeDocWithoutBody[jobHistories]("read the CPU and memory usage of jobs in the last hour", "prefix period")},
		{"PUT POST", "/v1/validate/job", ofObject(acl.ReadJob), jobWriter.validate, routeDocWithBody[submittedJob, api.JobValidateResponse]("validate a job")},
		{"GET", "/v1/job/{id...}", inNamespace(acl.ReadJob), jobs.read, routeDocOfStateRead[api.Job]("read a job")},
		{"PUT POST", "/v1/job/{id...}", ofObject(acl.SubmitJob, acl.RegisterJob), jobWriter.register, routeDocWithBody[registerRequest, jobWriteReply]("register a job")},
		{"DELETE", "/v1/job/{id...}", deregisterJob(), jobWriter.deregister, routeDocWithoutBody[api.JobDeregisterResponse]("stop a job", "purge global eval_priority no_shutdown_delay")},
		{"GET", "/v1/job/{id...}/actions", inNamespace(acl.ReadJob), jobs.actions, routeDocOfStateRead[[]jobAction]("list the actions of the tasks of a job")},
		{"GET", jobActionPattern, inNamespace(acl.AllocExec), exec.runJobAction, routeDocOfStream("application/json", "run an action of a job in a task, over a websocket", "task group allocID action tty ws_handshake")},
		{"GET", "/v1/job/{id...}/allocations", inNamespace(acl.ReadJob), jobs.allocations, routeDocOfStateRead[[]allocStub]("list the allocations of a job", "all")},
		{"GET", "/v1/job/{id...}/deployment", inNamespace(acl.ReadJob), jobs.latestDeployment, routeDocOfStateRead[*deploymentView]("read the latest deployment of a job")},
		{"GET", "/v1/job/{id...}/deployments", inNamespace(acl.ReadJob), jobs.deployments, routeDocOfStateRead[[]deploymentView]("list the deployments of a job", "all")},
		{"PUT POST", "/v1/job/{id...}/dispatch", inNamespace(acl.DispatchJob), jobWriter.dispatch, routeDocWithBody[api.JobDispatchRequest, api.JobDispatchResponse]("dispatch a parameterized job", "idempotency_token")},
		{"PUT POST", "/v1/job/{id...}/dispatch/payload", inNamespace(acl.DispatchJob), jobWriter.dispatchBodyAsPayload, routeDocWithoutBody[api.JobDispatchResponse]("dispatch a parameterized job with the request body as its payload", "idempotency_token")},
		{"PUT POST", "/v1/job/{id...}/evaluate", inNamespace(acl.SubmitJob, acl.EvaluateJob), jobWriter.evaluate, routeDocWithBody[api.JobEvaluateRequest, jobWriteReply]("create an evaluation for a job")},
		{"GET", "/v1/job/{id...}/evaluations", inNamespace(acl.ReadJob), jobs.evaluations, routeDocOfStateRead[[]api.Evaluation]("list the evaluations of a job")},
		{"PUT POST", "/v1/job/{id...}/periodic/force", inNamespace(acl.SubmitJob, acl.DispatchJob, acl.ForcePeriodicJob), jobWriter.forcePeriodicLaunch, routeDocWithoutBody[any]("launch a child of a periodic job now")},
		{"PUT POST", "/v1/job/{id...}/plan", ofObject(acl.SubmitJob, acl.PlanJob), jobWriter.plan, routeDocWithBody[planRequest, api.JobPlanResponse]("plan a job: show the changes that its registration would make")},
		{"PUT POST", "/v1/job/{id...}/revert", inNamespace(acl.SubmitJob, acl.RevertJob), jobWriter.revert, routeDocWithBody[api.JobRevertRequest, jobWriteReply]("revert a job to an earlier version")},
		{"GET", "/v1/job/{id...}/health", inNamespace(acl.ReadJob), health.read, routeDocOfStateRead[jobHealth]("read the health of a job in words, with the reason and the remedy; an addition to Nomad's API")},
		{"GET", "/v1/job/{id...}/scale", inNamespace(acl.ReadJob, acl.ReadJobScaling), scaling.status, routeDocOfStateRead[api.JobScaleStatusResponse]("read the task group counts and the scaling events of a job")},
		{"PUT POST", "/v1/job/{id...}/scale", inNamespace(acl.SubmitJob, acl.ScaleJob), scaling.scale, routeDocWithBody[api.ScalingRequest, jobWriteReply]("change the count of a task group")},
		{"GET", "/v1/job/{id...}/history", inNamespace(acl.ReadJob), histories.job, routeDocWithoutBody[history.Series]("read the CPU, memory and disk usage and the restarts of the tasks of a job in the last hours", "period")},
		{"GET", jobLogsPattern, inNamespace(acl.ReadLogs, acl.ReadFS), jobLogs.stream, routeDocOfStream("application/x-ndjson", "read or search the output of all tasks of a job as lines in the order of their arrival, in JSON messages; an addition to Nomad's API", "group task alloc_id type text regexp reverse before from after lines follow")},
		{"GET", "/v1/job/{id...}/services", inNamespace(acl.ReadJob), jobs.services, routeDocOfStateRead[[]api.ServiceRegistration]("list the service registrations of a job")},
		{"PUT POST", "/v1/job/{id...}/stable", inNamespace(acl.SubmitJob, acl.StableJob), jobWriter.setStable, routeDocWithBody[api.JobStabilityRequest, api.JobStabilityResponse]("mark a version of a job as stable or unstable")},
		{"GET", "/v1/job/{id...}/submission", inNamespace(acl.ReadJob), jobs.submission, routeDocOfStateRead[api.JobSubmission]("read the job file from which a version of a job was submitted", "version")},
		{"GET", "/v1/job/{id...}/summary", inNamespace(acl.ReadJob), jobs.summary, routeDocOfStateRead[api.JobSummary]("read the numbers of allocations of a job by status")},
		{"GET", "/v1/job/{id...}/versions", inNamespace(acl.ReadJob), jobs.versions, routeDocOfStateRead[api.JobVersionsResponse]("list the versions of a job", "diffs diff_version diff_tag")},
		{"PUT POST", "/v1/job/{id...}/tag", inNamespace(acl.SubmitJob, acl.TagJobVersion), jobWriter.tagVersion, routeDocWithBody[api.TagVersionRequest, api.JobVersionTag]("tag a version of a job; the path is /v1/job/<job ID>/versions/<tag>/tag")},
		{"DELETE", "/v1/job/{id...}/tag", inNamespace(acl.SubmitJob, acl.TagJobVersion), jobWriter.untagVersion, routeDocWithoutBody[api.JobVersionTag]("remove the tag of a version of a job; the path is /v1/job/<job ID>/versions/<tag>/tag")},
		{"GET", "/v1/scaling/policies", listInNamespace(acl.ListScalingPolicies), scaling.listPolicies, routeDocOfStateRead[[]api.ScalingPolicyListStub]("list scaling policies", "job type prefix")},
		{"GET", "/v1/scaling/policy/{id}", inNamespace(acl.ReadScalingPolicy), scaling.readPolicy, routeDocOfStateRead[api.ScalingPolicy]("read a scaling policy")},

		{"GET", "/v1/allocations", inNamespace(acl.ReadJob), allocs.list, routeDocOfStateRead[[]allocStub]("list allocations", pageParams, "resources task_states")},
		{"GET", "/v1/allocation/{id...}", ofObject(acl.ReadJob), allocs.read, routeDocOfStateRead[api.Allocation]("read an allocation")},
		{"GET", "/v1/allocation/{id}/checks", ofObject(acl.ReadJob), allocs.checks, routeDocWithoutBody[map[string]checkStatus]("read the status of the service checks of an allocation")},
		{"GET", "/v1/allocation/{id}/services", inNamespace(acl.ReadJob), allocs.services, routeDocOfStateRead[[]api.ServiceRegistration]("list the service registrations of an allocation", "filter per_page next_token reverse")},
		{"GET", "/v1/allocation/{id}/timeline", ofObject(acl.ReadJob), allocs.timeline, routeDocOfStateRead[allocTimeline]("read the timeline of an allocation: hook, driver and task operations with their durations, and sentences about them", "format")},
		{"GET", "/v1/allocation/{id}/transitions", ofObject(acl.ReadJob), allocs.transitions, routeDocWithoutBody[tasksteps.AllocTransitions]("read the last transitions of the tasks of an allocation: which step has ended how, and which one follows")},
		{"PUT POST", "/v1/allocation/{id}/stop", ofObject(acl.AllocLifecycle), allocs.stop, routeDocWithoutBody[api.AllocStopResponse]("stop an allocation", "reschedule no_shutdown_delay")},
		{"GET", "/v1/client/transitions", readNodes(), allocs.listTransitions, routeDocWithoutBody[[]tasksteps.AllocTransitions]("list the last transitions of the tasks of all allocations that run or have ended under this agent")},
		{"GET", "/v1/client/allocation/{id}/checks", ofObject(acl.ReadJob), allocs.checks, routeDocWithoutBody[map[string]checkStatus]("read the status of the service checks of an allocation")},
		{"GET", execPattern, ofObject(acl.AllocExec), exec.execTask, routeDocOfStream("application/json", "run a command in a task, over a websocket", "task command tty ws_handshake")},
		{"GET PUT POST", "/v1/client/allocation/{id}/gc", ofObject(acl.SubmitJob, acl.GCAllocation), allocs.gcAllocation, routeDocWithoutBody[any]("garbage collect the directory of a terminal allocation")},
		{"GET PUT POST", "/v1/client/allocation/{id}/pause", ofObject(acl.ReadJob).onWrite(ofObject(acl.SubmitJob, acl.PauseAllocation)), errorHandler(http.StatusInternalServerError, "Enterprise only"), routeDocWithoutBody[noContent]("not supported: pausing tasks requires Nomad Enterprise")},
		{"PUT POST", "/v1/client/allocation/{id}/restart", ofObject(acl.AllocLifecycle), allocs.restart, routeDocWithBody[api.AllocationRestartRequest, replyMeta]("restart one task or all tasks of an allocation")},
		{"PUT POST", "/v1/client/allocation/{id}/signal", ofObject(acl.AllocLifecycle), allocs.signal, routeDocWithBody[api.AllocSignalRequest, replyMeta]("send a signal to one task or all tasks of an allocation")},
		{"GET", snapshotPattern, openToAll(), allocSnapshots.send, routeDocOfStream("application/octet-stream", "read the data of an allocation for another node of the cluster, as a tar archive; requires the token for the migration of the allocation")},
		{"GET", "/v1/client/allocation/{id}/stats", ofObject(acl.ReadJob), allocs.stats, routeDocWithoutBody[api.AllocResourceUsage]("read the CPU, memory and device usage of an allocation", "task")},
		{"GET", "/v1/client/allocation/{id}/history", ofObject(acl.ReadJob), histories.allocation, routeDocWithoutBody[allocHistory]("read the CPU, memory and disk usage and the restarts of an allocation and of its tasks in the last hours", "period")},
		{"GET PUT POST DELETE", "/v1/client/allocation/{id...}", forEachToken(), errorHandler(http.StatusNotFound, "resource not found"), routeDocWithoutBody[noContent]("unknown operation on an allocation: 404")},
		{"GET", "/v1/client/fs/ls/{id}", ofObject(acl.ReadFS), files.list, routeDocWithoutBody[[]api.AllocFileInfo]("list a directory of an allocation", "path")},
		{"GET", "/v1/client/fs/stat/{id}", ofObject(acl.ReadFS), files.stat, routeDocWithoutBody[api.AllocFileInfo]("read the metadata of a file of an allocation", "path")},
		{"GET", "/v1/client/fs/cat/{id}", ofObject(acl.ReadFS), files.read, routeDocOfStream("text/plain", "read a file of an allocation", "path")},
		{"GET", "/v1/client/fs/readat/{id}", ofObject(acl.ReadFS), files.read, routeDocOfStream("text/plain", "read a range of bytes of a file of an allocation", "path offset limit")},
		{"GET", "/v1/client/fs/stream/{id}", ofObject(acl.ReadFS), files.stream, routeDocOfStream("application/json", "stream a file of an allocation", "path origin offset limit follow plain")},
		{"GET", "/v1/client/fs/logs/{id}", ofObject(acl.ReadLogs, acl.ReadFS), files.taskLogs, routeDocOfStream("application/json", "stream the stdout or stderr of a task", "task type origin offset follow plain")},
		{"GET", "/v1/client/fs/{id...}", forEachToken(), files.rejectUnknownOperation, routeDocWithoutBody[noContent]("unknown operation on a file: 404")},
		{"GET PUT", "/v1/client/gc", writeNodes(), allocs.gcAllocations, routeDocWithoutBody[noContent]("garbage collect the directories of all terminal allocations")},
		{"GET", "/v1/client/history", readNodes(), histories.node, routeDocWithoutBody[history.Series]("read the CPU, memory and disk usage of the host in the last hours", "node_id period")},
		{"GET", "/v1/client/stats", readNodes(), agents.readHostStats, routeDocWithoutBody[hoststats.Stats]("read the CPU, memory, disk and device usage of the host", "node_id")},
		{"GET", metadataPath, readNodes(), nodes.readMetadata, routeDocWithoutBody[api.NodeMetaResponse]("read the dynamic and static metadata of the node", "node_id")},
		{"POST", metadataPath, writeNodes(), nodes.setMetadata, routeDocWithBody[api.NodeMetaApplyRequest, api.NodeMetaResponse]("change the dynamic metadata of the node", "node_id")},
		{"GET", "/v1/client/identity", readNodes(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: a node identity requires a cluster")},
		{"POST", "/v1/client/identity/renew", writeNodes(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: a node identity requires a cluster")},

		{"GET", "/v1/evaluations", inNamespace(acl.ReadJob), evals.list, routeDocOfStateRead[[]api.Evaluation]("list evaluations", pageParams, "status job")},
		{"DELETE", "/v1/evaluations", management(), evals.delete, routeDocWithBody[api.EvalDeleteRequest, api.EvalDeleteResponse]("delete evaluations while their processing is paused")},
		{"GET", "/v1/evaluations/count", inNamespace(acl.ReadJob), evals.count, routeDocOfStateRead[evaluationCount]("count evaluations", "filter prefix status job")},
		{"GET", "/v1/evaluation/{id}", inNamespace(acl.ReadJob), evals.read, routeDocOfStateRead[api.Evaluation]("read an evaluation", "related")},
		{"GET", "/v1/evaluation/{id}/allocations", inNamespace(acl.ReadJob), evals.allocations, routeDocOfStateRead[[]allocStub]("list the allocations of an evaluation")},

		{"GET", "/v1/deployments", inNamespace(acl.ReadJob), deployments.list, routeDocOfStateRead[[]deploymentView]("list deployments", pageParams)},
		{"GET", "/v1/deployment/{id}", inNamespace(acl.ReadJob), deployments.read, routeDocOfStateRead[deploymentView]("read a deployment")},
		{"GET", "/v1/deployment/allocations/{id}", inNamespace(acl.ReadJob), deployments.allocations, routeDocOfStateRead[[]allocStub]("list the allocations of a deployment")},
		{"PUT POST", "/v1/deployment/fail/{id}", ofObject(acl.SubmitJob, acl.FailDeployment), deployments.fail, routeDocWithoutBody[api.DeploymentUpdateResponse]("fail a deployment")},
		{"PUT POST", "/v1/deployment/pause/{id}", ofObject(acl.SubmitJob, acl.PauseDeployment), deployments.pause, routeDocWithBody[api.DeploymentPauseRequest, api.DeploymentUpdateResponse]("pause or resume a deployment")},
		{"PUT POST", "/v1/deployment/promote/{id}", ofObject(acl.SubmitJob, acl.PromoteDeployment), deployments.promote, routeDocWithBody[api.DeploymentPromoteRequest, api.DeploymentUpdateResponse]("promote the canaries of a deployment")},
		{"PUT POST", "/v1/deployment/unblock/{id}", ofObject(acl.SubmitJob, acl.UnblockDeployment), deployments.unblock, routeDocWithBody[api.DeploymentUnblockRequest, api.DeploymentUpdateResponse]("unblock a deployment of a multi-region job")},
		{"PUT POST", "/v1/deployment/allocation-health/{id}", ofObject(acl.SubmitJob, acl.SetAllocHealthDeployment), deployments.setAllocationHealth, routeDocWithBody[api.DeploymentAllocHealthRequest, api.DeploymentUpdateResponse]("set the health of allocations of a deployment")},

		{"GET", "/v1/nodes", readNodes(), nodes.list, routeDocOfStateRead[[]nodeStub]("list nodes", pageParams, "os resources")},
		{"GET", "/v1/node/{id}", readNodes(), nodes.read, routeDocOfStateRead[nodeView]("read a node")},
		{"GET", "/v1/node/{id}/allocations", readNodes(), nodes.allocations, routeDocOfStateRead[[]api.Allocation]("list the allocations of a node")},
		{"PUT POST", "/v1/node/{id}/drain", writeNodes(), nodes.drain, routeDocWithBody[api.NodeUpdateDrainRequest, nodeWriteReply]("start or stop draining a node")},
		{"PUT POST", "/v1/node/{id}/eligibility", writeNodes(), nodes.setEligibility, routeDocWithBody[api.NodeUpdateEligibilityRequest, nodeWriteReply]("change the scheduling eligibility of a node")},
		{"PUT POST", "/v1/node/{id}/evaluate", writeNodes(), nodes.acceptEvaluateWithoutEffect, routeDocWithoutBody[nodeWriteReply]("accepted without effect: blocked evaluations are processed when the node changes")},
		{"PUT POST", "/v1/node/{id}/purge", writeNodes(), nodes.rejectPurge, routeDocWithoutBody[noContent]("not supported: the agent's own node cannot be purged")},
		{"GET", "/v1/node/pools", forEachToken(), pools.list, routeDocOfStateRead[[]poolWithHash]("list node pools", pageParams)},
		{"PUT POST", "/v1/node/pools", management(), nodePoolChangeHandler, routeDocWithoutBody[noContent]("not supported: node pools follow from the configuration of the agent")},
		{"GET", "/v1/node/pool/{id}", ofNodePool(), pools.read, routeDocOfStateRead[poolWithHash]("read a node pool")},
		{"PUT POST DELETE", "/v1/node/pool/{id}", management(), nodePoolChangeHandler, routeDocWithoutBody[noContent]("not supported: node pools follow from the configuration of the agent")},
		{"GET", "/v1/node/pool/{id}/nodes", ofNodePool().and(readNodes()), pools.listNodes, routeDocOfStateRead[[]nodeStub]("list the nodes of a node pool", pageParams, "os resources")},
		{"GET", "/v1/node/pool/{id}/jobs", ofNodePool(), pools.listJobs, routeDocOfStateRead[[]jobStub]("list the jobs of a node pool", pageParams, "meta")},

		{"GET", "/v1/services", listServices(), services.list, routeDocOfStateRead[[]api.ServiceRegistrationListStub]("list services by namespace", "prefix")},
		{"GET", "/v1/service/{id...}", readService(), services.read, routeDocOfStateRead[[]api.ServiceRegistration]("list the registrations of a service", pageParams, "choose", "passing")},
		{"DELETE", "/v1/service/{id...}", inNamespace(acl.SubmitJob, acl.DeleteServiceRegistration), services.delete, routeDocWithoutBody[noContent]("delete a service registration; the path is /v1/service/<service name>/<registration ID>")},
		{"GET DELETE", "/v1/service/", forEachToken(), services.rejectMissingName, routeDocWithoutBody[noContent]("error: the path lacks the name of the service")},
		{"GET", "/v1/vars", forEachToken(), vars.list, routeDocOfStateRead[[]api.VariableMetadata]("list the metadata of variables, without their items", pageParams)},
		{"GET", "/v1/var/{id...}", ofVariable(acl.Read), vars.read, routeDocOfStateRead[api.Variable]("read a variable")},
		{"PUT POST", "/v1/var/{id...}", ofVariable(acl.Write), vars.put, routeDocWithBody[api.Variable, api.Variable]("write a variable, or acquire, renew or release its lock", "cas lock-acquire lock-renew lock-release")},
		{"DELETE", "/v1/var/{id...}", ofVariable(acl.Destroy), vars.delete, routeDocWithoutBody[noContent]("delete a variable", "cas")},
		{"PATCH OPTIONS", "/v1/var/{id...}", forEachToken(), vars.rejectMethod, routeDocWithoutBody[noContent]("error: the method is not supported")},
		{"GET PUT POST DELETE", "/v1/var/", forEachToken(), vars.rejectMissingPath, routeDocWithoutBody[noContent]("error: the URL lacks the path of the variable")},
		{"GET", "/v1/namespaces", forEachToken(), namespaces.list, routeDocOfStateRead[[]namespaceWithHash]("list namespaces", pageParams)},
		{"PUT POST", "/v1/namespace", management(), namespaces.put, routeDocWithBody[api.Namespace, noContent]("create or update a namespace")},
		{"GET", "/v1/namespace/{id}", ofNamespace(), namespaces.read, routeDocOfStateRead[namespaceWithHash]("read a namespace")},
		{"PUT POST", "/v1/namespace/{id}", management(), namespaces.put, routeDocWithBody[api.Namespace, noContent]("create or update a namespace")},
		{"DELETE", "/v1/namespace/{id}", management(), namespaces.delete, routeDocWithoutBody[noContent]("delete an empty namespace")},

		{"PUT POST", "/v1/search", forEachToken(), search.searchPrefix, routeDocWithBody[api.SearchRequest, api.SearchResponse]("search for objects by a prefix of the ID or name")},
		{"PUT POST", "/v1/search/fuzzy", forEachToken(), search.searchFuzzy, routeDocWithBody[api.FuzzySearchRequest, api.FuzzySearchResponse]("search for objects by a part of the name")},
		{"GET", eventsPath, forEachToken(), events.streamEvents, routeDocOfStream("application/json", "stream events", "topic index latest compact")},

		{"GET", "/v1/agent/conditions", readAgents(), agents.readConditions, routeDocWithoutBody[conditions.Report]("list what is wrong with the agent and its machine, with remedies; an addition to Nomad's API")},
		{"GET", "/v1/agent/health", openToAll(), agents.health, routeDocWithoutBody[map[conditions.Part]componentHealth]("read the health of the agent; status 500 if it is unhealthy", "type")},
		{"GET", "/v1/agent/host", readAgents(), debug.readHostData, routeDocWithoutBody[api.HostDataResponse]("read host data for troubleshooting; requires enable_debug")},
		{"GET", "/v1/agent/members", readNodes(), agents.members, routeDocWithoutBody[serfMembers]("list the members of the cluster: only this agent")},
		{"GET", "/v1/agent/monitor", readAgents(), debug.monitor, routeDocOfStream("application/json", "stream the log of the agent", "log_level log_json log_include_location plain node_id server_id")},
		{"GET", "/v1/agent/pprof/{id}", writeAgents(), debug.profile, routeDocOfStream("application/octet-stream", "read a pprof profile of the agent; requires enable_debug", "seconds debug gc node_id server_id")},
		{"PUT POST", loginPath, openToAll(), login.exchangeSecretForToken, routeDocWithoutBody[loginTokenReply]("exchange a one-time login secret for the API token")},
		{"PUT POST", loginPath + "/secret", management(), login.createSecret, routeDocWithoutBody[loginSecretReply]("create a one-time login secret for a browser")},
		{"GET", agentproof.Path, openToAll(), proofs.prove, routeDocWithoutBody[agentproof.ConnectionProof]("prove that the agent knows a token, with a MAC over a nonce and the addresses of the connection; an addition to Nomad's API", "key nonce")},
		{"GET", "/v1/agent/plugins", readAgents(), plugins.list, routeDocWithoutBody[any]("list the plugins and hooks of the agent", "index wait")},
		{"PUT POST", "/v1/agent/plugins/{id}/restart", writeAgents(), plugins.restart, routeDocWithoutBody[noContent]("restart the process of a plugin; tasks continue")},
		{"PUT POST", "/v1/agent/reload", writeAgents(), agents.reloadConfig, routeDocWithoutBody[noContent]("reload the configuration")},
		{"GET", "/v1/agent/self", readAgents(), agents.readSelf, routeDocWithoutBody[agentSelfReply]("read the configuration and the runtime statistics of the agent")},
		{"GET", "/v1/metrics", readAgents(), metrics.read, routeDocWithoutBody[api.MetricsSummary]("read the metrics of the agent", "format")},
		{"GET", "/v1/openapi.json", openToAll(), a.serveOpenAPI, routeDocWithoutBody[any]("read this OpenAPI document")},
		{"GET", "/v1/regions", openToAll(), agents.regions, routeDocWithoutBody[[]string]("list regions")},
		{"GET", "/v1/status/leader", openToAll(), agents.leader, routeDocWithoutBody[string]("read the RPC address of the leader: this agent")},
		{"GET", "/v1/status/peers", openToAll(), agents.peers, routeDocWithoutBody[[]string]("list the RPC addresses of the servers: only this agent")},
		{"PUT", "/v1/system/gc", management(), agents.forceGC, routeDocWithoutBody[noContent]("force garbage collection of terminal jobs, evaluations, deployments and allocations")},
		{"PUT", "/v1/system/reconcile/summaries", management(), constantHandler(noContent{}), routeDocWithoutBody[noContent]("accepted without effect: job summaries are computed at each request")},
		{"GET", keySetPath, openToAll(), identities.keySet, routeDocWithoutBody[identity.KeySet]("read the JSON Web Key Set that verifies workload identity tokens")},
		{"GET", discoveryPath, openToAll(), identities.readDiscoveryDocument, routeDocWithoutBody[oidcDiscoveryDocument]("read the OpenID Connect discovery document")},
		{"GET", "/", openToAll(), redirectToUI, routeDocOfStream("text/html", "redirect to the web UI")},
		{"GET", "/ui/", openToAll(), a.serveWebUI, routeDocOfStream("text/html", "serve the web UI")},
		{"GET", "/ui/{id...}", openToAll(), a.serveWebUI, routeDocOfStream("text/html", "serve the web UI")},

		// These routes have the same reply on all single-server agents: see cluster_stubs.go.
		{"PUT POST", "/v1/acl/bootstrap", openToAll(), acls.ifEnabled(acls.bootstrap), routeDocWithBody[api.BootstrapRequest, tokenView]("create the first management token; a second time needs the reset file")},
		{"GET", "/v1/acl/policies", forEachToken(), acls.ifEnabled(acls.listPolicies), routeDocOfStateRead[[]policyStub]("list the ACL policies that the token may read", "prefix")},
		{"GET", "/v1/acl/policy/self", forEachToken(), acls.ifEnabled(acls.listOwnPolicies), routeDocOfStateRead[[]policyStub]("list the ACL policies of the token")},
		{"GET PUT POST DELETE", "/v1/acl/policy/", forEachToken(), acls.ifEnabled(acls.rejectMissingPolicyName), routeDocWithoutBody[noContent]("error: the path lacks the name of the policy")},
		{"GET", "/v1/acl/policy/{id...}", forEachToken(), acls.ifEnabled(acls.readPolicy), routeDocOfStateRead[policyView]("read an ACL policy")},
		{"PUT POST", "/v1/acl/policy/{id...}", management(), acls.ifEnabled(acls.putPolicy), routeDocWithBody[api.ACLPolicy, noContent]("create or update an ACL policy")},
		{"DELETE", "/v1/acl/policy/{id...}", management(), acls.ifEnabled(acls.deletePolicy), routeDocWithoutBody[noContent]("delete an ACL policy")},
		{"GET", "/v1/acl/tokens", management(), acls.ifEnabled(acls.listTokens), routeDocOfStateRead[[]tokenStub]("list ACL tokens, without their secrets", pageParams, "global")},
		{"PUT POST", "/v1/acl/token", management(), acls.ifEnabled(acls.putToken), routeDocWithBody[api.ACLToken, tokenView]("create an ACL token")},
		{"GET PUT POST DELETE", "/v1/acl/token/", forEachToken(), acls.ifEnabled(acls.rejectMissingAccessor), routeDocWithoutBody[noContent]("error: the path lacks the accessor ID of the token")},
		{"GET", tokenSelfPath, forEachToken(), acls.describeRequestToken, routeDocWithoutBody[api.ACLToken]("read the ACL token of the request")},
		{"GET", tokenRightsPath, forEachToken(), acls.readOwnRights, routeDocWithoutBody[tokenRights]("list what the token of the request permits; an addition to Nomad's API")},
		{"PUT POST", "/v1/acl/token/onetime", forEachToken(), acls.ifEnabled(acls.createOneTimeToken), routeDocWithoutBody[oneTimeTokenReply]("create a one-time token, which can be exchanged once for the token of the request")},
		{"PUT POST", "/v1/acl/token/onetime/exchange", openToAll(), acls.ifEnabled(acls.exchangeOneTimeToken), routeDocWithBody[api.OneTimeTokenExchangeRequest, exchangedTokenReply]("exchange a one-time token for the token for which it stands")},
		{"GET", "/v1/acl/token/{id}", forEachToken(), acls.ifEnabled(acls.readToken), routeDocOfStateRead[tokenView]("read an ACL token with its secret")},
		{"PUT POST", "/v1/acl/token/{id}", management(), acls.ifEnabled(acls.putToken), routeDocWithBody[api.ACLToken, tokenView]("update an ACL token")},
		{"DELETE", "/v1/acl/token/{id}", management(), acls.ifEnabled(acls.deleteToken), routeDocWithoutBody[noContent]("delete an ACL token")},
		{"GET", "/v1/acl/roles", forEachToken(), acls.ifEnabled(acls.listRoles), routeDocOfStateRead[[]roleView]("list the ACL roles that the token may read", "prefix")},
		{"PUT POST", "/v1/acl/role", management(), acls.ifEnabled(acls.putRole), routeDocWithBody[api.ACLRole, roleView]("create an ACL role")},
		{"GET", "/v1/acl/role/name/{id}", forEachToken(), acls.ifEnabled(acls.readRoleByName), routeDocOfStateRead[roleView]("read the ACL role with a name")},
		{"GET", "/v1/acl/role/{id}", forEachToken(), acls.ifEnabled(acls.readRole), routeDocOfStateRead[roleView]("read an ACL role")},
		{"PUT POST", "/v1/acl/role/{id}", management(), acls.ifEnabled(acls.putRole), routeDocWithBody[api.ACLRole, roleView]("update an ACL role")},
		{"DELETE", "/v1/acl/role/{id}", management(), acls.ifEnabled(acls.deleteRole), routeDocWithoutBody[noContent]("delete an ACL role")},
		{"GET PUT POST DELETE", "/v1/acl/{id...}", openToAll(), acls.ifEnabled(acls.rejectUnknown), routeDocWithoutBody[noContent]("not supported: auth methods, binding rules and logins")},
		{"PUT POST", "/v1/agent/force-leave", writeAgents(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: clustering")},
		{"PUT POST", "/v1/agent/join", openToAll(), constantHandler(agentJoinReply{Error: "clustering is not supported"}), routeDocWithoutBody[agentJoinReply]("not supported: clustering")},
		{"GET PUT POST DELETE", "/v1/agent/keyring/{id...}", writeAgents(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: gossip encryption keys")},
		{"GET", "/v1/agent/monitor/export", readAgents(), errorHandler(http.StatusBadRequest, "the log of this agent is not kept: it goes to standard error"), routeDocWithoutBody[noContent]("not supported: the agent does not store its log")},
		{"GET", "/v1/agent/schedulers", readAgents(), cluster.listSchedulerWorkers, routeDocWithoutBody[api.AgentSchedulerWorkersInfo]("list the scheduler workers of the agent")},
		{"GET", "/v1/agent/schedulers/config", readAgents(), cluster.readSchedulerWorkerConfig, routeDocWithoutBody[api.AgentSchedulerWorkerConfigResponse]("read the configuration of the scheduler workers")},
		{"PUT POST", "/v1/agent/schedulers/config", writeAgents(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: changing the number of scheduler workers")},
		{"GET", "/v1/agent/servers", readAgents(), agents.servers, routeDocWithoutBody[[]string]("list the RPC addresses of the servers of this client")},
		{"PUT POST", "/v1/agent/servers", writeAgents(), constantHandler(noContent{}), routeDocWithoutBody[noContent]("accepted without effect: change the servers of this client", "address")},
		{"GET", "/v1/operator/autopilot/configuration", readOperator(), cluster.autopilotConfiguration, routeDocWithoutBody[any]("read the Autopilot configuration")},
		{"PUT POST", "/v1/operator/autopilot/configuration", writeOperator(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: changing the Autopilot configuration")},
		{"GET", "/v1/operator/autopilot/health", readOperator(), cluster.autopilotHealth, routeDocWithoutBody[any]("read the Autopilot health of the servers")},
		{"GET", "/v1/operator/keyring/keys", asOperator(acl.KeyringRead), keyring.list, routeDocWithoutBody[[]api.RootKeyMeta]("list the encryption keys of the keyring")},
		{"PUT POST", "/v1/operator/keyring/rotate", asOperator(acl.KeyringRotate), keyring.rotate, routeDocWithoutBody[keyRotationReply]("rotate the active encryption key of the keyring", "full algo publish_time")},
		{"DELETE", "/v1/operator/keyring/key/{id}", asOperator(acl.KeyringDelete), keyring.remove, routeDocWithoutBody[noContent]("remove an encryption key from the keyring", "force")},
		{"GET", "/v1/operator/license", openToAll(), replyNoLicense, routeDocWithoutBody[noContent]("read the Enterprise license: there is none")},
		{"PUT POST", "/v1/operator/license", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: Enterprise licenses")},
		{"GET", "/v1/operator/raft/configuration", management(), cluster.raftConfiguration, routeDocWithoutBody[api.RaftConfiguration]("read the Raft configuration: this agent is the only server")},
		{"GET PUT POST DELETE", "/v1/operator/raft/{id...}", management(), noClusterHandler, routeDocWithoutBody[noContent]("not supported: changing Raft peers")},
		{"GET", "/v1/operator/scheduler/configuration", readOperator(), schedulerConfig.read, routeDocOfStateRead[api.SchedulerConfigurationResponse]("read the scheduler configuration")},
		{"PUT POST", "/v1/operator/scheduler/configuration", writeOperator(), schedulerConfig.put, routeDocWithBody[api.SchedulerConfiguration, api.SchedulerSetConfigurationResponse]("update the scheduler configuration", "cas")},
		{"GET", "/v1/operator/snapshot", asOperator(acl.SnapshotSave), snapshots.read, routeDocOfStream("application/x-gzip", "read a snapshot of the state, with the keys of the variables unless without_keys is true", "stale without_keys")},
		{"PUT POST", "/v1/operator/snapshot", management(), errorHandler(http.StatusNotImplemented, "a running agent cannot be restored: stop it, and use nomad-lite operator snapshot restore"), routeDocWithoutBody[noContent]("not supported: restoring a running agent")},
		{"GET", "/v1/operator/upgrade-check/vault-workload-identity", readOperator(), constantHandler(vaultUpgradeObstacles{[]string{}, []string{}, []string{}}), routeDocWithoutBody[vaultUpgradeObstacles]("list the jobs, nodes and tokens that an upgrade to Vault workload identities affects: none")},
		{"GET POST", "/v1/operator/utilization", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: utilization reports require Nomad Enterprise")},
		{"GET", "/v1/plugins", listPlugins(), constantHandler([]any{}), routeDocWithoutBody[[]any]("list CSI plugins: there are none", "type")},
		{"GET", "/v1/plugin/csi/{id...}", readPlugins(), errorHandler(http.StatusNotFound, "plugin not found"), routeDocWithoutBody[noContent]("read a CSI plugin: there are none")},
		{"GET PUT POST DELETE", "/v1/quota", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/quota/{id...}", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET", "/v1/quota-usages", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET", "/v1/quotas", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: quotas require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/recommendation", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/recommendation/{id...}", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST", "/v1/recommendations", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST", "/v1/recommendations/apply", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: recommendations require Nomad Enterprise")},
		{"GET PUT POST DELETE", "/v1/sentinel/{id...}", openToAll(), noEnterpriseHandler, routeDocWithoutBody[noContent]("not supported: Sentinel policies require Nomad Enterprise")},
		{"GET", "/v1/volumes", listVolumes(), volumes.list, routeDocOfStateRead[[]api.HostVolumeStub]("list host volumes; there are no CSI volumes", pageParams, "type node_id node_pool")},
		{"GET", "/v1/volumes/claims", inNamespace(acl.HostVolumeRead), volumes.claims, routeDocOfStateRead[[]api.TaskGroupHostVolumeClaim]("list the claims of task groups on sticky host volumes", pageParams, "job_id task_group volume_name")},
		{"DELETE", "/v1/volumes/claim/{id}", inNamespace(acl.HostVolumeDelete), volumes.deleteClaim, routeDocWithoutBody[noContent]("delete a claim on a sticky host volume")},
		{"GET PUT POST DELETE", "/v1/volumes/{id}", inNamespace(acl.CSIListVolume, acl.CSIReadVolume, acl.CSIMountVolume, acl.ListJobs), noCSIHandler, routeDocWithoutBody[noContent]("not supported: CSI volumes")},
		{"PUT POST", "/v1/volume/host/create", ofObject(acl.HostVolumeCreate), volumes.create, routeDocWithBody[api.HostVolumeCreateRequest, api.HostVolumeCreateResponse]("create or update a host volume with a volume plugin")},
		{"PUT POST", "/v1/volume/host/register", ofObject(acl.HostVolumeRegister), volumes.register, routeDocWithBody[api.HostVolumeRegisterRequest, api.HostVolumeRegisterResponse]("register or update an existing directory as a host volume")},
		{"GET", "/v1/volume/host/{id}", inNamespace(acl.HostVolumeRead), volumes.read, routeDocOfStateRead[api.HostVolume]("read a host volume")},
		{"DELETE", "/v1/volume/host/{id}", inNamespace(acl.HostVolumeDelete), volumes.delete, routeDocWithoutBody[replyMeta]("delete a host volume", "force")},
		{"GET", "/v1/volume/{id...}", inNamespace(acl.CSIReadVolume, acl.CSIMountVolume, acl.ReadJob), errorHandler(http.StatusNotFound, "volume not found"), routeDocWithoutBody[noContent]("read a CSI volume: there are none")},
		{"PUT POST DELETE", "/v1/volume/{id...}", inNamespace(acl.CSIWriteVolume), noCSIHandler, routeDocWithoutBody[noContent]("not supported: CSI volumes")},
	}
}

// publicPaths are the paths, besides those of the web page, that need no token. loginPath needs a one-time secret instead.
var publicPaths = map[string]bool{"/v1/agent/health": true, agentproof.Path: true, loginPath: true}

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
	return slices.Contains(strings.Fields(r.spaceSeparatedMethods), method)
}

// patternLengthWithoutVariable returns the length of the pattern without its variables.
func (r route) patternLengthWithoutVariable() int {
	before, rest, _ := strings.Cut(r.pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	return len(before) + len(after)
}

// findRoute returns the most specific route for a path, and the id in the path. methodAllowed reports whether the
// route supports the method, pathExists whether any route has the path.
func findRoute(routes []route, method, path string) (best route, id string, methodAllowed, pathExists bool) {
	most := -1
	for _, rt := range routes {
		value, ok := rt.matchPath(path)
		if !ok || rt.patternLengthWithoutVariable() < most || methodAllowed && rt.patternLengthWithoutVariable() == most {
			continue
		}
		most, best, id, methodAllowed = rt.patternLengthWithoutVariable(), rt, value, rt.allowsMethod(method)
	}
	return best, id, methodAllowed, most >= 0
}
