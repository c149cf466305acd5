'use strict';
// Data of the page: inflates the compressed part of the file and rebuilds the columns of each device.

// Numbers of the allocations in one stretch, whose latest end is known: a stretch that ended is skipped at once.
const STRETCH = 2048;

async function readData() {
  const text = document.getElementById('data').textContent;
  const bytes = decodeBase64(text);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(data.buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length)));
  return { facts, columns: data.subarray(4 + length) };
}

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

// Decodes the varints of a column into an array.
function decode(columns, place, into) {
  let at = place.offset;
  const end = at + place.bytes;
  for (let n = 0; at < end; n++) {
    let value = columns[at++];
    if (value >= 128) {
      value -= 128;
      for (let scale = 128, byte = 128; byte >= 128; scale *= 128) {
        byte = columns[at++];
        value += (byte & 127) * scale;
      }
    }
    into[n] = value;
  }
  return into;
}

// Numbers with a sign are in zigzag order.
const signed = (value) => (value % 2 === 0 ? value / 2 : -(value + 1) / 2);

// Columns of one device as typed arrays. `event` columns have a value after each event.
function readDevice(facts, columns, tables) {
  const places = facts.columns;
  const events = places.events;
  const count = places.allocations;
  const numbers = (place, length) => decode(columns, place, new Float64Array(length));
  const device = {
    facts, events, count,
    name: facts.name,
    time: numbers(places.time, events),
    allocated: numbers(places.allocated, events),
    reserved: numbers(places.reserved, events),
    before: numbers(places.before, events),
    born: decode(columns, places.born, new Uint32Array(count)),
    ended: decode(columns, places.lifetime, new Uint32Array(count)),
    size: numbers(places.size, count),
    addr: numbers(places.addr, count),
    stack: decode(columns, places.stack, new Uint32Array(count)),
    purpose: numbers(places.purpose, count),
    category: decode(columns, places.category, new Uint8Array(count)),
    label: new Int32Array(count).fill(-1),
    tables,
  };
  rebuildAllocations(device, places.unit);
  rebuildEvents(device);
  rebuildLabels(device, columns);
  device.segments = readSegments(columns, places);
  device.endOrder = orderOfEnds(device);
  device.latestEnd = latestEnds(device);
  return device;
}

function rebuildAllocations(device, unit) {
  const last = device.tables.stacks.map(() => [0, 0, 0]);
  let born = 0;
  for (let i = 0; i < device.count; i++) {
    born += device.born[i];
    device.born[i] = born;
    device.ended[i] = device.ended[i] === 0 ? device.events : born + device.ended[i];
    const before = last[device.stack[i]];
    before[0] += signed(device.size[i]);
    before[1] += signed(device.addr[i]);
    before[2] += signed(device.purpose[i]);
    device.size[i] = before[0] * unit;
    device.addr[i] = before[1] * unit;
    device.purpose[i] = before[2];
  }
}

function rebuildEvents(device) {
  const { events, time, allocated, reserved, before } = device;
  const change = new Float64Array(events + 1);
  for (let i = 0; i < device.count; i++) {
    change[device.born[i]] += device.size[i];
    change[device.ended[i]] -= device.size[i];
  }
  device.live = new Float64Array(events);
  for (let e = 0, last = 0, now = 0, kept = 0, old = 0, live = 0; e < events; e++) {
    now += time[e];
    time[e] = now;
    last += change[e] + signed(allocated[e]);
    allocated[e] = last;
    kept += signed(reserved[e]);
    reserved[e] = kept;
    old += signed(before[e]);
    before[e] = old;
    live += change[e];
    device.live[e] = live;
  }
}

function rebuildLabels(device, columns) {
  const pairs = decode(columns, device.facts.columns.labeled, []);
  for (let at = 0, i = 0; at + 1 < pairs.length; at += 2) {
    i += pairs[at];
    device.label[i] = pairs[at + 1];
  }
}

function readSegments(columns, places) {
  const numbers = decode(columns, places.segment, new Float64Array(places.segments * 5));
  const segments = [];
  for (let at = 0; at < numbers.length; at += 5) {
    const [addr, size, begin, end, pool] = numbers.subarray(at, at + 5);
    segments.push({ addr, size, begin, end, pool: places.pools[pool] });
  }
  return segments;
}

// Allocations in the order of their ends, by counting.
function orderOfEnds({ events, count, ended }) {
  const start = new Uint32Array(events + 2);
  for (let i = 0; i < count; i++) start[ended[i] + 1]++;
  for (let e = 0; e <= events; e++) start[e + 1] += start[e];
  const order = new Uint32Array(count);
  const next = start.slice();
  for (let i = 0; i < count; i++) order[next[ended[i]]++] = i;
  return { start, order };
}

function latestEnds({ count, ended }) {
  const latest = new Uint32Array(Math.ceil(count / STRETCH));
  for (let i = 0; i < count; i++) {
    const stretch = Math.floor(i / STRETCH);
    if (ended[i] > latest[stretch]) latest[stretch] = ended[i];
  }
  return latest;
}

// Index of the first value that is not below `wanted`, in an ascending array.
function lowerBound(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
