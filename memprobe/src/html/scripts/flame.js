// Flame graph of the live memory: the outermost frame on top.

const FRAME_HEIGHT = 18;

class Flame {
  constructor(box, canvas, text, categories) {
    Object.assign(this, { box, canvas, text, categories });
    this.search = '';
    canvas.addEventListener('click', (click) => this.click(click));
    canvas.addEventListener('pointermove', (pointer) => this.hover(pointer));
    box.addEventListener('keydown', (key) => this.press(key));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  // Shows bytes by stack. `words` say what they are; `hidden` bytes have no place in the graph.
  show(tables, bytes, words, hidden) {
    this.tables = tables;
    this.words = words;
    this.hidden = hidden;
    const path = this.zoomed ? pathOf(this.zoomed) : [];
    this.root = makeTree(tables, bytes);
    this.zoomed = path.reduce((node, frame) => node?.children.get(frame), this.root) ?? this.root;
    this.chosen = this.zoomed;
    this.draw();
  }

  find(text) {
    this.search = text.toLowerCase();
    this.draw();
  }

  zoom(node) {
    this.zoomed = node;
    this.chosen = node;
    this.draw();
  }

  name(node) {
    return node.frame < 0 ? 'all live memory' : this.tables.frames[node.frame];
  }

  draw() {
    if (!this.root) return;
    const width = Math.max(100, this.box.clientWidth);
    this.places = [];
    const depth = this.place(this.zoomed, 0, width, 0);
    const above = [];
    for (let node = this.zoomed.parent; node; node = node.parent) above.unshift(node);
    const height = (depth + 1 + above.length) * FRAME_HEIGHT;
    const context = fitted(this.canvas, width, height);
    const colours = themeColours(this.categories);
    for (const place of this.places) place.row += above.length;
    above.forEach((node, row) => this.places.push({ node, left: 0, width, row, isAbove: true }));
    context.font = '11.5px system-ui, sans-serif';
    context.textBaseline = 'middle';
    let matched = 0;
    for (const place of this.places) matched += this.drawFrame(context, colours, place);
    this.matched = matched;
    this.describe(this.chosen);
  }

  // Gives a node and all below it their places; returns the depth.
  place(node, left, width, row) {
    this.places.push({ node, left, width, row });
    let deepest = row;
    let at = left;
    for (const child of node.sorted) {
      const wide = (child.bytes / node.bytes) * width;
      if (wide >= 0.4) deepest = Math.max(deepest, this.place(child, at, wide, row + 1));
      at += wide;
    }
    return deepest;
  }

  drawFrame(context, colours, { node, left, width, row, isAbove }) {
    const name = this.name(node);
    const isFound = this.search !== '' && name.toLowerCase().includes(this.search);
    const top = row * FRAME_HEIGHT;
    context.fillStyle = isFound ? colours.a : frameColour(name, colours, isAbove);
    context.globalAlpha = this.search !== '' && !isFound ? 0.35 : 1;
    context.fillRect(left, top, Math.max(0.4, width - 0.6), FRAME_HEIGHT - 1);
    context.globalAlpha = 1;
    if (node === this.chosen) {
      context.strokeStyle = colours.text;
      context.lineWidth = 2;
      context.strokeRect(left + 1, top + 1, Math.max(1, width - 2), FRAME_HEIGHT - 3);
    }
    if (width > 24) {
      context.fillStyle = isFound ? colours.back : node.frame < 0 || isAbove ? colours.text : '#111';
      context.fillText(cut(context, `${name}  ${human(node.bytes)}`, width - 8), left + 4, top + FRAME_HEIGHT / 2);
    }
    return isFound && !isAbove && !isFoundAbove(this, node) ? node.bytes : 0;
  }

  describe(node) {
    const share = percent(node.bytes, this.root.bytes);
    const found = this.search ? `; "${this.search}" matches ${human(this.matched)}` : '';
    const hidden = this.hidden > 0 ? `; ${human(this.hidden)} less at A is not drawn` : '';
    this.text.textContent = `${this.name(node)}: ${human(node.bytes)} (${share} of ${this.words})${found}${hidden}`;
  }

  at(pointer) {
    const corner = this.canvas.getBoundingClientRect();
    const [x, row] = [pointer.clientX - corner.left, Math.floor((pointer.clientY - corner.top) / FRAME_HEIGHT)];
    return this.places?.find((it) => it.row === row && x >= it.left && x < it.left + it.width)?.node;
  }

  click(click) {
    const node = this.at(click);
    if (node) this.zoom(node);
  }

  hover(pointer) {
    const node = this.at(pointer);
    if (node) this.describe(node);
  }

  press(key) {
    const node = this.chosen;
    const siblings = node?.parent?.sorted ?? [];
    const beside = (step) => siblings[siblings.indexOf(node) + step] ?? node;
    const moves = {
      ArrowDown: () => node.sorted[0] ?? node,
      ArrowUp: () => node.parent ?? node,
      ArrowRight: () => beside(1),
      ArrowLeft: () => beside(-1),
    };
    if (moves[key.key]) this.chosen = moves[key.key]();
    else if (key.key === 'Enter') this.zoomed = node;
    else if (key.key === 'Backspace') this.zoomed = this.zoomed.parent ?? this.zoomed;
    else if (key.key === 'Escape') this.zoomed = this.root;
    else return;
    key.preventDefault();
    key.stopPropagation();
    this.draw();
  }
}

function makeTree(tables, bytes) {
  const root = { frame: -1, bytes: 0, children: new Map(), parent: undefined };
  bytes.forEach((of, stack) => {
    if (of <= 0) return;
    root.bytes += of;
    let node = root;
    for (const frame of tables.stacks[stack].frames) {
      let child = node.children.get(frame);
      if (!child) {
        child = { frame, bytes: 0, children: new Map(), parent: node };
        node.children.set(frame, child);
      }
      child.bytes += of;
      node = child;
    }
  });
  const sort = (node) => {
    node.sorted = [...node.children.values()].sort((one, other) => other.bytes - one.bytes);
    node.sorted.forEach(sort);
  };
  sort(root);
  return root;
}

function pathOf(node) {
  const path = [];
  for (; node.parent; node = node.parent) path.unshift(node.frame);
  return path;
}

// Recursion and frames below a match count once.
function isFoundAbove(flame, node) {
  for (let above = node.parent; above; above = above.parent) {
    if (above.frame >= 0 && flame.name(above).toLowerCase().includes(flame.search)) return true;
  }
  return false;
}

// A warm shade for each file: equal files have equal shades.
function frameColour(name, colours, isAbove) {
  if (isAbove) return colours.panel;
  if (name.startsWith('(') || name === 'all live memory') return colours.cached;
  const file = name.split(':')[0];
  let hash = 7;
  for (const letter of file) hash = (hash * 31 + letter.codePointAt(0)) % 9973;
  return `hsl(${28 + (hash % 28)} ${62 + (hash % 23)}% ${62 + (hash % 14)}%)`;
}
