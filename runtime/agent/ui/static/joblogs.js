// @ts-check
// The tab of a job with the output of all its tasks: lines in the order of their arrival, which the agent merges and filters.
//
// A line is a line of the API. Its position is its link, and the place where the page continues.

import { APIError, isRejected, pause, stream, visible, whileVisible } from "./api.js";
import { element as ansiElement, plainText } from "./ansi.js";
import { h, replace } from "./dom.js";
import { bytes, clock } from "./format.js";
import { showError } from "./page.js";
import { allocationPath, jobPath, rememberFilter } from "./paths.js";

const pageLines = 1000, contextLines = 200; // lines of a request, and before the line of a link
const blockSize = 200; // lines of an element that the browser draws only on the screen
const maxBlocks = 60; // blocks on the page
const typingPause = 400; // milliseconds after the last key until a filter is applied
const overlap = 1000; // milliseconds of output that are read again where follow continues, in case it has arrived late

export function logs({ id, namespace, api, parameters, signal }) {
  const select = (label, options, value) => h("select", { "aria-label": label, onchange: restart }, options.map(([name, title]) => h("option", { value: name, selected: name === value }, title)));
  const checkbox = (name, checked, onchange) => h("input", { type: "checkbox", id: "log-" + name.replaceAll(" ", "-"), "aria-label": name, checked, onchange });
  const labelled = (box) => h("span", null, box, h("label", { for: box.id }, " " + box.getAttribute("aria-label")));
  const kind = select("Kind of the filter", [["text", "text"], ["regexp", "regular expression"]], parameters.get("regexp") ? "regexp" : "text");
  const filter = h("input", { type: "search", "aria-label": "Filter of the whole log", placeholder: "filter the whole log", value: parameters.get("regexp") ?? parameters.get("text") ?? "", oninput: onInput, onchange: restart });
  const task = select("Task", [["", "all tasks"]], "");
  const streams = select("Streams", [["", "stdout and stderr"], ["stdout", "stdout"], ["stderr", "stderr"]], parameters.get("type") ?? "");
  const time = h("input", { type: "datetime-local", step: 1, "aria-label": "Go to a time", onchange: () => { if (time.value) goTo(String(new Date(time.value).getTime())); } });
  const followBox = checkbox("follow", true, () => (followBox.checked ? goTo("") : stopFollowing()));
  const wrapBox = checkbox("wrap", false, () => pre.classList.toggle("wrap", wrapBox.checked));
  const fieldsBox = checkbox("JSON as fields", true, redraw);
  const bar = h("progress", { hidden: true, "aria-label": "Progress of the search" }), status = h("p", { role: "status", class: "dim" });
  const earlier = h("button", { hidden: true, onclick: loadEarlier }, "Earlier lines"), later = h("button", { hidden: true, onclick: loadLater }, "Later lines");
  const pre = h("pre", { class: "log with-times", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Output of the job", onscroll: () => { atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 20; } });
  const element = h("div", null,
    h("div", { class: "toolbar" }, filter, kind, task, streams, h("label", null, "go to ", time), labelled(followBox), labelled(wrapBox), labelled(fieldsBox)),
    h("div", { class: "toolbar" }, bar, status), earlier, pre, later);

  let current = new AbortController(), typing = 0, applied = "", atEnd = true, at = parameters.get("at") ?? "";
  let following = new AbortController();
  let shownUntil = 0; // milliseconds since 1970: follow has no new lines of an earlier time
  let wantedTask = parameters.get("task") ?? "", isStarted = false;
  const colours = new Map(); // by the labels of tasks

  const selection = () => ({
    ...(filter.value && { [kind.value]: filter.value }), ...(task.value && { task: task.value }), ...(streams.value && { type: streams.value }),
  });

  // goTo shows the lines around a position, or the end of the output for "".
  function goTo(position) {
    at = position;
    applied = "";
    restart();
  }

  function onInput() {
    clearTimeout(typing);
    typing = setTimeout(restart, typingPause);
  }

  // restart shows the lines of the selection, unless it shows them already.
  async function restart() {
    clearTimeout(typing);
    if (applied === JSON.stringify([selection(), at])) return;
    applied = JSON.stringify([selection(), at]);
    rememberFilter({ ...selection(), at });
    const until = replaceCurrent();
    replace(pre);
    [shownUntil, atEnd] = [0, true];
    earlier.hidden = later.hidden = true;
    followBox.checked = at === "";
    const isTried = await attempt(until, async () => {
      if (at === "") {
        earlier.hidden = await search({ reverse: true, lines: pageLines }, until, prepend);
      } else {
        earlier.hidden = await search({ reverse: true, before: at, lines: contextLines }, until, prepend);
        later.hidden = await search({ from: at, lines: pageLines }, until, append);
        showLinked();
      }
      if (followBox.checked) await follow(until);
      else setStatus("");
    });
    if (isTried) return;
    await pause(1000, until);
    if (!until.aborted) goTo(at);
  }

  function replaceCurrent() {
    current.abort();
    current = new AbortController();
    return AbortSignal.any([signal, current.signal]);
  }

  function stopFollowing() {
    following.abort();
    followBox.checked = false;
    setStatus("New lines are not shown.");
  }

  // attempt shows the error of a search in place of its progress. It returns false if the agent did not answer.
  async function attempt(until, run) {
    try {
      await run();
    } catch (err) {
      if (until.aborted) return true;
      bar.hidden = true;
      status.textContent = err.status === 404 ? "The agent has no output of this job." : err.message;
      if (!isRejected(err)) return false;
      if (err.status === 403) showError(err);
    }
    return true;
  }

  // search calls show(lines) with the lines that the agent sends, and shows the progress. It returns whether all stored lines were
  // searched; otherwise there are more than the request has asked for.
  async function search(query, until, show) {
    let isComplete = false, count = 0, last = { StartedAt: 0 };
    await stream(api("logs", { ...selection(), ...query }), until, async ({ Lines: lines, Progress: progress, Error: error }) => {
      if (until.aborted) return;
      if (error) throw new APIError(400, error);
      if (lines) {
        count += lines.length;
        const isAtEnd = atEnd;
        show(lines, isComplete);
        if (isAtEnd && at === "") scrollToEnd();
        await pause(20, until); // a flood of lines is drawn in frames
      }
      if (!progress || isComplete) return;
      last = progress;
      isComplete = progress.IsComplete;
      bar.hidden = isComplete;
      bar.max = Math.max(1, progress.TotalBytes);
      bar.value = progress.ReadBytes;
      setStatus(`${count} lines in ${bytes(progress.ReadBytes)} of ${bytes(progress.TotalBytes)}.`, progress.OmittedAllocations);
      if (!isComplete || !query.follow) return;
      setStatus(followed(), progress.OmittedAllocations);
      shownUntil = Math.max(shownUntil, progress.StartedAt - overlap);
    });
    bar.hidden = true;
    if (query.reverse && !query.before && last) shownUntil = last.StartedAt - overlap;
    return isComplete;
  }

  // followed returns the status while new lines are shown.
  function followed() {
    const found = filter.value && earlier.hidden ? `${pre.querySelectorAll(".line").length} lines in the whole log. ` : "";
    return found + "New lines appear as they arrive.";
  }

  function setStatus(text, omitted) {
    status.textContent = (text || (pre.childElementCount ? "" : "No lines.")) + (omitted ? ` ${omitted} older allocations were not read.` : "");
  }

  // follow shows new lines until the signal ends. It holds no connection while the page is hidden, and continues after a lost
  // connection.
  async function follow(selected) {
    following = new AbortController();
    const until = AbortSignal.any([selected, following.signal]);
    while (!until.aborted) {
      const known = new Map([...pre.querySelectorAll(".line")].filter(({ line }) => line.Time >= shownUntil).map((e) => [identity(e.line), e]));
      try {
        await search({ from: shownUntil, follow: true }, whileVisible(until), (lines, areNew) => {
          append(areNew ? lines : lines.filter((line) => {
            const old = known.get(identity(line)), first = pre.querySelector(".line");
            if (old?.line.IsPartial) old.replaceWith(lineElement(line));
            return !old && (earlier.hidden || !first || line.Time > first.line.Time); // loadEarlier shows the others
          }));
          if (!areNew) return;
          setStatus(followed());
          for (const { Time } of lines) shownUntil = Math.max(shownUntil, Time - overlap);
        });
      } catch (err) {
        if (until.aborted) return;
        if (isRejected(err)) throw err;
      }
      await visible(until);
      await pause(1000, until);
    }
  }

  // append adds lines at the end. It keeps the latest ones if there are too many.
  function append(lines) {
    for (const line of lines) {
      if (!(pre.lastElementChild?.childElementCount < blockSize)) pre.append(h("div", { class: "block" }));
      pre.lastElementChild.append(lineElement(line));
    }
    while (pre.childElementCount > maxBlocks) {
      pre.firstElementChild.remove(); // read again when it is wanted
      earlier.hidden = false;
    }
  }

  // prepend adds lines at the start. The last one comes first in lines.
  function prepend(lines) {
    const height = pre.scrollHeight;
    for (const line of lines) {
      if (!(pre.firstElementChild?.childElementCount < blockSize)) pre.prepend(h("div", { class: "block" }));
      pre.firstElementChild.prepend(lineElement(line));
    }
    pre.scrollTop += pre.scrollHeight - height;
    if (pre.childElementCount <= maxBlocks) return;
    while (pre.childElementCount > maxBlocks) pre.lastElementChild.remove();
    later.hidden = false;
    if (followBox.checked) stopFollowing();
  }

  function loadEarlier() {
    load({ reverse: true, before: pre.querySelector(".line").line.Position }, earlier, prepend);
  }

  function loadLater() {
    load({ after: pre.lastElementChild.lastElementChild.line.Position }, later, append);
  }

  async function load(query, button, show) {
    button.disabled = true;
    const until = AbortSignal.any([signal, current.signal]);
    await attempt(until, async () => {
      const isLast = await search({ ...query, lines: pageLines }, until, show);
      button.hidden = isLast;
      setStatus(followBox.checked ? followed() : "");
    });
    button.disabled = false;
  }

  const scrollToEnd = () => { pre.scrollTop = pre.scrollHeight; };

  // showLinked marks the line of a link, and scrolls to it or to the first line after a time.
  function showLinked() {
    const all = [...pre.querySelectorAll(".line")];
    const linked = all.find(({ line }) => line.Position === at) ?? all.find(({ line }) => line.Time >= parseInt(at, 10));
    linked?.classList.add("during");
    linked?.scrollIntoView({ block: "center" });
  }

  function redraw() {
    for (const old of pre.querySelectorAll(".line")) {
      const now = lineElement(old.line);
      now.classList.toggle("during", old.classList.contains("during"));
      old.replaceWith(now);
    }
  }

  function lineElement(line) {
    const name = line.JobID === id ? "" : line.JobID.slice(id.length + 1) + "/";
    const label = name + line.AllocName.slice(line.AllocName.lastIndexOf(".") + 1) + "." + line.Task;
    if (!colours.has(label)) colours.set(label, [4, 2, 5, 6, 3, 13, 14][colours.size % 7]);
    const path = jobPath(id, namespace, "logs") + "?" + new URLSearchParams({ at: line.Position }); // with the lines around it, whatever the filter
    const created = h("div", { class: "line " + line.Stream },
      line.AfterGap && h("div", { class: "gap" }, "Output can be missing here: log files were removed before this page has read them."),
      h("a", { class: "time", href: path, title: clock(line.Time * 1e6) }, clock(line.Time * 1e6, true)), " ",
      h("a", { class: "source sgr-fg-" + colours.get(label), href: allocationPath(line.AllocID, line.Task, "logs"), title: "allocation " + line.AllocID }, label), " ",
      line.Stream === "stderr" && h("span", { class: "stream" }, "stderr "), fieldsBox.checked && fields(line.Text) || ansiElement(line.Text));
    created.line = line;
    return created;
  }

  return {
    element,
    refresh: (job) => {
      const tasks = [...new Set((job.TaskGroups ?? []).flatMap((g) => (g.Tasks ?? []).map((t) => t.Name)))];
      if (wantedTask && !tasks.includes(wantedTask)) tasks.push(wantedTask);
      const value = isStarted ? task.value : wantedTask;
      replace(task, h("option", { value: "" }, "all tasks"), tasks.map((name) => h("option", { value: name }, name)));
      task.value = value;
      if (isStarted) return;
      isStarted = true;
      wantedTask = "";
      signal.addEventListener("abort", () => clearTimeout(typing));
      restart();
    },
  };
}

// identity returns the part of a line's position that does not depend on its time: file, offset, stream, allocation and task.
const identity = ({ Position }) => Position.slice(Position.indexOf(".") + 1);

const messageNames = ["message", "msg", "@message"], levelNames = ["level", "@level", "severity", "lvl"];

// fields creates the fields of a line that is a JSON object: its level and message, and then the others. It returns undefined for
// another line.
function fields(text) {
  if (!/^\s*\{.*\}\s*$/.test(text)) return undefined;
  let object;
  try {
    object = JSON.parse(text);
  } catch {
    return undefined;
  }
  const show = (value) => plainText(typeof value === "string" ? value : JSON.stringify(value));
  const level = levelNames.find((name) => name in object), message = messageNames.find((name) => name in object);
  const severity = /^(err|fatal|crit|panic|alert|emerg)/i.test(object[level]) ? "log-bad" : /^warn/i.test(object[level]) ? "log-warn" : "dim";
  return h("span", null,
    level && [h("span", { class: severity }, show(object[level]).toUpperCase()), " "],
    message && [h("strong", null, show(object[message])), " "],
    Object.entries(object).filter(([name]) => name !== level && name !== message).map(([name, value]) => [h("span", { class: "dim" }, plainText(name) + "="), show(value), " "]));
}
