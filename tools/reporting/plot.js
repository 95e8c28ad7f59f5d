'use strict';
// Drawing: SVG elements, logarithmic scales, marks, and panels whose points say what they are to pointer, keyboard and touch.

const svgNode = (name, attributes = {}, text = null) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
};
const node = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

const short = (x, digits = 3) => String(Number(x.toPrecision(digits)));
const timeText = s => s < 1e-6 ? `${short(s * 1e9)} ns` : s < 1e-3 ? `${short(s * 1e6)} us` : s < 1 ? `${short(s * 1e3)} ms` : `${short(s)} s`;
const prefixed = (x, unit) => {
  const steps = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
  const [size, letter] = steps.find(([size]) => x >= size) || [1, ''];
  return `${short(x / size)} ${letter}${unit}`;
};
const ratioText = x => (x >= 1e4 || x < 1e-3 ? x.toExponential(0) : x >= 0.1 && x < 10 ? x.toFixed(2) : short(x, x < 1 ? 2 : 3)) + 'x';

// A logarithmic scale from values in [low, high] to pixels in [from, to], with ticks at least `room` pixels apart.
function logScale(low, high, from, to, room) {
  const a = Math.log10(low), b = Math.log10(high);
  const at = value => from + (Math.log10(value) - a) / (b - a) * (to - from);
  const decades = Array.from({length: Math.floor(b) - Math.floor(a) + 1}, (_, n) => Math.floor(a) + n);
  const marks = (steps, every = 1) => decades.filter(e => e % every === 0).flatMap(e => steps.map(k => Number(`${k}e${e}`)))
    .filter(v => v >= low && v <= high);
  const roomy = list => list.length > 0 && list.every((v, n) => !n || Math.abs(at(v) - at(list[n - 1])) >= room);
  const finest = [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3]].map(steps => marks(steps));
  const every = [1, 2, 3, 4, 5, 10, 20, 50, 100].map(n => marks([1], n));
  return {at, ticks: [...finest, ...every].find(roomy) || [], low, high};
}

// The range of positive values, widened so that marks do not touch the frame, and at least `least` times wide.
function range(values, least = 4, margin = 1.25) {
  const found = values.filter(v => v > 0);
  if (!found.length) return [1, 10];
  let low = found.reduce((x, y) => Math.min(x, y)) / margin, high = found.reduce((x, y) => Math.max(x, y)) * margin;
  const wider = Math.sqrt(Math.max(1, least * low / high));
  return [low / wider, high * wider];
}

const outlines = {
  circle: r => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  square: r => `M${-r * .9},${-r * .9}h${r * 1.8}v${r * 1.8}h${-r * 1.8}Z`,
  triangle: r => `M0,${-r * 1.2}L${r * 1.1},${r * .8}H${-r * 1.1}Z`,
  diamond: r => `M0,${-r * 1.3}L${r * 1.1},0L0,${r * 1.3}L${-r * 1.1},0Z`,
  down: r => `M0,${r * 1.2}L${r * 1.1},${-r * .8}H${-r * 1.1}Z`,
  plus: r => { const a = r * .8; return `M${-r * 1.2},${-r * .4}h${a}v${-a}h${a}v${a}h${a}v${a}h${-a}v${a}h${-a}v${-a}h${-a}Z`; },
};
const cut = (text, most) => text.length > most ? text.slice(0, most - 3) + '...' : text;
// A mark; a hollow one, of which only the outline has a colour, is of a noisy row.
const mark = (shape, x, y, colour, r = 4.5, hollow = false) => svgNode('path', {
  d: outlines[shape](r), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
  ...(hollow ? {fill: 'none', stroke: colour, class: 'point hollow'} : {fill: colour, class: 'point'})});

function swatch(shape, colour, dash = null, hollow = false) {
  const svg = svgNode('svg', {class: 'swatch', viewBox: '-8 -8 16 16', 'aria-hidden': 'true'});
  if (dash !== null) svg.append(svgNode('line', {x1: -8, x2: 8, y1: 0, y2: 0, stroke: colour, 'stroke-width': 1.5, 'stroke-dasharray': dash}));
  svg.append(mark(shape, 0, 0, colour, dash === null ? 6.5 : 5, hollow));
  return svg;
}

// A panel: a titled SVG as wide as its place. draw(panel) is called with width; it adds axes, lines and points.
class Panel {
  constructor(place, title, height) {
    this.width = Math.max(240, Math.floor(place.clientWidth));
    this.height = height;
    this.points = [];
    this.svg = svgNode('svg', {viewBox: `0 0 ${this.width} ${height}`, height, role: 'group', 'aria-label': title});
    place.append(this.svg);
  }

  add(name, attributes, text) {
    const made = svgNode(name, attributes, text);
    this.svg.append(made);
    return made;
  }

  // Axes around a plot area; x and y: {range, label, text(value)}. y may be left out.
  axes(x, y, box = {}) {
    const {left = 62, right = 12, top = 8, bottom = 40} = box;
    const [x0, x1, y0, y1] = [left, this.width - right, this.height - bottom, top];
    const xs = logScale(...x.range, x0, x1, 54);
    for (const t of xs.ticks) {
      this.add('line', {class: 'grid', x1: xs.at(t), x2: xs.at(t), y1: y0, y2: y1});
      const half = 3.2 * x.text(t).length;  // a label at an end stays inside
      this.add('text', {x: Math.min(Math.max(xs.at(t), half), this.width - half), y: y0 + 15, 'text-anchor': 'middle'}, x.text(t));
    }
    this.add('text', {x: (x0 + x1) / 2, y: y0 + 32, 'text-anchor': 'middle'}, x.label);
    this.add('line', {class: 'axis', x1: x0, x2: x1, y1: y0, y2: y0});
    if (!y) return [xs, null];
    const ys = logScale(...y.range, y0, y1, 26);
    for (const t of ys.ticks) {
      this.add('line', {class: 'grid', x1: x0, x2: x1, y1: ys.at(t), y2: ys.at(t)});
      this.add('text', {x: x0 - 6, y: ys.at(t) + 4, 'text-anchor': 'end'}, y.text(t));
    }
    this.add('line', {class: 'axis', x1: x0, x2: x0, y1: y0, y2: y1});
    if (y.label) this.add('text', {transform: `translate(11,${(y0 + y1) / 2}) rotate(-90)`, 'text-anchor': 'middle'}, y.label);
    return [xs, ys];
  }

  // A mark that stands for a row.
  point(shape, x, y, row, colour, extra = '', r = 4.5, noisy = Boolean(row.noisy)) {
    const made = mark(shape, x, y, colour, r, noisy);
    made.setAttribute('tabindex', this.points.length ? -1 : 0);
    made.setAttribute('role', 'button');
    made.setAttribute('aria-label', `${row.op} ${row.case} ${row.dtype} ${row.backend}${extra ? ', ' + extra : ''}${noisy ? ', noisy' : ''}`);
    this.svg.append(made);
    this.points.push({x, y, row, extra, made});
  }

  // What is under the pointer shows; a click or Enter keeps it; arrows go from point to point, the panel being one stop of Tab.
  listen(tip) {
    const nearest = event => {
      const box = this.svg.getBoundingClientRect();
      const scale = this.width / box.width, x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      let best = null, least = 22;
      for (const p of this.points) {
        const d = Math.hypot(p.x - x, p.y - y);
        if (d < least) [best, least] = [p, d];
      }
      return best;
    };
    this.svg.addEventListener('pointermove', event => { if (event.pointerType !== 'touch') tip.hover(nearest(event)); });
    this.svg.addEventListener('pointerleave', () => tip.hover(null));
    this.svg.addEventListener('click', event => { event.stopPropagation(); tip.pin(nearest(event)); });
    this.svg.addEventListener('focusin', event => tip.hover(this.points.find(p => p.made === event.target) || null));
    this.svg.addEventListener('focusout', () => tip.hover(null));
    this.svg.addEventListener('keydown', event => {
      const n = this.points.findIndex(p => p.made === event.target);
      const to = {ArrowRight: n + 1, ArrowDown: n + 1, ArrowLeft: n - 1, ArrowUp: n - 1, Home: 0, End: this.points.length - 1}[event.key];
      if (n < 0) return;
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); tip.pin(this.points[n]); }
      if (to === undefined || !this.points[to]) return;
      event.preventDefault();
      this.points[n].made.setAttribute('tabindex', -1);
      this.points[to].made.setAttribute('tabindex', 0);
      this.points[to].made.focus();
    });
  }
}
