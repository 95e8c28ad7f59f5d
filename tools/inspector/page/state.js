'use strict';
// What is shown: which kernel, which of its panes, which loop.

const app = {kernels: [], kinds: {}, kernel: null, panes: [], active: null, loop: null, pinned: null, lit: null, chosen: null};

// --- panes -----------------------------------------------------------------------------------------------------------

// What is shown where nothing was chosen: as many columns as the screen holds.
function usual(kernel) {
  const wide = innerWidth, gpu = kernel.sides[0].gpu, kinds = ['source', 'asm'];
  if (wide >= 1100 && (wide >= 1800 || kernel.sides.length === 1)) kinds.push('plan');
  if (wide >= (gpu ? 1600 : 1800)) kinds.push(kernel.panes.some(p => p.kind === 'ptx') ? 'ptx' : 'llir');
  if (wide >= 2300) kinds.push(gpu ? 'ttgir' : 'ttir');
  const best = mainSource(kernel);
  return kernel.panes.filter(p => kinds.includes(p.kind) && (p.kind !== 'source' || p === best)).map(p => p.id);
}

// Of several sources the one that most of the hottest loop is of; the kernel's own before headers.
function mainSource(kernel) {
  const loop = ranked(kernel)[0], sources = kernel.panes.filter(p => p.kind === 'source');
  const about = p => { const at = loop ? [...loop.keys, ...loop.more].findIndex(key => p.byKey.has(key)) : -1; return at < 0 ? Infinity : at; };
  return sources.sort((a, b) => !!b.own - !!a.own || (about(a) === about(b) ? 0 : about(a) - about(b)))[0];
}

const isShown = pane => app.shown.includes(pane.id);
const shownPanes = () => app.panes.filter(isShown);

function layout() {
  const columns = [];
  for (const pane of shownPanes()) {  // a plan is short, and about the source: it stands below that
    const last = columns[columns.length - 1];
    if (pane.kind === 'plan' && last && last[0].kind === 'source') last.push(pane);
    else columns.push([pane]);
  }
  byId('panes').replaceChildren(...columns.map(panes => {
    const made = node('div', {className: 'column'}, ...panes.map(p => p.box));
    made.classList.toggle('code', panes[0].kind === 'asm');
    return made;
  }));
  for (const pane of shownPanes()) { pane.window = null; pane.draw(); pane.view(); }
  byId('switches').replaceChildren(...app.panes.map((pane, n) => {
    const made = node('button', {type: 'button', onclick: () => toggle(n)}, n < 9 ? node('kbd', {textContent: n + 1}) : null, ` ${pane.title()}`);
    made.setAttribute('aria-pressed', isShown(pane));
    if (n < 9) made.setAttribute('aria-keyshortcuts', n + 1);
    return made;
  }));
}

function toggle(n) {
  const pane = app.panes[n];
  if (!pane || isShown(pane) && app.shown.length === 1) return;
  const tops = shownPanes().map(p => [p, p.text.scrollTop]), held = document.activeElement && document.activeElement.closest('#switches');
  app.chosen = app.shown = app.panes.map(p => p.id).filter(id => (id === pane.id) !== app.shown.includes(id));
  layout();
  for (const [p, top] of tops) p.text.scrollTop = top;
  if (isShown(pane)) reveal([pane]);
  if (held) byId('switches').children[n].focus();
  if (!isShown(app.active)) app.active = shownPanes().at(-1);
  save();
}

// The loop of a side that goes with the one that is looked at: itself, else the one with most of its source lines, else the hottest.
function loopOf(side) {
  if (!app.loop || app.loop.side === side) return app.loop;
  const alike = l => l.keys.filter(k => app.loop.keys.includes(k)).length / Math.max(1, l.keys.length, app.loop.keys.length);
  return ranked(app.kernel).filter(l => l.side === side).reduce((best, l) => !best || alike(l) > alike(best) ? l : best, null);
}

// Scrolls panes to what is kept, else to the loop.
function reveal(panes, near = false) {
  for (const pane of panes) {
    const loop = loopOf(pane.data.side), keys = app.pinned !== null ? [app.pinned] : keysIn(pane.data, loop);
    const line = app.pinned === null && pane.kind === 'asm' ? first(pane, loop) : keys.map(k => bestLine(pane.data, k, loop)).find(x => x !== null);
    pane.show(line, near, app.pinned === null && pane.kind === 'asm' ? 3 : null);
  }
}

// The first line of a loop in the assembly, of its pieces the one with most lines; null where it has none there.
function first(pane, loop) {
  const folds = pane.data.folds.filter(f => loop && f.loop === loop);
  return folds.length ? folds.reduce((a, b) => b.last - b.first > a.last - a.first ? b : a).first : null;
}

// --- kernels and loops -----------------------------------------------------------------------------------------------

function choose(kernel) {
  const wanted = app.chosen || [];
  app.kernel = prepared(kernel);
  app.panes = kernel.panes.map(data => new Pane(kernel, data));
  app.shown = kernel.panes.map(p => p.id).filter(id => wanted.includes(id));
  if (!app.shown.length) app.shown = usual(kernel);
  app.active = app.panes.find(p => p.kind === 'asm');
  Object.assign(app, {pinned: null, lit: null});
  const side = (s, n) => [n ? ' and ' : '', node('small', {textContent: `${s.target}, ${s.backend} `}), badge(s.verdict)];
  byId('title').replaceChildren(`${kernel.name} `, ...kernel.sides.flatMap(side));
  byId('facts').replaceChildren(...kernel.sides.flatMap((s, n) => factsOf(kernel, s, n)));
  byId('table').replaceChildren(loopTable(kernel, look));
  [...byId('kernels').querySelectorAll('tbody tr')].forEach((tr, n) => current(tr, app.kernels[n] === kernel));
  layout();
  search.find();
  look(ranked(kernel)[0] || null);
  detail(null);
}

function current(tr, is) {
  tr.classList.toggle('current', is);
  if (is) tr.setAttribute('aria-current', 'true'); else tr.removeAttribute('aria-current');
}

function factsOf(kernel, side, n) {
  const named = (k, x) => k.endsWith(', bytes') ? `${k.slice(0, -7)} ${short(x)} bytes` : `${k} ${short(x)}`;
  const held = x => x.most ? `${percent(x.share)} (${x.warps} of ${x.most} warps, by ${x.limit})` : listed(x);
  const fact = ([k, x]) => typeof x === 'object' ? `${k} ${held(x)}` : named(k, x);
  const said = Object.entries(side.facts).filter(([, x]) => x !== null && x !== '').map(fact);
  const strong = typeof side.share === 'number' ? [node('b', {textContent: `${percent(side.share)} of the work is vector`}), ', '] : [];
  const words = [side.run, ...said, `unknown instructions ${percent(side.unknown || 0)}`, side.remark, side.bounds].filter(Boolean).join(', ');
  return [n ? node('br') : '', kernel.sides.length > 1 ? `${side.target}: ` : '', ...strong, words];
}

const listed = facts => Object.entries(facts).filter(([, x]) => ['number', 'string'].includes(typeof x) && x !== '')
  .map(([k, x]) => `${k.replaceAll('_', ' ')} ${short(x)}`).join(', ');

// Makes a loop the one that is looked at: the card, the table's row, its lines in all panes, all panes scrolled to it.
function look(loop) {
  app.loop = loop;
  pin(null, false);
  for (const pane of app.panes) {
    const here = loopOf(pane.data.side), folds = pane.data.folds.filter(f => here && f.loop === here);
    if (pane.kind === 'asm') pane.mark('here', folds.flatMap(f => Array.from({length: f.last - f.first}, (_, k) => f.first + k)));
    else pane.markKeys('here', keysIn(pane.data, here));
  }
  const rows = ranked(app.kernel);
  [...byId('table').querySelectorAll('tbody tr')].forEach((tr, n) => {
    current(tr, rows[n] === loop);
    const box = byId('table'), top = tr.offsetTop - tr.offsetHeight - 2;
    if (rows[n] === loop && (top < box.scrollTop || tr.offsetTop + tr.offsetHeight > box.scrollTop + box.clientHeight)) box.scrollTop = top;
  });
  cards(loop ? [loop] : []);
  reveal(shownPanes());
  save();
}

// The cards of loops, and what compares two sides.
function cards(loops) {
  const pair = app.kernel.pair ? [pairTable(app.kernel.pair)] : [];
  byId('card').replaceChildren(...loops.map(loop => loopCard(app.kernel, loop, pinLine)), ...pair);
  byId('card').scrollTop = 0;
}

function step(by) {
  const hot = ranked(app.kernel).filter(l => l.hot), at = hot.indexOf(app.loop);
  if (hot.length) look(hot[(at + by + hot.length) % hot.length]);
  const pane = app.panes.find(p => isShown(p) && p.kind === 'asm' && app.loop && p.data.side === app.loop.side);
  if (pane && first(pane, app.loop) !== null) stand(pane, pane.from(first(pane, app.loop)), false);
}

