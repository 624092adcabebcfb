// @ts-check
// The terminal of a task, in which a command or an action of the job runs.

import { get, requireProof, token } from "../api.js";
import { decode, encode } from "../base64.js";
import { h, link, replace } from "../dom.js";
import { shortID } from "../format.js";
import { allocationPath, jobAPI, jobPath } from "../paths.js";
import { openTerminal } from "../terminal.js";

export async function show(main, { job, group, task, query }, signal) {
  const action = query.get("action");
  const [noun, runText, againText] = action ? ["action", "Run", "Run again"] : ["command", "Connect", "Reconnect"];
  document.title = `${action ?? "Terminal"} ${task ?? job} – nomad-lite`;
  let current = new AbortController(), terminal;
  const namespace = query.get("namespace") ?? "default";
  const stubs = await get(jobAPI(job, namespace, "allocations"), signal);
  const choices = (stubs ?? []).filter((a) => !group || a.TaskGroup === group).flatMap((a) =>
    Object.entries(a.TaskStates ?? {}).filter(([name, state]) => state.State === "running" && (!task || name === task)).map(([name]) => ({ alloc: a, task: name })));
  const wanted = query.get("allocation") ?? "";
  const where = h("select", { "aria-label": "Task" }, choices.map((c, i) => h("option", { value: String(i), selected: wanted !== "" && c.alloc.ID.startsWith(wanted) },
    `${c.task} in ${c.alloc.Name} (${shortID(c.alloc.ID)})`)));
  const command = h("input", { "aria-label": "Command", value: query.get("command") ?? "/bin/sh", required: true, spellcheck: "false" });
  const connect = h("button", { class: action && "primary" }, runText);
  const reader = h("input", { type: "checkbox", onchange: () => { if (terminal) terminal.options.screenReaderMode = reader.checked; } });
  const status = h("p", { role: "status" });
  const box = h("div", { class: "terminal" });
  replace(main,
    h("h1", null, action ? ["Action ", h("bdi", null, action), " of "] : "Terminal of ", h("bdi", null, task ?? job)),
    action && h("p", null, link(jobPath(job, namespace), "Job ", h("bdi", null, job))),
    h("form", { class: "toolbar", onsubmit: (event) => { event.preventDefault(); start(); } }, where, !action && h("label", null, "Command ", command), connect,
      h("label", null, reader, " for screen readers"), h("span", { class: "links" })),
    status, box);
  signal.addEventListener("abort", () => current.abort());
  if (choices.length === 0 || wanted && !choices.some((c) => c.alloc.ID.startsWith(wanted))) {
    status.textContent = `The task does not run, so no ${noun} can run in it.`;
    connect.disabled = choices.length === 0;
    return;
  }
  // A page of another site can have opened this address: only the default command runs without a click.
  if (action || query.has("command")) status.textContent = `${runText} starts the ${noun}.`;
  else await start();

  async function start() {
    current.abort();
    current = new AbortController();
    const { signal: ended } = current, choice = choices[Number(where.value)];
    replace(main.querySelector(".links"), link(allocationPath(choice.alloc.ID, choice.task, "logs"), "Logs"));
    replace(box);
    status.textContent = "Connecting.";
    connect.textContent = againText;
    terminal = await openTerminal(box, ended);
    if (ended.aborted) return;
    terminal.options.screenReaderMode = reader.checked;
    const session = action
      ? { path: jobAPI(job, namespace, "action", { action, allocID: choice.alloc.ID, group: choice.alloc.TaskGroup, task: choice.task, ...ofTerminal }), noun, name: `action ${action}`, againText }
      : { path: `/v1/client/allocation/${choice.alloc.ID}/exec?${new URLSearchParams({ task: choice.task, command: JSON.stringify(words(command.value)), ...ofTerminal })}`, noun, name: command.value, againText };
    runSession(terminal, session, ended, (text) => { if (!ended.aborted) status.textContent = text; });
  }
}

// words splits a command at spaces; quotes keep spaces.
function words(text) {
  return [...text.matchAll(/(?:[^\s"']+|"[^"]*"|'[^']*')+/g)].map(([word]) => word.replace(/"([^"]*)"|'([^']*)'/g, "$1$2"));
}

// ofTerminal are the parameters of each session.
const ofTerminal = { tty: "true", ws_handshake: "true" };

// runSession connects a terminal with a command or an action in a task, over a websocket. session: path, of the API; noun and
// name, for texts; againText, the text of the button that starts it again. report(text) shows the state.
function runSession(terminal, { path, noun, name, againText }, signal, report) {
  const address = new URL(path, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address);
  const send = (message) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
  let exited = false;
  signal.addEventListener("abort", () => socket.close());
  socket.onopen = async () => {
    try {
      await requireProof();
    } catch (err) {
      report(err.message);
      return socket.close();
    }
    send({ version: 1, auth_token: token.get() });
    sendSize();
    report(`Connected: ${name}`);
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
    report(`The ${noun} has ended with exit status ${message.result?.exit_code ?? 0}. ${againText} starts it again.`);
  };
  socket.onclose = ({ reason }) => {
    clearInterval(heartbeat);
    terminal.end();
    if (!exited) report((reason ? `The session has ended: ${reason}` : `The connection was lost, and the ${noun} was stopped.`) + ` ${againText} starts the ${noun} again.`);
  };
}
