package httpapi

import (
	"net/http"
	"reflect"

	"github.com/hashicorp/nomad/api"
)

// readOnlyRoutes are the patterns of the routes that the read-only token may use, with GET and
// HEAD only. The value reports whether filters are allowed: a filter sees the complete stored
// object, and would disclose hidden fields bit by bit.
var readOnlyRoutes = map[string]bool{
	"/v1/jobs":                        false,
	"/v1/jobs/health":                 false,
	"/v1/jobs/ports":                  false,
	"/v1/job/{id...}":                 false,
	"/v1/job/{id...}/allocations":     false,
	"/v1/job/{id...}/deployment":      false,
	"/v1/job/{id...}/deployments":     true,
	"/v1/job/{id...}/evaluations":     true,
	"/v1/job/{id...}/health":          false,
	"/v1/job/{id...}/scale":           false,
	"/v1/job/{id...}/services":        true,
	"/v1/job/{id...}/summary":         false,
	"/v1/allocations":                 false,
	"/v1/allocation/{id...}":          false,
	"/v1/allocation/{id}/services":    true,
	"/v1/evaluations":                 true,
	"/v1/evaluations/count":           true,
	"/v1/evaluation/{id}":             true,
	"/v1/evaluation/{id}/allocations": false,
	"/v1/deployments":                 true,
	"/v1/deployment/{id}":             true,
	"/v1/deployment/allocations/{id}": false,
	"/v1/nodes":                       false,
	"/v1/node/{id}":                   false,
	"/v1/node/{id}/allocations":       false,
	"/v1/services":                    true,
	"/v1/service/{id...}":             true,
	eventsPath:                        false,
	"/v1/agent/conditions":            false,
	"/v1/agent/health":                false,
	"/v1/metrics":                     false,
	"/v1/openapi.json":                false,
	tokenSelfPath:                     false,
	tokenRightsPath:                   false,
	"/v1/regions":                     false,
	"/v1/status/leader":               false,
	"/v1/status/peers":                false,
}

// readOnlyTopics are the topics of events that the read-only token may read.
var readOnlyTopics = map[api.Topic]bool{
	api.TopicJob: true, api.TopicAllocation: true, api.TopicEvaluation: true, api.TopicDeployment: true, api.TopicNode: true, api.TopicService: true,
}

// readOnlyShownFields lists, by JSON name, the fields of some types that the read-only token may read.
// Other fields of these types appear unset: a field that a newer version of the API adds is hidden until it
// is listed here.
var readOnlyShownFields = map[reflect.Type][]string{
	reflect.TypeFor[api.Job](): {
		"Region", "Namespace", "ID", "Name", "Type", "Priority", "AllAtOnce", "Datacenters", "NodePool", "TaskGroups", "Update", "Periodic",
		"ParameterizedJob", "Stop", "ParentID", "Dispatched", "Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex",
		"ModifyIndex", "JobModifyIndex",
	},
	reflect.TypeFor[api.TaskGroup](): {
		"Name", "Count", "Tasks", "RestartPolicy", "Disconnect", "ReschedulePolicy", "EphemeralDisk", "Update", "Migrate", "Networks", "Services",
		"ShutdownDelay", "MaxRunDuration",
	},
	reflect.TypeFor[api.Task](): {
		"Name", "Driver", "User", "Lifecycle", "Services", "Resources", "RestartPolicy", "KillTimeout", "LogConfig", "Leader", "ShutdownDelay",
		"KillSignal", "Kind",
	},
	reflect.TypeFor[api.Service](): {
		"Name", "Tags", "CanaryTags", "EnableTagOverride", "PortLabel", "AddressMode", "Address", "TaskName", "OnUpdate", "Provider", "Cluster",
		"Namespace",
	},
	// Other fields of a task event have texts of drivers, hooks and downloads, which may quote the job.
	reflect.TypeFor[api.TaskEvent](): {
		"Type", "Time", "FailsTask", "ExitCode", "Signal", "KillTimeout", "StartDelay", "DiskLimit",
	},
	reflect.TypeFor[compactTaskEvent](): {"Type", "Time"},
}

// readOnlyHiddenFields lists the fields that the read-only token may not read, for types that are not in
// readOnlyShownFields.
var readOnlyHiddenFields = map[reflect.Type][]string{
	reflect.TypeFor[jobStub]():             {"Meta", "Multiregion"},
	reflect.TypeFor[jobHealth]():           {"Reason", "Remedy"}, // texts of drivers, hooks and tasks, which may quote the job
	reflect.TypeFor[api.NetworkResource](): {"CNI"},
	reflect.TypeFor[nodeView]():            {"Meta", "Links", "Events"},
	reflect.TypeFor[api.ScalingEvent]():    {"Meta", "Message"},
}

// hasOnlyReadOnlyToken reports whether the read-only token is the only authentication of a request.
func (p *accessPolicy) hasOnlyReadOnlyToken(r *http.Request) bool {
	if p.needsNoTokenForRequest(r) || p.readToken == "" {
		return false
	}
	token := requestToken(r)
	return equalSecrets(token, string(p.readToken)) && !equalSecrets(token, string(p.operatorToken))
}

// checkReadOnlyTokenAccess rejects a request that the read-only token does not permit.
func (r *request) checkReadOnlyTokenAccess(method string, rt route) error {
	filters, known := readOnlyRoutes[rt.pattern]
	_, filter := r.query["filter"]
	switch {
	case !known || method != http.MethodGet:
		return &statusError{http.StatusForbidden, "Permission denied: the read-only token does not open this"}
	case filter && !filters:
		return &statusError{http.StatusForbidden, "Permission denied: the read-only token cannot filter this"}
	}
	return nil
}
