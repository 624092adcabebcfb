// @ts-check
// The parts of a text of HCL or JSON, for their colours. It accepts each text: an incomplete part ends with the line, or
// with the text.

const word = /[\p{L}_][\p{L}\p{N}_-]*/uy;
const number = /\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const comment = /#[^\n]*|\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/y;
const heredoc = /<<-?([\p{L}_][\p{L}\p{N}_-]*)[ \t]*\r?(?:\n|$)/uy;
const blockHead = /(?:[ \t]+(?:"[^"\n]*"|[\p{L}_][\p{L}\p{N}_-]*))*[ \t]*\{/uy;
const assignment = /[ \t]*=(?![=>])/y, colon = /[ \t]*:/y, call = /\(/y;
const maxNesting = 50; // of strings in interpolations in strings, which are functions that call each other
const constants = ["true", "false", "null"];

// tokens splits a text into [kind, text]: the texts together are the text. kind is "comment", "string", "template" (an
// interpolation in a string), "number", "constant", "function", "block" (the type of a block), "name" (of an attribute), or "".
/** @param {string} text @returns {[string, string][]} */
export function tokens(text) {
  /** @type {[string, string][]} */
  const found = [];
  let at = 0, nesting = 0;
  const matches = (pattern, from = at) => {
    pattern.lastIndex = from;
    return pattern.exec(text);
  };
  const add = (kind, end) => {
    if (end === at) return;
    const last = found.at(-1);
    if (last?.[0] === kind) last[1] += text.slice(at, end);
    else found.push([kind, text.slice(at, end)]);
    at = end;
  };

  // templateEnd returns the end of the interpolation that starts at an index.
  function templateEnd(start) {
    let depth = 0, i = start + 1;
    nesting++;
    for (; i < text.length && text[i] !== "\n"; i++) {
      if (text[i] === "{") depth++;
      else if (text[i] === "}" && --depth === 0) {
        i++;
        break;
      } else if (text[i] === '"' && nesting < maxNesting) i = quotedEnd(i, () => {}) - 1;
    }
    nesting--;
    return i;
  }

  // quotedEnd returns the end of the string that starts at an index, and calls onTemplate with the ends of each interpolation in it.
  function quotedEnd(start, onTemplate) {
    for (let i = start + 1; i < text.length; i++) {
      if (text[i] === '"') return i + 1;
      if (text[i] === "\n") return i;
      if (text[i] === "\\") i++;
      else i = skipTemplate(i, onTemplate);
    }
    return text.length;
  }

  // skipTemplate returns the index of the last character of an interpolation, or of its escaped form, that starts at i; else i.
  function skipTemplate(i, onTemplate) {
    if ((text[i] !== "$" && text[i] !== "%") || text[i + 1] !== "{" && text.slice(i + 1, i + 3) !== text[i] + "{") return i;
    if (text[i + 1] !== "{") return i + 2; // $${ is text
    const end = templateEnd(i);
    onTemplate(i, end);
    return end - 1;
  }

  const addTemplate = (start, end) => {
    add("string", start);
    add("template", end);
  };

  function addHeredoc([head, marker]) {
    const last = new RegExp(`^[ \\t]*${marker}[ \\t]*\\r?$`, "mu");
    const from = at + head.length, match = last.exec(text.slice(from));
    const end = match ? from + match.index + match[0].length : text.length;
    for (let i = from; i < end; i++) i = skipTemplate(i, addTemplate);
    add("string", Math.max(at, end));
  }

  let startsLine = true; // only spaces are before the position in its line
  while (at < text.length) {
    const c = text[at];
    const isFirst = startsLine;
    if (c === "\n") startsLine = true;
    else if (c !== " " && c !== "\t" && c !== "\r") startsLine = c === "{" || c === "," && startsLine;
    let match;
    if (c === '"') {
      let kind = "string";
      const end = quotedEnd(at, () => {});
      if (matches(colon, end)) kind = "name"; // of JSON
      if (kind === "name") add(kind, end);
      else {
        quotedEnd(at, addTemplate);
        add("string", end);
      }
    } else if ((match = matches(comment))) add("comment", at + match[0].length);
    else if ((match = matches(heredoc))) addHeredoc(match);
    else if ((match = matches(word))) {
      const end = at + match[0].length;
      const kind = isFirst && matches(assignment, end) ? "name" : isFirst && matches(blockHead, end) ? "block" :
        constants.includes(match[0]) ? "constant" : matches(call, end) ? "function" : matches(assignment, end) || matches(colon, end) ? "name" : "";
      add(kind, end);
    } else if ((match = matches(number))) add("number", at + match[0].length);
    else add("", at + 1);
  }
  return found;
}

// lines splits a text into lines of tokens.
/** @param {string} text */
export function lines(text) {
  /** @type {[string, string][][]} */
  const all = [[]];
  for (const [kind, part] of tokens(text)) {
    part.split("\n").forEach((line, i) => {
      if (i > 0) all.push([]);
      if (line) all[all.length - 1].push([kind, line]);
    });
  }
  return all;
}
