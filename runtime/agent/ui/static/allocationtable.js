// @ts-check
// Tables of allocations.

import { ago, badge, h, link } from "./dom.js";
import { shortID } from "./format.js";
import { liveTable } from "./livetable.js";
import { allocationPath, jobPath } from "./paths.js";
import { isActive } from "./status.js";

// allocationColumns are columns whose rows are stubs of allocations. restarts and event need the states of the tasks.
export const allocationColumns = {
  id: { title: "ID", class: "mono", cell: (a) => link(allocationPath(a.ID), shortID(a.ID)), sort: (a) => a.ID },
  name: { title: "Name", class: "clip", cell: (a) => a.Name, sort: (a) => a.Name },
  nameInJob: { title: "Name", class: "clip", cell: (a) => a.Name.slice(a.JobID.length + 1), sort: (a) => a.Name },
  job: { title: "Job", cell: (a) => link(jobPath(a.JobID, a.Namespace), a.JobID), sort: (a) => a.JobID },
  group: { title: "Group", class: "clip", cell: (a) => a.TaskGroup, sort: (a) => a.TaskGroup },
  status: { title: "Status", cell: status, sort: (a) => a.ClientStatus },
  version: { title: "Version", class: "number", cell: (a) => a.JobVersion, sort: (a) => a.JobVersion },
  health: { title: "Health", cell: health },
  restarts: { title: "Restarts", class: "number", cell: restarts, sort: restarts },
  event: { title: "Latest event", class: "clip", cell: latestEvent },
  created: { title: "Created", cell: (a) => ago(a.CreateTime), sort: (a) => -a.CreateTime },
};

// allocationTable creates a table of allocations: see liveTable.
export function allocationTable(columns, signal, label = "Allocations") {
  return liveTable(label, columns, (a) => a.ID, signal);
}

// jobAllocationTable creates a table of the allocations of one job.
export function jobAllocationTable(signal, label = "Allocations") {
  const { id, nameInJob, status, version, health, restarts, event, created } = allocationColumns;
  return allocationTable([id, nameInJob, status, version, health, restarts, event, created], signal, label);
}

// newestFirst is the order of allocations in a table.
export function newestFirst(a, b) {
  return b.CreateIndex - a.CreateIndex || a.Name.localeCompare(b.Name, undefined, { numeric: true });
}

/** @param {API.allocStub} a */
function status(a) {
  const isStopping = a.DesiredStatus === "stop" && isActive(a);
  return [badge(a.ClientStatus), isStopping && h("span", { class: "dim" }, "stops")];
}

/** @param {API.allocStub} a */
function health(a) {
  const { Healthy, Canary } = a.DeploymentStatus ?? {};
  return [Healthy == null ? "" : badge(Healthy ? "healthy" : "unhealthy"), Canary && h("span", { class: "dim" }, "canary")];
}

/** @param {API.allocStub} a */
function restarts(a) {
  return Object.values(a.TaskStates ?? {}).reduce((sum, state) => sum + state.Restarts, 0);
}

// failures are the types of the events that say why a task failed. Less important events come after them.
const failures = ["Driver Failure", "Setup Failure", "Failed Validation", "Failed Artifact Download", "Task hook failed", "Terminated"];

/** @param {API.allocStub} a */
function latestEvent(a) {
  let latest = null, task = "";
  for (const [name, state] of Object.entries(a.TaskStates ?? {})) {
    const events = state.Events ?? [];
    const event = (a.ClientStatus === "failed" && state.Failed && events.findLast(({ Type }) => failures.includes(Type))) || events.at(-1);
    if (event && (!latest || event.Time > latest.Time)) [latest, task] = [event, name];
  }
  const text = latest && `${task}: ${latest.DisplayMessage || latest.Type}`;
  return h("span", { title: text }, text);
}
