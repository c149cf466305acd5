// Tables that draw visible rows only.

const ROW = 22;

// Width below which columns marked `wide` are left out.
const NARROW = 640;

class Grid {
  // Columns: `{ key, head, width, number, wide, cell(row), title(row), value(row) }`. `cell` returns a text or an element.
  // `onChoose(row, event)` is called for a click or Enter.
  constructor(box, name, columns, onChoose) {
    this.box = box;
    this.all = columns;
    this.onChoose = onChoose;
    this.rows = [];
    this.below = [];
    this.selected = -1;
    this.head = element('div', { class: 'grid-head', role: 'row' });
    this.body = element('div', { class: 'grid-body', role: 'grid', tabindex: '0', 'aria-label': name });
    this.space = element('div', { class: 'grid-space' });
    this.foot = element('div', { class: 'grid-foot' });
    this.drawn = new Map();
    box.classList.add('grid');
    box.replaceChildren(this.head, this.body, this.foot);
    this.body.append(this.space);
    this.fit();
    this.body.addEventListener('scroll', () => this.draw());
    this.body.addEventListener('keydown', (key) => this.press(key));
    new ResizeObserver(() => this.resize()).observe(this.body);
  }

  // Chooses the columns that fit.
  fit() {
    this.isNarrow = this.box.clientWidth < NARROW;
    this.columns = this.all.filter((column) => !(this.isNarrow && column.wide));
    this.template = this.columns.map((column) => column.width).join(' ');
    this.head.style.gridTemplateColumns = this.template;
    this.head.replaceChildren(...this.columns.map((column) => this.headCell(column)));
  }

  resize() {
    if (this.box.clientWidth < NARROW === this.isNarrow) return this.draw();
    this.fit();
    this.show(this.rows, this.below);
  }

  headCell(column) {
    const cell = element('span', { class: column.number ? 'number' : '', role: 'columnheader' }, column.head);
    if (!column.value) return cell;
    cell.dataset.sort = column.key;
    cell.tabIndex = 0;
    const sort = () => this.sortBy(column);
    cell.addEventListener('click', sort);
    cell.addEventListener('keydown', (key) => key.key === 'Enter' && sort());
    return cell;
  }

  // Shows rows; `foot` are rows below, which stay in view.
  show(rows, foot = []) {
    this.rows = rows;
    this.below = foot;
    if (this.order) this.sort();
    this.selected = Math.min(this.selected, rows.length - 1);
    this.space.style.height = `${rows.length * ROW}px`;
    this.foot.style.height = `${foot.length * ROW}px`;
    this.foot.hidden = foot.length === 0;
    this.foot.replaceChildren(...foot.map((row, at) => this.rowElement(row, at)));
    this.body.setAttribute('aria-rowcount', rows.length);
    this.clear();
    this.draw();
  }

  sortBy(column) {
    const falls = this.order?.column === column ? !this.order.falls : column.number;
    this.order = { column, falls };
    for (const cell of this.head.children) {
      const own = cell.dataset.sort === column.key;
      cell.setAttribute('aria-sort', own ? (falls ? 'descending' : 'ascending') : 'none');
    }
    this.sort();
    this.clear();
    this.draw();
  }

  sort() {
    const { column, falls } = this.order;
    const sign = falls ? -1 : 1;
    const compare = (one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      return a < b ? -sign : a > b ? sign : 0;
    };
    this.rows = [...this.rows].sort(compare);
  }

  clear() {
    for (const row of this.drawn.values()) row.remove();
    this.drawn.clear();
  }

  // Draws the rows in view; `all` draws so many from the first on, for print.
  draw(all = 0) {
    const top = all ? 0 : Math.floor(this.body.scrollTop / ROW);
    const end = Math.min(this.rows.length, all || top + Math.ceil((this.body.clientHeight || 330) / ROW) + 1);
    for (const [at, row] of this.drawn) {
      if (at < top || at >= end) {
        row.remove();
        this.drawn.delete(at);
      }
    }
    for (let at = top; at < end; at++) {
      if (this.drawn.has(at)) continue;
      const row = this.rowElement(this.rows[at], at);
      row.setAttribute('aria-rowindex', at + 1);
      row.classList.toggle('selected', at === this.selected);
      row.addEventListener('click', (click) => this.choose(at, click));
      this.drawn.set(at, row);
      this.body.append(row);
    }
  }

  rowElement(row, at) {
    const made = element('div', { class: `grid-row ${row.kind ?? ''}`, role: 'row' });
    made.style.top = `${at * ROW}px`;
    made.style.gridTemplateColumns = this.template;
    for (const column of this.columns) {
      const cell = element('span', { class: column.number ? 'number' : '', role: 'gridcell' }, column.cell(row));
      cell.title = column.title ? column.title(row) : cell.textContent;
      cell.dataset.column = column.key;
      made.append(cell);
    }
    return made;
  }

  choose(at, event) {
    this.select(at);
    this.onChoose?.(this.rows[at], event);
  }

  select(at) {
    this.selected = at;
    for (const [index, row] of this.drawn) row.classList.toggle('selected', index === at);
    const top = at * ROW;
    const high = this.body.clientHeight;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + ROW > this.body.scrollTop + high) this.body.scrollTop = top + ROW - high;
    this.draw();
  }

  press(key) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW) - 1);
    const last = this.rows.length - 1;
    const moves = {
      ArrowDown: this.selected + 1, ArrowUp: this.selected - 1, PageDown: this.selected + page,
      PageUp: this.selected - page, Home: 0, End: last,
    };
    if (key.key in moves) this.select(Math.max(0, Math.min(last, moves[key.key])));
    else if ((key.key === 'Enter' || key.key === ' ') && this.selected >= 0) this.choose(this.selected, key);
    else return;
    key.preventDefault();
    key.stopPropagation();
  }
}
