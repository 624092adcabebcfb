// @ts-check
// The jobs that periodic and parameterized jobs have launched, in the list of jobs.

import { h } from "./dom.js";
import { clock } from "./format.js";
import { jobPath } from "./paths.js";

// groupJobs orders a list of jobs of the API by the job that has launched them. The result has roots, the jobs that no job of
// the list has launched; launchedBy(job), the newest first; and parentOf(job), undefined for roots.
export function groupJobs(jobs, keyOf) {
  const byKey = new Map(jobs.map((job) => [keyOf(job), job]));
  const parentOf = (job) => job.ParentID ? byKey.get(keyOf({ ...job, ID: job.ParentID })) : undefined;
  const launched = new Map();
  for (const job of jobs) {
    const parent = parentOf(job);
    if (!parent) continue;
    if (!launched.has(parent)) launched.set(parent, []);
    launched.get(parent).push(job);
  }
  for (const list of launched.values()) list.sort((a, b) => b.SubmitTime - a.SubmitTime);
  return { roots: jobs.filter((job) => !parentOf(job)), launchedBy: (job) => launched.get(job) ?? [], parentOf };
}

// maxResults is the number of launched jobs in a row of results.
const maxResults = 10;

const signs = { complete: "✓", failed: "✗", failing: "✗", degraded: "!", blocked: "!", running: "●", stopped: "■", dead: "■" };

// lastResults creates a row of signs with links for the jobs that were launched last, the newest at the end, or null.
// launched has the newest first; word(job) returns the health of a job.
export function lastResults(launched, word) {
  return launched.length > 0 && h("span", { class: "results" }, launched.slice(0, maxResults).reverse().map((job) => {
    const text = `${job.ID.slice(job.ParentID.length + 1)}: ${word(job)}, launched ${clock(job.SubmitTime)}`;
    return h("a", { "data-key": job.ID, href: jobPath(job.ID, job.Namespace), class: `health-${word(job)}`, "aria-label": text, title: text }, signs[word(job)] ?? "○");
  }));
}
