// The output of a task: reading from the end towards the start in pages, and following.
//
// A line is {stream, index, offset, end, time, text}: the number of its log file, the offsets of its first byte and of
// the byte after its last byte, and when the first byte arrived at the agent in milliseconds since 1970 (undefined if no
// time is stored). text can have any characters.

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
  constructor(files, position) {
    Object.assign(this, { files, position, lines: [], rest: new Uint8Array() });
  }

  // last returns the last line that was not removed yet, undefined at the start of the output.
  async last(signal) {
    while (this.lines.length === 0 && await this.readPage(signal));
    return this.lines.at(-1);
  }

  async readPage(signal) {
    let { index, offset } = this.position;
    if (offset === 0) {
      const previous = this.files.indexes.filter((i) => i < index).at(-1);
      if (previous === undefined) return false;
      [index, offset] = [previous, this.files.sizes.get(previous)];
    }
    const start = Math.max(0, offset - pageSize);
    let bytes = offset > start ? await readPart(this.files.allocID, this.files.path(index), start, offset - start, signal).catch(ignoreRemoved) : new Uint8Array();
    if (!bytes) return false;
    bytes = concat(bytes.subarray(0, offset - start), this.rest);
    this.rest = new Uint8Array();
    let from = 0;
    if (start > 0) { // the first line is incomplete: it is read with the page before
      const newline = bytes.indexOf(10);
      from = newline < 0 || newline >= maxLine ? 0 : newline + 1;
      this.rest = bytes.slice(0, from);
    }
    const times = await this.files.timesOf(index, signal);
    const splitter = new Splitter(this.files.streamName, { index, offset: start + from }, (at) => timeAt(times, at));
    this.lines = [...splitter.add(bytes.subarray(from)), ...splitter.flush()];
    this.position = { index, offset: start };
    return true;
  }
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

  // flush returns the incomplete line at the end.
  flush() {
    const { rest } = this;
    this.rest = new Uint8Array();
    return rest.length ? [this.line(rest)] : [];
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
  constructor(allocID, task, streams) {
    Object.assign(this, { allocID, task, files: streams.map((name) => new StreamFiles(allocID, task, name)), readers: [] });
  }

  // openAtEnd selects the end of the output for earlier and follow.
  async openAtEnd(signal) {
    await Promise.all(this.files.map((f) => f.load(signal)));
    this.ends = this.files.map((f) => f.end());
    this.readers = this.files.map((f, i) => new Backward(f, this.ends[i]));
  }

  // openAt selects a time for earlier.
  async openAt(time, signal) {
    await Promise.all(this.files.map((f) => f.load(signal)));
    this.readers = await Promise.all(this.files.map(async (f) => new Backward(f, await f.positionAt(time, signal))));
  }

  // openBefore selects the positions of lines for earlier, by the name of the stream.
  openBefore(positions) {
    this.readers = this.files.map((f, i) => new Backward(f, positions[f.streamName] ?? this.readers[i].position));
  }

  // earlier returns at most count lines before those that were returned, in the order of their times. It
  // returns fewer lines only at the start of the output. With after, the positions of the streams, it returns no line
  // that ends there or before.
  async earlier(count, signal, after) {
    const lines = [];
    const isWanted = (line, position) => !position || line?.index > position.index || line?.index === position.index && line.end > position.offset;
    while (lines.length < count) {
      const all = await Promise.all(this.readers.map((r) => r.last(signal)));
      const last = all.map((line, i) => (isWanted(line, after?.[i]) ? line : undefined));
      let newest = -1;
      last.forEach((line, i) => { if (line && (newest < 0 || (line.time ?? 0) >= (last[newest].time ?? 0))) newest = i; });
      if (newest < 0) break;
      lines.push(this.readers[newest].lines.pop());
    }
    return lines.reverse();
  }

  // follow calls onLines(lines) with the output after the position of openAtEnd or missed until the signal ends: the
  // agent does not end the stream of a task that has ended. It continues after the connection was lost. onLines can
  // return a promise. follow returns the incomplete lines at the end.
  async follow(signal, onLines) {
    const splitters = await Promise.all(this.files.map((f, i) => this.followStream(f, this.ends[i], signal, onLines)));
    this.ends = splitters.map((s) => s.position);
    return splitters.flatMap((s) => s.flush());
  }

  // missed returns the lines since the end of follow, and selects their end for the next one. It returns undefined if
  // there are max lines or more. It waits while the agent does not answer.
  async missed(max, signal) {
    for (;; await pause(1000, signal)) {
      try {
        const now = new TaskLog(this.allocID, this.task, this.files.map((f) => f.streamName));
        await now.openAtEnd(signal);
        const lines = await now.earlier(max, signal, this.ends);
        [this.files, this.ends] = [now.files, now.ends];
        return lines.length < max ? lines : undefined;
      } catch (err) {
        if (!isUnavailable(err)) throw err;
      }
    }
  }

  // followStream returns the Splitter with the incomplete line at the end.
  async followStream({ streamName }, end, signal, onLines) {
    let { index, offset } = end;
    let splitter = new Splitter(streamName, end, () => Date.now());
    while (!signal.aborted) {
      try {
        const path = `/v1/client/fs/logs/${this.allocID}?${query({ task: this.task, type: streamName, follow: "true", origin: "end", offset: pageSize })}`;
        await stream(path, signal, async (frame) => {
          let bytes = decode(frame.Data ?? "");
          const frameIndex = Number(/\d+$/.exec(frame.File)), start = frame.Offset - bytes.length;
          if (frameIndex < index || frameIndex === index && frame.Offset <= offset) return; // shown already
          const isNext = frameIndex === index && start <= offset;
          if (isNext) bytes = bytes.subarray(offset - start);
          const lines = [];
          if (!isNext) {
            lines.push(...splitter.flush());
            splitter = new Splitter(streamName, { index: frameIndex, offset: start }, () => Date.now());
          }
          lines.push(...splitter.add(bytes));
          [index, offset] = [frameIndex, frame.Offset];
          if (lines.length) await onLines(lines);
        });
        break;
      } catch (err) {
        if (signal.aborted) break;
        if (isRejected(err)) throw err;
        await pause(1000, signal);
      }
    }
    return splitter;
  }
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
