// Moments: live allocations after an event, their sums by row, and categories over time.

// Events in one step of the pyramid.
const STEP = 256;

// Most events that are drawn one by one; more are drawn by steps.
const MAX_SINGLE = 150_000;

// Calls `each` with the number of every allocation that is live after an event.
function eachLive(device, event, each) {
  const { ended, latestEnd } = device;
  const until = lowerBound(device.born, event + 1);
  for (let from = 0, stretch = 0; from < until; from += STRETCH, stretch++) {
    if (latestEnd[stretch] <= event) continue;
    const end = Math.min(from + STRETCH, until);
    for (let i = from; i < end; i++) if (ended[i] > event) each(i);
  }
}

// Rows of a table: the row of each allocation and the names of the rows. Made at the first use of the table.
function rowsBy(device, by) {
  device.rows ??= {};
  device.rows[by] ??= makeRows(device, by);
  return device.rows[by];
}

function makeRows(device, by) {
  const { stacks, lines, modules, purposes, labels, retainers } = device.tables;
  const of = new Uint32Array(device.count);
  const rows = [];
  if (by === 'line' || by === 'module') {
    const names = by === 'line' ? lines.map((line) => line.name) : modules;
    for (let i = 0; i < device.count; i++) of[i] = stacks[device.stack[i]][by];
    names.forEach((name, number) => rows.push({ name, number }));
    return { of, rows, before: stacks[0][by] };
  }
  const numbers = new Map();
  const numberOf = (key, make) => {
    let number = numbers.get(key);
    if (number === undefined) {
      number = rows.length;
      numbers.set(key, number);
      rows.push({ number, ...make() });
    }
    return number;
  };
  const before = numberOf('before', () => ({ name: lines[0].name }));
  for (let i = 0; i < device.count; i++) {
    const label = device.label[i] < 0 ? undefined : labels[device.label[i]];
    if (by === 'retainer') {
      const retainer = label?.retainer ?? -1;
      of[i] = numberOf(retainer, () => ({ name: retainer < 0 ? '(no retainer known)' : retainerName(retainers[retainer]) }));
    } else if (device.stack[i] === 0) {
      of[i] = label?.name ? numberOf(label.name, () => ({ name: label.name })) : before;
    } else {
      const line = stacks[device.stack[i]].line;
      const key = device.purpose[i] * lines.length + line;
      of[i] = numberOf(key, () => ({ name: purposes[device.purpose[i]], line, where: lines[line].name, label }));
      if (label?.name) rows[of[i]].label ??= label;
    }
  }
  return { of, rows, before };
}

const retainerName = (retainer) => retainer.name + (retainer.is_exclusive ? '' : ' (and others)');

// Bytes and blocks of each row after an event. The sums, the bytes from before attach and the rest are the allocator's
// total.
function sumsAt(device, event, by) {
  const { of, rows, before } = rowsBy(device, by);
  const bytes = new Float64Array(rows.length);
  const blocks = new Uint32Array(rows.length);
  const { size } = device;
  eachLive(device, event, (i) => {
    bytes[of[i]] += size[i];
    blocks[of[i]]++;
  });
  bytes[before] += device.before[event];
  const rest = device.allocated[event] - device.live[event] - device.before[event];
  return { bytes, blocks, rest, total: device.allocated[event] };
}

// Bytes of each stack after an event, without those that belong to no block.
function stackSums(device, event) {
  const bytes = new Float64Array(device.tables.stacks.length);
  const { stack, size } = device;
  eachLive(device, event, (i) => { bytes[stack[i]] += size[i]; });
  bytes[0] += device.before[event];
  return bytes;
}

// Numbers of categories: those of the facts, then before attach, then not accounted for.
const bands = (categories) => categories.length + 2;

// Steps of the pyramid: state before each step, and state at its highest event.
function makePyramid(device, categories) {
  const kinds = bands(categories);
  const steps = Math.ceil(device.events / STEP);
  const pyramid = {
    kinds, steps,
    base: new Float64Array((steps + 1) * kinds),
    top: new Float64Array(steps * kinds),
    topEvent: new Uint32Array(steps),
    low: new Float64Array(steps),
    reserved: new Float64Array(steps),
  };
  const now = new Float64Array(kinds);
  for (let step = 0; step < steps; step++) {
    pyramid.base.set(now, step * kinds);
    const from = step * STEP;
    const end = Math.min(from + STEP, device.events);
    let highest = -1;
    pyramid.low[step] = Infinity;
    sweep(device, now, from, end, (event) => {
      const allocated = device.allocated[event];
      if (allocated < pyramid.low[step]) pyramid.low[step] = allocated;
      if (device.reserved[event] > pyramid.reserved[step]) pyramid.reserved[step] = device.reserved[event];
      if (allocated <= highest) return;
      highest = allocated;
      pyramid.topEvent[step] = event;
      pyramid.top.set(now, step * kinds);
    });
  }
  pyramid.base.set(now, steps * kinds);
  return pyramid;
}

// Applies events to the bytes by category `now`, and calls `each` after every event.
function sweep(device, now, from, end, each) {
  const { born, size, category, endOrder, count } = device;
  const baseline = now.length - 2;
  let next = lowerBound(born, from);
  for (let event = from; event < end; event++) {
    for (; next < count && born[next] === event; next++) now[category[next]] += size[next];
    for (let at = endOrder.start[event]; at < endOrder.start[event + 1]; at++) {
      const i = endOrder.order[at];
      now[category[i]] -= size[i];
    }
    const old = event > 0 ? device.before[event - 1] : 0;
    now[baseline] += device.before[event] - old;
    now[baseline + 1] = device.allocated[event] - device.live[event] - device.before[event];
    each(event);
  }
}

// Bytes by category at the highest event of each pixel of a time range.
function pixels(device, pyramid, from, to, width) {
  const kinds = pyramid.kinds;
  const picture = {
    bytes: new Float64Array(width * kinds),
    event: new Int32Array(width).fill(-1),
    low: new Float64Array(width).fill(Infinity),
    reserved: new Float64Array(width),
    highest: 0,
  };
  const first = lowerBound(device.time, from);
  const end = lowerBound(device.time, to + 1e-9);
  const pixel = (time) => Math.min(width - 1, Math.max(0, Math.floor(((time - from) / (to - from)) * width)));
  const peak = new Float64Array(width).fill(-1);
  const now = new Float64Array(kinds);
  let at = 0;
  let reserved = first > 0 ? device.reserved[first - 1] : 0;
  // Pixels without an event show the state that lasts.
  const fill = (until) => {
    for (; at < until; at++) {
      if (peak[at] >= 0) continue;
      picture.bytes.set(now, at * kinds);
      picture.low[at] = now.reduce((sum, bytes) => sum + bytes, 0);
      picture.reserved[at] = reserved;
    }
  };
  const put = (x, event, bytes, allocated, low) => {
    if (allocated > peak[x]) {
      peak[x] = allocated;
      picture.event[x] = event;
      picture.bytes.set(bytes, x * kinds);
    }
    if (low < picture.low[x]) picture.low[x] = low;
    if (reserved > picture.reserved[x]) picture.reserved[x] = reserved;
  };
  if (end - first <= MAX_SINGLE) {
    const step = Math.floor(first / STEP);
    now.set(pyramid.base.subarray(step * kinds, (step + 1) * kinds));
    sweep(device, now, step * STEP, first, () => {});
    const shown = now.slice();
    sweep(device, shown, first, end, (event) => {
      const x = pixel(device.time[event]);
      fill(x);
      reserved = device.reserved[event];
      put(x, event, shown, device.allocated[event], device.allocated[event]);
      now.set(shown);
    });
  } else {
    for (let step = Math.floor(first / STEP); step * STEP < end; step++) {
      const event = pyramid.topEvent[step];
      const x = pixel(device.time[event]);
      fill(x);
      reserved = pyramid.reserved[step];
      put(x, event, pyramid.top.subarray(step * kinds, (step + 1) * kinds), device.allocated[event], pyramid.low[step]);
      now.set(pyramid.base.subarray((step + 1) * kinds, (step + 2) * kinds));
    }
  }
  fill(width);
  for (let x = 0; x < width; x++) {
    let sum = 0;
    for (let kind = 0; kind < kinds; kind++) sum += Math.max(0, picture.bytes[x * kinds + kind]);
    picture.highest = Math.max(picture.highest, sum, picture.reserved[x]);
  }
  return picture;
}

// Event with the most allocated bytes in a range; of equal ones the first.
function highestEvent(device, first, end) {
  let best = first;
  for (let event = first + 1; event < end; event++) {
    if (device.allocated[event] > device.allocated[best]) best = event;
  }
  return best;
}

// Iteration that an event belongs to.
function iterationAt(device, event) {
  const rows = device.facts.iterations;
  let found = -1;
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].first <= event) [found, low] = [middle, middle + 1];
    else high = middle;
  }
  return found >= 0 && event <= rows[found].last ? rows[found] : undefined;
}

// The moments that a page opens at: the last failed request or the peak, and the peak of the last whole iteration
// before it.
function firstMoments(device) {
  const failed = device.facts.failed.at(-1);
  const a = failed ? failed.event : highestEvent(device, 0, device.events);
  const fitted = device.facts.iterations.filter((row) => row.kind === 'iteration' && row.last < a).at(-1);
  return { a, b: fitted ? fitted.peak_event : 0 };
}

// Iterations that a page opens with.
const FIRST_ITERATIONS = 40;

// Range of time that a page opens with: the last iterations up to a moment, or everything.
function firstRange(device, event) {
  const rows = device.facts.iterations.filter((row) => row.kind === 'iteration' || row.kind === 'unfinished');
  const until = rows.findLastIndex((row) => row.first <= event);
  const end = device.time[device.events - 1] ?? 1;
  if (until < 1) return [0, end];
  const from = rows[Math.max(0, until - FIRST_ITERATIONS)].begin_us;
  const to = Math.max(rows[until].end_us, device.time[event]);
  const rest = (to - from) * 0.04;
  return [from - rest, Math.min(end, to + rest)];
}
