// @ts-check
// The output of a task: reading from the end towards the start in pages, and following.
//
// A line is {stream, index, offset, end, time, text}: the number of its log file, the offsets of its first byte and of
// the byte after its last byte, and when the first byte arrived at the agent in milliseconds since 1970 (undefined if no
// time is stored). text can have any characters. A line with isGap stands for output that was removed before it was read,
// and has a text for people.

import { get, isRejected, isUnavailable, pause, send, stream, watch } from "./api.js";
import { decode } from "./base64.js";
import { isSet } from "./format.js";
import { hasEnded } from "./status.js";

const pageSize = 64 << 10; // bytes of one request
const maxLine = 8 << 10; // bytes; longer lines are split

const query = (parameters) => new URLSearchParams(parameters);

// readPart returns a part of a file of an allocation as bytes.
export async function readPart(allocID, path, offset, limit, signal) {
  const response = await send(`/v1/client/fs/readat/${allocID}?${query({ path, offset, limit })}`, { signal });
  return new Uint8Array(await response.arrayBuffer());
}

// parseTimes decodes a file of arrival times: [{offset, time}] in the order of the offsets. See the package
// runtime/node/files/logs for the format.
export function parseTimes(bytes) {
  const times = [];
  let time = 0, offset = 0, at = bytes.indexOf(0);
  if (at < 0) return times;
  const number = () => {
    for (let value = 0, scale = 1; at < bytes.length && bytes[at] !== 0 && scale < 2 ** 53; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
    return NaN;
  };
  while (at < bytes.length) {
    if (bytes[at] === 0) {
      at++;
      time = 0;
      offset = -1;
    }
    time += number();
    offset += number();
    if (!(time < 2 ** 53 && offset < 2 ** 53)) { // a damaged record: the next record that starts with a zero byte is complete
      at = bytes.indexOf(0, at);
      if (at < 0) break;
      continue;
    }
    while (times.length && times.at(-1).offset >= offset) times.pop(); // the log file was truncated
    times.push({ offset, time });
  }
  return times;
}

// timeAt returns when the byte at an offset arrived, undefined if that is unknown.
function timeAt(times, offset) {
  let low = 0, high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle].offset > offset) high = middle;
    else low = middle + 1;
  }
  return times[low - 1]?.time;
}

// StreamFiles are the log files of one stream of a task.
class StreamFiles {
  allocID; task; streamName; sizes; times; names;

  constructor(allocID, task, streamName) {
    Object.assign(this, { allocID, task, streamName, sizes: new Map(), times: new Map(), names: new Set() });
  }

  path(index) { return `alloc/logs/${this.task}.${this.streamName}.${index}`; }

  // load reads the names and sizes of the files.
  async load(signal) {
    const prefix = `${this.task}.${this.streamName}.`;
    const entries = await get(`/v1/client/fs/ls/${this.allocID}?${query({ path: "alloc/logs" })}`, signal);
    this.sizes.clear();
    this.times.clear();
    this.names = new Set((entries ?? []).map((e) => e.Name));
    for (const { Name, Size } of entries ?? []) {
      const index = Name.startsWith(prefix) ? Name.slice(prefix.length) : "";
      if (/^\d+$/.test(index)) this.sizes.set(Number(index), Size);
    }
  }

  get indexes() { return [...this.sizes.keys()].sort((a, b) => a - b); }

  // end returns the position after the last byte.
  end() {
    const index = this.indexes.at(-1) ?? 0;
    return { index, offset: this.sizes.get(index) ?? 0 };
  }

  // bytesBefore returns the number of bytes in the files up to a position.
  bytesBefore({ index, offset }) {
    return this.indexes.filter((i) => i < index).reduce((sum, i) => sum + this.sizes.get(i), offset);
  }

  // timesOf returns the arrival times of a file. Times of files without stored times are empty.
  async timesOf(index, signal) {
    if (!this.times.has(index)) {
      const name = `.${this.task}.${this.streamName}.${index}.times`;
      const bytes = this.names.has(name) ? await readPart(this.allocID, "alloc/logs/" + name, 0, 16 << 20, signal).catch(ignoreRemoved) : undefined;
      if (this.times.size > 3) this.times.clear(); // the pages that follow need neighbours only
      this.times.set(index, bytes ? parseTimes(bytes) : []);
    }
    return this.times.get(index);
  }

  // positionAt returns the position of the first byte that arrived after a time.
  async positionAt(time, signal) {
    for (const index of this.indexes.reverse()) {
      const times = await this.timesOf(index, signal);
      if (times.length === 0 || times[0].time > time) continue;
      const next = times.find((t) => t.time > time);
      return { index, offset: next ? next.offset : this.sizes.get(index) };
    }
    return { index: this.indexes[0] ?? 0, offset: 0 };
  }
}

// Backward returns the lines before a position of one stream, the last one first.
class Backward {
  files; position; stop; lines; rest; time;

  // stop is the position after which the lines start, undefined for the start of the output.
  constructor(files, position, stop) {
    Object.assign(this, { files, position, stop, lines: [], rest: new Uint8Array(), time: undefined });
  }

  // last returns the last line that was not removed yet, undefined at the start of the output.
  async last(signal) {
    while (this.lines.length === 0 && await this.readPage(signal));
    return this.lines.at(-1);
  }

  async readPage(signal) {
    const { stop } = this;
    let { index, offset } = this.position;
    if (stop && (index < stop.index || index === stop.index && offset <= stop.offset)) return false;
    if (offset === 0) {
      const previous = this.files.indexes.filter((i) => i < index).at(-1);
      if (previous === undefined || stop && previous < stop.index) return stop ? this.addGap() : false;
      [index, offset] = [previous, this.files.sizes.get(previous)];
    }
    const lowest = stop?.index === index ? stop.offset : 0;
    const start = Math.max(lowest, offset - pageSize);
    let bytes = offset > start ? await readPart(this.files.allocID, this.files.path(index), start, offset - start, signal).catch(ignoreRemoved) : new Uint8Array();
    if (!bytes) return stop ? this.addGap() : false;
    bytes = concat(bytes.subarray(0, offset - start), this.rest);
    this.rest = new Uint8Array();
    let from = 0;
    if (start > lowest) { // the first line is incomplete: it is read with the page before
      const newline = bytes.indexOf(10);
      from = newline < 0 || newline >= maxLine ? 0 : newline + 1;
      this.rest = bytes.slice(0, from);
    }
    const times = await this.files.timesOf(index, signal);
    const splitter = new Splitter(this.files.streamName, { index, offset: start + from }, (at) => timeAt(times, at));
    this.lines = [...splitter.add(bytes.subarray(from)), ...splitter.flush()];
    this.time = this.lines[0]?.time ?? this.time;
    this.position = { index, offset: start };
    return true;
  }

  // addGap adds a line for the files between stop and the position, which were removed.
  addGap() {
    this.lines = [gapLine(this.files.streamName, this.position, this.time)];
    this.position = this.stop;
    return true;
  }
}

// gapLine returns the line in place of output before a position.
function gapLine(streamName, { index, offset }, time) {
  const text = `Output of ${streamName} can be missing here: log files were removed before this page has read them.`;
  return { stream: streamName, index, offset, end: offset, time, text, isGap: true };
}

// ignoreRemoved is for files that were removed by the limit of max_files since they were listed.
function ignoreRemoved(err) {
  if (err.status !== 404) throw err;
}

function concat(a, b) {
  const all = new Uint8Array(a.length + b.length);
  all.set(a);
  all.set(b, a.length);
  return all;
}

// Splitter splits the bytes of a stream into lines.
class Splitter {
  streamName; position; timeOf; rest; decoder;

  // timeOf(offset) returns the time of a byte.
  constructor(streamName, position, timeOf) {
    Object.assign(this, { streamName, position, timeOf, rest: new Uint8Array(), decoder: new TextDecoder() });
  }

  add(bytes) {
    bytes = concat(this.rest, bytes);
    const lines = [];
    let from = 0;
    for (let end; (end = this.lineEnd(bytes, from)) >= 0; from = end) lines.push(this.line(bytes.subarray(from, end)));
    this.rest = bytes.slice(from);
    return lines;
  }

  // flush removes the incomplete line at the end, and returns it.
  flush() {
    const lines = this.incomplete();
    this.position = { ...this.position, offset: this.position.offset + this.rest.length };
    this.rest = new Uint8Array();
    return lines;
  }

  // incomplete returns the incomplete line at the end, if there is one: it has isIncomplete.
  incomplete() {
    const { position } = this;
    if (this.rest.length === 0) return [];
    const line = this.line(this.rest);
    this.position = position;
    return [{ ...line, isIncomplete: true }];
  }

  lineEnd(bytes, from) {
    const newline = bytes.indexOf(10, from);
    if (newline >= 0 && newline - from < maxLine) return newline + 1;
    if (bytes.length - from < maxLine) return -1;
    let end = from + maxLine;
    while (end > from + maxLine - 4 && (bytes[end] & 0xc0) === 0x80) end--; // not within a character
    return end;
  }

  line(bytes) {
    const { index, offset } = this.position, end = offset + bytes.length;
    const line = { stream: this.streamName, index, offset, end, time: this.timeOf(offset) };
    this.position = { index, offset: end };
    line.text = this.decoder.decode(bytes.at(-1) === 10 ? bytes.subarray(0, -1) : bytes);
    return line;
  }
}

// TaskLog reads the output of a task. streams: names of streams, which are merged by time.
export class TaskLog {
  allocID; task; files; readers;

  constructor(allocID, task, streams) {
    Object.assign(this, { allocID, task, files: streams.map((name) => new StreamFiles(allocID, task, name)), readers: [] });
  }

  // openAtEnd selects the end of the output for earlier. With starts, positions of the streams, earlier returns only the
  // lines after them.
  async openAtEnd(signal, starts) {
    await this.load(signal);
    const ends = this.files.map((f) => f.end());
    this.readers = this.files.map((f, i) => new Backward(f, ends[i], starts && stopOf(f, starts[i])));
    return ends;
  }

  // openToFollow is openAtEnd without incomplete lines at the end, which are left to follow.
  async openToFollow(signal, starts) {
    const ends = await this.openAtEnd(signal, starts);
    await Promise.all(this.readers.map(async (reader, i) => {
      const line = await reader.last(signal);
      if (!line?.isIncomplete) return;
      reader.lines.pop();
      ends[i] = { index: line.index, offset: line.offset };
    }));
    this.ends = ends;
  }

  // openAt selects a time for earlier.
  async openAt(time, signal) {
    await this.load(signal);
    this.readers = await Promise.all(this.files.map(async (f) => new Backward(f, await f.positionAt(time, signal))));
  }

  async load(signal) {
    await Promise.all(this.files.map((f) => f.load(signal)));
    this.isStale = false;
  }

  // openBefore selects the positions of lines for earlier, by the name of the stream: the first line on the page. A stream
  // without a line on the page continues before the position of follow.
  openBefore(positions) {
    this.readers = this.files.map((f, i) => new Backward(f, positions[f.streamName] ?? this.ends[i]));
    this.isStale = true; // the files have grown while they were followed
  }

  // earlier returns at most count lines before those that were returned, in the order of their times. It
  // returns fewer lines only at the start of the output.
  async earlier(count, signal) {
    if (this.isStale) await Promise.all(this.readers.map((r) => r.files.load(signal)));
    this.isStale = false;
    const lines = [];
    while (lines.length < count) {
      const last = await Promise.all(this.readers.map((r) => r.last(signal)));
      let newest = -1;
      last.forEach((line, i) => { if (line && (newest < 0 || (line.time ?? 0) >= (last[newest].time ?? 0))) newest = i; });
      if (newest < 0) break;
      lines.push(this.readers[newest].lines.pop());
    }
    return lines.reverse();
  }

  // follow calls onLines(lines, incomplete) with the output after the position of openToFollow or missed until the signal
  // ends: the agent does not end the stream of a task that has ended. incomplete has the last line of the stream of lines
  // while it has no end. onLines can return a promise. follow continues with the next byte after the connection was lost.
  // It returns false if max lines or more were missed.
  async follow(signal, onLines, max) {
    while (!signal.aborted) {
      const connection = new AbortController();
      const until = AbortSignal.any([signal, connection.signal]);
      /** @type {any[]} */
      const results = await Promise.allSettled(this.files.map((_, i) => this.followStream(i, until, onLines).finally(() => connection.abort())));
      if (signal.aborted) break;
      const rejected = results.find(({ reason }) => isRejected(reason));
      if (rejected) throw rejected.reason;
      await pause(1000, signal);
      if (signal.aborted) break;
      const lines = await this.missed(max, signal).catch((err) => { if (!signal.aborted) throw err; return []; });
      if (!lines) return false;
      await onLines(lines, []);
    }
    return true;
  }

  // missed returns the lines since the end of follow, and selects their end for the next one. It returns undefined if
  // there are max lines or more. It waits while the agent does not answer. With isEnd, it includes incomplete lines.
  async missed(max, signal, isEnd = false) {
    for (;; await pause(1000, signal)) {
      try {
        const now = new TaskLog(this.allocID, this.task, this.files.map((f) => f.streamName));
        if (isEnd) now.ends = await now.openAtEnd(signal, this.ends);
        else await now.openToFollow(signal, this.ends);
        const lines = await now.earlier(max, signal);
        [this.files, this.ends] = [now.files, now.ends];
        return lines.length < max ? lines : undefined;
      } catch (err) {
        if (!isUnavailable(err)) throw err;
      }
    }
  }

  // followStream follows one stream, and keeps the position of its last complete line. It returns when the signal ends or
  // the agent ends the stream, and throws an error when the connection is lost.
  async followStream(i, signal, onLines) {
    const files = this.files[i], { streamName } = files;
    let next = this.ends[i]; // the position of the next byte
    let splitter = new Splitter(streamName, next, () => Date.now());
    let isFirst = true;
    const parameters = { task: this.task, type: streamName, follow: "true", origin: "start", offset: files.bytesBefore(next) };
    await stream(`/v1/client/fs/logs/${this.allocID}?${query(parameters)}`, signal, async (frame) => {
      let bytes = decode(frame.Data ?? "");
      const index = Number(/\d+$/.exec(frame.File)), start = frame.Offset - bytes.length;
      const isSameFile = index === next.index, isNextFile = index === next.index + 1 && start === 0;
      const startsAnew = !isSameFile || !isFirst && start < next.offset; // another file, or a truncated one
      const lines = [];
      if (isFirst) {
        // Files that have changed since they were listed have moved the start of the stream.
        if (index < next.index || isSameFile && frame.Offset <= next.offset) return;
        if (isSameFile ? start > next.offset : !isNextFile) throw new Error("The stream starts after the next byte.");
        if (isSameFile) bytes = bytes.subarray(next.offset - start);
        isFirst = false;
      } else if (!isNextFile && !(isSameFile && start <= next.offset)) {
        lines.push(...splitter.flush(), gapLine(streamName, { index, offset: start }, Date.now()));
      }
      if (startsAnew) {
        lines.push(...splitter.flush());
        splitter = new Splitter(streamName, { index, offset: start }, () => Date.now());
      }
      lines.push(...splitter.add(bytes));
      next = { index, offset: frame.Offset };
      this.ends[i] = splitter.position;
      await onLines(lines, splitter.incomplete());
    });
  }
}

// stopOf returns the position after which the output of a stream is new. A file that is shorter was truncated.
function stopOf(files, { index, offset }) {
  return { index, offset: offset > (files.sizes.get(index) ?? offset) ? 0 : offset };
}

// started waits until a task of an allocation has started, or can no longer start.
export function started(allocID, task, signal) {
  return condition(allocID, signal, (alloc) => {
    const state = alloc.TaskStates?.[task];
    return isSet(state?.StartedAt) || hasEnded(alloc);
  });
}

// ended waits until an allocation has ended.
export const ended = (allocID, signal) => condition(allocID, signal, hasEnded);

async function condition(allocID, signal, is) {
  const found = new AbortController();
  await watch(`/v1/allocation/${allocID}`, AbortSignal.any([signal, found.signal]), (alloc) => { if (is(alloc)) found.abort(); });
}
