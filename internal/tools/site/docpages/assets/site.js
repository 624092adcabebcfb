"use strict";

// searchIndex is the list of pages that search-index.js sets.
let searchIndex;

const ignoredWords = new Set("a an and are as at be by can do does for from how i in is it my no not of on or that the this to what when which why with".split(" "));

const stems = new Map();

// stem returns the part of a word that its forms share: "tasks" and "task", "stopped", "stopping" and "stop".
function stem(word) {
  let found = stems.get(word);
  if (found === undefined) stems.set(word, found = computeStem(word));
  return found;
}

function computeStem(word) {
  if (/[0-9_]/.test(word)) return word;
  if (word.length > 4) word = word.replace(/ies$/, "y");
  if (word.length > 3) word = word.replace(/([^s])s$/, "$1");
  if (word.length > 5) word = word.replace(/(ing|ed)$/, "");
  if (word.length > 3) word = word.replace(/e$/, "");
  return word.replace(/([bdglmnprt])\1$/, "$1");
}

// termsOf returns the terms of a text. A name with underscores is a term, as are its parts.
function termsOf(text) {
  const terms = [];
  for (const word of text.toLowerCase().match(/[a-z0-9_]+/g) || []) {
    if (word.includes("_")) {
      terms.push(word);
      for (const part of word.split("_")) if (part) terms.push(stem(part));
    } else if (!ignoredWords.has(word)) {
      terms.push(stem(word));
    }
  }
  return terms;
}

// prepare returns the sections of all pages with the weight of each of their terms, and in how many sections a term is.
function prepare(pages) {
  const sections = [], frequencies = new Map();
  let length = 0;
  pages.forEach((page) => {
    for (const section of page.sections) {
      const weights = new Map();
      const add = (text, weight) => {
        const terms = termsOf(text);
        for (const term of terms) weights.set(term, (weights.get(term) || 0) + weight);
        return terms.length;
      };
      const size = add(section.text, 1);
      add(section.title, 6);
      add(page.title, 4);
      add(page.link.replace(/.*\//, ""), 2);
      for (const term of weights.keys()) frequencies.set(term, (frequencies.get(term) || 0) + 1);
      length += size;
      sections.push({ page, section, weights, size, titleTerms: new Set(termsOf(section.title)) });
    }
  });
  return { sections, frequencies, averageSize: length / Math.max(1, sections.length) };
}

// search returns the pages that match a query, each with its best section, the best page first.
function search(prepared, query) {
  const terms = [...new Set(termsOf(query))];
  // A last word that no page has may not be complete: words that start with it match, for less.
  const last = /[a-z0-9_]$/i.test(query) && !prepared.frequencies.has(terms[terms.length - 1]) ? terms[terms.length - 1] : undefined;
  const best = new Map();
  for (const entry of prepared.sections) {
    let score = 0, matched = 0, inTitle = 0;
    for (const term of terms) {
      let weight = entry.weights.get(term) || 0, found = term;
      if (!weight && term === last && term.length > 2) {
        for (const [other, otherWeight] of entry.weights) {
          if (other.startsWith(term) && otherWeight * 0.4 > weight) [weight, found] = [otherWeight * 0.4, other];
        }
      }
      if (!weight) continue;
      matched++;
      if (entry.titleTerms.has(found)) inTitle++;
      const rarity = Math.log(1 + prepared.sections.length / prepared.frequencies.get(found));
      score += rarity * weight / (weight + 1.5 * (0.4 + 0.6 * entry.size / prepared.averageSize));
    }
    if (!matched) continue;
    score *= (matched / terms.length) ** 1.5 * (entry.page.other ? 0.7 : 1);
    // A title that consists of the words of the query is most likely what is searched.
    if (inTitle) score *= 1 + (inTitle / terms.length) * (inTitle / entry.titleTerms.size);
    const result = best.get(entry.page);
    if (!result) best.set(entry.page, { score, entry, sum: score });
    else {
      result.sum += score;
      if (score > result.score) Object.assign(result, { score, entry });
    }
  }
  return [...best.values()]
    .map((r) => ({ ...r, rank: r.score + 0.3 * Math.log(1 + r.sum) }))
    .sort((a, b) => b.rank - a.rank)
    .slice(0, 12)
    .map(({ entry: { page, section } }) => ({
      link: page.link + (section.anchor ? "#" + section.anchor : ""), page: page.title, section: section.title, text: excerpt(section.text, terms),
    }));
}

// excerpt returns the part of a text around the first word that matches, as a list of pieces; each second piece matches.
function excerpt(text, terms) {
  const words = text.split(/(\s+)/);
  const isMatch = (word) => termsOf(word).some((term) => terms.includes(term));
  const first = Math.max(0, words.findIndex(isMatch) - 12);
  const pieces = [first > 0 ? "… " : ""];
  for (const word of words.slice(first, first + 60)) {
    if (isMatch(word)) pieces.push(word, "");
    else pieces[pieces.length - 1] += word;
  }
  return pieces;
}

if (typeof document !== "undefined") {
  const root = document.currentScript.dataset.root;
  const input = document.getElementById("search"), results = document.getElementById("results"), count = document.getElementById("count");
  let prepared, isLoading = false;

  // A phone starts with the text, not with the list of pages.
  if (matchMedia("(max-width: 700px)").matches) for (const list of document.querySelectorAll("nav details")) list.open = false;
  document.querySelector("search").hidden = false;

  const show = () => {
    if (!prepared) return;
    const found = input.value.trim() ? search(prepared, input.value) : [];
    results.replaceChildren(...found.map((r) => {
      const link = Object.assign(document.createElement("a"), { href: root + r.link });
      const title = Object.assign(document.createElement("b"), { textContent: r.section === r.page ? r.page : r.page + " › " + r.section });
      const text = document.createElement("span");
      r.text.forEach((piece, i) => text.append(i % 2 ? Object.assign(document.createElement("mark"), { textContent: piece }) : piece));
      link.append(title, text);
      const item = document.createElement("li");
      item.append(link);
      return item;
    }));
    results.hidden = found.length === 0;
    count.textContent = input.value.trim() ? found.length + (found.length === 1 ? " result" : " results") : "";
  };
  input.addEventListener("input", show);
  input.addEventListener("focus", () => {
    if (isLoading) return show();
    isLoading = true;
    const script = Object.assign(document.createElement("script"), { src: root + "search-index.js" });
    script.addEventListener("load", () => {
      prepared = prepare(searchIndex);
      show();
    });
    document.head.append(script);
  });

  document.addEventListener("keydown", (event) => {
    const links = [...results.querySelectorAll("a")], current = links.indexOf(document.activeElement);
    const inSearch = document.activeElement === input || current >= 0;
    if (event.key === "/" && !inSearch && !event.ctrlKey && !event.metaKey && !event.altKey) {
      input.focus();
      input.select();
    } else if (event.key === "Escape" && inSearch) {
      results.hidden = true;
      input.focus();
    } else if (event.key === "ArrowDown" && inSearch && links.length > 0) {
      links[Math.min(current + 1, links.length - 1)].focus();
    } else if (event.key === "ArrowUp" && inSearch && links.length > 0) {
      (links[current - 1] || input).focus();
    } else if (event.key === "Enter" && document.activeElement === input && links.length > 0) {
      links[0].click();
    } else {
      return;
    }
    event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("search")) results.hidden = true;
  });
}
