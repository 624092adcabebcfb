// @ts-check
// The list of all jobs.

import { get, isRejected, poll, watch } from "../api.js";
import { ago, h, link, update } from "../dom.js";
import { milliseconds } from "../format.js";
import { healthBadge, healthReason } from "../health.js";
import { liveTable } from "../livetable.js";
import { showError } from "../page.js";
import { jobPath, rememberFilter } from "../paths.js";
import { healthRank, jobStatus, jobType } from "../status.js";
import { jobUsageColumns } from "../usage.js";

export function show(main, { query }, signal) {
  document.title = "Jobs – nomad-lite";
  let jobs = null;
  let healthByJob = null;
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
    { title: "Name", cell: (job) => [nameCell(job), healthReason(healthOf(job))], sort: (job) => job.ID },
    { title: "Health", cell: (job) => healthBadge(healthOf(job), jobStatus(job)), sort: (job) => healthRank(healthOf(job)) },
    { title: "Allocations", cell: counts },
    ...jobUsageColumns(signal, () => draw()),
    { title: "Type", cell: jobType, sort: jobType },
    { title: "Namespace", cell: (job) => job.Namespace, sort: (job) => job.Namespace },
    { title: "Submitted", cell: (job) => ago(job.SubmitTime), sort: (job) => -milliseconds(job.SubmitTime ?? 0) },
  ], keyOf, signal);
  const message = h("p");
  main.append(
    h("div", { class: "title" }, h("h1", null, "Jobs"), h("a", { class: "button primary", href: "/ui/jobs/run", full: true }, "Run a job")),
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

  function draw() {
    if (!jobs || !healthByJob) return;
    const text = filters.text.toLowerCase();
    const shown = jobs.filter((job) => job.ID.toLowerCase().includes(text) && matches(filters.namespace, job.Namespace)
      && matches(filters.type, jobType(job)) && matches(filters.status, word(job)));
    shown.sort((a, b) => healthRank(healthOf(a)) - healthRank(healthOf(b)));
    update(selects, select("namespace", "Namespace", jobs.map((job) => job.Namespace)),
      select("type", "Type", jobs.map(jobType)), select("status", "Health", jobs.map(word)));
    const ill = jobs.filter((job) => healthOf(job)?.NeedsAttention).length;
    count.textContent = (shown.length === jobs.length ? plural(jobs.length) : `${shown.length} of ${plural(jobs.length)}`) +
      (ill ? `, ${ill} ${ill === 1 ? "needs" : "need"} attention` : "");
    message.textContent = jobs.length === 0 ? "No jobs. “Run a job” submits the first one." : shown.length === 0 ? "No job matches the filters." : "";
    table.element.hidden = shown.length === 0;
    table.show(shown);
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

  return Promise.all([
    watch("/v1/jobs?namespace=*", signal, (value) => { jobs = value; return readHealth(); }, showError),
    poll(healthPause, signal, () => jobs && readHealth()),
  ]);
}

// healthPause is the time in milliseconds after which the health is read again, because checks and time change it without a change of
// the list.
const healthPause = 10000;

const matches = (wanted, value) => !wanted || wanted === value;
const plural = (n) => n === 1 ? "1 job" : n + " jobs";
const keyOf = (job) => job.Namespace + "/" + job.ID;

function nameCell(job) {
  return [link(jobPath(job.ID, job.Namespace), job.ID), job.Name !== job.ID && h("span", { class: "dim" }, " ", job.Name)];
}

// counts shows how many allocations, or jobs that a periodic or parameterized job has launched, are in each status.
function counts(job) {
  const sums = {};
  const add = (status, n) => { if (n) sums[status] = (sums[status] ?? 0) + n; };
  for (const group of Object.values(job.JobSummary?.Summary ?? {})) {
    for (const status of ["Running", "Starting", "Queued", "Failed", "Lost", "Unknown", "Complete"]) add(status.toLowerCase(), group[status]);
  }
  const children = job.JobSummary?.Children ?? {};
  for (const status of ["Pending", "Running", "Dead"]) add(status.toLowerCase() + (children[status] === 1 ? " job" : " jobs"), children[status]);
  return h("span", { class: "counts" }, Object.entries(sums).map(([status, n]) => h("span", { class: "badge status-" + status.replace(/ .*/, "") }, `${n} ${status}`)));
}
