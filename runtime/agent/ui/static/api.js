// @ts-check
// Requests to the agent. Each function takes an AbortSignal, which ends its requests when the page changes.

import { agentKnows } from "./proof.js";

// tokenKey is the name of the token in the session storage: it lives as long as the tab. sharedKey is the name of the mark
// that other tabs of the browser get the token.
const tokenKey = "nomad-lite-token";
const sharedKey = "nomad-lite-token-shared";

// otherTabs connects the tabs of the browser that show this agent, so that no token is stored outside of tabs. Messages:
// {wanted} of a tab without a token; {token} of one that shares its token; {forgotten} of one whose user has removed it.
const otherTabs = new BroadcastChannel(tokenKey);

export const token = {
  get: () => sessionStorage.getItem(tokenKey) ?? "",
  // isShared reports whether other tabs get the token.
  isShared: () => sessionStorage.getItem(sharedKey) !== null,
  // set stores the token of the tab; with isShared, tabs without a token get it too, now and later.
  set: (text, isShared = false) => {
    if (text) sessionStorage.setItem(tokenKey, text);
    else sessionStorage.removeItem(tokenKey);
    if (text && isShared) sessionStorage.setItem(sharedKey, "");
    else sessionStorage.removeItem(sharedKey);
    shareToken();
  },
  // forget removes the token of the tab; a shared one is removed from all tabs.
  forget: () => {
    if (token.isShared()) otherTabs.postMessage({ forgotten: token.get() });
    token.set("");
  },
  // request calls accept(text) with each token that another tab shares, until the signal ends.
  request: (signal, accept) => {
    otherTabs.addEventListener("message", ({ data }) => { if (data.token) accept(data.token); }, { signal });
    otherTabs.postMessage({ wanted: true });
  },
};

function shareToken() {
  if (token.isShared()) otherTabs.postMessage({ token: token.get() });
}

otherTabs.addEventListener("message", ({ data }) => {
  if (data.wanted) shareToken();
  if (data.forgotten && data.forgotten === token.get() && token.isShared()) token.set("");
});

// access is what the token of the tab permits. readAccess updates it. Until isKnown is set, it can be wrong.
/** @type {{ isKnown: boolean, readOnly: boolean, all: boolean, rights: string[], namespaces: Record<string, string[]> }} */
export const access = { isKnown: false, readOnly: false, all: true, rights: [], namespaces: {} };

// readAccess asks the agent for the rights of the token. Without an answer, they are not known.
export async function readAccess() {
  access.isKnown = false;
  try {
    const { Management, ReadOnly, Rights, Namespaces } = await get("/v1/acl/token/self/rights");
    Object.assign(access, { isKnown: true, readOnly: ReadOnly, all: Management, rights: Rights, namespaces: Namespaces });
  } catch (err) {
    if (!isRejected(err)) return;
    // Without a valid token, the page shows the form; servers of a cluster do not have the route.
    Object.assign(access, { isKnown: true, readOnly: false, all: true });
  }
}

// can reports whether the token has one of the capabilities in a namespace, or with "*" in any namespace.
export function can(namespace, ...capabilities) {
  const granted = namespace === "*" ? Object.values(access.namespaces).flat() : access.namespaces[namespace] ?? [];
  return access.all || capabilities.some((c) => granted.includes(c));
}

// has reports whether the token has a right that no namespace limits, such as "node:read".
export const has = (right) => access.all || access.rights.includes(right);

// APIError is a reply with an error status. status is 0 if the agent did not reply.
export class APIError extends Error {
  constructor(status, text) {
    super(text || "status " + status);
    this.status = status;
  }
}

// connection notifies listeners of "lost" (a request failed) and "restored" events.
export const connection = new EventTarget();
let lost = false;

// isPinned is set when the listener at the address of the page has proved that it knows the token of the tab, pinnedToken
// the last token that was asked for. From then on the listener must prove it again after each loss of the connection, before it gets
// a token: another program can have taken the port of the agent.
let isPinned = false, pinnedToken = "", mustProve = false;

async function pin(text) {
  if (text === pinnedToken) return;
  pinnedToken = text;
  try {
    isPinned ||= await agentKnows(text);
  } catch {
    pinnedToken = ""; // the connection is lost: the next request tries again
  }
}

// requireProof returns when the token may be sent. It throws an APIError with status 403 if the listener does not prove that
// it knows the token, so that the page shows the form, as for an agent with another token.
export async function requireProof(text = token.get()) {
  if (!text || !mustProve) return;
  let isKnown;
  try {
    isKnown = await agentKnows(text);
  } catch {
    throw new APIError(0, "The agent does not answer.");
  }
  if (!isKnown) throw new APIError(403, "The program at this address did not prove that it knows the token, which was not sent.");
  mustProve = false;
}

function setLost(value) {
  if (value) mustProve = isPinned;
  if (lost === value) return;
  lost = value;
  connection.dispatchEvent(new Event(value ? "lost" : "restored"));
}

// send sends a request and returns the Response of fetch. options are the options of fetch, and json, which
// becomes the body. It throws an APIError.
/** @type {(path: string, options?: RequestInit & { json?: any }) => Promise<Response>} */
export async function send(path, { json, headers, ...options } = {}) {
  const all = new Headers(headers);
  if (token.get() && !all.has("X-Nomad-Token")) all.set("X-Nomad-Token", token.get());
  if (json !== undefined) {
    options.method ??= "PUT";
    options.body = JSON.stringify(json);
    all.set("Content-Type", "application/json");
  }
  const text = all.get("X-Nomad-Token");
  await requireProof(text);
  let response;
  try {
    response = await fetch(path, { ...options, headers: all });
  } catch (err) {
    if (options.signal?.aborted) throw err;
    setLost(true);
    throw new APIError(0, "The agent does not answer.");
  }
  setLost(false);
  if (!response.ok) throw new APIError(response.status, await response.text());
  if (text) await pin(text);
  return response;
}

// load returns a module of the page, whose path is relative to this file. It throws an APIError with status 0 if the
// agent does not answer. A browser can keep the failure of an import: then load loads the page anew as soon as the agent
// answers.
export async function load(path) {
  try {
    return await import(path);
  } catch (err) {
    if (!(err instanceof TypeError)) throw err; // as in a module with an error
    await send(location.pathname);
    location.reload();
    return new Promise(() => {});
  }
}

// get returns the decoded reply of a GET request. headers are further headers, and can be omitted.
/** @template {string} Path @param {Path} path @param {AbortSignal} [signal] @param {Record<string, string>} [headers] @returns {Promise<API.GetResponse<Path>>} */
export async function get(path, signal, headers) {
  return decode(await send(path, { signal, headers }), signal);
}

// put sends a PUT request with a JSON body and returns the decoded reply.
/** @template {string} Path @param {Path} path @param {any} json @param {AbortSignal} [signal] @returns {Promise<API.PutResponse<Path>>} */
export async function put(path, json, signal) {
  return decode(await send(path, { json, signal }), signal);
}

// decode returns the JSON of a reply. It throws an APIError with status 0 if the connection is lost.
async function decode(response, signal) {
  try {
    return await response.json();
  } catch (err) {
    if (signal?.aborted) throw err;
    setLost(true);
    throw new APIError(0, "The reply of the agent is incomplete.");
  }
}

// hidden ends when the page is hidden, and is replaced by another signal. A browser has six connections to an agent for
// all of its tabs, so that a hidden page must not hold any.
let hidden = new AbortController();
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return;
  hidden.abort();
  hidden = new AbortController();
});

// whileVisible returns a signal that ends with the given one, and when the page is hidden.
export function whileVisible(signal) {
  return AbortSignal.any([signal, hidden.signal]);
}

// visible waits until the page is visible, at most until the signal ends.
export async function visible(signal) {
  while (document.hidden && !signal.aborted) {
    await new Promise((resolve) => {
      const listeners = new AbortController();
      const end = () => {
        listeners.abort();
        resolve();
      };
      document.addEventListener("visibilitychange", end, { signal: listeners.signal });
      signal.addEventListener("abort", end, { signal: listeners.signal });
    });
  }
}

// poll calls read() now, and again after each pause of interval milliseconds, while the page is visible, until the
// signal ends: for routes without blocking queries. It continues when the agent does not answer, and rejects with each
// other error.
export async function poll(interval, signal, read) {
  for (; !signal.aborted; await pause(interval, signal)) {
    await visible(signal);
    if (signal.aborted) return;
    try {
      await read();
    } catch (err) {
      if (signal.aborted) return;
      if (!isUnavailable(err)) throw err;
    }
  }
}

// isUnavailable reports whether the agent did not answer, or failed.
export const isUnavailable = (err) => err instanceof APIError && (err.status === 0 || err.status >= 500);

// isRejected reports whether the agent rejected the request, so that the same request would be rejected again.
export const isRejected = (err) => err instanceof APIError && !isUnavailable(err);

// ignoreForbidden throws an error again unless the token does not give access to the route: a page can show the rest.
export function ignoreForbidden(err) {
  if (err.status !== 403) throw err;
}

// watch calls show(value) with the reply of a GET request, and again when it changes, until the signal ends.
// It uses blocking queries while the page is visible, and retries when the agent does not answer, or fails with the status
// 500 after it has replied. onError(err) is called with each other error, which ends the watch; without onError, watch
// rejects with it. options: wait is the
// duration of a blocking query, and always calls show after each query, for replies with numbers that do not change
// their index.
/** @template {string} Path @param {Path} path @param {AbortSignal} signal @param {(value: API.GetResponse<Path>) => any} show @param {(err: any) => void} [onError] */
export async function watch(path, signal, show, onError, { wait = "60s", always = false } = {}) {
  let index = 0, hasReply = false;
  while (!signal.aborted) {
    let response, value;
    await visible(signal);
    const query = whileVisible(signal);
    try {
      const separator = path.includes("?") ? "&" : "?";
      response = await send(index ? `${path}${separator}index=${index}&wait=${wait}` : path, { signal: query });
      value = await response.json();
      hasReply = true;
    } catch (err) {
      if (signal.aborted) return;
      if (query.aborted) continue;
      if (isRejected(err) || !hasReply && err.status === 500) {
        if (!onError) throw err;
        onError(err);
        return;
      }
      index = 0; // the agent may be another one when it answers
      await pause(1000, signal);
      continue;
    }
    const newIndex = Number(response.headers.get("X-Nomad-Index"));
    if (signal.aborted) return;
    if (!newIndex) return show(value); // the route has no blocking queries
    if (newIndex !== index || always) await show(value);
    index = newIndex < index ? 0 : newIndex; // a lower index: the state of the agent was replaced
  }
}

// follow calls refresh() now, and again after changes of the objects of a namespace that the topics of the event
// stream name ("Job:web"), until the signal ends. follow holds one connection for a page that reads several routes, where
// watch holds one for each route: a browser opens six for all its tabs. It retries when the agent does not answer, or fails
// with the status 500 after a refresh. It rejects with other errors of refresh, which should use the signal. A hidden tab does not follow until it is shown again.
export async function follow(namespace, topics, signal, refresh) {
  const query = new URLSearchParams({ namespace });
  for (const topic of topics) query.append("topic", topic);
  let isRefreshed = false;
  const refreshAndNote = async () => {
    await refresh();
    isRefreshed = true;
  };
  while (!signal.aborted) {
    const failed = new AbortController();
    const active = AbortSignal.any([signal, failed.signal]);
    const tabHidden = hidden.signal;
    try {
      const first = await send("/v1/jobs?per_page=1", { signal });
      query.set("index", String(Number(first.headers.get("X-Nomad-Index")) + 1));
      await first.text();
      const refreshSoon = coalesce(refreshAndNote, active, (err) => failed.abort(err));
      refreshSoon();
      await stream(`/v1/event/stream?${query}`, AbortSignal.any([active, tabHidden]), refreshSoon);
    } catch (err) {
      if (tabHidden.aborted) await visible(active);
      if (signal.aborted) return;
      if (tabHidden.aborted && !failed.signal.aborted) continue;
      const cause = failed.signal.reason ?? err;
      const isAPI = cause instanceof APIError;
      if (isRejected(cause) || !isRefreshed && cause.status === 500 || !isAPI && failed.signal.aborted) throw cause;
      if (!isAPI) setLost(true); // the stream broke off
    }
    await pause(1000, signal);
  }
}

// minRefreshPause is the shortest time between two refreshes, in milliseconds. Each refresh is followed by a
// pause of its own duration, so that a page with many changes is half idle.
const minRefreshPause = 100;

// coalesce returns a function that requests a call of refresh. Requests during a call and its pause lead to one call.
function coalesce(refresh, signal, onError) {
  let isRunning = false, isStale = false;
  return async () => {
    isStale = true;
    if (isRunning) return;
    isRunning = true;
    try {
      while (isStale && !signal.aborted) {
        isStale = false;
        const start = performance.now();
        await refresh();
        await pause(Math.max(minRefreshPause, performance.now() - start), signal);
      }
    } catch (err) {
      onError(err);
    }
    isRunning = false;
  };
}

// stream calls onMessage(object) for each JSON object of a streaming reply (events, logs, files), until the
// stream or the signal ends. It reads no faster than onMessage, which can return a promise.
export async function stream(path, signal, onMessage) {
  const response = await send(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  // The agent sends objects without a separator in some streams, with newlines in others. Objects are found by
  // counting braces outside of strings.
  let text = "", from = 0, depth = 0, inString = false, escaped = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const start = text.length;
    text += value;
    for (let i = start; i < text.length; i++) {
      const c = text.charCodeAt(i);
      if (inString) {
        if (escaped) escaped = false;
        else if (c === 92) escaped = true;
        else if (c === 34) inString = false;
      } else if (c === 34) inString = true;
      else if (c === 123 && depth++ === 0) from = i;
      else if (c === 125 && --depth === 0) {
        const object = JSON.parse(text.slice(from, i + 1));
        from = i + 1;
        if (Object.keys(object).length > 0) await onMessage(object); // {} is a heartbeat
      }
    }
    if (depth === 0) { text = ""; from = 0; } else { text = text.slice(from); from = 0; }
  }
}

// pause waits, at most until the signal ends.
export function pause(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}
