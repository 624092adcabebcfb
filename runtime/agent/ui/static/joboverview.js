// @ts-check
// The overview of a job: what cannot be placed, the latest deployment, the groups, the allocations that matter now.

import { can, get } from "./api.js";
import { jobAllocationTable, newestFirst } from "./allocationtable.js";
import { decode } from "./base64.js";
import { deploymentSection } from "./deployment.js";
import { ago, badge, facts, h, link, table, update } from "./dom.js";
import { scale } from "./jobactions.js";
import { liveTable } from "./livetable.js";
import { maskedValue } from "./maskedvalue.js";
import { actionPath, jobPath } from "./paths.js";
import { blockedPlacements } from "./placement.js";
import { hasEnded, isActive, launchesJobs } from "./status.js";
import { followHistory, usageCharts } from "./usage.js";

// overview creates the tab for the context of views/job.js. With a group in the context, it shows this group only.
export function overview(context) {
  const { signal, group } = context;
  const top = h("div");
  const title = h("h2", null, "Allocations");
  const none = h("p");
  const allocations = jobAllocationTable(signal);
  const endedAllocations = jobAllocationTable(signal, "Ended allocations");
  const ended = h("section", { hidden: true }, h("h2", null, "Ended allocations"), endedAllocations.element);
  const children = childTable(signal);
  const usage = h("section", { hidden: true }, h("h2", null, "Resources"));
  const actions = h("div");
  const input = h("div"); // of a dispatched job, which does not change
  return {
    element: h("div", null, top, title, none, allocations.element, ended, children.element, actions, input, usage),
    refresh: async (job) => {
      const hasChildren = launchesJobs(job);
      const [all, evaluations, deployment, launched] = await Promise.all([
        get(context.api("allocations"), signal), get(context.api("evaluations"), signal), get(context.api("deployment"), signal),
        hasChildren ? get(`/v1/jobs?${new URLSearchParams({ namespace: job.Namespace, prefix: job.ID + "/" })}`, signal) : [],
      ]);
      const ofGroup = all.filter((a) => !group || a.TaskGroup === group);
      const shown = ofGroup.filter((a) => !hasEnded(a)).sort(newestFirst), shownEnded = lastEnded(ofGroup);
      update(top,
        group && h("p", null, link(jobPath(job.ID, job.Namespace), "All groups of the job")),
        blockedPlacements(evaluations),
        groupTable(job, all, group), group && taskTable(job, group),
        deployment && deployment.JobCreateIndex === job.CreateIndex && !group && deploymentSection(deployment));
      title.textContent = hasChildren ? "Launched jobs" : shownEnded.length === 0 ? "Allocations" : "Current allocations";
      allocations.element.hidden = hasChildren || shown.length === 0;
      children.element.hidden = !hasChildren || launched.length === 0;
      none.textContent = (hasChildren ? launched : shown).length ? "" : hasChildren ? "No job was launched yet." : shownEnded.length ? "None." : "No allocations.";
      allocations.show(shown);
      ended.hidden = hasChildren || shownEnded.length === 0;
      endedAllocations.show(shownEnded);
      if (!group && !hasChildren && usage.children.length === 1) showUsage(usage, context, job);
      update(actions, actionTable(job, group));
      if (job.Dispatched && input.children.length === 0) input.append(...dispatchInput(job));
      children.show(launched.filter((child) => child.ParentID === job.ID).sort((a, b) => b.SubmitTime - a.SubmitTime));
    },
  };
}

const usageInterval = 30e3; // milliseconds

// showUsage shows charts of all tasks of a job in the last hours, with the sum of the resources in its file as limits.
function showUsage(section, context, job) {
  const tasks = (job.TaskGroups ?? []).flatMap((g) => (g.Tasks ?? []).map((t) => ({ count: g.Count ?? 1, ...t.Resources })));
  const sum = (name) => tasks.reduce((total, t) => total + t.count * (t[name] ?? 0), 0);
  const hasMaximum = tasks.some((t) => t.MemoryMaxMB > 0);
  const charts = usageCharts({
    cpu: [{ name: "cpu", value: sum("CPU") }],
    memory: [{ name: "memory", value: sum("MemoryMB") * 2 ** 20 }, { name: "memory_max", value: hasMaximum ? tasks.reduce((total, t) => total + t.count * (t.MemoryMaxMB || t.MemoryMB || 0), 0) * 2 ** 20 : 0 }],
  });
  const history = followHistory(context.api("history"), usageInterval, context.signal, (value, period) => {
    section.hidden = value.Times.length === 0 && section.hidden;
    charts.setHistory(value, period);
  });
  section.append(history.element, h("div", { class: "charts" }, charts.elements));
}

// recentCount is the number of ended allocations that the overview shows, besides those that should run.
const recentCount = 5;

// isCurrent reports whether an allocation runs, or should run according to the scheduler.
const isCurrent = (a) => isActive(a) || a.DesiredStatus === "run";

// lastEnded returns the allocations that have ended and should run, such as those of a finished batch job, and the newest of
// the others. The newest allocation is the first.
function lastEnded(allocations) {
  let others = 0;
  return allocations.filter(hasEnded).sort(newestFirst).filter((a) => a.DesiredStatus === "run" || others++ < recentCount);
}

/** @param {API.Job} job */
function groupTable(job, allocations, onlyGroup) {
  const canScale = !job.Stop && ["service", "batch"].includes(job.Type);
  const counts = new Map();
  for (const a of allocations.filter(isCurrent)) {
    const key = `${a.TaskGroup}\n${a.ClientStatus}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const count = (status) => (g) => counts.get(`${g.Name}\n${status}`) ?? 0;
  const groups = (job.TaskGroups ?? []).filter((g) => !onlyGroup || g.Name === onlyGroup);
  if (groups.length === 0) throw new Error(`The job has no group ${onlyGroup}.`);
  return h("section", { "data-key": "groups" }, h("h2", null, onlyGroup ? `Group ${onlyGroup}` : "Groups"), table("Groups", [
    { title: "Group", cell: (g) => link(jobPath(job.ID, job.Namespace, g.Name), g.Name) },
    { title: "Count", class: "number", cell: (g) => ["system", "sysbatch"].includes(job.Type) ? "each node" : g.Count },
    { title: "Running", class: "number", cell: count("running") },
    { title: "Pending", class: "number", cell: count("pending") },
    { title: "Failed", class: "number", cell: count("failed") },
    { title: "Tasks", class: "clip", cell: (g) => (g.Tasks ?? []).map((t) => t.Name).join(", ") },
    ...(canScale ? [{ title: "", cell: (g) => h("button", { permitted: can(job.Namespace, "submit-job", "scale-job"), onclick: () => scale(job, g), "aria-label": "Scale group " + g.Name }, "Scale…") }] : []),
  ], groups, (g) => g.Name));
}

/** @param {API.Job} job */
function taskTable(job, groupName) {
  const tasks = (job.TaskGroups ?? []).find((g) => g.Name === groupName)?.Tasks ?? [];
  return h("section", { "data-key": "tasks" }, h("h2", null, "Tasks"), table("Tasks", [
    { title: "Task", class: "clip", cell: (t) => t.Name },
    { title: "Driver", cell: (t) => t.Driver },
    { title: "Lifecycle", cell: (t) => t.Lifecycle ? t.Lifecycle.Hook + (t.Lifecycle.Sidecar ? ", sidecar" : "") : "main" },
    { title: "CPU", class: "number", cell: (t) => (t.Resources?.CPU ?? 0) + " MHz" },
    { title: "Memory", class: "number", cell: (t) => (t.Resources?.MemoryMB ?? 0) + " MB" },
  ], tasks, (t) => t.Name));
}

// actionTable creates the table of the actions of the tasks, or returns null if there are none.
function actionTable(job, onlyGroup) {
  const actions = (job.TaskGroups ?? []).filter((g) => !onlyGroup || g.Name === onlyGroup).flatMap((g) =>
    (g.Tasks ?? []).flatMap((t) => (t.Actions ?? []).map((action) => ({ group: g.Name, task: t.Name, action }))));
  return actions.length > 0 && h("section", { "data-key": "actions" }, h("h2", null, "Actions"), table("Actions of tasks", [
    { title: "Action", class: "clip", cell: ({ action }) => action.Name },
    { title: "Task", class: "clip", cell: ({ task }) => task },
    { title: "Group", class: "clip", cell: ({ group }) => group },
    { title: "Command", class: "clip mono", cell: ({ action }) => [action.Command, ...(action.Args ?? [])].join(" ") },
    { title: "", cell: ({ group, task, action }) => h("a", { class: "button", permitted: can(job.Namespace, "alloc-exec"), href: actionPath(job, group, task, action.Name), "aria-label": `Run action ${action.Name} of task ${task}` }, "Run…") },
  ], actions, ({ group, task, action }) => [group, task, action.Name].join("/")));
}

// dispatchInput creates the elements that show the metadata and the payload with which a job was dispatched.
function dispatchInput(job) {
  const names = [...(job.ParameterizedJob?.MetaRequired ?? []), ...(job.ParameterizedJob?.MetaOptional ?? [])].filter((name) => job.Meta?.[name] !== undefined);
  return [
    names.length > 0 && [h("h2", null, "Metadata of the dispatch"), facts(names.sort().map((name) => [name, maskedValue(name, job.Meta[name])]))],
    job.Payload && [h("h2", null, "Payload"), payloadText(decode(job.Payload))],
  ].filter(Boolean).flat();
}

function payloadText(bytes) {
  try {
    return h("pre", { tabindex: "0", "aria-label": "Payload" }, new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    return h("p", null, `${bytes.length} bytes that are no text.`);
  }
}

// childTable creates the table of the jobs that a periodic or parameterized job has launched.
function childTable(signal) {
  return liveTable("Launched jobs", [
    { title: "Job", cell: (job) => link(jobPath(job.ID, job.Namespace), job.ID.slice(job.ParentID.length + 1)), sort: (job) => job.ID },
    { title: "Status", cell: (job) => badge(job.Status), sort: (job) => job.Status },
    { title: "Launched", cell: (job) => ago(job.SubmitTime), sort: (job) => -job.SubmitTime },
  ], (job) => job.ID, signal);
}
