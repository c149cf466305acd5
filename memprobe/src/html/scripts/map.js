// Map of addresses: a strip for each segment, with its blocks by category and its holes.

const STRIP = 16;
const STRIP_LABEL = 250;

class AddressMap {
  constructor(box, canvas, height, text, summary, categories) {
    Object.assign(this, { box, canvas, height, text, summary, categories });
    box.addEventListener('scroll', () => this.draw());
    canvas.addEventListener('pointermove', (pointer) => this.hover(pointer));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  // Shows a moment. `needed` is the size of a failed request then, or 0.
  show(device, event, needed) {
    this.device = device;
    this.strips = stripsAt(device, event);
    this.largest = Math.max(1, ...this.strips.map((strip) => strip.segment.size));
    this.summary.textContent = this.words(event, needed);
    this.draw();
  }

  words(event, needed) {
    const unread = this.device.facts.segments_unread;
    if (this.strips.length === 0) {
      return unread ? `The segments are not known: ${unread}` : 'The recording has no segments.';
    }
    const holes = this.strips.flatMap((strip) => strip.holes.map((hole) => hole.size));
    const free = holes.reduce((sum, size) => sum + size, 0);
    const largest = Math.max(0, ...holes);
    const sizes = this.strips.reduce((sum, strip) => sum + strip.segment.size, 0);
    const rest = this.device.reserved[event] - sizes;
    const parts = [
      `${counted(this.strips.length, 'segment')} with ${human(sizes)}`,
      `${human(free)} of it free in ${counted(holes.length, 'hole')}, the largest ${human(largest)}`,
    ];
    if (Math.abs(rest) > 0) parts.push(`${difference(rest)} reserved beyond them`);
    if (needed > 0) parts.push(`the failed request needed ${human(needed)}`);
    return parts.join('; ');
  }

  draw() {
    if (!this.strips) return;
    const high = Math.max(STRIP, Math.min(300, this.strips.length * STRIP));
    const width = Math.max(200, this.box.clientWidth);
    this.box.hidden = this.strips.length === 0;
    this.height.style.height = `${Math.max(0, this.strips.length * STRIP - high)}px`;
    const context = fitted(this.canvas, width, high);
    const colours = themeColours(this.categories);
    const first = Math.floor(this.box.scrollTop / STRIP);
    const left = this.left(width);
    const scale = (width - left - 4) / this.largest;
    context.font = '11.5px ui-monospace, "DejaVu Sans Mono", monospace';
    context.textBaseline = 'middle';
    for (let row = 0; row * STRIP < high && first + row < this.strips.length; row++) {
      this.drawStrip(context, colours, this.strips[first + row], row * STRIP, left, scale);
    }
  }

  left(width) {
    return width < 700 ? 90 : STRIP_LABEL;
  }

  drawStrip(context, colours, { segment, blocks }, top, left, scale) {
    context.fillStyle = colours.faint;
    const label = left < STRIP_LABEL ? human(segment.size) : `${human(segment.size).padStart(10)}  ${segment.pool}`;
    context.fillText(cut(context, label, left - 8), 4, top + STRIP / 2);
    context.fillStyle = colours.cached;
    context.fillRect(left, top + 2, Math.max(1, segment.size * scale), STRIP - 4);
    for (const i of blocks) {
      const x = left + (this.device.addr[i] - segment.addr) * scale;
      const wide = this.device.size[i] * scale;
      context.fillStyle = colours.bands[this.device.category[i]];
      context.fillRect(x, top + 2, Math.max(0.5, wide - (wide > 3 ? 1 : 0)), STRIP - 4);
    }
  }

  hover(pointer) {
    const corner = this.canvas.getBoundingClientRect();
    const row = Math.floor((pointer.clientY - corner.top + this.box.scrollTop % STRIP) / STRIP);
    const strip = this.strips[Math.floor(this.box.scrollTop / STRIP) + row];
    if (!strip) return;
    const left = this.left(this.canvas.clientWidth);
    const scale = (this.canvas.clientWidth - left - 4) / this.largest;
    const addr = strip.segment.addr + (pointer.clientX - corner.left - left) / scale;
    const { addr: starts, size, stack, tables } = this.device;
    const block = strip.blocks.find((i) => addr >= starts[i] && addr < starts[i] + size[i]);
    const segment = `segment 0x${strip.segment.addr.toString(16)}, ${human(strip.segment.size)}, ${strip.segment.pool}`;
    if (block === undefined) {
      const hole = strip.holes.find((it) => addr >= it.addr && addr < it.addr + it.size);
      this.text.textContent = hole ? `free ${human(hole.size)} at 0x${hole.addr.toString(16)}; ${segment}` : segment;
      return;
    }
    const line = tables.lines[tables.stacks[stack[block]].line].name;
    const label = this.device.label[block] < 0 ? '' : tables.labels[this.device.label[block]].name ?? '';
    this.text.textContent = `${human(size[block])} ${label} ${line}; ${segment}`;
  }
}

// Segments that exist after an event, by address, with their live blocks and holes.
function stripsAt(device, event) {
  const segments = device.segments.filter((it) => it.begin <= event && event < it.end);
  segments.sort((one, other) => one.addr - other.addr);
  const strips = segments.map((segment) => ({ segment, blocks: [], holes: [] }));
  const starts = segments.map((segment) => segment.addr);
  eachLive(device, event, (i) => {
    const at = lowerBound(starts, device.addr[i] + 1) - 1;
    if (at >= 0 && device.addr[i] < starts[at] + segments[at].size) strips[at].blocks.push(i);
  });
  for (const { segment, blocks, holes } of strips) {
    blocks.sort((one, other) => device.addr[one] - device.addr[other]);
    let next = segment.addr;
    const hole = (until) => until > next && holes.push({ addr: next, size: until - next });
    for (const i of blocks) {
      hole(device.addr[i]);
      next = Math.max(next, device.addr[i] + device.size[i]);
    }
    hole(segment.addr + segment.size);
  }
  return strips;
}
