// The table of the allocations of a job.

import { ago, badge, h, link } from "./dom.js";
import { shortID } from "./format.js";
import { liveTable } from "./livetable.js";
import { allocationPath } from "./paths.js";

// allocationTable creates a table of stubs of allocations of one job: see liveTable.
export function allocationTable(signal) {
  return liveTable("Allocations", [
    { title: "ID", class: "mono", cell: (a) => link(allocationPath(a.ID), shortID(a.ID)) },
    { title: "Name", cell: (a) => a.Name.slice(a.JobID.length + 1), sort: (a) => a.Name },
    { title: "Status", cell: status, sort: (a) => a.ClientStatus },
    { title: "Version", class: "number", cell: (a) => a.JobVersion, sort: (a) => a.JobVersion },
    { title: "Health", cell: health },
    { title: "Restarts", class: "number", cell: restarts, sort: restarts },
    { title: "Latest event", class: "clip", cell: latestEvent },
    { title: "Created", cell: (a) => ago(a.CreateTime), sort: (a) => -a.CreateTime },
  ], (a) => a.ID, signal);
}

function status(a) {
  const isStopping = a.DesiredStatus === "stop" && ["running", "pending"].includes(a.ClientStatus);
  return [badge(a.ClientStatus), isStopping && h("span", { class: "dim" }, "stops")];
}

function health(a) {
  const { Healthy, Canary } = a.DeploymentStatus ?? {};
  return [Healthy == null ? "" : badge(Healthy ? "healthy" : "unhealthy"), Canary && h("span", { class: "dim" }, "canary")];
}

function restarts(a) {
  return Object.values(a.TaskStates ?? {}).reduce((sum, state) => sum + state.Restarts, 0);
}

// failures are the types of the events that say why a task failed. Less important events come after them.
const failures = ["Driver Failure", "Setup Failure", "Failed Validation", "Failed Artifact Download", "Task hook failed", "Terminated"];

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
