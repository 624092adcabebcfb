package scheduler

// The operations, by which Nomad names events. One change may be several: a job
// is registered, and what was planned for it is stored.
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
