// @ts-check
// The event stream of the agent.

import { isRejected, pause, stream, visible, whileVisible } from "../api.js";
import { h, link, replace } from "../dom.js";
import { clock } from "../format.js";
import { showError } from "../page.js";
import { allocationPath, evaluationPath, jobPath } from "../paths.js";

const topics = ["Job", "Allocation", "Evaluation", "Deployment", "Node", "Service", "HostVolume", "Variable"];
const maxEvents = 500; // events on the page

export function show(main, parameters, signal) {
  document.title = "Events – nomad-lite";
  let paused = false, dropped = 0, waiting = []; // waiting: events that are not on the page yet
  const state = h("p", { role: "status" }), rows = h("tbody");
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
      h("thead", null, h("tr", null, ["Received", "Topic", "Type", "Object", "Namespace", "Index"].map((title) => h("th", { scope: "col" }, title)))), rows)));

  // draw adds waiting events at the top, at most once per frame.
  let scheduled = false;
  function draw() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      if (!paused) {
        rows.prepend(...waiting.reverse().map(eventRow));
        waiting = [];
        while (rows.childElementCount > maxEvents) rows.lastElementChild.remove();
      }
      state.textContent = paused ? `Paused. ${waiting.length + dropped} new events.` : rows.childElementCount ? `The latest ${rows.childElementCount} events.` : "No events yet.";
      if (!paused) dropped = 0;
    });
  }

  let connection = new AbortController();
  signal.addEventListener("abort", () => connection.abort());
  async function connect() {
    connection.abort();
    connection = new AbortController();
    const mine = connection.signal, topic = select.value;
    let index = 0;
    while (!mine.aborted) {
      await visible(mine);
      try {
        await stream(`/v1/event/stream?namespace=*&topic=${topic}${index ? "&index=" + (index + 1) : ""}`, whileVisible(mine), (message) => {
          index = message.Index;
          waiting.push(...(message.Events ?? []).map((event) => ({ ...event, received: Date.now() })));
          if (waiting.length > maxEvents) dropped += waiting.splice(0, waiting.length - maxEvents).length;
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

function eventRow(event) {
  const payload = h("pre", { hidden: true });
  const details = h("button", { "aria-expanded": "false", "aria-label": `Details of ${event.Type}`, onclick: () => {
    payload.hidden = !payload.hidden;
    payload.textContent = payload.hidden ? "" : JSON.stringify(event.Payload, null, 2);
    details.setAttribute("aria-expanded", String(!payload.hidden));
  } }, "Details");
  return h("tr", null,
    h("td", { class: "time" }, clock(event.received * 1e6, true)), h("td", null, event.Topic), h("td", null, event.Type, " ", details),
    h("td", null, object(event), payload), h("td", null, event.Namespace), h("td", { class: "number" }, event.Index));
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
