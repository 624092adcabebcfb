// @ts-check
// The files of an allocation or of a task.

import { get, send } from "../api.js";
import { element as ansiElement } from "../ansi.js";
import { h, link, replace, table } from "../dom.js";
import { bytes, clock } from "../format.js";
import { readPart } from "../tasklog.js";
import { allocationPath } from "../paths.js";
import { save } from "./loglines.js";

const partSize = 256 << 10; // bytes that are shown at once
const maxShown = 4 << 20; // bytes

export async function show(main, { alloc, task, file = "" }, signal) {
  const root = task ? [task] : [];
  const parts = file.split("/").filter((part) => part && part !== "." && part !== "..");
  const path = "/" + [...root, ...parts].join("/");
  const pathOf = (names) => allocationPath(alloc.ID, ...root, "fs", ...names);
  main.append(h("nav", { class: "path", "aria-label": "Path" }, link(pathOf([]), task ? h("bdi", null, task) : "allocation"),
    parts.map((part, i) => [" / ", link(pathOf(parts.slice(0, i + 1)), h("bdi", null, part))])));
  const content = h("div");
  main.append(content);
  try {
    const info = path === "/" ? { IsDir: true } : await get(`/v1/client/fs/stat/${alloc.ID}?${new URLSearchParams({ path })}`, signal);
    if (info.IsDir) await showDirectory(content);
    else await showFile(content, info);
  } catch (err) {
    if (signal.aborted) return;
    if (err.status === 403 && /permission denied$/i.test(err.message.trim())) throw err; // the token, not the file
    replace(content, h("p", { role: "alert" }, err.message));
  }

  async function showDirectory(element) {
    const entries = (await get(`/v1/client/fs/ls/${alloc.ID}?${new URLSearchParams({ path })}`, signal)) ?? [];
    entries.sort((a, b) => Number(b.IsDir) - Number(a.IsDir) || (a.Name < b.Name ? -1 : 1));
    replace(element, entries.length === 0 ? h("p", null, "The directory is empty.") : table("Files", [
      { title: "Name", cell: (e) => link(pathOf([...parts, e.Name]), h("bdi", null, e.Name), e.IsDir && "/") },
      { title: "Size", class: "number", cell: (e) => (e.IsDir ? "" : bytes(e.Size)) },
      { title: "Mode", cell: (e) => h("code", null, e.FileMode) },
      { title: "Changed", cell: (e) => clock(e.ModTime) },
    ], entries, (e) => e.Name));
  }

  async function showFile(element, info) {
    const pre = h("pre", { class: "log wrap", tabindex: "0", "aria-label": "Content of " + info.Name });
    const status = h("p", { role: "status", class: "dim" });
    const more = h("button", { hidden: true, onclick: () => load().catch(failed) }, "Show more");
    const failed = (err) => { if (!signal.aborted) status.textContent = err.message; };
    let offset = 0, decoder = new TextDecoder(), rest = "";
    replace(element, h("div", { class: "toolbar" }, h("span", null, `${bytes(info.Size)}, changed ${clock(info.ModTime)}`),
      h("button", { onclick: () => download().catch(failed) }, "Download"),
      h("button", { onclick: () => { [offset, decoder, rest] = [Math.max(0, info.Size - partSize), new TextDecoder(), ""]; replace(pre); load().then(() => { pre.scrollTop = pre.scrollHeight; }, failed); } }, "Show the end")),
    pre, more, status);
    await load();

    async function load() {
      const part = await readPart(alloc.ID, path, offset, partSize, signal);
      if (offset === 0 && part.subarray(0, 8192).includes(0)) {
        status.textContent = "This file is not text. Download it to see it.";
        return;
      }
      offset += part.length;
      const lines = (rest + decoder.decode(part, { stream: true })).split("\n");
      rest = lines.pop();
      if (offset >= info.Size || rest.length > 1e5) { if (rest) lines.push(rest); rest = ""; }
      pre.append(...lines.map((line) => h("div", { class: "line" }, ansiElement(line))));
      more.hidden = offset >= info.Size || part.length === 0 || offset >= maxShown && pre.childNodes.length > 0;
      status.textContent = offset < info.Size ? `Shown up to ${bytes(offset)} of ${bytes(info.Size)}.` + (more.hidden ? " Download the file to see more." : "") : "";
    }

    async function download() {
      const response = await send(`/v1/client/fs/cat/${alloc.ID}?${new URLSearchParams({ path })}`, { signal });
      save(await response.blob(), info.Name);
    }
  }
}
