package scheduler

// Values of api.Event.Type, which are the same as in Nomad. One transaction may have several operations: the registration of
// a job is followed by the result of its plan.
const (
	opJobRegistered   = "JobRegistered"
	opJobDeregistered = "JobDeregistered"
	opJobsCollected   = "JobBatchDeregistered"
	opEvaluation      = "EvaluationUpdated"
	opPlan            = "PlanResult"
	opAllocReport     = "AllocationUpdated"
	opAllocStop       = "AllocationUpdateDesiredStatus"
	opDeployment      = "DeploymentStatusUpdate"
	opPromotion       = "DeploymentPromotion"
	opAllocHealth     = "DeploymentAllocHealth"
	opNodeDrain       = "NodeDrain"
	opNodeEligibility = "NodeEligibility"
)
