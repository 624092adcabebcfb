// @ts-check
// The terminal of a task.

import { get, token } from "../api.js";
import { decode, encode } from "../base64.js";
import { h, link, replace } from "../dom.js";
import { shortID } from "../format.js";
import { allocationPath, jobAPI } from "../paths.js";
import { openTerminal } from "../terminal.js";

export async function show(main, { job, group, task, query }, signal) {
  document.title = `Terminal ${task ?? job} – nomad-lite`;
  let session = new AbortController(), terminal;
  const namespace = query.get("namespace") ?? "default";
  const stubs = await get(jobAPI(job, namespace, "allocations"), signal);
  const choices = (stubs ?? []).filter((a) => !group || a.TaskGroup === group).flatMap((a) =>
    Object.entries(a.TaskStates ?? {}).filter(([name, state]) => state.State === "running" && (!task || name === task)).map(([name]) => ({ alloc: a, task: name })));
  const wanted = query.get("allocation") ?? "";
  const where = h("select", { "aria-label": "Task" }, choices.map((c, i) => h("option", { value: String(i), selected: wanted !== "" && c.alloc.ID.startsWith(wanted) },
    `${c.task} in ${c.alloc.Name} (${shortID(c.alloc.ID)})`)));
  const command = h("input", { "aria-label": "Command", value: query.get("command") ?? "/bin/sh", required: true, spellcheck: "false" });
  const connect = h("button", null, "Connect");
  const reader = h("input", { type: "checkbox", onchange: () => { if (terminal) terminal.options.screenReaderMode = reader.checked; } });
  const status = h("p", { role: "status" });
  const box = h("div", { class: "terminal" });
  main.append(
    h("h1", null, "Terminal of ", h("bdi", null, task ?? job)),
    h("form", { class: "toolbar", onsubmit: (event) => { event.preventDefault(); start(); } }, where, h("label", null, "Command ", command), connect,
      h("label", null, reader, " for screen readers"), h("span", { class: "links" })),
    status, box);
  if (choices.length === 0 || wanted && !choices.some((c) => c.alloc.ID.startsWith(wanted))) {
    status.textContent = "The task does not run, so no command can run in it.";
    connect.disabled = choices.length === 0;
    return;
  }
  signal.addEventListener("abort", () => session.abort());
  // A page of another site can have opened this address: only the default command runs without a click.
  if (query.has("command")) status.textContent = "Connect starts the command.";
  else await start();

  async function start() {
    session.abort();
    session = new AbortController();
    const current = session, choice = choices[Number(where.value)];
    replace(main.querySelector(".links"), link(allocationPath(choice.alloc.ID, choice.task, "logs"), "Logs"));
    replace(box);
    status.textContent = "Connecting.";
    connect.textContent = "Reconnect";
    terminal = await openTerminal(box, current.signal);
    if (current.signal.aborted) return;
    terminal.options.screenReaderMode = reader.checked;
    runCommand(terminal, choice, words(command.value), current.signal, (text) => { if (!current.signal.aborted) status.textContent = text; });
  }
}

// words splits a command at spaces; quotes keep spaces.
function words(text) {
  return [...text.matchAll(/(?:[^\s"']+|"[^"]*"|'[^']*')+/g)].map(([word]) => word.replace(/"([^"]*)"|'([^']*)'/g, "$1$2"));
}

// runCommand connects a terminal with a command in a task, over a websocket. report(text) shows the state.
function runCommand(terminal, { alloc, task }, command, signal, report) {
  const address = new URL(`/v1/client/allocation/${alloc.ID}/exec?${new URLSearchParams({ task, command: JSON.stringify(command), tty: "true", ws_handshake: "true" })}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address);
  const send = (message) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
  let exited = false;
  signal.addEventListener("abort", () => socket.close());
  socket.onopen = () => {
    send({ version: 1, auth_token: token.get() });
    sendSize();
    report(`Connected: ${command.join(" ")}`);
    terminal.focus();
  };
  function sendSize() { send({ tty_size: { height: terminal.rows, width: terminal.cols } }); }
  terminal.onResize(sendSize);
  terminal.onData((text) => send({ stdin: { data: encode(new TextEncoder().encode(text)) } }));
  terminal.onBinary((text) => send({ stdin: { data: btoa(text) } }));
  const heartbeat = setInterval(() => send({}), 10e3);
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    for (const name of ["stdout", "stderr"]) if (message[name]?.data) terminal.write(decode(message[name].data));
    if (!message.exited) return;
    exited = true;
    report(`The command has ended with exit status ${message.result?.exit_code ?? 0}. Reconnect starts it again.`);
  };
  socket.onclose = ({ reason }) => {
    clearInterval(heartbeat);
    terminal.end();
    if (!exited) report((reason ? `The session has ended: ${reason}` : "The connection was lost, and the command was stopped.") + " Reconnect starts the command again.");
  };
}
