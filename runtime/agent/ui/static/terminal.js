// @ts-check
// The terminal emulator xterm.js in this page, whose policy permits no style elements and no style attributes.

import { APIError, send } from "./api.js";

const sheet = new CSSStyleSheet();
let loaded, failedLoads = 0;

// load loads xterm.js, which most tabs do not need. Each attempt has an address of its own, because a browser can
// keep the failure of an import.
function load() {
  loaded ??= Promise.all([
    import(`./vendor/xterm/xterm.js${failedLoads ? "?" + failedLoads : ""}`),
    send(new URL("vendor/xterm/xterm.css", import.meta.url).pathname).then((r) => r.text()).then((text) => sheet.replace(text)),
  ]).catch(() => {
    loaded = undefined;
    failedLoads++;
    throw new APIError(0, "The agent does not answer.");
  });
  return loaded;
}

// openTerminal adds a terminal to an element and keeps its size. The result has the methods of xterm.js, and end(),
// after which it accepts no input. The signal removes it.
export async function openTerminal(element, signal) {
  await load();
  if (signal.aborted) return undefined;
  const sheets = [sheet], restore = replaceStyleElements(sheets);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const terminal = new globalThis.Terminal({
    fontFamily: color("--mono"), fontSize: 14, scrollback: 5000, screenReaderMode: false,
    theme: { background: "#14181d", foreground: "#e4e8ed", cursor: "#4cc9a0" },
  });
  terminal.open(element);
  const resized = new ResizeObserver(() => fit(terminal, element));
  resized.observe(element);
  fit(terminal, element);
  signal.addEventListener("abort", () => {
    resized.disconnect();
    terminal.dispose();
    restore();
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => !sheets.includes(s));
  });
  terminal.end = () => { terminal.options.disableStdin = true; terminal.options.cursorBlink = false; };
  return terminal;
}

// replaceStyleElements changes how xterm.js creates elements, until the function that it returns is called. A style
// element is an empty element whose text becomes a constructed style sheet in sheets, and a style attribute is set
// as properties.
function replaceStyleElements(sheets) {
  const create = Document.prototype.createElement.bind(document);
  document.createElement = (tag, options) => (tag === "style" ? styleElement() : withStyleProperties(create(tag, options)));
  return () => { delete document.createElement; };

  function styleElement() {
    const own = new CSSStyleSheet(), element = create("span");
    sheets.push(own);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, own];
    Object.defineProperty(element, "textContent", { set: (text) => own.replaceSync(text), get: () => "" });
    return element;
  }
}

function withStyleProperties(element) {
  if (element.localName !== "span") return element;
  element.setAttribute = (name, value) => {
    if (name === "style") element.style.cssText = value;
    else Element.prototype.setAttribute.call(element, name, value);
  };
  return element;
}

// fit gives the terminal as many rows and columns as have space.
function fit(terminal, element) {
  const screen = element.querySelector(".xterm-screen");
  if (!screen?.clientWidth || !element.clientWidth) return;
  const cellWidth = screen.clientWidth / terminal.cols, cellHeight = screen.clientHeight / terminal.rows;
  const cols = Math.max(20, Math.floor((element.clientWidth - 16) / cellWidth)), rows = Math.max(5, Math.floor(element.clientHeight / cellHeight));
  if (cols !== terminal.cols || rows !== terminal.rows) terminal.resize(cols, rows);
}
