'use strict';
// What goes with the panes: the box that says what an instruction is, search, the help, the colours of the page.

const HELP = [['j k', 'next and previous instruction or line'], ['h l', 'pane to the left and to the right'], ['n p', 'next and previous hot loop'],
              ['Enter', 'keep the line, and scroll the other panes to it'], ['o', 'fold and unfold'], ['1 … 9', 'show and hide a pane'],
              ['[ ]', 'previous and next kernel'], ['/', 'search; Enter and Shift Enter go on'], ['Esc', 'let go'], ['?', 'this']];
const LEGEND = [['vfp', 'vector arithmetic, floating point'], ['vint', 'other vector code'], ['vmem', 'vector load or store'],
                ['matrix', 'matrix unit'],
                ['sfp', 'scalar floating point'], ['smem', 'scalar load or store'], ['gather', 'gather or scatter'], ['bad', 'call or spill'],
                ['unknown', 'not known'], ['rest', 'everything else']];

const byId = id => document.getElementById(id);

const caps = keys => keys.split(' ').flatMap(k => [node('kbd', {textContent: k}), ' ']);

const shown = ([style, what]) => node('li', {}, node('span', {className: `c-${style}`, textContent: what}));

function fillHelp() {
  const close = node('button', {type: 'button', textContent: 'Close', onclick: () => byId('help').close()});
  byId('help').replaceChildren(close, node('h2', {id: 'help-title', textContent: 'Keys and colours'}),
    node('p', {textContent: 'The pointer lights what belongs together in all panes; a click keeps it and scrolls the other panes to it. The strip '
      + 'beside the assembly is its heat: a click goes there. The address of the page says what is shown, and can be kept.'}),
    node('dl', {className: 'keys'}, ...HELP.flatMap(([key, what]) => [node('dt', {}, ...caps(key)), node('dd', {textContent: what})])),
    node('ul', {className: 'legend'}, ...LEGEND.map(shown)));
}

// --- the box ---------------------------------------------------------------------------------------------------------

const tip = {
  box: byId('tip'), waiting: 0,
  hide() { clearTimeout(this.waiting); this.box.hidden = true; },
  wait(what, row, x) {
    this.hide();
    if (what) this.waiting = setTimeout(() => this.show(what, row, x), 250);
  },
  show(what, row, x) {
    const facts = what.facts.flatMap(([name, text]) => [node('dt', {textContent: name}), node('dd', {textContent: text})]);
    const meaning = what.meaning || 'No more is known of it than its class.';
    this.box.replaceChildren(node('strong', {textContent: what.name}), node('p', {textContent: meaning}), node('dl', {}, ...facts));
    this.box.hidden = false;
    const at = row.getBoundingClientRect(), box = this.box.getBoundingClientRect(), wide = document.documentElement.clientWidth, high = innerHeight;
    const below = at.bottom + 8, top = below + box.height < high - 4 ? below : Math.max(4, at.top - box.height - 8);
    Object.assign(this.box.style, {left: `${Math.max(8, Math.min(x + 24, wide - box.width - 8))}px`, top: `${top}px`});
  },
};

// --- search ----------------------------------------------------------------------------------------------------------

class Search {
  constructor(panes) {
    Object.assign(this, {panes, hits: [], now: -1, field: byId('search'), said: byId('found')});
    this.field.addEventListener('input', () => { clearTimeout(this.waiting); this.waiting = setTimeout(() => this.find(), 120); });
    this.field.addEventListener('keydown', event => {
      if (event.key === 'Enter') { event.preventDefault(); clearTimeout(this.waiting); this.go(event.shiftKey ? -1 : 1); }
      if (event.key === 'Escape') { event.preventDefault(); event.stopPropagation(); this.clear(); }
    });
  }

  // All lines of the panes that are shown that hold the text; the active pane's first.
  find() {
    const text = this.text = this.field.value.trim().toLowerCase(), {shown, active} = this.panes();
    this.hits = [];
    this.now = -1;
    for (const pane of [...shown].sort((a, b) => (b === active) - (a === active))) {
      const lines = text ? pane.data.lines.flatMap((line, n) => line.toLowerCase().includes(text) ? [n] : []) : [];
      pane.mark('found', lines);
      this.hits.push(...lines.map(line => [pane, line]));
    }
    if (this.hits.length) this.go(1);
    this.say();
  }

  go(step) {
    if (this.text !== this.field.value.trim().toLowerCase()) return this.find();
    if (!this.hits.length) return;
    this.now = (this.now + step + this.hits.length) % this.hits.length;
    const [pane, line] = this.hits[this.now];
    pane.show(line, true);
    this.panes().stand(pane, line);
    this.say();
  }

  say() { this.said.textContent = !this.text ? '' : this.hits.length ? `${this.now + 1} of ${this.hits.length.toLocaleString('en')}` : 'not found'; }

  clear() {
    const active = this.panes().active;
    this.field.value = '';
    this.find();
    if (document.activeElement === this.field && active) active.text.focus({preventScroll: true});
  }
}
