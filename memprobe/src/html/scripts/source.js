// Source text with bytes beside each line.

// Figures of every line of a file at a moment: live, at the peak, allocated in all; then active and reserved bytes of
// the device after the highest allocation of the line.
function fileFigures(device, file, event) {
  const { lines, stacks } = device.tables;
  device.figures ??= new Map();
  let known = device.figures.get(file);
  if (!known) {
    known = allTime(device, file);
    device.figures.set(file, known);
  }
  const live = new Map();
  eachLive(device, event, (i) => {
    const line = lines[stacks[device.stack[i]].line];
    if (line.file === file) live.set(line.line, (live.get(line.line) ?? 0) + device.size[i]);
  });
  return { live, known };
}

// Figures that do not depend on the moment.
function allTime(device, file) {
  const { lines, stacks } = device.tables;
  const ofFile = stacks.map((stack) => (lines[stack.line].file === file ? lines[stack.line].line : -1));
  const figures = new Map();
  const of = (line) => {
    if (!figures.has(line)) figures.set(line, { now: 0, peak: 0, allocated: 0, active: 0, reserved: 0 });
    return figures.get(line);
  };
  const { start, order } = device.endOrder;
  for (let next = 0, event = 0; event < device.events; event++) {
    for (let at = start[event]; at < start[event + 1]; at++) {
      const line = ofFile[device.stack[order[at]]];
      if (line >= 0) of(line).now -= device.size[order[at]];
    }
    for (; next < device.count && device.born[next] === event; next++) {
      const line = ofFile[device.stack[next]];
      if (line < 0) continue;
      const figure = of(line);
      figure.now += device.size[next];
      figure.allocated += device.size[next];
      figure.peak = Math.max(figure.peak, figure.now);
      figure.active = Math.max(figure.active, device.allocated[event]);
      figure.reserved = Math.max(figure.reserved, device.reserved[event]);
    }
  }
  return figures;
}

// The source text around a line, or the reason why there is none.
function sourceParts(page, number) {
  const { device, state } = page;
  const { lines, files } = device.tables;
  const line = lines[number];
  if (line.file === null) return [];
  const file = files[line.file];
  const title = element('h3', {}, `Source: ${file.path}`);
  if (!file.text) return [title, element('div', { class: 'status' }, `No source text: ${file.missing ?? 'it was left out'}.`)];
  const { live, known } = fileFigures(device, line.file, state.show === 'b' ? state.b : state.a);
  const box = element('div', { class: 'source code', tabindex: '0', 'aria-label': 'Source text' });
  const cells = (texts) => element('div', {}, ...texts.map((text) => element('span', {}, text)));
  const at = state.show === 'b' ? 'at B' : 'at A';
  const head = cells([at, 'peak', 'allocated', 'active', 'reserved', 'line', 'source']);
  box.append(head);
  const bytes = (value) => (value ? human(value).replace('iB', '') : '');
  file.text.forEach((text, index) => {
    const figure = known.get(index + 1);
    const row = cells([bytes(live.get(index + 1)), bytes(figure?.peak), bytes(figure?.allocated), bytes(figure?.active),
      bytes(figure?.reserved), String(index + 1), text]);
    if (index + 1 === line.line) row.className = 'this';
    box.append(row);
  });
  const missing = line.line > file.text.length
    ? [element('div', { class: 'status' }, `Line ${line.line} is not in this file: it is not the one that ran.`)] : [];
  requestAnimationFrame(() => { box.scrollTop = Math.max(0, (line.line - 5) * 18.75); });
  return [title, ...missing, box];
}

start();
