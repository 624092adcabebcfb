// @ts-check
// Changes of the state in words: the events of one message of the event stream.

import { link } from "./dom.js";
import { address } from "./format.js";
import { allocationPath, evaluationPath, jobPath, servicePath } from "./paths.js";
import { placementReasons } from "./placement.js";

// describe returns what a change is about: what, the parts of a sentence; why, a text that can be empty; and time in nanoseconds since 1970,
// 0 if it is unknown. It is the most important sentence about the events: a change of a job can have an event for each of its allocations.
export function describe(events) {
  const all = [...events.filter((e) => e.Topic !== "Allocation").map(sentence), ...allocationSentences(events)];
  const first = all.reduce((best, s) => (s.rank > best.rank ? s : best));
  return { ...first, why: first.why || all.find((s) => s.problem)?.problem, time: Math.max(0, ...events.map(timeOf).filter(Boolean)) };
}

// timeOf returns when the object of an event has changed, undefined if it does not say that.
function timeOf({ Topic, Type, Payload }) {
  if (Topic === "Job") return Type === "JobRegistered" ? Payload.Job.SubmitTime : undefined;
  return (Payload[Topic] ?? Payload.Metadata)?.ModifyTime;
}

const jobLink = (id, namespace) => ["Job ", link(jobPath(id, namespace), id)];

// sentence describes an event: {rank, what, why, problem}. The sentence with the highest rank describes a change. problem is a text about
// what does not work, which is shown if that sentence has no why.
function sentence(event) {
  const { Topic, Type, Key, Namespace, Payload } = event;
  switch (Topic) {
    case "Job": return jobSentence(event, Payload.Job);
    case "Evaluation": return evaluationSentence(event, Payload.Evaluation);
    case "Deployment": {
      const { JobID, Status, StatusDescription } = Payload.Deployment;
      return { rank: Type === "DeploymentAllocHealth" && Status === "running" ? 2 : 5, what: ["The deployment of job ", link(jobPath(JobID, Namespace), JobID), ` is ${Status}`], why: StatusDescription };
    }
    case "Node": return nodeSentence(event, Payload.Node);
    case "Service": {
      const { ServiceName, Address, Port } = Payload.Service;
      const isRemoved = Type === "ServiceDeregistration";
      return { rank: 3, what: ["Service ", link(servicePath(ServiceName, Namespace), ServiceName), isRemoved ? " was removed" : ` is at ${address(Address, Port)}`] };
    }
    case "HostVolume": return { rank: 3, what: [`Volume ${Payload.Volume?.Name ?? Key} has changed`], why: Payload.Volume?.State };
    case "Variable": return { rank: 3, what: [`Variable ${Payload.Metadata?.Path ?? Key} was ${Payload.Deleted ? "deleted" : "changed"}`] };
  }
  return { rank: 0, what: [`${Topic} ${Key} has changed`] };
}

function jobSentence({ Type, Namespace, Payload }, job) {
  const name = jobLink(job.ID, Namespace);
  switch (Type) {
    case "JobRegistered": return { rank: 8, what: [name, ` was submitted as version ${job.Version}`] };
    case "JobDeregistered": return { rank: 8, what: [name, Payload.Deleted ? " was purged" : " was stopped"] };
    case "JobBatchDeregistered": return { rank: 8, what: [name, " was removed"], why: "It has ended, and the agent removes old jobs" };
  }
  return { rank: 2, what: [name, ` is ${job.Status}`] };
}

function evaluationSentence({ Namespace }, evaluation) {
  const groups = Object.entries(evaluation.FailedTGAllocs ?? {});
  const name = jobLink(evaluation.JobID, Namespace);
  if (groups.length) {
    const place = `no place for group ${groups.map(([group]) => group).join(", ")}`;
    const why = groups.flatMap(([, metric]) => placementReasons(metric ?? {})).join(" ");
    return { rank: 7, what: [name, " has ", place], why, problem: `There is ${place}. ${why}` };
  }
  return { rank: 1, what: [name, ": the ", link(evaluationPath(evaluation.ID), "evaluation"), ` is ${evaluation.Status}`], why: evaluation.StatusDescription || `Cause: ${evaluation.TriggeredBy}` };
}

function nodeSentence({ Type }, node) {
  const name = ["Node ", link("/ui/clients", node.Name || node.ID)];
  const drivers = Object.entries(node.Drivers ?? {}).filter(([, d]) => d?.Detected && !d.Healthy).map(([driver, d]) => `driver ${driver}: ${d.HealthDescription}`).join("; ");
  switch (Type) {
    case "NodeRegistration": return { rank: 4, what: [name, ` is ${node.Status}`], why: drivers };
    case "NodeEligibility": return { rank: 4, what: [name, ` is ${node.SchedulingEligibility}`], why: "For new allocations" };
    case "NodeDrain": return { rank: 4, what: [name, node.Drain || node.DrainStrategy ? " drains" : " does not drain"] };
    case "AllocationUpdated": return { rank: 0, what: [name, " has reported about allocations"] };
  }
  return { rank: 1, what: [name, " has changed"], why: drivers };
}

// allocationSentences describes the allocations of a change, in one sentence for those that have the same state.
function allocationSentences(events) {
  const groups = new Map();
  for (const event of events) {
    if (event.Topic !== "Allocation") continue;
    const alloc = event.Payload.Allocation, state = allocationState(event, alloc), key = alloc.JobID + " " + state.text;
    if (!groups.has(key)) groups.set(key, { ...state, allocs: [] });
    groups.get(key).allocs.push(alloc);
  }
  return [...groups.values()].map(({ rank, text, why, allocs: [alloc, ...others] }) => ({
    rank, why,
    what: others.length === 0 ? ["Allocation ", link(allocationPath(alloc.ID), alloc.Name), " ", text]
      : [`${others.length + 1} allocations of job `, link(jobPath(alloc.JobID, alloc.Namespace), alloc.JobID), ": each ", text],
  }));
}

const clientStates = { pending: [3, "starts"], running: [4, "runs"], complete: [5, "has completed"], failed: [6, "has failed"], lost: [6, "is lost"], unknown: [6, "is unknown: its node does not answer"] };

function allocationState({ Type }, alloc) {
  const healthy = alloc.Healthy ?? alloc.DeploymentStatus?.Healthy;
  const isWanted = alloc.DesiredStatus === "run";
  if (!isWanted && ["pending", "running"].includes(alloc.ClientStatus)) return { rank: 5, text: "must stop", why: alloc.DesiredDescription };
  if (Type === "PlanResult") return { rank: 3, text: "was placed" };
  if (Type === "DeploymentAllocHealth" && healthy != null) return { rank: healthy ? 4 : 6, text: healthy ? "is healthy" : "is not healthy", why: newestEvent(alloc) };
  const [rank, text] = clientStates[alloc.ClientStatus] ?? [4, "is " + alloc.ClientStatus];
  return { rank, text, why: newestEvent(alloc) };
}

// newestEvent returns the newest event of the tasks of an allocation as text.
function newestEvent(alloc) {
  let newest, of;
  for (const [task, state] of Object.entries(alloc.TaskStates ?? {})) {
    const event = state?.Events?.at(-1);
    if (event && !(newest?.Time >= event.Time)) [newest, of] = [event, task];
  }
  return newest ? `Task ${of}: ${newest.DisplayMessage || newest.Type}` : alloc.ClientDescription;
}
