// The chart of categories over time, with two cursors.

const MARGIN = { left: 74, right: 8, top: 8, bottom: 22 };

class Timeline {
  // `onMove(event)` is called when the user chooses a moment, `onZoom()` when the range changes.
  constructor(box, categories, onMove, onZoom) {
    this.box = box;
    [this.picture, this.overlay] = box.querySelectorAll('canvas');
    this.categories = categories;
    this.onMove = onMove;
    this.onZoom = onZoom;
    this.listen();
  }

  show(device) {
    this.device = device;
    device.pyramid ??= makePyramid(device, this.categories);
    this.setRange(0, this.end());
  }

  // Time of the last event; a recording of one moment has a width too.
  end() {
    return Math.max(1, this.device.time[this.device.events - 1] ?? 1);
  }

  setRange(from, to) {
    const end = this.end();
    const length = Math.min(end, Math.max(to - from, Math.min(10, end)));
    this.from = Math.min(Math.max(0, from), end - length);
    this.to = this.from + length;
    this.draw();
  }

  zoom(factor, around = this.device.time[this.active()] ?? 0) {
    const inside = around >= this.from && around <= this.to ? around : (this.from + this.to) / 2;
    this.setRange(inside - (inside - this.from) * factor, inside + (this.to - inside) * factor);
    this.onZoom();
  }

  active() {
    return this.cursors?.[this.cursors.moves] ?? 0;
  }

  setCursors(cursors) {
    this.cursors = cursors;
    this.drawCursors();
  }

  // Moves the range so that an event is in view.
  reveal(event) {
    const time = this.device.time[event];
    if (time >= this.from && time <= this.to) return;
    const half = (this.to - this.from) / 2;
    this.setRange(time - half, time + half);
  }

  size() {
    const width = Math.max(100, this.box.clientWidth);
    const height = this.box.clientHeight;
    return {
      width, height,
      wide: Math.max(10, Math.floor(width - MARGIN.left - MARGIN.right)),
      high: height - MARGIN.top - MARGIN.bottom,
    };
  }

  draw() {
    if (!this.device || this.device.events === 0) return;
    const { width, height, wide, high } = this.size();
    const colours = themeColours(this.categories);
    const context = fitted(this.picture, width, height);
    const picture = pixels(this.device, this.device.pyramid, this.from, this.to, wide);
    this.shown = picture;
    const most = niceLimit(picture.highest);
    const y = (bytes) => MARGIN.top + high - (bytes / most) * high;
    this.drawGrid(context, most, y, colours);
    this.drawIterations(context, colours);
    const kinds = this.device.pyramid.kinds;
    const below = new Float64Array(wide);
    for (let kind = 0; kind < kinds; kind++) {
      context.fillStyle = colours.bands[kind];
      context.beginPath();
      for (let x = 0; x < wide; x++) {
        const bytes = Math.max(0, picture.bytes[x * kinds + kind]);
        if (bytes === 0) continue;
        const [bottom, top] = [y(below[x]), y(below[x] + bytes)];
        context.rect(MARGIN.left + x, top, 1.02, bottom - top);
        below[x] += bytes;
      }
      context.fill();
    }
    this.line(context, picture.low, y, colours.back, [2, 3]);
    this.line(context, picture.reserved, y, colours.text, []);
    this.drawFailed(context, colours);
    this.drawCursors();
  }

  line(context, values, y, colour, dash) {
    context.save();
    context.strokeStyle = colour;
    context.lineWidth = 1.4;
    context.setLineDash(dash);
    context.beginPath();
    for (let x = 0; x < values.length; x++) {
      if (!Number.isFinite(values[x])) continue;
      context.lineTo(MARGIN.left + x, y(values[x]));
      context.lineTo(MARGIN.left + x + 1, y(values[x]));
    }
    context.stroke();
    context.restore();
  }

  drawGrid(context, most, y, colours) {
    const { wide, height } = this.size();
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (let part = 0; part <= 4; part++) {
      const bytes = (most / 4) * part;
      context.fillStyle = colours.rule;
      context.fillRect(MARGIN.left, Math.round(y(bytes)), wide, 1);
      context.fillStyle = colours.faint;
      context.fillText(human(bytes), MARGIN.left - 6, y(bytes));
    }
    context.textBaseline = 'alphabetic';
    const parts = Math.max(2, Math.floor(wide / 160));
    for (let part = 0; part <= parts; part++) {
      const time = this.from + ((this.to - this.from) / parts) * part;
      context.textAlign = part === 0 ? 'left' : part === parts ? 'right' : 'center';
      context.fillText(span(time), MARGIN.left + (wide / parts) * part, height - 6);
    }
  }

  // Every second iteration has a shade, if each is wide enough to be seen.
  drawIterations(context, colours) {
    const rows = this.device.facts.iterations.filter((row) => row.kind === 'iteration' || row.kind === 'unfinished');
    const { wide, high } = this.size();
    const inView = rows.filter((row) => row.end_us >= this.from && row.begin_us <= this.to);
    if (inView.length === 0 || wide / inView.length < 6) return;
    context.textAlign = 'left';
    inView.forEach((row, at) => {
      // One that reaches beyond the range must not cover the axis.
      const left = Math.max(MARGIN.left, this.x(row.begin_us));
      const right = Math.min(MARGIN.left + wide, this.x(row.end_us));
      context.fillStyle = colours.panel;
      if (at % 2 === 0) context.fillRect(left, MARGIN.top, right - left, high);
      context.fillStyle = colours.faint;
      if (right - left > 26) context.fillText(row.name, left + 3, MARGIN.top + 10);
    });
  }

  drawFailed(context, colours) {
    const { high } = this.size();
    for (const failed of this.device.facts.failed) {
      const time = this.device.time[failed.event];
      if (time < this.from || time > this.to) continue;
      context.fillStyle = colours.a;
      context.beginPath();
      const x = this.x(time);
      context.moveTo(x - 5, MARGIN.top + high);
      context.lineTo(x + 5, MARGIN.top + high);
      context.lineTo(x, MARGIN.top + high - 9);
      context.fill();
    }
  }

  x(time) {
    const { wide } = this.size();
    return MARGIN.left + ((time - this.from) / (this.to - this.from)) * wide;
  }

  drawCursors() {
    if (!this.device || !this.cursors) return;
    const { width, height, high } = this.size();
    const colours = themeColours(this.categories);
    const context = fitted(this.overlay, width, height);
    context.font = 'bold 12px system-ui, sans-serif';
    for (const name of ['b', 'a']) {
      const time = this.device.time[this.cursors[name]];
      if (time === undefined || time < this.from || time > this.to) continue;
      const x = Math.round(this.x(time)) + 0.5;
      context.strokeStyle = colours[name];
      context.fillStyle = colours[name];
      context.lineWidth = this.cursors.moves === name ? 2 : 1;
      context.setLineDash(name === 'b' ? [5, 3] : []);
      context.beginPath();
      context.moveTo(x, MARGIN.top);
      context.lineTo(x, MARGIN.top + high);
      context.stroke();
      context.fillRect(Math.min(x, width - 15), MARGIN.top, 14, 15);
      context.fillStyle = colours.back;
      context.textAlign = 'left';
      context.fillText(name.toUpperCase(), Math.min(x, width - 15) + 3, MARGIN.top + 12);
    }
  }

  // Event at a pixel: the highest one within 3 pixels, or the last one before.
  eventAt(clientX) {
    const { wide } = this.size();
    const left = this.box.getBoundingClientRect().left + this.box.clientLeft;
    const x = Math.min(wide - 1, Math.max(0, Math.floor(clientX - left - MARGIN.left)));
    let best = -1;
    for (let near = Math.max(0, x - 1); near <= Math.min(wide - 1, x + 1); near++) {
      const event = this.shown.event[near];
      if (event >= 0 && (best < 0 || this.device.allocated[event] > this.device.allocated[best])) best = event;
    }
    if (best >= 0) return best;
    const time = this.from + ((x + 1) / wide) * (this.to - this.from);
    return Math.max(0, lowerBound(this.device.time, time) - 1);
  }

  listen() {
    let drags = false;
    const move = (pointer) => this.onMove(this.eventAt(pointer.clientX), pointer.shiftKey ? 'b' : undefined);
    this.box.addEventListener('pointerdown', (pointer) => {
      if (pointer.button !== 0) return;
      drags = true;
      this.box.setPointerCapture(pointer.pointerId);
      move(pointer);
    });
    this.box.addEventListener('pointermove', (pointer) => drags && move(pointer));
    for (const end of ['pointerup', 'pointercancel']) this.box.addEventListener(end, () => { drags = false; });
    this.box.addEventListener('wheel', (wheel) => {
      if (!wheel.ctrlKey && !wheel.shiftKey && this.from === 0 && this.to === this.end() && wheel.deltaY > 0) return;
      wheel.preventDefault();
      const { wide } = this.size();
      const left = this.box.getBoundingClientRect().left;
      const share = (wheel.clientX - left - MARGIN.left) / wide;
      this.zoom(wheel.deltaY > 0 ? 1.25 : 0.8, this.from + share * (this.to - this.from));
    }, { passive: false });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }
}

// Next limit of an axis: 1, 1.5, 2, 3, 4, 6, 8 or 12 times a power of two of 1024.
function niceLimit(bytes) {
  let unit = 1;
  while (bytes / unit >= 1024) unit *= 1024;
  const value = bytes / unit;
  for (let power = 1; power <= 1024; power *= 2) {
    for (const step of [1, 1.25, 1.5, 1.75]) if (value <= power * step) return power * step * unit;
  }
  return Math.max(1, bytes);
}
