// @ts-check
// Values of environments and metadata, which can be secrets.

import { h } from "./dom.js";

const secretName = /pass|secret|token|key|cred|auth|private|cert|cookie|dsn/i;
const secretValue = /:\/\/[^/\s:@]*:[^/\s@]+@|-----BEGIN|^(?:ey[\w-]+\.|gh[pousr]_|xox|AKIA)/;

// maskedValue shows a value. A value that looks like a secret is shown after a click only. The elements keep what was clicked:
// update of dom.js must not redraw them.
export function maskedValue(name, value) {
  if (!secretName.test(name) && !secretValue.test(value)) return h("code", null, value);
  const shown = h("code", null, "••••••");
  const button = h("button", {
    class: "plain", "aria-pressed": "false", "aria-label": "Show the value of " + name,
    onclick: () => {
      const show = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(show));
      button.textContent = show ? "hide" : "show";
      shown.textContent = show ? value : "••••••";
    },
  }, "show");
  return [shown, " ", button];
}
