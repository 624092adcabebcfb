package scheduler

// These operations are Nomad's names for the causes of events. One change of the store may consist of several
// operations: the registration of a job is followed by the result of its plan.
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
