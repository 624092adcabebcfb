package httpapi

import (
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/agent/ui"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Requests that only a cluster or Nomad Enterprise can serve get a reply that lets clients continue:
// the state of a cluster of one server, or a short error.

// clusterHandler describes the agent as a cluster of one server.
type clusterHandler struct {
	agent     *localAgent
	store     *store.Store
	startTime time.Time
}

// constantHandler returns a handler that always replies with value.
func constantHandler(value any) func(*request) (any, error) {
	return func(*request) (any, error) { return value, nil }
}

// errorHandler returns a handler that always replies with a status code and a text.
func errorHandler(code int, text string) func(*request) (any, error) {
	return func(*request) (any, error) { return nil, &statusError{code, text} }
}

var (
	noClusterHandler      = errorHandler(http.StatusNotImplemented, "this agent is not part of a cluster")
	noCSIHandler          = errorHandler(http.StatusNotImplemented, "there are no CSI volumes here: use a host volume")
	noEnterpriseHandler   = errorHandler(http.StatusNotImplemented, "Nomad Enterprise only endpoint")
	nodePoolChangeHandler = errorHandler(http.StatusNotImplemented, "node pools cannot be changed: set the pool of the only node with node_pool in the client block of its configuration")
	noACLHandler          = errorHandler(http.StatusBadRequest, "ACL support disabled")
)

// agentJoinReply is the reply of the route /v1/agent/join, which cannot join other agents here.
type agentJoinReply struct {
	Number  int    `json:"num_joined"`
	Error   string `json:"error"`
	Warning string `json:"warning"`
}

// anonymousToken is the token of all clients if ACLs are disabled.
var anonymousToken = api.ACLToken{AccessorID: "acls-disabled", Name: "ACLs disabled token", Type: "client"}

// tokenSelfPath is the path of the route that describes the token of the client.
const tokenSelfPath = "/v1/acl/token/self"

// tokenRightsPath is the path of the route that lists what the token of the client permits.
const tokenRightsPath = "/v1/acl/token/self/rights"

// readOnlyTokenID is the AccessorID of the read-only token.
const readOnlyTokenID = "read-only"

// describeRequestToken describes the token of the client. A client with all rights gets the reply of Nomad without ACLs.
func (h *aclHandler) describeRequestToken(r *request) (any, error) {
	if h.control != nil {
		return h.readOwnToken(r)
	}
	if r.rights.workload != nil {
		return nil, errPermissionDenied
	}
	if r.rights.isReadOnly {
		return api.ACLToken{AccessorID: readOnlyTokenID, Name: "read-only token", Type: "client"}, nil
	}
	return anonymousToken, nil
}

// schedulerTypes are the names of the schedulers that a job can use.
var schedulerTypes = []string{api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch}

func (h *clusterHandler) listSchedulerWorkers(*request) (any, error) {
	return api.AgentSchedulerWorkersInfo{ServerID: h.agent.nodeID, Schedulers: []api.AgentSchedulerWorkerInfo{{
		ID: h.agent.nodeID, EnabledSchedulers: schedulerTypes, Started: h.startTime.UTC().Format(time.RFC3339Nano),
		Status: "WaitingToDequeue", WorkloadStatus: "Waiting",
	}}}, nil
}

func (h *clusterHandler) readSchedulerWorkerConfig(*request) (any, error) {
	return api.AgentSchedulerWorkerConfigResponse{ServerID: h.agent.nodeID, NumSchedulers: 1, EnabledSchedulers: schedulerTypes}, nil
}

func (h *clusterHandler) raftConfiguration(*request) (any, error) {
	return api.RaftConfiguration{Index: 1, Servers: []*api.RaftServer{{
		ID: h.agent.nodeID, Node: h.agent.newSerfMember().Name, Address: h.agent.fakeRPCHostPort(), Leader: true, Voter: true, RaftProtocol: "3",
	}}}, nil
}

// autopilotConfiguration returns Nomad's default configuration of Autopilot.
func (h *clusterHandler) autopilotConfiguration(*request) (any, error) {
	return jsonObject{
		"CleanupDeadServers": true, "LastContactThreshold": "200ms", "MaxTrailingLogs": 250, "MinQuorum": 0,
		"ServerStabilizationTime": "10s", "EnableRedundancyZones": false, "DisableUpgradeMigration": false,
		"EnableCustomUpgrades": false, "CreateIndex": 1, "ModifyIndex": 1,
	}, nil
}

func (h *clusterHandler) autopilotHealth(*request) (any, error) {
	return jsonObject{
		"Healthy": true, "FailureTolerance": 0, "Leader": h.agent.nodeID, "Voters": []string{h.agent.nodeID},
		"Servers": []jsonObject{{
			"ID": h.agent.nodeID, "Name": h.agent.newSerfMember().Name, "Address": h.agent.fakeRPCHostPort(), "SerfStatus": "alive", "Version": h.agent.nomadAPIVersion,
			"Leader": true, "Voter": true, "Healthy": true, "StableSince": h.startTime, "LastContact": "0s", "LastTerm": 1,
			"LastIndex": h.store.Index(),
		}},
	}, nil
}

// replyNoLicense replies without a body, which clients interpret as "no license".
func replyNoLicense(r *request) (any, error) {
	r.isReplyWritten = true
	r.w.WriteHeader(http.StatusNoContent)
	return nil, nil
}

// vaultUpgradeObstacles lists the obstacles to an upgrade of the Vault integration.
type vaultUpgradeObstacles struct {
	JobsWithoutVaultIdentity, OutdatedNodes, VaultTokens []string
}

// redirectToUI redirects browsers to the web page.
func redirectToUI(r *request) (any, error) {
	r.isReplyWritten = true
	to := "/ui/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	r.w.Header().Set("Location", to)
	r.w.WriteHeader(http.StatusTemporaryRedirect)
	return nil, nil
}

// serveWebUI replies with a file or the HTML of the web page.
func (a *API) serveWebUI(r *request) (any, error) {
	if a.config.OptionalRoutes.DisableWebPage {
		return nil, notFoundError("the web page is disabled in the configuration of the agent: ui { enabled = false }")
	}
	r.isReplyWritten = true
	ui.Serve(r.w, r.Request, acceptsGzip(r.Request), a.config.OptionalRoutes.WebPageLabel)
	return nil, nil
}
