package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Requests that only a cluster or Nomad Enterprise can serve get a reply with which clients
// continue: the state of a cluster of one server, or a short error.

// fixed returns a route with a constant reply.
func fixed(value any) func(*API, *request) (any, error) {
	return func(*API, *request) (any, error) { return value, nil }
}

// refused returns a route that replies with an error.
func refused(code int, text string) func(*API, *request) (any, error) {
	return func(*API, *request) (any, error) { return nil, &statusError{code, text} }
}

var (
	noCluster    = refused(http.StatusNotImplemented, "this agent is not part of a cluster")
	noVolumes    = refused(http.StatusNotImplemented, "volumes cannot be made here")
	noEnterprise = refused(http.StatusNotImplemented, "Nomad Enterprise only endpoint")
	changePools  = refused(http.StatusNotImplemented, "node pools cannot be changed: that of the only node is set by node_pool in the client block of its configuration")
	noACL        = refused(http.StatusBadRequest, "ACL support disabled")
)

// joined is the reply to a request to join other agents.
type joined struct {
	Number  int    `json:"num_joined"`
	Error   string `json:"error"`
	Warning string `json:"warning"`
}

// anonymous is the token of all clients if ACLs are disabled.
var anonymous = api.ACLToken{AccessorID: "acls-disabled", Name: "ACLs disabled token", Type: "client"}

// listVolumes returns an empty list for CSI and host volumes.
func (a *API) listVolumes(r *request) (any, error) {
	switch r.query.Get("type") {
	case "", "csi", "host":
		return []any{}, nil
	}
	return nil, notFound("resource not found")
}

// schedulers are the names of the schedulers that a job can use.
var schedulers = []string{api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch}

func (a *API) listSchedulers(*request) (any, error) {
	return api.AgentSchedulerWorkersInfo{ServerID: a.config.NodeID, Schedulers: []api.AgentSchedulerWorkerInfo{{
		ID: a.config.NodeID, EnabledSchedulers: schedulers, Started: a.started.UTC().Format(time.RFC3339Nano),
		Status: "WaitingToDequeue", WorkloadStatus: "Waiting",
	}}}, nil
}

func (a *API) configureSchedulers(*request) (any, error) {
	return api.AgentSchedulerWorkerConfigResponse{ServerID: a.config.NodeID, NumSchedulers: 1, EnabledSchedulers: schedulers}, nil
}

// schedulerConfiguration returns the scheduling algorithm of this agent.
func (a *API) schedulerConfiguration(*request) (any, error) {
	return struct {
		SchedulerConfig api.SchedulerConfiguration
		meta
	}{api.SchedulerConfiguration{
		SchedulerAlgorithm: api.SchedulerAlgorithmBinpack, PreemptionConfig: api.PreemptionConfig{SystemSchedulerEnabled: true},
	}, meta{Index: 1, KnownLeader: true}}, nil
}

func (a *API) raftConfiguration(*request) (any, error) {
	return api.RaftConfiguration{Index: 1, Servers: []*api.RaftServer{{
		ID: a.config.NodeID, Node: a.self().Name, Address: a.rpcText(), Leader: true, Voter: true, RaftProtocol: "3",
	}}}, nil
}

// autopilotConfiguration returns Nomad's defaults.
func (a *API) autopilotConfiguration(*request) (any, error) {
	return object{
		"CleanupDeadServers": true, "LastContactThreshold": "200ms", "MaxTrailingLogs": 250, "MinQuorum": 0,
		"ServerStabilizationTime": "10s", "EnableRedundancyZones": false, "DisableUpgradeMigration": false,
		"EnableCustomUpgrades": false, "CreateIndex": 1, "ModifyIndex": 1,
	}, nil
}

func (a *API) autopilotHealth(*request) (any, error) {
	return object{
		"Healthy": true, "FailureTolerance": 0, "Leader": a.config.NodeID, "Voters": []string{a.config.NodeID},
		"Servers": []object{{
			"ID": a.config.NodeID, "Name": a.self().Name, "Address": a.rpcText(), "SerfStatus": "alive", "Version": a.config.Version,
			"Leader": true, "Voter": true, "Healthy": true, "StableSince": a.started, "LastContact": "0s", "LastTerm": 1,
			"LastIndex": a.config.Store.Index(),
		}},
	}, nil
}

// noLicense replies without a body, which clients interpret as "none".
func (a *API) noLicense(r *request) (any, error) {
	r.answered = true
	r.w.WriteHeader(http.StatusNoContent)
	return nil, nil
}

// vaultUpgrade lists the obstacles to an upgrade of the Vault integration.
type vaultUpgrade struct {
	JobsWithoutVaultIdentity, OutdatedNodes, VaultTokens []string
}

// redirect redirects to the page for browsers.
func (a *API) redirect(r *request) (any, error) {
	r.answered = true
	to := "/ui/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	r.w.Header().Set("Location", to)
	r.w.WriteHeader(http.StatusTemporaryRedirect)
	return nil, nil
}

// welcome is the text of the page for browsers.
const welcome = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>nomad-lite</title>
<style>body { font: 16px/1.5 sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em }</style>
<h1>nomad-lite</h1>
<p>This agent runs jobs on one machine, and serves Nomad's HTTP API here. It has no web page for jobs: use
<code>nomad-lite job status</code>, Nomad's own command line, or the API, which is described at
<a href="/v1/openapi.json">/v1/openapi.json</a>.</p>
</html>
`

func (a *API) ui(r *request) (any, error) {
	r.answered = true
	h := r.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	_, err := strings.NewReader(welcome).WriteTo(r.w)
	return nil, err
}
