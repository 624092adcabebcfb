// @ts-check
// The form for the token of the API.

import { access, get, readAccess, send, token } from "../api.js";
import { checkbox, h, replace } from "../dom.js";

// show fills the page with the state of the login, or with the form.
export async function show(main, parameters, signal) {
  document.title = "Token – nomad-lite";
  try {
    await get(probe, signal);
  } catch (err) {
    if (err.status !== 403) throw err;
    return showForm(main, () => { replace(main); show(main, parameters, signal); });
  }
  const forget = () => { token.forget(); replace(main); return show(main, parameters, signal); };
  main.append(h("h1", null, "Token"), h("p", { role: "status" }, token.get() ? `The agent accepts the ${access.readOnly ? "read-only " : ""}token of this tab.` : "The agent requires no token."));
  if (token.get()) main.append(h("p", null, token.isShared() ? "All tabs of this browser that show this agent have the token. The browser forgets it when the last of them is closed." : "The browser forgets the token when this tab is closed."), h("p", null, h("button", { onclick: forget }, "Forget the token")));
}

// probe is a request that each token permits.
const probe = "/v1/jobs?per_page=1";

// showForm adds the form, and calls accepted when the agent has accepted a token, which is then in the session
// storage. The token is that of the form; in a tab without a token, it can be one that another tab shares.
export function showForm(main, accepted) {
  const done = new AbortController();
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const error = h("p", { role: "alert", class: "error" });
  const form = h("form", {
    class: "login",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await logIn(input.value.trim(), new FormData(event.target).has("share"));
      } catch (err) {
        error.textContent = err.status === 403 ? "The agent rejects this token." : err.message;
      }
    },
  }, h("label", { for: "token" }, "Token of the agent"), input,
  checkbox("Also log in other tabs of this browser, until the last one is closed", "share"), h("button", null, "Log in"), error);
  main.append(h("h1", null, "Log in"), loginError && h("p", { role: "alert", class: "error" }, loginError),
    h("p", null, token.get() ? "The agent no longer accepts the token of this tab, or the token does not permit this page. " : null,
      "The token is in the file ", h("code", null, "token"), " of the agent's data directory. ", h("code", null, "nomad-lite ui -authenticate"), " opens this page with it."), form);
  input.focus();
  if (!token.get()) token.request(done.signal, (text) => {
    if (form.isConnected) logIn(text, true).catch(() => {}); // the form remains
    else done.abort();
  });

  async function logIn(text, isShared) {
    await get(probe, undefined, { "X-Nomad-Token": text });
    if (done.signal.aborted) return;
    done.abort();
    token.set(text, isShared);
    loginError = "";
    await readAccess();
    accepted();
  }
}

const fragment = "#login=";

// loginError is the reason why the one-time secret of the address was not accepted, until a token is.
let loginError = "";

// logInByFragment exchanges the one-time secret in the fragment of the address for the token, if there is one, and
// removes it from the address and the history.
export async function logInByFragment() {
  if (!location.hash.startsWith(fragment)) return;
  const secret = location.hash.slice(fragment.length);
  history.replaceState(null, "", location.pathname + location.search);
  try {
    const reply = await send("/v1/agent/login", { method: "POST", headers: { "X-Nomad-Token": secret } });
    token.set((await reply.json()).Token);
  } catch (err) {
    // The page that follows shows the form.
    loginError = err.status === 403 ? "The one-time secret of this address has expired or was used before. If you have not used it, another program of your account has: see nomad-lite ui -help." : err.message;
  }
}
