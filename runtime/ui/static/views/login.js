// The form for the token of the API.

import { get, token } from "../api.js";
import { h, replace } from "../dom.js";

// show fills the page with the form.
export function show(main) {
  showForm(main, () => {
    replace(main, h("h1", null, "Token"), h("p", { role: "status" }, token.get() ? "The agent accepts the token." : "No token is used."),
      h("p", null, h("button", { onclick: () => { token.set(""); replace(main); show(main); } }, "Forget the token")));
  });
}

// showForm adds the form, and calls accepted when the agent has accepted a token, which is then in the session
// storage.
export function showForm(main, accepted) {
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const error = h("p", { role: "alert", class: "error" });
  const form = h("form", {
    class: "login",
    onsubmit: async (event) => {
      event.preventDefault();
      const before = token.get();
      token.set(input.value.trim());
      try {
        await get("/v1/jobs?per_page=1");
        accepted();
      } catch (err) {
        token.set(before);
        error.textContent = err.status === 403 ? "The agent rejects this token." : err.message;
      }
    },
  }, h("label", { for: "token" }, "Token of the agent"), input, h("button", null, "Log in"), error);
  main.append(h("h1", null, "Log in"),
    h("p", null, "The token is in the file api.token of the agent's data directory. ", h("code", null, "nomad-lite ui -authenticate"), " opens this page with it."), form);
  input.focus();
}
