// @ts-check
// Failures of the scheduler to place allocations, in words.

import { ago, badge, h, link } from "./dom.js";
import { shortID } from "./format.js";
import { evaluationPath } from "./paths.js";

// remedies says what can be done about a constraint of the scheduler that excludes the node.
const remedies = {
  "missing drivers": "The driver of a task is not installed, or is not healthy. The page “Node” lists the drivers.",
  "missing host volumes": "A volume that the group requests does not exist on this node.",
  "missing devices": "A device that a task requests does not exist on this node, or is not healthy.",
};

// placementFailure describes why a group was not placed: the metrics of an evaluation or plan, as an element.
/** @param {API.AllocationMetric} metric */
function placementFailure(group, metric) {
  const count = (metric.CoalescedFailures ?? 0) + 1;
  return h("div", null,
    h("p", null, h("strong", null, `Group “${group}”: `), count === 1 ? "1 allocation cannot be placed." : `${count} allocations cannot be placed.`),
    h("ul", null, placementReasons(metric).map((text) => h("li", null, text))));
}

// placementReasons returns the reasons in the metrics of an evaluation or plan why a group was not placed, each as a sentence.
/** @param {API.AllocationMetric} metric */
export function placementReasons(metric) {
  const found = [];
  const each = (counts, text) => { for (const name of Object.keys(counts ?? {}).sort()) found.push(text(name)); };
  const missing = Object.entries(metric.NodesAvailable ?? {}).filter(([, nodes]) => nodes === 0).map(([name]) => name);
  if (missing.length) found.push(`This node is in none of the datacenters of the job: ${missing.join(", ")}.`);
  else if (!metric.NodesInPool) found.push(`This node is not in the node pool “${metric.NodePool}”.`);
  else if (!metric.NodesEvaluated) found.push("This node is not eligible for new allocations, for example because it is drained.");
  each(metric.ConstraintFiltered, (name) => remedies[name] ?? `The node does not fulfil a constraint: ${name}.`);
  each(metric.ClassFiltered, (name) => `The class of the node is excluded: ${name}.`);
  each(metric.DimensionExhausted, (name) => `Not enough is left on this node: ${name}.`);
  if (metric.NodesExhausted && !Object.keys(metric.DimensionExhausted ?? {}).length) found.push("The resources of this node are exhausted.");
  return found.length ? found : ["The agent gives no reason."];
}

// placementFailures describes all groups of an evaluation or a plan that were not placed. It returns null if there
// are none.
export function placementFailures(groups) {
  const names = Object.keys(groups ?? {}).sort();
  return names.length === 0 ? null : names.map((name) => placementFailure(name, groups[name] ?? {}));
}

// blockedPlacements describes the allocations of a job that wait for room on the node, null if none waits: the last
// evaluation of the job is blocked, and the one before it has the scheduler's explanation.
/** @param {API.Evaluation[]} evaluations */
export function blockedPlacements(evaluations) {
  const blocked = evaluations.find((e) => e.Status === "blocked");
  if (!blocked) return null;
  const cause = evaluations.filter((e) => e.BlockedEval === blocked.ID).sort((a, b) => b.ModifyIndex - a.ModifyIndex)[0];
  return h("section", { class: "notice", "data-key": "blocked", role: "status" },
    h("h2", null, "Allocations wait for a place"),
    placementFailures(blocked.FailedTGAllocs),
    cause?.StatusDescription && h("p", null, "The scheduler: ", cause.StatusDescription),
    h("p", null, "The agent tries again when the node changes. ", link(evaluationPath(blocked.ID), "Evaluation")));
}

const triggers = {
  "job-register": "the job was submitted", "job-deregister": "the job was stopped", "periodic-job": "the schedule of the job",
  "node-drain": "the node was drained", "node-update": "the node changed", "alloc-stop": "an allocation was stopped",
  "scheduled": "the scheduler itself", "rolling-update": "a rolling update", "deployment-watcher": "the deployment changed",
  "failed-follow-up": "an evaluation failed", "max-plan-attempts": "a plan failed", "alloc-failure": "an allocation failed",
  "queued-allocs": "allocations wait for a place", "preemption": "allocations were preempted", "job-scaling": "the job was scaled",
  "max-disconnect-timeout": "the node was disconnected", "reconnect": "the node was connected again", "alloc-reschedule": "an allocation is rescheduled",
};

// trigger returns why an evaluation was created.
/** @param {API.Evaluation} evaluation */
export function trigger(evaluation) {
  return triggers[evaluation.TriggeredBy] ?? evaluation.TriggeredBy;
}

// evaluationColumns are the columns of tables of evaluations, in their order.
export const evaluationColumns = {
  id: { title: "ID", class: "mono", cell: (e) => link(evaluationPath(e.ID), shortID(e.ID)) },
  reason: { title: "Reason", cell: trigger, sort: trigger },
  status: { title: "Status", cell: (e) => badge(e.Status), sort: (e) => e.Status },
  placement: { title: "Placement", class: "clip", cell: outcome },
  created: { title: "Created", cell: (e) => ago(e.CreateTime), sort: (e) => -e.CreateTime },
};

/** @param {API.Evaluation} evaluation */
function outcome(evaluation) {
  const failed = Object.keys(evaluation.FailedTGAllocs ?? {});
  if (evaluation.Status === "blocked") return "waits: " + failed.sort().join(", ");
  return failed.length ? "failed: " + failed.sort().join(", ") : "";
}
