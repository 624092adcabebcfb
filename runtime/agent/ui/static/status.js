// @ts-check
// The states of jobs, allocations and checks, in the words of the pages.

// jobType returns the type of a job as people name it.
/** @param {API.Job | API.jobStub} job */
export function jobType(job) {
  return job.Periodic ? job.Type + ", periodic" : job.ParameterizedJob && !job.ParentID ? job.Type + ", parameterized" : job.Type;
}

// jobStatus returns the status of a job; a job that was stopped is distinguished from a job that has ended.
/** @param {API.Job | API.jobStub} job */
export function jobStatus(job) {
  return job.Status === "dead" && job.Stop ? "stopped" : job.Status;
}

// healthOrder are the words for the health of a job, those that need attention first.
const healthOrder = ["failing", "failed", "blocked", "degraded", "deploying", "waiting", "running", "complete", "stopped"];

// healthRank returns the place of a health in lists: a job that waits for the user is before those that wait for the agent.
export function healthRank(health) {
  const rank = healthOrder.indexOf(health?.Health);
  return health?.Health === "waiting" && health.Remedy ? healthOrder.indexOf("deploying") - 0.5 : rank < 0 ? healthOrder.length : rank;
}

// healthSentence returns the reason and the remedy of a health in one line, as the command line prints it.
/** @param {API.jobHealth} health */
export function healthSentence(health) {
  return health.Reason && health.Remedy ? `${health.Reason}. ${health.Remedy}` : health.Reason;
}

// launchesJobs reports whether a job is periodic or parameterized: it has no allocations, and launches other jobs.
/** @param {API.Job | API.jobStub} job */
export function launchesJobs(job) {
  return Boolean((job.Periodic || job.ParameterizedJob) && !job.ParentID);
}

// tasksOf returns the tasks of the group of an allocation, as in the job.
/** @param {API.Allocation} alloc */
export function tasksOf(alloc) {
  return alloc.Job?.TaskGroups?.find((g) => g.Name === alloc.TaskGroup)?.Tasks ?? [];
}

// isActive reports whether an allocation runs or starts.
/** @param {{ClientStatus: string}} alloc */
export function isActive(alloc) {
  return ["running", "pending"].includes(alloc.ClientStatus);
}

// hasEnded reports whether an allocation has ended.
/** @param {{ClientStatus: string}} alloc */
export function hasEnded(alloc) {
  return ["complete", "failed", "lost"].includes(alloc.ClientStatus);
}

// checkStatus returns the status of a check of a service.
/** @param {{Status: string}} check */
export function checkStatus(check) {
  return { success: "passing", failure: "failing" }[check.Status] ?? check.Status;
}
