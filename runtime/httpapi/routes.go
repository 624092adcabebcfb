package httpapi

import "strings"

// route is one row of the table.
type route struct {
	methods string // separated by spaces
	// pattern is a path. {id} in it stands for one segment, {id...} for as many as
	// there are: the ids of jobs have slashes.
	pattern string
	serve   func(*API, *request) (any, error)
}

// routes are all that there is to ask for. A path that fits several patterns is
// meant by the most particular one.
var routes = []route{
	{"GET", "/v1/jobs", (*API).listJobs},
	{"PUT POST", "/v1/jobs", (*API).registerJob},
	{"GET", "/v1/job/{id...}", (*API).readJob},
	{"PUT POST", "/v1/job/{id...}", (*API).registerJob},
	{"DELETE", "/v1/job/{id...}", (*API).deregisterJob},
	{"GET", "/v1/job/{id...}/allocations", (*API).jobAllocations},
	{"GET", "/v1/job/{id...}/deployment", (*API).jobDeployment},
	{"GET", "/v1/job/{id...}/deployments", (*API).jobDeployments},
	{"PUT POST", "/v1/job/{id...}/dispatch", (*API).dispatchJob},
	{"PUT POST", "/v1/job/{id...}/evaluate", (*API).evaluateJob},
	{"GET", "/v1/job/{id...}/evaluations", (*API).jobEvaluations},
	{"PUT POST", "/v1/job/{id...}/periodic/force", (*API).forceJob},
	{"PUT POST", "/v1/job/{id...}/revert", (*API).revertJob},
	{"PUT POST", "/v1/job/{id...}/stable", (*API).stableJob},
	{"GET", "/v1/job/{id...}/submission", (*API).jobSubmission},
	{"GET", "/v1/job/{id...}/summary", (*API).jobSummary},
	{"GET", "/v1/job/{id...}/versions", (*API).jobVersions},

	{"GET", "/v1/allocations", (*API).listAllocations},
	{"GET", "/v1/allocation/{id}", (*API).readAllocation},
	{"PUT POST", "/v1/allocation/{id}/stop", (*API).stopAllocation},
	{"GET PUT POST", "/v1/client/allocation/{id}/gc", (*API).collectAllocation},
	{"PUT POST", "/v1/client/allocation/{id}/restart", (*API).restartAllocation},
	{"PUT POST", "/v1/client/allocation/{id}/signal", (*API).signalAllocation},
	{"GET PUT", "/v1/client/gc", (*API).collectAllocations},

	{"GET", "/v1/evaluations", (*API).listEvaluations},
	{"GET", "/v1/evaluation/{id}", (*API).readEvaluation},
	{"GET", "/v1/evaluation/{id}/allocations", (*API).evaluationAllocations},

	{"GET", "/v1/deployments", (*API).listDeployments},
	{"GET", "/v1/deployment/{id}", (*API).readDeployment},
	{"GET", "/v1/deployment/allocations/{id}", (*API).deploymentAllocations},
	{"PUT POST", "/v1/deployment/fail/{id}", (*API).failDeployment},
	{"PUT POST", "/v1/deployment/pause/{id}", (*API).pauseDeployment},
	{"PUT POST", "/v1/deployment/promote/{id}", (*API).promoteDeployment},

	{"GET", "/v1/nodes", (*API).listNodes},
	{"GET", "/v1/node/{id}", (*API).readNode},
	{"GET", "/v1/node/{id}/allocations", (*API).nodeAllocations},

	{"GET", "/v1/agent/health", (*API).agentHealth},
	{"GET", "/v1/agent/self", (*API).agentSelf},
	{"GET", "/v1/regions", (*API).regions},
	{"GET", "/v1/status/leader", (*API).leader},
	{"GET", "/v1/status/peers", (*API).peers},
	{"PUT", "/v1/system/gc", (*API).collectRecords},
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
func find(method, path string) (best route, id string, found, otherMethod bool) {
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
