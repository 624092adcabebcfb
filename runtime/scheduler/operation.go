package scheduler

// Values for api.Event.Type, the same as in Nomad. One transaction may have several operations: a job registration is followed
// by the plan's result.
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
