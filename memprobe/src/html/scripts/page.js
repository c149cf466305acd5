// The page: its state, what each part shows of it, keys, and the fragment of the address.

const KEYS = [
  ['a b', 'choose the cursor that moves'], ['← →', 'move it by a pixel; with Shift by an event'],
  ['[ ]', 'peak of the iteration before or after'], ['p', 'highest allocated bytes'], ['o', 'next failed request'],
  ['+ - 0', 'zoom in, out, show everything'], ['d', 'at A, at B, A minus B'], ['1 2 3 4', 'lines, tensors, modules, retainers'],
  ['/', 'find in rows and flame graph'], ['Enter', 'in a table: details; in the flame graph: zoom'],
  ['Esc', 'leave a field, zoom out'], ['Shift-click', 'in the chart: move cursor B'], ['?', 'these keys'],
];

class Page {
  constructor({ facts, columns }) {
    this.facts = facts;
    this.devices = facts.devices.map((device) => readDevice(device, columns, facts.tables));
    this.state = { device: 0, a: 0, b: 0, moves: 'a', show: 'a', by: 'line', find: '' };
    const { categories } = facts;
    this.timeline = new Timeline(byId('chart'), categories, (event, name) => this.move(event, name), () => this.keep());
    this.rows = new Grid(byId('rows'), 'Live memory', rowColumns(this), (row) => this.detail(row));
    this.flame = new Flame(byId('flame-box'), byId('flame-picture'), byId('flame-text'), categories);
    this.map = new AddressMap(
      byId('map-box'), byId('map-picture'), byId('map-height'), byId('map-text'), byId('map-summary'), categories);
    this.iterations = new Grid(byId('iteration-rows'), 'Iterations', iterationColumns(), (row, event) =>
      this.move(row.peak_event, event.shiftKey ? 'b' : undefined, true));
    this.growth = new Grid(byId('growth-rows'), 'Growth', growthColumns(), (row) => this.growthDetail(row));
    this.listen();
    for (const [at, device] of this.devices.entries()) byId('device').append(new Option(device.name, at));
    byId('device').disabled = this.devices.length < 2;
  }

  get device() {
    return this.devices[this.state.device];
  }

  // Opens a device, at the moments of the fragment if it has some.
  open(number, wanted = {}) {
    this.state.device = this.devices[number] ? number : 0;
    byId('device').value = this.state.device;
    const first = firstMoments(this.device);
    const within = (event) => Number.isInteger(event) && event >= 0 && event < this.device.events;
    this.state.a = within(wanted.a) ? wanted.a : first.a;
    this.state.b = within(wanted.b) ? wanted.b : first.b;
    this.timeline.cursors = this.state;
    this.timeline.show(this.device);
    if (wanted.to > wanted.from) this.timeline.setRange(wanted.from, wanted.to);
    else this.timeline.setRange(...firstRange(this.device, this.state.a));
    byId('to-failed').disabled = this.device.facts.failed.length === 0;
    this.showLegend();
    this.showIterations();
    this.showGrowth();
    this.update();
  }

  // Moves a cursor to an event.
  move(event, name = this.state.moves, reveal = false) {
    this.state[name] = event;
    if (reveal) this.timeline.reveal(event);
    this.update();
  }

  // Shows everything that depends on the moments.
  update() {
    const begin = performance.now();
    this.timeline.setCursors(this.state);
    this.showMoments();
    this.showRows();
    this.showFlame();
    const event = this.state.show === 'b' ? this.state.b : this.state.a;
    const failed = this.device.facts.failed.find((it) => it.event === event);
    this.map.show(this.device, event, failed?.size ?? 0);
    if (!byId('detail').hidden && this.chosen) this.detail(this.chosen, false);
    for (const button of document.querySelectorAll('[data-show]')) {
      button.setAttribute('aria-pressed', button.dataset.show === this.state.show);
    }
    for (const tab of document.querySelectorAll('[data-by]')) {
      tab.setAttribute('aria-selected', tab.dataset.by === this.state.by);
    }
    for (const name of ['a', 'b']) byId(`move-${name}`).setAttribute('aria-pressed', this.state.moves === name);
    document.body.dataset.updateMs = (performance.now() - begin).toFixed(1);
    this.keep();
  }

  showMoments() {
    const { device } = this;
    const values = (event) => {
      const [allocated, reserved] = [device.allocated[event], device.reserved[event]];
      return { event, time: device.time[event], allocated, reserved, cached: reserved - allocated,
        iteration: iterationAt(device, event)?.name ?? '-' };
    };
    const [a, b] = [values(this.state.a), values(this.state.b)];
    const minus = { event: a.event - b.event, time: a.time - b.time, iteration: '' };
    for (const key of ['allocated', 'reserved', 'cached']) minus[key] = a[key] - b[key];
    const row = (name, it, bytes) => {
      const cells = [count(it.event + (name === 'A - B' ? 0 : 1)), span(it.time), it.iteration];
      const made = element('tr', { class: name === 'A - B' ? '' : `of-${name.toLowerCase()}` },
        element('th', {}, name), ...cells.map((cell) => element('td', {}, cell)));
      for (const key of ['allocated', 'reserved', 'cached']) {
        made.append(element('td', { title: String(it[key]), 'data-bytes': key }, bytes(it[key])));
      }
      return made;
    };
    byId('moments').tBodies[0].replaceChildren(row('A', a, human), row('B', b, human), row('A - B', minus, difference));
  }

  showLegend() {
    const words = [...this.facts.categories.map((it) => [it.key, it.name]), ['before_attach', 'before attach']];
    const pyramid = this.device.pyramid;
    const used = new Set();
    for (let at = 0; at < pyramid.top.length; at++) if (pyramid.top[at] !== 0) used.add(at % pyramid.kinds);
    if (used.has(pyramid.kinds - 1)) words.push(['unaccounted', 'not accounted for']);
    const items = words.filter((_, kind) => used.has(kind)).map(([key, name]) =>
      element('li', {}, element('i', { class: `key c-${key}` }), name));
    items.push(element('li', {}, element('i', { class: 'key line' }), 'reserved'));
    items.push(element('li', {}, element('i', { class: 'key line low' }), 'lowest allocated in the pixel'));
    byId('legend').replaceChildren(...items);
  }

  showRows() {
    const { device, state } = this;
    const sums = { a: sumsAt(device, state.a, state.by), b: sumsAt(device, state.b, state.by) };
    const { rows } = rowsBy(device, state.by);
    const value = { a: (a) => a, b: (a, b) => b, difference: (a, b) => a - b }[state.show];
    const find = state.find.toLowerCase();
    const shown = [];
    let found = 0;
    const total = { kind: 'total', name: 'allocated', a: sums.a.total, b: sums.b.total,
      value: value(sums.a.total, sums.b.total), blocks: '' };
    rows.forEach((row, at) => {
      const [a, b] = [sums.a.bytes[at], sums.b.bytes[at]];
      if (a === 0 && b === 0) return;
      const bytes = value(a, b);
      const blocks = value(sums.a.blocks[at], sums.b.blocks[at]);
      const entry = { ...row, at, a, b, value: bytes, blocks };
      if (find && !rowText(entry).toLowerCase().includes(find)) return;
      found += bytes;
      shown.push(entry);
    });
    shown.sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
    const most = Math.max(1, ...shown.slice(0, 1).map((row) => Math.abs(row.value)));
    for (const row of shown) row.width = Math.abs(row.value) / most;
    const foot = [];
    if (sums.a.rest !== 0 || sums.b.rest !== 0) {
      foot.push({ kind: 'remainder', name: '(unaccounted)', a: sums.a.rest, b: sums.b.rest,
        value: value(sums.a.rest, sums.b.rest), blocks: '' });
    }
    foot.push(total);
    this.rows.show(shown, foot);
    byId('found').textContent = find ? `${count(shown.length)} rows with ${human(found)}` : `${count(shown.length)} rows`;
  }

  showFlame() {
    const { device, state } = this;
    const a = state.show === 'b' ? undefined : stackSums(device, state.a);
    const b = state.show === 'a' ? undefined : stackSums(device, state.b);
    let hidden = 0;
    const bytes = a && b ? a.map((of, stack) => of - b[stack]) : a ?? b;
    for (const of of bytes) if (of < 0) hidden -= of;
    const words = { a: 'live memory at A', b: 'live memory at B', difference: 'what A has more than B' };
    this.flame.show(device.tables, bytes, words[state.show], hidden);
  }

  showIterations() {
    const rows = this.device.facts.iterations;
    byId('iterations').hidden = rows.length === 0;
    byId('iterations-by').textContent = `divided by: ${this.facts.iterations_by}. A row moves the cursor to its peak.`;
    this.iterations.show(rows);
  }

  showGrowth() {
    const growth = this.device.facts.growth;
    const text = growthText(growth);
    byId('growth-text').textContent = text;
    byId('growth-rows').hidden = !growth || growth.suspects.length === 0;
    byId('growth-detail').hidden = true;
    this.growth.show(growth?.suspects.map((it) => ({ ...it, per: growth.per })) ?? []);
  }

  growthDetail(row) {
    const box = byId('growth-detail');
    const lines = row.retainers.map(([name, bytes, exclusive]) => element('div', { class: 'stack-line' },
      `${human(bytes)} retained, ${human(exclusive)} by it alone: ${name}`));
    if (row.without_retainer > 0) {
      lines.push(element('div', { class: 'stack-line' }, `${human(row.without_retainer)} without a named retainer`));
    }
    const none = this.device.facts.growth.has_retainers
      ? 'No named object leads to its blocks.' : 'The objects of the process were not read: record with --names.';
    box.replaceChildren(element('h3', {}, `Retainers of ${row.name}`), ...(lines.length ? lines : [none]));
    box.hidden = false;
  }

  // Stacks, tensors and source text of a row.
  detail(row, scroll = true) {
    this.chosen = row;
    const box = byId('detail');
    box.hidden = false;
    box.replaceChildren(...detailParts(this, row));
    if (scroll) box.scrollIntoView({ block: 'nearest' });
  }

  setShow(show) {
    this.state.show = show;
    this.update();
  }

  setBy(by) {
    this.state.by = by;
    byId('detail').hidden = true;
    this.rows.order = undefined;
    this.update();
  }

  // Moves the cursor to the peak of the iteration before or after.
  toIteration(step) {
    const rows = this.device.facts.iterations;
    const now = this.state[this.state.moves];
    const inside = rows.findLastIndex((row) => row.first <= now);
    const row = rows[Math.max(0, Math.min(rows.length - 1, inside + step))];
    if (row) this.move(row.peak_event, undefined, true);
  }

  toFailed() {
    const failed = this.device.facts.failed;
    if (failed.length === 0) return;
    const now = this.state[this.state.moves];
    this.move((failed.find((it) => it.event > now) ?? failed[0]).event, undefined, true);
  }

  step(direction, single) {
    const { device, timeline, state } = this;
    const now = state[state.moves];
    const limit = (event) => Math.max(0, Math.min(device.events - 1, event));
    if (single) return this.move(limit(now + direction), undefined, true);
    const pixel = (timeline.to - timeline.from) / timeline.size().wide;
    let next = lowerBound(device.time, device.time[now] + direction * pixel);
    if (direction > 0) next = Math.max(next, now + 1);
    else next = Math.min(next, now - 1);
    this.move(limit(next), undefined, true);
  }

  listen() {
    const on = (id, act) => byId(id).addEventListener('click', act);
    byId('device').addEventListener('change', (change) => this.open(Number(change.target.value)));
    for (const name of ['a', 'b']) on(`move-${name}`, () => this.setMoves(name));
    on('to-peak', () => this.move(highestEvent(this.device, 0, this.device.events), undefined, true));
    on('to-failed', () => this.toFailed());
    on('zoom-in', () => this.timeline.zoom(0.5));
    on('zoom-out', () => this.timeline.zoom(2));
    on('zoom-all', () => { this.timeline.setRange(0, this.timeline.end()); this.keep(); });
    on('help', () => this.toggleKeys());
    on('flame-out', () => this.flame.zoom(this.flame.root));
    for (const button of document.querySelectorAll('[data-show]')) {
      button.addEventListener('click', () => this.setShow(button.dataset.show));
    }
    for (const tab of document.querySelectorAll('[data-by]')) tab.addEventListener('click', () => this.setBy(tab.dataset.by));
    byId('find').addEventListener('input', (input) => {
      this.state.find = input.target.value;
      this.showRows();
      this.flame.find(this.state.find);
    });
    byId('keys').append(...KEYS.map(([keys, words]) =>
      element('p', {}, ...keys.split(' ').flatMap((key) => [element('kbd', {}, key), ' ']), words)));
    document.addEventListener('keydown', (key) => this.press(key));
    window.addEventListener('hashchange', () => this.openFragment());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { this.timeline.draw(); this.update(); });
    window.addEventListener('beforeprint', () => [this.rows, this.iterations, this.growth].forEach((grid) => grid.draw(40)));
  }

  setMoves(name) {
    this.state.moves = name;
    this.update();
  }

  toggleKeys() {
    const keys = byId('keys');
    keys.hidden = !keys.hidden;
    byId('help').setAttribute('aria-expanded', !keys.hidden);
  }

  press(key) {
    if (key.ctrlKey || key.metaKey || key.altKey) return;
    const target = key.target;
    if (target.matches('input, select')) {
      if (key.key === 'Escape') target.blur();
      return;
    }
    const shows = ['a', 'b', 'difference'];
    const tabs = ['line', 'tensor', 'module', 'retainer'];
    const acts = {
      a: () => this.setMoves('a'), b: () => this.setMoves('b'),
      ArrowLeft: () => this.step(-1, key.shiftKey), ArrowRight: () => this.step(1, key.shiftKey),
      '[': () => this.toIteration(-1), ']': () => this.toIteration(1),
      p: () => byId('to-peak').click(), o: () => this.toFailed(),
      '+': () => this.timeline.zoom(0.5), '=': () => this.timeline.zoom(0.5), '-': () => this.timeline.zoom(2),
      0: () => byId('zoom-all').click(),
      d: () => this.setShow(shows[(shows.indexOf(this.state.show) + 1) % shows.length]),
      '/': () => byId('find').focus(), '?': () => this.toggleKeys(),
    };
    tabs.forEach((by, at) => { acts[at + 1] = () => this.setBy(by); });
    if (!acts[key.key]) return;
    key.preventDefault();
    acts[key.key]();
  }

  // Writes the state into the fragment, so that the address leads back to this moment.
  keep() {
    const { device, a, b, show, by } = this.state;
    const all = this.timeline.from === 0 && this.timeline.to === this.timeline.end();
    const range = all ? '' : `&from=${Math.round(this.timeline.from)}&to=${Math.round(this.timeline.to)}`;
    this.fragment = `#device=${device}&a=${a}&b=${b}&show=${show}&by=${by}${range}`;
    history.replaceState(null, '', this.fragment);
  }

  openFragment() {
    if (location.hash === this.fragment) return;
    const words = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (words.has(name) ? Number(words.get(name)) : undefined);
    if (['a', 'b', 'difference'].includes(words.get('show'))) this.state.show = words.get('show');
    if (['line', 'tensor', 'module', 'retainer'].includes(words.get('by'))) this.state.by = words.get('by');
    const wanted = { a: number('a'), b: number('b'), from: number('from'), to: number('to') };
    this.open(number('device') ?? 0, wanted);
  }
}

const rowText = (row) => (row.where ? `${row.name} ${row.where} ${row.label?.name ?? ''}` : row.name);

function rowColumns(page) {
  const bytes = (key, head) => ({
    key, head, number: true, width: '11ch', cell: (row) => human(row[key]), title: (row) => String(row[key]),
    value: (row) => row[key],
  });
  const bar = (row) => {
    const share = element('i');
    share.style.width = `${((row.width ?? 0) * 100).toFixed(1)}%`;
    return row.kind ? '' : element('div', { class: 'share' }, share);
  };
  return [
    bytes('a', 'at A'),
    { ...bytes('b', 'at B'), wide: true },
    { key: 'difference', head: 'A - B', number: true, width: '12ch', cell: (row) => difference(row.a - row.b),
      title: (row) => String(row.a - row.b), value: (row) => row.a - row.b },
    { key: 'share', head: '', wide: true, width: 'minmax(30px, 90px)', cell: bar, title: () => '' },
    { key: 'blocks', head: 'blocks', number: true, wide: true, width: '8ch', value: (row) => row.blocks,
      cell: (row) => (row.blocks === '' ? '' : count(row.blocks)) },
    { key: 'name', head: 'name', width: 'minmax(12ch, 1fr)', value: (row) => row.name,
      cell: (row) => nameCell(page, row), title: (row) => rowText(row) },
  ];
}

function nameCell(page, row) {
  if (!row.where) return row.name;
  const label = row.label?.name ? `  ${row.label.name}` : '';
  return `${row.name}${label}  ${row.where}`;
}

function iterationColumns() {
  const bytes = (key, head) => ({
    key, head, number: true, width: '11ch', cell: (row) => human(row[key]), title: (row) => String(row[key]),
    value: (row) => row[key],
  });
  return [
    { key: 'name', head: 'iteration', width: '12ch', cell: (row) => row.name, value: (row) => row.first },
    { key: 'time', head: 'time', number: true, width: '11ch', cell: (row) => span(row.end_us - row.begin_us),
      value: (row) => row.end_us - row.begin_us },
    bytes('peak', 'peak'), bytes('at_end', 'at end'), { ...bytes('reserved', 'reserved'), wide: true },
    { key: 'allocs', head: 'allocs', number: true, wide: true, width: '9ch', cell: (row) => count(row.allocs), value: (row) => row.allocs },
    { ...bytes('alloc_bytes', 'allocated'), wide: true },
    { key: 'begin', head: 'begin', number: true, wide: true, width: '11ch', cell: (row) => span(row.begin_us),
      value: (row) => row.begin_us },
  ];
}

function growthColumns() {
  return [
    { key: 'rate', head: 'grows by', number: true, width: '22ch', value: (row) => row.rate,
      cell: (row) => `${difference(row.rate)} per ${row.per}`, title: (row) => String(row.rate) },
    { key: 'grew', head: 'in steps', number: true, wide: true, width: '8ch', cell: (row) => percent(row.grew, 1), value: (row) => row.grew },
    { key: 'last', head: 'at the end', number: true, width: '11ch', cell: (row) => human(row.last), value: (row) => row.last },
    { key: 'by', head: '', wide: true, width: '7ch', cell: (row) => row.by },
    { key: 'name', head: 'suspect', width: 'minmax(12ch, 1fr)', cell: (row) => row.name, value: (row) => row.name },
    { key: 'retainer', head: 'retained by', wide: true, width: 'minmax(10ch, 1fr)', cell: (row) => row.retainers[0]?.[0] ?? '-' },
  ];
}

function growthText(growth) {
  if (!growth) return 'Not known for this device.';
  if (growth.points < growth.needed) return 'The recording is too short to tell.';
  if (growth.suspects.length === 0) return 'Nothing grows.';
  const total = growth.total === null ? 'the total does not clearly grow' : `the total grows by ${human(growth.total)} per ${growth.per}`;
  return `Lines, modules and tensors with more memory in most steps; ${total}.`;
}

// Stacks of a row with their bytes, tensors among them, and the source text of its line.
function detailParts(page, row) {
  const { device, state } = page;
  const { of } = rowsBy(device, state.by);
  const event = state.show === 'b' ? state.b : state.a;
  const stacks = new Map();
  const labels = new Map();
  const add = (sums, key, bytes) => sums.set(key, (sums.get(key) ?? 0) + bytes);
  eachLive(device, event, (i) => {
    if (of[i] !== row.number) return;
    add(stacks, device.stack[i], device.size[i]);
    const name = device.label[i] < 0 ? undefined : device.tables.labels[device.label[i]].name;
    if (name) add(labels, name, device.size[i]);
  });
  const largest = (sums) => [...sums].sort((one, other) => other[1] - one[1]).slice(0, 8);
  const { tables } = device;
  const stackText = (stack) => tables.stacks[stack].frames.toReversed().map((frame) => tables.frames[frame]).join(' <- ');
  const parts = [element('h3', {}, `${rowText(row)}: stacks at ${state.show === 'b' ? 'B' : 'A'}, innermost frame first`)];
  const line = (bytes, text) => element('div', { class: 'stack-line code' }, `${human(bytes).padStart(11)}  ${text}`);
  for (const [stack, bytes] of largest(stacks)) parts.push(line(bytes, stackText(stack)));
  if (stacks.size > 8) parts.push(line(0, `and ${count(stacks.size - 8)} more stacks`));
  if (stacks.size === 0) parts.push('No block of it is live at this moment.');
  if (labels.size > 0) parts.push(element('h3', {}, 'Tensors by name'), ...largest(labels).map(([name, bytes]) => line(bytes, name)));
  const number = state.by === 'line' ? row.number : row.line;
  if (number !== undefined) parts.push(...sourceParts(page, number));
  return parts;
}

async function start() {
  const loading = byId('loading');
  loading.hidden = false;
  try {
    if (!window.DecompressionStream) throw new Error('this browser cannot inflate data: take one from 2023 or later');
    const data = await readData();
    if (data.facts.devices.length === 0) {
      loading.textContent = 'The recording has no block of PyTorch\'s allocators.';
      return;
    }
    byId('app').hidden = false;
    const page = new Page(data);
    page.openFragment();
    loading.hidden = true;
    document.body.dataset.readyMs = performance.now().toFixed(0);
  } catch (error) {
    loading.textContent = `The data of the page cannot be read: ${error.message}`;
  }
}
