// @ts-check
// The progress of a deployment, and the actions on it.

import { can, put } from "./api.js";
import { actionButton, ask } from "./dialog.js";
import { ago, badge, h, link, table } from "./dom.js";
import { clock, shortID } from "./format.js";
import { allocationPath } from "./paths.js";

const activeStatuses = ["running", "paused", "blocked", "pending", "initializing", "unblocking"];

// deploymentSection shows a deployment of the API, with buttons while it is active.
/** @param {API.deploymentView} d */
export function deploymentSection(d) {
  const groups = Object.entries(d.TaskGroups ?? {}).sort(([a], [b]) => a.localeCompare(b));
  const hasCanaries = groups.some(([, g]) => g.DesiredCanaries > 0);
  const isActive = activeStatuses.includes(d.Status);
  const waiting = groups.filter(([, g]) => g.DesiredCanaries > 0 && !g.Promoted);
  return h("section", { "data-key": d.ID },
    h("h2", null, `Deployment ${shortID(d.ID)} of version ${d.JobVersion} `, badge(d.Status)),
    h("p", null, d.StatusDescription, ". ", h("span", { class: "dim" }, "Created ", ago(d.CreateTime))),
    table("Groups of the deployment", [
      { title: "Group", class: "clip", cell: ([name]) => name },
      { title: "Healthy", cell: ([name, g]) => progress(name, g) },
      { title: "Placed", class: "number", cell: ([, g]) => g.PlacedAllocs },
      { title: "Unhealthy", class: "number", cell: ([, g]) => g.UnhealthyAllocs },
      ...(hasCanaries ? [
        { title: "Canaries", cell: ([, g]) => canaries(g) },
        { title: "Promoted", cell: ([, g]) => g.DesiredCanaries > 0 ? (g.Promoted ? "yes" : g.AutoPromote ? "automatically" : "no") : "" },
        ...(isActive && waiting.length > 1 ? [{ title: "", cell: (group) => waiting.includes(group) && promoteButton(d, group[0]) }] : [])] : []),
      ...(isActive ? [{ title: "Must progress before", cell: ([, g]) => g.RequireProgressBy ? clock(g.RequireProgressBy) : "" }] : []),
    ], groups, ([name]) => name),
    isActive && buttons(d, waiting));
}

// progress shows how many of the wanted allocations are healthy: of the canaries, until these are promoted.
/** @param {API.deploymentStateView} g */
function progress(name, g) {
  const wanted = g.DesiredCanaries > 0 && !g.Promoted ? g.DesiredCanaries : g.DesiredTotal;
  return [h("progress", { max: Math.max(wanted, 1), value: g.HealthyAllocs, "aria-label": "Healthy allocations of " + name }), ` ${g.HealthyAllocs} of ${wanted}`];
}

/** @param {API.deploymentStateView} g */
function canaries(g) {
  return (g.PlacedCanaries ?? []).map((id) => [link(allocationPath(id), shortID(id)), " "]);
}

const change = (d, action, body) => put(`/v1/deployment/${action}/${d.ID}`, { DeploymentID: d.ID, ...body });

const mayPromote = (d) => can(d.Namespace, "submit-job", "promote-deployment");

// promoteButton creates the button that promotes the canaries of one group, while several groups wait for it.
function promoteButton(d, group) {
  return actionButton("Promote", () => change(d, "promote", { Groups: [group] }), { "aria-label": `Promote the canaries of group ${group}`, permitted: mayPromote(d) });
}

// buttons creates the actions on a deployment. waiting are the groups with canaries that are not promoted.
function buttons(d, waiting) {
  const mayPause = { permitted: can(d.Namespace, "submit-job", "pause-deployment") };
  return h("div", { class: "toolbar", role: "group", "aria-label": "Actions on the deployment" },
    waiting.length > 0 && actionButton(waiting.length > 1 ? "Promote all canaries" : "Promote canaries", () => change(d, "promote", { All: true }), { class: "primary", permitted: mayPromote(d) }),
    d.Status === "paused" ? actionButton("Resume", () => change(d, "pause", { Pause: false }), mayPause) : actionButton("Pause", () => change(d, "pause", { Pause: true }), mayPause),
    h("button", {
      class: "danger", permitted: can(d.Namespace, "submit-job", "fail-deployment"),
      onclick: () => ask({
        title: "Make the deployment fail?", text: "No further allocations are updated. With auto_revert, the job returns to its last stable version.",
        action: "Fail deployment", danger: true, run: () => change(d, "fail"),
      }),
    }, "Fail…"));
}
