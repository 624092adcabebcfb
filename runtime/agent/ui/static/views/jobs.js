// @ts-check
// The list of all jobs.

import { get, isRejected, poll, watch } from "../api.js";
import { ago, h, link, update } from "../dom.js";
import { address, milliseconds } from "../format.js";
import { healthBadge, healthReason } from "../health.js";
import { mayEdit } from "../jobactions.js";
import { groupJobs, lastResults } from "../launchedjobs.js";
import { liveTable } from "../livetable.js";
import { showError } from "../page.js";
import { jobPath, rememberFilter } from "../paths.js";
import { healthRank, jobStatus, jobType } from "../status.js";
import { jobUsageColumns } from "../usage.js";

export function show(main, { query }, signal) {
  document.title = "Jobs – nomad-lite";
  let jobs = null, healthByJob = null, portsByJob = new Map();
  let tree = groupJobs([]);
  const unfolded = new Set(); // keys of jobs
  const healthOf = (job) => healthByJob.get(keyOf(job));
  // Without a health, as on a node of a cluster, the word is that of the API.
  const word = (job) => healthOf(job)?.Health ?? jobStatus(job);
  const filters = { text: query.get("text") ?? "", namespace: query.get("namespace") ?? "", type: query.get("type") ?? "", status: query.get("status") ?? "" };
  const count = h("span", { class: "dim", role: "status" });
  const selects = h("span", { class: "toolbar" });
  const input = h("input", {
    type: "search", "aria-label": "Filter by name", placeholder: "filter by name", value: filters.text,
    oninput: () => setFilter("text", input.value),
  });
  const table = liveTable("Jobs", [
    { title: "Name", cell: (job) => [nameCell(job, tree.parentOf(job)), foldButton(job), healthReason(healthOf(job))], sort: (job) => job.ID },
    { title: "Health", cell: (job) => healthBadge(healthOf(job), jobStatus(job)), sort: rank },
    { title: "Allocations", cell: (job) => [counts(job), lastResults(tree.launchedBy(job), word)] },
    { title: "Ports", cell: (job) => portLinks(portsByJob.get(keyOf(job))) },
    ...jobUsageColumns(signal, () => draw()),
    { title: "Type", cell: jobType, sort: jobType },
    { title: "Namespace", cell: (job) => job.Namespace, sort: (job) => job.Namespace },
    { title: "Submitted", cell: (job) => ago(job.SubmitTime), sort: (job) => -milliseconds(job.SubmitTime ?? 0) },
  ], keyOf, signal, nestedRows);
  const message = h("p");
  main.append(
    h("div", { class: "title" }, h("h1", null, "Jobs"), h("a", { class: "button primary", href: "/ui/jobs/run", permitted: mayEdit("*") }, "Run a job")),
    h("div", { class: "toolbar" }, input, selects, count), message, table.element);
  table.element.hidden = true;

  function setFilter(name, value) {
    filters[name] = value;
    rememberFilter(filters);
    draw();
  }

  function select(name, label, values) {
    const options = [...new Set(values)].sort();
    if (filters[name] && !options.includes(filters[name])) options.push(filters[name]);
    return options.length > 1 && h("select", { "data-key": name, "aria-label": label, onchange: (event) => setFilter(name, event.target.value) },
      h("option", { value: "" }, label + ": all"),
      options.map((value) => h("option", { value, "data-key": value, selected: value === filters[name] }, value)));
  }

  function foldButton(job) {
    const count = tree.launchedBy(job).length, isUnfolded = unfolded.has(keyOf(job));
    return count > 0 && h("button", {
      class: "fold plain", "aria-expanded": String(isUnfolded), "aria-label": `Jobs launched by ${job.ID}`,
      onclick: () => { if (!unfolded.delete(keyOf(job))) unfolded.add(keyOf(job)); draw(); },
    }, `${isUnfolded ? "▾" : "▸"} ${count} launched`);
  }

  const isShown = (job) => job.ID.toLowerCase().includes(filters.text.toLowerCase()) && matches(filters.namespace, job.Namespace)
    && matches(filters.type, jobType(job)) && matches(filters.status, word(job));

  // isProblem reports whether a job needs attention now: a launched job that has ended is a result.
  const isProblem = (job) => healthOf(job)?.NeedsAttention && (job.Status !== "dead" || !tree.parentOf(job));

  // nestedRows returns the launched jobs that are shown below a job: when it is folded, those that need attention, and those
  // that match the filters alone.
  function nestedRows(job) {
    const launched = tree.launchedBy(job);
    return unfolded.has(keyOf(job)) ? launched : launched.filter(isShown(job) ? isProblem : isShown);
  }

  // rank returns the place of a job, with the jobs that it has launched.
  function rank(job) {
    return Math.min(...[job, ...tree.launchedBy(job).filter(isProblem)].map((j) => healthRank(healthOf(j))));
  }

  function draw() {
    if (!jobs || !healthByJob) return;
    const shown = jobs.filter(isShown);
    const rows = tree.roots.filter((job) => isShown(job) || tree.launchedBy(job).some(isShown)).map((job) => [rank(job), job])
      .sort(([a], [b]) => a - b).map(([, job]) => job);
    update(selects, select("namespace", "Namespace", jobs.map((job) => job.Namespace)),
      select("type", "Type", jobs.map(jobType)), select("status", "Health", jobs.map(word)));
    const ill = jobs.filter(isProblem).length;
    count.textContent = (shown.length === jobs.length ? plural(jobs.length) : `${shown.length} of ${plural(jobs.length)}`) +
      (ill ? `, ${ill} ${ill === 1 ? "needs" : "need"} attention` : "");
    message.textContent = jobs.length === 0 ? "No jobs. “Run a job” submits the first one." : shown.length === 0 ? "No job matches the filters." : "";
    table.element.hidden = shown.length === 0;
    table.show(rows);
  }

  // readHealth reads the health of the jobs. Nodes of a cluster do not report it.
  async function readHealth() {
    try {
      const list = await get("/v1/jobs/health?namespace=*", signal);
      healthByJob = new Map(list.map((health) => [`${health.Namespace}/${health.JobID}`, health]));
    } catch (err) {
      if (signal.aborted) return;
      if (!healthByJob || isRejected(err)) healthByJob = new Map();
    }
    draw();
  }

  // readPorts reads the ports of the jobs, which the list can lack: nodes of a cluster do not report them.
  async function readPorts() {
    try {
      const list = await get("/v1/jobs/ports?namespace=*", signal);
      portsByJob = new Map(list.map((job) => [`${job.Namespace}/${job.JobID}`, job.Ports]));
    } catch (err) {
      if (isRejected(err)) portsByJob = new Map();
    }
    if (!signal.aborted) draw();
  }

  return Promise.all([
    watch("/v1/jobs?namespace=*", signal, (value) => {
      jobs = value;
      tree = groupJobs(jobs, keyOf);
      return Promise.all([readHealth(), readPorts()]);
    }, showError),
    poll(healthPause, signal, () => jobs && readHealth()),
  ]);
}

// healthPause is the time in milliseconds after which the health is read again, because checks and time change it without a change of
// the list.
const healthPause = 10000;

const matches = (wanted, value) => !wanted || wanted === value;
const plural = (n) => n === 1 ? "1 job" : n + " jobs";
const keyOf = (job) => job.Namespace + "/" + job.ID;

// nameCell shows the name of a job, below the job that has launched it without the part that both names have.
function nameCell(job, parent) {
  return [
    link(jobPath(job.ID, job.Namespace), parent ? job.ID.slice(parent.ID.length + 1) : job.ID),
    job.Name !== job.ID && h("span", { class: "dim" }, " ", job.Name)];
}

// maxPorts is the number of ports of a job that the list shows.
const maxPorts = 4;

// portLinks creates links to the ports of a job.
function portLinks(ports = []) {
  const shown = ports.slice(0, maxPorts).map((port) => {
    // The address of a port that listens on all addresses is that of the agent.
    const host = /^(0\.0\.0\.0|::|)$/.test(port.Address) ? location.hostname.replace(/^\[|\]$/g, "") : port.Address;
    const target = `${port.Scheme}://${address(host, port.Port)}/`;
    return h("a", { href: target, title: target, target: "_blank", rel: "noopener noreferrer" }, port.Label, " ", h("span", { class: "number" }, port.Port));
  });
  return h("span", { class: "ports" }, shown, ports.length > maxPorts && h("span", { class: "dim" }, `and ${ports.length - maxPorts} more`));
}

// counts shows how many allocations are in each status, and how many jobs that a periodic or parameterized job has
// launched have not ended.
function counts(job) {
  const sums = {};
  const add = (status, n) => { if (n) sums[status] = (sums[status] ?? 0) + n; };
  for (const group of Object.values(job.JobSummary?.Summary ?? {})) {
    for (const status of ["Running", "Starting", "Queued", "Failed", "Lost", "Unknown", "Complete"]) add(status.toLowerCase(), group[status]);
  }
  const children = job.JobSummary?.Children ?? {};
  for (const status of ["Pending", "Running"]) add(status.toLowerCase() + (children[status] === 1 ? " job" : " jobs"), children[status]);
  return h("span", { class: "counts" }, Object.entries(sums).map(([status, n]) => h("span", { class: "badge status-" + status.replace(/ .*/, "") }, `${n} ${status}`)));
}
