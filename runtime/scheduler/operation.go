package scheduler

// Operations are Nomad's names for the causes of events. One change may consist of
// several operations: a job is registered, and its plan is applied.
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
