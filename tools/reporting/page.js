'use strict';
// The page's state: filters, what is drawn, the table, and the box that says what a point is.

const FILTERS = [['op', 'Op', r => r.op], ['dtype', 'Type', r => r.dtype], ['backend', 'Backend', r => r.backend],
                 ['machine', 'Machine', r => data.runs[r.run].name]];
const hidden = Object.fromEntries(FILTERS.map(([key]) => [key, new Set()]));
const passes = r => FILTERS.every(([key, , of]) => !hidden[key].has(of(r)));
const valuesOf = (key, of) => key === 'backend' ? Object.keys(data.colours) : key === 'machine' ? data.runs.map(r => r.name)
  : [...new Set(data.rows.map(of))];

// --- the box -------------------------------------------------------------------------------------------------------

const tip = {
  box: document.getElementById('tip'), pinned: null, lit: null,
  hover(point) { if (!this.pinned) this.show(point); },
  pin(point) {
    this.close();
    if (!point) return;
    this.pinned = point;
    this.show(point);
    this.box.classList.add('pinned');
    const close = node('button', {type: 'button', textContent: 'Close'});
    close.addEventListener('click', () => { this.pinned.made.focus(); this.close(); });
    this.box.prepend(close);
    this.place(point);
    close.focus({preventScroll: true});
  },
  close() { this.pinned = null; this.box.classList.remove('pinned'); this.show(null); },
  show(point) {
    if (this.lit) this.lit.made.classList.remove('lit');
    this.lit = point;
    this.box.hidden = !point;
    if (!point) return;
    point.made.classList.add('lit');
    this.box.replaceChildren(...details(point.row, point.extra));
    this.place(point);
  },
  place(point) {
    const at = point.made.getBoundingClientRect(), box = this.box.getBoundingClientRect(), wide = document.documentElement.clientWidth;
    const left = Math.min(Math.max(8, at.left + at.width / 2 - box.width / 2), wide - box.width - 8);
    const above = at.top - box.height - 10, top = above > 4 ? above : at.bottom + 10;
    Object.assign(this.box.style, {left: `${Math.max(8, left) + scrollX}px`, top: `${top + scrollY}px`});
  },
};
document.addEventListener('click', event => { if (tip.pinned && !tip.box.contains(event.target)) tip.close(); });
document.addEventListener('keydown', event => {
  if (event.key !== 'Escape') return;
  if (tip.pinned) tip.pinned.made.focus();
  tip.close();
});

const spread = t => `${timeText(t[1])} (${timeText(t[0])} to ${timeText(t[2])})`;
const link = (href, text) => node('a', {href, textContent: text});
const codeLink = r => r.asm ? link(r.asm, r.verdict || 'assembly') : r.verdict || '';

function details(r, extra) {
  const machine = data.runs[r.run].name + (r.device !== 'cpu' ? `, ${r.device}` : '');
  const facts = [['machine', machine], ['type', r.dtype], ['backend', r.backend], ['point', extra]];
  if (r.gpu) facts.push(['GPU', spread(r.time)]);
  facts.push([r.gpu ? 'host' : 'wall', spread(r.wall)]);
  if (r.cpu !== undefined) facts.push(['CPU', `${timeText(r.cpu)}, the mean`]);
  if (r.roof !== undefined) facts.push(['roof', `${short(100 * r.roof)}%`]);
  if (r.speedup && r.backend !== r.baseline) facts.push([`vs ${r.baseline}`, `${ratioText(r.speedup)} as fast`]);
  if (r.noisy) facts.push(['noisy', r.noisy]);
  if (r.unsteady) facts.push(['unsteady', r.unsteady]);
  if (r.bytes) facts.push(['reached', prefixed(r.bytes / r.time[1], 'B/s') + (r.flops ? `, ${prefixed(r.flops / r.time[1], 'FLOP/s')}` : '')]);
  const first = Object.entries(r.first).map(([kind, s]) => `${kind} ${timeText(s)}`).join(', ');
  if (first) facts.push(['first call', first]);
  const other = r.code_case && r.code_case !== r.case ? ` of case ${r.code_case}` : '';
  if (r.asm || r.verdict) facts.push(['assembly', node('span', {}, codeLink(r), other)]);
  if (r.trace) facts.push(['trace', link(r.trace, 'open')]);
  return [node('strong', {}, swatch(shapeOf(r.run), colourOf(r.backend)), ` ${r.op} ${r.case}`),
          node('dl', {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [node('dt', {textContent: name}), node('dd', {}, value)]))];
}

// --- the table -----------------------------------------------------------------------------------------------------

const text = of => ({of, left: true});
const COLUMNS = {
  machine: text(r => data.runs[r.run].name), op: text(r => r.op), case: text(r => r.case), dtype: text(r => r.dtype), backend: text(r => r.backend),
  time: {of: r => r.time && r.time[1], say: (t, r) => (r.unsteady ? '~' : '') + timeText(t)},
  'p20 to p80': {of: r => r.time && r.time[2] / r.time[0], say: (_, r) => `${timeText(r.time[0])} to ${timeText(r.time[2])}`},
  CPU: {of: r => r.cpu, say: timeText}, 'B/s': {of: r => r.bytes && r.time && r.bytes / r.time[1], say: x => prefixed(x, '')},
  'FLOP/s': {of: r => r.flops && r.time && r.flops / r.time[1], say: x => prefixed(x, '')},
  roof: {of: r => r.roof, say: x => `${Math.round(100 * x)}%`}, [data.against]: {of: r => r.speedup, say: (x, r) => ratioText(x) + (r.noisy ? ' noisy' : '')},
  baseline: {of: r => r.baseline, left: true},
  cold: {of: r => r.first && r.first.cold, say: timeText}, reload: {of: r => r.first && r.first.reload, say: timeText},
  process: {of: r => r.first && r.first.process, say: timeText}, here: {of: r => r.first && r.first.here, say: timeText},
  memory: {of: r => r.peak, say: bytesText}, error: text(r => r.error || ''),
  code: {of: r => r.verdict || (r.asm ? 'assembly' : undefined), say: (_, r) => codeLink(r), left: true},
  trace: {of: r => r.trace, say: x => link(x, 'open'), left: true},
};
const order = {column: null, down: false};

function drawTable(rows) {
  const said = n => rows.some(r => ![undefined, ''].includes(COLUMNS[n].of(r)))
    && (n !== 'machine' || data.runs.length > 1) && (n !== 'baseline' || !overOf(data.rows));
  const names = Object.keys(COLUMNS).filter(n => n === 'time' || said(n));
  const sorted = [...rows].sort((a, b) => (a.status === 'ok') - (b.status === 'ok') || (order.column ? compared(a, b) : 0));  // a stable sort
  const head = node('tr', {}, ...names.map(name => {
    const by = node('button', {type: 'button', textContent: name + (order.column === name ? order.down ? ' ▼' : ' ▲' : '')});
    by.addEventListener('click', () => {
      Object.assign(order, {column: name, down: order.column === name && !order.down});
      drawTable(rows);
      [...document.querySelectorAll('#rows th button')][names.indexOf(name)].focus();
    });
    const cell = node('th', {className: COLUMNS[name].left ? 'left' : '', scope: 'col'}, by);
    if (order.column === name) cell.setAttribute('aria-sort', order.down ? 'descending' : 'ascending');
    return cell;
  }));
  document.getElementById('rows').replaceChildren(node('thead', {}, head), node('tbody', {}, ...sorted.map(r => node('tr', {}, ...cells(r, names)))));
}

function compared(a, b) {
  const [x, y] = [a, b].map(COLUMNS[order.column].of);
  if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
  return (order.down ? -1 : 1) * (x < y ? -1 : x > y ? 1 : 0);
}

function cells(r, names) {
  return names.map(name => {
    const {of, say, left} = COLUMNS[name], value = of(r), cell = node('td', {className: left ? 'left' : ''});
    if (name === 'time' && r.status !== 'ok') {
      Object.assign(cell, {className: 'bad left', textContent: r.status.toUpperCase(), title: r.reason || ''});
    } else if (value !== undefined) cell.append(say ? say(value, r) : value);
    if (name === 'backend') cell.prepend(swatch('square', colourOf(r.backend)), ' ');
    return cell;
  });
}

// --- what is drawn -------------------------------------------------------------------------------------------------

function legend(figure, rows) {
  const items = backendsOf(rows).map(b => [swatch('square', colourOf(b)), b]);
  const runs = [...new Set(rows.map(r => r.run))];
  if (figure.machines && runs.length > 1) items.push(...runs.map(run => [swatch(shapeOf(run), 'currentColor', dashOf(run)), data.runs[run].name]));
  for (const [kind, [shape, words]] of Object.entries(figure.kinds || {}))
    if (rows.some(r => kind in r.first)) items.push([swatch(shape, 'currentColor'), words]);
  if (!figure.kinds && rows.some(r => r.noisy)) items.push([swatch('circle', 'currentColor', null, true), 'noisy: not to be relied on']);
  return node('ul', {className: 'legend'}, ...items.map(parts => node('li', {}, ...parts)));
}

function draw() {
  tip.close();
  const rows = data.rows.filter(passes), place = document.getElementById('figures');
  document.getElementById('count').textContent = `${rows.length} of ${data.rows.length} rows are shown.`;
  const sections = FIGURES.map(figure => {
    const panels = figure.panels(rows), places = panels.map(p => node('div', {className: 'panel'}, node('h3', {textContent: p.title})));
    const none = node('p', {className: 'note', textContent: 'No row that is shown has the figures for this.'});
    const section = node('section', {id: figure.id}, node('h2', {textContent: figure.title(rows.filter(r => r.status === 'ok'))}), node('p', {textContent: figure.about}),
                         panels.length ? legend(figure, panels.flatMap(p => p.rows)) : none,
                         node('div', {className: 'panels'}, ...places));
    return {section, panels, places};
  });
  place.replaceChildren(...sections.map(s => s.section));
  for (const {panels, places} of sections) panels.forEach((p, n) => {  // when all are in place, for then they have their width
    const panel = new Panel(places[n], p.title, p.height());
    p.draw(panel);
    panel.listen(tip);
  });
  drawTable(rows);
}

// --- filters, the address, colours of the page ---------------------------------------------------------------------

function save() {
  const parts = FILTERS.filter(([key]) => hidden[key].size).map(([key]) => `${key}=${[...hidden[key]].map(encodeURIComponent).join(',')}`);
  const part = parts.length ? 'without:' + parts.join('&') : '';
  try { history.replaceState(null, '', '#' + part); } catch { /* a page in a frame has no address of its own */ }
}

function load() {
  for (const set of Object.values(hidden)) set.clear();
  const found = /^#without:(.*)$/.exec(location.hash);
  for (const part of found ? found[1].split('&') : []) {
    const [key, list = ''] = part.split('=');
    if (!Object.hasOwn(hidden, key)) continue;
    try { list.split(',').map(decodeURIComponent).forEach(v => hidden[key].add(v)); } catch { /* an address cut short */ }
  }
}

function drawFilters() {
  document.getElementById('filters').replaceChildren(...FILTERS.map(([key, title, of]) => {
    const set = node('fieldset', {}, node('legend', {textContent: title})), values = valuesOf(key, of);
    values.forEach((value, n) => {
      const box = node('input', {type: 'checkbox', checked: !hidden[key].has(value), name: key, value});
      box.addEventListener('change', () => { hidden[key][box.checked ? 'delete' : 'add'](value); changed(); });
      const sign = key === 'backend' ? [swatch('square', colourOf(value))] : key === 'machine' ? [swatch(shapeOf(n), 'currentColor', dashOf(n))] : [];
      set.append(node('label', {className: 'chip'}, box, ...sign, node('span', {textContent: value})));
    });
    for (const [word, none] of values.length > 2 ? [['all', false], ['none', true]] : []) {
      const button = node('button', {type: 'button', textContent: word});
      button.setAttribute('aria-label', `${title}: ${word}`);
      button.addEventListener('click', () => {
        hidden[key] = new Set(none ? values : []);
        for (const box of set.querySelectorAll('input')) box.checked = !none;
        changed();
      });
      set.append(button);
    }
    return set;
  }));
}

const changed = () => { save(); draw(); };
document.getElementById('filters').addEventListener('submit', event => event.preventDefault());
document.getElementById('reset').addEventListener('click', () => { for (const set of Object.values(hidden)) set.clear(); drawFilters(); changed(); });
window.addEventListener('hashchange', () => { load(); drawFilters(); draw(); });

const theme = document.getElementById('theme');
const paint = () => { if (theme.value) document.documentElement.dataset.theme = theme.value; else delete document.documentElement.dataset.theme; };
try { theme.value = localStorage.getItem('triport-theme') || ''; } catch { /* storage is switched off */ }
theme.addEventListener('change', () => { paint(); try { localStorage.setItem('triport-theme', theme.value); } catch { /* as above */ } });
paint();

let width = innerWidth, waiting = 0;
window.addEventListener('resize', () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(draw, 100);
});
load();
drawFilters();
draw();
