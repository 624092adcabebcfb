// @ts-check
// The health of a job in a word and a sentence, which the agent derives.

import { can } from "./api.js";
import { h, link, linkIf } from "./dom.js";
import { allocationPath } from "./paths.js";
import { healthSentence } from "./status.js";

// healthBadge creates the label of a health, in which a bar, a colour and a word show the same. health can be undefined, for
// agents that do not report it; then it shows the status of the job.
/** @param {API.jobHealth} health */
export function healthBadge(health, status) {
  const word = health?.Health ?? status;
  return h("span", { class: `health health-${word}` }, word);
}

// healthReason creates the sentence of a health, or "" if there is none.
/** @param {API.jobHealth} health */
export function healthReason(health) {
  const text = health ? healthSentence(health) : "";
  return text ? h("span", { class: "reason" }, text) : "";
}

// failed are the words after which a user looks for the last lines of a task.
const failed = ["failing", "failed", "degraded"];

// healthNotice creates the start of the page of a job that is not well, that waits for something, or whose last version has failed.
// It returns null for other jobs.
/** @param {API.jobHealth} health */
export function healthNotice(health) {
  const failed = health?.FailedDeployment;
  if (!health?.Reason && !failed) return null;
  return [health.Reason && reasonNotice(health), failed && failedDeploymentNotice(failed, health.Namespace)];
}

// outputLink creates the link to the output of the task that an object of the API names.
function outputLink(namespace, { AllocID, Task }) {
  return linkIf(can(namespace, "read-logs", "read-fs"), allocationPath(AllocID, Task, "logs"), "Output of task ", Task);
}

// failedDeploymentNotice creates the part of the notice about a failed deployment.
/** @param {API.failedDeployment} failed */
function failedDeploymentNotice(failed, namespace) {
  return h("section", { class: "notice notice-degraded", role: "status", "data-key": "failed-deployment" },
    h("h2", null, `The deployment of version ${failed.JobVersion} has failed`),
    h("p", { class: "reason" }, failed.Description, failed.Reason && "; " + failed.Reason),
    failed.AllocID && h("p", null, link(allocationPath(failed.AllocID), "Allocation ", failed.AllocID.slice(0, 8)),
      " · ", outputLink(namespace, failed)));
}

/** @param {API.jobHealth} health */
function reasonNotice(health) {
  return h("section", { class: `notice notice-${health.Health}`, role: "status", "data-key": "health" },
    h("h2", null, `This job ${health.Health === "failed" ? "has" : "is"} ${health.Health}`),
    h("p", { class: "reason" }, healthSentence(health)),
    health.AllocID && h("p", null, health.Task && failed.includes(health.Health) && [linkIf(can(health.Namespace, "read-job"), allocationPath(health.AllocID, "timeline") + "#exit=" + encodeURIComponent(health.Task), "Output around the exit of task ", health.Task), " · "],
      link(allocationPath(health.AllocID), "Allocation ", health.AllocID.slice(0, 8)),
      health.Task && [" · ", outputLink(health.Namespace, health)]));
}
