import assert from "node:assert/strict";
import test from "node:test";
import "./document.js";
import { checkStatus, healthRank, healthSentence, jobStatus, jobType, launchesJobs, tasksOf } from "../static/status.js";

const { healthBadge, healthNotice } = await import("../static/health.js");

test("jobs that need attention come first", () => {
  const words = ["stopped", "complete", "running", "waiting", "deploying", "degraded", "blocked", "failed", "failing"];
  const jobs = [{ Health: "unknown" }, ...words.map((Health) => ({ Health })), { Health: "waiting", Remedy: "promote it" }];
  const sorted = jobs.sort((a, b) => healthRank(a) - healthRank(b));
  assert.deepEqual(sorted.map((health) => health.Remedy ?? health.Health),
    ["failing", "failed", "blocked", "degraded", "promote it", "deploying", "waiting", "running", "complete", "stopped", "unknown"]);
});

test("the sentence of a health", () => {
  assert.equal(healthSentence({ Reason: "no memory", Remedy: "Stop a job." }), "no memory. Stop a job.");
  assert.equal(healthSentence({ Reason: "no memory", Remedy: "" }), "no memory");
});

test("a job without a reason has no notice", () => {
  assert.equal(healthNotice({ Health: "running", Reason: "" }), null);
  const [notice] = healthNotice({ Health: "failing", Reason: "exits with 1", Remedy: "", AllocID: "01234567-x", Task: "web" });
  assert.match(notice.textContent, /^This job is failingexits with 1Output around the exit of task web · Allocation 01234567 · Output of task web$/);
  assert.deepEqual(notice.all("a").map((a) => a.getAttribute("href")), ["/ui/allocations/01234567-x/timeline#exit=web", "/ui/allocations/01234567-x", "/ui/allocations/01234567-x/web/logs"]);
});

test("a job that works again has a notice about the deployment that has failed", () => {
  const [reason, notice] = healthNotice({ Health: "running", Reason: "", FailedDeployment: { JobVersion: 1, Description: "rolling back to job version 0", Reason: "exit code 3", AllocID: "01234567-x", Task: "web" } });
  assert.equal(reason, "");
  assert.equal(notice.textContent, "The deployment of version 1 has failedrolling back to job version 0; exit code 3Allocation 01234567 · Output of task web");
  assert.deepEqual(notice.all("a").map((a) => a.getAttribute("href")), ["/ui/allocations/01234567-x", "/ui/allocations/01234567-x/web/logs"]);
});

test("the label of an agent that reports no health has the status", () => {
  assert.equal(healthBadge(undefined, "dead").textContent, "dead");
  assert.equal(healthBadge({ Health: "blocked" }, "running").getAttribute("class"), "health health-blocked");
});

test("words for jobs", () => {
  assert.equal(jobType({ Type: "batch", Periodic: {} }), "batch, periodic");
  assert.equal(jobType({ Type: "batch", ParameterizedJob: {}, ParentID: "" }), "batch, parameterized");
  assert.equal(jobType({ Type: "batch", ParameterizedJob: {}, ParentID: "parent" }), "batch");
  assert.equal(launchesJobs({ ParameterizedJob: {}, ParentID: "parent" }), false);
  assert.equal(launchesJobs({ Periodic: {} }), true);
  assert.equal(jobStatus({ Status: "dead", Stop: true }), "stopped");
  assert.equal(jobStatus({ Status: "dead", Stop: false }), "dead");
  assert.equal(checkStatus({ Status: "failure" }), "failing");
  assert.equal(checkStatus({ Status: "pending" }), "pending");
});

test("the tasks of an allocation are those of its group", () => {
  const Job = { TaskGroups: [{ Name: "a", Tasks: [{ Name: "x" }] }, { Name: "b", Tasks: [{ Name: "y" }] }] };
  assert.deepEqual(tasksOf({ Job, TaskGroup: "b" }), [{ Name: "y" }]);
  assert.deepEqual(tasksOf({ Job: null, TaskGroup: "b" }), []);
});
