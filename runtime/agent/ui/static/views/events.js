// @ts-check
// The changes of the state, from the event stream of the agent: one row for each change, in words.

import { access, can, has, isRejected, pause, stream, visible, whileVisible } from "../api.js";
import { describe } from "../changes.js";
import { h, link, replace } from "../dom.js";
import { clock } from "../format.js";
import { showError } from "../page.js";
import { allocationPath, evaluationPath, jobPath } from "../paths.js";

// permitsTopic has, for each topic, whether the token of the tab permits it.
const permitsTopic = {
  Job: () => can("*", "read-job"), Allocation: () => can("*", "read-job"), Evaluation: () => can("*", "read-job"), Deployment: () => can("*", "read-job"),
  Node: () => has("node:read"), Service: () => can("*", "read-job"), HostVolume: () => can("*", "host-volume-read"), Variable: () => has("variables"),
};
const maxRows = 500; // changes on the page
const pastEvents = 200; // that are loaded when the page is opened
const replayTime = 1000; // milliseconds after the connection in which past events arrive, whose time of arrival says nothing

export function show(main, parameters, signal) {
  document.title = "Events – nomad-lite";
  let paused = false, dropped = 0, waiting = []; // waiting: changes that are not on the page yet
  const state = h("p", { role: "status" }), rows = h("tbody");
  const seesAll = access.all || access.readOnly; // "*" has then what the token permits
  const topics = Object.keys(permitsTopic).filter((t) => seesAll || permitsTopic[t]());
  const select = h("select", { id: "topic", onchange: () => connect() }, h("option", { value: "*" }, "all"), topics.map((t) => h("option", null, t)));
  const button = h("button", { "aria-pressed": "false", onclick: () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    draw();
  } }, "Pause");
  main.append(h("h1", null, "Events"),
    h("div", { class: "toolbar" }, h("label", { for: "topic" }, "Topic"), select, button, h("button", { onclick: () => { waiting = []; replace(rows); draw(); } }, "Clear")),
    state, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" }, h("table", null,
      h("thead", null, h("tr", null, ["When", "What", "Why", "Events"].map((title) => h("th", { scope: "col" }, title)))), rows)));

  // draw adds waiting events at the top, at most once per frame.
  let scheduled = false;
  function draw() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      if (!paused) {
        rows.prepend(...waiting.reverse().map(changeRow));
        waiting = [];
        while (rows.childElementCount > maxRows) rows.lastElementChild.remove();
      }
      state.textContent = paused ? `Paused. ${waiting.length + dropped} new changes.` : rows.childElementCount ? `The latest ${rows.childElementCount} changes.` : "No changes yet.";
      if (!paused) dropped = 0;
    });
  }

  let connection = new AbortController();
  signal.addEventListener("abort", () => connection.abort());
  async function connect() {
    connection.abort();
    connection = new AbortController();
    const mine = connection.signal, asked = select.value === "*" && !seesAll ? topics : [select.value];
    let index = 0;
    while (!mine.aborted) {
      await visible(mine);
      const connected = Date.now();
      try {
        const start = index ? { index: String(index + 1) } : { latest: String(pastEvents) };
        const query = new URLSearchParams({ namespace: "*", compact: "true", ...start });
        for (const topic of asked) query.append("topic", topic);
        await stream(`/v1/event/stream?${query}`, whileVisible(mine), (message) => {
          if (!message.Events) return;
          index = message.Index;
          waiting.push({ ...message, received: Date.now() - connected > replayTime ? Date.now() * 1e6 : 0 });
          if (waiting.length > maxRows) dropped += waiting.splice(0, waiting.length - maxRows).length;
          draw();
        });
      } catch (err) {
        if (mine.aborted) return;
        if (isRejected(err)) return showError(err);
      }
      await pause(1000, mine);
    }
  }
  draw();
  return connect();
}

// changeRow creates the row of a change. The events are folded, and are created when they are opened.
function changeRow({ Events: events, Index: index, received }) {
  const { what, why, time } = describe(events);
  const list = h("ul", { class: "plain" });
  const count = events.length === 1 ? "1 event" : events.length + " events";
  const details = h("details", { ontoggle: () => { if (details.open && !list.childElementCount) list.append(...events.map(eventItem)); } },
    h("summary", { title: "index " + index }, count), list);
  return h("tr", null,
    h("td", { class: "time", title: clock(time || received) }, clock(time || received, true) || "earlier"), h("td", { class: "what" }, what), h("td", { class: "why" }, why), h("td", null, details));
}

function eventItem(event) {
  return h("li", null, h("details", null, h("summary", null, event.Topic, " ", object(event), " ", event.Type, event.Namespace && ` in ${event.Namespace}`),
    h("pre", null, JSON.stringify(event.Payload, null, 2))));
}

// object returns a link to the page of the object of an event, if it has one.
function object({ Topic, Key, Namespace }) {
  switch (Topic) {
    case "Job": return link(jobPath(Key, Namespace), Key);
    case "Allocation": return link(allocationPath(Key), Key);
    case "Evaluation": return link(evaluationPath(Key), Key);
    case "Node": return link("/ui/clients", Key);
  }
  return Key;
}
