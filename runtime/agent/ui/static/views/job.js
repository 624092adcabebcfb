// @ts-check
// The page of a job: its state and actions, and tabs with its parts.

import { can, follow, get, poll } from "../api.js";
import { ago, crumbs, facts, h, link, replace, update } from "../dom.js";
import { healthBadge, healthNotice } from "../health.js";
import { dispatch, jobActions } from "../jobactions.js";
import { jobTabs } from "../jobtabs.js";
import { overview } from "../joboverview.js";
import { takeNotice } from "../notices.js";
import { jobAPI, jobPath } from "../paths.js";
import { jobStatus, jobType } from "../status.js";

const titles = [
  ["", "Overview"], ["definition", "Definition"], ["versions", "Versions"], ["deployments", "Deployments"],
  ["allocations", "Allocations"], ["evaluations", "Evaluations"], ["services", "Services"], ["logs", "Logs"],
];

// tabRights are capabilities for the tabs that the token may not permit: one of them is needed.
const tabRights = { definition: ["read-job"], versions: ["read-job"], logs: ["read-logs", "read-fs"] };

// healthPause is the time in milliseconds after which the health is read again, because checks and time change it without an event.
const healthPause = 5000;

export async function show(main, { job: id, namespace = "default", tab, group, query: parameters }, signal) {
  document.title = `${id} – nomad-lite`;
  const isDispatch = tab === "dispatch";
  const shownTab = isDispatch ? "" : tab ?? "";
  const header = h("div");
  const notice = takeNotice();
  const context = { id, namespace, group, parameters, signal, api: (route, query) => jobAPI(id, namespace, route, query) };
  const part = (jobTabs[shownTab] ?? overview)(context);
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of the job" }, titles.map(([name, title]) =>
    h("a", { permitted: !tabRights[name] || can(namespace, ...tabRights[name]), href: jobPath(id, namespace, name), "aria-current": name === shownTab ? "page" : null }, title)));
  // The parts are shown together, so that no tab moves when the header arrives.
  const parts = [header, tabs, part.element];
  for (const e of parts) e.hidden = true;
  replace(main, header,
    notice && h("section", { class: "notice", role: "status" }, h("p", { class: "lines" }, notice.trim())),
    tabs, part.element);

  let job = null, summary, health;
  async function readHealth() {
    // A node of a cluster does not report the health.
    health = await get(context.api("health"), signal).catch(() => health);
    if (job && !signal.aborted) update(header, jobHeader(job, summary, health));
  }
  async function refresh() {
    const isFirst = job === null;
    const [read, counts] = await Promise.all([get(context.api(""), signal), get(context.api("summary"), signal)]);
    job = read;
    summary = counts;
    await readHealth();
    await part.refresh(job);
    for (const e of parts) e.hidden = false;
    if (isFirst && isDispatch && job.ParameterizedJob && can(namespace, "dispatch-job")) dispatch(job);
  }
  // All jobs: those that a periodic or parameterized job launches are shown too.
  const topics = ["Job:*", `Allocation:${id}`, `Evaluation:${id}`, `Deployment:${id}`, `Service:${id}`];
  const ended = new AbortController(); // the health of a page with an error is not read again
  try {
    await Promise.all([follow(namespace, topics, signal, refresh), poll(healthPause, AbortSignal.any([signal, ended.signal]), () => job && readHealth())]);
  } catch (err) {
    ended.abort();
    if (err.status !== 404) throw err;
    replace(main, h("h1", null, job ? `Job ${id} was removed` : `There is no job ${id} in namespace ${namespace}`), h("p", null, link("/ui/jobs", "All jobs")));
  }
}

/** @param {API.Job} job */
function jobHeader(job, summary, health) {
  const running = Object.values(summary.Summary ?? {}).reduce((sum, group) => sum + group.Running, 0);
  return [
    crumbs([["/ui/jobs", "Jobs"], ...(job.ParentID ? [[jobPath(job.ParentID, job.Namespace), job.ParentID]] : [])]),
    h("div", { class: "title" }, h("h1", null, job.Name === job.ID ? job.ID : `${job.ID} (${job.Name})`), h("span", { role: "status" }, healthBadge(health, jobStatus(job))), jobActions(job, running)),
    healthNotice(health),
    job.UI?.Description && h("p", { class: "lines" }, job.UI.Description),
    job.UI?.Links?.length > 0 && h("p", null, job.UI.Links.map(outsideLink)),
    facts([
      ["Type", jobType(job)], ["Nomad’s status", jobStatus(job)],
      ["Namespace", job.Namespace], ["Version", job.Version], ["Priority", job.Priority],
      job.ParentID && ["Launched by", link(jobPath(job.ParentID, job.Namespace), job.ParentID)],
      job.Periodic && ["Schedule", [job.Periodic.Spec, ...(job.Periodic.Specs ?? [])].filter(Boolean).join("; ") + (job.Periodic.TimeZone ? ` (${job.Periodic.TimeZone})` : "")],
      job.SubmitTime && ["Submitted", ago(job.SubmitTime)],
      job.StatusDescription && ["Description", job.StatusDescription],
    ]),
  ];
}

// outsideLink shows a link of the job specification. Only web addresses become links.
function outsideLink({ Label, Url: address }) {
  return /^https?:\/\//i.test(address) ? [h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, Label), " "] : `${Label}: ${address} `;
}
