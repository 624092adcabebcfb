// @ts-check
// Output of tasks as text with colours. It can contain anything: the result has printable characters only.

// maxSegments is the number of segments of a line; the rest of the line has the style of the last one.
const maxSegments = 500;

// A sequence of a terminal: CSI, the string sequences OSC, DCS, SOS, PM and APC with their text, and
// sequences of few characters. A string sequence without an end is removed up to the end of the line.
const sequence = /\x1b\[([0-?]*)[ -/]*([@-~])|\x9b[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]?/g;

// Characters that have no form of their own, or change the direction of the text after them.
const invisible = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// visible replaces characters without a form: control characters by their symbols, others by their number.
function visible(text) {
  return text.replace(invisible, (c) => {
    const code = c.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
}

// style is the state of SGR sequences. color and background: "" for the default, "0" to "15", or "rgb(r,g,b)".
const plain = () => ({ color: "", background: "", bold: false, dim: false, italic: false, underline: false, inverse: false });

// parse splits a line into segments {text, style}. Colours of the line do not continue on the next line.
export function parse(line) {
  if (line.endsWith("\r")) line = line.slice(0, -1);
  const segments = [];
  let style = plain(), from = 0, text = "";
  const push = () => {
    if (text) segments.push({ text: visible(text), style });
    text = "";
  };
  for (const match of line.matchAll(sequence)) {
    text += line.slice(from, match.index);
    from = match.index + match[0].length;
    if (match[2] === "m" && segments.length < maxSegments) {
      push();
      style = applySGR({ ...style }, match[1]);
    }
  }
  text += line.slice(from);
  push();
  return segments;
}

// plainText returns the characters of a line without sequences.
export function plainText(line) {
  return parse(line).map((segment) => segment.text).join("");
}

const flags = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse" };
const cleared = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 39: ["color"], 49: ["background"] };

function applySGR(style, text) {
  const codes = text.split(/[;:]/).map(Number);
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) style = plain();
    else if (flags[code]) style[flags[code]] = true;
    else if (cleared[code]) for (const name of cleared[code]) style[name] = plain()[name];
    else if (code >= 30 && code <= 37) style.color = String(code - 30);
    else if (code >= 40 && code <= 47) style.background = String(code - 40);
    else if (code >= 90 && code <= 97) style.color = String(code - 82);
    else if (code >= 100 && code <= 107) style.background = String(code - 92);
    else if (code === 38 || code === 48) {
      const [color, length] = extendedColor(codes.slice(i + 1));
      style[code === 38 ? "color" : "background"] = color;
      i += length;
    }
  }
  return style;
}

// extendedColor returns the color of the codes after 38 and 48, and how many codes it has.
/** @returns {[string | undefined, number]} */
function extendedColor([kind, ...values]) {
  const byte = (value) => Math.min(255, Math.max(0, Math.trunc(value) || 0));
  if (kind === 2) return [`rgb(${byte(values[0])},${byte(values[1])},${byte(values[2])})`, 4];
  if (kind !== 5) return ["", 1];
  const index = byte(values[0]);
  if (index < 16) return [String(index), 2];
  if (index >= 232) return [`rgb(${Array(3).fill(8 + 10 * (index - 232))})`, 2];
  const level = (n) => (n ? 55 + 40 * n : 0);
  return [`rgb(${[Math.floor((index - 16) / 36), Math.floor((index - 16) / 6) % 6, (index - 16) % 6].map(level)})`, 2];
}

// element creates a span with the text and the colours of a line.
export function element(line) {
  const span = document.createElement("span");
  for (const { text, style } of parse(line)) {
    const part = document.createElement("span");
    part.textContent = text;
    part.className = Object.values(flags).filter((name) => style[name]).map((name) => "sgr-" + name).join(" ");
    setColor(part, "color", style.color, "sgr-fg-");
    setColor(part, "backgroundColor", style.background, "sgr-bg-");
    span.append(part.className || part.style.length ? part : text);
  }
  return span;
}

function setColor(part, property, color, prefix) {
  if (color.startsWith("rgb")) part.style[property] = color;
  else if (color) part.classList.add(prefix + color);
}
