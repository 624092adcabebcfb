// @ts-check
// The list of evaluations, and the page of an evaluation.

import { allocationColumns } from "../allocationtable.js";
import { get, watch } from "../api.js";
import { ago, badge, facts, h, link, table, update } from "../dom.js";
import { clock, duration, isSet, shortID } from "../format.js";
import { fullID } from "../ids.js";
import { liveTable } from "../livetable.js";
import { showError } from "../page.js";
import { evaluationPath, jobPath } from "../paths.js";
import { evaluationColumns, placementFailures, trigger } from "../placement.js";

// show shows the evaluation of Nomad's paths, evaluations?currentEval=ID, too.
export async function show(main, { id: pathID, query }, signal) {
  const id = pathID ?? query.get("currentEval");
  await (id ? showOne(main, await fullID(id, "evaluation", "/v1/evaluations", signal), signal) : showList(main, query, signal));
}

function showList(main, query, signal) {
  document.title = "Evaluations – nomad-lite";
  let all = null;
  const { id, ...others } = evaluationColumns;
  const list = liveTable("Evaluations",
    [id, { title: "Job", cell: (e) => link(jobPath(e.JobID, e.Namespace), e.JobID), sort: (e) => e.JobID }, ...Object.values(others)], (e) => e.ID, signal);
  const filter = h("input", { type: "search", "aria-label": "Filter by job", placeholder: "filter by job", value: query.get("text"), oninput: () => draw() });
  const status = h("select", { "aria-label": "Status", onchange: () => draw() },
    ["", "blocked", "pending", "complete", "failed", "canceled"].map((value) => h("option", { value }, value || "Status: all")));
  const message = h("p", { role: "status" });
  main.append(h("h1", null, "Evaluations"),
    h("p", { class: "dim" }, "An evaluation is a decision of the scheduler about a job: what to start, stop or replace."),
    h("div", { class: "toolbar" }, filter, status), message, list.element);
  function draw() {
    if (!all) return;
    const shown = all.filter((e) => e.JobID.toLowerCase().includes(filter.value.toLowerCase()) && (!status.value || e.Status === status.value));
    shown.sort((a, b) => b.CreateIndex - a.CreateIndex);
    message.textContent = shown.length ? "" : all.length ? "No evaluation matches the filters." : "No evaluations.";
    list.element.hidden = shown.length === 0;
    list.show(shown);
  }
  return watch("/v1/evaluations?namespace=*", signal, (value) => { all = value; draw(); }, showError);
}

function showOne(main, id, signal) {
  document.title = `Evaluation ${shortID(id)} – nomad-lite`;
  return watch(`/v1/evaluation/${encodeURIComponent(id)}?related=true`, signal, async (e) => {
    const allocations = await get(`/v1/evaluation/${encodeURIComponent(id)}/allocations`, signal).catch(() => null); // the page shows the rest
    if (!signal.aborted) update(main, evaluation(e, allocations));
  }, showError);
}

/** @param {API.Evaluation} e */
function evaluation(e, allocations) {
  const failures = placementFailures(e.FailedTGAllocs);
  const plan = Object.entries(e.PlanAnnotations?.DesiredTGUpdates ?? {}).sort(([a], [b]) => a.localeCompare(b));
  const others = (e.RelatedEvals ?? []).filter((other) => other.ID !== e.ID);
  return [
    h("div", { class: "title" }, h("h1", null, `Evaluation ${shortID(e.ID)}`), h("span", { role: "status" }, badge(e.Status))),
    facts([
      ["ID", h("span", { class: "mono" }, e.ID)],
      ["Job", link(jobPath(e.JobID, e.Namespace), e.JobID)],
      ["Namespace", e.Namespace],
      ["Reason", trigger(e)],
      e.StatusDescription && ["Description", e.StatusDescription],
      ["Priority", e.Priority],
      ["Created", ago(e.CreateTime)],
      ["Changed", clock(e.ModifyTime)],
      e.ModifyTime > e.CreateTime && ["Duration", duration((e.ModifyTime - e.CreateTime) / 1e6)],
      isSet(e.WaitUntil) && ["Waits until", clock(e.WaitUntil)],
      e.DeploymentID && ["Deployment", link(jobPath(e.JobID, e.Namespace, "deployments"), shortID(e.DeploymentID))],
    ]),
    failures && h("section", { class: "notice", "data-key": "failures" }, h("h2", null, "Placement failures"), failures,
      e.BlockedEval && h("p", null, "The rest waits in evaluation ", link(evaluationPath(e.BlockedEval), shortID(e.BlockedEval)), "."),
      e.Status === "blocked" && h("p", null, "The agent tries again when the node changes.")),
    plan.length > 0 && [h("h2", null, "Plan"), table("Plan", [
      { title: "Group", class: "clip", cell: ([name]) => name },
      ...[["Place", "Place"], ["Canary", "Canary"], ["DestructiveUpdate", "Replace"], ["InPlaceUpdate", "Update in place"], ["Migrate", "Move"], ["Stop", "Stop"], ["Ignore", "Keep"]]
        .map(([key, title]) => ({ title, class: "number", cell: ([, counts]) => counts[key] ?? 0 })),
    ], plan, ([name]) => name)],
    h("h2", null, "Allocations"),
    placed(allocations),
    others.length > 0 && [h("h2", null, "Related evaluations"), table("Related evaluations",
      [evaluationColumns.id, evaluationColumns.reason, evaluationColumns.status, evaluationColumns.created], others, (o) => o.ID)],
  ];
}

// placed shows the allocations of an evaluation, null if they cannot be read.
function placed(allocations) {
  if (!allocations) return h("p", { class: "error" }, "The allocations cannot be read.");
  if (allocations.length === 0) return h("p", null, "This evaluation placed no allocation that still exists.");
  return table("Allocations", [allocationColumns.id, allocationColumns.name, allocationColumns.status], allocations, (a) => a.ID);
}
