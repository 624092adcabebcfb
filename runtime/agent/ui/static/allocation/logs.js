// @ts-check
// The output of a task.

import { pause, send, visible, whileVisible } from "../api.js";
import { plainText } from "../ansi.js";
import { h, replace } from "../dom.js";
import { showError } from "../page.js";
import { ended, started, TaskLog } from "../tasklog.js";
import { lineElement, save } from "./loglines.js";

const firstLines = 1000, earlierLines = 2000;
const lastOutput = 1000; // milliseconds in which the last output of an ended task arrives
const blockSize = 200; // lines of an element that the browser draws only on the screen
const maxBlocks = 60; // blocks on the page
const maxLines = maxBlocks * blockSize;

export async function show(main, { alloc, task }, signal) {
  const choice = h("select", { "aria-label": "Streams", onchange: restart }, ["stdout and stderr", "stdout", "stderr"].map((name) => h("option", null, name)));
  const followBox = h("input", { type: "checkbox", id: "follow", "aria-label": "follow", checked: true, onchange: () => (followBox.checked ? restart() : stop()) });
  const wrapBox = h("input", { type: "checkbox", id: "wrap", "aria-label": "wrap", onchange: () => pre.classList.toggle("wrap", wrapBox.checked) });
  const timesBox = h("input", { type: "checkbox", id: "times", "aria-label": "times", onchange: () => pre.classList.toggle("with-times", timesBox.checked) });
  const search = h("input", { type: "search", "aria-label": "Search in the lines on the page", placeholder: "search", oninput: () => find(0), onkeydown: onSearchKey });
  const found = h("span", { role: "status", class: "dim" }), status = h("p", { role: "status", class: "dim" });
  const earlier = h("button", { hidden: true, onclick: loadEarlier }, "Earlier lines");
  const pre = h("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Output of " + task, onscroll });
  main.append(
    h("div", { class: "toolbar" }, choice, h("span", null, followBox, h("label", { for: "follow" }, " follow")), h("span", null, wrapBox, h("label", { for: "wrap" }, " wrap")),
      h("span", null, timesBox, h("label", { for: "times" }, " times")), search, found,
      h("button", { onclick: () => download("stdout") }, "Download stdout"), h("button", { onclick: () => download("stderr") }, "Download stderr")),
    earlier, pre, status);

  const tail = h("div", { class: "tail" }); // the incomplete lines at the end
  let incomplete = {}; // by their streams
  let blocks = [], log, current = new AbortController(), atEnd = true, loading = false, matches = [], match = -1, waiting = [], frame = 0;

  function stop() {
    current.abort();
    status.textContent = "New lines are not shown.";
  }

  async function restart() {
    current.abort();
    current = new AbortController();
    const until = AbortSignal.any([signal, current.signal]);
    [blocks, waiting, incomplete, atEnd] = [[], [], {}, true];
    replace(tail);
    replace(pre, tail);
    earlier.hidden = true;
    status.textContent = "The task has not started.";
    followBox.checked = true;
    try {
      await started(alloc.ID, task, until);
      if (until.aborted) return;
      log = new TaskLog(alloc.ID, task, choice.value === "stdout and stderr" ? ["stdout", "stderr"] : [choice.value]);
      await log.openToFollow(until);
      const lines = await log.earlier(firstLines, until);
      if (until.aborted) return;
      append(lines);
      earlier.hidden = lines.length < firstLines;
      status.textContent = "New lines appear as they arrive.";
      scrollToEnd();
      const end = new AbortController();
      // A rejection is that the allocation is no longer there, so its output has ended, too.
      ended(alloc.ID, until).catch(() => {}).then(() => pause(lastOutput, until)).then(() => end.abort());
      if (!await follow(until, AbortSignal.any([until, end.signal]))) return restart();
      if (!until.aborted) status.textContent = "The output has ended.";
    } catch (err) {
      if (until.aborted) return;
      if (err.status === 403) return showError(err);
      status.textContent = err.status === 404 ? "There is no output: " + err.message : err.message;
    }
  }

  // follow shows new lines until end, a signal that ends with until too. It holds no connection while the page is hidden,
  // and reads what it has missed when the page is shown. It returns false if that is more than the page can have.
  async function follow(until, end) {
    const show = (lines, unfinished) => (until.aborted ? undefined : arrived(lines, unfinished, until));
    for (;;) {
      const shown = whileVisible(end);
      if (!await log.follow(shown, show, maxLines)) return false;
      if (until.aborted) return true;
      const isEnd = end.aborted;
      if (!isEnd) await visible(until);
      if (until.aborted) return true;
      const missed = await log.missed(maxLines, until, isEnd);
      if (!missed) return false;
      incomplete = {};
      await show(missed, []);
      if (isEnd) return true;
    }
  }

  // arrived draws at most once per frame, and returns a promise while lines arrive faster than that. unfinished has the
  // incomplete line after lines.
  function arrived(lines, unfinished, until) {
    for (const line of lines) delete incomplete[line.stream];
    for (const line of unfinished) incomplete[line.stream] = line;
    waiting.push(...lines);
    return new Promise((resolve) => {
      const draw = () => {
        frame = 0;
        if (until.aborted) return;
        const all = waiting;
        waiting = [];
        append(all.slice(-maxLines));
        replace(tail, Object.values(incomplete).map(lineElement));
        if (atEnd) scrollToEnd();
      };
      frame ||= document.hidden ? setTimeout(draw, 200) : requestAnimationFrame(draw);
      if (waiting.length < 5000) resolve();
      else setTimeout(resolve, 50);
    });
  }

  function append(lines) {
    for (const line of lines) {
      let block = blocks.at(-1);
      if (!block || block.lines.length >= blockSize) {
        block = newBlock();
        blocks.push(block);
        tail.before(block.element);
      }
      block.lines.push(line);
      block.element.append(lineElement(line));
    }
    if (blocks.length <= maxBlocks) return;
    // The oldest lines make room. They are read again when they are wanted.
    for (const old of blocks.splice(0, blocks.length - maxBlocks)) old.element.remove();
    rewind();
  }

  const newBlock = () => ({ lines: [], element: h("div", { class: "block" }) });

  // rewind lets loadEarlier continue before the first line on the page.
  function rewind() {
    const positions = {};
    for (const block of blocks) for (const line of block.lines) positions[line.stream] ??= { index: line.index, offset: line.offset };
    log.openBefore(positions);
    earlier.hidden = false;
  }

  async function loadEarlier() {
    if (loading || !log) return;
    loading = true;
    const height = pre.scrollHeight;
    try {
      const lines = await log.earlier(earlierLines, signal);
      earlier.hidden = lines.length < earlierLines;
      const added = [];
      for (let i = 0; i < lines.length; i += blockSize) {
        const block = newBlock();
        block.lines = lines.slice(i, i + blockSize);
        block.element.append(...block.lines.map(lineElement));
        added.push(block);
      }
      blocks.unshift(...added);
      pre.prepend(...added.map((b) => b.element));
      pre.scrollTop += pre.scrollHeight - height;
      if (blocks.length > maxBlocks) {
        for (const old of blocks.splice(maxBlocks)) old.element.remove();
        if (followBox.checked) stop();
        followBox.checked = false;
        status.textContent = "New lines are not shown, because earlier lines take their room. Select follow to return to the end.";
      }
    } catch (err) {
      if (!signal.aborted) status.textContent = "No earlier lines: " + err.message;
    }
    loading = false;
  }

  function onscroll() {
    atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 20;
    if (pre.scrollTop < 50 && !earlier.hidden && !atEnd) loadEarlier();
  }

  const scrollToEnd = () => { pre.scrollTop = pre.scrollHeight; };

  // find marks the lines with the text of the search. step moves from match to match.
  function find(step) {
    const text = search.value.toLowerCase();
    if (step === 0) {
      for (const e of pre.querySelectorAll(".match")) e.classList.remove("match", "current");
      matches = text ? blocks.flatMap((b) => b.lines.flatMap((line, i) => (plainText(line.text).toLowerCase().includes(text) ? [b.element.children[i]] : []))) : [];
      for (const e of matches) e.classList.add("match");
      match = matches.length;
      step = -1;
    }
    matches[match]?.classList.remove("current");
    if (matches.length) {
      match = (match + step + matches.length) % matches.length;
      matches[match].classList.add("current");
      matches[match].scrollIntoView({ block: "center" });
    }
    found.textContent = text ? (matches.length ? `${match + 1} of ${matches.length} lines` : "not in the lines on the page") : "";
  }

  function onSearchKey(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (matches.length === 0 || !matches[match].isConnected) find(0);
    else find(event.shiftKey ? 1 : -1);
  }

  async function download(streamName) {
    try {
      const response = await send(`/v1/client/fs/logs/${alloc.ID}?${new URLSearchParams({ task, type: streamName, plain: "true", origin: "start" })}`, { signal });
      save(await response.blob(), `${task}.${streamName}.log`);
    } catch (err) {
      if (!signal.aborted) status.textContent = `${streamName} cannot be downloaded: ${err.message}`;
    }
  }

  signal.addEventListener("abort", () => current.abort());
  await restart();
}
