// @ts-check
// The pages of one allocation: the module in allocation/ that shows a path, below a common head.

import * as files from "../allocation/files.js";
import * as logs from "../allocation/logs.js";
import * as overview from "../allocation/overview.js";
import * as timeline from "../allocation/timeline.js";
import { can, get } from "../api.js";
import { crumbs, h } from "../dom.js";
import { shortID } from "../format.js";
import { fullID } from "../ids.js";
import { allocationPath, execPath, jobPath } from "../paths.js";
import { tasksOf } from "../status.js";

const parts = { files, logs, overview, timeline };

export async function show(main, { id, path = "" }, signal) {
  const alloc = await get(`/v1/allocation/${encodeURIComponent(await fullID(id, "allocation", "/v1/allocations", signal))}`, signal);
  const { module, task, file } = select(path);
  document.title = `${alloc.Name} ${task ?? ""} – nomad-lite`;
  const current = (name) => module === name ? "page" : undefined;
  main.append(
    crumbs([["/ui/jobs", "Jobs"], [jobPath(alloc.JobID, alloc.Namespace), alloc.JobID], [jobPath(alloc.JobID, alloc.Namespace, alloc.TaskGroup), alloc.TaskGroup],
      ...(task ? [[allocationPath(alloc.ID), "Allocation " + shortID(alloc.ID)]] : [])]),
    h("h1", null, h("bdi", null, task ?? alloc.Name), h("span", { class: "dim" }, task ? " task" : " allocation " + shortID(alloc.ID))),
    h("nav", { class: "tabs", "aria-label": task ? "Task" : "Allocation" }, task ? [
      tab(allocationPath(alloc.ID, task), "Overview", current("overview")),
      tab(allocationPath(alloc.ID, task, "logs"), "Logs", current("logs"), can(alloc.Namespace, "read-logs", "read-fs")),
      tab(allocationPath(alloc.ID, task, "fs"), "Files", current("files"), can(alloc.Namespace, "read-fs")),
      tab(execPath(alloc, task), "Terminal", undefined, can(alloc.Namespace, "alloc-exec")),
      tab(allocationPath(alloc.ID, "timeline"), "Time line", undefined, can(alloc.Namespace, "read-job")),
    ] : [
      tab(allocationPath(alloc.ID), "Overview", current("overview")),
      tab(allocationPath(alloc.ID, "timeline"), "Time line", current("timeline"), can(alloc.Namespace, "read-job")),
      tab(allocationPath(alloc.ID, "fs"), "Files", current("files"), can(alloc.Namespace, "read-fs")),
    ]));
  if (task && !tasksOf(alloc).some((t) => t.Name === task)) {
    main.append(h("p", { role: "alert" }, `The allocation has no task ${task}.`));
    return;
  }
  await parts[module].show(main, { alloc, task, file }, signal);
}

function tab(path, title, current, permitted) {
  return h("a", { href: path, "aria-current": current, permitted }, title);
}

// select returns the module for a path below the allocation. A task with the name fs or timeline has no pages.
function select(path) {
  const names = path.split("/");
  if (path === "") return { module: "overview" };
  if (path === "timeline") return { module: "timeline" };
  if (names[0] === "fs") return { module: "files", file: names.slice(1).join("/") };
  const task = names[0];
  if (names[1] === "logs") return { module: "logs", task };
  if (names[1] === "fs") return { module: "files", task, file: names.slice(2).join("/") };
  return { module: "overview", task };
}
