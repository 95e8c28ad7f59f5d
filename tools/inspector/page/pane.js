'use strict';
// One pane: lines of 18 px, folds, marks, and beside the assembly its heat. Of a long text only the lines in view are in the document.

const WHOLE = 2500;   // lines up to which a pane is in the document as a whole: there the browser's own search finds them
const AROUND = 80;    // lines that are kept above and below those in view

class Pane {
  constructor(kernel, data) {
    Object.assign(this, {kernel, data, kind: data.kind, id: data.id, cursor: null});
    this.marks = {lit: new Set(), pin: new Set(), found: new Set(), here: new Set()};
    this.made = new Map();  // line -> its element
    this.sheet = node('span', {className: 'sheet'});
    this.text = node('pre', {tabIndex: 0}, this.sheet);
    this.text.setAttribute('aria-label', this.title());
    this.strip = data.heat ? node('div', {className: 'strip', title: 'Heat of the code: a click goes there'}, node('i')) : null;
    if (this.strip) this.strip.setAttribute('aria-hidden', 'true');
    const count = node('small', {textContent: `${data.lines.length.toLocaleString('en')} lines`});
    this.box = node('section', {className: `pane ${data.kind}`, id: `pane-${data.id}`},
                    node('h3', {}, node('span', {textContent: this.title()}), count), node('div', {className: 'body'}, this.text, this.strip));
    this.box.setAttribute('aria-label', this.title());
    const widest = data.lines.reduce((most, line) => Math.max(most, line.length), 0);
    this.gutter = data.first || data.at ? data.lines.reduce((most, _, line) => Math.max(most, this.number(line).length), 0) : 0;
    this.sheet.style.minWidth = `max(100%, ${widest + this.gutter + 4}ch)`;
    this.text.addEventListener('scroll', () => { this.draw(); this.view(); }, {passive: true});
    if (this.strip) this.strip.addEventListener('pointerdown', event => this.dragged(event));
    this.fold();
  }

  // What stands before a line: its number in the source, its address in the code.
  number(line) {
    const {first, at} = this.data;
    return first ? String(line + first) : at && at[line] !== null ? at[line].toString(16) : '';
  }

  title() {
    const side = this.kernel.sides.length > 1 && this.kind !== 'source' ? `, ${this.kernel.sides[this.data.side].target}` : '';
    return this.data.title + side;
  }

  // --- what is drawn: numbers of lines, and -1 - k for the heading of fold k

  fold() {
    const {lines, foldOf, folds} = this.data;
    this.shown = [];
    this.at = new Int32Array(lines.length).fill(-1);
    for (let line = 0; line < lines.length;) {
      const k = foldOf[line];
      if (k >= 0 && folds[k].first === line) {
        this.shown.push(-1 - k);
        if (!folds[k].open) {
          this.at.fill(this.shown.length - 1, line, folds[k].last);
          line = folds[k].last;
          continue;
        }
      }
      this.at[line] = this.shown.length;
      this.shown.push(line++);
    }
    this.sheet.style.height = `${this.shown.length * PITCH}px`;
    this.window = null;
    this.draw();
    this.heat();
  }

  draw(all = this.shown.length <= WHOLE) {
    const top = Math.floor(this.text.scrollTop / PITCH), high = Math.ceil((this.text.clientHeight || 600) / PITCH);
    if (this.window && (this.window.all || !all && this.holds(top, high))) return;
    const first = all ? 0 : Math.max(0, top - AROUND), last = all ? this.shown.length : Math.min(this.shown.length, top + high + AROUND);
    this.window = {first, last, all};
    this.made.clear();
    const rows = this.shown.slice(first, last).map(n => n < 0 ? this.heading(-1 - n) : this.row(n));
    this.sheet.replaceChildren(...rows);
    this.sheet.style.paddingTop = `${first * PITCH}px`;
  }

  // Are the lines in view in the document, with some around them?
  holds(top, high) {
    const {first, last} = this.window;
    return (first === 0 || top >= first + 10) && (last === this.shown.length || top + high <= last - 10);
  }

  heading(k) {
    const fold = this.data.folds[k], loop = fold.loop, made = node('button', {type: 'button', className: 'row fold', tabIndex: -1});
    made.dataset.fold = k;
    made.setAttribute('aria-expanded', fold.open);
    const verdict = loop && loop.verdict ? node('b', {className: `v ${loop.verdict}`, textContent: loop.verdict}) : null;
    const alone = loop && !this.kernel.loops.some(l => l.side === loop.side && l.depth);
    const label = loop && loop.label && loop.label !== 'body' ? loop.label : alone ? 'code without a loop' : 'outside of loops';
    const words = fold.title || (loop ? `${loop.id} ${label} ${loop.where}` : 'code');
    const more = loop ? ` ${loop.tail ? 'tail, ' : ''}${percent(loop.heat)} of the work${fold.open ? '' : `, ${fold.last - fold.first} lines`}` : '';
    const arrow = node('span', {className: 'arrow', textContent: fold.open ? '▾' : '▸'});
    made.append(arrow, ` ${words} `, verdict || '', node('small', {textContent: more}));
    if (loop && loop.hot) made.classList.add('hot');
    if (this.data.heat) made.classList.add(`h${loop ? Math.round(9 * Math.sqrt(this.data.heat[fold.first] || this.data.heat[fold.last - 1])) : 0}`);
    return made;
  }

  row(line) {
    const {data} = this, made = node('span', {className: 'row'}), text = data.lines[line];
    made.dataset.r = line;
    if (data.keys[line].length) made.dataset.k = data.keys[line][0];
    if (this.gutter) made.append(node('span', {className: 'n', textContent: this.number(line).padStart(this.gutter)}));
    if (data.heat) made.classList.add(`h${Math.round(9 * Math.sqrt(data.heat[line]))}`);
    if (data.what && data.what[line] >= 0) {
      const [name, style] = data.kinds[data.what[line]], at = text.indexOf(name);
      made.append(text.slice(0, at), node('span', {className: `c-${style}`, textContent: name}), text.slice(at + name.length));
    } else if (data.what) made.append(node('span', {className: 'label', textContent: text || ' '}));
    else if (data.quoted && data.quoted[line]) made.append(node('span', {className: 't-str', textContent: text || ' '}));
    else made.append(...painted(data.c ? 'c' : this.kind, text || ' '));
    for (const name in this.marks) if (this.marks[name].has(line)) made.classList.add(name);
    if (line === this.cursor) made.classList.add('cursor');
    this.made.set(line, made);
    return made;
  }

  // --- marks: lit (under the pointer), pin, found (by the search), here (of the current loop)

  mark(name, lines) {
    for (const line of this.marks[name]) if (this.made.has(line)) this.made.get(line).classList.remove(name);
    this.marks[name] = new Set(lines);
    for (const line of this.marks[name]) if (this.made.has(line)) this.made.get(line).classList.add(name);
    if (name === 'pin' || name === 'found') this.heat();
  }

  markKeys(name, keys) { this.mark(name, keys.flatMap(key => this.data.byKey.get(key) || [])); }

  point(line) {
    if (this.cursor !== null && this.made.has(this.cursor)) this.made.get(this.cursor).classList.remove('cursor');
    this.cursor = line;
    if (line !== null && this.made.has(line)) this.made.get(line).classList.add('cursor');
  }

  // --- where it is scrolled to

  open(line) {
    const k = this.data.foldOf[line];
    if (k < 0 || this.data.folds[k].open) return;
    this.data.folds[k].open = true;
    this.fold();
  }

  // Scrolls a line to a third of the height, or `below` lines under its top; with `near` not at all where it is in view.
  show(line, near = false, below = null) {
    if (line === null || line === undefined) return;
    this.open(line);
    const top = this.at[line] * PITCH, high = this.text.clientHeight, now = this.text.scrollTop;
    if (near && top >= now + 2 * PITCH && top <= now + high - 3 * PITCH) return;
    this.text.scrollTop = Math.max(0, top - (below === null ? Math.floor(high / 3 / PITCH) : below) * PITCH);
    this.text.scrollLeft = 0;
    this.draw();
    this.view();
  }

  // The next line from `line` on that can be stood on: an instruction, or text; null at the end.
  next(line, step) {
    const stops = n => n >= 0 && (this.data.what ? this.data.what[n] >= 0 : this.data.lines[n].trim() !== '');
    for (let at = this.at[line] + step; at >= 0 && at < this.shown.length; at += step) if (stops(this.shown[at])) return this.shown[at];
    return null;
  }

  // The first such line from `line` on, itself included.
  from(line) {
    return this.data.what && this.data.what[line] < 0 || !this.data.lines[line].trim() ? this.next(line, 1) : line;
  }

  toggle(k) {
    this.data.folds[k].open = !this.data.folds[k].open;
    this.fold();
  }

  // --- the heat beside it

  heat() {
    if (!this.strip || !this.shown) return;
    const n = this.shown.length, parts = Math.min(n, 400), stops = [], ticks = [];
    let last = -1;
    for (let k = 0; k < parts; k++) {
      let most = 0;
      for (let at = Math.floor(k * n / parts); at < Math.floor((k + 1) * n / parts); at++) {
        const row = this.shown[at], line = row < 0 ? this.data.folds[-1 - row].last - 1 : row;
        most = Math.max(most, this.data.heat[line]);
      }
      const level = Math.round(9 * Math.sqrt(most));
      if (level !== last) {
        if (last >= 0) stops.push(`var(--h${last}) ${100 * k / parts}%`);
        stops.push(`var(--h${level}) ${100 * k / parts}%`);
        last = level;
      }
    }
    stops.push(`var(--h${last}) 100%`);
    this.strip.style.background = n ? `linear-gradient(${stops.join(',')})` : 'none';
    for (const name of ['found', 'pin']) {
      for (const line of [...this.marks[name]].slice(0, 300)) {
        const tick = node('b', {className: 'tick'});
        tick.style.top = `${100 * this.at[line] / n}%`;
        ticks.push(tick);
      }
    }
    this.strip.replaceChildren(node('i'), ...ticks);
    this.view();
  }

  view() {
    if (!this.strip) return;
    const whole = Math.max(1, this.shown.length * PITCH, this.text.clientHeight), box = this.strip.firstChild;
    box.style.top = `${100 * this.text.scrollTop / whole}%`;
    box.style.height = `${Math.min(100, 100 * this.text.clientHeight / whole)}%`;
  }

  dragged(event) {
    const go = e => {
      const box = this.strip.getBoundingClientRect(), part = (e.clientY - box.top) / box.height;
      this.text.scrollTop = part * this.shown.length * PITCH - this.text.clientHeight / 2;
    };
    go(event);
    event.preventDefault();
    this.strip.setPointerCapture(event.pointerId);
    this.strip.onpointermove = go;
    this.strip.onpointerup = () => { this.strip.onpointermove = null; };
  }
}
